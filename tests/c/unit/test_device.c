/* SPDX-License-Identifier: Apache-2.0 */
/* Slots that a device has registered, batches that only copies to a device hold, and arenas that outlive workers. */
#include "../support/arena_scene.h"
#include "arena/arena.h"

#include <pthread.h>

/* No worker has to ask for memory for a batch of MOST bytes, because nothing would answer: see usual_allowance. */
enum { WORKERS = 1, PREFETCH = 4, MOST = 8 << 20 };
#define LIMIT (UINT64_C(256) << 20)

struct room {
    struct scene scene;
    hr_port *port;
};

static int open_room(void **state) {
    struct room *room = calloc(1, sizeof *room);
    set_scene(&room->scene, WORKERS, PREFETCH, LIMIT);
    room->port = open_port_here(&room->scene, 0);
    *state = room;
    return 0;
}

static int close_room(void **state) {
    struct room *room = *state;
    hr_port_close(room->port);
    hr_arena_close(room->scene.arena);
    free(room);
    return 0;
}

/* A batch of so many bytes, made and received. */
static struct hr_delivery *receive(struct room *room, uint64_t bytes, uint64_t task) {
    struct order order = {bytes};
    struct hr_delivery *delivery;
    must(hr__arena_grant(room->scene.arena, 0, HR_TASK_MAKE, task, &order, sizeof order));
    must(work_once(room->port, in_s(PATIENCE_S)));
    must(hr__arena_receive(room->scene.arena, 0, in_s(PATIENCE_S), &delivery));
    assert_true(is_filled(delivery->data, bytes, task));
    return delivery;
}

static struct hr_slot_status slot_of(const struct hr_delivery *delivery) {
    struct hr_slot_status status;
    must(hr_delivery_slot(delivery, &status));
    return status;
}

/* Registers the slot of a delivery, and guards its memory as a device would. */
static void register_slot(struct room *room, const struct hr_delivery *delivery, void **ret_address,
                          uint64_t *ret_bytes) {
    must(hr_arena_register(room->scene.arena, slot_of(delivery).slot, delivery->bytes, 0, ret_address, ret_bytes));
    assert_ptr_equal(*ret_address, delivery->data);
    must(hr_guard((uintptr_t)*ret_address, *ret_bytes));
}

static void slot_counts_what_it_has_received(void **state) {
    struct room *room = *state;
    for (uint64_t i = 1; i <= 3; i++) {
        struct hr_delivery *delivery = receive(room, MIB, i);
        struct hr_slot_status status = slot_of(delivery);
        assert_int_equal(status.received_count, i);
        assert_int_equal(status.registered_bytes, 0);
        assert_true(status.committed_bytes >= MIB);
        hr_delivery_done(delivery);
    }
}

static void registered_memory_keeps_its_pages(void **state) {
    struct room *room = *state;
    void *address;
    uint64_t bytes, lost = hr_guard_lost();
    struct hr_delivery *delivery = receive(room, MOST, 1);
    uint32_t slot = slot_of(delivery).slot;
    register_slot(room, delivery, &address, &bytes);
    assert_true(bytes >= MOST);
    hr_delivery_done(delivery);
    /* Small batches make recent_bytes fall, so that larger free slots are trimmed. */
    for (uint64_t i = 0; i < 600; i++) hr_delivery_done(receive(room, KIB, i));
    assert_int_equal(hr_guard_lost(), lost);
    must(hr_unguard((uintptr_t)address));
    hr_arena_unregister(room->scene.arena, slot);
}

static void without_the_rule_a_guard_notices_the_punch(void **state) {
    struct room *room = *state;
    void *address;
    uint64_t bytes, lost = hr_guard_lost();
    struct hr_delivery *delivery = receive(room, MOST, 1);
    register_slot(room, delivery, &address, &bytes);
    hr_delivery_done(delivery);
    setenv("HEADRACE_FAIL", "registered_pages:EIO", 1);
    for (uint64_t i = 0; i < 1200 && hr_guard_lost() == lost; i++) hr_delivery_done(receive(room, KIB, i));
    unsetenv("HEADRACE_FAIL");
    assert_true(hr_guard_lost() > lost);
    must(hr_unguard((uintptr_t)address));
}

static void registered_memory_stays_mapped_after_the_close(void **state) {
    (void)state;
    struct room room = {0};
    void *address;
    uint64_t bytes, lost = hr_guard_lost();
    set_scene(&room.scene, WORKERS, PREFETCH, LIMIT);
    room.port = open_port_here(&room.scene, 0);
    struct hr_delivery *delivery = receive(&room, MIB, 3);
    register_slot(&room, delivery, &address, &bytes);
    hr_delivery_done(delivery);
    hr_port_close(room.port);
    hr_arena_close(room.scene.arena);
    assert_int_equal(hr_guard_lost(), lost);
    assert_true(is_filled(address, MIB, 3));
    must(hr_unguard((uintptr_t)address));
    munmap(address, bytes);
}

static void at_most_a_quarter_of_the_limit_is_registered(void **state) {
    struct room *room = *state;
    enum { FIT = LIMIT / 4 / MOST };
    void *address;
    uint64_t bytes;
    struct hr_delivery *deliveries[FIT + 1];
    for (int i = 0; i <= FIT; i++) {
        deliveries[i] = receive(room, MOST, (uint64_t)i);
        int r = hr_arena_register(room->scene.arena, slot_of(deliveries[i]).slot, MOST, 0, &address, &bytes);
        assert_int_equal(r, i < FIT ? 0 : -EDQUOT);
    }
    uint32_t slot = slot_of(deliveries[0]).slot;
    assert_int_equal(hr_arena_register(room->scene.arena, slot, MOST, 0, &address, &bytes), HR_E_STATE);
    for (int i = 0; i <= FIT; i++) {
        hr_arena_unregister(room->scene.arena, slot_of(deliveries[i]).slot);
        hr_delivery_done(deliveries[i]);
    }
}

static void grown_slot_is_registered_with_room_to_grow(void **state) {
    struct room *room = *state;
    void *address;
    uint64_t bytes;
    struct hr_delivery *delivery = receive(room, 4 * MIB, 1);
    must(hr_arena_register(room->scene.arena, slot_of(delivery).slot, delivery->bytes, 1, &address, &bytes));
    assert_int_equal(bytes, 5 * MIB);
    hr_arena_unregister(room->scene.arena, slot_of(delivery).slot);
    hr_delivery_done(delivery);
}

/* With copies that hold most of the memory, a receive asks once to have them settled. */
static void caller_is_asked_to_settle_before_memory_runs_out(void **state) {
    struct room *room = *state;
    enum { HELD = LIMIT / MOST - PREFETCH };
    struct hr_delivery *delivery = NULL;
    hr_lease *leases[HELD];
    struct order order = {MOST};
    for (int i = 0; i < HELD; i++) {
        struct hr_delivery *held = receive(room, MOST, (uint64_t)i);
        must(hr_delivery_lease(held, 0, held->bytes, &leases[i]));
        hr_delivery_send(held);
        hr_delivery_done(held);
    }
    must(hr__arena_grant(room->scene.arena, 0, HR_TASK_MAKE, HELD, &order, sizeof order));
    must(work_once(room->port, in_s(PATIENCE_S)));
    assert_int_equal(hr__arena_receive(room->scene.arena, 0, in_s(PATIENCE_S), &delivery), -EBUSY);
    for (int i = 0; i < HELD; i++) hr_lease_release(leases[i]);
    must(hr__arena_receive(room->scene.arena, 0, in_s(PATIENCE_S), &delivery));
    assert_int_equal(delivery->is_copy, 0);
    assert_true(is_filled(delivery->data, MOST, HELD));
    hr_delivery_done(delivery);
}

static void restarted_arena_gives_other_workers_its_memory(void **state) {
    struct room *room = *state;
    struct order order = {MIB};
    const struct hr__arena_options options = {
        .worker_count = WORKERS, .prefetch_count = PREFETCH, .limit_bytes = LIMIT};
    hr_delivery_done(receive(room, MIB, 1));
    /* One task is published and not received, another one is not taken. */
    for (uint64_t task = 2; task <= 3; task++)
        must(hr__arena_grant(room->scene.arena, 0, HR_TASK_MAKE, task, &order, sizeof order));
    must(work_once(room->port, in_s(PATIENCE_S)));
    hr_arena_stop(room->scene.arena);
    hr_port_close(room->port);
    must(hr__arena_restart(room->scene.arena, &options));
    room->port = open_port_here(&room->scene, 0);
    struct hr_delivery *delivery = receive(room, MIB, 9);
    assert_true(slot_of(delivery).received_count >= 2);
    hr_delivery_done(delivery);
    struct hr_arena_report report;
    hr_arena_report(room->scene.arena, &report);
    assert_int_equal(report.delivered_count, 1);
    assert_int_equal(report.held_count, 0);
}

static void arena_is_restarted_with_its_own_options_only(void **state) {
    struct room *room = *state;
    struct hr__arena_options options = {.worker_count = WORKERS + 1, .prefetch_count = PREFETCH};
    assert_int_equal(hr__arena_restart(room->scene.arena, &options), HR_E_STATE);
}

int main(void) {
#ifdef HR_FAILPOINTS
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(slot_counts_what_it_has_received, open_room, close_room),
        cmocka_unit_test_setup_teardown(registered_memory_keeps_its_pages, open_room, close_room),
        cmocka_unit_test_setup_teardown(without_the_rule_a_guard_notices_the_punch, open_room, close_room),
        cmocka_unit_test(registered_memory_stays_mapped_after_the_close),
        cmocka_unit_test_setup_teardown(at_most_a_quarter_of_the_limit_is_registered, open_room, close_room),
        cmocka_unit_test_setup_teardown(grown_slot_is_registered_with_room_to_grow, open_room, close_room),
        cmocka_unit_test_setup_teardown(caller_is_asked_to_settle_before_memory_runs_out, open_room, close_room),
        cmocka_unit_test_setup_teardown(restarted_arena_gives_other_workers_its_memory, open_room, close_room),
        cmocka_unit_test_setup_teardown(arena_is_restarted_with_its_own_options_only, open_room, close_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
#else
    return SKIP_CODE;
#endif
}
