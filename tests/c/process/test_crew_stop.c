/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/crew_scene.h"
#include "arena/arena.h"
#include "crew/crew.h"

#include <fcntl.h>

/* How workers are ended, and what is refused. */

/* ---- the end ---- */

/* Returns how long it took. */
static int64_t stop_idle_workers(void) {
    struct room room;
    open_room(&room);
    for (uint32_t i = 0; i < WORKERS; i++) must(hr_crew_fork(room.crew, i, serve, NULL));
    for (uint32_t i = 0; i < WORKERS; i++) await_state(&room, i, 'S');
    int64_t start = now_ns();
    assert_int_equal(hr_crew_stop(room.crew, PATIENCE_S * INT64_C(1000000000)), 0);
    int64_t took_ns = now_ns() - start;
    for (uint32_t i = 0; i < WORKERS; i++) assert_true(look(&room, i).is_end_known && look(&room, i).signal == 0);
    close_room(&room);
    return took_ns;
}

static void idle_workers_end_by_themselves_and_soon(void **state) {
    (void)state;
    enum { SOON_NS = 1000000000 };
    int64_t took_ns = SOON_NS;
    for (int i = 0; i < TRIES && took_ns >= SOON_NS; i++) took_ns = stop_idle_workers();
    print_message("%d idle workers ended in %.1f ms (wanted: 100)\n", WORKERS, (double)took_ns / 1e6);
    assert_true(took_ns < SOON_NS);
}

/* Was each ended by what it takes, and all within the deadline, with what the machine was late? */
static bool stop_workers_that_do_not_end(void) {
    struct room room;
    hr_work *const lives[WORKERS] = {serve, be_busy, be_deaf, be_stopped};
    const int signals[WORKERS] = {0, SIGTERM, SIGKILL, SIGKILL};
    open_room(&room);
    for (uint32_t i = 0; i < WORKERS; i++) must(hr_crew_fork(room.crew, i, lives[i], NULL));
    await_ready(3);
    await_state(&room, 3, 'T');
    await_state(&room, 0, 'S');
    int64_t start = now_ns();
    bool is_right = hr_crew_stop(room.crew, 2000000000) == 0 && now_ns() - start <= 2500000000;
    assert_true(now_ns() - start >= 1600000000);
    for (uint32_t i = 0; i < WORKERS; i++) is_right = await_end(&room, i).signal == signals[i] && is_right;
    close_room(&room);
    return is_right;
}

static void workers_that_do_not_end_are_signalled_within_the_deadline(void **state) {
    (void)state;
    bool is_right = false;
    for (int i = 0; i < TRIES && !is_right; i++) is_right = stop_workers_that_do_not_end();
    assert_true(is_right);
}

static void a_stop_without_time_returns_how_many_still_run(void **state) {
    (void)state;
    struct room room;
    open_room(&room);
    assert_int_equal(hr_crew_stop(room.crew, 0), 0);
    close_room(&room);
    open_room(&room);
    must(hr_crew_fork(room.crew, 0, be_deaf, NULL));
    await_ready(1);
    int running = hr_crew_stop(room.crew, 0);
    assert_in_range(running, 0, 1); /* it was sent SIGKILL */
    assert_int_equal(await_end(&room, 0).is_alive, 0);
    close_room(&room);
}

static void a_closed_crew_leaves_its_workers_running(void **state) {
    (void)state;
    struct room room;
    open_room(&room);
    must(hr_crew_fork(room.crew, 0, serve, NULL));
    pid_t pid = look(&room, 0).pid;
    hr__crew_close(room.crew);
    struct scene scene = {.arena = room.arena};
    must(order(&scene, 0, 1, 1000));
    hr_delivery_done(expect(&scene, 0, 1, 1000));
    must(hr__crew_open(room.arena, WORKERS, &room.crew));
    must(hr_crew_adopt(room.crew, 0, pid, -1));
    assert_int_equal(hr_crew_stop(room.crew, PATIENCE_S * INT64_C(1000000000)), 0);
    assert_int_equal(reap_pid(pid), 0);
    close_room(&room);
}

static void a_child_can_only_close_the_crew_and_leaves_the_parents_as_it_is(void **state) {
    (void)state;
    struct room room;
    struct hr_worker_fds fds;
    open_room(&room);
    must(hr_crew_open_worker_fds(room.crew, 0, &fds));
    must(hr_diagnostics_log_stderr(fds.diagnostics_fd, "said", 4));
    hr_worker_fds_close(&fds);
    must(hr_crew_fork(room.crew, 1, serve, NULL));
    pid_t pid = fork();
    if (pid == 0) {
        const char *text;
        size_t bytes;
        bool is_refused = hr_crew_stop(room.crew, 0) == HR_E_STATE &&
                          hr_crew_signal(room.crew, 1, SIGKILL) == HR_E_STATE &&
                          hr_crew_stderr(room.crew, 0, &text, &bytes) == HR_E_STATE;
        hr__crew_close(room.crew);
        _exit(!is_refused);
    }
    assert_child_succeeds(pid);
    assert_said(&room, "said", 4);
    assert_true(look(&room, 1).is_alive);
    close_room(&room);
}

/* ---- what is refused ---- */

static void workers_out_of_range_are_refused(void **state) {
    (void)state;
    struct room room;
    struct hr_worker_fds fds;
    struct hr_worker_report report;
    const char *text;
    size_t bytes;
    open_room(&room);
    assert_int_equal(hr_crew_open_worker_fds(room.crew, WORKERS, &fds), -EINVAL);
    assert_int_equal(hr_crew_fork(room.crew, WORKERS, serve, NULL), -EINVAL);
    assert_int_equal(hr_crew_adopt(room.crew, WORKERS, getpid(), -1), -EINVAL);
    assert_int_equal(hr_crew_look(room.crew, WORKERS, &report), -EINVAL);
    assert_int_equal(hr__crew_wait(room.crew, WORKERS, 0), -EINVAL);
    assert_int_equal(hr_crew_signal(room.crew, WORKERS, SIGTERM), -EINVAL);
    assert_int_equal(hr__crew_expect_end(room.crew, WORKERS), -EINVAL);
    assert_int_equal(hr_crew_stack(room.crew, WORKERS, &text, &bytes), -EINVAL);
    assert_int_equal(hr_crew_stderr(room.crew, WORKERS, &text, &bytes), -EINVAL);
    assert_non_null(strstr(hr_error_message(), "worker 4 of 4"));
    assert_null(hr__crew_close(NULL));
    close_room(&room);
}

static void adopting_a_pid_that_is_no_childs_is_refused(void **state) {
    (void)state;
    const int pids[] = {getpid(), 0, -1};
    int sentinel[2];
    struct room room;
    open_room(&room);
    assert_return_code(pipe(sentinel), errno);
    for (size_t i = 0; i < sizeof pids / sizeof *pids; i++) {
        assert_int_equal(hr_crew_adopt(room.crew, 0, pids[i], sentinel[0]), -EINVAL);
        assert_non_null(strstr(hr_error_message(), "give the pid of a child"));
    }
    assert_int_equal(look(&room, 0).pid, 0);
    close(sentinel[0]);
    close(sentinel[1]);
    close_room(&room);
}

static void a_wait_for_a_worker_that_runs_ends_at_its_deadline(void **state) {
    (void)state;
    struct room room;
    open_room(&room);
    must(hr_crew_fork(room.crew, 0, serve, NULL));
    assert_int_equal(hr__crew_wait(room.crew, 0, now_ns() + 1000000), -ETIMEDOUT);
    must(hr__crew_wait(room.crew, 1, 0)); /* was never started */
    close_room(&room);
}

static void a_worker_that_runs_is_not_replaced(void **state) {
    (void)state;
    struct room room;
    open_room(&room);
    must(hr_crew_fork(room.crew, 0, serve, NULL));
    int pid = look(&room, 0).pid;
    assert_int_equal(hr_crew_fork(room.crew, 0, serve, NULL), HR_E_STATE);
    assert_int_equal(hr_crew_adopt(room.crew, 0, getpid(), -1), HR_E_STATE);
    assert_non_null(strstr(hr_error_message(), "worker 0 still runs"));
    assert_true(look(&room, 0).is_alive && look(&room, 0).pid == pid);
    close_room(&room);
}

#ifdef HR_FAILPOINTS
static void a_fork_that_is_refused_says_what_to_look_at_and_leaves_nothing(void **state) {
    (void)state;
    struct room room;
    open_room(&room);
    int descriptors = count_descriptors();
    setenv("HEADRACE_FAIL", "fork:EAGAIN", 1);
    assert_int_equal(hr_crew_fork(room.crew, 0, serve, NULL), -EAGAIN);
    unsetenv("HEADRACE_FAIL");
    assert_non_null(strstr(hr_error_message(), "cannot fork worker 0"));
    assert_non_null(strstr(hr_error_message(), "ulimit -u"));
    assert_int_equal(count_descriptors(), descriptors);
    must(hr_crew_fork(room.crew, 0, serve, NULL));
    close_room(&room);
}

static void without_a_pidfd_a_forked_worker_is_refused_and_gone(void **state) {
    (void)state;
    struct room room;
    open_room(&room);
    int descriptors = count_descriptors();
    setenv("HEADRACE_FAIL", "pidfd_open:EPERM", 1);
    assert_int_equal(hr_crew_fork(room.crew, 0, serve, NULL), -EPERM);
    unsetenv("HEADRACE_FAIL");
    assert_non_null(strstr(hr_error_message(), "cannot open a pidfd of process"));
    assert_int_equal(count_descriptors(), descriptors);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(look(&room, 0).pid, 0);
    close_room(&room);
}

static void without_a_pidfd_a_sentinel_shows_the_end(void **state) {
    (void)state;
    struct room room;
    struct hr_worker_fds fds;
    struct hr_delivery *delivery;
    hr_port *port;
    int sentinel[2];
    open_room(&room);
    setenv("HEADRACE_FAIL", "pidfd_open:EPERM", 1);
    must(hr_crew_open_worker_fds(room.crew, 0, &fds));
    assert_int_equal(pipe2(sentinel, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(sentinel[0]);
        _exit(hr_port_open(&fds, &port) < 0 ? 99 : serve(port, NULL));
    }
    hr_worker_fds_close(&fds);
    close(sentinel[1]);
    assert_int_equal(hr_crew_adopt(room.crew, 0, pid, -1), -EPERM);
    must(hr_crew_adopt(room.crew, 0, pid, sentinel[0]));
    int others[2], own[2]; /* the number is another thread's from now on */
    assert_int_equal(pipe2(others, O_CLOEXEC), 0);
    assert_int_equal(dup3(others[0], sentinel[0], O_CLOEXEC), sentinel[0]);
    assert_true(look(&room, 0).is_alive);
    struct scene scene = {.arena = room.arena};
    must(order(&scene, 0, 1, 1000));
    hr_delivery_done(expect(&scene, 0, 1, 1000));
    must(hr_crew_signal(room.crew, 0, SIGKILL));
    assert_int_equal(hr__arena_receive(room.arena, 0, in_s(PATIENCE_S), &delivery), HR_E_WORKER_DIED);
    assert_false(look(&room, 0).is_alive);
    unsetenv("HEADRACE_FAIL");
    assert_int_equal(WTERMSIG(reap_pid(pid)), SIGKILL);
    must(hr__crew_expect_end(room.crew, 0));
    setenv("HEADRACE_FAIL", "pidfd_open:EPERM", 1);
    assert_false(look(&room, 0).is_alive);
    assert_int_equal(pipe2(own, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
        close(own[0]);
        pause();
    }
    close(own[1]);
    must(hr_crew_adopt(room.crew, 0, pid, own[0]));
    assert_true(look(&room, 0).is_alive);
    must(hr_crew_signal(room.crew, 0, SIGKILL));
    assert_false(await_end(&room, 0).is_alive);
    unsetenv("HEADRACE_FAIL");
    assert_int_equal(WTERMSIG(reap_pid(pid)), SIGKILL);
    must(hr__crew_expect_end(room.crew, 0));
    const int open[] = {sentinel[0], others[0], others[1], own[0]};
    for (int i = 0; i < 4; i++) close(open[i]);
    close_room(&room);
}

static void a_worker_that_dies_between_fork_and_port_is_noticed(void **state) {
    (void)state;
    struct room room;
    struct hr_delivery *delivery;
    open_room(&room);
    setenv("HEADRACE_STOP", "port.mapped:9", 1);
    must(hr_crew_fork(room.crew, 0, serve, NULL));
    unsetenv("HEADRACE_STOP");
    assert_int_equal(hr__arena_receive(room.arena, 0, in_s(PATIENCE_S), &delivery), HR_E_WORKER_DIED);
    struct hr_worker_report report = look(&room, 0);
    assert_text(&report, "worker N (pid N) was killed by signal N (Killed); it had not opened its port yet");
    close_room(&room);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idle_workers_end_by_themselves_and_soon),
        cmocka_unit_test(workers_that_do_not_end_are_signalled_within_the_deadline),
        cmocka_unit_test(a_stop_without_time_returns_how_many_still_run),
        cmocka_unit_test(a_closed_crew_leaves_its_workers_running),
        cmocka_unit_test(a_child_can_only_close_the_crew_and_leaves_the_parents_as_it_is),
        cmocka_unit_test(workers_out_of_range_are_refused),
        cmocka_unit_test(adopting_a_pid_that_is_no_childs_is_refused),
        cmocka_unit_test(a_wait_for_a_worker_that_runs_ends_at_its_deadline),
        cmocka_unit_test(a_worker_that_runs_is_not_replaced),
#ifdef HR_FAILPOINTS
        cmocka_unit_test(a_fork_that_is_refused_says_what_to_look_at_and_leaves_nothing),
        cmocka_unit_test(without_a_pidfd_a_forked_worker_is_refused_and_gone),
        cmocka_unit_test(without_a_pidfd_a_sentinel_shows_the_end),
        cmocka_unit_test(a_worker_that_dies_between_fork_and_port_is_noticed),
#endif
    };
    set_board();
    return cmocka_run_group_tests_name("crew_stop", tests, NULL, NULL);
}
