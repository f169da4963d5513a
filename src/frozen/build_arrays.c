/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/base.h"
#include "base/error.h"
#include "frozen/build.h"

/* Arrays in frozen data that is being built. They are read in read_array.c. */

static int check_dimensions(uint32_t count) {
    if (count <= HR_FROZEN_MAX_DIMENSIONS) return 0;
    return hr__fail(-EINVAL, "frozen data: an array has up to %d dimensions, not %" PRIu32, HR_FROZEN_MAX_DIMENSIONS,
                    count);
}

static int count_bytes(uint32_t item_bytes, const uint64_t *dimensions, uint32_t count, uint64_t *ret_bytes) {
    uint64_t bytes = item_bytes;
    bool is_empty = false;
    for (uint32_t i = 0; i < count; i++) is_empty |= dimensions[i] == 0;
    for (uint32_t i = 0; i < count && !is_empty; i++)
        if (!hr__mul(bytes, dimensions[i], &bytes))
            return hr__fail(-EFBIG,
                            "frozen data: an array with a dimension of %" PRIu64
                            " is larger than frozen data can be; split it",
                            dimensions[i]);
    *ret_bytes = is_empty ? 0 : bytes;
    return 0;
}

/* Makes room for a node with `words` words after it, and, if node.data_at is 0, for the elements. */
static int make_array(hr_builder *builder, struct hr__array_node node, uint64_t words, unsigned char **ret_words,
                      hr_value *ret_value, void **ret_data) {
    uint64_t offset = 0, align = node.kind == HR_ARRAY_NUMPY_SCALAR ? 8 : ARRAY_ALIGN;
    bool has_own = !node.data_at;
    int r = hr__builder_check_text(builder, node.dtype, "the dtype of an array");
    if (r == 0) r = hr__builder_room(builder, sizeof node + words * 8, 8, &offset);
    if (r == 0 && has_own) r = hr__builder_room(builder, node.data_bytes, align, &node.data_at);
    if (r < 0) return r;
    memcpy(builder->base + offset, &node, sizeof node);
    *ret_words = builder->base + offset + sizeof node;
    *ret_value = hr__word(TAG_ARRAY, 0, offset);
    *ret_data = has_own ? builder->base + node.data_at : NULL;
    return 0;
}

int hr_builder_array(hr_builder *builder, enum hr_array_kind kind, hr_value dtype, uint32_t item_bytes,
                     const uint64_t *dimensions, uint32_t dimension_count, hr_value *ret_value, void **ret_data) {
    struct hr__array_node node = {
        .dtype = dtype, .kind = (uint32_t)kind, .item_bytes = item_bytes, .dimension_count = dimension_count};
    unsigned char *words;
    int r = check_dimensions(dimension_count);
    if (r == 0) r = count_bytes(item_bytes, dimensions, dimension_count, &node.data_bytes);
    if (r == 0) r = make_array(builder, node, dimension_count, &words, ret_value, ret_data);
    if (r == 0 && dimension_count) memcpy(words, dimensions, dimension_count * sizeof *dimensions);
    return r;
}

/* Finds the elements of another strided array. */
static int find_elements(const hr_builder *builder, hr_value other, uint64_t bytes, uint64_t *ret_data_at) {
    struct hr__contents contents = hr__builder_contents(builder);
    struct hr_item item;
    struct hr__array_node node;
    if (hr__contents_read(&contents, other, &item) < 0 || item.kind != HR_KIND_ARRAY)
        return hr__fail(-EINVAL, "frozen data: elements can be shared only with an array of this builder");
    memcpy(&node, item.data, sizeof node);
    if (!node.is_strided || node.data_bytes != bytes)
        return hr__fail(-EINVAL,
                        "frozen data: an array of %" PRIu64 " stored bytes cannot share those of one of %" PRIu64
                        ", or of one that is not strided",
                        bytes, node.data_bytes);
    *ret_data_at = node.data_at;
    return 0;
}

int hr_builder_strided(hr_builder *builder, const struct hr_frozen_array *layout, hr_value dtype, hr_value other,
                       hr_value *ret_value, void **ret_data) {
    struct hr__array_node node = {.dtype = dtype,
                                  .kind = layout->kind,
                                  .item_bytes = layout->item_bytes,
                                  .dimension_count = layout->dimension_count,
                                  .is_strided = 1,
                                  .data_bytes = layout->bytes};
    uint64_t part = layout->dimension_count * UINT64_C(8);
    unsigned char *words;
    int r = check_dimensions(layout->dimension_count);
    if (r == 0 && !hr__is_within(layout))
        r = hr__fail(-EINVAL, "frozen data: the strides of an array reach outside its %" PRIu64 " stored bytes",
                     layout->bytes);
    if (r == 0 && other) r = find_elements(builder, other, layout->bytes, &node.data_at);
    if (r == 0) r = make_array(builder, node, 2 * (part / 8) + 1, &words, ret_value, ret_data);
    if (r < 0) return r;
    memcpy(words, layout->dimensions, part);
    memcpy(words + part, layout->strides, part);
    memcpy(words + 2 * part, &layout->first, sizeof layout->first);
    return 0;
}
