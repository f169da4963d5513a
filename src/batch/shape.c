/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes, strides and sizes of arrays, checked. */
#include "batch/shape.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/base.h"
#include "base/error.h"

/* Returns 0 if an element is not a whole number of bytes. */
static uint64_t item_size(struct hr_dtype dtype) {
    uint32_t bits = (uint32_t)dtype.bits * dtype.lanes;
    return bits % 8 ? 0 : bits / 8;
}

static int too_big(uint32_t ndim) {
    return hr__fail(-EOVERFLOW,
                    "batch: the size of an array of %" PRIu32 " dimensions does not fit 63 bits; check its "
                    "shape and strides",
                    ndim);
}

int hr__array_size(struct hr_dtype dtype, uint32_t ndim, const int64_t *shape, struct hr__size *ret_size) {
    uint64_t item_bytes = item_size(dtype);
    if (!item_bytes)
        return hr__fail(
            -EINVAL,
            "batch: an element of %u bits x %u lanes (dtype code %u) is not a whole number of bytes; convert "
            "the array to a dtype of whole bytes",
            dtype.bits, dtype.lanes, dtype.code);
    if (ndim > HR_BATCH_MAX_NDIM)
        return hr__fail(-EINVAL, "batch: array of %" PRIu32 " dimensions; reshape it to %d or fewer", ndim,
                        HR_BATCH_MAX_NDIM);

    uint64_t bytes = item_bytes; /* as if empty dimensions had one element */
    bool is_empty = false;
    for (uint32_t d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return hr__fail(-EINVAL,
                            "batch: dimension %" PRIu32 " of an array has size %" PRId64 "; sizes are 0 or more", d,
                            shape[d]);
        is_empty |= shape[d] == 0;
        if (!hr__mul(bytes, hr__max((uint64_t)shape[d], 1), &bytes) || bytes > INT64_MAX) return too_big(ndim);
    }
    if (is_empty) bytes = 0;
    *ret_size = (struct hr__size){.item_bytes = item_bytes, .elements = bytes / item_bytes, .bytes = bytes};
    return 0;
}

/* Adds the reach of one dimension, in elements. An empty dimension counts as size 1, so that a caller that multiplies
 * accepted sizes cannot overflow. */
static bool add_reach(struct hr__span *span, int64_t size, int64_t stride) {
    uint64_t step = stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
    uint64_t *side = stride < 0 ? &span->below_bytes : &span->above_bytes;
    uint64_t reach;
    return hr__mul(step, size ? (uint64_t)size - 1 : 0, &reach) && hr__add(*side, reach, side);
}

static bool scale(uint64_t *elements, uint64_t item_bytes) {
    return hr__mul(*elements, item_bytes, elements) && *elements <= INT64_MAX;
}

int hr__array_span(uint32_t ndim, const int64_t *shape, const int64_t *strides, const struct hr__size *size,
                   struct hr__span *ret_span) {
    struct hr__span span = {0, 1};
    for (uint32_t d = 0; d < ndim; d++)
        if (!add_reach(&span, shape[d], strides[d])) return too_big(ndim);
    if (!scale(&span.below_bytes, size->item_bytes) || !scale(&span.above_bytes, size->item_bytes))
        return too_big(ndim);
    *ret_span = size->elements ? span : (struct hr__span){0, 0};
    return 0;
}

bool hr__span_fits(const struct hr__span *span, uint64_t inside, uint64_t storage_bytes) {
    if (inside > storage_bytes) return false;
    return span->below_bytes <= inside && span->above_bytes <= storage_bytes - inside;
}

void hr__c_strides(uint32_t ndim, const int64_t *shape, int64_t *ret_strides) {
    int64_t stride = 1;
    for (uint32_t d = ndim; d-- > 0;) {
        ret_strides[d] = stride;
        stride *= shape[d] ? shape[d] : 1;
    }
}

/* Returns the dimension among those in `left` whose stride is `step`; or ndim. */
static uint32_t find_step(uint64_t left, uint32_t ndim, const int64_t *strides, int64_t step) {
    for (uint32_t d = 0; d < ndim; d++)
        if ((left >> d & 1) && strides[d] == step) return d;
    return ndim;
}

bool hr__is_dense(uint32_t ndim, const int64_t *shape, const int64_t *strides) {
    uint64_t left = 0; /* HR_BATCH_MAX_NDIM is 64 */
    for (uint32_t d = 0; d < ndim; d++) {
        if (shape[d] == 0) return true;
        if (shape[d] > 1) left |= UINT64_C(1) << d;
    }
    for (int64_t step = 1; left;) {
        uint32_t d = find_step(left, ndim, strides, step);
        if (d == ndim) return false;
        step *= shape[d];
        left &= ~(UINT64_C(1) << d);
    }
    return true;
}

const char *hr__array_text(const struct hr_array *array, char *text, size_t text_bytes) {
    static const char *const codes[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
    const char *code = array->dtype.code < sizeof codes / sizeof *codes ? codes[array->dtype.code] : "dtype";
    int used = snprintf(text, text_bytes, "%s%u", code, array->dtype.bits * (unsigned)array->dtype.lanes);
    for (uint32_t d = 0; d < array->ndim && (size_t)used < text_bytes; d++)
        used += snprintf(text + used, text_bytes - (size_t)used, "%s%" PRId64, d ? ", " : " [", array->shape[d]);
    if ((size_t)used < text_bytes) snprintf(text + used, text_bytes - (size_t)used, array->ndim ? "]" : " []");
    return text;
}
