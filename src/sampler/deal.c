/* SPDX-License-Identifier: Apache-2.0 */
#include <headrace/sampler.h>

#include "check.h"

#include <errno.h>

int hr_deal_rank(int64_t n, int64_t world_size, int64_t rank, bool drop_last, struct hr_deal *ret_deal) {
    if (hr__check_n(n) < 0) return -EINVAL;
    if (world_size < 1) return hr__fail(-EINVAL, "sampler: world_size is %lld; give 1 or more", (long long)world_size);
    if (rank < 0 || rank >= world_size)
        return hr__fail(-EINVAL, "sampler: rank is %lld; with world_size %lld it must be from 0 to %lld",
                        (long long)rank, (long long)world_size, (long long)world_size - 1);
    int64_t count = n / world_size + (!drop_last && n % world_size), total;
    if (__builtin_mul_overflow(count, world_size, &total))
        return hr__fail(-EINVAL, "sampler: %lld samples cannot be padded for world_size %lld: there would be too many",
                        (long long)n, (long long)world_size);
    *ret_deal = (struct hr_deal){n ? rank % n : 0, world_size, count, total};
    return 0;
}

/* An index never moves back, so it is read before its place is overwritten, except the last one if it continues at the
 * beginning. Only the last one can: the total is less than n + world_size. */
#define DEFINE_KEEP(type, name)                                                                                        \
    void hr_deal_keep_##name(const struct hr_deal *deal, int64_t n, type *table) {                                     \
        if (deal->count == 0) return;                                                                                  \
        int64_t end = deal->count - 1;                                                                                 \
        type last = table[(deal->first + end * deal->step) % n];                                                       \
        for (int64_t i = 0; i < end; i++) table[i] = table[deal->first + i * deal->step];                              \
        table[end] = last;                                                                                             \
    }

DEFINE_KEEP(int32_t, int32)
DEFINE_KEEP(int64_t, int64)
