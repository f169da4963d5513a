/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_SAMPLER_PERMUTE_H
#define HR_SAMPLER_PERMUTE_H

#include <headrace/sampler.h>

/* torch.randperm's two algorithms, for any n that fits: see hr_mt19937_permute_int32. torch uses the wide one from
 * HR_PERMUTE_WIDE_FROM on, because there the remainder of a draw of 32 bits would favour small numbers. */

#define HR_PERMUTE_WIDE_FROM ((int64_t)(UINT32_MAX / 20))

/* The next word, and two words, of which the first is the high one. */
uint32_t hr__mt19937_next32(struct hr_mt19937 *generator);
uint64_t hr__mt19937_next64(struct hr_mt19937 *generator);

void hr__permute_narrow_int32(struct hr_mt19937 *generator, int64_t n, int32_t *ret_order);
void hr__permute_narrow_int64(struct hr_mt19937 *generator, int64_t n, int64_t *ret_order);
void hr__permute_wide_int32(struct hr_mt19937 *generator, int64_t n, int32_t *ret_order);
void hr__permute_wide_int64(struct hr_mt19937 *generator, int64_t n, int64_t *ret_order);

#endif
