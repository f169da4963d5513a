/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_SAMPLER_SEVERAL_H
#define HR_SAMPLER_SEVERAL_H

#include "planner.h"

/*
 * Plans of samples that have several lengths (hr_plan_new_several in several.c):
 *
 *     pool.c       fills batches, one after the other, from a pool of samples
 *     steps.c      makes steps of these batches, so that those of a step cost about the same
 *     tail.c       deals the samples that do not suffice for a step
 *     exchange.c   exchanges samples between batches until they cost about the same
 *     batches.c    batches that are still changed
 *
 * Samples are compared by shares of limits, which are whole numbers: HR_SHARE_ONE is all of a limit.
 */

enum { HR_SHARE_BITS = 14, HR_SHARE_ONE = 1 << HR_SHARE_BITS, HR_LIMITS_MAX = 2 * HR_PLAN_LENGTHS_MAX };

/* A limit of the batches for one of the lengths: of the sum, or of the longest one times the number of samples. */
struct hr__limit {
    const int32_t *lengths; /* of each entry, borrowed */
    int64_t most;
    bool is_padded;
};

/* A batch that is still changed. Its entries are a list (struct hr__batches), and perhaps a repeat. */
struct hr__batch {
    uint64_t cost;
    int64_t used[HR_LIMITS_MAX];  /* by limit: the sum, or a length that no sample exceeds */
    int16_t rooms[HR_LIMITS_MAX]; /* by limit: which share of it is left for one more sample, or -1 if none is */
    int32_t count;                /* with the repeat */
    int32_t first;                /* the first entry, or -1 */
    int32_t repeat;               /* an entry that another batch has already, or -1 */
    bool is_passed_over;          /* for exchange.c */
};

struct hr__batches {
    struct hr__batch *at;
    int64_t count, room;
    int32_t *next; /* by entry: the next one of its batch, or -1 */
};

/* The samples: their limits and costs. */
struct hr__several {
    struct hr__limit limits[HR_LIMITS_MAX]; /* the first `compared` of them are compared sample by sample */
    int limit_count, compared;
    const struct hr__limit *main; /* the padded limit that samples are sorted by, or NULL; it is the last one */
    bool has_rows;                /* limits are capacities of rows */
    bool is_sorted;               /* a window is sorted, so that the samples of a batch are similar */
    uint64_t *costs;              /* of each entry */
    int32_t *sorted_by;           /* by what, of each entry: a length or the cost */
    struct hr__batches batches;
};

/* Returns which share of a limit a length is, rounded down, and at most HR_SHARE_ONE. */
static inline int16_t hr__share_of(int64_t length, int64_t most) {
    if (length >= most) return HR_SHARE_ONE;
    if (length < INT64_C(1) << (62 - HR_SHARE_BITS)) return (int16_t)((length << HR_SHARE_BITS) / most);
    return (int16_t)(length / (most >> HR_SHARE_BITS)); /* both are so large that this is as exact */
}

/* ---- batches.c ---- */

/* Allocates the links for `entries` entries. -ENOMEM. hr__batches_free frees all, also after an error. */
int hr__batches_new(int64_t entries, struct hr__batches *ret_batches);
void hr__batches_free(struct hr__batches *batches);

/* Sets the number of batches; new ones are empty. -ENOMEM. */
int hr__batches_resize(const struct hr__planner *planner, struct hr__batches *batches, int64_t count);

/* Makes a batch empty. */
void hr__batch_clear(const struct hr__planner *planner, struct hr__batch *batch);

/* Computes the rooms of a batch after it has changed. */
void hr__batch_note_rooms(const struct hr__planner *planner, struct hr__batch *batch);

/* Returns whether a batch keeps all limits with one more entry. An empty batch does. */
bool hr__batch_allows(const struct hr__planner *planner, const struct hr__batch *batch, int64_t entry);

/* Returns whether a batch has nearly reached a limit. */
bool hr__batch_is_full(const struct hr__planner *planner, const struct hr__batch *batch);

/* Adds an entry to a batch, whatever the limits are. */
void hr__batch_put(const struct hr__planner *planner, struct hr__batches *batches, int64_t batch, int64_t entry);

/* Adds an entry that another batch has, as the repeat of a batch. */
void hr__batch_repeat(const struct hr__planner *planner, struct hr__batches *batches, int64_t batch, int64_t entry);

/* Sorts `count` batches from `first` on by falling cost. */
void hr__batches_sort(struct hr__batches *batches, int64_t first, int64_t count);

/* Appends all batches to the plan. A batch that is empty repeats an entry. -ENOMEM. */
int hr__batches_append(struct hr__planner *planner, const struct hr__batches *batches);

/* ---- exchange.c ---- */

/* Evens out the costs of `count` batches from `first` on, within the limits: batches exchange entries, and if
 * may_move is true, an entry may move to another batch too. */
void hr__exchange(const struct hr__planner *planner, struct hr__batches *batches, int64_t first, int64_t count,
                  bool may_move);

/* Moves one entry from a batch that has several to an empty one, so that the costs of the two differ least. */
void hr__exchange_fill(const struct hr__planner *planner, struct hr__batches *batches, int64_t from, int64_t empty);

/* ---- the parts of a plan ---- */

/* Plans all entries: hr__pool_fill, and then what hr__steps_make says. -ENOMEM. */
int hr__several_plan(struct hr__planner *planner);

/* Fills batches with all entries (pool.c). The last one may have much room left. -ENOMEM. */
int hr__pool_fill(struct hr__planner *planner, struct hr__batches *batches);

/* Makes steps of the batches, and adds them to the plan (steps.c). Those that do not suffice for a step are left in
 * the batches, unless they are rows: rows are made until their number is a multiple of the width. -ENOMEM. */
int hr__steps_make(struct hr__planner *planner, struct hr__batches *batches);

/* Adds the entries of some batches as the last steps, as few as keep the limits, or leaves them out (tail.c). -ENOMEM.
 */
int hr__tail_make(struct hr__planner *planner, struct hr__batches *batches);

#endif
