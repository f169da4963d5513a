/* SPDX-License-Identifier: Apache-2.0 */
#include "../support/arena_scene.h"
#include "arena/arena.h"

#include <sched.h>

/* Tiny tasks with random delays on both sides, so that each comes to each state of the other: no wake-up is lost. */

enum { WORKERS = 2, AHEAD = 3, BATCHES = 200000 };

static uint64_t seed_from_environment(void) {
    const char *seed = getenv("HEADRACE_SEED");
    return seed ? strtoull(seed, NULL, 10) : 1;
}

static uint32_t next_random(uint64_t *random) {
    *random = *random * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(*random >> 33);
}

/* Mostly nothing, sometimes a while, rarely long enough that the other side goes to sleep. */
static void delay(uint64_t *random) {
    uint32_t kind = next_random(random) % 64;
    if (kind < 8) {
        sched_yield();
    } else if (kind < 16) {
        int64_t until = now_ns() + next_random(random) % 10000;
        while (now_ns() < until) continue;
    } else if (kind == 16 && next_random(random) % 8 == 0) {
        nanosleep(&(struct timespec){.tv_nsec = next_random(random) % 100000}, NULL);
    }
}

static void be_erratic(struct hr_worker_fds *fds) {
    uint64_t random = seed_from_environment() + fds->worker + 1;
    hr_port *port;
    int r = hr_port_open(fds, &port);
    while (r == 0) {
        delay(&random);
        r = work_once(port, HR_NO_DEADLINE);
    }
    hr_port_close(port);
    _exit(r == HR_E_CLOSED ? 0 : 98);
}

/* Some batches need more than a grant allows, so that asks and replies cross with the rest. */
static uint64_t bytes_of_task(uint64_t task) {
    return task % 97 == 0 ? 200 * KIB + task % 1000 * 8 : 8 + task % 3 * 8;
}

static void run(bool any_worker, uint64_t limit_bytes) {
    struct scene scene;
    uint64_t random = seed_from_environment(), sent[WORKERS] = {0}, received[WORKERS] = {0};
    set_scene(&scene, WORKERS, WORKERS * AHEAD, limit_bytes);
    for (uint32_t i = 0; i < WORKERS; i++) start_as(&scene, i, NULL, be_erratic);
    for (uint32_t worker = 0; worker < WORKERS; worker++)
        for (; sent[worker] < AHEAD; sent[worker]++)
            must(order(&scene, worker, sent[worker], bytes_of_task(sent[worker])));
    for (uint64_t n = 0; n < BATCHES / 2; n++) {
        struct hr_delivery *delivery;
        uint32_t wanted = any_worker ? HR_ANY_WORKER : (uint32_t)(n % WORKERS);
        must(hr__arena_receive(scene.arena, wanted, in_s(PATIENCE_S), &delivery));
        uint32_t worker = delivery->worker;
        check(delivery->task == received[worker]);
        check(delivery->bytes == bytes_of_task(received[worker]));
        check(is_filled(delivery->data, delivery->bytes, received[worker]));
        received[worker]++;
        hr_delivery_done(delivery);
        delay(&random);
        must(order(&scene, worker, sent[worker], bytes_of_task(sent[worker])));
        sent[worker]++;
    }
    struct hr_arena_report report = report_of(&scene);
    print_message("%d batches: %llu waits, %llu sleeps, %llu asks\n", BATCHES / 2,
                  (unsigned long long)report.waited_count, (unsigned long long)report.slept_count,
                  (unsigned long long)report.asked_count);
    assert_true(report.used_bytes <= limit_bytes);
    clear_scene(&scene);
}

static void no_wake_up_is_lost_in_order(void **state) {
    (void)state;
    run(false, 2 * MIB);
}

static void no_wake_up_is_lost_in_any_order(void **state) {
    (void)state;
    run(true, 4 * MIB);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_wake_up_is_lost_in_order),
        cmocka_unit_test(no_wake_up_is_lost_in_any_order),
    };
    return cmocka_run_group_tests_name("wakeups", tests, NULL, NULL);
}
