/* SPDX-License-Identifier: Apache-2.0 */
/* The times of a worker for observers. */
#ifndef HR_ARENA_TIMING_H
#define HR_ARENA_TIMING_H

#include <stdbool.h>

#include "shown.h"

/*
 * What a worker shows to observers about times: histograms, and its last batches. The port calls it.
 *
 * A clock takes 25 to 120 ns, and the smallest batch 2 us. So a batch is timed if that takes at most 0.5 % of its time,
 * or if it takes 100 us or more; of shorter batches one in n, which counts n times. The samples of a batch are timed by
 * the same rule, each from 12 us on.
 */
struct hr__timing {
    struct hr__sight *sight;
    uint64_t batch_ns; /* means of those that were timed; 0: none yet */
    uint64_t sample_ns;
    uint32_t left; /* batches that are not timed before the next one that is */
    uint32_t untimed;
    uint32_t samples_left;    /* timed batches whose samples are not timed */
    uint32_t samples_untimed; /* batches since the last one whose samples were */
    bool is_timed;
    bool times_samples;
    int64_t timed_ns; /* the end of the last one that was timed, by the coarse clock */
    int64_t began_ns;
    int64_t collate_ns; /* when collating began; 0: not yet */
    int64_t sample_began_ns;
    uint64_t sample_index; /* plus 1; 0: of none */
    uint64_t sample_count;
    uint64_t slowest_ns;
    uint64_t slowest_index;
    uint64_t number;
};

void hr__timing_open(struct hr__timing *timing, struct hr__sight *sight);
/* A task was taken. coarse_ns: the time by the coarse clock. */
void hr__timing_take(struct hr__timing *timing, int64_t coarse_ns);
/* The worker begins with a sample; index HR_NO_SAMPLE: it is not known. */
void hr__timing_sample(struct hr__timing *timing, uint64_t index);
/* Shows the index to observers, and times nothing. Any thread may call it, one at a time. */
void hr__timing_show_sample(struct hr__timing *timing, uint64_t index);
/* Counts a sample of this batch that another thread has made. */
void hr__timing_count_sample(struct hr__timing *timing, uint64_t index, uint64_t took_ns);
/* The worker has no sample in hand any more. */
void hr__timing_no_sample(struct hr__timing *timing);
void hr__timing_collate(struct hr__timing *timing);
void hr__timing_publish(struct hr__timing *timing, uint64_t task, uint64_t bytes, int64_t coarse_ns);

#endif
