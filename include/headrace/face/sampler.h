/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of orders, for our own faces: a part of a table, in place. */
#ifndef HEADRACE_FACE_SAMPLER_H
#define HEADRACE_FACE_SAMPLER_H

#include <headrace/sampler.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Moves the indices of one rank to table[0..deal->count-1], in the order that the deal gives; the rest of the table is
 * undefined afterwards. `deal` is from hr_deal_rank for the n of the table. */
HR_API void hr_deal_keep_int32(const struct hr_deal *deal, int64_t n, int32_t *table);
HR_API void hr_deal_keep_int64(const struct hr_deal *deal, int64_t n, int64_t *table);

#ifdef __cplusplus
}
#endif
#endif
