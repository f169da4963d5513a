/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/arena_scene.h"
#include "arena/arena.h"

#include <stdatomic.h>

/*
 * A trainer that is killed. It is a child of the test, its workers are the test's grandchildren, which the test adopts
 * (PR_SET_CHILD_SUBREAPER), so that it sees each of them end.
 */

enum { WORKERS = 7, GONE_WITHIN_NS = 1000000000, GONE_WANTED_MS = 100 };

struct board {
    _Atomic int pids[WORKERS];
    _Atomic int ready_count;
};

static struct board *board;
static int board_worker; /* the worker number of this process */

static void report_ready(void) {
    atomic_store(&board->pids[board_worker], getpid());
    atomic_fetch_add(&board->ready_count, 1);
}

static hr_port *open_port(struct hr_worker_fds *fds) {
    hr_port *port;
    board_worker = (int)fds->worker;
    must(hr_port_open(fds, &port));
    return port;
}

static void be_waiting(struct hr_worker_fds *fds) {
    struct hr_task task;
    hr_port *port = open_port(fds);
    report_ready();
    hr_port_take(port, HR_NO_DEADLINE, &task);
    for (;;) pause();
}

static void be_busy(struct hr_worker_fds *fds) {
    open_port(fds);
    report_ready();
    for (volatile bool is_busy = true; is_busy;) continue;
}

static void be_deaf(struct hr_worker_fds *fds) {
    sigset_t all;
    open_port(fds);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    signal(SIGTERM, SIG_IGN);
    signal(SIGIO, SIG_IGN);
    report_ready();
    for (;;) pause();
}

static void be_asking(struct hr_worker_fds *fds) {
    struct hr_task task;
    void *data;
    hr_port *port = open_port(fds);
    must(hr_port_take(port, HR_NO_DEADLINE, &task));
    report_ready();
    hr_port_reserve(port, 30 * MIB, &data);
    for (;;) pause();
}

static void be_full(struct hr_worker_fds *fds) {
    hr_port *port = open_port(fds);
    for (int i = 0; i < 4; i++) must(work_once(port, HR_NO_DEADLINE));
    report_ready();
    work_once(port, HR_NO_DEADLINE);
    for (;;) pause();
}

static void be_stopped(struct hr_worker_fds *fds) {
    open_port(fds);
    report_ready();
    raise(SIGSTOP);
    for (;;) pause();
}

/* It has not opened its port yet. */
static void be_importing(struct hr_worker_fds *fds) {
    board_worker = (int)fds->worker;
    report_ready();
    for (;;) pause();
}

typedef void life(struct hr_worker_fds *fds);
static life *const lives[WORKERS] = {be_waiting, be_busy, be_deaf, be_asking, be_full, be_stopped, be_importing};
static const char *const life_names[WORKERS] = {"waiting", "busy", "deaf", "asking", "full", "stopped", "importing"};

static _Noreturn void be_trainer(void) {
    struct scene scene;
    set_scene(&scene, WORKERS, 8, 32 * MIB);
    for (uint32_t i = 0; i < WORKERS; i++) {
        struct hr_worker_fds fds;
        must(hr__arena_open_worker_fds(scene.arena, i, &fds));
        pid_t pid = fork();
        if (pid == 0) lives[i](&fds);
        if (lives[i] == be_importing) must(hr_worker_fds_guard(&fds, pid));
        hr_worker_fds_close(&fds);
    }
    must(order(&scene, 3, 0, 8));
    for (uint64_t task = 0; task < 4; task++) must(order(&scene, 4, task, 8));
    for (;;) pause(); /* answers no ask */
}

/* The letter after the name in /proc/PID/stat: R, S, T... */
static char state_of(pid_t pid) {
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return '?';
    char *end = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    fclose(file);
    return end ? end[2] : '?';
}

static void await_state(pid_t pid, char wanted) {
    int64_t deadline = in_s(PATIENCE_S);
    while (state_of(pid) != wanted) {
        assert_true(now_ns() < deadline);
        poll(NULL, 0, 1);
    }
}

static void await_ready(int count) {
    int64_t deadline = in_s(PATIENCE_S);
    while (atomic_load(&board->ready_count) < count) {
        assert_true(now_ns() < deadline);
        poll(NULL, 0, 1);
    }
}

static void await_all_ready(void) {
    await_ready(WORKERS);
    for (int i = 0; i < WORKERS; i++)
        if (lives[i] != be_busy) await_state(board->pids[i], lives[i] == be_stopped ? 'T' : 'S');
}

static pid_t start_trainer(void (*be)(void)) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fflush(NULL);
    pid_t trainer = fork();
    if (trainer == 0) {
        die_with_test();
        be();
    }
    return trainer;
}

/* Returns how long its workers outlived it. */
static int64_t kill_trainer_of_workers_in_any_state(void) {
    pid_t trainer = start_trainer(be_trainer);
    int pidfds[WORKERS], status;
    await_all_ready();
    for (int i = 0; i < WORKERS; i++) must(hr__pidfd(board->pids[i], &pidfds[i]));
    int64_t start = now_ns(), longest = 0;
    kill(trainer, SIGKILL);
    for (int i = 0; i < WORKERS; i++) {
        if (!has_ended(pidfds[i], in_s(PATIENCE_S))) {
            print_error("a %s worker lives on\n", life_names[i]);
            kill(board->pids[i], SIGKILL);
            longest = INT64_MAX;
        } else if (longest < INT64_MAX) {
            longest = now_ns() - start;
        }
        close(pidfds[i]);
    }
    for (int i = 0; i <= WORKERS; i++) assert_true(wait(&status) > 0 && WIFSIGNALED(status));
    assert_int_equal(wait(&status), -1);
    munmap(board, sizeof *board);
    return longest;
}

static void workers_in_any_state_are_gone_at_once_when_the_trainer_is_killed(void **state) {
    (void)state;
    int64_t longest = GONE_WITHIN_NS;
    for (int i = 0; i < TRIES && longest >= GONE_WITHIN_NS; i++) {
        longest = kill_trainer_of_workers_in_any_state();
        assert_true(longest < INT64_MAX);
    }
    print_message("workers gone after %.1f ms (wanted: %d)\n", (double)longest / 1e6, GONE_WANTED_MS);
    assert_true(longest < GONE_WITHIN_NS);
}

static void a_process_that_has_ended_cannot_be_guarded(void **state) {
    (void)state;
    struct scene scene;
    struct hr_worker_fds fds;
    int status;
    set_scene(&scene, 1, 4, 32 * MIB);
    must(hr__arena_open_worker_fds(scene.arena, 0, &fds));
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(hr_worker_fds_guard(&fds, pid), -ESRCH);
    assert_non_null(strstr(hr_error_message(), "cannot have worker 0 killed when the trainer dies"));
    assert_int_equal(hr_worker_fds_guard(&fds, 0), -ESRCH);
    assert_int_equal(hr_worker_fds_guard(&fds, -getpgrp()), -ESRCH);
    hr_worker_fds_close(&fds);
    hr_arena_close(scene.arena);
}

static void be_late(struct hr_worker_fds *fds) {
    report_ready();
    poll(&(struct pollfd){.fd = fds->life_fd, .events = POLLIN}, 1, PATIENCE_S * 1000);
    hr_worker_fds_guard(fds, getpid());
    _exit(0);
}

static _Noreturn void be_trainer_of_one_who_is_late(void) {
    struct scene scene;
    struct hr_worker_fds fds;
    set_scene(&scene, 1, 4, 32 * MIB);
    must(hr__arena_open_worker_fds(scene.arena, 0, &fds));
    if (fork() == 0) be_late(&fds);
    for (;;) pause();
}

static void a_process_guarded_after_the_trainers_death_dies_at_once(void **state) {
    (void)state;
    pid_t trainer = start_trainer(be_trainer_of_one_who_is_late);
    await_ready(1);
    kill(trainer, SIGKILL);
    for (int i = 0; i < 2; i++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    munmap(board, sizeof *board);
}

/* ---- an orderly end, and the trainer's own points ---- */

static void workers_end_by_themselves_when_the_arena_stops(void **state) {
    (void)state;
    struct scene scene;
    set_scene_with_crew(&scene, 3, 4, 32 * MIB);
    must(order(&scene, 0, 0, 1000));
    hr_delivery_done(expect(&scene, 0, 0, 1000));
    clear_scene(&scene); /* checks that each exited with 0 */
}

static void workers_that_do_not_end_are_killed_by_the_close(void **state) {
    (void)state;
    struct scene scene;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    set_scene(&scene, 1, 4, 32 * MIB);
    start_as(&scene, 0, NULL, be_busy);
    await_ready(1);
    scene.arena = hr_arena_close(scene.arena);
    int status = reap(&scene, 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    munmap(board, sizeof *board);
}

static const char *trainer_stop;

static _Noreturn void be_trainer_that_dies_at_a_point(void) {
    struct scene scene;
    set_scene(&scene, 2, 8, 40 * MIB);
    for (uint32_t i = 0; i < 2; i++) {
        start(&scene, i);
        atomic_store(&board->pids[i], scene.pids[i]);
    }
    atomic_store(&board->ready_count, 1);
    setenv("HEADRACE_STOP", trainer_stop, 1);
    for (uint64_t task = 0;; task++) {
        for (uint32_t i = 0; i < 2; i++) must(order(&scene, i, task, MIB));
        for (uint32_t i = 0; i < 2; i++) hr_delivery_done(expect(&scene, i, task, MIB));
    }
}

static void a_trainer_killed_at_any_store_takes_its_workers_along(void **state) {
    (void)state;
#ifdef HR_FAILPOINTS
    const char *const stops[] = {"ring.push:9:5", "ring.record:9:5",  "ring.tail:9:5",    "ring.pop:9:3",
                                 "ring.head:9:3", "reply.fields:9:1", "reply.stored:9:2", "ring.sleeping:9:1"};
    int64_t longest = 0;
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        int status;
        trainer_stop = stops[i];
        pid_t trainer = start_trainer(be_trainer_that_dies_at_a_point);
        assert_int_equal(waitpid(trainer, &status, 0), trainer);
        int64_t start_ns = now_ns();
        assert_true(WIFSIGNALED(status));
        for (int worker = 0; worker < 2; worker++) {
            status = reap_pid(board->pids[worker]);
            check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        }
        if (now_ns() - start_ns > longest) longest = now_ns() - start_ns;
        munmap(board, sizeof *board);
    }
    print_message("workers gone after %.1f ms at most\n", (double)longest / 1e6);
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_in_any_state_are_gone_at_once_when_the_trainer_is_killed),
        cmocka_unit_test(a_process_that_has_ended_cannot_be_guarded),
        cmocka_unit_test(a_process_guarded_after_the_trainers_death_dies_at_once),
        cmocka_unit_test(workers_end_by_themselves_when_the_arena_stops),
        cmocka_unit_test(workers_that_do_not_end_are_killed_by_the_close),
        cmocka_unit_test(a_trainer_killed_at_any_store_takes_its_workers_along),
    };
    return cmocka_run_group_tests_name("orphan", tests, NULL, NULL);
}
