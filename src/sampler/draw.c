/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "permute.h"

#include <errno.h>
#include <math.h>

/* torch's random_from_to uses 64 bits from this range on: below, a remainder of 32 bits is at most 6 % off. */
static const int64_t wide_from = INT64_C(1) << 28;

int hr_mt19937_draw(struct hr_mt19937 *generator, int64_t n, int64_t count, int64_t *ret_indices) {
    if (n < 1) return hr__fail(-EINVAL, "sampler: cannot draw from n = %lld indices; give 1 or more", (long long)n);
    if (hr__check_count(count) < 0) return -EINVAL;
    for (int64_t i = 0; i < count; i++)
        ret_indices[i] = n < wide_from ? hr__mt19937_next32(generator) % (uint32_t)n
                                       : (int64_t)(hr__mt19937_next64(generator) % (uint64_t)n);
    return 0;
}

static int check_weight_count(int64_t n) {
    if (n < 1) return hr__fail(-EINVAL, "sampler: there are no weights; give one for each sample");
    if (n > HR_WEIGHTS_MAX)
        return hr__fail(-EINVAL, "sampler: there are %lld weights, and torch.multinomial takes at most 2^24 (%lld)",
                        (long long)n, (long long)HR_WEIGHTS_MAX);
    return 0;
}

static int check_weights(const double *weights, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(weights[i]) || weights[i] < 0)
            return hr__fail(-EINVAL, "sampler: weight %lld is %g; weights must be finite and not negative",
                            (long long)i, weights[i]);
        sum += weights[i];
    }
    if (sum == 0)
        return hr__fail(-EINVAL, "sampler: all %lld weights are 0; at least one must be positive", (long long)n);
    if (!isfinite(sum))
        return hr__fail(-EINVAL, "sampler: the sum of the %lld weights is infinite; scale them down", (long long)n);
    return 0;
}

int hr_weights_accumulate(const double *weights, int64_t n, double *ret_cumulative) {
    int r = check_weight_count(n);
    if (r == 0) r = check_weights(weights, n);
    if (r < 0) return r;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += weights[i];
        ret_cumulative[i] = sum;
    }
    for (int64_t i = 0; i < n; i++) ret_cumulative[i] /= sum;
    ret_cumulative[n - 1] = 1; /* as torch, which does not rely on sum / sum */
    return 0;
}

/* Returns the first index whose cumulative weight is not below `mass`. The last one is 1. */
static int64_t search(const double *cumulative, int64_t n, double mass) {
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (cumulative[middle] < mass)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int hr_weights_draw(struct hr_mt19937 *generator, const double *cumulative, int64_t n, int64_t count,
                    int64_t *ret_indices) {
    int r = check_weight_count(n);
    if (r < 0) return r;
    if (hr__check_count(count) < 0) return -EINVAL;
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = hr__mt19937_next64(generator) & ((UINT64_C(1) << 53) - 1);
        ret_indices[i] = search(cumulative, n, (double)bits * 0x1p-53);
    }
    return 0;
}
