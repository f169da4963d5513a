/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/build.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"

/* Packed lists and tuples: numbers, texts and bytes. Packed lists of records are in build_records.c. */

static int make_packed(hr_builder *builder, enum hr_kind kind, enum hr__item_layout layout, unsigned each,
                       uint64_t count, hr_value *ret_value, unsigned char **ret_items) {
    unsigned tag;
    int r = hr__builder_list_tag(kind, layout, &tag);
    return r < 0 ? r : hr__builder_counted(builder, tag, count, each, ret_value, ret_items);
}

int hr_builder_ints(hr_builder *builder, enum hr_kind kind, uint64_t count, hr_value *ret_value, int64_t **ret_items) {
    unsigned char *items;
    int r = make_packed(builder, kind, LAYOUT_INT64, 8, count, ret_value, &items);
    if (r == 0) *ret_items = (int64_t *)(void *)items;
    return r;
}

int hr_builder_small_ints(hr_builder *builder, enum hr_kind kind, uint64_t count, hr_value *ret_value,
                          int32_t **ret_items) {
    unsigned char *items;
    int r = make_packed(builder, kind, LAYOUT_INT32, 4, count, ret_value, &items);
    if (r == 0) *ret_items = (int32_t *)(void *)items;
    return r;
}

int hr_builder_floats(hr_builder *builder, enum hr_kind kind, uint64_t count, hr_value *ret_value, double **ret_items) {
    unsigned char *items;
    int r = make_packed(builder, kind, LAYOUT_REAL, 8, count, ret_value, &items);
    if (r == 0) *ret_items = (double *)(void *)items;
    return r;
}

int hr_builder_texts(hr_builder *builder, enum hr_kind kind, enum hr_kind item_kind, uint64_t count, uint64_t bytes,
                     int is_ascii, hr_value *ret_value, struct hr_texts *ret_texts) {
    unsigned tag;
    int r = hr__builder_list_tag(kind, LAYOUT_TEXTS, &tag);
    if (r < 0) return r;
    if (item_kind != HR_KIND_TEXT && item_kind != HR_KIND_BYTES)
        return hr__fail(-EINVAL, "frozen data: a list of texts holds texts or bytes, not values of kind %d",
                        (int)item_kind);
    struct hr__texts_node node = {.count = count, .bytes = bytes, .width = bytes > UINT32_MAX ? 5 : 4};
    node.tag = item_kind == HR_KIND_BYTES ? TAG_BYTES : is_ascii ? TAG_ASCII : TAG_TEXT;
    uint64_t offset = 0;
    if (count >= HR__MOST_ITEMS || bytes >= HR__MOST_ITEMS) return hr__builder_too_large(count);
    uint64_t offsets_bytes = hr__offsets_bytes(count, node.width), guide_bytes = hr__guide_bytes(count, node.width);
    r = hr__builder_room(builder, sizeof node + offsets_bytes + guide_bytes + bytes, 8, &offset);
    if (r < 0) return r;
    unsigned char *at = builder->base + offset;
    memcpy(at, &node, sizeof node);
    *ret_value = hr__word(tag, 0, offset);
    *ret_texts = (struct hr_texts){.offsets = at + sizeof node,
                                   .guide = guide_bytes ? at + sizeof node + offsets_bytes : NULL,
                                   .bytes = at + sizeof node + offsets_bytes + guide_bytes,
                                   .count = count,
                                   .room = bytes,
                                   .width = node.width};
    return 0;
}

static void write_guide(struct hr_texts *texts) {
    uint64_t number = texts->added / GUIDE_STEP;
    if (texts->added % GUIDE_STEP == 0) memcpy(texts->guide + number * texts->width, &texts->used, texts->width);
    if (texts->added == texts->count) memcpy(texts->guide + (number + 1) * texts->width, &texts->used, texts->width);
}

int hr_texts_add(struct hr_texts *texts, const void *bytes, uint64_t count) {
    if (texts->added >= texts->count || count > texts->room - texts->used)
        return hr__fail(-ERANGE, "frozen data: %" PRIu64 " texts of %" PRIu64 " bytes were announced; this is more",
                        texts->count, texts->room);
    if (count) memcpy(texts->bytes + texts->used, bytes, count);
    texts->used += count;
    texts->added++;
    memcpy(texts->offsets + texts->added * texts->width, &texts->used, texts->width);
    if (texts->guide) write_guide(texts);
    return 0;
}
