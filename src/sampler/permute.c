/* SPDX-License-Identifier: Apache-2.0 */
/* Random permutations as torch's, which prefetch the places of several swaps. */
#include "permute.h"

#include "base/base.h"
#include "check.h"

#include <errno.h>

/*
 * A shuffle of a large table waits for memory at each swap. So the draws are made in groups: the places of a group are
 * drawn and prefetched, and are then swapped in order.
 */
enum { GROUP = 64 };

/* After the algorithms of torch/aten/src/ATen/native/TensorFactories.cpp, randperm_cpu. */
#define DEFINE_PERMUTE(type, name)                                                                                     \
    void hr__permute_narrow_##name(struct hr_mt19937 *generator, int64_t n, type *order) {                             \
        int64_t places[GROUP];                                                                                         \
        for (int64_t i = 0; i < n; i++) order[i] = (type)i;                                                            \
        for (int64_t first = 0; first < n - 1; first += GROUP) {                                                       \
            int64_t count = (int64_t)hr__min(GROUP, (uint64_t)(n - 1 - first));                                        \
            for (int64_t k = 0; k < count; k++) {                                                                      \
                int64_t i = first + k;                                                                                 \
                places[k] = i + hr__mt19937_next32(generator) % (uint32_t)(n - i);                                     \
                __builtin_prefetch(&order[places[k]], 1);                                                              \
            }                                                                                                          \
            for (int64_t k = 0; k < count; k++) {                                                                      \
                type swapped = order[first + k];                                                                       \
                order[first + k] = order[places[k]];                                                                   \
                order[places[k]] = swapped;                                                                            \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    void hr__permute_wide_##name(struct hr_mt19937 *generator, int64_t n, type *order) {                               \
        int64_t places[GROUP];                                                                                         \
        for (int64_t first = 0; first < n; first += GROUP) {                                                           \
            int64_t count = (int64_t)hr__min(GROUP, (uint64_t)(n - first));                                            \
            for (int64_t k = 0; k < count; k++) {                                                                      \
                places[k] = (int64_t)(hr__mt19937_next64(generator) % (uint64_t)(first + k + 1));                      \
                __builtin_prefetch(&order[places[k]], 1);                                                              \
            }                                                                                                          \
            for (int64_t k = 0; k < count; k++) {                                                                      \
                order[first + k] = (type)(first + k); /* places[k] may be this one */                                  \
                order[first + k] = order[places[k]];                                                                   \
                order[places[k]] = (type)(first + k);                                                                  \
            }                                                                                                          \
        }                                                                                                              \
    }

DEFINE_PERMUTE(int32_t, int32)
DEFINE_PERMUTE(int64_t, int64)

int hr_mt19937_permute_int32(struct hr_mt19937 *generator, int64_t n, int32_t *ret_order) {
    if (hr__check_n(n) < 0) return -EINVAL;
    if (n > (int64_t)INT32_MAX + 1)
        return hr__fail(-EINVAL, "sampler: indices below %lld do not fit into int32; use int64", (long long)n);
    (n < HR_PERMUTE_WIDE_FROM ? hr__permute_narrow_int32 : hr__permute_wide_int32)(generator, n, ret_order);
    return 0;
}

int hr_mt19937_permute_int64(struct hr_mt19937 *generator, int64_t n, int64_t *ret_order) {
    if (hr__check_n(n) < 0) return -EINVAL;
    (n < HR_PERMUTE_WIDE_FROM ? hr__permute_narrow_int64 : hr__permute_wide_int64)(generator, n, ret_order);
    return 0;
}
