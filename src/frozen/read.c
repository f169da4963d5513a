/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/base.h"
#include "base/error.h"
#include "frozen/format.h"

/*
 * Reads values, and the items of containers. Frozen data may contain any bytes, and a file may change while it is read.
 * So each word is loaded once, and the loaded copy is checked and used. Every span is compared with the end of the heap
 * before a byte of it is read.
 */

void hr__contents_set_corrupt(const char *what, uint64_t offset) {
    hr__fail(HR_E_CORRUPT,
             "frozen data: %s at byte %" PRIu64 " of the frozen data is damaged; freeze the data again, or open it "
             "with verify to see how much is damaged" HR_HELP("frozen-damaged"),
             what, offset);
}

/* ---- values ---- */

static const unsigned item_bytes_of[LAYOUT_COUNT] = {
    [LAYOUT_WORDS] = 8, [LAYOUT_INT32] = 4, [LAYOUT_INT64] = 8, [LAYOUT_REAL] = 8};

/* Reads the count of a value, from its word or from its node, and the address of its items. */
static int find_counted(const struct hr__contents *contents, hr_value word, unsigned each, struct hr_item *ret) {
    uint64_t offset = hr__word_offset(word), count = hr__word_count(word), bytes;
    if (count == COUNT_BEFORE_ITEMS) {
        const unsigned char *node = hr__span(contents, offset, 8);
        if (!node) return hr__contents_corrupt("a value", offset);
        count = hr__load8(node);
        offset += 8;
    }
    ret->data = hr__mul(count, each, &bytes) ? hr__span(contents, offset, bytes) : NULL;
    ret->count = count;
    return ret->data ? 0 : hr__contents_corrupt("a value", offset);
}

static int read_fixed(const struct hr__contents *contents, hr_value word, uint64_t bytes, void *to) {
    const unsigned char *node = hr__span(contents, hr__word_offset(word), bytes);
    if (!node) return hr__contents_corrupt("a number", hr__word_offset(word));
    memcpy(to, node, bytes);
    return 0;
}

static int read_texts(const struct hr__contents *contents, hr_value word, struct hr_item *ret) {
    struct hr__texts_node node;
    uint64_t offset = hr__word_offset(word), bytes;
    const unsigned char *at = hr__span(contents, offset, sizeof node);
    if (!at) return hr__contents_corrupt("a list of texts", offset);
    memcpy(&node, at, sizeof node);
    if ((node.width != 4 && node.width != 5) || node.count >= HR__MOST_ITEMS)
        return hr__contents_corrupt("a list of texts", offset);
    bytes = hr__offsets_bytes(node.count, node.width) + hr__guide_bytes(node.count, node.width);
    if (!hr__span(contents, offset + sizeof node, bytes)) return hr__contents_corrupt("a list of texts", offset);
    ret->data = at;
    ret->count = node.count;
    ret->is_ascii = node.tag == TAG_ASCII;
    if (node.width == 5) ret->layout = LAYOUT_WIDE_TEXTS;
    return 0;
}

static int read_rows(const struct hr__contents *contents, hr_value word, struct hr_item *ret) {
    struct hr__rows_node node;
    struct hr__shape_node shape;
    uint64_t offset = hr__word_offset(word), bytes;
    const unsigned char *at = hr__span(contents, offset, sizeof node);
    if (!at) return hr__contents_corrupt("a list of records", offset);
    memcpy(&node, at, sizeof node);
    int r = hr__contents_shape(contents, node.shape, &shape, NULL);
    if (r < 0) return r;
    if (!shape.field_count || !hr__mul(node.count, shape.field_count * UINT64_C(8), &bytes) ||
        !hr__span(contents, offset + sizeof node, bytes))
        return hr__contents_corrupt("a list of records", offset);
    ret->data = at + sizeof node;
    ret->count = node.count;
    ret->shape = node.shape;
    return 0;
}

static int read_list(const struct hr__contents *contents, hr_value word, unsigned layout, struct hr_item *ret) {
    ret->layout = (uint8_t)layout;
    ret->shape = UINT32_MAX;
    if (layout == LAYOUT_TEXTS) return read_texts(contents, word, ret);
    if (layout == LAYOUT_ROWS) return read_rows(contents, word, ret);
    if (layout >= LAYOUT_COUNT) return hr__contents_corrupt("a list", hr__word_offset(word));
    return find_counted(contents, word, item_bytes_of[layout], ret);
}

static int read_slots(const struct hr__contents *contents, hr_value slots, struct hr_item *ret) {
    unsigned slot_bytes = hr__word_count(slots) >> 8, slot_bits = hr__word_count(slots) & 0xFF;
    if ((slot_bytes != 4 && slot_bytes != 8) || slot_bits > 43)
        return hr__contents_corrupt("a dict or set", hr__word_offset(slots));
    ret->keyed.slots = hr__span(contents, hr__word_offset(slots), (uint64_t)slot_bytes << slot_bits);
    ret->is_native = hr__word_tag(slots) != 0;
    ret->layout = (uint8_t)slot_bits;
    ret->shape = slot_bytes;
    return ret->keyed.slots ? 0 : hr__contents_corrupt("a dict or set", hr__word_offset(slots));
}

static int read_dict(const struct hr__contents *contents, hr_value word, struct hr_item *ret) {
    struct hr__dict_node node;
    uint64_t offset = hr__word_offset(word), bytes;
    const unsigned char *at = hr__span(contents, offset, sizeof node);
    if (!at) return hr__contents_corrupt("a dict or set", offset);
    memcpy(&node, at, sizeof node);
    if (!hr__mul(node.count, 8, &bytes) || !hr__span(contents, offset + sizeof node, bytes))
        return hr__contents_corrupt("a dict or set", offset);
    ret->data = at + sizeof node;
    ret->count = node.count;
    if (hr__word_count(node.slots)) return read_slots(contents, node.slots, ret);
    ret->is_native = hr__word_tag(node.slots) && node.count <= SCAN_MAX;
    return 0;
}

static int read_record(const struct hr__contents *contents, hr_value word, struct hr_item *ret) {
    struct hr__shape_node shape;
    int r = hr__contents_shape(contents, hr__word_count(word), &shape, NULL);
    if (r < 0) return r;
    ret->shape = hr__word_count(word);
    ret->count = shape.field_count;
    ret->data = hr__span(contents, hr__word_offset(word), ret->count * 8);
    return ret->data ? 0 : hr__contents_corrupt("a record", hr__word_offset(word));
}

static int read_node(const struct hr__contents *contents, hr_value word, uint64_t bytes, uint64_t count,
                     struct hr_item *ret) {
    ret->data = hr__span(contents, hr__word_offset(word), bytes);
    ret->count = count;
    return ret->data ? 0 : hr__contents_corrupt("a value", hr__word_offset(word));
}

static int read_short(hr_value word, unsigned length, struct hr_item *ret) {
    uint64_t characters = word >> 8;
    if (characters & UINT64_C(0x80808080808080)) return hr__contents_corrupt("a text", 0);
    memcpy(ret->small, &characters, sizeof characters);
    ret->kind = HR_KIND_TEXT;
    ret->layout = 1; /* its bytes are in `small` */
    ret->is_ascii = 1;
    ret->count = length;
    return 0;
}

static int read_text(const struct hr__contents *contents, hr_value word, struct hr_item *ret) {
    ret->is_ascii = hr__word_tag(word) == TAG_ASCII;
    return find_counted(contents, word, 1, ret);
}

static const uint8_t kind_of[64] = {
    [TAG_NONE] = HR_KIND_NONE,
    [TAG_FALSE] = HR_KIND_FALSE,
    [TAG_TRUE] = HR_KIND_TRUE,
    [TAG_INT] = HR_KIND_INT,
    [TAG_INT64] = HR_KIND_INT,
    [TAG_BIG_INT] = HR_KIND_BIG_INT,
    [TAG_REAL] = HR_KIND_FLOAT,
    [TAG_REAL64] = HR_KIND_FLOAT,
    [TAG_COMPLEX] = HR_KIND_COMPLEX,
    [TAG_TEXT] = HR_KIND_TEXT,
    [TAG_ASCII] = HR_KIND_TEXT,
    [TAG_BYTES] = HR_KIND_BYTES,
    [TAG_BYTE_ARRAY] = HR_KIND_BYTE_ARRAY,
    [TAG_PICKLE] = HR_KIND_PICKLE,
    [TAG_SHORT] = HR_KIND_TEXT,
    [TAG_SHORT + 1] = HR_KIND_TEXT,
    [TAG_SHORT + 2] = HR_KIND_TEXT,
    [TAG_SHORT + 3] = HR_KIND_TEXT,
    [TAG_SHORT + 4] = HR_KIND_TEXT,
    [TAG_SHORT + 5] = HR_KIND_TEXT,
    [TAG_SHORT + 6] = HR_KIND_TEXT,
    [TAG_SHORT + 7] = HR_KIND_TEXT,
    [TAG_LIST] = HR_KIND_LIST,
    [TAG_LIST + LAYOUT_INT32] = HR_KIND_LIST,
    [TAG_LIST + LAYOUT_INT64] = HR_KIND_LIST,
    [TAG_LIST + LAYOUT_REAL] = HR_KIND_LIST,
    [TAG_LIST + LAYOUT_TEXTS] = HR_KIND_LIST,
    [TAG_LIST + LAYOUT_ROWS] = HR_KIND_LIST,
    [TAG_TUPLE] = HR_KIND_TUPLE,
    [TAG_TUPLE + LAYOUT_INT32] = HR_KIND_TUPLE,
    [TAG_TUPLE + LAYOUT_INT64] = HR_KIND_TUPLE,
    [TAG_TUPLE + LAYOUT_REAL] = HR_KIND_TUPLE,
    [TAG_TUPLE + LAYOUT_TEXTS] = HR_KIND_TUPLE,
    [TAG_TUPLE + LAYOUT_ROWS] = HR_KIND_TUPLE,
    [TAG_DICT] = HR_KIND_DICT,
    [TAG_SET] = HR_KIND_SET,
    [TAG_FROZEN_SET] = HR_KIND_FROZEN_SET,
    [TAG_RECORD] = HR_KIND_RECORD,
    [TAG_ARRAY] = HR_KIND_ARRAY,
    [TAG_TYPED] = HR_KIND_TYPED,
};

static int read_into(const struct hr__contents *contents, hr_value word, struct hr_item *item) {
    unsigned tag = hr__word_tag(word);
    item->kind = tag < sizeof kind_of ? kind_of[tag] : HR_KIND_INVALID;
    item->value = word;
    switch (item->kind) {
    case HR_KIND_NONE:
    case HR_KIND_FALSE:
    case HR_KIND_TRUE:
        return 0;
    case HR_KIND_INT:
        item->integer = (int64_t)word >> 8;
        return tag == TAG_INT ? 0 : read_fixed(contents, word, 8, &item->integer);
    case HR_KIND_FLOAT:
        memcpy(&item->real, &(uint64_t){word & ~UINT64_C(0xFF)}, sizeof item->real);
        return tag == TAG_REAL ? 0 : read_fixed(contents, word, 8, &item->real);
    case HR_KIND_COMPLEX:
        return read_fixed(contents, word, 16, &item->pair);
    case HR_KIND_TEXT:
        return tag >= TAG_SHORT ? read_short(word, tag - TAG_SHORT, item) : read_text(contents, word, item);
    case HR_KIND_BIG_INT:
    case HR_KIND_BYTES:
    case HR_KIND_BYTE_ARRAY:
    case HR_KIND_PICKLE:
        return find_counted(contents, word, 1, item);
    case HR_KIND_LIST:
        return read_list(contents, word, tag - TAG_LIST, item);
    case HR_KIND_TUPLE:
        return read_list(contents, word, tag - TAG_TUPLE, item);
    case HR_KIND_DICT:
    case HR_KIND_SET:
    case HR_KIND_FROZEN_SET:
        return read_dict(contents, word, item);
    case HR_KIND_RECORD:
        return read_record(contents, word, item);
    case HR_KIND_ARRAY:
        return read_node(contents, word, sizeof(struct hr__array_node), 0, item);
    case HR_KIND_TYPED:
        return read_node(contents, word, 16, 2, item);
    default:
        return hr__contents_corrupt("a value", hr__word_offset(word));
    }
}

int hr__contents_read(const struct hr__contents *contents, hr_value value, struct hr_item *ret_item) {
    *ret_item = (struct hr_item){0};
    return read_into(contents, value, ret_item);
}

const void *hr_item_bytes(const struct hr_item *item) {
    return item->kind == HR_KIND_TEXT && item->layout ? item->small : item->data;
}

/* ---- items ---- */

/* A memcpy of 5 bytes into a zero word would be slower: the processor would have to wait for the frozen data before it
 * can load the word. */
static inline uint64_t load_offset(const unsigned char *from, unsigned width) {
    uint32_t low;
    memcpy(&low, from, sizeof low);
    return width == 4 ? low : low | (uint64_t)from[4] << 32;
}

/* Prefetches the memory of a text, and some around it, while its offset is being loaded. It is a hint: if the guide is
 * damaged, other memory is prefetched. (If this is not inlined, gcc removes the call, because a function that only
 * prefetches seems to have no effect.) */
static inline __attribute__((always_inline)) void fetch_about(const unsigned char *bytes, const unsigned char *guide,
                                                              uint64_t number, unsigned width) {
    uint64_t begin = load_offset(guide, width), step = load_offset(guide + width, width) - begin;
    uintptr_t about = (uintptr_t)bytes + begin + step * number / GUIDE_STEP;
    for (int i = -1; i <= 3; i += 2) __builtin_prefetch((const void *)(about + (uintptr_t)(i * (HR_CACHE_LINE / 2))));
}

static inline const unsigned char *text_between(const struct hr__contents *contents, const struct hr_item *texts,
                                                uint64_t index, unsigned width, uint64_t *ret_count) {
    const unsigned char *offsets = texts->data + sizeof(struct hr__texts_node);
    uint64_t begin = load_offset(offsets + index * width, width),
             end = load_offset(offsets + (index + 1) * width, width);
    const unsigned char *guide = offsets + hr__offsets_bytes(texts->count, width);
    const unsigned char *bytes =
        guide + hr__guide_bytes(texts->count, width); /* read_texts has checked that they fit */
    if (texts->count >= GUIDED_MIN) fetch_about(bytes, guide + index / GUIDE_STEP * width, index % GUIDE_STEP, width);
    *ret_count = end - begin;
    return begin <= end && end <= (uint64_t)(contents->base + contents->heap_end - bytes) ? bytes + begin : NULL;
}

/* Returns the bytes of text `index` of a packed list; NULL: damaged. */
static inline const unsigned char *text_span(const struct hr__contents *contents, const struct hr_item *texts,
                                             uint64_t index, uint64_t *ret_count) {
    return texts->layout == LAYOUT_TEXTS ? text_between(contents, texts, index, 4, ret_count)
                                         : text_between(contents, texts, index, 5, ret_count);
}

__attribute__((cold)) static int corrupt_texts(const struct hr__contents *contents, const struct hr_item *texts) {
    return hr__contents_corrupt("a list of texts", (uint64_t)(texts->data - contents->base));
}

static int text_at(const struct hr__contents *contents, const struct hr_item *texts, uint64_t index,
                   struct hr_item *ret) {
    struct hr__texts_node node;
    memcpy(&node, texts->data, sizeof node);
    ret->data = text_span(contents, texts, index, &ret->count);
    ret->kind = node.tag == TAG_BYTES ? HR_KIND_BYTES : HR_KIND_TEXT;
    ret->is_ascii = texts->is_ascii;
    return ret->data ? 0 : corrupt_texts(contents, texts);
}

static hr_value row_value(const struct hr__contents *contents, const struct hr_item *rows, uint64_t index,
                          uint64_t row_bytes) {
    return hr__word(TAG_RECORD, rows->shape, (uint64_t)(rows->data - contents->base) + index * row_bytes);
}

static int row_at(const struct hr__contents *contents, const struct hr_item *rows, uint64_t index,
                  struct hr_item *ret) {
    struct hr__shape_node shape;
    int r = hr__contents_shape(contents, rows->shape, &shape, NULL);
    return r < 0 ? r : read_into(contents, row_value(contents, rows, index, shape.field_count * UINT64_C(8)), ret);
}

static int list_at(const struct hr__contents *contents, const struct hr_item *list, uint64_t index,
                   struct hr_item *ret) {
    int32_t small;
    switch (list->layout) {
    case LAYOUT_INT32:
        memcpy(&small, list->data + index * 4, sizeof small);
        ret->kind = HR_KIND_INT;
        ret->integer = small;
        return 0;
    case LAYOUT_INT64:
        ret->kind = HR_KIND_INT;
        memcpy(&ret->integer, list->data + index * 8, sizeof ret->integer);
        return 0;
    case LAYOUT_REAL:
        ret->kind = HR_KIND_FLOAT;
        memcpy(&ret->real, list->data + index * 8, sizeof ret->real);
        return 0;
    case LAYOUT_TEXTS:
    case LAYOUT_WIDE_TEXTS:
        return text_at(contents, list, index, ret);
    case LAYOUT_ROWS:
        return row_at(contents, list, index, ret);
    default:
        return read_into(contents, hr__load8(list->data + index * 8), ret);
    }
}

int hr__contents_place(const struct hr__contents *contents, const struct hr_item *dict, uint64_t index,
                       uint64_t *ret_place) {
    hr_value word = hr__load8(dict->data + index * 8);
    if (dict->kind == HR_KIND_DICT && hr__word_tag(word) != TAG_ENTRY)
        return hr__contents_corrupt("a dict", (uint64_t)(dict->data - contents->base));
    *ret_place = dict->kind == HR_KIND_DICT ? hr__word_offset(word) / 8 : index;
    return 0;
}

int hr__contents_words(const struct hr__contents *contents, const struct hr_item *dict, uint64_t place,
                       hr_value *ret_key, hr_value *ret_value) {
    const unsigned char *at = hr__words_at(contents, dict, place);
    if (!at) return hr__contents_corrupt("a dict or set", (uint64_t)(dict->data - contents->base));
    *ret_key = hr__load8(at);
    if (dict->kind == HR_KIND_DICT) *ret_value = hr__load8(at + 8);
    return 0;
}

static int key_at(const struct hr__contents *contents, const struct hr_item *dict, uint64_t index,
                  struct hr_item *ret) {
    uint64_t place;
    hr_value key, value;
    int r = hr__contents_place(contents, dict, index, &place);
    if (r == 0) r = hr__contents_words(contents, dict, place, &key, &value);
    return r < 0 ? r : read_into(contents, key, ret);
}

__attribute__((cold)) static int out_of_range(const struct hr_item *container, uint64_t index) {
    return hr__fail(-ERANGE, "frozen data: there is no item %" PRIu64 " among %" PRIu64, index, container->count);
}

int hr__contents_at(const struct hr__contents *contents, const struct hr_item *container, uint64_t index,
                    struct hr_item *ret_item) {
    if (index >= container->count) return out_of_range(container, index);
    *ret_item = (struct hr_item){0}; /* in place, because copying a struct would wait for the stores below */
    switch (container->kind) {
    case HR_KIND_LIST:
    case HR_KIND_TUPLE:
        return list_at(contents, container, index, ret_item);
    case HR_KIND_SET:
    case HR_KIND_FROZEN_SET:
    case HR_KIND_RECORD:
    case HR_KIND_TYPED:
        return read_into(contents, hr__load8(container->data + index * 8), ret_item);
    case HR_KIND_DICT:
        return key_at(contents, container, index, ret_item);
    default:
        return hr__fail(-EINVAL, "frozen data: a value of kind %d has no items", container->kind);
    }
}

int hr__contents_text(const struct hr__contents *contents, const struct hr_item *texts, uint64_t index,
                      const void **ret_bytes, uint64_t *ret_count) {
    bool is_packed = texts->layout == LAYOUT_TEXTS || texts->layout == LAYOUT_WIDE_TEXTS;
    if (!is_packed || !texts->is_ascii)
        return hr__fail(-EINVAL, "frozen data: that is not a packed list of ASCII texts");
    if (index >= texts->count) return out_of_range(texts, index);
    uint64_t count;
    const void *bytes = text_span(contents, texts, index, &count);
    if (!bytes) return corrupt_texts(contents, texts);
    *ret_bytes = bytes;
    *ret_count = count;
    return 0;
}
