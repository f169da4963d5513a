/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of any size become int64, and are compared with a limit. */
#include "tokens.h"

#include "source/convert.h"

#include <string.h>

static void convert(struct hr_dtype dtype, const void *from, uint64_t count, int64_t *to) {
    static const struct hr_dtype int64 = {0, 64, 1};
    if (dtype.bits == int64.bits)
        memcpy(to, from, count * sizeof *to);
    else
        hr__find_conversion(dtype, int64)(to, from, count);
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
