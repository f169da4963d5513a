/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <headrace/face/tuner.h>

#include "base/base.h"

/*
 * The tuner on simulated works: a loop that gets batches in order from workers, with a simulated clock. A work says how
 * long a worker takes for a batch and the loop for a step, with so many workers, at a moment.
 */

enum { MOST = 16, PREFETCH = 2, ROOM = 4 * MOST * PREFETCH };
#define MS (HR_NS_PER_S / 1000)
#define CORES 2.0

struct work {
    double (*make_ms)(uint32_t workers, double now_s);
    double (*loop_ms)(uint32_t workers, double now_s);
    double noise; /* of both, as a share */
    double every; /* seconds between two epochs; 0: one epoch */
};

struct run {
    const struct work *work;
    hr_tuner *tuner;
    uint64_t random;
    int64_t now_ns, free_ns[MOST], ends_ns[ROOM];
    uint64_t waited_ns, submitted, delivered;
    uint32_t workers, next_worker, owed;
    uint32_t changes_after; /* changes since `marked_ns` */
    uint64_t batches_after; /* batches since then */
    int64_t marked_ns;
};

static double draw(struct run *run) {
    run->random = run->random * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (double)(run->random >> 33) / (double)(UINT64_C(1) << 31);
}

static int64_t time_of(struct run *run, double ms) {
    return (int64_t)(ms * (1 + run->work->noise * (2 * draw(run) - 1)) * (double)MS);
}

static double seconds(const struct run *run) {
    return (double)run->now_ns / (double)HR_NS_PER_S;
}

static void submit(struct run *run) {
    for (; run->owed; run->owed--) {
        uint32_t worker = run->next_worker % run->workers;
        int64_t from_ns = run->free_ns[worker] > run->now_ns ? run->free_ns[worker] : run->now_ns;
        run->next_worker = worker + 1;
        run->free_ns[worker] = from_ns + time_of(run, run->work->make_ms(run->workers, seconds(run)));
        run->ends_ns[run->submitted++ % ROOM] = run->free_ns[worker];
    }
}

static void use(struct run *run, uint32_t workers) {
    uint32_t outstanding = (uint32_t)(run->submitted - run->delivered), target = workers * PREFETCH;
    run->workers = workers;
    run->owed = target > outstanding ? target - outstanding : 0;
    run->changes_after += run->marked_ns > 0;
    hr_tuner_use(run->tuner, workers, run->waited_ns);
}

static void begin_epoch(struct run *run) {
    run->submitted = run->delivered = 0;
    run->owed = run->workers * PREFETCH;
    for (int i = 0; i < MOST; i++) run->free_ns[i] = 0;
    hr_tuner_begin(run->tuner, run->now_ns, run->waited_ns);
}

static void step(struct run *run) {
    submit(run);
    int64_t end_ns = run->ends_ns[run->delivered++ % ROOM];
    if (end_ns > run->now_ns) {
        run->waited_ns += (uint64_t)(end_ns - run->now_ns);
        run->now_ns = end_ns;
    }
    uint32_t target = run->workers * PREFETCH;
    run->owed = run->submitted - run->delivered < target;
    run->batches_after += run->marked_ns > 0;
    hr_tuner_step(run->tuner, run->now_ns, run->waited_ns);
    if (hr_tuner_wanted(run->tuner) != run->workers) use(run, hr_tuner_wanted(run->tuner));
    run->now_ns += time_of(run, run->work->loop_ms(run->workers, seconds(run)));
}

static void run_until(struct run *run, double until_s) {
    double epoch_s = seconds(run) + (run->work->every > 0 ? run->work->every : until_s);
    while (seconds(run) < until_s) {
        step(run);
        if (seconds(run) < epoch_s) continue;
        hr_tuner_end(run->tuner, run->now_ns, run->waited_ns);
        run->now_ns += 50 * MS;
        epoch_s = seconds(run) + run->work->every;
        begin_epoch(run);
    }
}

static void start(struct run *run, const struct work *work, uint32_t first, uint64_t seed) {
    struct hr_tuner_options options = {.first = first, .most = MOST, .prefetch_factor = PREFETCH, .turns = 1};
    *run = (struct run){.work = work, .tuner = hr_tuner_open(&options), .random = seed, .now_ns = 1, .workers = first};
    assert_non_null(run->tuner);
    begin_epoch(run);
}

static void mark(struct run *run) {
    run->marked_ns = run->now_ns;
    run->changes_after = 0;
    run->batches_after = 0;
}

static double rate_after(const struct run *run) {
    return (double)run->batches_after * (double)HR_NS_PER_S / (double)(run->now_ns - run->marked_ns);
}

static double fixed_rate(const struct work *work, uint32_t workers, double from_s, double to_s) {
    struct run run;
    start(&run, work, workers, 1);
    hr_tuner_hold(run.tuner);
    run_until(&run, from_s);
    mark(&run);
    run_until(&run, to_s);
    hr_tuner_close(run.tuner);
    return rate_after(&run);
}

static double best_rate(const struct work *work, double from_s, double to_s) {
    double best = 0;
    for (uint32_t workers = 1; workers <= MOST; workers++) {
        double rate = fixed_rate(work, workers, from_s, to_s);
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---- works on two cores ---- */

static double shared(double ms, double busy) {
    return busy > CORES ? ms * busy / CORES : ms;
}

static double tiny_make(uint32_t workers, double now_s) {
    (void)now_s;
    return shared(0.05, workers + 1);
}
static double tiny_loop(uint32_t workers, double now_s) {
    (void)now_s;
    return shared(0.15, 1 + 0.3 * workers);
}
static double cpu_make(uint32_t workers, double now_s) {
    (void)now_s;
    return shared(20, workers);
}
static double cpu_loop(uint32_t workers, double now_s) {
    (void)workers, (void)now_s;
    return 1;
}
static double disk_make(uint32_t workers, double now_s) {
    (void)workers, (void)now_s;
    return 40;
}
static double disk_loop(uint32_t workers, double now_s) {
    (void)workers, (void)now_s;
    return 5;
}
static double both_make(uint32_t workers, double now_s) {
    (void)now_s;
    return shared(8, workers + 2);
}
static double both_loop(uint32_t workers, double now_s) {
    (void)now_s;
    return shared(10, 2 + 0.5 * workers);
}
static double warming_make(uint32_t workers, double now_s) {
    (void)workers;
    return now_s < 2 ? 12 : 2;
}
static double visited_make(uint32_t workers, double now_s) {
    bool is_visited = (int)(now_s / 150) % 2;
    return shared(4, workers + (is_visited ? 2 : 0));
}
static double slow_loop(uint32_t workers, double now_s) {
    (void)workers, (void)now_s;
    return 20;
}
static double slow_make(uint32_t workers, double now_s) {
    (void)workers, (void)now_s;
    return 1500;
}

static const struct work tiny = {tiny_make, tiny_loop, 0.1, 0}, cpu = {cpu_make, cpu_loop, 0.3, 0},
                         disk = {disk_make, disk_loop, 0.3, 0}, both = {both_make, both_loop, 0.2, 0},
                         warming = {warming_make, disk_loop, 0.1, 0}, visited = {visited_make, disk_loop, 0.2, 0},
                         idle = {disk_loop, slow_loop, 0.2, 0}, slow = {slow_make, slow_loop, 0.2, 0},
                         short_epochs = {disk_make, disk_loop, 0.2, 0.2};

enum { SEARCH_S = 60, SLOW_SEARCH_S = 300, LATER_S = 600, BEST_S = 60, SEEDS = 5 };

/* Works with the best rate in the 10 minutes after a search, with few changes in them. */
static void assert_finds_best(const struct work *work, uint32_t first, uint32_t most_changes) {
    double search_s = work == &slow ? SLOW_SEARCH_S : SEARCH_S, later_s = work == &tiny ? SEARCH_S : LATER_S;
    double best = best_rate(work, search_s, search_s + (work == &visited ? LATER_S : BEST_S));
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct run run;
        struct hr_tuner_report report;
        start(&run, work, first, seed);
        run_until(&run, search_s);
        hr_tuner_read(run.tuner, &report);
        mark(&run);
        run_until(&run, search_s + later_s);
        assert_true(rate_after(&run) > 0.95 * best);
        assert_true(report.try_count <= 10);
        assert_true(run.changes_after <= most_changes);
        hr_tuner_close(run.tuner);
    }
}

static void tiny_samples_need_one_worker(void **state) {
    (void)state;
    assert_finds_best(&tiny, 1, 0);
    assert_finds_best(&tiny, 8, 0);
}

/* It tries more once in 10 minutes, because the loop always waits: there and back. */
static void more_workers_than_cores_do_not_help(void **state) {
    (void)state;
    assert_finds_best(&cpu, 1, 2);
    assert_finds_best(&cpu, 8, 2);
}

static void workers_that_wait_for_a_disk_are_many(void **state) {
    (void)state;
    assert_finds_best(&disk, 1, 0);
    assert_finds_best(&disk, 16, 0);
    assert_finds_best(&slow, 4, 0);
}

static void a_trainer_on_both_cores_keeps_them(void **state) {
    (void)state;
    assert_finds_best(&both, 1, 0);
    assert_finds_best(&both, 4, 0);
}

static void fast_workers_are_few(void **state) {
    (void)state;
    assert_finds_best(&idle, 8, 0);
}

static void a_load_that_comes_and_goes_is_followed_seldom(void **state) {
    (void)state;
    assert_finds_best(&visited, 1, 6);
}

static void short_epochs_count_as_a_whole(void **state) {
    (void)state;
    assert_finds_best(&short_epochs, 1, 2);
}

static void a_cache_that_becomes_warm_is_no_gain(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct run run;
        struct hr_tuner_report report;
        start(&run, &warming, 1, seed);
        run_until(&run, SEARCH_S);
        hr_tuner_read(run.tuner, &report);
        assert_int_equal(run.workers, 1);
        assert_int_equal(report.try_count, 3);
        static const enum hr_tuner_state why[] = {HR_TUNER_FIRST, HR_TUNER_MORE, HR_TUNER_AGAIN};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(report.tries[i].why, why[i]);
            assert_int_equal(report.tries[i].is_kept, i != 1);
        }
        assert_true(report.tries[1].batches_per_s > 1.5 * report.tries[0].batches_per_s);
        hr_tuner_close(run.tuner);
    }
}

/* ---- one step at a time ---- */

static hr_tuner *open_tuner(uint32_t first, uint32_t turn, uint32_t turns) {
    struct hr_tuner_options options = {
        .first = first, .most = MOST, .prefetch_factor = PREFETCH, .turn = turn, .turns = turns};
    hr_tuner *tuner = hr_tuner_open(&options);
    assert_non_null(tuner);
    hr_tuner_begin(tuner, 1, 0);
    return tuner;
}

/* Steps of 20 ms, half of which the loop has waited, from `from_s` on; returns what is wanted in the end. */
static uint32_t steps(hr_tuner *tuner, double from_s, double to_s) {
    int64_t from_ns = (int64_t)(from_s * (double)HR_NS_PER_S) + 1, to_ns = (int64_t)(to_s * (double)HR_NS_PER_S);
    for (int64_t now_ns = from_ns; now_ns < to_ns; now_ns += 20 * MS)
        hr_tuner_step(tuner, now_ns, (uint64_t)now_ns / 2);
    return hr_tuner_wanted(tuner);
}

static void nothing_is_decided_in_less_than_a_second(void **state) {
    (void)state;
    hr_tuner *tuner = open_tuner(2, 0, 1);
    assert_int_equal(steps(tuner, 0, 1), 2);
    assert_int_equal(steps(tuner, 1, 2), 4);
    hr_tuner_close(tuner);
}

static void a_number_that_is_not_in_force_is_not_measured(void **state) {
    (void)state;
    hr_tuner *tuner = open_tuner(2, 0, 1);
    struct hr_tuner_report report;
    assert_int_equal(steps(tuner, 0, 100), 4);
    hr_tuner_read(tuner, &report);
    assert_int_equal(report.try_count, 1);
    assert_int_equal(report.changes, 0);
    hr_tuner_close(tuner);
}

static void loaders_take_turns(void **state) {
    (void)state;
    hr_tuner *tuner = open_tuner(2, 1, 3);
    assert_int_equal(steps(tuner, 0, 10), 2);
    assert_int_equal(steps(tuner, 10, 20), 4);
    hr_tuner_close(tuner);
}

static void a_limit_is_never_exceeded(void **state) {
    (void)state;
    hr_tuner *tuner = open_tuner(2, 0, 1);
    assert_int_equal(steps(tuner, 0, 2), 4);
    hr_tuner_limit(tuner, 3);
    assert_int_equal(hr_tuner_wanted(tuner), 3);
    hr_tuner_limit(tuner, 1); /* fewer than the number of now */
    assert_int_equal(hr_tuner_wanted(tuner), 2);
    steps(tuner, 2, 4);
    assert_true(hr_tuner_wanted(tuner) <= 2);
    hr_tuner_close(tuner);
}

static void a_tuner_on_hold_wants_what_is_used(void **state) {
    (void)state;
    hr_tuner *tuner = open_tuner(2, 0, 1);
    steps(tuner, 0, 2);
    hr_tuner_hold(tuner);
    assert_int_equal(hr_tuner_wanted(tuner), 2);
    hr_tuner_use(tuner, 7, 0);
    assert_int_equal(steps(tuner, 2, 100), 7);
    hr_tuner_close(tuner);
}

static void calls_without_a_clock_count(void **state) {
    (void)state;
    hr_tuner *tuner = open_tuner(1, 0, 1);
    struct hr_tuner_report report;
    for (int i = 1; i <= 3000; i++) {
        for (int call = 0; call < 99; call++) hr_tuner_step(tuner, 0, 0);
        hr_tuner_step(tuner, i * MS, 0);
    }
    hr_tuner_read(tuner, &report);
    assert_int_equal(report.try_count, 1);
    assert_true(report.tries[0].batches_per_s > 99000 && report.tries[0].batches_per_s < 101000);
    hr_tuner_close(tuner);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_samples_need_one_worker),
        cmocka_unit_test(more_workers_than_cores_do_not_help),
        cmocka_unit_test(workers_that_wait_for_a_disk_are_many),
        cmocka_unit_test(a_trainer_on_both_cores_keeps_them),
        cmocka_unit_test(fast_workers_are_few),
        cmocka_unit_test(a_load_that_comes_and_goes_is_followed_seldom),
        cmocka_unit_test(short_epochs_count_as_a_whole),
        cmocka_unit_test(a_cache_that_becomes_warm_is_no_gain),
        cmocka_unit_test(nothing_is_decided_in_less_than_a_second),
        cmocka_unit_test(a_number_that_is_not_in_force_is_not_measured),
        cmocka_unit_test(loaders_take_turns),
        cmocka_unit_test(a_limit_is_never_exceeded),
        cmocka_unit_test(a_tuner_on_hold_wants_what_is_used),
        cmocka_unit_test(calls_without_a_clock_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
