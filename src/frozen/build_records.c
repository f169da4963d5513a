/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/build.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"

/* Shapes, records, and packed lists of records. How they are read is in read_shape.c and read.c. */

/* Finds the slot of a shape in the hash table: the one with its number, or an empty one. */
static uint32_t *shape_slot(hr_builder *builder, const unsigned char *node, uint64_t bytes) {
    uint32_t mask = builder->shape_slot_count - 1;
    uint32_t at = (uint32_t)hr__hash(node, bytes, builder->seed) & mask;
    for (; builder->shape_slots[at]; at = (at + 1) & mask) {
        const unsigned char *other = builder->base + builder->shapes[builder->shape_slots[at] - 1];
        if (!memcmp(other, node, sizeof(struct hr__shape_node)) && !memcmp(other, node, bytes)) break;
    }
    return &builder->shape_slots[at];
}

static int keep_shape(hr_builder *builder, uint32_t *slot, const unsigned char *node, uint64_t bytes) {
    uint64_t offset = 0;
    int r = hr__builder_room(builder, bytes, 8, &offset);
    if (r < 0) return r;
    memcpy(builder->base + offset, node, bytes);
    builder->shapes[builder->shape_count++] = offset;
    *slot = builder->shape_count;
    return 0;
}

static uint64_t shape_bytes(const hr_builder *builder, uint32_t number) {
    struct hr__shape_node node;
    memcpy(&node, builder->base + builder->shapes[number], sizeof node);
    return sizeof node + node.field_count * UINT64_C(8);
}

static int make_room_for_shape(hr_builder *builder) {
    if (builder->shape_count < builder->shape_room) return 0;
    uint32_t room = builder->shape_room ? builder->shape_room * 2 : 64, slot_count = room * 2;
    uint64_t *shapes = hr__realloc(builder->shapes, room * sizeof *shapes);
    if (shapes) builder->shapes = shapes;
    uint32_t *slots = shapes ? hr__realloc(builder->shape_slots, slot_count * sizeof *slots) : NULL;
    if (!slots) return hr__fail(-ENOMEM, "frozen data: no memory for %" PRIu32 " shapes of records", room);
    memset(slots, 0, slot_count * sizeof *slots);
    builder->shape_slots = slots;
    builder->shape_slot_count = slot_count;
    builder->shape_room = room;
    for (uint32_t i = 0; i < builder->shape_count; i++)
        *shape_slot(builder, builder->base + builder->shapes[i], shape_bytes(builder, i)) = i + 1;
    return 0;
}

static int check_shape(const hr_builder *builder, hr_value type, const hr_value *names, uint32_t field_count) {
    int r = type == hr_value_none() ? 0 : hr__builder_check_text(builder, type, "the type of a shape");
    for (uint32_t i = 0; r == 0 && i < field_count; i++)
        r = hr__builder_check_text(builder, names[i], "a name in a shape");
    return r;
}

int hr_builder_shape(hr_builder *builder, enum hr_shape_kind kind, hr_value type, const hr_value *names,
                     uint32_t field_count, uint32_t *ret_number) {
    struct {
        struct hr__shape_node head;
        hr_value names[HR_FROZEN_MAX_FIELDS];
    } node;
    if (field_count > HR_FROZEN_MAX_FIELDS)
        return hr__fail(-EOVERFLOW, "frozen data: a record has up to %d fields, not %" PRIu32, HR_FROZEN_MAX_FIELDS,
                        field_count);
    int r = check_shape(builder, type, names, field_count);
    if (r < 0) return r;
    node.head = (struct hr__shape_node){.kind = (uint32_t)kind, .field_count = field_count, .type = type};
    if (field_count) memcpy(node.names, names, field_count * sizeof *names);
    uint64_t bytes = sizeof node.head + field_count * UINT64_C(8);
    r = make_room_for_shape(builder);
    if (r < 0) return r;
    uint32_t *slot = shape_slot(builder, (const unsigned char *)&node, bytes);
    if (!*slot) {
        if (builder->shape_count == HR_FROZEN_MAX_SHAPES)
            return hr__fail(-EOVERFLOW, "frozen data: frozen data has up to %d shapes of records",
                            HR_FROZEN_MAX_SHAPES);
        r = keep_shape(builder, slot, (const unsigned char *)&node, bytes);
        if (r < 0) return r;
    }
    *ret_number = *slot - 1;
    return 0;
}

static int shape_of(const hr_builder *builder, uint32_t number, struct hr__shape_node *ret_shape) {
    struct hr__contents contents = hr__builder_contents(builder);
    if (number >= builder->shape_count)
        return hr__fail(-EINVAL, "frozen data: there is no shape %" PRIu32 " among %" PRIu32, number,
                        builder->shape_count);
    return hr__contents_shape(&contents, number, ret_shape, NULL);
}

int hr_builder_record(hr_builder *builder, uint32_t shape, hr_value *ret_value) {
    struct hr__shape_node node = {0};
    uint64_t offset = 0;
    int r = shape_of(builder, shape, &node);
    if (r == 0) r = hr__builder_room(builder, hr__max(node.field_count * UINT64_C(8), 8), 8, &offset);
    if (r < 0) return r;
    hr__fill_with_none(builder->base + offset, node.field_count);
    *ret_value = hr__word(TAG_RECORD, shape, offset);
    return 0;
}

int hr_builder_rows(hr_builder *builder, enum hr_kind kind, uint32_t shape, uint64_t count, hr_value *ret_value) {
    struct hr__shape_node node = {0};
    unsigned tag;
    uint64_t bytes, offset = 0;
    int r = hr__builder_list_tag(kind, LAYOUT_ROWS, &tag);
    if (r == 0) r = shape_of(builder, shape, &node);
    if (r < 0) return r;
    if (!node.field_count) return hr__fail(-EINVAL, "frozen data: records without fields cannot be packed; use a list");
    if (!hr__mul(count, node.field_count * UINT64_C(8), &bytes) || bytes > UINT64_C(1) << 43)
        return hr__builder_too_large(count);
    struct hr__rows_node head = {.count = count, .shape = shape};
    r = hr__builder_room(builder, sizeof head + bytes, 8, &offset);
    if (r < 0) return r;
    memcpy(builder->base + offset, &head, sizeof head);
    hr__fill_with_none(builder->base + offset + sizeof head, bytes / 8);
    *ret_value = hr__word(tag, 0, offset);
    return 0;
}

int hr_builder_row(const hr_builder *builder, hr_value rows, uint64_t index, hr_value *ret_record) {
    struct hr__contents contents = hr__builder_contents(builder);
    struct hr_item list, row;
    int r = hr__contents_read(&contents, rows, &list);
    if (r < 0 || (list.kind != HR_KIND_LIST && list.kind != HR_KIND_TUPLE) || list.layout != LAYOUT_ROWS)
        return hr__fail(-EINVAL, "frozen data: that is not a packed list of records");
    r = hr__contents_at(&contents, &list, index, &row);
    if (r == 0) *ret_record = row.value;
    return r;
}
