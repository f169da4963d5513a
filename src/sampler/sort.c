/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#include <string.h>

/* Sorts keys digit by digit from the lowest one (radix sort). If their entries are in order already, which they mostly
 * are, only the digits of the lengths are left to sort by. */

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, FEW = 64 };

/* A few keys are sorted by insertion, because a table of digits would take longer. */
static void insert_all(uint64_t *keys, int64_t count) {
    for (int64_t i = 1; i < count; i++) {
        uint64_t key = keys[i];
        int64_t place = i;
        for (; place > 0 && keys[place - 1] > key; place--) keys[place] = keys[place - 1];
        keys[place] = key;
    }
}

static void sort_by_digit(const uint64_t *keys, int64_t count, int shift, uint64_t *ret_sorted) {
    int64_t places[DIGITS] = {0}, sum = 0;
    for (int64_t i = 0; i < count; i++) places[keys[i] >> shift & (DIGITS - 1)]++;
    for (int i = 0; i < DIGITS; i++) {
        int64_t first = sum;
        sum += places[i];
        places[i] = first;
    }
    for (int64_t i = 0; i < count; i++) ret_sorted[places[keys[i] >> shift & (DIGITS - 1)]++] = keys[i];
}

static bool has_entries_in_order(const uint64_t *keys, int64_t count) {
    for (int64_t i = 1; i < count; i++)
        if ((uint32_t)keys[i - 1] > (uint32_t)keys[i]) return false;
    return true;
}

void hr__sort_keys(uint64_t *keys, int64_t count, uint64_t *other) {
    if (count <= FEW) {
        insert_all(keys, count);
        return;
    }
    uint64_t longest = 0, *from = keys, *to = other;
    for (int64_t i = 0; i < count; i++)
        if (keys[i] > longest) longest = keys[i];
    for (int shift = has_entries_in_order(keys, count) ? 32 : 0; shift < 64 && longest >> shift; shift += DIGIT_BITS) {
        sort_by_digit(from, count, shift, to);
        uint64_t *swapped = from;
        from = to;
        to = swapped;
    }
    if (from != keys) memcpy(keys, from, (size_t)count * sizeof *keys);
}
