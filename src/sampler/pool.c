/* SPDX-License-Identifier: Apache-2.0 */
#include "several.h"

#include "base/alloc.h"
#include "base/base.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * Fills batches with samples of several lengths, one batch after the other. A batch begins with the first sample of a
 * pool. Then it gets, of all samples that it has room for, the one with the largest scalar product of what is left of
 * the batch and what the sample needs: a sample that is large where much room is left (Panigrahy et al., "Heuristics
 * for Vector Bin Packing", 2011). A limit counts in it as much as the samples of the pool need of it, so that the limit
 * that is scarce is used up.
 *
 * The pool is a part of the order, and it is sorted: the sample that needs the largest share of a limit is the first
 * one. If a length is padded, or if only the number of samples is limited, a window of the order is sorted by that
 * length or by cost, and the pool moves over it, so that the samples of a batch are similar. A sample that is much
 * shorter than the padded length of its batch does not join it, although the pool has such samples: those that are
 * chosen late stay until they are much longer than new ones. The pool is filled up as soon as a part of it is used,
 * because a batch needs small samples to choose from as well as large ones. A batch that is not nearly full gives its
 * samples back: they wait until the pool is filled up. So few batches are left half empty, and only at the end.
 *
 * The samples are compared by shares of 14 bits, a few instructions for many samples at a time. Shares are rounded
 * down, so a sample that fits is never left out; the lengths of the one that is found are compared exactly.
 */

enum {
    POOL = 2048,          /* samples that a batch chooses from, if there is no window */
    POOL_OF_SORTED = 512, /* the same in a sorted window */
    KEPT_PARTS = 4,       /* the pool is filled up when one of so many parts is used */
    NEAR_PARTS = 8,       /* where a length is padded, a sample may be shorter by one of so many parts, */
    NEAR_TRIES = 2,       /* and if none is left, by that part once more */
    WEIGHT_BITS = 8,
    BLOCK = 64,       /* samples that are compared at a time */
    GONE = INT16_MAX, /* the share of a sample that is in a batch, more than any room */
};

/* Sorted keys: an entry below a number that is the smaller, the sooner the entry comes. */
struct keys {
    uint64_t *at;
    int64_t first, end;
};

struct pool {
    struct hr__planner *planner;
    struct hr__batches *batches;
    int64_t size, next;   /* how many samples it should have; the next entry of the order */
    struct keys keys;     /* by place */
    struct keys window;   /* if it is sorted: what comes into the pool next */
    uint64_t *other;      /* room to sort */
    int64_t left, picked; /* samples that are in no batch; that went into batches since it was filled up */
    int32_t *waiting;     /* entries that batches gave back */
    int64_t waiting_count;
    int16_t *shares[HR_LIMITS_MAX]; /* by place, GONE up to the end of a block */
    int32_t weights[HR_LIMITS_MAX];
};

/* The room of a batch, and how much each limit counts. */
struct search {
    int16_t room[HR_LIMITS_MAX];
    int16_t wanted[HR_LIMITS_MAX];
};

static int32_t entry_at(const struct pool *pool, int64_t place) {
    return (int32_t)(uint32_t)pool->keys.at[place];
}

/* ---- finding a sample ---- */

static inline int32_t score_of(int16_t *const *shares, int64_t place, const struct search *search, int limits) {
    int32_t score = 0;
    int fits = 1;
    for (int i = 0; i < limits; i++) {
        score += (int32_t)shares[i][place] * search->wanted[i];
        fits &= shares[i][place] <= search->room[i];
    }
    return fits ? score : -1;
}

/* Returns the first place with the best score, or -1 if no sample fits. Called with a constant number of limits, so
 * that the loop over a block becomes vector instructions. */
static inline int64_t best_of(int16_t *const *shares, int64_t first, int64_t end, const struct search *search,
                              int limits) {
    int64_t best_block = -1;
    int32_t best = -1;
    for (int64_t block = first; block < end; block += BLOCK) {
        int32_t most = -1;
        for (int64_t i = block; i < block + BLOCK; i++) {
            int32_t score = score_of(shares, i, search, limits);
            most = score > most ? score : most;
        }
        if (most > best) {
            best = most;
            best_block = block;
        }
    }
    for (int64_t i = best_block; i >= 0; i++)
        if (score_of(shares, i, search, limits) == best) return i;
    return -1;
}

static int64_t find_place(const struct pool *pool, const struct search *search, int64_t end) {
    int64_t first = pool->keys.first / BLOCK * BLOCK;
    int limits = pool->planner->several->compared;
    if (limits == 1) return best_of(pool->shares, first, end, search, 1);
    if (limits == 2) return best_of(pool->shares, first, end, search, 2);
    if (limits == 3) return best_of(pool->shares, first, end, search, 3);
    if (limits == 4) return best_of(pool->shares, first, end, search, 4);
    return best_of(pool->shares, first, end, search, limits);
}

/* Does the same as find_place with the lengths themselves, for the rare case that the best sample is longer than the
 * room by less than a share can tell. */
static int64_t find_exactly(const struct pool *pool, const struct hr__batch *batch, const struct search *search,
                            int64_t end) {
    int64_t found = -1;
    int32_t best = -1;
    for (int64_t i = pool->keys.first; i < end; i++) {
        int32_t score = score_of(pool->shares, i, search, pool->planner->several->compared);
        if (score <= best || !hr__batch_allows(pool->planner, batch, entry_at(pool, i))) continue;
        best = score;
        found = i;
    }
    return found;
}

/* Does find_place for the samples before `end`, and compares exactly. */
static int64_t find_before(const struct pool *pool, const struct hr__batch *batch, const struct search *search,
                           int64_t end) {
    int64_t place = find_place(pool, search, end);
    if (place < 0 || hr__batch_allows(pool->planner, batch, entry_at(pool, place))) return place;
    return find_exactly(pool, batch, search, end);
}

/* Returns where the samples end whose padded length is `least` or more, or a little later, at the end of a block. */
static int64_t find_end(const struct pool *pool, int64_t least) {
    int64_t low = pool->keys.first, high = pool->keys.end;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (INT32_MAX - (int64_t)(pool->keys.at[middle] >> 32) >= least)
            low = middle + 1;
        else
            high = middle;
    }
    low = (low + BLOCK - 1) / BLOCK * BLOCK;
    return low < pool->keys.end ? low : pool->keys.end;
}

/* Returns whether there are samples that are not in the pool yet. */
static bool has_more(const struct pool *pool) {
    return pool->next < pool->planner->count || pool->window.first < pool->window.end;
}

/* Does find_before for samples whose padded length is near that of the longest one of the batch. When there are no more
 * samples, it is better to pad than to leave a batch half empty. */
static int64_t find_near(const struct pool *pool, const struct hr__batch *batch, const struct search *search) {
    int64_t place = -1, least = batch->used[pool->planner->several->limit_count - 1];
    bool may_be_far = !has_more(pool) && !hr__batch_is_full(pool->planner, batch);
    for (int i = 0; place < 0 && least >= 0 && (i < NEAR_TRIES || may_be_far); i++) {
        least -= least / NEAR_PARTS + 1;
        place = find_before(pool, batch, search, find_end(pool, least));
    }
    return place;
}

/* Returns the place of the sample that a batch gets next, or -1. */
static int64_t find_next(const struct pool *pool, const struct hr__batch *batch) {
    const struct hr__several *several = pool->planner->several;
    struct search search = {{0}, {0}};
    if (batch->count == pool->planner->settings->max_batch) return -1;
    for (int i = 0; i < several->limit_count; i++)
        if (batch->rooms[i] < 0) return -1;
    for (int i = 0; i < several->compared; i++) {
        search.room[i] = batch->rooms[i];
        search.wanted[i] = (int16_t)(batch->rooms[i] * pool->weights[i] >> WEIGHT_BITS);
    }
    return several->main ? find_near(pool, batch, &search) : find_before(pool, batch, &search, pool->keys.end);
}

/* ---- the pool ---- */

/* Returns the key of an entry in a pool that is not from a sorted window: those that need a larger share of a capacity
 * are first, and equal ones as in the order. */
static uint64_t key_by_share(const struct hr__several *several, int64_t entry) {
    int64_t largest = 0;
    for (int i = 0; i < several->compared; i++) {
        int64_t capacity = several->limits[i].most, length = several->limits[i].lengths[entry];
        int64_t share = length < capacity ? length * HR_PLAN_PACK_MAX / capacity : HR_PLAN_PACK_MAX;
        if (share > largest) largest = share;
    }
    return (uint64_t)(HR_PLAN_PACK_MAX - largest) << 32 | (uint64_t)entry;
}

static uint64_t key_of(const struct hr__several *several, int64_t entry) {
    if (!several->is_sorted) return key_by_share(several, entry);
    return (uint64_t)(INT32_MAX - several->sorted_by[entry]) << 32 | (uint64_t)entry;
}

/* Moves the samples that are in no batch to the front. */
static void close_gaps(struct pool *pool) {
    int64_t count = 0;
    for (int64_t i = pool->keys.first; i < pool->keys.end; i++)
        if (pool->shares[0][i] != GONE) pool->keys.at[count++] = pool->keys.at[i];
    pool->keys.first = 0;
    pool->keys.end = count;
}

/* Notes the shares of the samples, in the order of the keys. */
static void note_shares(struct pool *pool) {
    const struct hr__several *several = pool->planner->several;
    for (int k = 0; k < several->compared; k++) {
        const struct hr__limit *limit = &several->limits[k];
        int16_t *shares = pool->shares[k];
        int64_t i = 0, end = pool->keys.end;
        for (; i < end; i++) shares[i] = hr__share_of(limit->lengths[entry_at(pool, i)], limit->most);
        for (; i < (end + BLOCK - 1) / BLOCK * BLOCK; i++) shares[i] = GONE;
    }
}

/* Sets how much a limit counts: as much as the samples of the pool need of it. */
static void weigh(struct pool *pool) {
    int limits = pool->planner->several->compared;
    int64_t sums[HR_LIMITS_MAX] = {0}, sum = 1;
    for (int k = 0; k < limits; k++) {
        for (int64_t i = 0; i < pool->keys.end; i++) sums[k] += pool->shares[k][i];
        sum += sums[k];
    }
    for (int k = 0; k < limits; k++) pool->weights[k] = (int32_t)((sums[k] << WEIGHT_BITS) / sum);
}

/* Sorts the next window of the order, together with the samples that the pool still has. */
static void begin_window(struct pool *pool) {
    const struct hr__planner *planner = pool->planner;
    int64_t count = hr__plan_window(planner, pool->next, pool->keys.end), end = pool->keys.end;
    memcpy(pool->window.at, pool->keys.at, (size_t)end * sizeof *pool->keys.at);
    for (; count > 0; count--) pool->window.at[end++] = key_of(planner->several, pool->next++);
    pool->window.first = 0;
    pool->window.end = end;
    pool->keys.end = 0;
    hr__sort_keys(pool->window.at, end, pool->other);
}

/* Adds the next samples to the pool. */
static void add_next(struct pool *pool) {
    const struct hr__planner *planner = pool->planner;
    struct keys *keys = &pool->keys, *window = &pool->window;
    if (!planner->several->is_sorted) {
        while (keys->end < pool->size && pool->next < planner->count)
            keys->at[keys->end++] = key_of(planner->several, pool->next++);
        return;
    }
    if (window->first == window->end && pool->next < planner->count) begin_window(pool);
    while (keys->end < pool->size && window->first < window->end) keys->at[keys->end++] = window->at[window->first++];
}

/* Fills the pool up with the samples that wait and the next ones. */
static void fill_up(struct pool *pool) {
    const struct hr__several *several = pool->planner->several;
    close_gaps(pool);
    for (int64_t i = 0; i < pool->waiting_count; i++)
        pool->keys.at[pool->keys.end++] = key_of(several, pool->waiting[i]);
    pool->waiting_count = pool->picked = 0;
    add_next(pool);
    pool->left = pool->keys.end;
    hr__sort_keys(pool->keys.at, pool->keys.end, pool->other);
    note_shares(pool);
    weigh(pool);
}

/* Fills the pool up if enough of it is used. When there are no more samples, gaps are closed from time to time. */
static void refresh(struct pool *pool) {
    bool can_be_filled = has_more(pool) || pool->waiting_count;
    if (can_be_filled && pool->left < pool->size - pool->size / KEPT_PARTS) fill_up(pool);
    if (!can_be_filled && pool->left < (pool->keys.end - pool->keys.first) / 2) {
        close_gaps(pool);
        note_shares(pool);
    }
}

/* ---- batches ---- */

/* Moves a sample of the pool into a batch. */
static void pick(struct pool *pool, int64_t batch, int64_t place) {
    assert(pool->shares[0]);
    hr__batch_put(pool->planner, pool->batches, batch, entry_at(pool, place));
    for (int k = 0; k < pool->planner->several->compared; k++) pool->shares[k][place] = GONE;
    while (pool->keys.first < pool->keys.end && pool->shares[0][pool->keys.first] == GONE) pool->keys.first++;
    pool->left--;
    pool->picked++;
}

/* Takes the last batch back: its samples wait. */
static void take_back(struct pool *pool) {
    struct hr__batches *batches = pool->batches;
    struct hr__batch *batch = &batches->at[--batches->count];
    for (int32_t entry = batch->first; entry >= 0; entry = batches->next[entry])
        pool->waiting[pool->waiting_count++] = entry;
}

/* Fills one batch. If it is not full, its samples wait, but only a part of those that were picked: so some stay in
 * batches whenever the pool is filled up. */
static int fill_batch(struct pool *pool) {
    int64_t batch = pool->batches->count;
    int r = hr__batches_resize(pool->planner, pool->batches, batch + 1);
    if (r < 0) return r;
    for (int64_t place = pool->keys.first; place >= 0; place = find_next(pool, &pool->batches->at[batch])) {
        pick(pool, batch, place);
        refresh(pool);
    }
    int64_t waiting = pool->waiting_count + pool->batches->at[batch].count;
    bool may_wait = has_more(pool) && waiting <= pool->picked - pool->picked / KEPT_PARTS;
    if (may_wait && !hr__batch_is_full(pool->planner, &pool->batches->at[batch])) take_back(pool);
    return 0;
}

static int fill_batches(struct pool *pool) {
    int r = 0;
    fill_up(pool);
    while (r == 0 && (pool->left > 0 || pool->waiting_count > 0)) {
        if (pool->left == 0) fill_up(pool);
        r = fill_batch(pool);
    }
    return r;
}

static bool allocate(struct pool *pool) {
    int64_t count = pool->planner->count;
    bool is_sorted = pool->planner->several->is_sorted, is_ready = true;
    pool->keys.at = hr__plan_array(pool->size, sizeof *pool->keys.at);
    pool->window.at = hr__plan_array(is_sorted ? count : 0, sizeof *pool->window.at);
    pool->other = hr__plan_array(is_sorted ? count : pool->size, sizeof *pool->other);
    pool->waiting = hr__plan_array(pool->size, sizeof *pool->waiting);
    for (int k = 0; k < pool->planner->several->compared; k++) {
        pool->shares[k] = hr__plan_array(pool->size + BLOCK, sizeof *pool->shares[k]);
        is_ready = is_ready && pool->shares[k];
    }
    return is_ready && pool->keys.at && pool->window.at && pool->other && pool->waiting;
}

int hr__pool_fill(struct hr__planner *planner, struct hr__batches *batches) {
    const struct hr__several *several = planner->several;
    int64_t window = planner->settings->window, size = POOL_OF_SORTED;
    if (!several->is_sorted) size = window ? window : POOL;
    size = (int64_t)hr__min((uint64_t)size, (uint64_t)planner->count);
    struct pool pool = {.planner = planner, .batches = batches, .size = size};
    int r = allocate(&pool) ? fill_batches(&pool) : -ENOMEM;
    hr__free(pool.keys.at);
    hr__free(pool.window.at);
    hr__free(pool.other);
    hr__free(pool.waiting);
    for (int k = 0; k < several->compared; k++) hr__free(pool.shares[k]);
    return r;
}
