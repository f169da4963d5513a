/* SPDX-License-Identifier: Apache-2.0 */
#include "several.h"

#include "base/base.h"

/*
 * Evens out the costs of batches. The most expensive batch gives an entry to a cheap one, and gets a cheaper entry for
 * it, or none: of all such exchanges that keep the limits, the one after which the more expensive of the two costs
 * least. Each exchange lowers that cost, so it ends. A batch that cannot be made cheaper is passed over.
 *
 * Only some cheap batches and some entries of each are looked at, so that an exchange takes a bounded time. They are
 * spread evenly over the list of a batch.
 */

enum {
    CHEAP_ONES = 8,
    LOOKED_AT = 32,
    CLOSE = 256, /* a batch is close enough to the mean within one of so many parts of it */
    MOST_TRIES = 512,
};

/* Entries of a batch: where the list links to them. */
struct choices {
    int32_t *links[LOOKED_AT];
    int count;
};

/* An exchange: what link `given` has goes to batch `to`, and what link `taken` has comes back, if it is not NULL. */
struct trade {
    int64_t to;
    int32_t *given, *taken;
    uint64_t worse; /* the cost of the more expensive batch after it */
};

static void choose(struct hr__batches *batches, struct hr__batch *batch, struct choices *ret_choices) {
    int32_t step = batch->count / LOOKED_AT + 1, i = 0;
    ret_choices->count = 0;
    for (int32_t *link = &batch->first; *link >= 0; link = &batches->next[*link])
        if (i++ % step == 0) ret_choices->links[ret_choices->count++] = link;
}

/* Returns whether a batch keeps the limits if it gets an entry for one of its own. */
static bool allows_swap(const struct hr__several *several, const struct hr__batch *batch, int32_t own, int32_t other) {
    if (batch->repeat == other) return false;
    if (batch->count == 1) return true;
    for (int i = 0; i < several->limit_count; i++) {
        const struct hr__limit *limit = &several->limits[i];
        int64_t length = limit->lengths[other];
        if (!limit->is_padded && length > limit->most - batch->used[i] + limit->lengths[own]) return false;
        if (limit->is_padded && length > limit->most / batch->count) return false;
    }
    return true;
}

static bool is_allowed(const struct hr__planner *planner, const struct hr__batch *from, const struct hr__batch *to,
                       const struct trade *trade) {
    int32_t given = *trade->given;
    if (!trade->taken) return from->count > 1 && to->repeat != given && hr__batch_allows(planner, to, given);
    return allows_swap(planner->several, from, given, *trade->taken) &&
           allows_swap(planner->several, to, *trade->taken, given);
}

/* Keeps an exchange if it is better than the best one so far. `worse` of the exchange is not set yet. */
static void consider(const struct hr__planner *planner, const struct hr__batches *batches, int64_t from,
                     struct trade trade, struct trade *best) {
    const struct hr__batch *costly = &batches->at[from], *cheap = &batches->at[trade.to];
    const uint64_t *costs = planner->several->costs;
    uint64_t cost = costs[*trade.given], back = trade.taken ? costs[*trade.taken] : 0;
    if (cost <= back) return;
    trade.worse = hr__max(costly->cost - (cost - back), cheap->cost + (cost - back));
    if (trade.worse < best->worse && is_allowed(planner, costly, cheap, &trade)) *best = trade;
}

static void look_at(const struct hr__planner *planner, struct hr__batches *batches, int64_t from, int64_t to,
                    const struct choices *own, bool may_move, struct trade *best) {
    struct choices others;
    choose(batches, &batches->at[to], &others);
    for (int i = 0; i < own->count; i++) {
        struct trade trade = {.to = to, .given = own->links[i]};
        if (may_move) consider(planner, batches, from, trade, best);
        for (int k = 0; k < others.count; k++) {
            trade.taken = others.links[k];
            consider(planner, batches, from, trade, best);
        }
    }
}

/* Counts that a batch has given an entry away and got another one; -1: none. */
static void count_trade(const struct hr__planner *planner, struct hr__batch *batch, int32_t gone, int32_t come) {
    const struct hr__several *several = planner->several;
    batch->count += (come >= 0) - (gone >= 0);
    batch->cost += (come >= 0 ? several->costs[come] : 0) - (gone >= 0 ? several->costs[gone] : 0);
    for (int i = 0; i < several->limit_count; i++) {
        const struct hr__limit *limit = &several->limits[i];
        int64_t length = come >= 0 ? limit->lengths[come] : 0;
        if (!limit->is_padded)
            batch->used[i] += length - (gone >= 0 ? limit->lengths[gone] : 0);
        else if (length > batch->used[i])
            batch->used[i] = length;
    }
    hr__batch_note_rooms(planner, batch);
}

static void make(const struct hr__planner *planner, struct hr__batches *batches, int64_t from,
                 const struct trade *trade) {
    struct hr__batch *costly = &batches->at[from], *cheap = &batches->at[trade->to];
    int32_t given = *trade->given, taken = trade->taken ? *trade->taken : -1, *next = batches->next;
    if (taken >= 0) {
        int32_t after = next[given];
        *trade->given = taken;
        *trade->taken = given;
        next[given] = next[taken];
        next[taken] = after;
    } else {
        *trade->given = next[given];
        next[given] = cheap->first;
        cheap->first = given;
    }
    count_trade(planner, costly, given, taken);
    count_trade(planner, cheap, taken, given);
}

/* Writes the numbers of the cheapest batches, the cheapest first, and returns how many. */
static int find_cheap(const struct hr__batches *batches, int64_t first, int64_t count, int64_t *ret_cheap) {
    int found = 0;
    for (int64_t i = first; i < first + count; i++) {
        int place = found;
        for (; place > 0 && batches->at[i].cost < batches->at[ret_cheap[place - 1]].cost; place--)
            if (place < CHEAP_ONES) ret_cheap[place] = ret_cheap[place - 1];
        if (place < CHEAP_ONES) ret_cheap[place] = i;
        if (found < CHEAP_ONES) found++;
    }
    return found;
}

/* Returns the most expensive batch that is not passed over, or -1 if it costs nearly the mean. */
static int64_t find_costliest(const struct hr__batches *batches, int64_t first, int64_t count) {
    uint64_t sum = 0, most = 0;
    int64_t costly = -1;
    for (int64_t i = first; i < first + count; i++) {
        const struct hr__batch *batch = &batches->at[i];
        sum += batch->cost;
        if (batch->is_passed_over || batch->cost <= most) continue;
        costly = i;
        most = batch->cost;
    }
    uint64_t mean = sum / (uint64_t)count;
    return most > mean && most - mean > mean / CLOSE ? costly : -1;
}

void hr__exchange(const struct hr__planner *planner, struct hr__batches *batches, int64_t first, int64_t count,
                  bool may_move) {
    int64_t cheap[CHEAP_ONES], costly;
    for (int64_t i = first; i < first + count; i++) batches->at[i].is_passed_over = false;
    int64_t tries = 4 * count < MOST_TRIES ? 4 * count : MOST_TRIES;
    for (; tries > 0 && (costly = find_costliest(batches, first, count)) >= 0; tries--) {
        struct choices own;
        struct trade best = {.worse = batches->at[costly].cost};
        choose(batches, &batches->at[costly], &own);
        int found = find_cheap(batches, first, count, cheap);
        for (int i = 0; i < found; i++)
            if (cheap[i] != costly) look_at(planner, batches, costly, cheap[i], &own, may_move, &best);
        if (best.given)
            make(planner, batches, costly, &best);
        else
            batches->at[costly].is_passed_over = true;
    }
}

void hr__exchange_fill(const struct hr__planner *planner, struct hr__batches *batches, int64_t from, int64_t empty) {
    struct choices own;
    struct trade best = {.worse = UINT64_MAX};
    choose(batches, &batches->at[from], &own);
    for (int i = 0; i < own.count; i++)
        consider(planner, batches, from, (struct trade){.to = empty, .given = own.links[i]}, &best);
    if (best.given) make(planner, batches, from, &best);
}
