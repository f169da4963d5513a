/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "cache/shared.h"

/* Changes elements of a shared array without a lock, each by one atomic step. */

enum kind { INT32, INT64, FLOAT32, FLOAT64, OTHER };
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

static enum kind kind_of(const char *dtype) {
    static const char *const names[] = {[INT32] = "<i4", [INT64] = "<i8", [FLOAT32] = "<f4", [FLOAT64] = "<f8"};
    for (int i = 0; i < OTHER; i++)
        if (strcmp(names[i], dtype) == 0) return (enum kind)i;
    return OTHER;
}

static union number add(enum kind kind, union number a, union number b) {
    switch (kind) {
    case INT32:
        return (union number){.word32 = a.word32 + b.word32};
    case INT64:
        return (union number){.word64 = a.word64 + b.word64};
    case FLOAT32:
        return (union number){.float32 = a.float32 + b.float32};
    default:
        return (union number){.float64 = a.float64 + b.float64};
    }
}

/* NaN is larger than all numbers, as with numpy.maximum. */
static union number larger(enum kind kind, union number a, union number b) {
    switch (kind) {
    case INT32:
        return a.int32 >= b.int32 ? a : b;
    case INT64:
        return a.int64 >= b.int64 ? a : b;
    case FLOAT32:
        return a.float32 >= b.float32 || a.float32 != a.float32 ? a : b;
    default:
        return a.float64 >= b.float64 || a.float64 != a.float64 ? a : b;
    }
}

static union number combine(enum kind kind, enum operation operation, union number a, union number b) {
    return operation == ADD ? add(kind, a, b) : larger(kind, a, b);
}

static union number change32(_Atomic uint32_t *at, enum kind kind, enum operation operation, union number value) {
    union number before = {.word32 = atomic_load_explicit(at, memory_order_relaxed)};
    while (!atomic_compare_exchange_weak(at, &before.word32, combine(kind, operation, before, value).word32)) continue;
    return before;
}

static union number change64(_Atomic uint64_t *at, enum kind kind, enum operation operation, union number value) {
    union number before = {.word64 = atomic_load_explicit(at, memory_order_relaxed)};
    while (!atomic_compare_exchange_weak(at, &before.word64, combine(kind, operation, before, value).word64)) continue;
    return before;
}

static int check(const hr_shared *shared, enum kind kind, const uint64_t *elements, uint64_t count) {
    uint64_t all = shared->info.bytes / shared->info.element_bytes;
    const char *name = shared->cached->record.name;
    if (kind == OTHER)
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

static int change(hr_shared *shared, enum operation operation, const uint64_t *elements, uint64_t count,
                  const void *values, int is_one, void *ret_before) {
    enum kind kind = kind_of(shared->info.plan.dtype);
    int r = check(shared, kind, elements, count);
    if (r < 0) return r;
    size_t size = (size_t)shared->info.element_bytes;
    for (uint64_t i = 0; i < count; i++) {
        union number value, before;
        void *at = (unsigned char *)shared->info.data + elements[i] * size;
        memcpy(&value, (const unsigned char *)values + (is_one ? 0 : i * size), size);
        before = size == sizeof(uint32_t) ? change32(at, kind, operation, value) : change64(at, kind, operation, value);
        if (ret_before) memcpy((unsigned char *)ret_before + i * size, &before, size);
    }
    return 0;
}

int hr_shared_add(hr_shared *shared, const uint64_t *elements, uint64_t count, const void *values, int is_one,
                  void *ret_before) {
    return change(shared, ADD, elements, count, values, is_one, ret_before);
}

int hr_shared_maximum(hr_shared *shared, const uint64_t *elements, uint64_t count, const void *values, int is_one,
                      void *ret_before) {
    return change(shared, MAXIMUM, elements, count, values, is_one, ret_before);
}
