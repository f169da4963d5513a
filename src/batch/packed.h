/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a packed batch, for the writer. */
#ifndef HR_BATCH_PACKED_H
#define HR_BATCH_PACKED_H

#include <headrace/batch.h>

/* Checks documents, and returns how many elements they have together, or -EINVAL. */
int64_t hr__packed_count(const struct hr_array *documents, uint32_t count);

/* Writes a part of a packed batch (enum hr_packed_part) to its place. */
void hr__packed_write(enum hr_packed_part part, const struct hr_array *documents, uint32_t count, void *to);

#endif
