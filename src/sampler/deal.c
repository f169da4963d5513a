/* SPDX-License-Identifier: Apache-2.0 */
/* The part of an order that one rank gets. */
#include <headrace/face/sampler.h>

#include "check.h"

#include <errno.h>

static int check_position(int64_t n, int64_t position, int64_t world_size) {
    if (hr__check_n(n) < 0) return -EINVAL;
    if (position < 0 || position > n)
        return hr__fail(-EINVAL, "sampler: position is %lld; of %lld samples it must be from 0 to %lld",
                        (long long)position, (long long)n, (long long)n);
    if (world_size < 1) return hr__fail(-EINVAL, "sampler: world_size is %lld; give 1 or more", (long long)world_size);
    return 0;
}

/* Returns how many of the positions rank, rank + world_size, ... are below `left`. */
static int64_t count_once(int64_t left, int64_t world_size, int64_t rank) {
    return rank < left ? (left - rank - 1) / world_size + 1 : 0;
}

int hr_deal_rank(int64_t n, int64_t position, int64_t world_size, int64_t rank, bool drop_last,
                 struct hr_deal *ret_deal) {
    if (check_position(n, position, world_size) < 0) return -EINVAL;
    if (rank < 0 || rank >= world_size)
        return hr__fail(-EINVAL, "sampler: rank is %lld; with world_size %lld it must be from 0 to %lld",
                        (long long)rank, (long long)world_size, (long long)world_size - 1);
    int64_t left = n - position, count = left / world_size + (!drop_last && left % world_size), total;
    if (__builtin_mul_overflow(count, world_size, &total) || total > INT64_MAX - position)
        return hr__fail(-EINVAL, "sampler: %lld samples cannot be padded for world_size %lld: there would be too many",
                        (long long)n, (long long)world_size);
    int64_t once = count_once(left, world_size, rank);
    int64_t first = n ? (position % n + rank % n) % n : 0;
    *ret_deal = (struct hr_deal){first, world_size, count, once < count ? once : count, total};
    return 0;
}

int64_t hr_deal_advance(int64_t n, int64_t position, int64_t world_size, int64_t batch_size, int64_t steps) {
    int64_t taken;
    if (check_position(n, position, world_size) < 0) return -EINVAL;
    if (batch_size < 1) return hr__fail(-EINVAL, "sampler: batch_size is %lld; give 1 or more", (long long)batch_size);
    if (steps < 0) return hr__fail(-EINVAL, "sampler: steps is %lld; give 0 or more", (long long)steps);
    if (steps == 0) return position;
    bool is_over = __builtin_mul_overflow(world_size, batch_size, &taken) ||
                   __builtin_mul_overflow(taken, steps, &taken) || taken > n - position;
    return is_over ? n : position + taken;
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
