/* SPDX-License-Identifier: Apache-2.0 */
#include "several.h"

#include "base/alloc.h"
#include "base/base.h"

#include <errno.h>

/*
 * Deals the samples that do not suffice for a step to the batches of a shorter one. Each row of the deal gives one
 * sample to each batch, so that all batches have equally many: the largest one first, to the batch that has most room
 * where the sample needs it. If that does not keep the limits, they are dealt to the batches of one step more. One
 * sample for each batch is always allowed. With HR_PLAN_PAD, batches that have one sample less than others repeat one.
 * With HR_PLAN_EXACT, their numbers may become different so that they cost about the same.
 */

enum { BLOCK = 256 /* batches among which a sample chooses */ };

/* A sample that is dealt, with its shares of the limits that are compared. */
struct dealt {
    uint64_t cost;
    int32_t entry;
    int16_t shares[HR_LIMITS_MAX], most; /* the largest share */
};

/* A part of a row of the deal: `count` entries for `batches` batches from `first` on. */
struct part {
    const int32_t *entries;
    int64_t count, first, batches;
};

static struct dealt describe(const struct hr__several *several, int32_t entry) {
    struct dealt dealt = {.cost = several->costs[entry], .entry = entry};
    for (int i = 0; i < several->compared; i++) {
        dealt.shares[i] = hr__share_of(several->limits[i].lengths[entry], several->limits[i].most);
        if (dealt.shares[i] > dealt.most) dealt.most = dealt.shares[i];
    }
    return dealt;
}

static bool comes_first(const struct dealt *one, const struct dealt *other) {
    return one->most != other->most ? one->most > other->most : one->cost > other->cost;
}

/* Writes the entries of a part: those with the largest share first, and equal ones by falling cost. */
static void order_part(const struct hr__several *several, const struct part *part, struct dealt *ret_dealt) {
    for (int64_t i = 0; i < part->count; i++) {
        struct dealt dealt = describe(several, part->entries[i]);
        int64_t place = i;
        for (; place > 0 && comes_first(&dealt, &ret_dealt[place - 1]); place--)
            ret_dealt[place] = ret_dealt[place - 1];
        ret_dealt[place] = dealt;
    }
}

static int64_t score_of(const struct hr__batch *batch, const struct dealt *dealt) {
    int64_t score = 0;
    for (int i = 0; i < HR_LIMITS_MAX; i++) score += (int32_t)batch->rooms[i] * dealt->shares[i];
    return score;
}

/* Returns the batch of a part that gets a sample, or -1: of those that have none of this row yet and have room, the one
 * whose room is where the sample needs it; of equal ones, the cheapest. */
static int64_t choose(const struct hr__planner *planner, const struct hr__batches *batches, const struct part *part,
                      int64_t row, const struct dealt *dealt) {
    int64_t best = -1, best_score = 0;
    for (int64_t i = part->first; i < part->first + part->batches; i++) {
        const struct hr__batch *batch = &batches->at[i];
        if (batch->count > row || !hr__batch_allows(planner, batch, dealt->entry)) continue;
        int64_t score = score_of(batch, dealt);
        bool is_better =
            best < 0 || score > best_score || (score == best_score && batch->cost < batches->at[best].cost);
        if (!is_better) continue;
        best = i;
        best_score = score;
    }
    return best;
}

/* Deals a part of a row. Returns false if a sample has no room. */
static bool deal_part(const struct hr__planner *planner, struct hr__batches *batches, const struct part *part,
                      int64_t row) {
    struct dealt dealt[BLOCK];
    order_part(planner->several, part, dealt);
    for (int64_t i = 0; i < part->count; i++) {
        int64_t batch = choose(planner, batches, part, row, &dealt[i]);
        if (batch < 0) return false;
        hr__batch_put(planner, batches, batch, dealt[i].entry);
    }
    return true;
}

/* Deals a row: up to one entry for each batch. Every second full row is dealt backwards, so that no batches get the
 * longest samples of each row. */
static bool deal_row(const struct hr__planner *planner, struct hr__batches *batches, const int32_t *entries,
                     int64_t count, int64_t row) {
    bool is_backwards = row % 2 && count >= batches->count, fits = true;
    if (count > batches->count) count = batches->count;
    for (int64_t begin = 0; fits && begin < count; begin += BLOCK) {
        struct part part = {.entries = entries + begin, .first = begin};
        part.batches = (int64_t)hr__min((uint64_t)(batches->count - begin), BLOCK);
        part.count = (int64_t)hr__min((uint64_t)(count - begin), (uint64_t)part.batches);
        if (is_backwards) part.first = batches->count - begin - part.batches;
        fits = deal_part(planner, batches, &part, row);
    }
    return fits;
}

/* Returns whether a batch may have an entry as a repeat. */
static bool may_repeat(const struct hr__planner *planner, const struct hr__batches *batches, int64_t batch,
                       int64_t entry) {
    if (!hr__batch_allows(planner, &batches->at[batch], entry)) return false;
    for (int32_t own = batches->at[batch].first; own >= 0; own = batches->next[own])
        if (own == entry) return false;
    return true;
}

/* Returns the first entry from `first` on that a batch may have as a repeat, or the number of entries. */
static int64_t find_repeat(const struct hr__planner *planner, const struct hr__batches *batches, int64_t batch,
                           int64_t first) {
    while (first < planner->count && !may_repeat(planner, batches, batch, first)) first++;
    return first;
}

/* Gives a repeat to `missing` of the batches that have fewer than `rows` entries, each another entry if possible.
 * Returns false if a batch has room for none. */
static bool add_repeats(const struct hr__planner *planner, struct hr__batches *batches, int64_t rows, int64_t missing) {
    for (int64_t i = 0, next = 0; missing > 0 && i < batches->count; i++) {
        if (batches->at[i].count == rows) continue;
        int64_t entry = find_repeat(planner, batches, i, next);
        if (entry == planner->count) entry = find_repeat(planner, batches, i, 0);
        if (entry == planner->count) return false;
        if (entry >= next) next = entry + 1;
        hr__batch_repeat(planner, batches, i, entry);
        missing--;
    }
    return true;
}

/* Deals sorted entries to so many batches. Returns 1 if all keep the limits, 0 if not, or -ENOMEM. */
static int deal(const struct hr__planner *planner, struct hr__batches *batches, const int32_t *entries, int64_t count,
                int64_t batch_count) {
    int64_t width = planner->settings->width, row = 0;
    int64_t missing = planner->settings->tail == HR_PLAN_PAD && count % width ? width - count % width : 0;
    batches->count = 0;
    int r = hr__batches_resize(planner, batches, batch_count);
    if (r < 0) return r;
    for (; row * batch_count < count; row++)
        if (!deal_row(planner, batches, entries + row * batch_count, count - row * batch_count, row)) return 0;
    return add_repeats(planner, batches, row, missing);
}

static int deal_all(struct hr__planner *planner, struct hr__batches *batches, const int32_t *entries, int64_t count) {
    int64_t width = planner->settings->width, steps = 1;
    bool may_move = planner->settings->tail == HR_PLAN_EXACT;
    int r;
    while ((r = deal(planner, batches, entries, count, steps * width)) == 0) steps++;
    if (r < 0) return r;
    planner->fixed_steps = steps;
    hr__batches_sort(batches, 0, batches->count);
    for (int64_t i = 0; i < batches->count; i += width) {
        hr__exchange(planner, batches, i, width, may_move);
        hr__batches_sort(batches, i, width);
    }
    return hr__batches_append(planner, batches);
}

/* Writes the entries of all batches, sorted: those that come first in a window first. Returns how many there are. */
static int64_t collect(const struct hr__several *several, const struct hr__batches *batches, uint64_t *keys,
                       uint64_t *other, int32_t *ret_entries) {
    int64_t count = 0;
    for (int64_t i = 0; i < batches->count; i++)
        for (int32_t entry = batches->at[i].first; entry >= 0; entry = batches->next[entry])
            keys[count++] = (uint64_t)(INT32_MAX - several->sorted_by[entry]) << 32 | (uint64_t)entry;
    hr__sort_keys(keys, count, other);
    for (int64_t i = 0; i < count; i++) ret_entries[i] = (int32_t)(uint32_t)keys[i];
    return count;
}

int hr__tail_make(struct hr__planner *planner, struct hr__batches *batches) {
    int64_t count = 0;
    for (int64_t i = 0; i < batches->count; i++) count += batches->at[i].count;
    if (count == 0 || planner->settings->tail == HR_PLAN_DROP) return 0;
    uint64_t *keys = hr__plan_array(count, sizeof *keys), *other = hr__plan_array(count, sizeof *other);
    int32_t *entries = hr__plan_array(count, sizeof *entries);
    int r = -ENOMEM;
    if (keys && other && entries) {
        collect(planner->several, batches, keys, other, entries);
        r = deal_all(planner, batches, entries, count);
    }
    hr__free(keys);
    hr__free(other);
    hr__free(entries);
    return r;
}
