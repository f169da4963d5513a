/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#include "base/alloc.h"
#include "base/base.h"

#include <errno.h>
#include <string.h>

/*
 * Fills a number of rows, the longest sample first, each into the row of least cost that has room (Graham's longest
 * processing time, 1969, with capacities). The heap has four children per node, because each level of it costs about
 * one miss of the cache.
 *
 * The rows are in a heap by cost. A row on top that has no room for a sample is taken out and parked in the list of its
 * room. The samples become shorter and shorter: as soon as one is as short as that room, the row returns to the heap.
 * So each row leaves the heap at most once for each sample that it gets. A bitmap says which rooms have a list, so that
 * a window of few long samples costs a bit for each unit of length, not a list.
 */

enum { CHILDREN = 4, WORD_BITS = 64 };

struct row {
    uint64_t cost;
    int32_t number;
    int32_t room; /* what is left of the capacity */
    int64_t sample_count;
};

struct balance {
    struct row *heap;
    int64_t heap_count;
    struct row *waiting;  /* by number: those that are parked */
    int32_t *next_parked; /* by number: the lists of parked rows; -1 ends one */
    int32_t *parked;      /* the first row of the list of each room below the longest sample, if it has a list */
    uint64_t *has_list;   /* a bit for each of these rooms */
    int64_t shortest;     /* rows with this room or more are in the heap */
};

static inline bool comes_first(const struct row *one, const struct row *other) {
    return one->cost != other->cost ? one->cost < other->cost : one->number < other->number;
}

/* Puts a row into the place on top, and moves it down to where it belongs. */
static void sift_down(struct balance *balance, struct row moved) {
    struct row *heap = balance->heap;
    int64_t place = 0, count = balance->heap_count;
    for (int64_t child; (child = CHILDREN * place + 1) < count; place = child) {
        int64_t end = child + CHILDREN < count ? child + CHILDREN : count;
        for (int64_t other = child + 1; other < end; other++)
            if (comes_first(&heap[other], &heap[child])) child = other;
        if (!comes_first(&heap[child], &moved)) break;
        heap[place] = heap[child];
    }
    heap[place] = moved;
}

static void push(struct balance *balance, struct row row) {
    struct row *heap = balance->heap;
    int64_t place = balance->heap_count++;
    for (; place > 0 && comes_first(&row, &heap[(place - 1) / CHILDREN]); place = (place - 1) / CHILDREN)
        heap[place] = heap[(place - 1) / CHILDREN];
    heap[place] = row;
}

static void pop(struct balance *balance) {
    struct row last = balance->heap[--balance->heap_count];
    if (balance->heap_count) sift_down(balance, last);
}

/* Takes the row on top out of the heap until the samples are as short as its room. */
static void park(struct balance *balance) {
    struct row row = balance->heap[0];
    uint64_t *word = &balance->has_list[row.room / WORD_BITS], bit = UINT64_C(1) << row.room % WORD_BITS;
    balance->waiting[row.number] = row;
    balance->next_parked[row.number] = *word & bit ? balance->parked[row.room] : -1;
    balance->parked[row.room] = row.number;
    *word |= bit;
    pop(balance);
}

/* Puts the rows back that have room for a sample of this length. */
static void release(struct balance *balance, int64_t length) {
    for (int64_t end = balance->shortest; end > length;) {
        int64_t word = (end - 1) / WORD_BITS;
        uint64_t lists = balance->has_list[word] & UINT64_MAX >> (WORD_BITS - 1 - (end - 1) % WORD_BITS);
        end = word * WORD_BITS;
        if (!lists) continue;
        end += WORD_BITS - 1 - __builtin_clzll(lists); /* the largest room that has a list */
        if (end < length) break;
        balance->has_list[word] &= ~(UINT64_C(1) << end % WORD_BITS);
        for (int32_t row = balance->parked[end]; row >= 0; row = balance->next_parked[row])
            push(balance, balance->waiting[row]);
    }
    balance->shortest = length;
}

/* Adds a sample to the row on top. A row that can take no other one leaves the heap for good. */
static void add(struct balance *balance, const struct hr__rows *rows, int64_t length, uint64_t cost) {
    struct row top = balance->heap[0];
    top.room -= (int32_t)(length < rows->capacity ? length : rows->capacity);
    top.cost += cost;
    top.sample_count++;
    if (top.sample_count == rows->max_batch || length > rows->capacity)
        pop(balance);
    else
        sift_down(balance, top);
}

static int64_t fill(struct balance *balance, const struct hr_plan_settings *settings, const uint64_t *sorted,
                    int64_t count, struct hr__rows *rows) {
    int64_t missing = 0;
    for (int64_t i = count - 1; i >= 0; i--) {
        int64_t length = hr__key_length(sorted[i]), need = length < rows->capacity ? length : rows->capacity;
        release(balance, need);
        while (balance->heap_count && balance->heap[0].room < need) park(balance);
        rows->row_of[i] = balance->heap_count ? balance->heap[0].number : -1;
        if (balance->heap_count)
            add(balance, rows, length, hr__cost_of(settings, length));
        else
            missing++;
    }
    return missing;
}

static void start(struct balance *balance, const struct hr__rows *rows, int64_t longest) {
    for (int64_t i = 0; i < rows->count; i++)
        balance->heap[i] = (struct row){.number = (int32_t)i, .room = (int32_t)rows->capacity};
    balance->heap_count = rows->count;
    balance->shortest = longest;
    memset(balance->has_list, 0, (size_t)(longest / WORD_BITS + 1) * sizeof *balance->has_list);
}

int64_t hr__fill_balanced(const struct hr_plan_settings *settings, const uint64_t *sorted, int64_t count,
                          struct hr__rows *rows) {
    int64_t longest = count ? hr__key_length(sorted[count - 1]) : 0;
    if (longest > rows->capacity) longest = rows->capacity;
    struct balance balance = {.heap = hr__plan_array(rows->count, sizeof *balance.heap),
                              .waiting = hr__plan_array(rows->count, sizeof *balance.waiting),
                              .next_parked = hr__plan_array(rows->count, sizeof *balance.next_parked),
                              .parked = hr__plan_array(longest, sizeof *balance.parked),
                              .has_list = hr__plan_array(longest / WORD_BITS, sizeof *balance.has_list)};
    int64_t result = -ENOMEM;
    if (balance.heap && balance.waiting && balance.next_parked && balance.parked && balance.has_list) {
        start(&balance, rows, longest);
        result = fill(&balance, settings, sorted, count, rows);
    }
    hr__free(balance.heap);
    hr__free(balance.waiting);
    hr__free(balance.next_parked);
    hr__free(balance.parked);
    hr__free(balance.has_list);
    return result;
}
