/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_SAMPLER_PLANNER_H
#define HR_SAMPLER_PLANNER_H

#include <headrace/sampler.h>

#include <stdlib.h>

/*
 * What the ways to plan share (hr_plan_new in plan.c):
 *
 *     budget.c     limits: windows of the order, sorted by length
 *     buckets.c    buckets of lengths with batch sizes of their own
 *     pack.c       rows of a capacity: how many there are, and which rows form a step
 *     balance.c    fills a number of rows, balanced by cost
 *     best_fit.c   fills as few rows as possible
 *     sort.c       sorts entries by length
 *     arrange.c    deals the batches of a step to ranks, if their sums are balanced
 *     several.c    prepares samples of several lengths; several.h has what plans those
 *
 * An entry is handled as a key: its length in the upper 32 bits, its number in the lower ones. So keys that are sorted
 * are sorted by length, and equal lengths by their place in the order. A key with HR_KEY_REPEAT is an entry that
 * another batch has already.
 */

#define HR_KEY_REPEAT (UINT64_C(1) << 31)

struct hr__batch_cost {
    uint64_t cost;
    int64_t batch;
};

struct hr__several;

struct hr__planner {
    const int32_t *lengths; /* the length of each of `count` entries, borrowed; NULL: they have several */
    int64_t count;
    const struct hr_plan_settings *settings;
    const struct hr_plan_length *names; /* all lengths with their costs, borrowed */
    int64_t name_count;
    const uint32_t *measured;     /* what each entry costs, borrowed; NULL: what its lengths cost */
    struct hr__several *several;  /* borrowed; NULL: entries have one length */
    uint64_t random;              /* state of the generator */
    struct hr_plan *plan;         /* what is made; its entries have room for those that come, and for repeats */
    int64_t start_room;           /* batches that plan->starts has room for */
    int64_t fixed_steps;          /* steps at the end that are not shuffled */
    struct hr__batch_cost *costs; /* room for `cost_room` batches */
    int64_t cost_room;
};

static inline int64_t hr__key_length(uint64_t key) {
    return (int64_t)(key >> 32);
}

/* Returns the entry as a plan contains it. */
static inline int32_t hr__key_entry(uint64_t key) {
    int32_t entry = (int32_t)(key & (HR_KEY_REPEAT - 1));
    return key & HR_KEY_REPEAT ? -1 - entry : entry;
}

static inline uint64_t hr__key_of(const struct hr__planner *planner, int64_t entry) {
    return (uint64_t)planner->lengths[entry] << 32 | (uint64_t)entry;
}

/* Returns what a sample costs. It is never 0, so that samples of length 0 are spread too. */
static inline uint64_t hr__cost_of(const struct hr_plan_settings *settings, int64_t length) {
    uint64_t long_ = (uint64_t)length;
    return 1 + settings->cost_linear * long_ + settings->cost_quadratic * long_ * long_;
}

/* Returns an array of `count` items that are not initialised, or NULL. The caller calls hr__free. */
void *hr__plan_array(int64_t count, size_t item_bytes);

/* Returns how many entries of the order, from `next` on, join those that an earlier window has left over. They are as
 * many as these at least, so that all windows together sort each entry only a few times. */
int64_t hr__plan_window(const struct hr__planner *planner, int64_t next, int64_t left_over);

/* Returns how many samples a batch may have whose longest one has this length, by the buckets. */
int64_t hr__bucket_size(const struct hr_plan_settings *settings, int64_t longest);

/* Returns whether a batch of so many samples keeps all limits. sum: of their lengths, or more. A single sample does. */
bool hr__plan_allows(const struct hr_plan_settings *settings, int64_t rows, int64_t longest, int64_t sum);

/* Adds sorted keys as `batches` batches, a multiple of the width: deals them forwards and backwards in turn, the
 * longest first, and puts batches of similar cost into one step. Batches without an entry repeat one. -ENOMEM. */
int hr__plan_deal(struct hr__planner *planner, const uint64_t *sorted, int64_t count, int64_t batches);

/* Adds the sorted keys that did not fill a step as the last steps, as few as keep the limits, or leaves them out.
 * -ENOMEM. */
int hr__plan_tail(struct hr__planner *planner, const uint64_t *sorted, int64_t count);

/* Sorts planner->costs[0..count-1] by falling cost. */
void hr__plan_sort_costs(struct hr__planner *planner, int64_t count);

/* Makes an array at least as large as needed, and leaves it as it is if it is. -ENOMEM. */
int hr__plan_grow(void **array, int64_t *room, int64_t needed, size_t item_bytes);

/* Checks the settings that do not depend on the lengths, and the number of samples. -EINVAL. */
int hr__plan_check_common(const struct hr_plan_settings *settings, int64_t count);

/* Makes a plan. prepared: 0, or an error that is passed on. Sets the message. -ENOMEM. */
int hr__plan_make(struct hr__planner *planner, int prepared, struct hr_plan **ret_plan);

/* Deals the batches of each step to settings->ranks ranks, so that the sums of these are balanced (arrange.c).
 * -ENOMEM. */
int hr__plan_arrange(struct hr__planner *planner);

/* Makes room for costs and starts of `batches` more batches. -ENOMEM. */
int hr__plan_reserve(struct hr__planner *planner, int64_t batches);

/* Ends the batch whose entries were appended. hr__plan_reserve has made room. If it has none, it repeats an entry. */
void hr__plan_end_batch(struct hr__planner *planner);

/* The three ways to plan. -ENOMEM. */
int hr__plan_budget(struct hr__planner *planner);
int hr__plan_buckets(struct hr__planner *planner);
int hr__plan_pack(struct hr__planner *planner);

/* Sorts keys (sort.c). `other` has room for as many. */
void hr__sort_keys(uint64_t *keys, int64_t count, uint64_t *other);

/* ---- rows of a capacity ---- */

/* Rows that are filled. row_of[i] is the row of key i, or -1. */
struct hr__rows {
    int64_t count;     /* number of rows */
    int64_t capacity;  /* what a row has room for */
    int64_t max_batch; /* samples of a row; 0: no limit */
    int32_t *row_of;   /* the row of each key */
};

/* Gives each key, the longest first, to the row of least cost that has room (balance.c). Returns how many keys no row
 * has room for, or -ENOMEM. */
int64_t hr__fill_balanced(const struct hr_plan_settings *settings, const uint64_t *sorted, int64_t count,
                          struct hr__rows *rows);

/* Gives each key, the longest first, to the row with the least room that suffices, and opens a row if no row has that
 * room (best_fit.c). Sets rows->count, or returns -ENOMEM. */
int hr__fill_best_fit(const uint64_t *sorted, int64_t count, struct hr__rows *rows);

#endif
