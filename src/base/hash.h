/* SPDX-License-Identifier: Apache-2.0 */
/* A seeded 64-bit hash. */
#ifndef HR_BASE_HASH_H
#define HR_BASE_HASH_H

#include <stdint.h>

/* A seeded 64-bit hash, the same on every little-endian machine. It is not a cryptographic hash. */
uint64_t hr__hash(const void *bytes, uint64_t count, uint64_t seed);
uint64_t hr__hash_word(uint64_t word, uint64_t seed);

#endif
