/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_SAMPLER_MACHINES_H
#define HR_SAMPLER_MACHINES_H

#include <headrace/sampler.h>

/* Orders in which each machine keeps its samples (see hr_order_machines), for order.c. Positions are below n. */

int64_t hr__machines_at(const struct hr_order *order, int64_t position);
/* `step` is below n. */
void hr__machines_fill(const struct hr_order *order, uint64_t first, uint64_t step, int64_t count,
                       int64_t *ret_indices);

#endif
