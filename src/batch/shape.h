/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_BATCH_SHAPE_H
#define HR_BATCH_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <headrace/batch.h>

/* The arithmetic of shapes and strides. Functions that return int leave a message on failure. */

struct hr__size {
    uint64_t item_bytes;
    uint64_t elements;
    uint64_t bytes;
};

/* The memory of an array: below_bytes before its first element (negative strides), above_bytes from there on. */
struct hr__span {
    uint64_t below_bytes;
    uint64_t above_bytes;
};

/* -EINVAL (a dtype that is not of whole bytes, too many dimensions, negative size), -EOVERFLOW. After success the
 * strides of C order cannot overflow either, even if a dimension of 0 makes the array empty. */
int hr__array_size(struct hr_dtype dtype, uint32_t ndim, const int64_t *shape, struct hr__size *ret_size);

/* -EOVERFLOW. */
int hr__array_span(uint32_t ndim, const int64_t *shape, const int64_t *strides, const struct hr__size *size,
                   struct hr__span *ret_span);

/* Returns true if the bytes of the span, for a first element at `inside`, are in a storage of `storage_bytes`. */
bool hr__span_fits(const struct hr__span *span, uint64_t inside, uint64_t storage_bytes);

void hr__c_strides(uint32_t ndim, const int64_t *shape, int64_t *ret_strides);

/* Returns true if the elements fill one run of memory from the first element up, each place once, in any order of the
 * dimensions. */
bool hr__is_dense(uint32_t ndim, const int64_t *shape, const int64_t *strides);

/* Writes a description such as "float32 [3, 224, 224]" for messages. Returns `text`. */
const char *hr__array_text(const struct hr_array *array, char *text, size_t text_bytes);

#endif
