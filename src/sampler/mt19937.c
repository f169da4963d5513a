/* SPDX-License-Identifier: Apache-2.0 */
/* torch's generator of random numbers on the CPU. */
#include "permute.h"

/* After Matsumoto and Nishimura, "Mersenne Twister" (ACM TOMACS 8, 1998), with their initialisation of 2002. */

enum { WORDS = HR_MT19937_WORDS, MIDDLE = 397 };

void hr_mt19937_seed(struct hr_mt19937 *generator, uint64_t seed) {
    uint32_t *state = generator->state;
    state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < WORDS; i++) state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
    generator->next = WORDS;
}

static uint32_t twist(uint32_t high, uint32_t low, uint32_t other) {
    uint32_t mixed = (high & 0x80000000U) | (low & 0x7FFFFFFFU);
    return other ^ (mixed >> 1) ^ (0x9908B0DFU & -(low & 1));
}

static void renew(struct hr_mt19937 *generator) {
    uint32_t *state = generator->state;
    int i = 0;
    for (; i < WORDS - MIDDLE; i++) state[i] = twist(state[i], state[i + 1], state[i + MIDDLE]);
    for (; i < WORDS - 1; i++) state[i] = twist(state[i], state[i + 1], state[i + MIDDLE - WORDS]);
    state[i] = twist(state[i], state[0], state[MIDDLE - 1]);
    generator->next = 0;
}

uint32_t hr__mt19937_next32(struct hr_mt19937 *generator) {
    if (generator->next >= WORDS) renew(generator);
    uint32_t word = generator->state[generator->next++];
    word ^= word >> 11;
    word ^= (word << 7) & 0x9D2C5680U;
    word ^= (word << 15) & 0xEFC60000U;
    return word ^ (word >> 18);
}

uint64_t hr__mt19937_next64(struct hr_mt19937 *generator) {
    uint64_t high = hr__mt19937_next32(generator);
    return high << 32 | hr__mt19937_next32(generator);
}
