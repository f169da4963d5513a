/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/product.h"
#include "arena/arena.h"
#include "crew/crew.h"

#include <sys/resource.h>

#include "os/os.h"

/*
 * A worker, and the trainer, killed and stopped at every point of src/os/failpoints.h, in order and out of order. The
 * runs are made so that every point is passed. On a busy machine one may not be (who finds the work done does not
 * sleep, and is not woken): the run is made again, and a point that none of a few runs passes is a failure.
 */

#ifdef HR_FAILPOINTS

enum { ITEMS = 30, STOP_MS = PATIENCE_S * 1000, KILL_MS = 1000, GONE_WITHIN_NS = 1000000000, GONE_WANTED_MS = 100 };

/* Shared with the workers. */
struct board {
    _Atomic uint32_t replaced_count;
    _Atomic uint32_t ready_count;
};
static struct board *board;

static bool is_by(enum hr__point point, enum hr__side side) {
    return (hr__failpoints[point].side & side) != 0;
}

/* Only a batch that needs several windows passes it, and a sanitizer leaves no way to make windows small. */
static bool is_out_of_reach(enum hr__point point) {
    return IS_SANITIZED && point == HR__AT_GRANT_MOVED;
}

static const char *plan_for(enum hr__point point, int signal) {
    static char plan[64];
    snprintf(plan, sizeof plan, "%s:%d:1", hr__failpoints[point].name, signal);
    return plan;
}

/* In a worker: until its trainer sleeps, so that it has to be woken. */
static void await_sleeping_trainer(void) {
    int64_t deadline = in_s(PATIENCE_S);
    struct hr__process trainer;
    do {
        poll(NULL, 0, 1);
        must(hr__process_look(getppid(), &trainer));
        check(now_ns() < deadline);
    } while (trainer.state != 'S');
}

static uint64_t small_words(uint64_t item) {
    return 4 * KIB + (item * 37 % 11) * 3 * KIB;
}

/* ---- a worker ---- */

static const char *worker_plan;

static const char *plan_of_worker_1(struct product *product, uint32_t worker) {
    return worker == 1 && product->lives[worker].number == 0 ? worker_plan : NULL;
}

/* Each process says something, and once finds that the kernel has no memory. */
static void visit_of_workers(hr_port *port, uint32_t worker, uint32_t life, uint64_t task_count, uint64_t item) {
    (void)life, (void)item;
    if (worker == 1) await_sleeping_trainer();
    if (task_count > 0) return;
    must(hr_diagnostics_log_stderr(hr_port_diagnostics_fd(port), "hello", 5));
    must(hr_diagnostics_post_status(hr_port_diagnostics_fd(port), "news", 4));
    setenv("HEADRACE_FAIL", "fallocate:ENOSPC", 1);
}

/* A product of which worker 1 meets its signal at the point. Memory is short, so that workers ask for it. */
static void open_with_plan(struct product *product, enum hr__point point, int signal, int out_of_order) {
    struct setting setting = {.workers = 3,
                              .prefetch = 2,
                              .out_of_order = out_of_order,
                              .limit_bytes = 6 * MIB,
                              .words_of_item = small_words,
                              .visit = visit_of_workers,
                              .keep_count = 3,
                              .plan = plan_of_worker_1};
    worker_plan = plan_for(point, signal);
    open_product(product, &setting);
    begin_epoch(product, ITEMS);
}

/* Until no worker has anything to do; then all points but those of the end are behind it. */
static void await_idle(struct product *product) {
    int64_t deadline = in_s(PATIENCE_S);
    for (uint32_t i = 0; i < product->setting.workers; i++)
        for (struct hr_worker_report report = look_at(product, i); report.is_alive && !strchr("ST", report.state);) {
            poll(NULL, 0, 1);
            report = look_at(product, i);
            assert_true(now_ns() < deadline);
        }
}

/* Stops. A worker 1 that is stopped itself meanwhile does not end before it is killed. */
static void stop_crew(struct product *product, bool may_be_stopped) {
    int64_t deadline = in_s(PATIENCE_S);
    hr_arena_stop(hr_loader_arena(product->loader));
    struct hr_worker_report report = look_at(product, 1);
    for (; may_be_stopped && report.is_alive && report.state != 'T'; report = look_at(product, 1)) {
        assert_true(now_ns() < deadline);
        poll(NULL, 0, 1);
    }
    int running = stop_product(product, report.state == 'T' ? KILL_MS : STOP_MS);
    for (uint32_t i = 0; i < product->setting.workers; i++)
        must(hr__crew_wait(hr_loader_crew(product->loader), i, in_s(PATIENCE_S)));
    assert_in_range(running, 0, report.state == 'T'); /* 1: it was killed, and the machine was late */
}

/* Stops and closes; nothing is left of it. */
static void end_product(struct product *product, bool may_be_stopped, int descriptors) {
    struct hr_worker_fds fds;
    struct hr_arena_report report;
    must(hr__arena_open_worker_fds(hr_loader_arena(product->loader), 0, &fds));
    stop_crew(product, may_be_stopped);
    product->last_death = product->death_count ? product->last_death : look_at(product, 1);
    for (int i = 0; i < KEEP_MAX; i++) release_kept(&product->kept[i]);
    hr_arena_report(hr_loader_arena(product->loader), &report);
    assert_int_equal(report.held_count, 0);
    assert_true(report.used_bytes <= report.limit_bytes);
    close_product(product);
    assert_true(bytes_of(fds.memory_fd) < MIB); /* the rings */
    hr_worker_fds_close(&fds);
    assert_int_equal(count_descriptors(), descriptors);
    assert_true(no_named_file_is_left());
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* false: it did not come to the point. */
static bool kill_worker_at(enum hr__point point, int out_of_order) {
    struct product product;
    int descriptors = count_descriptors();
    open_with_plan(&product, point, SIGKILL, out_of_order);
    finish_epoch(&product);
    await_idle(&product);
    end_product(&product, false, descriptors);
    int signal = product.last_death.signal;
    if ((signal != 0 && signal != SIGKILL) || product.death_count > 1)
        fail_msg("%s: %u deaths, signal %d", hr__failpoints[point].name, product.death_count, signal);
    return signal == SIGKILL;
}

/* Whatever `meet` does at each point, until it was there. */
static void sweep_worker(bool (*meet)(enum hr__point point, int out_of_order)) {
    for (enum hr__point point = 0; point < HR__POINT_COUNT; point++)
        for (int out_of_order = 0; out_of_order < 2 && is_by(point, HR__BY_WORKER); out_of_order++) {
            bool is_met = false;
            for (int i = 0; i < TRIES && !is_met; i++) is_met = meet(point, out_of_order);
            if (!is_met) fail_msg("%s is not passed", hr__failpoints[point].name);
        }
}

static void a_worker_killed_at_any_point_is_replaced_and_the_epoch_is_exact(void **state) {
    (void)state;
    sweep_worker(kill_worker_at);
}

/* Serves the workers until worker 1 has stopped or nothing is left to do. */
static bool await_stop(struct product *product) {
    for (;;) {
        if (look_at(product, 1).state == 'T') return true;
        if (step_product(product, now_ns() + 50000000) != HR_E_END) continue;
        await_idle(product);
        return look_at(product, 1).state == 'T';
    }
}

/* false: it did not come to the point. */
static bool stop_worker_at(enum hr__point point, int out_of_order) {
    struct product product;
    int descriptors = count_descriptors(), r = 0;
    open_with_plan(&product, point, SIGSTOP, out_of_order);
    bool has_stopped = await_stop(&product);
    if (has_stopped) {
        while (r == 0) r = step_product(&product, now_ns() + 10000000);
        assert_true(r == -ETIMEDOUT || r == HR_E_END); /* it is waited for, and not dead */
        must(hr_crew_signal(hr_loader_crew(product.loader), 1, SIGCONT));
        finish_epoch(&product);
    }
    end_product(&product, !has_stopped, descriptors);
    assert_int_equal(product.death_count, 0);
    /* A worker that is stopped while it ends is killed at the deadline. */
    int signal = product.last_death.signal;
    if (signal != 0 && (has_stopped || signal != SIGKILL))
        fail_msg("%s: signal %d", hr__failpoints[point].name, signal);
    return has_stopped || signal == SIGKILL;
}

static void a_worker_stopped_at_any_point_is_waited_for_and_the_epoch_is_exact(void **state) {
    (void)state;
    sweep_worker(stop_worker_at);
}

/* ---- the trainer ---- */

static enum hr__point trainer_point;
static int trainer_signal, trainer_is_out_of_order;

static const char *note_replacement(struct product *product, uint32_t worker) {
    if (product->lives[worker].number > 0) atomic_fetch_add(&board->replaced_count, 1);
    return NULL;
}

/* Worker 1 dies with one batch published and one not, while the first batch in order is still being made. */
static void visit_of_trainer(hr_port *port, uint32_t worker, uint32_t life, uint64_t task_count, uint64_t item) {
    (void)port;
    int64_t deadline = in_s(PATIENCE_S);
    if (worker == 1 && life == 0 && task_count == 1) raise(SIGKILL);
    if (item > 0) return;
    while (!atomic_load(&board->replaced_count)) {
        poll(NULL, 0, 1);
        check(now_ns() < deadline);
    }
    await_sleeping_trainer();
}

/* Only SIGKILL ends worker 2, where that is what the point is about: it costs time. */
static void linger_on_purpose(uint32_t worker) {
    if (worker != 2 || (trainer_point != HR__AT_CREW_TERM && trainer_point != HR__AT_CREW_KILL)) return;
    signal(SIGTERM, SIG_IGN);
    for (volatile bool is_busy = true; is_busy;) continue;
}

/* Deaths, two epochs, more batches kept than fit. */
static void run_three_workers(void) {
    struct product product;
    struct setting setting = {.workers = 3,
                              .prefetch = 2,
                              .out_of_order = trainer_is_out_of_order,
                              .limit_bytes = 6 * MIB,
                              .words_of_item = small_words,
                              .visit = visit_of_trainer,
                              .linger = linger_on_purpose,
                              .keep_count = 20,
                              .plan = note_replacement};
    open_product(&product, &setting);
    begin_epoch(&product, ITEMS);
    finish_epoch(&product);
    begin_epoch(&product, ITEMS / 3);
    finish_epoch(&product);
    must(hr_loader_dismiss(product.loader, 0));
    must(hr__crew_wait(hr_loader_crew(product.loader), 0, in_s(PATIENCE_S)));
    check(product.death_count == 1);
    stop_product(&product, 500);
    for (uint32_t i = 1; i < 3; i++) must(hr__crew_wait(hr_loader_crew(product.loader), i, in_s(PATIENCE_S)));
    close_product(&product);
}

enum { LARGE_ITEM = 18, HUGE_ITEM = 14 };

static uint64_t growing_words(uint64_t item) {
    uint64_t bytes = item == LARGE_ITEM ? 5800 * KIB : item == HUGE_ITEM ? 7500 * KIB : 512 * KIB;
    return bytes / sizeof(uint64_t);
}

/* The trainer keeps three batches of 8 MiB: for the large one the slots behind it are cut down, for the huge one there
 * is no room. */
static void run_short_of_memory(void) {
    struct product product;
    struct setting setting = {.workers = 1,
                              .prefetch = 3,
                              .out_of_order = trainer_is_out_of_order,
                              .limit_bytes = 8 * MIB,
                              .words_of_item = growing_words,
                              .keep_count = 3};
    open_product(&product, &setting);
    begin_epoch(&product, ITEMS);
    finish_epoch(&product);
    check(product.too_big_count == 1 && product.seen[HUGE_ITEM]);
    check(stop_product(&product, STOP_MS) == 0);
    close_product(&product);
}

/* So that an arena has windows of a few MiB only. */
static void limit_address_space(void) {
    enum { WINDOWS = 21, WINDOW_BYTES = 5 * MIB, SHARE = 4 };
    if (IS_SANITIZED) return; /* a sanitizer's own address space is larger than the limit */
    rlim_t bytes = mapped_bytes() + SHARE * (rlim_t)WINDOWS * WINDOW_BYTES;
    setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes});
}

static pid_t start_trainer(void) {
    atomic_store(&board->replaced_count, 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) return pid;
    die_with_test();
    limit_address_space();
    setenv("HEADRACE_STOP", plan_for(trainer_point, trainer_signal), 1);
    run_three_workers();
    run_short_of_memory();
    _exit(0);
}

static void assert_nothing_is_left(int descriptors) {
    assert_int_equal(count_descriptors(), descriptors);
    assert_true(no_named_file_is_left());
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* Returns how long its workers outlived it; INT64_MAX: it did not come to the point. */
static int64_t kill_trainer(void) {
    int descriptors = count_descriptors();
    int status = reap_pid(start_trainer());
    int64_t start_ns = now_ns();
    bool is_reached = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!is_reached && status != 0) fail_msg("%s: wait status 0x%x", hr__failpoints[trainer_point].name, status);
    assert_true(reap_all(in_s(PATIENCE_S)));
    int64_t gone_ns = now_ns() - start_ns;
    assert_nothing_is_left(descriptors);
    return is_reached || trainer_is_out_of_order ? gone_ns : INT64_MAX;
}

/* false: it did not come to the point. */
static bool stop_trainer(void) {
    int descriptors = count_descriptors(), status;
    pid_t pid = start_trainer();
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    bool is_reached = WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
    if (is_reached) {
        kill(pid, SIGCONT);
        status = reap_pid(pid);
    }
    if (status != 0) fail_msg("%s: wait status 0x%x", hr__failpoints[trainer_point].name, status);
    assert_nothing_is_left(descriptors);
    return is_reached || trainer_is_out_of_order;
}

static void a_trainer_killed_at_any_point_takes_its_workers_along(void **state) {
    (void)state;
    int64_t longest_ns = 0;
    trainer_signal = SIGKILL;
    for (trainer_point = 0; trainer_point < HR__POINT_COUNT; trainer_point++) {
        if (!is_by(trainer_point, HR__BY_TRAINER) || is_out_of_reach(trainer_point)) continue;
        for (trainer_is_out_of_order = 0; trainer_is_out_of_order < 2; trainer_is_out_of_order++) {
            int64_t gone_ns = INT64_MAX;
            for (int i = 0; i < TRIES && gone_ns >= GONE_WITHIN_NS; i++) gone_ns = kill_trainer();
            if (gone_ns >= GONE_WITHIN_NS)
                fail_msg("%s: %s", hr__failpoints[trainer_point].name,
                         gone_ns == INT64_MAX ? "not passed" : "workers live on too long");
            if (gone_ns > longest_ns) longest_ns = gone_ns;
        }
    }
    print_message("workers gone after %.1f ms at most (wanted: %d)\n", (double)longest_ns / 1e6, GONE_WANTED_MS);
}

static void a_trainer_stopped_at_any_point_goes_on_and_its_epochs_are_exact(void **state) {
    (void)state;
    trainer_signal = SIGSTOP;
    for (trainer_point = 0; trainer_point < HR__POINT_COUNT; trainer_point++) {
        if (!is_by(trainer_point, HR__BY_TRAINER) || is_out_of_reach(trainer_point)) continue;
        for (trainer_is_out_of_order = 0; trainer_is_out_of_order < 2; trainer_is_out_of_order++) {
            bool is_met = false;
            for (int i = 0; i < TRIES && !is_met; i++) is_met = stop_trainer();
            if (!is_met) fail_msg("%s is not passed", hr__failpoints[trainer_point].name);
        }
    }
}

/* ---- workers that do not listen ---- */

static int be_idle(hr_port *port, void *context) {
    struct hr_task task;
    (void)context;
    atomic_fetch_add(&board->ready_count, 1);
    return hr_port_take(port, HR_NO_DEADLINE, &task);
}

static int be_busy(hr_port *port, void *context) {
    (void)port, (void)context;
    signal(SIGTERM, SIG_IGN);
    atomic_fetch_add(&board->ready_count, 1);
    volatile bool goes_on = true;
    while (goes_on) continue;
    return 0;
}

static int be_deaf(hr_port *port, void *context) {
    sigset_t all;
    (void)context;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    atomic_fetch_add(&board->ready_count, 1);
    while (port) pause();
    return 0;
}

/* Its trainer never receives: it has published all that it may, and waits. */
static int be_full(hr_port *port, void *context) {
    (void)context;
    for (int i = 0; i < 2; i++) must(work_once(port, HR_NO_DEADLINE));
    atomic_fetch_add(&board->ready_count, 1);
    return work_once(port, HR_NO_DEADLINE);
}

static hr_work *const lives[] = {be_idle, be_busy, be_deaf, be_full};
enum { LIVES = sizeof lives / sizeof *lives };

static _Noreturn void be_silent_trainer(void) {
    die_with_test();
    struct hr_loader_options options = {.worker_count = LIVES, .prefetch_factor = 2};
    struct order wanted = {8};
    hr_loader *loader;
    must(hr_loader_open(&options, &loader));
    must(hr_loader_begin(loader, NULL, 0, in_s(PATIENCE_S)));
    for (uint32_t i = 0; i < LIVES; i++) must(hr_crew_fork(hr_loader_crew(loader), i, lives[i], NULL));
    for (uint32_t i = 0; i < 2; i++)
        must(hr__arena_grant(hr_loader_arena(loader), LIVES - 1, HR_TASK_MAKE, i, &wanted, sizeof wanted));
    for (;;) pause();
}

/* Returns how long they outlived it. */
static int64_t kill_silent_trainer(void) {
    int descriptors = count_descriptors();
    int64_t deadline = in_s(PATIENCE_S);
    atomic_store(&board->ready_count, 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) be_silent_trainer();
    while (atomic_load(&board->ready_count) < LIVES) {
        poll(NULL, 0, 1);
        assert_true(now_ns() < deadline);
    }
    int64_t start_ns = now_ns();
    kill(pid, SIGKILL);
    assert_true(reap_all(in_s(PATIENCE_S)));
    int64_t gone_ns = now_ns() - start_ns;
    assert_nothing_is_left(descriptors);
    return gone_ns;
}

static void workers_that_ignore_signals_end_with_their_trainer(void **state) {
    (void)state;
    int64_t gone_ns = GONE_WITHIN_NS;
    for (int i = 0; i < TRIES && gone_ns >= GONE_WITHIN_NS; i++) gone_ns = kill_silent_trainer();
    print_message("gone after %.1f ms (wanted: %d)\n", (double)gone_ns / 1e6, GONE_WANTED_MS);
    assert_true(gone_ns < GONE_WITHIN_NS);
}

static void every_point_has_a_name_of_its_own(void **state) {
    (void)state;
    for (enum hr__point point = 0; point < HR__POINT_COUNT; point++)
        for (enum hr__point other = 0; other < point; other++)
            assert_string_not_equal(hr__failpoints[point].name, hr__failpoints[other].name);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_point_has_a_name_of_its_own),
        cmocka_unit_test(a_worker_killed_at_any_point_is_replaced_and_the_epoch_is_exact),
        cmocka_unit_test(a_worker_stopped_at_any_point_is_waited_for_and_the_epoch_is_exact),
        cmocka_unit_test(workers_that_ignore_signals_end_with_their_trainer),
        cmocka_unit_test(a_trainer_killed_at_any_point_takes_its_workers_along),
        cmocka_unit_test(a_trainer_stopped_at_any_point_goes_on_and_its_epochs_are_exact),
    };
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}

#else

int main(void) {
    fputs("skipped: built without failpoints\n", stderr);
    return SKIP_CODE;
}

#endif
