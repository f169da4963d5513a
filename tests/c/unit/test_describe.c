/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/crew_scene.h"

/* The description of a worker. */

static void every_kind_of_report_reads_well(void **state) {
    (void)state;
    struct hr_worker_report report = {.worker = 2, .pid = 99, .is_end_known = 1, .signal = SIGKILL, .oom_kills = 1};
    report.status = (struct hr_worker_status){.pid = 99, .phase = HR_PHASE_FETCH, .task = 41};
    report.rss_bytes = UINT64_C(3) << 30;
    assert_text(&report, "worker N (pid N) was killed by signal N (Killed); it was in the dataset, at task N; it had "
                         "N.N GiB of memory when last seen. While it ran, the kernel's count of processes killed "
                         "because memory ran out rose by N");
    report.signal = 40; /* a real-time signal has no name */
    report.oom_kills = 0;
    report.rss_bytes = 512;
    report.status.phase = HR_PHASE_COLLATE;
    assert_text(&report, "worker N (pid N) was killed by signal N; it was collating or writing its batch, at task N; "
                         "it had N bytes of memory when last seen");
    report = (struct hr_worker_report){.worker = 1, .pid = 5, .is_alive = 1, .state = 'R', .thread_count = 4};
    report.status = (struct hr_worker_status){.pid = 5, .phase = HR_PHASE_FETCH};
    assert_text(&report, "worker N (pid N) computes; it was in the dataset, at task N and N threads");
    report.rss_bytes = 100 * KIB;
    report.state = 'S';
    report.thread_count = 1;
    report.is_deadlocked = 1;
    assert_text(&report,
                "worker N (pid N) waits; it was in the dataset, at task N; it has N.N KiB of memory; it waits for "
                "a thread that it does not have");
    report.is_deadlocked = 0;
    report.thread_count = 4;
    report.state = 'D';
    strcpy(report.kernel_function, "nfs_wait");
    strcpy(report.system_call, "0 0x3");
    assert_text(&report, "worker N (pid N) waits in the kernel for a disk or the network; it was in the dataset, at "
                         "task N; it has N.N KiB of memory and N threads; in the kernel: nfs_wait; system call: N NxN");
    assert_text(&(struct hr_worker_report){.worker = 1}, "worker N was never started");
}

static void a_description_is_cut_where_its_room_ends(void **state) {
    (void)state;
    struct hr_worker_report report = {.worker = 2, .pid = 99, .is_end_known = 1, .exit_code = 3};
    char text[300], room[300];
    int length = hr_crew_describe(&report, text, sizeof text);
    assert_int_equal(hr_crew_describe(&report, NULL, 0), length);
    for (int bytes = 1; bytes <= length + 2; bytes++) {
        memset(room, 'x', sizeof room);
        assert_int_equal(hr_crew_describe(&report, room, (size_t)bytes), length);
        assert_int_equal(strlen(room), bytes <= length ? bytes - 1 : length);
        assert_memory_equal(room, text, strlen(room));
        assert_int_equal(room[bytes], 'x');
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_report_reads_well),
        cmocka_unit_test(a_description_is_cut_where_its_room_ends),
    };
    return cmocka_run_group_tests_name("describe", tests, NULL, NULL);
}
