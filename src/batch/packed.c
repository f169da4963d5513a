/* SPDX-License-Identifier: Apache-2.0 */
#include "batch/packed.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>

#include "base/error.h"

/* The parts of a packed batch (hr_batch_add_packed). Each is computed while it is written to its final place, so the
 * tokens are read once for each part that contains them, and no copy of them is made. */

enum { INT = 0, UINT = 1 };

static bool is_readable(const struct hr_array *array) {
    const struct hr_dtype dtype = array->dtype;
    bool has_bits = dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || (dtype.bits == 64 && dtype.code == INT);
    return array->ndim == 1 && dtype.lanes == 1 && dtype.code <= UINT && has_bits && array->shape[0] >= 0 &&
           (array->data || !array->shape[0]);
}

int64_t hr__packed_count(const struct hr_array *documents, uint32_t count) {
    int64_t total = 0;
    if (!count) return hr__fail(-EINVAL, "batch: there are no documents to pack; give at least one");
    for (uint32_t i = 0; i < count; i++) {
        if (!is_readable(&documents[i]))
            return hr__fail(-EINVAL,
                            "batch: document %" PRIu32 " cannot be packed; give arrays of one dimension, of int8 to "
                            "int64 or uint8 to uint32",
                            i);
        if (__builtin_add_overflow(total, documents[i].shape[0], &total) || total > INT32_MAX)
            return hr__fail(-EINVAL, "batch: %" PRIu32 " documents have more than 2^31 - 1 elements; pack fewer",
                            count);
    }
    return total;
}

#define DEFINE_WIDEN(name, type)                                                                                       \
    static void widen_##name(const void *data, int64_t stride, int64_t count, int64_t *to) {                           \
        const type *from = data;                                                                                       \
        if (stride == 1)                                                                                               \
            for (int64_t i = 0; i < count; i++) to[i] = (int64_t)from[i];                                              \
        else                                                                                                           \
            for (int64_t i = 0; i < count; i++) to[i] = (int64_t)from[i * stride];                                     \
    }

DEFINE_WIDEN(int8, int8_t)
DEFINE_WIDEN(int16, int16_t)
DEFINE_WIDEN(int32, int32_t)
DEFINE_WIDEN(int64, int64_t)
DEFINE_WIDEN(uint8, uint8_t)
DEFINE_WIDEN(uint16, uint16_t)
DEFINE_WIDEN(uint32, uint32_t)

static void widen(const struct hr_array *array, int64_t *to) {
    bool is_signed = array->dtype.code == INT;
    void (*function)(const void *, int64_t, int64_t, int64_t *) = widen_int64;
    if (array->dtype.bits == 8) function = is_signed ? widen_int8 : widen_uint8;
    if (array->dtype.bits == 16) function = is_signed ? widen_int16 : widen_uint16;
    if (array->dtype.bits == 32) function = is_signed ? widen_int32 : widen_uint32;
    function(array->data, array->strides ? array->strides[0] : 1, array->shape[0], to);
}

static void write_tokens(const struct hr_array *documents, uint32_t count, bool is_masked, int64_t *to) {
    for (uint32_t i = 0; i < count; to += documents[i++].shape[0]) {
        widen(&documents[i], to);
        if (is_masked && documents[i].shape[0]) to[0] = HR_PACKED_IGNORED;
    }
}

static void write_positions(const struct hr_array *documents, uint32_t count, int64_t *to) {
    for (uint32_t i = 0; i < count; to += documents[i++].shape[0])
        for (int64_t k = 0; k < documents[i].shape[0]; k++) to[k] = k;
}

static void write_numbers(const struct hr_array *documents, uint32_t count, int32_t *to) {
    for (uint32_t i = 0; i < count; to += documents[i++].shape[0])
        for (int64_t k = 0; k < documents[i].shape[0]; k++) to[k] = (int32_t)i;
}

static void write_starts(const struct hr_array *documents, uint32_t count, int32_t *to) {
    int32_t start = 0;
    for (uint32_t i = 0; i < count; i++) {
        to[i] = start;
        start += (int32_t)documents[i].shape[0];
    }
    to[count] = start;
}

void hr__packed_write(enum hr_packed_part part, const struct hr_array *documents, uint32_t count, void *to) {
    if (part == HR_PACKED_TOKENS || part == HR_PACKED_LABELS)
        write_tokens(documents, count, part == HR_PACKED_LABELS, to);
    else if (part == HR_PACKED_POSITIONS)
        write_positions(documents, count, to);
    else if (part == HR_PACKED_NUMBERS)
        write_numbers(documents, count, to);
    else
        write_starts(documents, count, to);
}
