/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <headrace/error.h>

#include "arena/ring.h"

enum { CAPACITY = 4 };

struct room {
    struct hr__ring_shared *shared;
    struct hr__ring producer;
    struct hr__ring consumer;
};

static int open_room(void **state) {
    struct room *room = malloc(sizeof *room);
    room->shared = aligned_alloc(HR_CACHE_LINE, hr__ring_bytes(CAPACITY));
    memset(room->shared, 0, hr__ring_bytes(CAPACITY));
    room->producer = room->consumer = (struct hr__ring){room->shared, 0, CAPACITY};
    *state = room;
    return 0;
}

static int close_room(void **state) {
    struct room *room = *state;
    free(room->shared);
    free(room);
    return 0;
}

static int push(struct room *room, uint64_t task) {
    return hr__ring_push(&room->producer, &(struct hr__record){.task = task, .bytes = ~task});
}

static void assert_pops(struct room *room, uint64_t task) {
    struct hr__record record;
    assert_true(hr__ring_has_record(&room->consumer));
    assert_int_equal(hr__ring_pop(&room->consumer, &record), 1);
    assert_int_equal(record.task, task);
    assert_int_equal(record.bytes, ~task);
}

static void an_empty_ring_gives_nothing_and_leaves_the_record_untouched(void **state) {
    struct room *room = *state;
    struct hr__record record = {.task = 99};
    assert_false(hr__ring_has_record(&room->consumer));
    assert_int_equal(hr__ring_pop(&room->consumer, &record), 0);
    assert_int_equal(record.task, 99);
}

static void a_full_ring_refuses_until_one_record_is_taken(void **state) {
    struct room *room = *state;
    for (uint64_t i = 0; i < CAPACITY; i++) assert_int_equal(push(room, i), 0);
    assert_int_equal(push(room, 100), -EAGAIN);
    assert_pops(room, 0);
    assert_int_equal(push(room, CAPACITY), 0);
    assert_int_equal(push(room, 101), -EAGAIN);
    for (uint64_t i = 1; i <= CAPACITY; i++) assert_pops(room, i);
    assert_false(hr__ring_has_record(&room->consumer));
}

static void records_keep_their_order_round_and_round(void **state) {
    struct room *room = *state;
    uint64_t pushed = 0, popped = 0;
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < round % CAPACITY + 1; i++) assert_int_equal(push(room, pushed++), 0);
        while (popped < pushed) assert_pops(room, popped++);
    }
}

static void indices_that_pass_the_end_of_their_range_go_on(void **state) {
    struct room *room = *state;
    room->producer.at = room->consumer.at = UINT64_MAX - 1;
    atomic_store(&room->shared->tail, UINT64_MAX - 1);
    atomic_store(&room->shared->head, UINT64_MAX - 1);
    for (uint64_t i = 0; i < CAPACITY; i++) assert_int_equal(push(room, i), 0);
    assert_int_equal(push(room, 100), -EAGAIN);
    for (uint64_t i = 0; i < CAPACITY; i++) assert_pops(room, i);
}

static void a_producers_impossible_index_is_corrupt(void **state) {
    struct room *room = *state;
    struct hr__record record = {.task = 99};
    const uint64_t impossible[] = {CAPACITY + 1, UINT64_MAX, UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++) {
        atomic_store(&room->shared->tail, impossible[i]);
        assert_true(hr__ring_has_record(&room->consumer)); /* so that a waiter comes to look */
        assert_int_equal(hr__ring_pop(&room->consumer, &record), HR_E_CORRUPT);
        assert_int_equal(record.task, 99);
    }
    atomic_store(&room->shared->tail, 0);
    assert_int_equal(push(room, 7), 0);
    assert_pops(room, 7);
}

static void a_consumers_impossible_index_fills_the_ring(void **state) {
    struct room *room = *state;
    const uint64_t impossible[] = {1, UINT64_MAX - CAPACITY, UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++) {
        atomic_store(&room->shared->head, impossible[i]);
        assert_int_equal(push(room, 7), -EAGAIN);
    }
}

static void only_a_sleeper_is_woken_and_a_choosy_one_only_when_urgent(void **state) {
    struct room *room = *state;
    assert_false(hr__ring_must_wake(&room->producer, true));
    hr__ring_sleep(&room->consumer, HR__SLEEPS_UNLESS_URGENT);
    assert_false(hr__ring_must_wake(&room->producer, false));
    assert_true(hr__ring_must_wake(&room->producer, true));
    hr__ring_sleep(&room->consumer, HR__SLEEPS);
    assert_true(hr__ring_must_wake(&room->producer, false));
    hr__ring_sleep(&room->consumer, HR__AWAKE);
    assert_false(hr__ring_must_wake(&room->producer, true));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_room, close_room)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(an_empty_ring_gives_nothing_and_leaves_the_record_untouched),
        TEST(a_full_ring_refuses_until_one_record_is_taken),
        TEST(records_keep_their_order_round_and_round),
        TEST(indices_that_pass_the_end_of_their_range_go_on),
        TEST(a_producers_impossible_index_is_corrupt),
        TEST(a_consumers_impossible_index_fills_the_ring),
        TEST(only_a_sleeper_is_woken_and_a_choosy_one_only_when_urgent),
    };
    return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
