/* SPDX-License-Identifier: Apache-2.0 */
/* Times the batches and samples of a worker. */
#include <headrace/face/show.h>

#include <stdbool.h>

#include "timing.h"

#include "os/os.h"

enum {
    LONG_NS = 100000,       /* batches from here on are all timed, */
    LONG_SAMPLE_NS = 12000, /* and samples from here on */
    SHARE = 200,            /* the part of the time that clocks may take: 1/SHARE, 0.5 % */
    READS = 3,              /* of a clock in a batch */
    MOST_LEFT = 1023,
    GUARD_NS = 20000000, /* at most so long no batch is timed */
};

static void add(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) + value, memory_order_relaxed);
}

static void store(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_relaxed);
}

void hr__timing_open(struct hr__timing *timing, struct hr__sight *sight) {
    *timing = (struct hr__timing){.sight = sight};
    timing->number = atomic_load_explicit(&sight->batch_count, memory_order_relaxed);
    store(&sight->index, 0);
}

static uint32_t bucket_of(uint64_t ns) {
    uint32_t bucket = ns ? 63 - (uint32_t)__builtin_clzll(ns) : 0;
    return bucket < HR_LOOK_BUCKETS ? bucket : HR_LOOK_BUCKETS - 1;
}

static void count_time(struct hr__shown_times *times, uint64_t ns, uint64_t index, uint64_t weight) {
    add(&times->buckets[bucket_of(ns)], weight);
    add(&times->sum_ns, ns * weight);
    if (ns <= atomic_load_explicit(&times->worst_ns, memory_order_relaxed)) return;
    store(&times->worst_ns, ns);
    store(&times->worst_index, index);
    hr__stop_at(HR__AT_TIMING_TIME);
}

void hr__timing_take(struct hr__timing *timing, int64_t coarse_ns) {
    timing->is_timed = timing->times_samples = false;
    timing->sample_index = 0;
    store(&timing->sight->index, 0);
    if (timing->left && coarse_ns - timing->timed_ns < GUARD_NS) {
        timing->left--;
        timing->untimed++;
        timing->samples_untimed++;
        return;
    }
    timing->is_timed = true;
    timing->times_samples = timing->samples_left == 0;
    if (!timing->times_samples) timing->samples_left--;
    timing->collate_ns = timing->sample_began_ns = 0;
    timing->sample_count = timing->slowest_ns = timing->slowest_index = 0;
    timing->began_ns = hr__now_ns();
}

/* index: plus 1; 0: of none. */
static void count_sample(struct hr__timing *timing, uint64_t index, uint64_t ns) {
    timing->sample_count++;
    count_time(&timing->sight->samples, ns, index - 1, 1 + timing->samples_untimed);
    if (ns <= timing->slowest_ns) return;
    timing->slowest_ns = ns;
    timing->slowest_index = index;
}

static void end_sample(struct hr__timing *timing, int64_t now_ns) {
    if (!timing->sample_began_ns) return;
    uint64_t ns = (uint64_t)(now_ns - timing->sample_began_ns);
    timing->sample_began_ns = 0;
    count_sample(timing, timing->sample_index, ns);
}

void hr__timing_count_sample(struct hr__timing *timing, uint64_t index, uint64_t took_ns) {
    if (timing->times_samples) count_sample(timing, index + 1, took_ns);
}

void hr__timing_show_sample(struct hr__timing *timing, uint64_t index) {
    store(&timing->sight->index, index + 1); /* 0 for HR_NO_SAMPLE */
    hr__stop_at(HR__AT_TIMING_INDEX);
}

void hr__timing_sample(struct hr__timing *timing, uint64_t index) {
    hr__timing_show_sample(timing, index);
    if (timing->times_samples) {
        int64_t now_ns = hr__now_ns();
        end_sample(timing, now_ns);
        timing->sample_began_ns = now_ns;
    }
    timing->sample_index = index + 1;
}

void hr__timing_no_sample(struct hr__timing *timing) {
    if (timing->times_samples && timing->sample_began_ns) end_sample(timing, hr__now_ns());
    timing->sample_index = 0;
    store(&timing->sight->index, 0);
}

void hr__timing_collate(struct hr__timing *timing) {
    if (!timing->is_timed || timing->collate_ns) return;
    timing->collate_ns = hr__now_ns();
    end_sample(timing, timing->collate_ns);
}

static uint64_t mean(uint64_t before, uint64_t ns) {
    return before ? (3 * before + ns) / 4 : ns;
}

/* How many are left out after one that was timed, so that the clock is read for a small part of the time. */
static uint32_t left_after(uint64_t ns, uint64_t long_ns, uint64_t reads) {
    if (ns >= long_ns) return 0;
    return (uint32_t)hr__min(reads * hr__clock_cost_ns() * SHARE / hr__max(ns, 1), MOST_LEFT);
}

static void learn(struct hr__timing *timing, uint64_t fetch_ns, uint64_t all_ns, int64_t coarse_ns) {
    timing->batch_ns = mean(timing->batch_ns, all_ns);
    timing->left = left_after(timing->batch_ns, LONG_NS, READS);
    timing->untimed = 0;
    timing->timed_ns = coarse_ns;
    if (!timing->times_samples) {
        timing->samples_untimed++;
        return;
    }
    timing->samples_untimed = 0;
    if (!timing->sample_count) return;
    timing->sample_ns = mean(timing->sample_ns, fetch_ns / timing->sample_count);
    /* One in n batches, of which one in `left + 1` is timed. */
    timing->samples_left = left_after(timing->sample_ns, LONG_SAMPLE_NS, 1) / (timing->left + 1);
}

static void show_batch(struct hr__timing *timing, uint64_t task, uint64_t bytes, uint64_t fetch_ns,
                       uint64_t collate_ns) {
    uint64_t number = ++timing->number;
    struct hr__shown_batch *batch = &timing->sight->batches[number % HR__SIGHT_BATCHES];
    store(&batch->number, 0);
    atomic_thread_fence(memory_order_release); /* with the two reads in look.c */
    store(&batch->task, task);
    store(&batch->began_ns, (uint64_t)timing->began_ns);
    store(&batch->fetch_ns, fetch_ns);
    store(&batch->collate_ns, collate_ns);
    store(&batch->bytes, bytes);
    store(&batch->slowest_index, timing->slowest_index);
    store(&batch->slowest_ns, timing->slowest_ns);
    hr__stop_at(HR__AT_TIMING_BATCH);
    atomic_store_explicit(&batch->number, number, memory_order_release); /* pairs with take_batch in look.c */
    atomic_store_explicit(&timing->sight->batch_count, number, memory_order_release);
}

void hr__timing_publish(struct hr__timing *timing, uint64_t task, uint64_t bytes, int64_t coarse_ns) {
    if (!timing->is_timed) return;
    int64_t now_ns = hr__now_ns();
    int64_t collate_ns = timing->collate_ns ? timing->collate_ns : now_ns;
    end_sample(timing, collate_ns);
    uint64_t fetch_ns = (uint64_t)(collate_ns - timing->began_ns), rest_ns = (uint64_t)(now_ns - collate_ns);
    count_time(&timing->sight->collates, rest_ns, HR_NO_SAMPLE, 1 + timing->untimed);
    show_batch(timing, task, bytes, fetch_ns, rest_ns);
    learn(timing, fetch_ns, fetch_ns + rest_ns, coarse_ns);
    timing->is_timed = timing->times_samples = false;
}

double hr_times_quantile_ns(const uint64_t buckets[HR_LOOK_BUCKETS], double share) {
    const double middle = 1.4142135623730951; /* between two powers of two */
    double all = 0, seen = 0;
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) all += (double)buckets[i];
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) {
        seen += (double)buckets[i];
        if (buckets[i] && seen >= share * all) return (double)(UINT64_C(1) << i) * middle;
    }
    return 0;
}
