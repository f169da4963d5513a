/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of any size become int64; the loops are left to the compiler's vectors. */
#include "tokens.h"

#include <string.h>

#define WIDEN(name, type)                                                                                              \
    static void name(const void *from, uint64_t count, int64_t *restrict to) {                                         \
        const type *restrict items = from;                                                                             \
        for (uint64_t i = 0; i < count; i++) to[i] = (int64_t)items[i];                                                \
    }
WIDEN(from_int8, int8_t)
WIDEN(from_int16, int16_t)
WIDEN(from_int32, int32_t)
WIDEN(from_uint8, uint8_t)
WIDEN(from_uint16, uint16_t)
WIDEN(from_uint32, uint32_t)
#undef WIDEN

static void from_64(const void *from, uint64_t count, int64_t *to) {
    memcpy(to, from, count * sizeof *to);
}

static void convert(struct hr_dtype dtype, const void *from, uint64_t count, int64_t *to) {
    static void (*const by_size[2][4])(const void *, uint64_t, int64_t *) = {
        {from_int8, from_int16, from_int32, from_64}, {from_uint8, from_uint16, from_uint32, from_64}};
    by_size[dtype.code == 1][dtype.bits == 8 ? 0 : dtype.bits == 16 ? 1 : dtype.bits == 32 ? 2 : 3](from, count, to);
}

static bool are_below(const int64_t *tokens, uint64_t count, uint64_t limit) {
    bool is_above = false;
    for (uint64_t i = 0; i < count; i++) is_above |= (uint64_t)tokens[i] >= limit;
    return !is_above;
}

uint64_t hr__widen(struct hr_dtype dtype, const void *from, uint64_t count, uint64_t limit, int64_t *ret_tokens) {
    uint64_t i = 0;
    bool is_uint64 = dtype.code == 1 && dtype.bits == 64;
    convert(dtype, from, count, ret_tokens);
    if (is_uint64 && (limit == 0 || limit > (uint64_t)INT64_MAX + 1)) limit = (uint64_t)INT64_MAX + 1;
    if (limit == 0 || are_below(ret_tokens, count, limit)) return count;
    while ((uint64_t)ret_tokens[i] < limit) i++;
    return i;
}
