/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "cache/shared.h"

/* Changes elements of a shared array without a lock, each by one atomic step. */

enum operation { ADD, MAXIMUM };

/* An element as the word that is compared and swapped. */
union number {
    uint32_t word32;
    uint64_t word64;
    int32_t int32;
    int64_t int64;
    float float32;
    double float64;
};

enum hr__shared_kind hr__shared_kind(const char *dtype) {
    static const char *const names[] = {
        [SHARED_INT32] = "<i4", [SHARED_INT64] = "<i8", [SHARED_FLOAT32] = "<f4", [SHARED_FLOAT64] = "<f8"};
    for (int i = 0; i < SHARED_OTHER; i++)
        if (strcmp(names[i], dtype) == 0) return (enum hr__shared_kind)i;
    return SHARED_OTHER;
}

static union number add(enum hr__shared_kind kind, union number a, union number b) {
    switch (kind) {
    case SHARED_INT32:
        return (union number){.word32 = a.word32 + b.word32};
    case SHARED_INT64:
        return (union number){.word64 = a.word64 + b.word64};
    case SHARED_FLOAT32:
        return (union number){.float32 = a.float32 + b.float32};
    default:
        return (union number){.float64 = a.float64 + b.float64};
    }
}

/* NaN is larger than all numbers, as with numpy.maximum. */
static union number larger(enum hr__shared_kind kind, union number a, union number b) {
    switch (kind) {
    case SHARED_INT32:
        return a.int32 >= b.int32 ? a : b;
    case SHARED_INT64:
        return a.int64 >= b.int64 ? a : b;
    case SHARED_FLOAT32:
        return a.float32 >= b.float32 || a.float32 != a.float32 ? a : b;
    default:
        return a.float64 >= b.float64 || a.float64 != a.float64 ? a : b;
    }
}

static union number combine(enum hr__shared_kind kind, enum operation operation, union number a, union number b) {
    return operation == ADD ? add(kind, a, b) : larger(kind, a, b);
}

static union number change32(_Atomic uint32_t *at, enum hr__shared_kind kind, enum operation operation,
                             union number value) {
    union number before = {.word32 = atomic_load_explicit(at, memory_order_relaxed)};
    while (!atomic_compare_exchange_weak(at, &before.word32, combine(kind, operation, before, value).word32)) continue;
    return before;
}

static union number change64(_Atomic uint64_t *at, enum hr__shared_kind kind, enum operation operation,
                             union number value) {
    union number before = {.word64 = atomic_load_explicit(at, memory_order_relaxed)};
    while (!atomic_compare_exchange_weak(at, &before.word64, combine(kind, operation, before, value).word64)) continue;
    return before;
}

static int check(const hr_shared *shared, const uint64_t *elements, uint64_t count) {
    uint64_t all = shared->info.bytes / shared->info.element_bytes;
    const char *name = shared->cached->record.name;
    if (shared->kind == SHARED_OTHER)
        return hr__fail(-EINVAL,
                        "cache: '%s' has dtype '%s', whose elements cannot be changed without a lock; int32, int64, "
                        "float32 and float64 can",
                        name, shared->info.plan.dtype);
    for (uint64_t i = 0; i < count; i++)
        if (elements[i] >= all)
            return hr__fail(-ERANGE, "cache: '%s' has %" PRIu64 " elements, and no element %" PRIu64, name, all,
                            elements[i]);
    return 0;
}

/* The i-th of some numbers, which may not be aligned. */
static union number take(const void *values, uint64_t i, bool is_small) {
    union number value;
    if (is_small)
        memcpy(&value, (const unsigned char *)values + i * sizeof value.word32, sizeof value.word32);
    else
        memcpy(&value, (const unsigned char *)values + i * sizeof value.word64, sizeof value.word64);
    return value;
}

static void put(void *values, uint64_t i, union number value, bool is_small) {
    if (is_small)
        memcpy((unsigned char *)values + i * sizeof value.word32, &value, sizeof value.word32);
    else
        memcpy((unsigned char *)values + i * sizeof value.word64, &value, sizeof value.word64);
}

static int change(hr_shared *shared, enum operation operation, const uint64_t *elements, uint64_t count,
                  const void *values, int is_one, void *ret_before) {
    enum hr__shared_kind kind = shared->kind;
    bool is_small = kind == SHARED_INT32 || kind == SHARED_FLOAT32;
    int r = check(shared, elements, count);
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        union number value = take(values, is_one ? 0 : i, is_small);
        union number before =
            is_small ? change32((_Atomic uint32_t *)shared->info.data + elements[i], kind, operation, value)
                     : change64((_Atomic uint64_t *)shared->info.data + elements[i], kind, operation, value);
        if (ret_before) put(ret_before, i, before, is_small);
    }
    return r;
}

int hr_shared_add(hr_shared *shared, const uint64_t *elements, uint64_t count, const void *values, int is_one,
                  void *ret_before) {
    return change(shared, ADD, elements, count, values, is_one, ret_before);
}

int hr_shared_maximum(hr_shared *shared, const uint64_t *elements, uint64_t count, const void *values, int is_one,
                      void *ret_before) {
    return change(shared, MAXIMUM, elements, count, values, is_one, ret_before);
}
