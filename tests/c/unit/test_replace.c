/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "arena/arena.h"
#include "loader_scene.h"

/* How a loader handles workers that die, and workers that it dismissed. */

/* Worker `i` is gone, and another opens its port. */
static struct hr_succession replace(struct room *room, uint32_t i) {
    struct hr_succession succession;
    room->ports[i] = hr_port_close(room->ports[i]);
    must(hr_loader_replace(room->loader, i, &succession));
    room->ports[i] = open_port_here(&room->scene, i);
    room->ended[i] = false;
    return succession;
}

static void assert_succession(struct hr_succession succession, uint64_t delivered, uint64_t published,
                              uint64_t granted) {
    assert_int_equal(succession.delivered_count, delivered);
    assert_int_equal(succession.published_count, published);
    assert_int_equal(succession.granted_count, granted);
}

/* A loader of two workers with `count` tasks submitted, which no worker has started. */
static void open_room_with_tasks(struct room *room, int out_of_order, int count) {
    int next_index = 0;
    open_room(room, 2, 3, out_of_order);
    room->left[0] = room->left[1] = 1000;
    must(hr_loader_begin(room->loader, NULL, 0, in_s(PATIENCE_S)));
    for (int i = 0; i < count; i++) assert_int_equal(submit(room, &next_index, count), 1);
}

static int64_t next_index_delivered(struct room *room) {
    struct hr_delivery *delivery = NULL;
    must(hr_loader_next(room->loader, in_s(PATIENCE_S), &delivery));
    int64_t index = *(int64_t *)delivery->data;
    assert_int_equal(delivery->status, HR_STATUS_BATCH);
    hr_delivery_done(delivery);
    return index;
}

static void assert_epoch_is_over(struct room *room) {
    struct hr_delivery *delivery;
    assert_int_equal(hr_loader_next(room->loader, in_s(PATIENCE_S), &delivery), HR_E_END);
}

static void in_order_a_successor_makes_what_was_not_published(void **state) {
    (void)state;
    for (int delivered = 0; delivered <= 1; delivered++) {
        for (int published = 0; published <= 3 - delivered; published++) {
            struct room room;
            open_room_with_tasks(&room, 0, 6); /* worker 0 has 0, 2 and 4 */
            for (int i = 0; i < delivered + published; i++) assert_true(work(&room, 0));
            for (int i = 0; i < delivered; i++) assert_int_equal(next_index_delivered(&room), i);
            assert_succession(replace(&room, 0), (uint64_t)delivered, (uint64_t)published,
                              (uint64_t)(3 - delivered - published));
            work_off(&room);
            for (int i = delivered; i < 6; i++) assert_int_equal(next_index_delivered(&room), i);
            assert_epoch_is_over(&room);
            close_room(&room);
        }
    }
}

static void out_of_order_nothing_is_lost_or_doubled_either(void **state) {
    (void)state;
    for (int published = 0; published <= 3; published++) {
        struct room room;
        bool seen[6] = {false};
        open_room_with_tasks(&room, 1, 6);
        for (int i = 0; i < published; i++) assert_true(work(&room, 0));
        assert_true(work(&room, 1));
        assert_succession(replace(&room, 0), 0, (uint64_t)published, (uint64_t)(3 - published));
        assert_succession(replace(&room, 0), 0, (uint64_t)published, (uint64_t)(3 - published)); /* died at once */
        work_off(&room);
        for (int i = 0; i < 6; i++) {
            int64_t index = next_index_delivered(&room);
            assert_false(seen[index]);
            seen[index] = true;
        }
        assert_epoch_is_over(&room);
        close_room(&room);
    }
}

static void a_death_in_the_middle_of_a_begin_leaves_a_whole_epoch(void **state) {
    (void)state;
    for (int published = 0; published <= 3; published++) {
        struct room room;
        int next_index = 0;
        open_room_with_tasks(&room, 0, 6);
        assert_int_equal(hr_loader_begin(room.loader, NULL, 0, now_ns()), -ETIMEDOUT);
        for (int i = 0; i < published; i++)
            assert_true(work(&room, 0)); /* the first of 4 answers, with the announcement */
        assert_succession(replace(&room, 0), 0, 0, 0);
        assert_false(work(&room, 0)); /* the epoch is not announced to a worker that starts with it */
        work_off(&room);
        must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
        for (int i = 0; i < 6; i++) submit(&room, &next_index, 6);
        work_off(&room);
        for (int i = 0; i < 6; i++) assert_int_equal(next_index_delivered(&room), i);
        assert_epoch_is_over(&room);
        close_room(&room);
    }
}

static void a_worker_that_had_ended_is_replaced_with_its_outstanding_tasks(void **state) {
    (void)state;
    struct room room;
    struct hr_delivery *delivery;
    open_room_with_tasks(&room, 0, 6);
    room.left[0] = 1;
    assert_true(work(&room, 0));
    assert_true(work(&room, 0)); /* its end, for task 2; it skips 4 */
    for (int i = 0; i < 3; i++) assert_true(work(&room, 1));
    for (int i = 0; i < 2; i++) assert_int_equal(next_index_delivered(&room), i);
    assert_int_equal(hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery), 1);
    assert_false(hr_loader_has_data(room.loader, 0));
    assert_succession(replace(&room, 0), 2, 0, 1);
    room.ended[0] = true;
    work_off(&room);
    assert_int_equal(next_index_delivered(&room), 3);
    assert_int_equal(next_index_delivered(&room), 5);
    assert_epoch_is_over(&room);
    close_room(&room);
}

static void the_successor_of_a_dismissed_worker_is_dismissed(void **state) {
    (void)state;
    struct room room;
    struct hr_task task;
    open_room_with_tasks(&room, 0, 6);
    must(hr_loader_dismiss(room.loader, 0));
    must(hr_loader_dismiss(room.loader, 0)); /* once is enough */
    assert_true(work(&room, 0));
    assert_succession(replace(&room, 0), 0, 1, 2);
    for (int i = 0; i < 2; i++) assert_true(work(&room, 0));
    must(hr_port_take(room.ports[0], in_s(PATIENCE_S), &task));
    assert_int_equal(task.kind, HR_TASK_STOP);
    for (int i = 0; i < 3; i++) assert_true(work(&room, 1));
    for (int i = 0; i < 6; i++) assert_int_equal(next_index_delivered(&room), i);
    assert_epoch_is_over(&room);
    close_room(&room);
}

static void the_end_of_a_dismissed_worker_without_tasks_is_not_a_death(void **state) {
    (void)state;
    struct room room;
    struct hr_delivery *delivery;
    int bell;
    open_room_with_tasks(&room, 0, 6);
    assert_true((bell = memfd_create("readable", 0)) >= 0); /* as a pidfd is when its process has ended */
    must(hr__arena_watch(room.scene.arena, 0, bell));
    must(hr_loader_dismiss(room.loader, 0));
    for (int i = 0; i < 2; i++) assert_true(work(&room, 0));
    assert_int_equal(next_index_delivered(&room), 0);
    assert_int_equal(hr_loader_next(room.loader, in_s(PATIENCE_S), &delivery), HR_E_WORKER_DIED); /* it owes task 4 */
    must(hr__arena_watch(room.scene.arena, 0, -1));
    assert_succession(replace(&room, 0), 1, 1, 1);
    assert_true(work(&room, 0));
    must(hr__arena_watch(room.scene.arena, 0, bell));
    assert_true(work(&room, 1));
    for (int i = 1; i < 3; i++) assert_int_equal(next_index_delivered(&room), i);
    assert_true(work(&room, 1));
    for (int i = 3; i < 5; i++) assert_int_equal(next_index_delivered(&room), i);
    assert_int_equal(hr_loader_next(room.loader, now_ns() + 1000000, &delivery), -ETIMEDOUT);
    close(bell);
    close_room(&room);
}

#ifdef HR_FAILPOINTS
static void a_replacement_that_failed_half_way_can_be_tried_again(void **state) {
    (void)state;
    struct room room;
    struct hr_succession succession;
    struct hr_task task;
    void *data;
    open_room_with_tasks(&room, 0, 6);
    must(hr_port_take(room.ports[0], in_s(PATIENCE_S), &task));
    must(hr_port_reserve(room.ports[0], MIB, &data)); /* its slot was emptied, and so needs memory */
    room.ports[0] = hr_port_close(room.ports[0]);
    setenv("HEADRACE_FAIL", "fallocate:ENOSPC", 1);
    assert_int_equal(hr_loader_replace(room.loader, 0, &succession), -ENOSPC);
    unsetenv("HEADRACE_FAIL");
    assert_non_null(strstr(hr_error_message(), "made again"));
    assert_succession(replace(&room, 0), 0, 0, 3);
    work_off(&room);
    for (int i = 0; i < 6; i++) assert_int_equal(next_index_delivered(&room), i);
    assert_epoch_is_over(&room);
    close_room(&room);
}

static void a_begin_that_failed_half_way_announces_the_epoch_to_the_rest(void **state) {
    (void)state;
    struct room room;
    int next_index = 0;
    static const char payload[128 * KIB]; /* no slot has so much yet */
    open_room_with_tasks(&room, 0, 1);
    setenv("HEADRACE_FAIL", "fallocate:ENOSPC", 1);
    assert_int_equal(hr_loader_begin(room.loader, payload, sizeof payload, in_s(PATIENCE_S)), -ENOSPC);
    unsetenv("HEADRACE_FAIL");
    assert_int_equal(hr_loader_begin(room.loader, payload, sizeof payload, now_ns()), -ETIMEDOUT);
    assert_true(work(&room, 0) && work(&room, 0)); /* the old task, and the announcement */
    assert_true(work(&room, 1));
    must(hr_loader_begin(room.loader, payload, sizeof payload, in_s(PATIENCE_S)));
    for (int i = 0; i < 6; i++) submit(&room, &next_index, 6);
    work_off(&room);
    for (int i = 0; i < 6; i++) assert_int_equal(next_index_delivered(&room), i);
    close_room(&room);
}
#endif

static void outstanding_and_awaited_tasks_can_be_read(void **state) {
    (void)state;
    struct room room;
    uint32_t worker = 99;
    uint64_t task;
    const void *payload;
    size_t bytes;
    open_room_with_tasks(&room, 0, 6);
    must(hr_loader_awaited(room.loader, &worker));
    assert_int_equal(worker, 0);
    for (uint32_t nth = 0; nth < 3; nth++) {
        must(hr_loader_outstanding(room.loader, 1, nth, &task, &payload, &bytes));
        assert_int_equal(task, 2 * nth + 1);
        assert_int_equal(bytes, sizeof(int64_t));
        assert_int_equal(*(const int64_t *)payload, task);
    }
    assert_int_equal(hr_loader_outstanding(room.loader, 1, 3, &task, &payload, &bytes), HR_E_END);
    assert_int_equal(hr_loader_outstanding(room.loader, 2, 0, &task, &payload, &bytes), -EINVAL);
    assert_true(work(&room, 0));
    assert_int_equal(next_index_delivered(&room), 0);
    must(hr_loader_awaited(room.loader, &worker));
    assert_int_equal(worker, 1);
    must(hr_loader_outstanding(room.loader, 0, 0, &task, &payload, &bytes));
    assert_int_equal(task, 2);
    assert_int_equal(hr_loader_begin(room.loader, NULL, 0, now_ns()), -ETIMEDOUT);
    must(hr_loader_awaited(room.loader, &worker));
    assert_true(worker == HR_ANY_WORKER);
    work_off(&room);
    must(hr_loader_begin(room.loader, NULL, 0, in_s(PATIENCE_S)));
    assert_int_equal(hr_loader_awaited(room.loader, &worker), HR_E_END);
    close_room(&room);
    open_room_with_tasks(&room, 1, 2);
    must(hr_loader_awaited(room.loader, &worker));
    assert_true(worker == HR_ANY_WORKER);
    assert_int_equal(hr_loader_replace(room.loader, 2, &(struct hr_succession){0}), -EINVAL);
    assert_int_equal(hr_loader_dismiss(room.loader, 2), -EINVAL);
    close_room(&room);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_order_a_successor_makes_what_was_not_published),
        cmocka_unit_test(out_of_order_nothing_is_lost_or_doubled_either),
        cmocka_unit_test(a_death_in_the_middle_of_a_begin_leaves_a_whole_epoch),
        cmocka_unit_test(a_worker_that_had_ended_is_replaced_with_its_outstanding_tasks),
        cmocka_unit_test(the_successor_of_a_dismissed_worker_is_dismissed),
        cmocka_unit_test(the_end_of_a_dismissed_worker_without_tasks_is_not_a_death),
        cmocka_unit_test(outstanding_and_awaited_tasks_can_be_read),
#ifdef HR_FAILPOINTS
        cmocka_unit_test(a_replacement_that_failed_half_way_can_be_tried_again),
        cmocka_unit_test(a_begin_that_failed_half_way_announces_the_epoch_to_the_rest),
#endif
    };
    return cmocka_run_group_tests_name("replace", tests, NULL, NULL);
}
