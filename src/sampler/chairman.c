/* SPDX-License-Identifier: Apache-2.0 */
/* Tijdeman's solution of the chairman assignment problem: the source of each position of a period. Called by
 * mixture.c. */
#include "base/base.h"
#include "mixture.h"

#include <assert.h>

/* The results are part of saved states: a change of this file that changes them needs another kind of mixture. */

/*
 * After R. Tijdeman, "The chairman assignment problem" (Discrete Mathematics 32, 1980). A source with share c of a
 * period P is owed n * c / P positions up to position n. Of the sources that lack 1 / (2k - 2) of a position or more,
 * the next position goes to the one that has to have it first if no source is ever to lack more than 1 - 1 / (2k - 2).
 * Then no source is ahead by more either, and no rule bounds that better. All numbers are whole: `lacks` is what a
 * source lacks, times P, and the time that it can still wait is (P - P / (2k - 2) - lacks) / c, compared times 2k - 2.
 */
static uint32_t next_source(const struct hr__mixed *sources, uint32_t count, int64_t period, const int64_t *lacks) {
    int64_t scale = count > 1 ? 2 * (int64_t)count - 2 : 1, least = 0;
    uint32_t found = count;
    for (uint32_t i = 0; i < count; i++) {
        if (scale * lacks[i] < period) continue;
        int64_t waits = (scale - 1) * period - scale * lacks[i];
        if (found < count && waits * sources[found].share >= least * sources[i].share) continue;
        least = waits;
        found = i;
    }
    assert(found < count);
    return found;
}

void hr__chairman(struct hr__mixed *sources, uint32_t count, uint32_t period, int64_t *rooms,
                  struct hr__turn *ret_turns) {
    int64_t *lacks = rooms, *numbers = rooms + count;
    for (uint32_t i = 0; i < count; i++) lacks[i] = numbers[i] = 0;
    for (uint32_t at = 0; at < period; at++) {
        for (uint32_t i = 0; i < count; i++) lacks[i] += sources[i].share;
        uint32_t source = next_source(sources, count, period, lacks);
        ret_turns[at] = (struct hr__turn){(uint16_t)source, (uint16_t)numbers[source]++};
        lacks[source] -= period;
    }
}
