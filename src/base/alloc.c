/* SPDX-License-Identifier: Apache-2.0 */
/* realloc and free, which a test can make fail. */
#include "base/alloc.h"

#include <stdlib.h>

#ifdef HR_FAILPOINTS
#include <stdatomic.h>
#include <stdbool.h>

static _Atomic uint64_t countdown;

void hr__alloc_fail_at(uint64_t nth) {
    atomic_store(&countdown, nth);
}

static bool must_fail(void) {
    uint64_t left = atomic_load(&countdown);
    while (left)
        if (atomic_compare_exchange_weak(&countdown, &left, left - 1)) return left == 1;
    return false;
}
#endif

void *hr__realloc(void *memory, size_t bytes) {
#ifdef HR_FAILPOINTS
    if (must_fail()) return NULL;
#endif
    return realloc(memory, bytes);
}

void hr__free(void *memory) {
    free(memory);
}
