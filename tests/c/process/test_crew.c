/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/crew_scene.h"
#include "arena/arena.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "arena/layout.h"
#include "crew/crew.h"
#include "os/os.h"

/* How workers are started, watched and reported. */

/* ---- lives of workers ---- */

static int die_by(hr_port *port, void *context) {
    (void)port;
    int number = *(int *)context;
    signal(number, SIG_DFL); /* a sanitizer has a handler for some */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    raise(number);
    return 0;
}

static int be_traced(hr_port *port, void *context) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0) return 77;
    raise(SIGSTOP);
    return serve(port, context);
}

enum wait { FOR_ITSELF, WITH_A_LIMIT, FOR_ANOTHER_PROCESS, FOR_ANOTHER_THREAD };

static void *sleep_on(void *unused) {
    while (!unused) pause();
    return NULL;
}

/* Waits for a lock that it holds already. */
static int be_locked(hr_port *port, void *context) {
    enum wait wait = *(enum wait *)context;
    struct timespec limit = {.tv_sec = time(NULL) + PATIENCE_S};
    pthread_mutexattr_t attributes;
    pthread_mutex_t lock;
    pthread_t thread;
    pthread_mutexattr_init(&attributes);
    if (wait == FOR_ANOTHER_PROCESS) pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&lock, &attributes);
    if (wait == FOR_ANOTHER_THREAD) pthread_create(&thread, NULL, sleep_on, NULL);
    pthread_mutex_lock(&lock);
    return wait == WITH_A_LIMIT ? pthread_mutex_timedlock(&lock, &limit) : pthread_mutex_lock(&lock) + !port;
}

/* Reads sample 7 of its task until it may go on. */
static int be_slow(hr_port *port, void *context) {
    struct hr_task task;
    void *data;
    must(hr_port_take(port, in_s(PATIENCE_S), &task));
    hr_port_note(port, 7);
    be_ready();
    while (!atomic_load(&board->may_go)) poll(NULL, 0, 1);
    must(hr_port_reserve(port, 8, &data));
    fill(data, 8, task.task);
    must(hr_port_publish(port, HR_STATUS_BATCH, 8));
    return serve(port, context);
}

/* ---- how one ended ---- */

static void exit_codes_and_signals_are_reported(void **state) {
    (void)state;
    struct room room;
    const int codes[] = {0, 3}, signals[] = {SIGKILL, SIGSEGV};
    open_room(&room);
    for (uint32_t i = 0; i < 2; i++) must(hr_crew_fork(room.crew, i, end_with, (void *)&codes[i]));
    for (uint32_t i = 0; i < 2; i++) must(hr_crew_fork(room.crew, 2 + i, die_by, (void *)&signals[i]));
    for (uint32_t i = 0; i < WORKERS; i++) {
        struct hr_worker_report report = await_end(&room, i);
        assert_false(report.is_alive);
        assert_true(report.is_end_known && report.worker == i && report.pid > 0);
        assert_int_equal(report.exit_code, i < 2 ? codes[i] : 0);
        assert_int_equal(report.signal, i < 2 ? 0 : signals[i - 2]);
        assert_int_equal(waitpid(report.pid, NULL, WNOHANG), -1); /* reaped */
    }
    struct hr_worker_report report = look(&room, 1); /* again: it is known for good */
    assert_text(&report, "worker N (pid N) exited with code N; it was waiting for a task");
    report = look(&room, 2);
    assert_text(&report, "worker N (pid N) was killed by signal N (Killed); it was waiting for a task");
    report = look(&room, 3);
    assert_text(&report, "worker N (pid N) was killed by signal N (Segmentation fault); it was waiting for a task");
    close_room(&room);
}

static void a_worker_reaped_by_other_code_has_an_unknown_exit_code(void **state) {
    (void)state;
    struct room room;
    open_room(&room);
    must(hr_crew_fork(room.crew, 0, serve, NULL));
    pid_t pid = look(&room, 0).pid;
    await_state(&room, 0, 'S');
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    struct hr_worker_report report = await_end(&room, 0);
    assert_false(report.is_alive);
    assert_false(report.is_end_known);
    assert_text(&report, "worker N (pid N) ended with an unknown exit code; it was waiting for a task; it had "
                         "N.N MiB of memory when last seen");
    close_room(&room);
}

static void a_worker_that_never_opened_its_port_is_reported_so(void **state) {
    (void)state;
    struct room room;
    open_room(&room);
    assert_int_equal(look(&room, 0).pid, 0);
    assert_false(look(&room, 0).is_alive);
    pid_t pid = fork();
    if (pid == 0) _exit(1);
    must(hr_crew_adopt(room.crew, 0, pid, -1));
    struct hr_worker_report report = await_end(&room, 0);
    assert_int_equal(report.exit_code, 1);
    assert_text(&report, "worker N (pid N) exited with code N; it had not opened its port yet");
    assert_int_equal(waitpid(pid, NULL, WNOHANG), pid); /* it is its adopter's to reap */
    close_room(&room);
}

static void a_worker_that_cannot_open_its_port_says_why(void **state) {
    (void)state;
    struct room room;
    struct hr_worker_fds fds;
    const char *said;
    size_t bytes;
    const uint32_t version = 1;
    char text[512];
    open_room(&room);
    must(hr__arena_open_worker_fds(room.arena, 0, &fds));
    must(hr__write_at(fds.memory_fd, offsetof(struct hr__header, abi_version), &version, sizeof version));
    hr_worker_fds_close(&fds);
    must(hr_crew_fork(room.crew, 0, serve, NULL));
    assert_int_equal(await_end(&room, 0).exit_code, 127);
    must(hr_crew_stderr(room.crew, 0, &said, &bytes));
    snprintf(text, sizeof text, "%.*s", (int)bytes, said);
    assert_non_null(strstr(text, "arena: made by headrace with shared-memory layout 1, this one has layout"));
    close_room(&room);
}

static void a_dead_worker_is_replaced_by_one_with_the_same_number(void **state) {
    (void)state;
    struct room room;
    int signal = SIGKILL;
    struct hr_delivery *delivery;
    open_room(&room);
    must(hr_crew_fork(room.crew, 0, die_by, &signal));
    assert_int_equal(hr__arena_receive(room.arena, 0, in_s(PATIENCE_S), &delivery), HR_E_WORKER_DIED);
    assert_int_equal(hr_arena_dead_worker(room.arena), 0);
    int first_pid = look(&room, 0).pid;
    must(hr__arena_take_back(room.arena, 0));
    must(hr_crew_fork(room.crew, 0, serve, NULL));
    struct scene scene = {.arena = room.arena};
    must(order(&scene, 0, 1, 1000));
    hr_delivery_done(expect(&scene, 0, 1, 1000));
    struct hr_worker_report report = look(&room, 0);
    assert_true(report.is_alive && report.pid != first_pid);
    assert_int_equal(report.status.starts, 2);
    assert_int_equal(report.status.pid, report.pid);
    close_room(&room);
}

static void an_end_that_is_expected_is_not_reported(void **state) {
    (void)state;
    struct room room;
    int code = 0;
    struct hr_delivery *delivery;
    open_room(&room);
    must(hr_crew_fork(room.crew, 0, end_with, &code));
    must(hr__crew_expect_end(room.crew, 0));
    await_end(&room, 0);
    assert_int_equal(hr__arena_receive(room.arena, HR_ANY_WORKER, now_ns() + 10000000, &delivery), -ETIMEDOUT);
    close_room(&room);
}

/* ---- what is seen from outside ---- */

enum { SEEN_BYTES = HR__HEADER_ROOM + WORKERS * sizeof(struct hr__worker) };

/* Opens the arena's file for reading, as a tool does that finds it under /proc/PID/fd. Unmapped by munmap. */
static struct hr__arena_layout open_from_outside(struct room *room) {
    struct hr_worker_fds fds;
    struct hr__arena_layout layout;
    struct stat info;
    char path[64];
    must(hr__arena_open_worker_fds(room->arena, 0, &fds));
    snprintf(path, sizeof path, "/proc/%d/fd/%d", getpid(), fds.memory_fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    hr_worker_fds_close(&fds);
    assert_true(fd >= 0 && fstat(fd, &info) == 0);
    void *seen = mmap(NULL, SEEN_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(seen != MAP_FAILED);
    close(fd);
    must(hr__layout_check(seen, (uint64_t)info.st_size, &layout));
    return layout;
}

/* The counts in the shared memory, as a report. */
static struct hr_arena_report counts_of(const struct hr__header *header) {
    return (struct hr_arena_report){.used_bytes = atomic_load(&header->used_bytes),
                                    .held_bytes = atomic_load(&header->held_bytes),
                                    .held_count = atomic_load(&header->held_count),
                                    .delivered_count = atomic_load(&header->delivered_count),
                                    .delivered_bytes = atomic_load(&header->delivered_bytes),
                                    .copied_count = atomic_load(&header->copied_count),
                                    .asked_count = atomic_load(&header->asked_count),
                                    .trimmed_count = atomic_load(&header->trimmed_count),
                                    .waited_count = atomic_load(&header->waited_count),
                                    .waited_ns = atomic_load(&header->waited_ns),
                                    .slept_count = atomic_load(&header->slept_count),
                                    .restart_count = atomic_load(&header->restart_count),
                                    .skipped_count = atomic_load(&header->skipped_count)};
}

static void assert_same_counts(const struct hr_arena_report *seen, const struct hr_arena_report *report) {
    assert_int_equal(seen->used_bytes, report->used_bytes);
    assert_int_equal(seen->held_bytes, report->held_bytes);
    assert_int_equal(seen->held_count, report->held_count);
    assert_int_equal(seen->delivered_count, report->delivered_count);
    assert_int_equal(seen->delivered_bytes, report->delivered_bytes);
    assert_int_equal(seen->copied_count, report->copied_count);
    assert_int_equal(seen->asked_count, report->asked_count);
    assert_int_equal(seen->trimmed_count, report->trimmed_count);
    assert_int_equal(seen->waited_count, report->waited_count);
    assert_int_equal(seen->waited_ns, report->waited_ns);
    assert_int_equal(seen->slept_count, report->slept_count);
    assert_int_equal(seen->restart_count, report->restart_count);
    assert_int_equal(seen->skipped_count, report->skipped_count);
}

/* Each count is looked at before a report is made, which would bring it up to date. */
static void all_counts_are_seen_from_outside(void **state) {
    (void)state;
    struct room room;
    struct hr_delivery *delivery, *held;
    open_room(&room);
    struct hr__arena_layout layout = open_from_outside(&room);
    const struct hr__worker *record = hr__layout_worker(&layout, 0);
    struct scene scene = {.arena = room.arena};

    assert_int_equal(hr__arena_receive(room.arena, 0, now_ns() + 10000000, &delivery), -ETIMEDOUT);
    struct hr_arena_report seen = counts_of(layout.header);
    assert_int_equal(seen.waited_count, 1);
    assert_true(seen.waited_ns > 0 && seen.slept_count > 0);

    must(hr_crew_fork(room.crew, 0, serve, NULL));
    for (uint64_t task = 0; task < 3; task++) {
        must(order(&scene, 0, task, 2 * MIB));
        held = expect(&scene, 0, task, 2 * MIB);
        if (task < 2) hr_delivery_done(held);
    }
    seen = counts_of(layout.header);
    assert_int_equal(seen.delivered_count, 3);
    assert_int_equal(seen.delivered_bytes, 6 * MIB);
    assert_true(seen.held_count == 1 && seen.held_bytes >= 2 * MIB && seen.used_bytes >= 2 * MIB);
    assert_true(seen.asked_count > 0);
    struct hr_worker_report worker = look(&room, 0);
    assert_true(atomic_load(&record->pid) == (uint32_t)worker.pid && atomic_load(&record->starts) == 1);

    must(hr_arena_count(room.arena, 0, 2));
    must(hr_arena_count(room.arena, 0, 1));
    assert_int_equal(counts_of(layout.header).skipped_count, 3);
    hr_delivery_done(held);
    struct hr_arena_report report = report_of(&scene);
    assert_int_equal(report.held_count, 0);
    seen = counts_of(layout.header);
    assert_same_counts(&seen, &report);
    close_room(&room);
    munmap(layout.header, SEEN_BYTES);
}

/* A successor that cannot be started is no restart, nor is a worker's first process. */
static void each_successor_is_a_restart(void **state) {
    (void)state;
    struct room room;
    struct hr_delivery *delivery;
    int signal = SIGKILL;
    open_room(&room);
    struct hr__arena_layout layout = open_from_outside(&room);
    for (uint32_t i = 0; i < WORKERS; i++) must(hr_crew_fork(room.crew, i, i ? serve : die_by, &signal));
    assert_int_equal(atomic_load(&layout.header->restart_count), 0);
    for (uint32_t count = 0; count < 3; count++) {
        assert_int_equal(hr__arena_receive(room.arena, 0, in_s(PATIENCE_S), &delivery), HR_E_WORKER_DIED);
        must(hr__arena_take_back(room.arena, 0));
        await_end(&room, 0);
#ifdef HR_FAILPOINTS
        setenv("HEADRACE_FAIL", "fork:EAGAIN", 1);
        assert_int_equal(hr_crew_fork(room.crew, 0, serve, NULL), -EAGAIN);
        unsetenv("HEADRACE_FAIL");
        assert_int_equal(atomic_load(&layout.header->restart_count), count);
#endif
        must(hr_crew_fork(room.crew, 0, count < 2 ? die_by : serve, &signal));
        assert_int_equal(atomic_load(&layout.header->restart_count), count + 1);
    }
    struct scene scene = {.arena = room.arena};
    assert_int_equal(report_of(&scene).restart_count, 3);
    close_room(&room);
    munmap(layout.header, SEEN_BYTES);
}

/* ---- what a live one does ---- */

/* Clears the fields that depend on the kernel, and on a sanitizer, which has a thread of its own. */
static void blank(struct hr_worker_report *report) {
    report->kernel_function[0] = report->system_call[0] = '\0';
    report->thread_count = 1;
}

static void a_stopped_worker_is_named_as_that(void **state) {
    (void)state;
    struct room room;
    open_room(&room);
    must(hr_crew_fork(room.crew, 0, be_stopped, NULL));
    struct hr_worker_report report = await_state(&room, 0, 'T');
    assert_true(report.is_alive);
    if (!IS_SANITIZED) assert_int_equal(report.thread_count, 1);
    blank(&report);
    assert_text(&report, "worker N (pid N) is stopped (Ctrl-Z or SIGSTOP; SIGCONT continues it); it was waiting for a "
                         "task; it has N.N MiB of memory");
    must(hr_crew_signal(room.crew, 0, SIGCONT));
    await_state(&room, 0, 'S');
    close_room(&room);
}

static void a_traced_worker_is_named_as_that(void **state) {
    (void)state;
    struct room room;
    open_room(&room);
    must(hr_crew_fork(room.crew, 0, be_traced, NULL));
    int64_t deadline = in_s(PATIENCE_S);
    struct hr_worker_report report;
    do report = look(&room, 0);
    while (report.is_alive && report.state != 't' && now_ns() < deadline);
    bool can_trace = report.is_alive;
    if (can_trace) {
        assert_int_equal(report.state, 't');
        assert_int_equal(report.tracer_pid, getpid());
        blank(&report);
        assert_text(&report, "worker N (pid N) is traced by process N (a debugger); it was waiting for a task; it has "
                             "N.N MiB of memory");
        must(hr_crew_signal(room.crew, 0, SIGKILL));
        assert_int_equal(await_end(&room, 0).signal, SIGKILL);
    }
    close_room(&room);
    if (!can_trace) skip(); /* a sandbox that allows no ptrace */
}

/* Looks at a worker until it waits for a futex. */
static struct hr_worker_report await_futex(struct room *room) {
    char futex[16];
    int64_t deadline = in_s(PATIENCE_S);
    struct hr_worker_report report;
    snprintf(futex, sizeof futex, "%d 0x", (int)SYS_futex);
    do report = look(room, 0);
    while (report.is_alive && strncmp(report.system_call, futex, strlen(futex)) && now_ns() < deadline);
    if (!report.system_call[0]) return report;
    assert_memory_equal(report.system_call, futex, strlen(futex));
    return look(room, 0); /* that one may have seen the threads of a moment before */
}

static void a_worker_that_waits_for_a_thread_it_does_not_have_is_known(void **state) {
    (void)state;
    if (IS_SANITIZED) skip(); /* a sanitizer has a thread of its own */
    for (enum wait wait = FOR_ITSELF; wait <= FOR_ANOTHER_THREAD; wait++) {
        struct room room;
        open_room(&room);
        must(hr_crew_fork(room.crew, 0, be_locked, &wait));
        struct hr_worker_report report = await_futex(&room);
        must(hr_crew_signal(room.crew, 0, SIGKILL));
        assert_int_equal(await_end(&room, 0).is_deadlocked, 0);
        close_room(&room);
        if (!report.system_call[0]) skip(); /* a sandbox that does not show it */
        assert_int_equal(report.is_deadlocked, wait == FOR_ITSELF);
    }
}

static void phases_times_and_memory_move(void **state) {
    (void)state;
    struct room room;
    open_room(&room);
    struct scene scene = {.arena = room.arena};
    must(order(&scene, 0, 5, 8));
    must(hr_crew_fork(room.crew, 0, be_slow, NULL));
    await_ready(1);
    int64_t start = now_ns();
    struct hr_worker_report before = await_state(&room, 0, 'S');
    assert_int_equal(before.status.phase, HR_PHASE_FETCH);
    assert_int_equal(before.status.task, 5);
    assert_int_equal(before.status.sample, 7);
    assert_int_equal(before.status.done_count, 0);
    assert_in_range(before.status.phase_since_ns, 1, start);
    assert_in_range(before.rss_bytes, 100 * KIB, UINT64_C(1) << 44);
    blank(&before);
    assert_text(&before, "worker N (pid N) waits; it was in the dataset, at task N; it has N.N MiB of memory");
    while (now_ns() - start < 60000000) poll(NULL, 0, 1);
    atomic_store(&board->may_go, true);
    hr_delivery_done(expect(&scene, 0, 5, 8));
    struct hr_worker_report after = await_state(&room, 0, 'S');
    assert_int_equal(after.status.phase, HR_PHASE_WAIT);
    assert_int_equal(after.status.done_count, 1);
    /* To a tick of the kernel's: 10 ms at the most. */
    assert_true(after.status.phase_ns[HR_PHASE_FETCH] >= 40000000);
    assert_in_range(after.status.phase_ns[HR_PHASE_COLLATE], 0, now_ns() - start);
    assert_true(after.status.phase_since_ns >= start);
    must(hr_crew_signal(room.crew, 0, SIGKILL));
    struct hr_worker_report dead = await_end(&room, 0);
    assert_true(dead.status.rss_bytes > 100 * KIB); /* as it noted it itself */
    assert_int_equal(dead.rss_bytes, after.rss_bytes);
    assert_text(&dead, "worker N (pid N) was killed by signal N (Killed); it was waiting for a task; it had N.N MiB of "
                       "memory when last seen");
    assert_int_equal(hr_crew_signal(room.crew, 0, SIGKILL), -ESRCH);
    close_room(&room);
}

static void memory_is_of_the_process_and_as_it_was_seen_last(void **state) {
    (void)state;
    struct room room;
    open_room(&room);
    struct scene scene = {.arena = room.arena};
    must(order(&scene, 0, 5, 8));
    must(hr_crew_fork(room.crew, 0, serve, NULL));
    hr_delivery_done(expect(&scene, 0, 5, 8));
    int64_t deadline = in_s(PATIENCE_S); /* it looks at itself a moment after it has published */
    while (look(&room, 0).status.rss_bytes == 0) assert_true(now_ns() < deadline);
    must(hr_crew_signal(room.crew, 0, SIGKILL));
    assert_true(await_end(&room, 0).rss_bytes > 100 * KIB);

    /* Its successor is in its first task, and has not looked at itself. */
    for (int is_seen = 0; is_seen < 2; is_seen++) {
        *board = (struct board){0};
        must(hr__arena_take_back(room.arena, 0));
        must(order(&scene, 0, 6, 8));
        must(hr_crew_fork(room.crew, 0, be_slow, NULL));
        await_ready(1);
        struct hr_worker_report alive = {0};
        if (is_seen) must(hr_crew_look(room.crew, 0, &alive));
        must(hr_crew_signal(room.crew, 0, SIGKILL));
        struct hr_worker_report dead = await_end(&room, 0);
        assert_int_equal(dead.status.rss_bytes, 0);
        assert_int_equal(dead.rss_bytes, alive.rss_bytes);
        assert_true((dead.rss_bytes > 100 * KIB) == is_seen);
    }
    close_room(&room);
}

static int say_and_die(hr_port *port, void *context) {
    must(hr_diagnostics_log_stderr(hr_port_diagnostics_fd(port), "last words", 10));
    return die_by(port, context);
}

static void diagnostics_are_readable_after_a_workers_death(void **state) {
    (void)state;
    struct room room;
    int signal = SIGKILL;
    open_room(&room);
    must(hr_crew_fork(room.crew, 0, say_and_die, &signal));
    await_end(&room, 0);
    assert_said(&room, "last words", 10);
    close_room(&room);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_codes_and_signals_are_reported),
        cmocka_unit_test(a_worker_reaped_by_other_code_has_an_unknown_exit_code),
        cmocka_unit_test(a_worker_that_never_opened_its_port_is_reported_so),
        cmocka_unit_test(a_worker_that_cannot_open_its_port_says_why),
        cmocka_unit_test(a_dead_worker_is_replaced_by_one_with_the_same_number),
        cmocka_unit_test(an_end_that_is_expected_is_not_reported),
        cmocka_unit_test(all_counts_are_seen_from_outside),
        cmocka_unit_test(each_successor_is_a_restart),
        cmocka_unit_test(a_stopped_worker_is_named_as_that),
        cmocka_unit_test(a_traced_worker_is_named_as_that),
        cmocka_unit_test(a_worker_that_waits_for_a_thread_it_does_not_have_is_known),
        cmocka_unit_test(phases_times_and_memory_move),
        cmocka_unit_test(memory_is_of_the_process_and_as_it_was_seen_last),
        cmocka_unit_test(diagnostics_are_readable_after_a_workers_death),
    };
    set_board();
    return cmocka_run_group_tests_name("crew", tests, NULL, NULL);
}
