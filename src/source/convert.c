/* SPDX-License-Identifier: Apache-2.0 */
/* Widens integers to int64, and rounds float64 to float32. */
#include "source/convert.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { INT = 0, UINT = 1, FLOAT = 2 };

/* Elements are loaded by memcpy, because a row may begin at any address. */
#define CONVERT(name, source, result)                                                                                  \
    static void name(void *restrict to, const void *restrict from, uint64_t count) {                                   \
        result *values = to;                                                                                           \
        for (uint64_t i = 0; i < count; i++) {                                                                         \
            source one;                                                                                                \
            memcpy(&one, (const char *)from + i * sizeof one, sizeof one);                                             \
            result value = (result)one;                                                                                \
            memcpy(&values[i], &value, sizeof value);                                                                  \
        }                                                                                                              \
    }
CONVERT(widen_int8, int8_t, int64_t)
CONVERT(widen_int16, int16_t, int64_t)
CONVERT(widen_int32, int32_t, int64_t)
CONVERT(widen_uint8, uint8_t, int64_t)
CONVERT(widen_uint16, uint16_t, int64_t)
CONVERT(widen_uint32, uint32_t, int64_t)
CONVERT(round_float64, double, float)
#undef CONVERT

static const struct {
    struct hr_dtype from, to;
    hr__convert *convert;
} conversions[] = {
    {{INT, 8, 1}, {INT, 64, 1}, widen_int8},         {{INT, 16, 1}, {INT, 64, 1}, widen_int16},
    {{INT, 32, 1}, {INT, 64, 1}, widen_int32},       {{UINT, 8, 1}, {INT, 64, 1}, widen_uint8},
    {{UINT, 16, 1}, {INT, 64, 1}, widen_uint16},     {{UINT, 32, 1}, {INT, 64, 1}, widen_uint32},
    {{FLOAT, 64, 1}, {FLOAT, 32, 1}, round_float64},
};

static bool is_same(struct hr_dtype a, struct hr_dtype b) {
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

hr__convert *hr__find_conversion(struct hr_dtype from, struct hr_dtype to) {
    for (size_t i = 0; i < sizeof conversions / sizeof *conversions; i++)
        if (is_same(conversions[i].from, from) && is_same(conversions[i].to, to)) return conversions[i].convert;
    return NULL;
}
