/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"
#include "store/build.h"

/* A builder's containers. */

static int too_large(uint64_t count) {
    return hr__fail(-EFBIG, "store: a container of %" PRIu64 " items is larger than an image can be; split it", count);
}

static int list_tag(enum hr_kind kind, enum hr__item_layout layout, unsigned *ret_tag) {
    if (kind != HR_KIND_LIST && kind != HR_KIND_TUPLE)
        return hr__fail(-EINVAL, "store: only a list or a tuple can be packed, not a value of kind %d", (int)kind);
    *ret_tag = (kind == HR_KIND_LIST ? (unsigned)TAG_LIST : (unsigned)TAG_TUPLE) + (unsigned)layout;
    return 0;
}

/* `count` items of `each` bytes, with their count before them where the word has no room for it. */
static int make_counted(hr_builder *builder, unsigned tag, uint64_t count, unsigned each, hr_value *ret_value,
                        unsigned char **ret_items) {
    bool stands_before = count >= COUNT_STANDS_BEFORE;
    uint64_t bytes, offset = 0;
    if (!hr__mul(count, each, &bytes) || !hr__add(bytes, 8, &bytes)) return too_large(count);
    /* An empty one takes room too: what it is told apart by is where it stands. */
    int r = hr__builder_room(builder, count && !stands_before ? bytes - 8 : bytes, 8, &offset);
    if (r < 0) return r;
    *ret_items = builder->base + offset;
    if (stands_before) {
        memcpy(*ret_items, &count, sizeof count);
        *ret_items += sizeof count;
    }
    *ret_value = hr__word(tag, stands_before ? COUNT_STANDS_BEFORE : (unsigned)count, offset);
    return 0;
}

static void fill_with_none(unsigned char *words, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) memcpy(words + 8 * i, &(hr_value){TAG_NONE}, sizeof(hr_value));
}

static int make_words(hr_builder *builder, unsigned tag, uint64_t count, hr_value *ret_value) {
    unsigned char *items;
    int r = make_counted(builder, tag, count, 8, ret_value, &items);
    if (r == 0) fill_with_none(items, count);
    return r;
}

static int make_typed(hr_builder *builder, hr_value *ret_value) {
    uint64_t offset = 0;
    int r = hr__builder_room(builder, 16, 8, &offset);
    if (r < 0) return r;
    fill_with_none(builder->base + offset, 2);
    *ret_value = hr__word(TAG_TYPED, 0, offset);
    return 0;
}

/* ---- dicts and sets ---- */

static int make_dict(hr_builder *builder, unsigned tag, uint64_t count, hr_value *ret_value) {
    uint64_t offset = 0;
    if (count > HR__MOST_ITEMS) return too_large(count);
    struct dict_node node = {.count = count};
    int r = hr__builder_room(builder, sizeof node + count * 8, 8, &offset);
    if (r < 0) return r;
    memcpy(builder->base + offset, &node, sizeof node);
    fill_with_none(builder->base + offset + sizeof node, count);
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
        return hr__fail(-EINVAL, "store: a typed value has 2 items, not %" PRIu64, count);
    default:
        return hr__fail(-EINVAL, "store: a value of kind %d is no container", (int)kind);
    }
}

static int check_put(const struct hr_item *container, uint64_t index) {
    bool is_list = container->kind == HR_KIND_LIST || container->kind == HR_KIND_TUPLE;
    if ((is_list && container->layout != LAYOUT_WORDS) || container->kind < HR_KIND_LIST ||
        container->kind == HR_KIND_ARRAY)
        return hr__fail(-EINVAL, "store: nothing can be put into a value of kind %d%s", container->kind,
                        is_list ? " that is packed" : "");
    if (index >= container->count)
        return hr__fail(-ERANGE, "store: item %" PRIu64 " of a container of %" PRIu64, index, container->count);
    return 0;
}

/* The offset of a dict's entry, which is made if it is not there yet. */
static int find_entry(hr_builder *builder, uint64_t word_at, uint64_t *ret_offset) {
    hr_value word;
    memcpy(&word, builder->base + word_at, sizeof word);
    if (hr__word_tag(word) == TAG_ENTRY) {
        *ret_offset = hr__word_offset(word);
        return 0;
    }
    int r = hr__builder_room(builder, 16, 8, ret_offset);
    if (r < 0) return r;
    fill_with_none(builder->base + *ret_offset, 2);
    word = hr__word(TAG_ENTRY, 0, *ret_offset);
    memcpy(builder->base + word_at, &word, sizeof word);
    return 0;
}

/* `which`: 0: an item, or an entry's key; 8: an entry's value. */
static int put(hr_builder *builder, hr_value container, uint64_t index, uint64_t which, hr_value item) {
    struct hr__image image = hr__builder_image(builder);
    struct hr_item at, read;
    int r = hr__image_read(&image, container, &at);
    if (r < 0) return hr__fail(-EINVAL, "store: that is no container of this builder");
    r = hr__image_read(&image, item, &read);
    if (r < 0) return hr__fail(-EINVAL, "store: item %" PRIu64 " is no value of this builder", index);
    r = which && at.kind != HR_KIND_DICT ? hr__fail(-EINVAL, "store: only a dict's entries have values")
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

/* ---- the index of a dict ---- */

static unsigned slot_bits_for(uint64_t count) {
    unsigned bits = 4;
    while ((UINT64_C(1) << bits) < count + count / 2) bits++;
    return bits;
}

static void store_slot(hr_builder *builder, const struct hr_item *dict, uint64_t number, uint64_t slot) {
    uint64_t offset = (uint64_t)(dict->keyed.slots - builder->base) + number * dict->shape;
    memcpy(builder->base + offset, &slot, dict->shape);
}

/* Where the word for its slots is in a dict's node. */
static uint64_t slots_word_at(hr_value dict) {
    return hr__word_offset(dict) + offsetof(struct dict_node, slots);
}

/* Empty slots, for places up to here. */
static int make_slots(hr_builder *builder, hr_value dict, const struct hr_item *item) {
    uint64_t most = item->kind == HR_KIND_DICT ? (builder->used - hr__word_offset(dict)) / 8 : item->count;
    unsigned slot_bytes = most < (1 << SLOT4_INDEX_BITS) - 1 ? 4 : 8, slot_bits = slot_bits_for(item->count);
    uint64_t offset = 0;
    int r = hr__builder_room(builder, (uint64_t)slot_bytes << slot_bits, 8, &offset);
    if (r < 0) return r;
    hr_value slots = hr__word(false, slot_bytes << 8 | slot_bits, offset);
    memcpy(builder->base + slots_word_at(dict), &slots, sizeof slots);
    return 0;
}

/* The slots of a dict that cannot be indexed after all: they are the last that was made. */
static void drop_slots(hr_builder *builder, hr_value dict, const struct hr_item *item) {
    memset(builder->base + slots_word_at(dict), 0, sizeof(hr_value));
    if (!item->keyed.slots) return;
    uint64_t offset = (uint64_t)(item->keyed.slots - builder->base);
    memset(builder->base + offset, 0, builder->used - offset);
    builder->used = offset;
}

/* Enters item `index`. 1; 0: it cannot be looked up, or is there already. */
static int enter(hr_builder *builder, const struct hr__image *image, const struct hr_item *dict, uint64_t index) {
    struct hr__key_room room;
    struct hr_item item;
    struct hr_key key;
    room.used = 0;
    uint64_t place, found;
    int r = hr__image_place(image, dict, index, &place);
    if (r == 0) r = hr__image_at(image, dict, index, &item);
    if (r == 0) r = hr__key_of(image, &item, &room, &key);
    if (r <= 0) return r;
    uint64_t hash = hr__key_hash(&key, builder->seed);
    r = hr__key_find(image, dict, &key, hash, &found);
    if (r < 0) return r;
    if (!dict->keyed.slots) return found == place;
    if (r == 1) return 0;
    store_slot(builder, dict, found, hr__slot_of(dict->shape, hash, place - hr__first_place(image, dict)));
    return 1;
}

static int read_keyed(const hr_builder *builder, hr_value dict, struct hr__image *ret_image, struct hr_item *ret_item) {
    *ret_image = hr__builder_image(builder);
    int r = hr__image_read(ret_image, dict, ret_item);
    if (r < 0) return hr__fail_more(-EINVAL, "store: that is no dict of this builder");
    if (ret_item->kind != HR_KIND_DICT && ret_item->kind != HR_KIND_SET && ret_item->kind != HR_KIND_FROZEN_SET)
        return hr__fail(-EINVAL, "store: a value of kind %d has no keys", ret_item->kind);
    return 0;
}

int hr_builder_index(hr_builder *builder, hr_value dict) {
    struct hr__image image;
    struct hr_item item;
    int r = read_keyed(builder, dict, &image, &item);
    if (r == 0 && item.count > SCAN_MAX) {
        r = make_slots(builder, dict, &item);
        if (r == 0) r = read_keyed(builder, dict, &image, &item); /* what is mapped may have moved */
    }
    if (r < 0) return r;
    r = 1;
    for (uint64_t i = 0; r == 1 && i < item.count; i++) r = enter(builder, &image, &item, i);
    if (r == 1) builder->base[slots_word_at(dict)] = true; /* the word's tag */
    if (r == 0) drop_slots(builder, dict, &item);
    return r;
}

/* ---- packed lists ---- */

static int make_packed(hr_builder *builder, enum hr_kind kind, enum hr__item_layout layout, unsigned each,
                       uint64_t count, hr_value *ret_value, unsigned char **ret_items) {
    unsigned tag;
    int r = list_tag(kind, layout, &tag);
    return r < 0 ? r : make_counted(builder, tag, count, each, ret_value, ret_items);
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
    int r = list_tag(kind, LAYOUT_TEXTS, &tag);
    if (r < 0) return r;
    if (item_kind != HR_KIND_TEXT && item_kind != HR_KIND_BYTES)
        return hr__fail(-EINVAL, "store: a list of texts holds texts or bytes, not values of kind %d", (int)item_kind);
    struct texts_node node = {.count = count, .bytes = bytes, .width = bytes > UINT32_MAX ? 5 : 4};
    node.tag = item_kind == HR_KIND_BYTES ? TAG_BYTES : is_ascii ? TAG_ASCII : TAG_TEXT;
    uint64_t offset = 0;
    if (count >= HR__MOST_ITEMS || bytes >= HR__MOST_ITEMS) return too_large(count);
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
        return hr__fail(-ERANGE, "store: %" PRIu64 " texts of %" PRIu64 " bytes were announced; this is more",
                        texts->count, texts->room);
    if (count) memcpy(texts->bytes + texts->used, bytes, count);
    texts->used += count;
    texts->added++;
    memcpy(texts->offsets + texts->added * texts->width, &texts->used, texts->width);
    if (texts->guide) write_guide(texts);
    return 0;
}

/* ---- records ---- */

/* Where shape `number` is in the hash table, or could be. */
static uint32_t *shape_slot(hr_builder *builder, const unsigned char *node, uint64_t bytes) {
    uint32_t mask = builder->shape_slot_count - 1;
    uint32_t at = (uint32_t)hr__hash(node, bytes, builder->seed) & mask;
    for (; builder->shape_slots[at]; at = (at + 1) & mask) {
        const unsigned char *other = builder->base + builder->shapes[builder->shape_slots[at] - 1];
        if (!memcmp(other, node, sizeof(struct shape_node)) && !memcmp(other, node, bytes)) break;
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
    struct shape_node node;
    memcpy(&node, builder->base + builder->shapes[number], sizeof node);
    return sizeof node + node.field_count * UINT64_C(8);
}

static int make_room_for_shape(hr_builder *builder) {
    if (builder->shape_count < builder->shape_room) return 0;
    uint32_t room = builder->shape_room ? builder->shape_room * 2 : 64, slot_count = room * 2;
    uint64_t *shapes = hr__realloc(builder->shapes, room * sizeof *shapes);
    if (shapes) builder->shapes = shapes;
    uint32_t *slots = shapes ? hr__realloc(builder->shape_slots, slot_count * sizeof *slots) : NULL;
    if (!slots) return hr__fail(-ENOMEM, "store: no memory for %" PRIu32 " shapes of records", room);
    memset(slots, 0, slot_count * sizeof *slots);
    builder->shape_slots = slots;
    builder->shape_slot_count = slot_count;
    builder->shape_room = room;
    for (uint32_t i = 0; i < builder->shape_count; i++)
        *shape_slot(builder, builder->base + builder->shapes[i], shape_bytes(builder, i)) = i + 1;
    return 0;
}

int hr__builder_check_text(const hr_builder *builder, hr_value word, const char *what) {
    struct hr__image image = hr__builder_image(builder);
    struct hr_item item;
    if (hr__image_read(&image, word, &item) < 0)
        return hr__fail(-EINVAL, "store: %s is no value of this builder", what);
    if (item.kind == HR_KIND_TEXT) return 0;
    return hr__fail(-EINVAL, "store: %s is a value of kind %d, and has to be a text", what, item.kind);
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
        struct shape_node head;
        hr_value names[HR_STORE_MAX_FIELDS];
    } node;
    if (field_count > HR_STORE_MAX_FIELDS)
        return hr__fail(-EOVERFLOW, "store: a record has up to %d fields, not %" PRIu32, HR_STORE_MAX_FIELDS,
                        field_count);
    int r = check_shape(builder, type, names, field_count);
    if (r < 0) return r;
    node.head = (struct shape_node){.kind = (uint32_t)kind, .field_count = field_count, .type = type};
    if (field_count) memcpy(node.names, names, field_count * sizeof *names);
    uint64_t bytes = sizeof node.head + field_count * UINT64_C(8);
    r = make_room_for_shape(builder);
    if (r < 0) return r;
    uint32_t *slot = shape_slot(builder, (const unsigned char *)&node, bytes);
    if (!*slot) {
        if (builder->shape_count == HR_STORE_MAX_SHAPES)
            return hr__fail(-EOVERFLOW, "store: an image has up to %d shapes of records", HR_STORE_MAX_SHAPES);
        r = keep_shape(builder, slot, (const unsigned char *)&node, bytes);
        if (r < 0) return r;
    }
    *ret_number = *slot - 1;
    return 0;
}

static int shape_of(const hr_builder *builder, uint32_t number, struct shape_node *ret_shape) {
    struct hr__image image = hr__builder_image(builder);
    if (number >= builder->shape_count)
        return hr__fail(-EINVAL, "store: there is no shape %" PRIu32 " among %" PRIu32, number, builder->shape_count);
    return hr__image_shape(&image, number, ret_shape, NULL);
}

int hr_builder_record(hr_builder *builder, uint32_t shape, hr_value *ret_value) {
    struct shape_node node;
    uint64_t offset = 0;
    int r = shape_of(builder, shape, &node);
    if (r == 0) r = hr__builder_room(builder, hr__max(node.field_count * UINT64_C(8), 8), 8, &offset);
    if (r < 0) return r;
    fill_with_none(builder->base + offset, node.field_count);
    *ret_value = hr__word(TAG_RECORD, shape, offset);
    return 0;
}

int hr_builder_rows(hr_builder *builder, enum hr_kind kind, uint32_t shape, uint64_t count, hr_value *ret_value) {
    struct shape_node node;
    unsigned tag;
    uint64_t bytes, offset = 0;
    int r = list_tag(kind, LAYOUT_ROWS, &tag);
    if (r == 0) r = shape_of(builder, shape, &node);
    if (r < 0) return r;
    if (!node.field_count) return hr__fail(-EINVAL, "store: records without fields cannot be packed; use a list");
    if (!hr__mul(count, node.field_count * UINT64_C(8), &bytes) || bytes > UINT64_C(1) << 43) return too_large(count);
    struct rows_node head = {.count = count, .shape = shape};
    r = hr__builder_room(builder, sizeof head + bytes, 8, &offset);
    if (r < 0) return r;
    memcpy(builder->base + offset, &head, sizeof head);
    fill_with_none(builder->base + offset + sizeof head, bytes / 8);
    *ret_value = hr__word(tag, 0, offset);
    return 0;
}

int hr_builder_row(const hr_builder *builder, hr_value rows, uint64_t index, hr_value *ret_record) {
    struct hr__image image = hr__builder_image(builder);
    struct hr_item list, row;
    int r = hr__image_read(&image, rows, &list);
    if (r < 0 || (list.kind != HR_KIND_LIST && list.kind != HR_KIND_TUPLE) || list.layout != LAYOUT_ROWS)
        return hr__fail(-EINVAL, "store: that is no packed list of records");
    r = hr__image_at(&image, &list, index, &row);
    if (r == 0) *ret_record = row.value;
    return r;
}
