/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "os/os.h"

/* A made-up machine: /proc and /sys below $HEADRACE_ROOT. */

enum { KIB = 1024, MIB = 1024 * 1024, SKIP_CODE = 77 };
#define NO_LIMIT UINT64_MAX

static char root[64];

static int open_machine(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/headrace-cgroup-XXXXXX");
    assert_non_null(mkdtemp(root));
    return setenv("HEADRACE_ROOT", root, 1);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

static int close_machine(void **state) {
    (void)state;
    unsetenv("HEADRACE_ROOT");
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Writes a file, and the folders above it. */
static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(full, 0700);
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void put_v2(const char *group, const char *limit, const char *usage) {
    char path[256];
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
    put(path, limit);
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", group);
    put(path, usage);
}

static void put_v1(const char *group, const char *limit, const char *usage) {
    char path[256];
    snprintf(path, sizeof path, "/sys/fs/cgroup/memory%s/memory.limit_in_bytes", group);
    put(path, limit);
    snprintf(path, sizeof path, "/sys/fs/cgroup/memory%s/memory.usage_in_bytes", group);
    put(path, usage);
}

static void assert_headroom(uint64_t expected) {
    assert_true(hr__cgroup_headroom() == expected);
}

static void assert_oom_kills(uint64_t expected) {
    assert_true(hr__oom_kill_count() == expected);
}

/* ---- headroom ---- */

static void without_cgroups_there_is_no_limit(void **state) {
    (void)state;
    assert_headroom(NO_LIMIT);
    put("/proc/self/cgroup", "");
    assert_headroom(NO_LIMIT);
    put("/proc/self/cgroup", "0::/\n");
    assert_headroom(NO_LIMIT);
}

static void v2_headroom_is_the_limit_less_what_is_used_and_not_cache(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/job\n");
    put_v2("/job", "1048576\n", "262144\n");
    assert_headroom(768 * KIB);
    put("/sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 65536\nactive_file 7\n");
    assert_headroom(832 * KIB);
    put("/sys/fs/cgroup/job/memory.stat", "inactive_file 99999999\n"); /* more than is used: counters move */
    assert_headroom(1024 * KIB);
    put("/sys/fs/cgroup/job/memory.stat", "inactive_file_of_another_kind 5\n");
    assert_headroom(768 * KIB);
}

static void a_group_over_its_limit_has_none(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/job\n");
    put_v2("/job", "1000\n", "5000\n");
    assert_headroom(0);
    put_v2("/job", "0\n", "0\n");
    assert_headroom(0);
}

static void max_is_no_limit(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/job\n");
    put_v2("/job", "max\n", "262144\n");
    assert_headroom(NO_LIMIT);
}

static void a_tighter_parent_counts(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/user/job/step\n");
    put_v2("/user/job/step", "max\n", "1000\n");
    put_v2("/user/job", "8388608\n", "1000\n");
    put_v2("/user", "4194304\n", "3145728\n");
    assert_headroom(1 * MIB);
    put_v2("/user/job/step", "500000\n", "1000\n");
    assert_headroom(499000);
    put_v2("/user/job/step", "max\n", "1000\n");
    put_v2("", "2097152\n", "2000000\n"); /* a container's own group, mounted as the root */
    assert_headroom(2097152 - 2000000);
}

static void v1_reads_its_own_files(void **state) {
    (void)state;
    put("/proc/self/cgroup", "9:cpu,cpuacct:/elsewhere\n4:memory:/job\n1:name=systemd:/\n");
    put_v1("/job", "2097152\n", "1048576\n");
    put("/sys/fs/cgroup/memory/job/memory.stat", "cache 9\ninactive_file 4096\ntotal_inactive_file 8192\n");
    assert_headroom(1 * MIB + 4096);
    put_v1("", "1100000\n", "1000000\n");
    assert_headroom(100000);
}

static void v1_without_a_limit_leaves_more_than_any_machine_has(void **state) {
    (void)state;
    put("/proc/self/cgroup", "4:memory:/\n");
    put_v1("", "9223372036854771712\n", "1048576\n");
    assert_true(hr__cgroup_headroom() > UINT64_C(1) << 60);
}

static void a_hybrid_machine_has_the_tighter_of_both(void **state) {
    (void)state;
    put("/proc/self/cgroup", "4:memory:/a\n0::/b\n");
    put_v1("/a", "2000000\n", "1000000\n");
    assert_headroom(1000000);
    put_v2("/b", "900000\n", "100000\n");
    assert_headroom(800000);
    put_v2("/b", "9000000\n", "100000\n");
    assert_headroom(1000000);
}

static void a_path_that_the_container_does_not_see_falls_back_to_the_mount(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/kubepods/pod1/abc\n");
    put_v2("", "3145728\n", "1048576\n");
    assert_headroom(2 * MIB);
    put("/proc/self/cgroup", "4:memory:/docker/abc\n");
    put_v1("", "4194304\n", "1048576\n");
    assert_headroom(3 * MIB);
}

static void an_unreadable_file_means_no_limit(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/job\n");
    put("/sys/fs/cgroup/job/memory.max", "1048576\n"); /* and no memory.current */
    assert_headroom(NO_LIMIT);
    put_v2("/job", "", "1000\n");
    assert_headroom(NO_LIMIT);
    put_v2("/job", "lots\n", "1000\n");
    assert_headroom(NO_LIMIT);
    put_v2("/job", "-1\n", "1000\n");
    assert_headroom(NO_LIMIT);
    put_v2("/job", "1048576\n", "some\n");
    assert_headroom(NO_LIMIT);
}

static void invalid_lines_are_skipped(void **state) {
    (void)state;
    char line[6000];
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    put("/proc/self/cgroup", line);
    assert_headroom(NO_LIMIT);
    put("/proc/self/cgroup", "\n:\n::\nmemory\n4:memory\n7:memory,more:/job\n\xff\xfe\n0::/job");
    put_v2("/job", "1048576", "48576"); /* without newlines */
    assert_headroom(1000000);
    memset(line, '/', sizeof line - 1);
    memcpy(line, "0::", 3);
    put("/proc/self/cgroup", line); /* a path longer than any */
    assert_true(hr__cgroup_headroom() > 0);
}

static void available_memory_is_the_minimum_of_machine_and_groups(void **state) {
    (void)state;
    assert_true(hr__available_memory() == UINT64_C(1) << 30); /* no /proc: a modest guess */
    put("/proc/meminfo", "MemTotal:       16000000 kB\nMemFree:         100 kB\nMemAvailable:    5000 kB\n");
    assert_true(hr__available_memory() == 5000 * KIB);
    put("/proc/self/cgroup", "0::/job\n");
    put_v2("/job", "2000000\n", "500000\n");
    assert_true(hr__available_memory() == 1500000);
    put_v2("/job", "max\n", "500000\n");
    assert_true(hr__available_memory() == 5000 * KIB);
}

static void the_limit_is_the_least_of_the_groups_whatever_is_used(void **state) {
    (void)state;
    assert_true(hr__cgroup_limit() == NO_LIMIT);
    put("/proc/self/cgroup", "0::/user/job\n");
    put_v2("/user/job", "8388608\n", "8388607\n");
    assert_true(hr__cgroup_limit() == 8 * MIB);
    put_v2("/user", "4194304\n", "1\n");
    assert_true(hr__cgroup_limit() == 4 * MIB);
}

/* ---- processors and processes ---- */

static void a_quota_of_processor_time_counts_in_thousandths_of_a_core(void **state) {
    (void)state;
    assert_true(hr__cgroup_millicores() == NO_LIMIT);
    put("/proc/self/cgroup", "0::/job\n");
    put("/sys/fs/cgroup/job/cpu.max", "max 100000\n");
    assert_true(hr__cgroup_millicores() == NO_LIMIT);
    put("/sys/fs/cgroup/job/cpu.max", "250000 100000\n");
    assert_true(hr__cgroup_millicores() == 2500);
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n"); /* a container's own group, mounted as the root */
    assert_true(hr__cgroup_millicores() == 500);
    put("/sys/fs/cgroup/cpu.max", "50000\n"); /* no period, no sense */
    assert_true(hr__cgroup_millicores() == 2500);
    put("/sys/fs/cgroup/cpu.max", "18446744073709551615 1\n");
    assert_true(hr__cgroup_millicores() == 2500);
}

static void the_cores_within_the_cpu_quota_are_usable(void **state) {
    (void)state;
    assert_int_equal(hr__usable_core_count(), hr__core_count());
    put("/proc/self/cgroup", "0::/job\n");
    put("/sys/fs/cgroup/job/cpu.max", "100000000 1\n"); /* more than there are */
    assert_int_equal(hr__usable_core_count(), hr__core_count());
    put("/sys/fs/cgroup/job/cpu.max", "199999 100000\n");
    assert_int_equal(hr__usable_core_count(), 1);
    put("/sys/fs/cgroup/job/cpu.max", "1000 100000\n"); /* a hundredth of a core is one to run on */
    assert_int_equal(hr__usable_core_count(), 1);
}

static void v1_has_its_quota_in_two_files(void **state) {
    (void)state;
    put("/proc/self/cgroup", "9:memory:/m\n4:cpu,cpuacct:/job\n");
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    assert_true(hr__cgroup_millicores() == NO_LIMIT);
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n");
    assert_true(hr__cgroup_millicores() == 3000);
    put("/proc/self/cgroup", "4:cpuset:/job\n"); /* another controller */
    assert_true(hr__cgroup_millicores() == NO_LIMIT);
}

static void the_room_for_processes_is_the_limit_less_those_that_run(void **state) {
    (void)state;
    assert_true(hr__cgroup_process_room() == NO_LIMIT);
    put("/proc/self/cgroup", "0::/job\n");
    put("/sys/fs/cgroup/job/pids.max", "max\n");
    put("/sys/fs/cgroup/job/pids.current", "7\n");
    assert_true(hr__cgroup_process_room() == NO_LIMIT);
    put("/sys/fs/cgroup/job/pids.max", "100\n");
    assert_true(hr__cgroup_process_room() == 93);
    put("/sys/fs/cgroup/job/pids.current", "300\n");
    assert_true(hr__cgroup_process_room() == 0);
}

/* ---- the kernel's count of processes that it killed ---- */

static void v2_counts_oom_kills_in_memory_events(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/job\n");
    put("/sys/fs/cgroup/job/memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 9\n");
    put("/proc/vmstat", "oom_kill 77\n");
    assert_oom_kills(2);
}

static void v1_counts_oom_kills_in_oom_control(void **state) {
    (void)state;
    put("/proc/self/cgroup", "4:memory:/job\n0::/\n");
    put("/sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
    assert_oom_kills(5);
    put("/sys/fs/cgroup/memory.events", "oom_kill 9\n"); /* the first group that tells */
    assert_oom_kills(5);
}

static void in_a_container_the_mount_has_the_count(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/kubepods/pod1/abc\n");
    put("/sys/fs/cgroup/memory.events", "oom 1\noom_kill 4\n");
    assert_oom_kills(4);
    put("/proc/self/cgroup", "4:memory:/docker/abc\n");
    put("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\noom_kill 6\n");
    assert_oom_kills(6);
}

static void without_a_group_the_machine_has_the_count(void **state) {
    (void)state;
    assert_oom_kills(UINT64_MAX);
    put("/proc/vmstat", "pgfault 5\noom_kill 8\nthp 1\n");
    assert_oom_kills(8);
    put("/proc/self/cgroup", "9:cpu:/job\n");
    assert_oom_kills(8);
    put("/proc/self/cgroup", "0::/job\n");
    put("/sys/fs/cgroup/job/memory.events", "low 0\nhigh 0\n"); /* a kernel that does not count them */
    assert_oom_kills(8);
}

int main(void) {
#define in_a_machine(test) cmocka_unit_test_setup_teardown(test, open_machine, close_machine)
    const struct CMUnitTest tests[] = {
        in_a_machine(without_cgroups_there_is_no_limit),
        in_a_machine(v2_headroom_is_the_limit_less_what_is_used_and_not_cache),
        in_a_machine(a_group_over_its_limit_has_none),
        in_a_machine(max_is_no_limit),
        in_a_machine(a_tighter_parent_counts),
        in_a_machine(v1_reads_its_own_files),
        in_a_machine(v1_without_a_limit_leaves_more_than_any_machine_has),
        in_a_machine(a_hybrid_machine_has_the_tighter_of_both),
        in_a_machine(a_path_that_the_container_does_not_see_falls_back_to_the_mount),
        in_a_machine(an_unreadable_file_means_no_limit),
        in_a_machine(invalid_lines_are_skipped),
        in_a_machine(available_memory_is_the_minimum_of_machine_and_groups),
        in_a_machine(the_limit_is_the_least_of_the_groups_whatever_is_used),
        in_a_machine(a_quota_of_processor_time_counts_in_thousandths_of_a_core),
        in_a_machine(the_cores_within_the_cpu_quota_are_usable),
        in_a_machine(v1_has_its_quota_in_two_files),
        in_a_machine(the_room_for_processes_is_the_limit_less_those_that_run),
        in_a_machine(v2_counts_oom_kills_in_memory_events),
        in_a_machine(v1_counts_oom_kills_in_oom_control),
        in_a_machine(in_a_container_the_mount_has_the_count),
        in_a_machine(without_a_group_the_machine_has_the_count),
    };
#ifndef HR_FAILPOINTS
    fputs("skipped: built without failpoints\n", stderr);
    return SKIP_CODE;
#endif
    return cmocka_run_group_tests_name("cgroup", tests, NULL, NULL);
}
