/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/build.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/base.h"
#include "base/error.h"

/* Containers in frozen data that is being built: lists, tuples, dicts, sets and typed values, and how items are put
 * into them. Packed lists are in build_packed.c, records in build_records.c, the index of a dict in build_index.c. */

/* ---- what all containers share ---- */

int hr__builder_too_large(uint64_t count) {
    return hr__fail(-EFBIG, "frozen data: a container of %" PRIu64 " items is larger than frozen data can be; split it",
                    count);
}

int hr__builder_list_tag(enum hr_kind kind, enum hr__item_layout layout, unsigned *ret_tag) {
    if (kind != HR_KIND_LIST && kind != HR_KIND_TUPLE)
        return hr__fail(-EINVAL, "frozen data: only a list or a tuple can be packed, not a value of kind %d",
                        (int)kind);
    *ret_tag = (kind == HR_KIND_LIST ? (unsigned)TAG_LIST : (unsigned)TAG_TUPLE) + (unsigned)layout;
    return 0;
}

int hr__builder_counted(hr_builder *builder, unsigned tag, uint64_t count, unsigned each, hr_value *ret_value,
                        unsigned char **ret_items) {
    bool is_before = count >= COUNT_BEFORE_ITEMS;
    uint64_t bytes, offset = 0;
    if (!hr__mul(count, each, &bytes) || !hr__add(bytes, 8, &bytes)) return hr__builder_too_large(count);
    /* An empty container takes memory too, because its address is its identity. */
    int r = hr__builder_room(builder, count && !is_before ? bytes - 8 : bytes, 8, &offset);
    if (r < 0) return r;
    *ret_items = builder->base + offset;
    if (is_before) {
        memcpy(*ret_items, &count, sizeof count);
        *ret_items += sizeof count;
    }
    *ret_value = hr__word(tag, is_before ? COUNT_BEFORE_ITEMS : (unsigned)count, offset);
    return 0;
}

int hr__builder_check_text(const hr_builder *builder, hr_value word, const char *what) {
    struct hr__contents contents = hr__builder_contents(builder);
    struct hr_item item;
    if (hr__contents_read(&contents, word, &item) < 0)
        return hr__fail(-EINVAL, "frozen data: %s is not a value of this builder", what);
    if (item.kind == HR_KIND_TEXT) return 0;
    return hr__fail(-EINVAL, "frozen data: %s is a value of kind %d, but has to be a text", what, item.kind);
}

/* ---- lists and tuples of words, and typed values ---- */

static int make_words(hr_builder *builder, unsigned tag, uint64_t count, hr_value *ret_value) {
    unsigned char *items;
    int r = hr__builder_counted(builder, tag, count, 8, ret_value, &items);
    if (r == 0) hr__fill_with_none(items, count);
    return r;
}

static int make_typed(hr_builder *builder, hr_value *ret_value) {
    uint64_t offset = 0;
    int r = hr__builder_room(builder, 16, 8, &offset);
    if (r < 0) return r;
    hr__fill_with_none(builder->base + offset, 2);
    *ret_value = hr__word(TAG_TYPED, 0, offset);
    return 0;
}

/* ---- dicts and sets ---- */

static int make_dict(hr_builder *builder, unsigned tag, uint64_t count, hr_value *ret_value) {
    uint64_t offset = 0;
    if (count > HR__MOST_ITEMS) return hr__builder_too_large(count);
    struct hr__dict_node node = {.count = count};
    int r = hr__builder_room(builder, sizeof node + count * 8, 8, &offset);
    if (r < 0) return r;
    memcpy(builder->base + offset, &node, sizeof node);
    hr__fill_with_none(builder->base + offset + sizeof node, count);
    *ret_value = hr__word(tag, 0, offset);
    return 0;
}

int hr_builder_container(hr_builder *builder, enum hr_kind kind, uint64_t count, hr_value *ret_value) {
    switch (kind) {
    case HR_KIND_LIST:
        return make_words(builder, TAG_LIST, count, ret_value);
    case HR_KIND_TUPLE:
        return make_words(builder, TAG_TUPLE, count, ret_value);
    case HR_KIND_DICT:
        return make_dict(builder, TAG_DICT, count, ret_value);
    case HR_KIND_SET:
        return make_dict(builder, TAG_SET, count, ret_value);
    case HR_KIND_FROZEN_SET:
        return make_dict(builder, TAG_FROZEN_SET, count, ret_value);
    case HR_KIND_TYPED:
        if (count == 2) return make_typed(builder, ret_value);
        return hr__fail(-EINVAL, "frozen data: a typed value has 2 items, not %" PRIu64, count);
    default:
        return hr__fail(-EINVAL, "frozen data: a value of kind %d is not a container", (int)kind);
    }
}

static int check_put(const struct hr_item *container, uint64_t index) {
    bool is_list = container->kind == HR_KIND_LIST || container->kind == HR_KIND_TUPLE;
    if ((is_list && container->layout != LAYOUT_WORDS) || container->kind < HR_KIND_LIST ||
        container->kind == HR_KIND_ARRAY)
        return hr__fail(-EINVAL, "frozen data: nothing can be put into a value of kind %d%s", container->kind,
                        is_list ? " that is packed" : "");
    if (index >= container->count)
        return hr__fail(-ERANGE, "frozen data: item %" PRIu64 " of a container of %" PRIu64, index, container->count);
    return 0;
}

/* Finds the offset of a dict's entry, which is made if it does not exist yet. */
static int find_entry(hr_builder *builder, uint64_t word_at, uint64_t *ret_offset) {
    hr_value word;
    memcpy(&word, builder->base + word_at, sizeof word);
    if (hr__word_tag(word) == TAG_ENTRY) {
        *ret_offset = hr__word_offset(word);
        return 0;
    }
    int r = hr__builder_room(builder, 16, 8, ret_offset);
    if (r < 0) return r;
    hr__fill_with_none(builder->base + *ret_offset, 2);
    word = hr__word(TAG_ENTRY, 0, *ret_offset);
    memcpy(builder->base + word_at, &word, sizeof word);
    return 0;
}

/* `which`: 0 for an item or an entry's key, 8 for an entry's value. */
static int put(hr_builder *builder, hr_value container, uint64_t index, uint64_t which, hr_value item) {
    struct hr__contents contents = hr__builder_contents(builder);
    struct hr_item at, read;
    int r = hr__contents_read(&contents, container, &at);
    if (r < 0) return hr__fail(-EINVAL, "frozen data: that is not a container of this builder");
    r = hr__contents_read(&contents, item, &read);
    if (r < 0) return hr__fail(-EINVAL, "frozen data: item %" PRIu64 " is not a value of this builder", index);
    r = which && at.kind != HR_KIND_DICT ? hr__fail(-EINVAL, "frozen data: only a dict's entries have values")
                                         : check_put(&at, index);
    if (r < 0) return r;
    uint64_t offset = (uint64_t)(at.data - builder->base) + index * 8;
    if (at.kind == HR_KIND_DICT) r = find_entry(builder, offset, &offset);
    if (r < 0) return r;
    memcpy(builder->base + offset + which, &item, sizeof item);
    return 0;
}

int hr_builder_put(hr_builder *builder, hr_value container, uint64_t index, hr_value item) {
    return put(builder, container, index, 0, item);
}

int hr_builder_put_entry(hr_builder *builder, hr_value dict, uint64_t index, hr_value item) {
    return put(builder, dict, index, 8, item);
}
