/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "frozen/format.h"
#include "frozen/frozen.h"

/* Reads shapes: what the records of a packed list, or of one class, have in common. */

int hr__item_must_be_text(const struct hr_item *item, const char *what) {
    return item->kind == HR_KIND_TEXT
               ? 0
               : hr__fail(HR_E_CORRUPT, "frozen data: %s is not a text but of kind %d; freeze the data again", what,
                          item->kind);
}

int hr__contents_shape(const struct hr__contents *contents, uint64_t number, struct hr__shape_node *ret_shape,
                       const unsigned char **ret_names) {
    if (number >= contents->shape_count) return hr__contents_corrupt("a record's shape", 0);
    uint64_t offset = contents->shapes[number];
    const unsigned char *at = offset % 8 ? NULL : hr__span(contents, offset, sizeof *ret_shape);
    if (!at) return hr__contents_corrupt("a shape", offset);
    struct hr__shape_node shape;
    memcpy(&shape, at, sizeof shape);
    if (shape.field_count > HR_FROZEN_MAX_FIELDS ||
        !hr__span(contents, offset, sizeof shape + shape.field_count * UINT64_C(8)))
        return hr__contents_corrupt("a shape", offset);
    *ret_shape = shape;
    if (ret_names) *ret_names = at + sizeof shape;
    return 0;
}

int hr_frozen_shape(const hr_frozen *frozen, uint32_t number, struct hr_shape *ret_shape) {
    struct hr__shape_node node;
    struct hr_item type = {0};
    int r = hr__contents_shape(&frozen->contents, number, &node, NULL);
    if (r == 0) r = hr__contents_read(&frozen->contents, node.type, &type);
    if (r < 0) return r;
    if (node.kind < HR_SHAPE_DICT || node.kind > HR_SHAPE_TUPLE)
        return hr__fail(HR_E_CORRUPT, "frozen data: shape %" PRIu32 " has an unknown kind; freeze the data again",
                        number);
    if (node.kind != HR_SHAPE_DICT) r = hr__item_must_be_text(&type, "the class of a shape");
    if (r == 0) *ret_shape = (struct hr_shape){.kind = node.kind, .field_count = node.field_count, .type = type};
    return r;
}

int hr_frozen_field(const hr_frozen *frozen, uint32_t number, uint32_t field, struct hr_item *ret_name) {
    struct hr__shape_node node;
    const unsigned char *names;
    struct hr_item name = {0};
    hr_value word;
    int r = hr__contents_shape(&frozen->contents, number, &node, &names);
    if (r < 0) return r;
    if (field >= node.field_count)
        return hr__fail(-ERANGE, "frozen data: there is no field %" PRIu32 " among %" PRIu32, field, node.field_count);
    memcpy(&word, names + field * UINT64_C(8), sizeof word);
    r = hr__contents_read(&frozen->contents, word, &name);
    if (r == 0) r = hr__item_must_be_text(&name, "the name of a field");
    if (r == 0) *ret_name = name;
    return r;
}
