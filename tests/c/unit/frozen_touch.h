/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_FROZEN_TOUCH_H
#define HR_TESTS_FROZEN_TOUCH_H

/* Frozen data with a value of each kind, and a reader that touches every byte that it is given. */

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/face/face.h>
#include <headrace/headrace.h>

#define SURE(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) < 0) abort();                                                                                       \
    } while (0)

static inline hr_value build_text(hr_builder *builder, const char *text) {
    hr_value value;
    SURE(hr_builder_bytes_of(builder, HR_KIND_TEXT, text, strlen(text), &value));
    return value;
}

static inline hr_value build_int(hr_builder *builder, int64_t integer) {
    hr_value value;
    SURE(hr_builder_int(builder, integer, &value));
    return value;
}

/* {0: "value 0", ...}, with keys of several kinds. */
static inline hr_value build_dict(hr_builder *builder, int count) {
    hr_value dict, key;
    SURE(hr_builder_container(builder, HR_KIND_DICT, (uint64_t)count, &dict));
    for (int i = 0; i < count; i++) {
        char text[32] = "a key that is not so short ...";
        text[4] = (char)('0' + i % 10), text[20] = (char)('0' + i / 10);
        if (i % 4 == 0) key = build_int(builder, i);
        if (i % 4 == 1) key = build_text(builder, text);
        if (i % 4 == 2) SURE(hr_builder_bytes_of(builder, HR_KIND_BYTES, text, 30, &key));
        if (i % 4 == 3) {
            SURE(hr_builder_container(builder, HR_KIND_TUPLE, 2, &key));
            SURE(hr_builder_put(builder, key, 0, build_int(builder, i)));
            SURE(hr_builder_put(builder, key, 1, build_text(builder, "short")));
        }
        SURE(hr_builder_put(builder, dict, (uint64_t)i, key));
        SURE(hr_builder_put_entry(builder, dict, (uint64_t)i, build_text(builder, text)));
    }
    if (hr_builder_index(builder, dict) != 1) abort();
    return dict;
}

static inline hr_value build_numbers(hr_builder *builder) {
    hr_value list, value;
    int64_t *ints;
    int32_t *small;
    double *reals;
    SURE(hr_builder_container(builder, HR_KIND_TUPLE, 9, &list));
    SURE(hr_builder_put(builder, list, 0, build_int(builder, INT64_MIN)));
    SURE(hr_builder_put(builder, list, 1, build_int(builder, -7)));
    SURE(hr_builder_bytes_of(builder, HR_KIND_BIG_INT, "\1\2\3\4\5\6\7\10\11\12", 10, &value));
    SURE(hr_builder_put(builder, list, 2, value));
    SURE(hr_builder_float(builder, 0.1, &value));
    SURE(hr_builder_put(builder, list, 3, value));
    SURE(hr_builder_float(builder, -0.0, &value));
    SURE(hr_builder_put(builder, list, 4, value));
    SURE(hr_builder_complex(builder, 1, -2, &value));
    SURE(hr_builder_put(builder, list, 5, value));
    SURE(hr_builder_ints(builder, HR_KIND_LIST, 3, &value, &ints));
    memcpy(ints, (int64_t[]){1, INT64_MAX, -1}, 24);
    SURE(hr_builder_put(builder, list, 6, value));
    SURE(hr_builder_small_ints(builder, HR_KIND_LIST, 3, &value, &small));
    memcpy(small, (int32_t[]){1, INT32_MAX, -1}, 12);
    SURE(hr_builder_put(builder, list, 7, value));
    SURE(hr_builder_floats(builder, HR_KIND_TUPLE, 2, &value, &reals));
    memcpy(reals, (double[]){0.5, -3}, 16);
    SURE(hr_builder_put(builder, list, 8, value));
    return list;
}

static inline hr_value build_texts(hr_builder *builder, enum hr_kind item_kind) {
    static const char *const texts[] = {"", "one", "na\xc3\xafve", "the fourth of these texts"};
    struct hr_texts writer;
    hr_value value;
    SURE(hr_builder_texts(builder, HR_KIND_LIST, item_kind, 4, 3 + 6 + 25, 0, &value, &writer));
    for (int i = 0; i < 4; i++) SURE(hr_texts_add(&writer, texts[i], strlen(texts[i])));
    return value;
}

/* Builds as many texts as have a guide. */
static inline hr_value build_long_texts(hr_builder *builder) {
    enum { COUNT = 256 };
    struct hr_texts writer;
    hr_value value;
    SURE(hr_builder_texts(builder, HR_KIND_TUPLE, HR_KIND_TEXT, COUNT, COUNT, 1, &value, &writer));
    for (int i = 0; i < COUNT; i++) SURE(hr_texts_add(&writer, i % 3 ? "on" : "", i % 3 ? (uint64_t)i % 3 : 0));
    return value;
}

/* Records of one class: {name, box}. */
static inline hr_value build_records(hr_builder *builder, uint64_t count) {
    hr_value rows, row, names[2] = {build_text(builder, "name"), build_text(builder, "bounding box")};
    uint32_t shape;
    SURE(hr_builder_shape(builder, HR_SHAPE_OBJECT, build_text(builder, "boxes:Box"), names, 2, &shape));
    SURE(hr_builder_rows(builder, HR_KIND_LIST, shape, count, &rows));
    for (uint64_t i = 0; i < count; i++) {
        SURE(hr_builder_row(builder, rows, i, &row));
        SURE(hr_builder_put(builder, row, 0, build_text(builder, "the name of a box")));
        SURE(hr_builder_put(builder, row, 1, build_numbers(builder)));
    }
    return rows;
}

static inline hr_value build_array(hr_builder *builder) {
    hr_value value;
    void *data;
    SURE(
        hr_builder_array(builder, HR_ARRAY_NUMPY, build_text(builder, "<f4"), 4, (uint64_t[]){2, 3}, 2, &value, &data));
    memcpy(data, (float[]){1, 2, 3, 4, 5, 6}, 24);
    return value;
}

/* {{2, 1}, {3, 2}, {4, 3}} three times over, of 4 elements: strides of all signs. */
static inline hr_value build_strided(hr_builder *builder) {
    struct hr_frozen_array layout = {.kind = HR_ARRAY_NUMPY,
                                     .item_bytes = 4,
                                     .dimension_count = 3,
                                     .dimensions = {3, 3, 2},
                                     .strides = {0, 1, -1},
                                     .first = 1,
                                     .bytes = 16};
    hr_value value;
    void *data;
    SURE(hr_builder_strided(builder, &layout, build_text(builder, "<f4"), 0, &value, &data));
    memcpy(data, (float[]){1, 2, 3, 4}, 16);
    return value;
}

static inline hr_value build_rest(hr_builder *builder) {
    hr_value list, value, dict;
    SURE(hr_builder_container(builder, HR_KIND_LIST, 8, &list));
    SURE(hr_builder_put(builder, list, 0, hr_value_bool(1)));
    SURE(hr_builder_put(builder, list, 1, hr_value_bool(0)));
    SURE(hr_builder_bytes_of(builder, HR_KIND_PICKLE, "N.", 2, &value));
    SURE(hr_builder_put(builder, list, 2, value));
    SURE(hr_builder_bytes_of(builder, HR_KIND_BYTE_ARRAY, "", 0, &value));
    SURE(hr_builder_put(builder, list, 3, value));
    SURE(hr_builder_container(builder, HR_KIND_TYPED, 2, &value));
    SURE(hr_builder_put(builder, value, 0, build_text(builder, "Counter")));
    SURE(hr_builder_put(builder, value, 1, build_dict(builder, 3)));
    SURE(hr_builder_put(builder, list, 4, value));
    SURE(hr_builder_container(builder, HR_KIND_FROZEN_SET, 20, &dict));
    for (int i = 0; i < 20; i++) SURE(hr_builder_put(builder, dict, (uint64_t)i, build_int(builder, i * i)));
    if (hr_builder_index(builder, dict) != 1) abort();
    SURE(hr_builder_put(builder, list, 5, dict));
    SURE(hr_builder_put(builder, list, 6, list)); /* it holds itself; and item 7 is never put */
    return list;
}

static inline hr_value build_each_kind(hr_builder *builder) {
    hr_value list;
    SURE(hr_builder_container(builder, HR_KIND_LIST, 8, &list));
    SURE(hr_builder_put(builder, list, 0, build_numbers(builder)));
    SURE(hr_builder_put(builder, list, 1, build_dict(builder, 24)));
    SURE(hr_builder_put(builder, list, 2, build_texts(builder, HR_KIND_TEXT)));
    SURE(hr_builder_put(builder, list, 3, build_texts(builder, HR_KIND_BYTES)));
    SURE(hr_builder_put(builder, list, 4, build_records(builder, 3)));
    SURE(hr_builder_put(builder, list, 5, build_array(builder)));
    SURE(hr_builder_put(builder, list, 6, build_rest(builder)));
    hr_value last, texts = build_long_texts(builder);
    SURE(hr_builder_container(builder, HR_KIND_TUPLE, 2, &last)); /* what is before it stays where it is: fuzz/corpus */
    SURE(hr_builder_put(builder, list, 7, last));
    SURE(hr_builder_put(builder, last, 0, texts));
    SURE(hr_builder_put(builder, last, 1, build_strided(builder)));
    return list;
}

/* ---- touching ---- */

struct toucher {
    const hr_frozen *frozen;
    uint64_t left;          /* items that may still be read */
    uint64_t sum, failures; /* the sum of the bytes, and reads that failed */
};

static inline void touch_bytes(struct toucher *toucher, const void *bytes, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) toucher->sum += ((const unsigned char *)bytes)[i];
}

static inline void touch_value(struct toucher *toucher, const struct hr_item *item, int depth);

static inline void touch_result(struct toucher *toucher, int r, const struct hr_item *item, int depth) {
    if (r < 0) {
        toucher->failures++;
        if (r != HR_E_CORRUPT) abort();
    } else
        touch_value(toucher, item, depth);
}

static inline void touch_key(struct toucher *toucher, const struct hr_item *dict, const struct hr_item *item) {
    struct hr_key parts[2] = {{.kind = HR_KIND_TEXT, .count = 4, .bytes = "date"}, {.kind = HR_KIND_INT, .integer = 3}};
    struct hr_key key = {.kind = item->kind, .count = item->count};
    uint64_t index;
    if (!dict->is_native) return;
    if (item->kind == HR_KIND_TEXT || item->kind == HR_KIND_BYTES)
        key.bytes = hr_item_bytes(item);
    else if (item->kind == HR_KIND_INT || item->kind == HR_KIND_FLOAT)
        key.integer = item->integer;
    else if (item->kind == HR_KIND_TUPLE || item->kind == HR_KIND_TYPED)
        key.keys = parts, key.count = 2;
    else
        return;
    uint64_t hash = hr_frozen_hash(toucher->frozen, &key);
    for (int stage = 0; stage < 3; stage++) hr_frozen_prefetch_hash(toucher->frozen, dict, hash, stage);
    if (hr_frozen_find_hashed(toucher->frozen, dict, &key, hash, &index) < 0) toucher->failures++;
}

/* An item of a packed list of ASCII texts, without an item made of it. */
static inline void touch_text(struct toucher *toucher, const struct hr_item *container, uint64_t index) {
    const void *bytes;
    uint64_t count;
    int r = hr_frozen_text(toucher->frozen, container, index, &bytes, &count);
    if (r == 0) touch_bytes(toucher, bytes, count);
    if (r < 0 && r != -EINVAL) toucher->failures++;
}

static inline void touch_items(struct toucher *toucher, const struct hr_item *container, int depth) {
    struct hr_item item = {0};
    for (uint64_t i = 0; i < container->count && toucher->left; i++) {
        hr_frozen_prefetch(toucher->frozen, container, i, 0);
        hr_frozen_prefetch(toucher->frozen, container, i, 1);
        touch_text(toucher, container, i);
        int r = hr_frozen_at(toucher->frozen, container, i, &item);
        touch_result(toucher, r, &item, depth + 1);
        if (r == 0 && container->kind >= HR_KIND_DICT && container->kind <= HR_KIND_FROZEN_SET)
            touch_key(toucher, container, &item);
        if (container->kind == HR_KIND_DICT)
            touch_result(toucher, hr_frozen_entry(toucher->frozen, container, i, &item), &item, depth + 1);
    }
    if (hr_frozen_at(toucher->frozen, container, container->count, &item) != -ERANGE) abort();
}

static inline void touch_shape(struct toucher *toucher, uint32_t number, int depth) {
    struct hr_shape shape;
    struct hr_item name;
    int r = hr_frozen_shape(toucher->frozen, number, &shape);
    if (r < 0) {
        toucher->failures++;
        return;
    }
    for (uint32_t i = 0; i < shape.field_count && toucher->left; i++)
        touch_result(toucher, hr_frozen_field(toucher->frozen, number, i, &name), &name, depth + 1);
}

/* The places that are furthest to both sides. */
static inline void touch_corners(struct toucher *toucher, const struct hr_frozen_array *array) {
    uint64_t low = array->first, high = array->first;
    for (uint32_t i = 0; i < array->dimension_count; i++) {
        if (!array->dimensions[i]) return;
        uint64_t reach = (array->dimensions[i] - 1) * (uint64_t)array->strides[i]; /* below 0: wraps, and back */
        *(array->strides[i] < 0 ? &low : &high) += reach;
    }
    touch_bytes(toucher, (const char *)array->data + low * array->item_bytes, array->item_bytes);
    touch_bytes(toucher, (const char *)array->data + high * array->item_bytes, array->item_bytes);
}

static inline void touch_array(struct toucher *toucher, const struct hr_item *item) {
    struct hr_frozen_array array;
    if (hr_frozen_array(toucher->frozen, item, &array) < 0)
        toucher->failures++;
    else {
        touch_bytes(toucher, array.data, array.bytes);
        touch_corners(toucher, &array);
        touch_bytes(toucher, hr_item_bytes(&array.dtype), array.dtype.count);
    }
}

static inline void touch_value(struct toucher *toucher, const struct hr_item *item, int depth) {
    if (!toucher->left || depth > 8) return;
    toucher->left--;
    switch (item->kind) {
    case HR_KIND_BIG_INT:
    case HR_KIND_TEXT:
    case HR_KIND_BYTES:
    case HR_KIND_BYTE_ARRAY:
    case HR_KIND_PICKLE:
        touch_bytes(toucher, hr_item_bytes(item), item->count);
        break;
    case HR_KIND_ARRAY:
        touch_array(toucher, item);
        break;
    case HR_KIND_RECORD:
        touch_shape(toucher, item->shape, depth); /* fall through */
    case HR_KIND_LIST:
    case HR_KIND_TUPLE:
    case HR_KIND_DICT:
    case HR_KIND_SET:
    case HR_KIND_FROZEN_SET:
    case HR_KIND_TYPED:
        touch_items(toucher, item, depth);
        break;
    default:
        break;
    }
}

/* Opens the frozen data and reads all of it. 1: all could be read; 0: something in it is damaged; or why it was
 * refused. */
static inline int touch_contents(const void *contents, uint64_t bytes) {
    hr_frozen *frozen;
    int r = hr_frozen_open_memory(contents, bytes, 0, &frozen);
    if (r < 0) return r;
    struct toucher toucher = {.frozen = frozen, .left = 4000};
    struct hr_item root;
    touch_result(&toucher, hr_frozen_read(frozen, hr_frozen_root(frozen), &root), &root, 0);
    hr_frozen_verify(frozen);
    hr_frozen_close(frozen);
    return toucher.failures == 0;
}

#endif
