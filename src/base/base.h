/* SPDX-License-Identifier: Apache-2.0 */
/* Checked arithmetic, rounding, cleanup of variables, and small constants. */
#ifndef HR_BASE_BASE_H
#define HR_BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HR_NS_PER_S INT64_C(1000000000)
#define HR_CACHE_LINE 64

/* Calls `fn(&variable)` when the variable leaves its scope. hr_take moves a pointer out of such a variable. */
#define hr_cleanup(fn) __attribute__((cleanup(fn)))
#define hr_take(pointer)                                                                                               \
    __extension__({                                                                                                    \
        __typeof__(pointer) taken_ = (pointer);                                                                        \
        (pointer) = NULL;                                                                                              \
        taken_;                                                                                                        \
    })

/* Overflow-checked arithmetic: returns true and the result in `*ret`, or false on overflow, with `*ret` unchanged. */
static inline bool hr__add(uint64_t a, uint64_t b, uint64_t *ret) {
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return false;
    *ret = sum;
    return true;
}

static inline bool hr__mul(uint64_t a, uint64_t b, uint64_t *ret) {
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *ret = product;
    return true;
}

/* Rounds `value` up to a multiple of `step`, a power of two. The caller makes sure that it cannot overflow. */
static inline uint64_t hr__round_up(uint64_t value, uint64_t step) {
    return (value + step - 1) & ~(step - 1);
}

static inline uint64_t hr__min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static inline uint64_t hr__max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

#endif
