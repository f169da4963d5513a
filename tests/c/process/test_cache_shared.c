/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/shared_scene.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

/* A shared array with several processes: no change is lost, and a lock outlives its holder, at whatever point it is
 * killed or stopped. */

enum { COUNTERS = 4, EACH = 20000, MOMENT_NS = 30000000, NOTICE_NS = 1000000 };

/* Shared with the processes. */
struct stage {
    _Atomic uint32_t gate, ready;
    _Atomic int64_t killed_ns;
};
static struct stage *stage;

static int open_all(void **state) {
    memset(stage, 0, sizeof *stage);
    return open_shared_scene(state);
}

/* ---- counting ---- */

static void count_many(void) {
    for (int i = 0; i < EACH; i++) must(count_once(in_s(PATIENCE_S)));
}

static void add_many(void) {
    const uint64_t place = 5;
    const int64_t one = 1;
    for (int i = 0; i < EACH; i++) must(hr_shared_add(shared, &place, 1, &one, 1, NULL));
}

static void expect_count(void (*run)(void), uint64_t place) {
    pid_t pids[COUNTERS];
    for (int i = 0; i < COUNTERS; i++) pids[i] = launch(run, NULL);
    for (int i = 0; i < COUNTERS; i++) assert_child_succeeds(pids[i]);
    assert_int_equal(elements()[place], COUNTERS * EACH);
}

static void no_increment_of_several_processes_is_lost(void **state) {
    (void)state;
    expect_count(count_many, 0);
    expect_count(add_many, 5);
}

static void *count_in_thread(void *ignored) {
    count_many();
    return ignored;
}

static void no_increment_of_several_threads_is_lost(void **state) {
    pthread_t threads[COUNTERS];
    (void)state;
    for (int i = 0; i < COUNTERS; i++) check(pthread_create(&threads[i], NULL, count_in_thread, NULL) == 0);
    for (int i = 0; i < COUNTERS; i++) check(pthread_join(threads[i], NULL) == 0);
    assert_int_equal(elements()[0], COUNTERS * EACH);
}

/* ---- rows ---- */

static void hold_first_rows(void) {
    struct hr_shared_hold hold;
    must(lock_rows(0, 3, in_s(PATIENCE_S), &hold));
    atomic_store(&stage->ready, 1);
    await(&stage->gate, 1);
    must(hr_shared_unlock(shared, &hold));
}

static void rows_exclude_what_touches_them(void **state) {
    struct hr_shared_hold hold;
    (void)state;
    pid_t pid = launch(hold_first_rows, NULL);
    await(&stage->ready, 1);
    must(lock_rows(2 * SECOND_STRIPE, ROWS - 2 * SECOND_STRIPE, in_s(PATIENCE_S), &hold));
    must(hr_shared_unlock(shared, &hold));
    assert_refused(lock_rows(3, 1, now_ns() + MOMENT_NS, &hold), -ETIMEDOUT, "the lock of some rows of 'counters'");
    assert_refused(lock_rows(0, HR_SHARED_ALL, now_ns() + MOMENT_NS, &hold), -ETIMEDOUT, "was not free");
    check(hr_shared_lock(shared, 0, HR_SHARED_ALL, NULL, &hold) == -EAGAIN);
    atomic_store(&stage->gate, 1);
    lock_all(&hold);
    must(hr_shared_unlock(shared, &hold));
    assert_child_succeeds(pid);
}

static void hold_all(void) {
    struct hr_shared_hold hold;
    lock_all(&hold);
    atomic_store(&stage->ready, 1);
    await(&stage->gate, 1);
    must(hr_shared_unlock(shared, &hold));
}

static void rows_wait_for_the_whole_array(void **state) {
    struct hr_shared_hold hold;
    (void)state;
    pid_t pid = launch(hold_all, NULL); /* before rows were ever locked */
    await(&stage->ready, 1);
    assert_refused(lock_rows(9, 1, now_ns() + MOMENT_NS, &hold), -ETIMEDOUT, "was not free");
    atomic_store(&stage->gate, 1);
    must(lock_rows(9, 1, in_s(PATIENCE_S), &hold));
    must(hr_shared_unlock(shared, &hold));
    assert_child_succeeds(pid);
}

static int end_wait(void *context) {
    return ++*(int *)context == 2;
}

static void a_look_ends_a_wait(void **state) {
    struct hr_shared_hold hold;
    int looks = 0;
    (void)state;
    pid_t pid = launch(hold_all, NULL);
    await(&stage->ready, 1);
    struct hr_shared_wait wait = {.deadline_ns = in_s(PATIENCE_S), .look = end_wait, .context = &looks};
    check(hr_shared_lock(shared, 0, HR_SHARED_ALL, &wait, &hold) == -EINTR && looks == 2);
    atomic_store(&stage->gate, 1);
    assert_child_succeeds(pid);
}

/* ---- holders that die ---- */

static void change_half_and_die(void) {
    struct hr_shared_hold hold;
    lock_all(&hold);
    elements()[0]++;
    atomic_store(&stage->ready, 1);
    await(&stage->gate, 1);
    atomic_store(&stage->killed_ns, now_ns());
    raise(SIGKILL);
}

/* Kills a holder while this process waits for it. Returns how long it took to get the lock. */
static int64_t outlive_holder(struct hr_shared_hold *ret_hold) {
    struct hr_shared_hold hold;
    memset(stage, 0, sizeof *stage);
    pid_t pid = launch(change_half_and_die, NULL);
    await(&stage->ready, 1);
    check(lock_rows(0, HR_SHARED_ALL, now_ns() + MOMENT_NS, &hold) == -ETIMEDOUT);
    atomic_store(&stage->gate, 1);
    lock_all(ret_hold);
    int64_t took_ns = now_ns() - atomic_load(&stage->killed_ns);
    assert_int_equal(reap_pid(pid), SIGKILL);
    assert_int_equal(ret_hold->dead_count, 1);
    assert_int_equal(ret_hold->dead[0].pid, pid);
    assert_true(ret_hold->dead[0].is_visible);
    return took_ns;
}

static void the_next_holder_is_told_of_a_death(void **state) {
    struct hr_shared_hold hold;
    int64_t quickest_ns = INT64_MAX;
    (void)state;
    for (int i = 0; i < 2 * TRIES; i++) {
        int64_t took_ns = outlive_holder(&hold);
        if (took_ns < quickest_ns) quickest_ns = took_ns;
        assert_int_equal(elements()[0], elements()[1] + 1); /* half changed, as it was told */
        elements()[1] = elements()[0];
        must(hr_shared_unlock(shared, &hold));
        lock_all(&hold);
        assert_int_equal(hold.dead_count, 0);
        must(hr_shared_unlock(shared, &hold));
    }
    print_message("a lock is taken over after %lld us\n", (long long)quickest_ns / 1000);
    if (!IS_SANITIZED) assert_in_range(quickest_ns, 0, NOTICE_NS);
}

/* A holder that does not repair what the dead one has left gives the lock back, with the notice. */
static void a_lock_that_is_given_back_keeps_the_notice(void **state) {
    struct hr_shared_hold hold;
    (void)state;
    atomic_store(&stage->gate, 1);
    for (int is_of_rows = 0; is_of_rows < 2; is_of_rows++) {
        uint64_t count = is_of_rows ? ROWS / 2 : HR_SHARED_ALL;
        pid_t pid = launch(change_half_and_die, NULL);
        assert_int_equal(reap_pid(pid), SIGKILL);
        for (int i = 0; i < 3; i++) { /* also without a wait, because no process has it */
            must(hr_shared_lock(shared, 0, count, NULL, &hold));
            assert_int_equal(hold.dead_count, 1);
            assert_int_equal(hold.dead[0].pid, pid);
            must((i < 2 ? hr_shared_give_back : hr_shared_unlock)(shared, &hold));
        }
        must(hr_shared_lock(shared, 0, count, NULL, &hold));
        assert_int_equal(hold.dead_count, 0);
        must(hr_shared_unlock(shared, &hold));
    }
}

/* A dead holder of the whole array may have changed any row: each next holder of rows is told. */
static void all_rows_are_told_of_a_death(void **state) {
    struct hr_shared_hold hold;
    (void)state;
    atomic_store(&stage->gate, 1);
    pid_t pid = launch(change_half_and_die, NULL);
    assert_int_equal(reap_pid(pid), SIGKILL);
    for (uint64_t row = 0; row < ROWS; row += ROWS / 4) {
        must(lock_rows(row, 1, in_s(PATIENCE_S), &hold));
        assert_int_equal(hold.dead_count, 1);
        assert_int_equal(hold.dead[0].pid, pid);
        must(hr_shared_unlock(shared, &hold));
    }
    lock_all(&hold);
    assert_int_equal(hold.dead_count, 1); /* once, for all other rows */
    must(hr_shared_unlock(shared, &hold));
    lock_all(&hold);
    assert_int_equal(hold.dead_count, 0);
    must(hr_shared_unlock(shared, &hold));
}

static void hold_last_row(void) {
    struct hr_shared_hold hold;
    must(lock_rows(ROWS - 1, 1, in_s(PATIENCE_S), &hold));
    atomic_store(&stage->ready, 1);
    await(&stage->gate, 1);
    must(hr_shared_unlock(shared, &hold));
}

/* A process that does not get all rows leaves the notice to the next one. */
static void a_broken_off_wait_keeps_the_notice(void **state) {
    struct hr_shared_hold hold;
    (void)state;
    atomic_store(&stage->gate, 1);
    pid_t dead = launch(change_half_and_die, NULL);
    assert_int_equal(reap_pid(dead), SIGKILL);
    memset(stage, 0, sizeof *stage);
    pid_t pid = launch(hold_last_row, NULL);
    await(&stage->ready, 1);
    check(lock_rows(100, ROWS - 100, now_ns() + MOMENT_NS, &hold) == -ETIMEDOUT);
    must(lock_rows(100, 20, in_s(PATIENCE_S), &hold));
    assert_int_equal(hold.dead_count, 1);
    assert_int_equal(hold.dead[0].pid, dead);
    must(hr_shared_unlock(shared, &hold));
    atomic_store(&stage->gate, 1);
    assert_child_succeeds(pid);
}

static void fork_with_the_lock(void) {
    struct hr_shared_hold hold;
    lock_all(&hold);
    if (fork() == 0) {
        check(hr_shared_unlock(shared, &hold) == HR_E_STATE);
        check(hr_shared_lock(shared, 0, HR_SHARED_ALL, NULL, &hold) == -EAGAIN);
        atomic_store(&stage->ready, 1);
        await(&stage->gate, 1);
        must(count_once(in_s(PATIENCE_S)));
        _exit(0);
    }
    await(&stage->ready, 1);
    raise(SIGKILL);
}

static void a_forked_child_has_no_lock_of_its_parent(void **state) {
    struct hr_shared_hold hold;
    (void)state;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t pid = launch(fork_with_the_lock, NULL);
    await(&stage->ready, 1);
    lock_all(&hold);
    assert_int_equal(hold.dead_count, 1);
    assert_int_equal(hold.dead[0].pid, pid);
    must(hr_shared_unlock(shared, &hold));
    atomic_store(&stage->gate, 1);
    while (waitpid(-1, NULL, 0) > 0) continue;
    assert_int_equal(elements()[0], 1);
}

static void close_descriptors_and_hold(void) {
    struct hr_shared_hold hold;
    lock_all(&hold);
    for (int fd = 3; fd < 256; fd++) close(fd);
    atomic_store(&stage->ready, 1);
    await(&stage->gate, 1);
    must(hr_shared_unlock(shared, &hold));
    for (int i = 0; i < 64; i++) check(open("/dev/null", O_RDWR) >= 0); /* under the numbers of the array's */
    atomic_store(&stage->ready, 2);
    await(&stage->gate, 2);
    check(lock_rows(0, HR_SHARED_ALL, now_ns() + MOMENT_NS, &hold) == -ETIMEDOUT);
    atomic_store(&stage->ready, 3);
    lock_all(&hold);
    must(hr_shared_unlock(shared, &hold));
}

/* A program that closes all descriptors still has its lock, and does not think that others have ended. */
static void closed_descriptors_do_not_end_a_lock(void **state) {
    struct hr_shared_hold hold;
    (void)state;
    pid_t pid = launch(close_descriptors_and_hold, NULL);
    await(&stage->ready, 1);
    check(lock_rows(0, HR_SHARED_ALL, now_ns() + MOMENT_NS, &hold) == -ETIMEDOUT);
    atomic_store(&stage->gate, 1);
    await(&stage->ready, 2);
    lock_all(&hold);
    atomic_store(&stage->gate, 2);
    await(&stage->ready, 3);
    must(hr_shared_unlock(shared, &hold));
    assert_child_succeeds(pid);
}

/* In two containers that share the folder, both holders may have the pid 1. */
static void hold_in_another_namespace(void) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) < 0) _exit(SKIP_CODE);
    pid_t pid = fork();
    if (pid == 0) {
        check(getpid() == 1);
        struct hr_shared_hold hold;
        lock_all(&hold);
        atomic_fetch_add(&stage->ready, 1);
        await(&stage->gate, 1);
        _exit(0);
    }
    int status;
    check(waitpid(pid, &status, 0) == pid);
}

static void containers_share_locks(void **state) {
    struct hr_shared_hold hold;
    int status;
    (void)state;
    pid_t first = launch(hold_in_another_namespace, NULL);
    int64_t deadline = in_s(PATIENCE_S);
    while (!atomic_load(&stage->ready)) {
        if (waitpid(first, &status, WNOHANG) == first) skip(); /* this machine has no such namespaces */
        check(now_ns() < deadline);
        poll(NULL, 0, 1);
    }
    pid_t second = launch(hold_in_another_namespace, NULL); /* waits for the other process with pid 1 */
    await_waiter(WHOLE);
    assert_refused(lock_rows(0, HR_SHARED_ALL, now_ns() + MOMENT_NS, &hold), -ETIMEDOUT,
                   "process 1 of another container");
    assert_int_equal(atomic_load(&stage->ready), 1);
    atomic_store(&stage->gate, 1); /* it ends with the lock; the second one is told, and ends with it too */
    check(waitpid(first, &status, 0) == first && waitpid(second, &status, 0) == second);
    lock_all(&hold);
    assert_int_equal(hold.dead_count, 1);
    assert_int_equal(hold.dead[0].pid, 1);
    assert_false(hold.dead[0].is_visible);
    must(hr_shared_unlock(shared, &hold));
}

#ifdef HR_FAILPOINTS

/* ---- every point ---- */

static void *hold_until_awaited(void *ignored) {
    struct hr_shared_hold hold;
    lock_all(&hold);
    atomic_store(&stage->gate, 1);
    await_waiter(hold.first);
    must(hr_shared_unlock(shared, &hold));
    return ignored;
}

static void take_and_die(void) {
    struct hr_shared_hold hold;
    unsetenv("HEADRACE_STOP");
    lock_all(&hold);
    raise(SIGKILL);
}

/* Passes all points: makes the array, waits for a thread, outlives a holder, and locks rows. */
static void live(void) {
    pthread_t thread;
    struct hr_shared_hold hold;
    open_array();
    must(count_once(in_s(PATIENCE_S)));
    check(pthread_create(&thread, NULL, hold_until_awaited, NULL) == 0);
    await(&stage->gate, 1);
    must(count_once(in_s(PATIENCE_S)));
    check(pthread_join(thread, NULL) == 0);
    pid_t pid = fork();
    if (pid == 0) take_and_die();
    reap_pid(pid);
    must(count_once(in_s(PATIENCE_S)));
    must(lock_rows(7, 1, in_s(PATIENCE_S), &hold));
    must(hr_shared_unlock(shared, &hold));
    must(count_once(in_s(PATIENCE_S)));
    close_array();
}

static void open_stage(void **state) {
    memset(stage, 0, sizeof *stage);
    open_scene(state);
}

static void a_process_killed_at_any_point_leaves_it_usable(void **state) {
    struct hr_cache_collected result;
    for (int i = 0; i < HR__POINT_COUNT; i++) {
        char plan[64];
        const struct hr__failpoint *point = &hr__failpoints[i];
        for (int passage = 1; point->side == HR__BY_SHARED && passage <= 3; passage++) {
            snprintf(plan, sizeof plan, "%s:9:%d", point->name, passage);
            open_stage(state);
            int status = reap_pid(launch(live, plan));
            if (passage == 1 && status != SIGKILL) fail_msg("%s: no run passes it", point->name);
            atomic_store(&stage->gate, 0);
            assert_child_succeeds(launch(live, NULL)); /* whatever was left */
            open_array();
            must(count_once(in_s(PATIENCE_S)));
            if (elements()[0] < 5 || elements()[0] > 9) fail_msg("%s: counted to %d", plan, (int)elements()[0]);
            close_array();
            must(hr_cache_collect(cache, -1, 0, NULL, NULL, &result));
            if (count_in("partial") || count_in("trash") || count_in("claims") || count_in("objects"))
                fail_msg("%s: something is left", plan);
            close_scene(state);
        }
    }
}

/* A stopped process keeps what it has: the others count on, or get its pid and state, and nothing is lost. */
static void a_process_stopped_at_any_point_keeps_its_lock(void **state) {
    int blocked = 0, status;
    for (int i = 0; i < HR__POINT_COUNT; i++) {
        char plan[64], text[48];
        const struct hr__failpoint *point = &hr__failpoints[i];
        if (point->side != HR__BY_SHARED || strcmp(point->name, "shared.filled") == 0 ||
            strcmp(point->name, "shared.made") == 0 || strcmp(point->name, "shared.committed") == 0)
            continue; /* while it is made, others wait for its builder, as test_cache_kills.c shows */
        open_stage(state);
        open_array();
        snprintf(plan, sizeof plan, "%s:19", point->name);
        pid_t pid = launch(live, plan);
        check(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
        int r = count_once(now_ns() + MOMENT_NS);
        snprintf(text, sizeof text, "process %d, which is stopped (state T", (int)pid);
        if (r < 0) assert_refused(r, -ETIMEDOUT, text);
        blocked += r < 0;
        kill(pid, SIGCONT);
        assert_child_succeeds(pid);
        if (elements()[0] != 4 + (r == 0)) fail_msg("%s: counted to %d", point->name, (int)elements()[0]);
        close_shared_scene(state);
    }
    assert_true(blocked >= 4); /* with the lock: locked, recovered, striping, striped, unlocking */
}

static void hold_all_stripes(void) {
    struct hr_shared_hold hold;
    lock_all(&hold);
    check(hold.count == HR_SHARED_STRIPES);
    must(hr_shared_unlock(shared, &hold));
}

/* A process that waits for the whole array while rows are locked for the first time gets all rows. */
static void the_first_lock_of_rows_is_noticed(void **state) {
    int status;
    (void)state;
    atomic_store(&stage->gate, 1);
    pid_t first = launch(hold_first_rows, "shared.striping:19");
    check(waitpid(first, &status, WUNTRACED) == first && WIFSTOPPED(status));
    pid_t all = launch(hold_all_stripes, NULL);
    await_waiter(WHOLE);
    kill(first, SIGCONT);
    assert_child_succeeds(first);
    assert_child_succeeds(all);
}

/* A waiter that has judged a holder dead, and is stopped before it takes the lock over, comes too late: a living
 * process has the lock by then, and even the slot of the dead one. */
static void a_late_judge_does_not_take_the_lock(void **state) {
    struct hr_shared_hold hold;
    hr_shared *other = NULL;
    struct hr_shared_wait wait = wait_until(in_s(PATIENCE_S));
    int status;
    (void)state;
    assert_int_equal(reap_pid(launch(take_and_die, NULL)), SIGKILL);
    uint32_t dead = word_of_lock(WHOLE), slot = dead & (HR_SHARED_MEMBERS - 1);
    pid_t pid = launch(count_many, "shared.judged:19");
    check(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    lock_all(&hold);
    must(hr_shared_unlock(shared, &hold));
    atomic_store(&shared->head->next_slot, slot);
    must(hr_shared_open(cached, &other));
    must(hr_shared_lock(other, 0, HR_SHARED_ALL, &wait, &hold));
    assert_int_equal(word_of_lock(WHOLE) & (HR_SHARED_MEMBERS - 1), slot);
    assert_int_not_equal(word_of_lock(WHOLE), dead);
    elements()[0]++;
    kill(pid, SIGCONT);
    await_waiter(WHOLE);
    elements()[1]++;
    must(hr_shared_unlock(other, &hold));
    assert_child_succeeds(pid);
    hr_shared_close(other);
    assert_int_equal(elements()[0], EACH + 1);
}

#endif

#define SCENE_TEST(test) cmocka_unit_test_setup_teardown(test, open_all, close_shared_scene)

int main(void) {
    stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        SCENE_TEST(no_increment_of_several_processes_is_lost),
        SCENE_TEST(no_increment_of_several_threads_is_lost),
        SCENE_TEST(rows_exclude_what_touches_them),
        SCENE_TEST(rows_wait_for_the_whole_array),
        SCENE_TEST(a_look_ends_a_wait),
        SCENE_TEST(the_next_holder_is_told_of_a_death),
        SCENE_TEST(a_lock_that_is_given_back_keeps_the_notice),
        SCENE_TEST(all_rows_are_told_of_a_death),
        SCENE_TEST(a_forked_child_has_no_lock_of_its_parent),
        SCENE_TEST(closed_descriptors_do_not_end_a_lock),
        SCENE_TEST(containers_share_locks),
        SCENE_TEST(a_broken_off_wait_keeps_the_notice),
#ifdef HR_FAILPOINTS
        SCENE_TEST(the_first_lock_of_rows_is_noticed),
        cmocka_unit_test(a_process_killed_at_any_point_leaves_it_usable),
        cmocka_unit_test(a_process_stopped_at_any_point_keeps_its_lock),
        SCENE_TEST(a_late_judge_does_not_take_the_lock),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
