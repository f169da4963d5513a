/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_SAMPLER_FEISTEL_H
#define HR_SAMPLER_FEISTEL_H

#include "random.h"

#include <headrace/sampler.h>
#include <stdint.h>

/* The rounds of the generalised Feistel cipher (see hr_order_stream), for stream orders, mixtures and orders of
 * machines. A number below left * right is written as two halves, at.left + left * at.right. */

#define HR_FEISTEL_MOST_ROUNDS 16

struct hr__halves {
    uint64_t left, right;
};

static inline uint64_t hr__add_modulo(uint64_t a, uint64_t b, uint64_t modulus) {
    uint64_t sum = a + b;
    return sum >= modulus ? sum - modulus : sum;
}

/* left, right: the sizes of the halves. rounds: an even number, with a key for each. */
static inline struct hr__halves hr__feistel(uint64_t left, uint64_t right, const uint64_t *keys, int rounds,
                                            struct hr__halves at) {
    for (int i = 0; i < rounds; i += 2) {
        at.left = hr__add_modulo(at.left, hr__scale(hr__mix(at.right ^ keys[i]), left), left);
        at.right = hr__add_modulo(at.right, hr__scale(hr__mix(at.left ^ keys[i + 1]), right), right);
    }
    return at;
}

/* Returns the size of the left half for numbers below n, the square root of n rounded up. n is not 0. */
static inline uint64_t hr__feistel_left(uint64_t n) {
    uint64_t root = 0;
    for (int bit = 31; bit >= 0; bit--) {
        uint64_t larger = root | UINT64_C(1) << bit;
        if (larger * larger < n) root = larger;
    }
    return root + 1;
}

/* Returns the rounds for numbers below `size` where no table is made of small ones. The smaller the halves are, the
 * more rounds they need, until no pair of positions prefers some samples. */
static inline int hr__feistel_rounds(int64_t size) {
    enum { SMALL = 32, ROUNDS = 10 };
    return size > HR_STREAM_SMALL ? HR_STREAM_ROUNDS : size > SMALL ? ROUNDS : HR_FEISTEL_MOST_ROUNDS;
}

static inline uint64_t hr__feistel_right(uint64_t n, uint64_t left) {
    return (n - 1) / left + 1;
}

#endif
