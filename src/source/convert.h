/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of the elements of a row. */
#ifndef HR_SOURCE_CONVERT_H
#define HR_SOURCE_CONVERT_H

#include <stdint.h>

#include <headrace/batch.h>

/* Converts `count` elements from `from`, which is aligned in any way, to `to`. */
typedef void hr__convert(void *restrict to, const void *restrict from, uint64_t count);

/* Returns the conversion between two dtypes, or NULL. */
hr__convert *hr__find_conversion(struct hr_dtype from, struct hr_dtype to);

#endif
