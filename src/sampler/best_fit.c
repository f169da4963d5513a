/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#include "base/alloc.h"
#include "base/base.h"

#include <errno.h>
#include <string.h>

/*
 * Best fit decreasing: each sample, the longest first, goes to the row with the least room that suffices. If there is
 * none, a row is opened. Rows of equal room are in a list, and a tree of bitmaps finds the next room that has one (Ding
 * et al., arXiv 2404.10830, 2024, use a tree of lengths for it): bit i of a level says whether the word i of the level
 * below has a bit.
 */

enum { LEVELS = 5, WORD_BITS = 64 }; /* 64^5 rooms, more than HR_PLAN_PACK_MAX + 1 */

struct best_fit {
    uint64_t *words;         /* the words of all levels */
    uint64_t *level[LEVELS]; /* the lowest one first */
    int32_t *first;          /* the first row with each room that the lowest level has */
    int32_t *next;           /* the next row of equal room */
    int32_t *counts;         /* samples of each row */
};

/* Returns how many words the levels have for so many rooms, and sets where they begin. */
static int64_t lay_out(struct best_fit *best, int64_t rooms) {
    int64_t total = 0;
    for (int i = 0; i < LEVELS; i++) {
        rooms = (rooms + WORD_BITS - 1) / WORD_BITS;
        if (best->words) best->level[i] = best->words + total;
        total += rooms;
    }
    return total;
}

static void mark(struct best_fit *best, int64_t room) {
    for (int i = 0; i < LEVELS; i++, room /= WORD_BITS)
        best->level[i][room / WORD_BITS] |= UINT64_C(1) << room % WORD_BITS;
}

static void unmark(struct best_fit *best, int64_t room) {
    for (int i = 0; i < LEVELS; i++, room /= WORD_BITS) {
        uint64_t *word = &best->level[i][room / WORD_BITS];
        *word &= ~(UINT64_C(1) << room % WORD_BITS);
        if (*word) return;
    }
}

/* Returns the least room of a row that is `least` or more, or -1. `rooms`: how many there are. */
static int64_t find_room(const struct best_fit *best, int64_t least, int64_t rooms) {
    int level = 0;
    int64_t at = least;
    for (;; level++, at = at / WORD_BITS + 1, rooms = (rooms + WORD_BITS - 1) / WORD_BITS) {
        if (level == LEVELS || at >= rooms) return -1;
        uint64_t word = best->level[level][at / WORD_BITS] >> at % WORD_BITS;
        if (!word) continue;
        at += __builtin_ctzll(word);
        break;
    }
    while (level-- > 0) at = at * WORD_BITS + __builtin_ctzll(best->level[level][at]);
    return at;
}

static void put(struct best_fit *best, int64_t room, int32_t row) {
    bool has_row = best->level[0][room / WORD_BITS] >> room % WORD_BITS & 1;
    best->next[row] = has_row ? best->first[room] : -1;
    best->first[room] = row;
    if (!has_row) mark(best, room);
}

static int32_t take(struct best_fit *best, int64_t room) {
    int32_t row = best->first[room];
    best->first[room] = best->next[row];
    if (best->first[room] < 0) unmark(best, room);
    return row;
}

static void fill(struct best_fit *best, const uint64_t *sorted, int64_t count, struct hr__rows *rows) {
    rows->count = 0;
    for (int64_t i = count - 1; i >= 0; i--) {
        int64_t length = hr__key_length(sorted[i]), need = length < rows->capacity ? length : rows->capacity;
        int64_t room = find_room(best, need, rows->capacity + 1);
        int32_t row = room < 0 ? (int32_t)rows->count++ : take(best, room);
        if (room < 0) {
            room = rows->capacity;
            best->counts[row] = 0;
        }
        rows->row_of[i] = row;
        bool is_full = ++best->counts[row] == rows->max_batch || length > rows->capacity;
        if (!is_full) put(best, room - need, row);
    }
}

int hr__fill_best_fit(const uint64_t *sorted, int64_t count, struct hr__rows *rows) {
    int64_t rooms = rows->capacity + 1;
    struct best_fit best = {.first = hr__plan_array(rooms, sizeof *best.first),
                            .next = hr__plan_array(count, sizeof *best.next),
                            .counts = hr__plan_array(count, sizeof *best.counts)};
    int64_t words = lay_out(&best, rooms);
    best.words = hr__plan_array(words, sizeof *best.words);
    int r = -ENOMEM;
    if (best.first && best.next && best.counts && best.words) {
        lay_out(&best, rooms);
        memset(best.words, 0, (size_t)words * sizeof *best.words);
        fill(&best, sorted, count, rows);
        r = 0;
    }
    hr__free(best.words);
    hr__free(best.first);
    hr__free(best.next);
    hr__free(best.counts);
    return r;
}
