/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/shared_scene.h"

#include <pthread.h>

/* Threads that lock rows and the whole array in a random order, through two handles, as two processes do: each row has
 * two numbers, which are equal whenever its lock is free. */

enum { THREADS = 4, OPERATIONS = 20000, PAIRS = ROWS };

static const struct hr_shared_plan pairs = {.dtype = "<i8", .dimension_count = 2, .dimensions = {PAIRS, 2}};
static hr_shared *handles[2];
static _Atomic uint64_t changes;

static uint64_t seed_from_environment(void) {
    const char *seed = getenv("HEADRACE_SEED");
    return seed ? strtoull(seed, NULL, 10) : 1;
}

static uint64_t draw(uint64_t *random, uint64_t below) {
    *random = *random * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (*random >> 33) % below;
}

static int64_t *numbers_of(hr_shared *handle) {
    struct hr_shared_info info;
    hr_shared_look(handle, &info);
    return info.data;
}

static void change_rows(hr_shared *handle, uint64_t first, uint64_t count) {
    int64_t *numbers = numbers_of(handle);
    for (uint64_t row = first; row < first + count; row++) {
        check(numbers[2 * row] == numbers[2 * row + 1]);
        numbers[2 * row]++;
        numbers[2 * row + 1]++;
    }
    atomic_fetch_add(&changes, count);
}

static void *change_at_random(void *number) {
    uint64_t random = seed_from_environment() * THREADS + (uintptr_t)number;
    hr_shared *handle = handles[(uintptr_t)number % 2];
    for (int i = 0; i < OPERATIONS; i++) {
        struct hr_shared_wait wait = wait_until(draw(&random, 8) ? in_s(PATIENCE_S) : now_ns() + 1000);
        uint64_t first = draw(&random, PAIRS), count = 1 + draw(&random, draw(&random, 8) ? 4 : PAIRS);
        struct hr_shared_hold hold;
        if (count > PAIRS - first) count = PAIRS - first;
        if (draw(&random, 32) == 0) first = 0, count = PAIRS;
        int r = hr_shared_lock(handle, first, count, &wait, &hold);
        if (r == -ETIMEDOUT) continue;
        must(r);
        check(hold.dead_count == 0);
        change_rows(handle, first, count);
        must(hr_shared_unlock(handle, &hold));
    }
    return NULL;
}

static void locks_exclude_each_other(void **state) {
    pthread_t threads[THREADS];
    int64_t sum = 0;
    open_scene(state);
    must(try_to_open_array(&pairs, NULL));
    handles[0] = shared;
    must(hr_shared_open(cached, &handles[1]));
    for (uintptr_t i = 0; i < THREADS; i++) check(pthread_create(&threads[i], NULL, change_at_random, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) check(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < PAIRS; i++) sum += numbers_of(shared)[2 * i];
    assert_int_equal(sum, atomic_load(&changes));
    hr_shared_close(handles[1]);
    close_shared_scene(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(locks_exclude_each_other)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
