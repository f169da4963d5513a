/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/arena_scene.h"
#include "arena/arena.h"

/* Workers that are killed or stopped, at each store to shared memory and between. */

enum { BATCH = 1 << 20, TASKS = 4 };

/* Small enough that a worker asks for memory, so that those points are passed, too. */
#define LIMIT (UINT64_C(40) << 20)

static const char *const points[] = {
    "ring.pop",       "ring.head", "port.ask_bytes", "port.ask",  "port.asks",      "port.announced",
    "port.committed", "ring.push", "ring.record",    "ring.tail", "port.published", "ring.sleeping",
};
enum { POINTS = sizeof points / sizeof *points };

/* Receives worker 0's batches until it is reported dead. Returns how many there were. */
static uint64_t receive_until_death(struct scene *scene) {
    for (uint64_t task = 0;; task++) {
        struct hr_delivery *delivery = NULL;
        int r = hr__arena_receive(scene->arena, 0, in_s(PATIENCE_S), &delivery);
        if (r == HR_E_WORKER_DIED) return task;
        check(r == 0 && delivery->task == task && is_filled(delivery->data, BATCH, task));
        hr_delivery_done(delivery);
    }
}

static void assert_all_works(struct scene *scene, uint64_t first_task) {
    for (uint64_t task = first_task; task < first_task + 10; task++) {
        for (uint32_t worker = 0; worker < scene->worker_count; worker++) must(order(scene, worker, task, BATCH));
        for (uint32_t worker = 0; worker < scene->worker_count; worker++)
            hr_delivery_done(expect(scene, worker, task, BATCH));
    }
}

static void kill_at(const char *point, int nth) {
    struct scene scene;
    char stop[64];
    int before = count_descriptors();
    snprintf(stop, sizeof stop, "%s:%d:%d", point, SIGKILL, nth);
    set_scene(&scene, 2, 6, LIMIT);
    start_as(&scene, 0, stop, be_worker);
    start(&scene, 1);
    for (uint64_t task = 0; task < TASKS; task++) must(order(&scene, 0, task, BATCH));
    must(order(&scene, 1, 100, BATCH));
    uint64_t delivered = receive_until_death(&scene);
    if (strcmp(point, "ring.tail") == 0 || strcmp(point, "port.published") == 0) check(delivered == (uint64_t)nth);
    check(delivered <= (uint64_t)nth);
    assert_int_equal(hr_arena_dead_worker(scene.arena), 0);
    assert_true(WIFSIGNALED(reap(&scene, 0)));
    assert_int_equal(hr__arena_take_back(scene.arena, 0), TASKS - delivered);
    hr_delivery_done(expect(&scene, 1, 100, BATCH));
    start(&scene, 0);
    for (uint64_t task = delivered; task < TASKS; task++) must(order(&scene, 0, task, BATCH));
    for (uint64_t task = delivered; task < TASKS; task++) hr_delivery_done(expect(&scene, 0, task, BATCH));
    assert_all_works(&scene, 10);
    assert_int_equal(report_of(&scene).held_count, 0);
    clear_scene(&scene);
    assert_int_equal(count_descriptors(), before);
}

static void a_worker_killed_at_any_point_is_replaced_and_no_batch_is_lost_or_doubled(void **state) {
    (void)state;
    for (int point = 0; point < POINTS - 1; point++)
        for (int nth = 1; nth <= 2; nth++) kill_at(points[point], strncmp(points[point], "port.", 5) ? nth : 1);
}

static void stop_at(const char *point) {
    struct scene scene;
    char stop[64];
    int status;
    snprintf(stop, sizeof stop, "%s:%d:1", point, SIGSTOP);
    set_scene(&scene, 2, 6, LIMIT);
    start_as(&scene, 0, stop, be_worker);
    start(&scene, 1);
    for (uint64_t task = 0; task < TASKS; task++) must(order(&scene, 0, task, BATCH));
    struct hr_delivery *delivery = NULL;
    uint64_t task = 0;
    int r;
    while (waitpid(scene.pids[0], &status, WUNTRACED | WNOHANG) == 0) { /* the trainer answers what it asks for */
        r = hr__arena_receive(scene.arena, 1, now_ns() + 1000000, &delivery);
        check(r == -ETIMEDOUT);
    }
    assert_true(WIFSTOPPED(status));
    while ((r = hr__arena_receive(scene.arena, 0, now_ns() + 20000000, &delivery)) == 0) {
        check(delivery->task == task && is_filled(delivery->data, BATCH, task));
        hr_delivery_done(delivery);
        task++;
    }
    assert_int_equal(r, -ETIMEDOUT); /* it is not dead */
    must(order(&scene, 1, 100, BATCH));
    hr_delivery_done(expect(&scene, 1, 100, BATCH)); /* the other one works on */
    kill(scene.pids[0], SIGCONT);
    for (; task < TASKS; task++) hr_delivery_done(expect(&scene, 0, task, BATCH));
    assert_all_works(&scene, 10);
    clear_scene(&scene);
}

static void a_worker_stopped_at_any_point_is_waited_for_and_goes_on(void **state) {
    (void)state;
    for (int point = 0; point < POINTS - 1; point++) stop_at(points[point]);
}

static void a_worker_killed_while_it_sleeps_is_reported(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, 1, 2, LIMIT);
    start_as(&scene, 0, "ring.sleeping:9:1", be_worker);
    assert_int_equal(receive_until_death(&scene), 0);
    assert_non_null(strstr(hr_error_message(), "worker 0"));
    assert_int_equal(hr__arena_take_back(scene.arena, 0), 0);
    reap(&scene, 0);
    start(&scene, 0);
    assert_all_works(&scene, 0);
    clear_scene(&scene);
}

static void be_killed_while_it_writes(struct hr_worker_fds *fds) {
    hr_port *port;
    struct hr_task task;
    void *data;
    must(hr_port_open(fds, &port));
    must(work_once(port, in_s(PATIENCE_S)));
    must(hr_port_take(port, in_s(PATIENCE_S), &task));
    must(hr_port_reserve(port, BATCH, &data));
    memset(data, 0xFF, BATCH / 2);
    raise(SIGKILL);
}

static void a_half_written_batch_is_never_seen(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, 1, 2, LIMIT);
    start_as(&scene, 0, NULL, be_killed_while_it_writes);
    must(order(&scene, 0, 0, BATCH));
    must(order(&scene, 0, 1, BATCH));
    assert_int_equal(receive_until_death(&scene), 1);
    assert_int_equal(hr__arena_take_back(scene.arena, 0), 1);
    reap(&scene, 0);
    start(&scene, 0);
    assert_all_works(&scene, 1);
    clear_scene(&scene);
}

static void batches_published_before_a_death_survive_the_replacement(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, 2, 6, LIMIT);
    start_as(&scene, 0, "port.published:9:2", be_worker);
    start(&scene, 1);
    for (uint64_t task = 0; task < TASKS; task++) must(order(&scene, 0, task, BATCH));
    struct hr_delivery *delivery;
    assert_int_equal(hr__arena_receive(scene.arena, 1, in_s(PATIENCE_S), &delivery), HR_E_WORKER_DIED);
    assert_int_equal(hr_arena_dead_worker(scene.arena), 0);
    reap(&scene, 0);
    assert_int_equal(hr__arena_take_back(scene.arena, 0), TASKS - 2);
    start(&scene, 0);
    for (uint64_t task = 2; task < TASKS; task++) must(order(&scene, 0, task, BATCH));
    for (uint64_t task = 0; task < TASKS; task++) hr_delivery_done(expect(&scene, 0, task, BATCH));
    assert_all_works(&scene, 10);
    clear_scene(&scene);
}

static void an_ask_of_a_dead_worker_does_not_reach_its_successor(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, 2, 6, LIMIT);
    start_as(&scene, 0, "port.ask:9:1", be_worker); /* its ask is stored, and not counted yet */
    start(&scene, 1);
    must(order(&scene, 0, 0, 20 * MIB));
    assert_int_equal(has_ended(scene.pidfds[0], in_s(PATIENCE_S)), true);
    assert_int_equal(hr__arena_take_back(scene.arena, 0), 1);
    reap(&scene, 0);
    must(order(&scene, 0, 1, 8));
    must(order(&scene, 1, 2, 2 * MIB)); /* its ask makes the trainer look */
    hr_delivery_done(expect(&scene, 1, 2, 2 * MIB));
    assert_true(report_of(&scene).used_bytes < 16 * MIB);
    start(&scene, 0);
    hr_delivery_done(expect(&scene, 0, 1, 8));
    assert_all_works(&scene, 10);
    clear_scene(&scene);
}

static void many_deaths_leave_nothing_behind(void **state) {
    (void)state;
    struct scene scene;
    uint64_t seed = 7;
    set_scene(&scene, 1, 4, LIMIT);
    int before = -1;
    for (int round = 0; round < 100; round++) {
        char stop[64];
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        snprintf(stop, sizeof stop, "%s:9:%d", points[(seed >> 33) % (POINTS - 1)], (int)((seed >> 50) % 3) + 1);
        start_as(&scene, 0, stop, be_worker);
        for (uint64_t task = 0; task < TASKS; task++) must(order(&scene, 0, task, BATCH));
        uint64_t delivered = 0;
        struct hr_delivery *delivery;
        while (delivered < TASKS && hr__arena_receive(scene.arena, 0, in_s(PATIENCE_S), &delivery) == 0) {
            check(delivery->task == delivered++ && is_filled(delivery->data, BATCH, delivery->task));
            hr_delivery_done(delivery);
        }
        kill(scene.pids[0], SIGKILL);
        reap(&scene, 0);
        assert_int_equal(hr__arena_take_back(scene.arena, 0), TASKS - delivered);
        if (before < 0) before = count_descriptors();
        assert_int_equal(count_descriptors(), before);
        assert_true(report_of(&scene).used_bytes <= 5 * 2 * MIB);
    }
    start(&scene, 0);
    assert_all_works(&scene, 0);
    clear_scene(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_killed_at_any_point_is_replaced_and_no_batch_is_lost_or_doubled),
        cmocka_unit_test(a_worker_stopped_at_any_point_is_waited_for_and_goes_on),
        cmocka_unit_test(a_worker_killed_while_it_sleeps_is_reported),
        cmocka_unit_test(a_half_written_batch_is_never_seen),
        cmocka_unit_test(batches_published_before_a_death_survive_the_replacement),
        cmocka_unit_test(an_ask_of_a_dead_worker_does_not_reach_its_successor),
        cmocka_unit_test(many_deaths_leave_nothing_behind),
    };
#ifndef HR_FAILPOINTS
    fputs("skipped: built without failpoints\n", stderr);
    return SKIP_CODE;
#endif
    return cmocka_run_group_tests_name("death", tests, NULL, NULL);
}
