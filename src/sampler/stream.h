/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_SAMPLER_STREAM_H
#define HR_SAMPLER_STREAM_H

#include <headrace/sampler.h>

/* Stream orders with n above HR_STREAM_SMALL: hr_order_stream describes them. Positions and indices are below n. */

uint64_t hr__stream_at(const struct hr_order *order, uint64_t position);
uint64_t hr__stream_find(const struct hr_order *order, uint64_t index);
/* `step` is below n. */
void hr__stream_fill(const struct hr_order *order, uint64_t first, uint64_t step, int64_t count, int64_t *ret_indices);

/* Sets the keys, or the table of a small order. `n` and `kind` are set. */
void hr__stream_start(struct hr_order *order, uint64_t seed, uint64_t epoch);

#endif
