/* SPDX-License-Identifier: Apache-2.0 */
/* The indices of a mixture by position. Called by order.c. */
#include "feistel.h"
#include "mixture.h"

/* The results are part of saved states: a change of this file that changes them needs another ALGORITHM of
 * headrace.Mixture (sampling/_mixture_algorithm.py). */

enum { RUN = HR_MIXTURE_RUN, HALF = 8, HALF_BITS = 3, WORDS = 4 };

/* ---- the shuffle within a run ---- */

/* A run of positions of the epoch. `cycle` and `turn` are where it begins in the walk, which has the period again and
 * again. */
struct run {
    int64_t number, cycle;
    uint32_t turn, size;
    uint64_t words[WORDS];
};

static struct run begin_run(const struct hr_mixture *mixture, int64_t number) {
    struct run run = {.number = number, .size = RUN};
    int64_t first = number * RUN, walk = mixture->walk + first;
    if (mixture->length - first < RUN) run.size = (uint32_t)(mixture->length - first);
    run.cycle = walk / mixture->period;
    run.turn = (uint32_t)(walk % mixture->period);
    uint64_t state = hr__mixed_seed(mixture->run_key, (uint64_t)number);
    for (int i = 0; i < WORDS; i++) run.words[i] = hr__random_next(&state);
    return run;
}

/* Permutes 0..63 by eight rounds of a Feistel cipher with halves of 0..7. The function of a round is a table of eight
 * random numbers of three bits; each word has two tables. */
static inline uint32_t encrypt(const struct run *run, uint32_t number) {
    uint32_t left = number % HALF, right = number / HALF;
    for (int i = 0; i < WORDS; i++) {
        uint64_t word = run->words[i];
        left = (left + (uint32_t)(word >> (HALF_BITS * right))) % HALF;
        right = (right + (uint32_t)(word >> (HALF_BITS * (HALF + left)))) % HALF;
    }
    return left + HALF * right;
}

/* The last run of an epoch may have fewer than 64 positions: it is walked as a stream order is. */
static inline uint32_t place_in(const struct run *run, uint32_t number) {
    do number = encrypt(run, number);
    while (number >= run->size);
    return number;
}

/* ---- the sample of a position ---- */

/* A sample by its source, and by how many of the source come before it in the walk. */
struct place {
    uint32_t source;
    int64_t number;
};

/* The sample of a turn of the run, from 0 to size - 1. */
static inline struct place place_of(const struct hr_mixture *mixture, const struct run *run, uint32_t turn) {
    uint32_t at = run->turn + turn;
    bool is_next = at >= mixture->period; /* the period is not shorter than a run */
    struct hr__turn found = mixture->turns[is_next ? at - mixture->period : at];
    return (struct place){found.source, (run->cycle + is_next) * mixture->sources[found.source].share + found.number};
}

/* Returns true if a pass of the source ends before the last sample that the run has of it, and the number of the first
 * one. */
static bool has_pass_end(const struct hr_mixture *mixture, const struct run *run, uint32_t source, int64_t *ret_first) {
    int64_t first = -1, last = -1, size = mixture->sources[source].size;
    for (uint32_t turn = 0; turn < run->size; turn++) {
        struct place place = place_of(mixture, run, turn);
        if (place.source != source) continue;
        if (first < 0) first = place.number;
        last = place.number;
    }
    *ret_first = first;
    return first / size != last / size;
}

/* A sample must not come again before all others of its pass have come. So the samples that a run has of a source are
 * not shuffled among each other if a pass of the source ends within it. */
static struct place keep_order(const struct hr_mixture *mixture, const struct run *run, uint32_t number,
                               struct place place) {
    int64_t first;
    if (!has_pass_end(mixture, run, place.source, &first)) return place;
    for (uint32_t i = 0; i < number; i++) first += place_of(mixture, run, place_in(run, i)).source == place.source;
    return (struct place){place.source, first};
}

/* The sample of a position of the run. */
static inline struct place sample_at(const struct hr_mixture *mixture, const struct run *run, uint32_t number) {
    struct place place = place_of(mixture, run, place_in(run, number));
    int64_t size = mixture->sources[place.source].size, at = place.number - mixture->sources[place.source].pass_begin;
    if (__builtin_expect(at >= size, 0)) at %= size;
    bool is_inside = at >= RUN && at < size - RUN; /* the run has no other pass */
    return __builtin_expect(is_inside, 1) ? place : keep_order(mixture, run, number, place);
}

/* ---- the order of a source ---- */

void hr__mixed_keys(const struct hr__mixed *source, int64_t pass, uint64_t *ret_keys) {
    uint64_t state = hr__mixed_seed(source->key, (uint64_t)pass);
    for (int i = 0; i < source->rounds; i++) ret_keys[i] = hr__random_next(&state);
}

/* A sample on its way: number `at` of its pass, which is encrypted by `keys`. What is added to the result. */
struct lane {
    const struct hr__mixed *source;
    const uint64_t *keys;
    struct hr__halves at;
    int64_t added;
    uint64_t later_keys[HR_FEISTEL_MOST_ROUNDS];
};

/* A division of 32 bits takes a third of the time. */
static inline struct hr__halves split(const struct hr__mixed *source, uint64_t number) {
    if ((number | source->left) <= UINT32_MAX)
        return (struct hr__halves){(uint32_t)number % (uint32_t)source->left,
                                   (uint32_t)number / (uint32_t)source->left};
    return (struct hr__halves){number % source->left, number / source->left};
}

static void begin_later_pass(const struct hr_mixture *mixture, struct lane *lane, int64_t place) {
    const struct hr__mixed *source = lane->source;
    int64_t passes = place / source->size;
    hr__mixed_keys(source, source->first_pass + passes, lane->later_keys);
    lane->keys = lane->later_keys;
    lane->added += passes * mixture->total;
    lane->at = split(source, (uint64_t)(place % source->size));
}

static inline void begin_lane(const struct hr_mixture *mixture, const struct run *run, uint32_t number,
                              struct lane *lane) {
    struct place sample = sample_at(mixture, run, number);
    const struct hr__mixed *source = &mixture->sources[sample.source];
    int64_t place = sample.number - source->pass_begin;
    lane->source = source;
    lane->keys = source->keys;
    lane->added = source->first_index;
    if (__builtin_expect(place >= source->size, 0))
        begin_later_pass(mixture, lane, place);
    else
        lane->at = split(source, (uint64_t)place);
}

/* Encrypts several samples in turn, round by round: the rounds of one depend on each other, and the processor would
 * wait for each of them. All sources have so many rounds at least. */
enum { LANES = 8, FIRST_ROUNDS = HR_STREAM_ROUNDS };

static inline void do_first_rounds(struct lane *lanes, int count) {
    for (int i = 0; i < FIRST_ROUNDS; i += 2)
        for (int k = 0; k < count; k++) {
            const struct hr__mixed *source = lanes[k].source;
            lanes[k].at = hr__feistel(source->left, source->right, lanes[k].keys + i, 2, lanes[k].at);
        }
}

/* Does the other rounds, and all rounds again while the result is no sample of the source. */
static inline int64_t finish(const struct lane *lane) {
    const struct hr__mixed *source = lane->source;
    struct hr__halves at = lane->at;
    int done = FIRST_ROUNDS;
    for (;;) {
        at = hr__feistel(source->left, source->right, lane->keys + done, source->rounds - done, at);
        uint64_t found = at.left + source->left * at.right;
        if (__builtin_expect(found < (uint64_t)source->size, 1)) return lane->added + (int64_t)found;
        done = 0;
    }
}

int64_t hr__mixture_at(const struct hr_mixture *mixture, int64_t position) {
    struct run run = begin_run(mixture, position / RUN);
    struct lane lane;
    begin_lane(mixture, &run, (uint32_t)(position % RUN), &lane);
    do_first_rounds(&lane, 1);
    return finish(&lane);
}

void hr__mixture_fill(const struct hr_mixture *mixture, uint64_t first, uint64_t step, int64_t count,
                      int64_t *ret_indices) {
    uint64_t length = (uint64_t)mixture->length, position = first;
    struct run run = {.number = -1};
    struct lane lanes[LANES];
    for (int64_t i = 0; i < count; i += LANES) {
        int used = count - i < LANES ? (int)(count - i) : LANES;
        for (int k = 0; k < used; k++) {
            int64_t number = (int64_t)(position / RUN);
            if (number != run.number) run = begin_run(mixture, number);
            begin_lane(mixture, &run, (uint32_t)(position % RUN), &lanes[k]);
            position += step;
            if (position >= length) position -= length;
        }
        do_first_rounds(lanes, used);
        for (int k = 0; k < used; k++) ret_indices[i + k] = finish(&lanes[k]);
    }
}
