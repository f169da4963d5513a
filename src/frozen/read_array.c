/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/base.h"
#include "base/error.h"
#include "frozen/format.h"
#include "frozen/frozen.h"

/* Reads arrays, and checks that their dimensions and strides stay within their elements. They are made in
 * build_arrays.c. */

static uint64_t magnitude(int64_t stride) {
    return stride < 0 ? -(uint64_t)stride : (uint64_t)stride;
}

/* Adds the reach of a dimension of at least one element, in elements, to `*below` or `*above`. */
static bool add_reach(uint64_t size, int64_t stride, uint64_t *below, uint64_t *above) {
    uint64_t reach, *side = stride < 0 ? below : above;
    return hr__mul(magnitude(stride), size - 1, &reach) && hr__add(*side, reach, side);
}

bool hr__is_within(const struct hr_frozen_array *array) {
    uint64_t below = 0, above = 0, places = 1;
    if (!array->item_bytes || array->bytes % array->item_bytes) return false;
    for (uint32_t i = 0; i < array->dimension_count; i++)
        if (!array->dimensions[i] || !hr__mul(places, array->dimensions[i], &places) ||
            !add_reach(array->dimensions[i], array->strides[i], &below, &above))
            return false;
    uint64_t stored = array->bytes / array->item_bytes;
    return places <= INT64_MAX && below <= array->first && array->first < stored && above < stored - array->first;
}

/* Returns true if the product of the dimensions and the item size is the size of the stored data. */
static bool is_filled(const struct hr_frozen_array *array) {
    uint64_t bytes = array->item_bytes;
    for (uint32_t i = 0; i < array->dimension_count; i++)
        if (!array->dimensions[i]) return array->bytes == 0;
    for (uint32_t i = 0; i < array->dimension_count; i++)
        if (!hr__mul(bytes, array->dimensions[i], &bytes)) return false;
    return bytes == array->bytes;
}

static void fill_strides(struct hr_frozen_array *array) {
    uint64_t step = 1; /* wraps if one dimension is 0 and another huge; strides have no meaning then */
    for (uint32_t i = array->dimension_count; i-- > 0; step *= array->dimensions[i]) array->strides[i] = (int64_t)step;
}

/* The stride of a dimension of one element is never used, so any stride in frozen data is read as 0. */
static void read_strides(struct hr_frozen_array *array, const unsigned char *at) {
    uint64_t part = array->dimension_count * UINT64_C(8);
    memcpy(array->strides, at, part);
    memcpy(&array->first, at + part, sizeof array->first);
    for (uint32_t i = 0; i < array->dimension_count; i++)
        if (array->dimensions[i] == 1) array->strides[i] = 0;
}

/* Reads dimensions and strides, from at most `room` bytes of frozen data. */
static bool read_layout(struct hr_frozen_array *array, const unsigned char *at, uint64_t room) {
    uint64_t count = array->dimension_count;
    if (array->is_strided > 1 || count > HR_FROZEN_MAX_DIMENSIONS) return false;
    if ((array->is_strided ? 2 * count + 1 : count) * 8 > room) return false;
    memcpy(array->dimensions, at, count * 8);
    if (array->is_strided)
        read_strides(array, at + count * 8);
    else
        fill_strides(array);
    return array->is_strided ? hr__is_within(array) : is_filled(array);
}

int hr_frozen_array(const hr_frozen *frozen, const struct hr_item *array, struct hr_frozen_array *ret_array) {
    struct hr__array_node node;
    if (array->kind != HR_KIND_ARRAY)
        return hr__fail(-EINVAL, "frozen data: a value of kind %d is not an array", array->kind);
    memcpy(&node, array->data, sizeof node);
    struct hr_frozen_array result = {.kind = node.kind,
                                     .item_bytes = node.item_bytes,
                                     .dimension_count = node.dimension_count,
                                     .is_strided = node.is_strided,
                                     .bytes = node.data_bytes};
    uint64_t at = (uint64_t)(array->data - frozen->contents.base) + sizeof node, end = frozen->contents.heap_end;
    if (node.kind < HR_ARRAY_NUMPY || node.kind > HR_ARRAY_TORCH || node.data_at > end ||
        node.data_bytes > end - node.data_at || !read_layout(&result, array->data + sizeof node, end - at))
        return hr__fail(HR_E_CORRUPT, "frozen data: an array's shape does not fit its data; freeze the data again");
    result.data = frozen->contents.base + node.data_at;
    int r = hr__contents_read(&frozen->contents, node.dtype, &result.dtype);
    if (r == 0) r = hr__item_must_be_text(&result.dtype, "an array's dtype");
    if (r == 0) *ret_array = result;
    return r;
}
