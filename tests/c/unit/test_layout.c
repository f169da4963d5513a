/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <headrace/arena.h>
#include <headrace/error.h>

#include "arena/layout.h"
#include "arena/ring.h"

enum { WORKERS = 3, SLOTS = 20, CAPACITY = 8, ROUNDS = 200000 };
#define WINDOW (UINT64_C(4) << 20)

/* A header alone: the check reads nothing else. */
struct room {
    struct hr__arena_layout plan;
    struct hr__header *header;
};

static int open_room(void **state) {
    struct room *room = malloc(sizeof *room);
    room->header = aligned_alloc(HR__HEADER_ROOM, HR__HEADER_ROOM);
    memset(room->header, 0, HR__HEADER_ROOM);
    assert_int_equal(hr__layout_plan(WORKERS, SLOTS, CAPACITY, WINDOW, &room->plan), 0);
    hr__layout_write(&room->plan, room->header, 1 << 20, 42);
    *state = room;
    return 0;
}

static int close_room(void **state) {
    struct room *room = *state;
    free(room->header);
    free(room);
    return 0;
}

static int check(struct room *room, uint64_t bytes) {
    struct hr__arena_layout layout;
    memset(&layout, 0xA5, sizeof layout);
    struct hr__arena_layout before = layout;
    int r = hr__layout_check(room->header, bytes, &layout);
    if (r < 0) assert_memory_equal(&layout, &before, sizeof layout);
    return r;
}

static void a_written_header_is_read_back(void **state) {
    struct room *room = *state;
    struct hr__arena_layout layout;
    assert_int_equal(hr__layout_check(room->header, room->plan.total_bytes, &layout), 0);
    assert_ptr_equal(layout.header, room->header);
    assert_int_equal(layout.worker_count, WORKERS);
    assert_int_equal(layout.slot_count, SLOTS);
    assert_int_equal(layout.ring_capacity, CAPACITY);
    assert_int_equal(layout.window_bytes, WINDOW);
    assert_int_equal(layout.windows_at, room->plan.windows_at);
    assert_int_equal(layout.total_bytes, room->plan.total_bytes);
}

static void the_parts_of_an_arena_lie_one_after_another(void **state) {
    struct room *room = *state;
    const struct hr__arena_layout *plan = &room->plan;
    unsigned char *base = (unsigned char *)plan->header;
    assert_ptr_equal(hr__layout_worker(plan, 0), base + HR__HEADER_ROOM);
    assert_true((unsigned char *)(hr__layout_worker(plan, WORKERS - 1) + 1) <=
                (unsigned char *)hr__layout_slot(plan, 0));
    assert_true((unsigned char *)(hr__layout_slot(plan, SLOTS - 1) + 1) <=
                (unsigned char *)hr__layout_grant_ring(plan, 0));
    for (uint32_t worker = 0; worker < WORKERS; worker++) {
        unsigned char *grants = hr__layout_grant_ring(plan, worker),
                      *completions = hr__layout_completion_ring(plan, worker);
        assert_ptr_equal(completions, grants + hr__ring_bytes(CAPACITY));
        assert_int_equal((uintptr_t)grants % HR_CACHE_LINE, 0);
    }
    assert_ptr_equal(hr__layout_sight(plan, 0),
                     (unsigned char *)hr__layout_completion_ring(plan, WORKERS - 1) + hr__ring_bytes(CAPACITY));
    assert_ptr_equal(base + plan->head_end, hr__layout_sight(plan, WORKERS));
    assert_true(plan->windows_at >= plan->head_end);
    assert_int_equal(plan->windows_at % HR_WINDOW_STEP, 0);
    assert_int_equal(hr__layout_window_at(plan, SLOTS), plan->total_bytes);
}

static void sizes_beyond_what_a_file_can_have_are_refused(void **state) {
    (void)state;
    struct hr__arena_layout plan = {.slot_count = 7};
    assert_int_equal(hr__layout_plan(1, SLOTS, CAPACITY, UINT64_MAX & ~(uint64_t)(HR_WINDOW_STEP - 1), &plan),
                     -EOVERFLOW);
    assert_int_equal(hr__layout_plan(1, 4096, CAPACITY, UINT64_C(1) << 52, &plan), -EOVERFLOW);
    assert_int_equal(plan.slot_count, 7);
}

static void a_short_file_is_refused(void **state) {
    struct room *room = *state;
    assert_int_equal(check(room, HR__HEADER_ROOM - 1), HR_E_CORRUPT);
    assert_int_equal(check(room, 0), HR_E_CORRUPT);
}

static void a_file_of_another_length_than_its_header_says_is_refused(void **state) {
    struct room *room = *state;
    assert_int_equal(check(room, room->plan.total_bytes - 1), HR_E_CORRUPT);
    assert_int_equal(check(room, room->plan.total_bytes + HR__HEADER_ROOM), HR_E_CORRUPT);
    assert_int_equal(check(room, HR__HEADER_ROOM), HR_E_CORRUPT);
}

static void an_arena_that_is_not_ready_is_refused(void **state) {
    struct room *room = *state;
    atomic_store(&room->header->ready, 0);
    assert_int_equal(check(room, room->plan.total_bytes), HR_E_CORRUPT);
}

static void a_file_of_something_else_is_refused(void **state) {
    struct room *room = *state;
    room->header->magic ^= 1;
    assert_int_equal(check(room, room->plan.total_bytes), HR_E_CORRUPT);
}

static void another_version_is_named_as_such(void **state) {
    struct room *room = *state;
    room->header->abi_version = HR__ABI_VERSION + 1;
    assert_int_equal(check(room, room->plan.total_bytes), HR_E_VERSION);
    assert_non_null(strstr(hr_error_message(), "layout 6, this one has layout 5"));
    room->header->abi_version = HR__ABI_VERSION;
    room->header->header_bytes += 64;
    assert_int_equal(check(room, room->plan.total_bytes), HR_E_VERSION);
}

static void sizes_that_contradict_each_other_are_refused(void **state) {
    struct room *room = *state;
    struct hr__header good = *room->header, *header = room->header;
    const uint32_t counts[] = {0, 2 * HR_ARENA_MAX_SLOTS + 1, UINT32_MAX, UINT32_MAX / 2 + 1};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        *header = good;
        header->worker_count = counts[i];
        assert_int_equal(check(room, room->plan.total_bytes), HR_E_CORRUPT);
        *header = good;
        header->slot_count = counts[i];
        assert_int_equal(check(room, room->plan.total_bytes), HR_E_CORRUPT);
        *header = good;
        header->ring_capacity = counts[i];
        assert_int_equal(check(room, room->plan.total_bytes), HR_E_CORRUPT);
    }
    const uint64_t windows[] = {0, 1, WINDOW + HR__HEADER_ROOM, WINDOW * 2, UINT64_MAX << 21};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        *header = good;
        header->window_bytes = windows[i];
        assert_int_equal(check(room, room->plan.total_bytes), HR_E_CORRUPT);
    }
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* Whatever the header says: what is accepted lies within the file. */
static void random_headers_are_refused_or_lie_within_the_file(void **state) {
    struct room *room = *state;
    struct hr__header good = *room->header;
    uint64_t random = 20240229;
    int accepted = 0;
    for (int round = 0; round < ROUNDS; round++) {
        *room->header = good;
        uint32_t *words = (uint32_t *)room->header;
        for (uint64_t n = next_random(&random) % 3; n < 3; n++) {
            uint64_t value = next_random(&random) >> next_random(&random) % 64;
            words[2 + next_random(&random) % (sizeof good / 4 - 2)] = (uint32_t)value;
        }
        uint64_t bytes = next_random(&random) % 4 ? room->header->total_bytes : next_random(&random);
        struct hr__arena_layout layout;
        if (hr__layout_check(room->header, bytes, &layout) < 0) continue;
        accepted++;
        assert_true(layout.worker_count >= 1 && layout.slot_count >= 1);
        assert_true(layout.workers_at < layout.slots_at && layout.slots_at < layout.rings_at);
        assert_true(layout.rings_at < layout.head_end && layout.head_end <= layout.windows_at);
        assert_true(hr__layout_window_at(&layout, layout.slot_count) == bytes);
    }
    assert_in_range(accepted, 1, ROUNDS); /* fields that are not checked may hold anything */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_room, close_room)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_written_header_is_read_back),
        TEST(the_parts_of_an_arena_lie_one_after_another),
        TEST(sizes_beyond_what_a_file_can_have_are_refused),
        TEST(a_short_file_is_refused),
        TEST(a_file_of_another_length_than_its_header_says_is_refused),
        TEST(an_arena_that_is_not_ready_is_refused),
        TEST(a_file_of_something_else_is_refused),
        TEST(another_version_is_named_as_such),
        TEST(sizes_that_contradict_each_other_are_refused),
        TEST(random_headers_are_refused_or_lie_within_the_file),
    };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
