/* SPDX-License-Identifier: Apache-2.0 */
/* Stream orders: a keyed bijection, its inverse, and several positions at a time. */
#include "stream.h"

#include "feistel.h"

/* The results are part of saved states: a change of this file that changes them needs another kind of order. */

static inline struct hr__halves split(const struct hr_order *order, uint64_t number) {
    return (struct hr__halves){number % order->left, number / order->left};
}

static inline uint64_t join(const struct hr_order *order, struct hr__halves halves) {
    return halves.left + order->left * halves.right;
}

static inline uint64_t subtract(uint64_t a, uint64_t b, uint64_t modulus) {
    return a >= b ? a - b : a + modulus - b;
}

static inline struct hr__halves encrypt(const struct hr_order *order, struct hr__halves at) {
    return hr__feistel(order->left, order->right, order->keys, HR_STREAM_ROUNDS, at);
}

static inline struct hr__halves decrypt(const struct hr_order *order, struct hr__halves at) {
    const uint64_t *keys = order->keys;
    for (int i = HR_STREAM_ROUNDS - 2; i >= 0; i -= 2) {
        at.right = subtract(at.right, hr__scale(hr__mix(at.left ^ keys[i + 1]), order->right), order->right);
        at.left = subtract(at.left, hr__scale(hr__mix(at.right ^ keys[i]), order->left), order->left);
    }
    return at;
}

/* The walk ends: it follows a cycle of a permutation, and the cycle has the number below n that it started from. */
static inline uint64_t walk(const struct hr_order *order, struct hr__halves at) {
    uint64_t found;
    do {
        at = encrypt(order, at);
        found = join(order, at);
    } while (__builtin_expect(found >= (uint64_t)order->n, 0));
    return found;
}

uint64_t hr__stream_at(const struct hr_order *order, uint64_t position) {
    return walk(order, split(order, position));
}

uint64_t hr__stream_find(const struct hr_order *order, uint64_t index) {
    struct hr__halves at = split(order, index);
    do at = decrypt(order, at);
    while (join(order, at) >= (uint64_t)order->n);
    return join(order, at);
}

/* Adds halves to halves with a carry, because a division for each position would take as long as the rounds. */
static inline struct hr__halves advance(const struct hr_order *order, struct hr__halves at, struct hr__halves step) {
    uint64_t left = at.left + step.left;
    uint64_t carry = left >= order->left;
    return (struct hr__halves){carry ? left - order->left : left, at.right + step.right + carry};
}

static inline struct hr__halves retreat(const struct hr_order *order, struct hr__halves at, struct hr__halves step) {
    uint64_t borrow = at.left < step.left;
    return (struct hr__halves){borrow ? at.left + order->left - step.left : at.left - step.left,
                               at.right - step.right - borrow};
}

/* Encrypts several positions in turn, round by round: the rounds of one depend on each other, and the processor would
 * wait for each of them. */
enum { LANES = 8 };

static inline void encrypt_lanes(const struct hr_order *order, struct hr__halves *at) {
    uint64_t left = order->left, right = order->right;
    for (int i = 0; i < HR_STREAM_ROUNDS; i += 2) {
        uint64_t key = order->keys[i], next = order->keys[i + 1];
        for (int k = 0; k < LANES; k++)
            at[k].left = hr__add_modulo(at[k].left, hr__scale(hr__mix(at[k].right ^ key), left), left);
        for (int k = 0; k < LANES; k++)
            at[k].right = hr__add_modulo(at[k].right, hr__scale(hr__mix(at[k].left ^ next), right), right);
    }
}

void hr__stream_fill(const struct hr_order *order, uint64_t first, uint64_t step, int64_t count, int64_t *ret_indices) {
    uint64_t n = (uint64_t)order->n, position = first;
    struct hr__halves at = split(order, first), forward = split(order, step), around = split(order, n), lanes[LANES];
    for (int64_t i = 0; i < count; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            lanes[k] = at;
            position += step;
            at = advance(order, at, forward);
            if (position < n) continue;
            position -= n;
            at = retreat(order, at, around);
        }
        encrypt_lanes(order, lanes);
        for (int k = 0; k < LANES && i + k < count; k++) {
            uint64_t found = join(order, lanes[k]);
            ret_indices[i + k] = (int64_t)(__builtin_expect(found >= n, 0) ? walk(order, lanes[k]) : found);
        }
    }
}

static void fill_small(struct hr_order *order, uint64_t state) {
    for (int64_t i = 0; i < order->n; i++) order->small[i] = (uint16_t)i;
    for (int64_t i = order->n - 1; i > 0; i--) {
        uint64_t place = hr__scale(hr__random_next(&state), (uint64_t)i + 1);
        uint16_t swapped = order->small[i];
        order->small[i] = order->small[place];
        order->small[place] = swapped;
    }
}

void hr__stream_start(struct hr_order *order, uint64_t seed, uint64_t epoch) {
    uint64_t n = (uint64_t)order->n, state = hr__mixed_seed(seed, epoch);
    if (n <= HR_STREAM_SMALL) {
        fill_small(order, state);
        return;
    }
    order->left = hr__feistel_left(n);
    order->right = hr__feistel_right(n, order->left);
    for (int i = 0; i < HR_STREAM_ROUNDS; i++) order->keys[i] = hr__random_next(&state);
}
