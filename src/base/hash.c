/* SPDX-License-Identifier: Apache-2.0 */
/* A seeded 64-bit hash (wyhash). */
#include "hash.h"

#include <string.h>

/* After wyhash (Wang Yi and others, final version 4, in the public domain): a product of 128 bits, folded, per 16
 * bytes. */
static const uint64_t secret[4] = {0x2d358dccaa6c78a5, 0x8bb84b93962eacc9, 0x4b33a62ed433d4a3, 0x4d5a2da51de1aa47};

__extension__ typedef unsigned __int128 product;

static uint64_t mix(uint64_t a, uint64_t b) {
    product p = (product)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static uint64_t load8(const unsigned char *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static uint64_t load4(const unsigned char *from) {
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static uint64_t finish(uint64_t a, uint64_t b, uint64_t count, uint64_t seed) {
    return mix(secret[0] ^ count, mix(a ^ secret[1], b ^ seed));
}

static uint64_t hash_short(const unsigned char *at, uint64_t count, uint64_t seed) {
    if (count >= 4) {
        uint64_t middle = count >> 3 << 2;
        const unsigned char *last = at + count - 4;
        return finish(load4(at) << 32 | load4(at + middle), load4(last) << 32 | load4(last - middle), count, seed);
    }
    uint64_t a = count ? (uint64_t)at[0] << 16 | (uint64_t)at[count >> 1] << 8 | at[count - 1] : 0;
    return finish(a, 0, count, seed);
}

/* Uses three lanes, so that the processor can multiply them in parallel. Returns the number of bytes that remain. */
static uint64_t hash_lanes(const unsigned char **at, uint64_t left, uint64_t *seed) {
    uint64_t lanes[3] = {*seed, *seed, *seed};
    for (; left > 48; left -= 48, *at += 48)
        for (int i = 0; i < 3; i++)
            lanes[i] = mix(load8(*at + 16 * i) ^ secret[i + 1], load8(*at + 16 * i + 8) ^ lanes[i]);
    *seed = lanes[0] ^ lanes[1] ^ lanes[2];
    return left;
}

uint64_t hr__hash(const void *bytes, uint64_t count, uint64_t seed) {
    const unsigned char *at = bytes;
    seed ^= mix(seed ^ secret[0], secret[1]);
    if (count <= 16) return hash_short(at, count, seed);
    uint64_t left = count > 48 ? hash_lanes(&at, count, &seed) : count;
    for (; left > 16; left -= 16, at += 16) seed = mix(load8(at) ^ secret[1], load8(at + 8) ^ seed);
    return finish(load8(at + left - 16), load8(at + left - 8), count, seed);
}

uint64_t hr__hash_word(uint64_t word, uint64_t seed) {
    return mix(mix(word ^ secret[0], seed ^ secret[1]) ^ word, secret[2]);
}
