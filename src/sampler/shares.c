/* SPDX-License-Identifier: Apache-2.0 */
/* The shares of the sources of a mixture: whole numbers in proportion to the weights, exactly if they are small enough.
 * Called by mixture.c. */
#include "base/base.h"
#include "mixture.h"
#include "random.h"

#include <assert.h>

/* The results are part of saved states: a change of this file that changes them needs another kind of mixture. */

static uint64_t greatest_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Returns true, and the shares, if the weights without their common divisor add up to a period. */
static bool take_exact(const struct hr_mixture_source *sources, uint32_t count, uint32_t *shares) {
    uint64_t divisor = 0, sum = 0;
    for (uint32_t i = 0; i < count; i++) divisor = greatest_divisor(divisor, sources[i].weight);
    assert(divisor > 0);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t share = sources[i].weight / divisor;
        if (share > HR_MIXTURE_PERIOD_MAX || (sum += share) > HR_MIXTURE_PERIOD_MAX) return false;
    }
    for (uint32_t i = 0; i < count; i++) shares[i] = (uint32_t)(sources[i].weight / divisor);
    return true;
}

static hr__product sum_of_others(const struct hr_mixture_source *sources, uint32_t count, const uint32_t *shares) {
    hr__product sum = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!shares[i]) sum += sources[i].weight;
    return sum;
}

/* Gives 1 to the sources whose part would be less, until those of the others are not. Returns what is left for these,
 * whose shares are 0. */
static uint32_t give_least(const struct hr_mixture_source *sources, uint32_t count, uint32_t *shares) {
    uint32_t left = HR_MIXTURE_PERIOD_MAX, before;
    for (uint32_t i = 0; i < count; i++) shares[i] = 0;
    do {
        before = left;
        hr__product sum = sum_of_others(sources, count, shares);
        for (uint32_t i = 0; i < count; i++)
            if (!shares[i] && (hr__product)sources[i].weight * before < sum) {
                shares[i] = 1;
                left--;
            }
    } while (left != before);
    return left;
}

/* Returns the source of the others with the largest remainder, and sets that remainder to 0. */
static uint32_t take_largest(hr__product *remainders, uint32_t count) {
    uint32_t largest = 0;
    for (uint32_t i = 1; i < count; i++)
        if (remainders[i] > remainders[largest]) largest = i;
    remainders[largest] = 0;
    return largest;
}

/* Gives the others their parts, rounded down, and one more to those with the largest remainders (Hamilton's method). */
static void give_rest(const struct hr_mixture_source *sources, uint32_t count, uint32_t left, uint32_t *shares) {
    hr__product sum = sum_of_others(sources, count, shares), remainders[HR_MIXTURE_SOURCES_MAX];
    uint32_t given = 0;
    for (uint32_t i = 0; i < count; i++) {
        hr__product part = shares[i] ? 0 : (hr__product)sources[i].weight * left;
        remainders[i] = part ? part % sum : 0;
        if (part) given += shares[i] = (uint32_t)(part / sum);
    }
    for (; given < left; given++) shares[take_largest(remainders, count)]++;
}

/* Divides the shares by their common divisor. Returns their sum. */
static uint32_t reduce(uint32_t *shares, uint32_t count) {
    uint64_t divisor = 0;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) divisor = greatest_divisor(divisor, shares[i]);
    assert(divisor > 0);
    for (uint32_t i = 0; i < count; i++) sum += shares[i] /= (uint32_t)divisor;
    return sum;
}

uint32_t hr__shares(const struct hr_mixture_source *sources, uint32_t count, uint32_t *ret_shares) {
    if (!take_exact(sources, count, ret_shares)) {
        uint32_t left = give_least(sources, count, ret_shares);
        give_rest(sources, count, left, ret_shares);
    }
    return reduce(ret_shares, count);
}
