/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/arena_scene.h"
#include "arena/arena.h"

#include <pthread.h>

/* An arena with its one worker's port in the same process and thread: everything happens in the order written. */
struct room {
    struct scene scene;
    hr_port *port;
    int descriptors;
};

static int open_room(void **state) {
    struct room *room = calloc(1, sizeof *room);
    room->descriptors = count_descriptors();
    set_scene(&room->scene, 1, 4, UINT64_C(1) << 30);
    room->port = open_port_here(&room->scene, 0);
    *state = room;
    return 0;
}

static int close_room(void **state) {
    struct room *room = *state;
    hr_port_close(room->port);
    hr_arena_close(room->scene.arena);
    assert_int_equal(count_descriptors(), room->descriptors);
    free(room);
    return 0;
}

static void a_batch_arrives_with_its_task_kind_and_status(void **state) {
    struct room *room = *state;
    struct hr_task task;
    struct hr_delivery *delivery;
    void *data;
    must(hr__arena_grant(room->scene.arena, 0, 17, 1234567890123, "payload", 7));
    must(hr_port_take(room->port, in_s(PATIENCE_S), &task));
    assert_int_equal(task.task, 1234567890123);
    assert_int_equal(task.kind, 17);
    assert_int_equal(task.payload_bytes, 7);
    assert_memory_equal(task.payload, "payload", 7);
    must(hr_port_reserve(room->port, 5, &data));
    assert_int_equal((uintptr_t)data % (2 * MIB), 0);
    memcpy(data, "batch", 5);
    must(hr_port_publish(room->port, 21, 5));
    must(hr__arena_receive(room->scene.arena, 0, in_s(PATIENCE_S), &delivery));
    assert_int_equal(delivery->task, 1234567890123);
    assert_int_equal(delivery->kind, 17);
    assert_int_equal(delivery->worker, 0);
    assert_int_equal(delivery->status, 21);
    assert_int_equal(delivery->is_copy, 0);
    assert_int_equal(delivery->bytes, 5);
    assert_memory_equal(delivery->data, "batch", 5);
    hr_delivery_done(delivery);
}

static void a_task_and_a_batch_may_be_empty(void **state) {
    struct room *room = *state;
    struct hr_task task;
    struct hr_delivery *delivery;
    must(hr__arena_grant(room->scene.arena, 0, 0, 1, NULL, 0));
    must(hr_port_take(room->port, in_s(PATIENCE_S), &task));
    assert_int_equal(task.payload_bytes, 0);
    must(hr_port_publish(room->port, 0, 0));
    must(hr__arena_receive(room->scene.arena, HR_ANY_WORKER, in_s(PATIENCE_S), &delivery));
    assert_int_equal(delivery->bytes, 0);
    hr_delivery_done(delivery);
}

static void batches_of_all_sizes_arrive_whole(void **state) {
    struct room *room = *state;
    const uint64_t sizes[] = {8, 4088, 4096, 4104, 65536, 65544, 1 << 20, (16 << 20) - 8, 16 << 20, 3000, 0};
    for (uint64_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        hr_delivery_done(hand_over(&room->scene, room->port, i, sizes[i]));
    assert_int_equal(report_of(&room->scene).copied_count, 0);
}

static void a_released_slot_is_used_again_while_it_is_hot(void **state) {
    struct room *room = *state;
    void *first = NULL;
    for (uint64_t task = 0; task < 10; task++) {
        struct hr_delivery *delivery = hand_over(&room->scene, room->port, task, MIB);
        if (!first) first = delivery->data;
        assert_ptr_equal(delivery->data, first);
        hr_delivery_done(delivery);
    }
}

static void leases_end_in_any_order_and_the_last_one_frees_the_slot(void **state) {
    struct room *room = *state;
    hr_lease *leases[3];
    struct hr_delivery *delivery = hand_over(&room->scene, room->port, 0, MIB);
    void *held = delivery->data;
    for (int i = 0; i < 3; i++) must(hr_delivery_lease(delivery, (uint64_t)i * 64 * KIB, 64 * KIB, &leases[i]));
    hr_delivery_done(delivery);
    const int order[] = {1, 2, 0};
    for (int i = 0; i < 3; i++) {
        delivery = hand_over(&room->scene, room->port, 1, MIB);
        assert_ptr_not_equal(delivery->data, held);
        hr_delivery_done(delivery);
        assert_int_equal(report_of(&room->scene).held_count, 1);
        assert_true(is_filled(held, 64 * KIB, 0));
        hr_lease_release(leases[order[i]]);
    }
    assert_int_equal(report_of(&room->scene).held_count, 0);
    delivery = hand_over(&room->scene, room->port, 2, MIB);
    assert_ptr_equal(delivery->data, held);
    hr_delivery_done(delivery);
}

static void a_lease_beyond_the_batch_is_refused(void **state) {
    struct room *room = *state;
    struct hr_delivery *delivery = hand_over(&room->scene, room->port, 0, 4096);
    hr_lease *lease = (hr_lease *)room;
    assert_int_equal(hr_delivery_lease(delivery, 0, 4097, &lease), -EINVAL);
    assert_int_equal(hr_delivery_lease(delivery, 4097, 0, &lease), -EINVAL);
    assert_int_equal(hr_delivery_lease(delivery, UINT64_MAX, 2, &lease), -EINVAL);
    assert_ptr_equal(lease, room);
    must(hr_delivery_lease(delivery, 4096, 0, &lease));
    hr_lease_release(lease);
    hr_lease_release(NULL);
    hr_delivery_done(delivery);
    hr_delivery_done(NULL);
}

static void no_more_is_granted_than_prefetching_allows(void **state) {
    struct room *room = *state;
    for (uint64_t task = 0; task < 4; task++) must(order(&room->scene, 0, task, 64));
    assert_int_equal(order(&room->scene, 0, 4, 64), -EAGAIN);
    assert_non_null(strstr(hr_error_message(), "4 batches are in flight"));
    must(work_once(room->port, in_s(PATIENCE_S)));
    assert_int_equal(order(&room->scene, 0, 4, 64), -EAGAIN); /* published, but not received yet */
    hr_delivery_done(expect(&room->scene, 0, 0, 64));
    must(order(&room->scene, 0, 4, 64));
}

static void calls_out_of_turn_are_refused(void **state) {
    struct room *room = *state;
    struct hr_task task;
    void *data;
    assert_int_equal(hr_port_reserve(room->port, 1, &data), HR_E_STATE);
    assert_int_equal(hr_port_publish(room->port, 0, 0), HR_E_STATE);
    must(order(&room->scene, 0, 0, 64));
    must(hr_port_take(room->port, in_s(PATIENCE_S), &task));
    assert_int_equal(hr_port_take(room->port, in_s(PATIENCE_S), &task), HR_E_STATE);
    must(hr_port_reserve(room->port, 64, &data));
    assert_int_equal(hr_port_publish(room->port, 0, MIB), -EINVAL);
    assert_int_equal(order(&room->scene, 1, 0, 64), -EINVAL);
    must(hr_port_publish(room->port, 0, 64));
}

static void a_wait_ends_at_its_deadline(void **state) {
    struct room *room = *state;
    struct hr_task task;
    struct hr_delivery *delivery = NULL;
    int64_t start = now_ns();
    assert_int_equal(hr__arena_receive(room->scene.arena, 0, start + 5000000, &delivery), -ETIMEDOUT);
    assert_int_equal(hr_port_take(room->port, start + 10000000, &task), -ETIMEDOUT);
    assert_true(now_ns() - start >= 10000000);
    assert_null(delivery);
    assert_int_equal(hr__arena_receive(room->scene.arena, HR_ANY_WORKER, 0, &delivery), -ETIMEDOUT);
}

static void a_stopped_arena_says_so_on_both_sides(void **state) {
    struct room *room = *state;
    struct hr_task task;
    struct hr_delivery *delivery;
    struct hr_worker_fds fds;
    must(order(&room->scene, 0, 0, 64));
    hr_arena_stop(room->scene.arena);
    hr_arena_stop(room->scene.arena);
    assert_int_equal(hr_port_take(room->port, HR_NO_DEADLINE, &task), HR_E_CLOSED);
    assert_int_equal(order(&room->scene, 0, 1, 64), HR_E_CLOSED);
    assert_int_equal(hr__arena_receive(room->scene.arena, 0, HR_NO_DEADLINE, &delivery), HR_E_CLOSED);
    assert_int_equal(hr__arena_open_worker_fds(room->scene.arena, 0, &fds), HR_E_CLOSED);
}

static void options_out_of_range_are_refused(void **state) {
    (void)state;
    hr_arena *arena = (hr_arena *)&state;
    const struct hr__arena_options bad[] = {{.worker_count = 0, .prefetch_count = 1},
                                            {.worker_count = HR_ARENA_MAX_WORKERS + 1, .prefetch_count = 1},
                                            {.worker_count = 1, .prefetch_count = 0},
                                            {.worker_count = 1, .prefetch_count = HR_ARENA_MAX_SLOTS / 2 + 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(hr__arena_open(&bad[i], &arena), -EINVAL);
    assert_ptr_equal(arena, &state);
    assert_null(hr_arena_close(NULL));
    assert_null(hr_port_close(NULL));
}

static void the_largest_arena_opens_and_leaves_nothing(void **state) {
    (void)state;
    struct scene scene;
    int before = count_descriptors();
    set_scene(&scene, 256, 2048, 0);
    assert_true(report_of(&scene).limit_bytes > 0);
    hr_arena_close(scene.arena);
    assert_int_equal(count_descriptors(), before);
}

static void leased_memory_outlives_the_arena(void **state) {
    struct room *room = *state;
    hr_lease *leases[3];
    unsigned char *data[3];
    for (uint64_t i = 0; i < 3; i++) {
        struct hr_delivery *delivery = hand_over(&room->scene, room->port, i, MIB);
        data[i] = delivery->data;
        leases[i] = lease_all(delivery);
        hr_delivery_done(delivery);
    }
    room->scene.arena = hr_arena_close(room->scene.arena);
    for (uint64_t i = 0; i < 3; i++) assert_true(is_filled(data[i], MIB, i));
    hr_lease_release(leases[1]);
    assert_true(is_filled(data[0], MIB, 0));
    assert_true(is_filled(data[2], MIB, 2));
    hr_lease_release(leases[0]);
    hr_lease_release(leases[2]);
}

static void a_close_frees_memory_without_leases_at_once(void **state) {
    struct room *room = *state;
    struct hr_worker_fds fds;
    must(hr__arena_open_worker_fds(room->scene.arena, 0, &fds));
    struct hr_delivery *kept = hand_over(&room->scene, room->port, 0, MIB),
                       *dropped = hand_over(&room->scene, room->port, 1, 16 * MIB);
    hr_lease *lease = lease_all(kept);
    void *data = kept->data;
    hr_delivery_done(kept);
    hr_delivery_done(dropped);
    assert_true(bytes_of(fds.memory_fd) >= 17 * MIB);
    room->scene.arena = hr_arena_close(room->scene.arena);
    assert_true(bytes_of(fds.memory_fd) < 2 * MIB);
    assert_true(is_filled(data, MIB, 0));
    hr_lease_release(lease);
    assert_true(bytes_of(fds.memory_fd) < MIB);
    hr_worker_fds_close(&fds);
}

static void *release_all(void *leases) {
    for (hr_lease **lease = leases; *lease; lease++) hr_lease_release(*lease);
    return NULL;
}

static void leases_end_in_other_threads_while_batches_go_on_and_the_arena_closes(void **state) {
    struct room *room = *state;
    enum { THREADS = 3, EACH = 50 };
    for (int round = 0; round < 4; round++) {
        hr_lease *leases[THREADS][EACH + 1] = {{NULL}};
        pthread_t threads[THREADS];
        for (uint64_t i = 0; i < EACH; i++) {
            struct hr_delivery *delivery = hand_over(&room->scene, room->port, i, 64 * KIB);
            for (int t = 0; t < THREADS; t++)
                must(hr_delivery_lease(delivery, (uint64_t)t * 8, 64 * KIB - (uint64_t)t * 8, &leases[t][i]));
            hr_delivery_done(delivery);
        }
        for (int t = 0; t < THREADS; t++) pthread_create(&threads[t], NULL, release_all, leases[t]);
        if (round < 3)
            for (uint64_t i = 0; i < 100; i++) hr_delivery_done(hand_over(&room->scene, room->port, i, 64 * KIB));
        else
            room->scene.arena = hr_arena_close(room->scene.arena);
        for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_room, close_room)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_batch_arrives_with_its_task_kind_and_status),
        TEST(a_task_and_a_batch_may_be_empty),
        TEST(batches_of_all_sizes_arrive_whole),
        TEST(a_released_slot_is_used_again_while_it_is_hot),
        TEST(leases_end_in_any_order_and_the_last_one_frees_the_slot),
        TEST(a_lease_beyond_the_batch_is_refused),
        TEST(no_more_is_granted_than_prefetching_allows),
        TEST(calls_out_of_turn_are_refused),
        TEST(a_wait_ends_at_its_deadline),
        TEST(a_stopped_arena_says_so_on_both_sides),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(the_largest_arena_opens_and_leaves_nothing),
        TEST(leased_memory_outlives_the_arena),
        TEST(a_close_frees_memory_without_leases_at_once),
        TEST(leases_end_in_other_threads_while_batches_go_on_and_the_arena_closes),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
