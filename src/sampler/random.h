/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_SAMPLER_RANDOM_H
#define HR_SAMPLER_RANDOM_H

#include <stdint.h>

/* SplitMix64 (Steele, Lea and Flood, 2014), for stream orders and for plans. What is made from its numbers is part of
 * saved states, so they stay the same. */

__extension__ typedef unsigned __int128 hr__product;

#define HR_GOLDEN UINT64_C(0x9E3779B97F4A7C15) /* 2^64 divided by the golden ratio */

/* The finalizer of SplitMix64. */
static inline uint64_t hr__mix(uint64_t word) {
    word = (word ^ (word >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94D049BB133111EB);
    return word ^ (word >> 31);
}

/* Maps a random word to 0..below-1. */
static inline uint64_t hr__scale(uint64_t word, uint64_t below) {
    return (uint64_t)((hr__product)word * below >> 64);
}

/* Returns the state of a generator that a seed and an epoch start. */
static inline uint64_t hr__mixed_seed(uint64_t seed, uint64_t epoch) {
    return hr__mix(hr__mix(seed + HR_GOLDEN) ^ epoch);
}

static inline uint64_t hr__random_next(uint64_t *state) {
    *state += HR_GOLDEN;
    return hr__mix(*state);
}

#endif
