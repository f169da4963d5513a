/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "frozen/format.h"
#include "frozen_touch.h"

static hr_builder *open_builder(void) {
    hr_builder *builder = NULL;
    assert_int_equal(hr_builder_open(NULL, &builder), 0);
    return builder;
}

static hr_frozen *finish(hr_builder *builder, hr_value root) {
    hr_frozen *frozen = NULL;
    assert_int_equal(hr_builder_finish(builder, root, &frozen), 0);
    return frozen;
}

static struct hr_item read_root(const hr_frozen *frozen) {
    struct hr_item item;
    assert_int_equal(hr_frozen_read(frozen, hr_frozen_root(frozen), &item), 0);
    return item;
}

static struct hr_item item_at(const hr_frozen *frozen, const struct hr_item *container, uint64_t index) {
    struct hr_item item;
    assert_int_equal(hr_frozen_at(frozen, container, index, &item), 0);
    return item;
}

static void expect_text(const struct hr_item *item, const char *text) {
    assert_int_equal(item->kind, HR_KIND_TEXT);
    assert_int_equal(item->count, strlen(text));
    assert_memory_equal(hr_item_bytes(item), text, strlen(text));
}

static void numbers_come_back_bit_for_bit(void **state) {
    (void)state;
    static const int64_t ints[] = {0,         1,        -1, INT64_C(1) << 54, -(INT64_C(1) << 55), INT64_C(1) << 55,
                                   INT64_MAX, INT64_MIN};
    static const double reals[] = {0.0,   -0.0, 0.1, 1.0, -2.5, HUGE_VAL, -HUGE_VAL, 5e-324, 1.7976931348623157e308,
                                   224.24};
    enum { INTS = sizeof ints / sizeof *ints, REALS = sizeof reals / sizeof *reals };
    hr_builder *builder = open_builder();
    hr_value list, value;
    assert_int_equal(hr_builder_container(builder, HR_KIND_LIST, INTS + REALS, &list), 0);
    for (uint64_t i = 0; i < INTS; i++) hr_builder_put(builder, list, i, build_int(builder, ints[i]));
    for (uint64_t i = 0; i < REALS; i++) {
        assert_int_equal(hr_builder_float(builder, reals[i], &value), 0);
        hr_builder_put(builder, list, INTS + i, value);
    }
    hr_frozen *frozen = finish(builder, list);
    struct hr_item root = read_root(frozen);
    for (uint64_t i = 0; i < INTS; i++) assert_true(item_at(frozen, &root, i).integer == ints[i]);
    for (uint64_t i = 0; i < REALS; i++) {
        struct hr_item item = item_at(frozen, &root, INTS + i);
        assert_int_equal(item.kind, HR_KIND_FLOAT);
        assert_memory_equal(&item.real, &reals[i], sizeof(double));
    }
    hr_frozen_close(frozen);
}

static void a_list_longer_than_a_word_counts_is_whole(void **state) {
    (void)state;
    enum { COUNT = 70000 };
    hr_builder *builder = open_builder();
    hr_value list;
    assert_int_equal(hr_builder_container(builder, HR_KIND_LIST, COUNT, &list), 0);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(hr_builder_put(builder, list, (uint64_t)i, build_int(builder, i)), 0);
    hr_frozen *frozen = finish(builder, list);
    struct hr_item root = read_root(frozen), item;
    assert_int_equal(root.count, COUNT);
    for (int i = 0; i < COUNT; i++) assert_int_equal(item_at(frozen, &root, (uint64_t)i).integer, i);
    assert_int_equal(hr_frozen_at(frozen, &root, COUNT, &item), -ERANGE);
    hr_frozen_close(frozen);
}

static void texts_of_a_packed_list_come_back(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    hr_frozen *frozen = finish(builder, build_texts(builder, HR_KIND_TEXT));
    struct hr_item root = read_root(frozen), item;
    item = item_at(frozen, &root, 0);
    expect_text(&item, "");
    item = item_at(frozen, &root, 2);
    expect_text(&item, "na\xc3\xafve");
    item = item_at(frozen, &root, 3);
    expect_text(&item, "the fourth of these texts");
    hr_frozen_close(frozen);
}

static void texts_of_a_packed_list_of_ascii_are_read_without_items(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    struct hr_texts writer;
    hr_value value;
    const void *bytes = NULL;
    uint64_t count = 0;
    assert_int_equal(hr_builder_texts(builder, HR_KIND_TUPLE, HR_KIND_TEXT, 2, 8, 1, &value, &writer), 0);
    assert_int_equal(hr_texts_add(&writer, "one", 3), 0);
    assert_int_equal(hr_texts_add(&writer, "three", 5), 0);
    hr_frozen *frozen = finish(builder, value);
    struct hr_item root = read_root(frozen);
    assert_int_equal(hr_frozen_text(frozen, &root, 1, &bytes, &count), 0);
    assert_int_equal(count, 5);
    assert_memory_equal(bytes, "three", 5);
    assert_int_equal(hr_frozen_text(frozen, &root, 2, &bytes, &count), -ERANGE);
    struct hr_item item = item_at(frozen, &root, 0); /* is_ascii, and no list */
    assert_int_equal(hr_frozen_text(frozen, &item, 0, &bytes, &count), -EINVAL);
    hr_frozen_close(frozen);
    builder = open_builder();
    frozen = finish(builder, build_texts(builder, HR_KIND_TEXT)); /* not all are ASCII */
    root = read_root(frozen);
    assert_int_equal(hr_frozen_text(frozen, &root, 1, &bytes, &count), -EINVAL);
    hr_frozen_close(frozen);
}

/* `count` texts of 0 to 40 characters. */
static hr_value build_many_texts(hr_builder *builder, uint64_t count) {
    static const char characters[] = "the quick brown fox jumps over the lazy d";
    struct hr_texts writer;
    hr_value value;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < count; i++) bytes += i * i % 41;
    assert_int_equal(hr_builder_texts(builder, HR_KIND_LIST, HR_KIND_TEXT, count, bytes, 1, &value, &writer), 0);
    for (uint64_t i = 0; i < count; i++) assert_int_equal(hr_texts_add(&writer, characters, i * i % 41), 0);
    return value;
}

static void expect_many_texts(const hr_frozen *frozen, uint64_t count) {
    struct hr_item root = read_root(frozen);
    uint64_t bytes;
    const void *text;
    assert_int_equal(root.count, count);
    for (uint64_t i = 0; i < count; i++) {
        assert_int_equal(hr_frozen_text(frozen, &root, i, &text, &bytes), 0);
        assert_int_equal(bytes, i * i % 41);
        if (bytes) assert_memory_equal(text, "the quick brown fox jumps over the lazy d", bytes);
    }
}

static void long_lists_of_texts_are_read_with_a_guide(void **state) {
    (void)state;
    for (uint64_t count = GUIDED_MIN - 1; count <= GUIDED_MIN + GUIDE_STEP + 1; count++) {
        hr_builder *builder = open_builder();
        hr_frozen *frozen = finish(builder, build_many_texts(builder, count));
        expect_many_texts(frozen, count);
        hr_frozen_close(frozen);
    }
}

/* In memory that ends where the frozen data does. */
static void a_damaged_guide_changes_nothing_that_is_read(void **state) {
    (void)state;
    enum { COUNT = GUIDED_MIN + 7 };
    hr_builder *builder = open_builder();
    hr_frozen *frozen = finish(builder, build_many_texts(builder, COUNT));
    struct hr_frozen_info info;
    hr_frozen_look(frozen, &info);
    unsigned char *contents = NULL;
    assert_int_equal(posix_memalign((void **)&contents, 64, info.bytes), 0);
    memcpy(contents, info.contents, info.bytes);
    uint64_t node = sizeof(struct hr__frozen_header);
    memset(contents + node + sizeof(struct hr__texts_node) + hr__offsets_bytes(COUNT, 4), 0xEE,
           hr__guide_bytes(COUNT, 4));
    hr_frozen *damaged;
    assert_int_equal(hr_frozen_open_memory(contents, info.bytes, 0, &damaged), 0);
    expect_many_texts(damaged, COUNT);
    hr_frozen_close(damaged);
    hr_frozen_close(frozen);
    free(contents);
}

static void more_texts_than_announced_are_refused(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    struct hr_texts writer;
    hr_value value;
    assert_int_equal(hr_builder_texts(builder, HR_KIND_LIST, HR_KIND_TEXT, 1, 3, 1, &value, &writer), 0);
    assert_int_equal(hr_texts_add(&writer, "four", 4), -ERANGE);
    assert_int_equal(hr_texts_add(&writer, "abc", 3), 0);
    assert_int_equal(hr_texts_add(&writer, "", 0), -ERANGE);
    hr_builder_close(builder);
}

static int find_int(const hr_frozen *frozen, const struct hr_item *dict, int64_t integer, uint64_t *ret_place) {
    return hr_frozen_find(frozen, dict, &(struct hr_key){.kind = HR_KIND_INT, .integer = integer}, ret_place);
}

/* Is the key at that index? */
static void expect_found(const hr_frozen *frozen, const struct hr_item *dict, const struct hr_key *key,
                         uint64_t index) {
    uint64_t place = 0, expected = 1;
    assert_int_equal(hr_frozen_find(frozen, dict, key, &place), 1);
    assert_int_equal(hr_frozen_place(frozen, dict, index, &expected), 0);
    assert_int_equal(place, expected);
}

static void each_key_of_a_large_dict_is_found_and_no_other(void **state) {
    (void)state;
    enum { COUNT = 100000 };
    hr_builder *builder = open_builder();
    hr_value dict;
    uint64_t index;
    assert_int_equal(hr_builder_container(builder, HR_KIND_DICT, COUNT, &dict), 0);
    for (int i = 0; i < COUNT; i++) {
        hr_builder_put(builder, dict, (uint64_t)i, build_int(builder, i * 7));
        hr_builder_put_entry(builder, dict, (uint64_t)i, build_int(builder, i));
    }
    assert_int_equal(hr_builder_index(builder, dict), 1);
    hr_frozen *frozen = finish(builder, dict);
    struct hr_item root = read_root(frozen), value;
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(find_int(frozen, &root, i * 7, &index), 1);
        assert_int_equal(hr_frozen_value(frozen, &root, index, &value), 0);
        assert_int_equal(value.integer, i);
        assert_int_equal(find_int(frozen, &root, i * 7 + 1, &index), 0);
    }
    hr_frozen_close(frozen);
}

/* Entries may lie farther from their dict than narrow slots can say. */
static void a_dict_larger_than_narrow_slots_reach_has_wide_ones(void **state) {
    (void)state;
    enum { COUNT = 9, FAR_BYTES = 16 << 20 };
    hr_builder *builder = open_builder();
    hr_value dict, value;
    uint64_t place;
    char *bytes = calloc(1, FAR_BYTES);
    assert_int_equal(hr_builder_container(builder, HR_KIND_DICT, COUNT, &dict), 0);
    for (int i = 0; i < COUNT; i++) {
        hr_builder_put(builder, dict, (uint64_t)i, build_int(builder, i));
        assert_int_equal(hr_builder_bytes_of(builder, HR_KIND_BYTES, bytes, FAR_BYTES, &value), 0);
        hr_builder_put_entry(builder, dict, (uint64_t)i, value);
    }
    free(bytes);
    assert_int_equal(hr_builder_index(builder, dict), 1);
    hr_frozen *frozen = finish(builder, dict);
    struct hr_item root = read_root(frozen), item;
    assert_int_equal(root.shape, 8); /* bytes of a slot */
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(find_int(frozen, &root, i, &place), 1);
        assert_int_equal(hr_frozen_value(frozen, &root, place, &item), 0);
        assert_int_equal(item.count, FAR_BYTES);
    }
    assert_int_equal(find_int(frozen, &root, COUNT, &place), 0);
    hr_frozen_close(frozen);
}

static void keys_of_all_kinds_are_found(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    hr_frozen *frozen = finish(builder, build_dict(builder, 24));
    struct hr_item root = read_root(frozen);
    uint64_t index = 99;
    struct hr_key parts[2] = {{.kind = HR_KIND_FLOAT, .real = 7.0},
                              {.kind = HR_KIND_TEXT, .bytes = "short", .count = 5}};
    const struct hr_key zero = {.kind = HR_KIND_FALSE}, eight = {.kind = HR_KIND_FLOAT, .real = 8.0};
    const struct hr_key pair = {.kind = HR_KIND_TUPLE, .keys = parts, .count = 2}, none = {.kind = HR_KIND_NONE};
    expect_found(frozen, &root, &zero, 0);
    expect_found(frozen, &root, &eight, 8);
    expect_found(frozen, &root, &pair, 7);
    parts[0].real = 7.5;
    assert_int_equal(hr_frozen_find(frozen, &root, &pair, &index), 0);
    assert_int_equal(hr_frozen_find(frozen, &root, &none, &index), 0);
    for (uint64_t i = 0; i < root.count; i++) { /* the texts, by what stands there */
        struct hr_item item = item_at(frozen, &root, i);
        if (item.kind != HR_KIND_TEXT && item.kind != HR_KIND_BYTES) continue;
        struct hr_key key = {.kind = item.kind, .count = item.count, .bytes = hr_item_bytes(&item)};
        expect_found(frozen, &root, &key, i);
    }
    hr_frozen_close(frozen);
}

static void a_dict_with_other_keys_has_no_index(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    hr_value dict, nan;
    uint64_t index;
    hr_builder_container(builder, HR_KIND_DICT, 2, &dict);
    hr_builder_float(builder, NAN, &nan);
    hr_builder_put(builder, dict, 0, nan);
    hr_builder_put(builder, dict, 1, build_int(builder, 1));
    assert_int_equal(hr_builder_index(builder, dict), 0);
    hr_frozen *frozen = finish(builder, dict);
    struct hr_item root = read_root(frozen);
    assert_false(root.is_native);
    assert_int_equal(find_int(frozen, &root, 1, &index), -EINVAL);
    hr_frozen_close(frozen);
}

static void equal_keys_make_no_index(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    hr_value dict, one;
    hr_builder_container(builder, HR_KIND_DICT, 2, &dict);
    hr_builder_float(builder, 1.0, &one);
    hr_builder_put(builder, dict, 0, one);
    hr_builder_put(builder, dict, 1, hr_value_bool(1));
    assert_int_equal(hr_builder_index(builder, dict), 0);
    hr_builder_close(builder);
}

static void a_dict_without_an_index_keeps_no_room_for_one(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    hr_builder *builder = open_builder();
    hr_value dict;
    hr_builder_container(builder, HR_KIND_DICT, COUNT, &dict);
    for (int i = 0; i < COUNT; i++) hr_builder_put(builder, dict, (uint64_t)i, build_int(builder, i % (COUNT - 1)));
    uint64_t before = hr_builder_bytes(builder);
    assert_int_equal(hr_builder_index(builder, dict), 0);
    assert_int_equal(hr_builder_bytes(builder), before);
    hr_builder_put(builder, dict, COUNT - 1, build_int(builder, COUNT)); /* no key is there twice any more */
    assert_int_equal(hr_builder_index(builder, dict), 1);
    hr_frozen *frozen = finish(builder, dict);
    struct hr_item root = read_root(frozen);
    uint64_t place;
    for (int i = 0; i <= COUNT; i++) assert_int_equal(find_int(frozen, &root, i, &place), i != COUNT - 1);
    hr_frozen_close(frozen);
}

static void records_of_one_shape_share_it(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    hr_frozen *frozen = finish(builder, build_records(builder, 1000));
    struct hr_item root = read_root(frozen), row = item_at(frozen, &root, 999), field;
    struct hr_frozen_info info;
    struct hr_shape shape;
    hr_frozen_look(frozen, &info);
    assert_int_equal(info.shape_count, 1);
    assert_int_equal(root.shape, 0);
    assert_int_equal(row.kind, HR_KIND_RECORD);
    assert_int_equal(hr_frozen_shape(frozen, row.shape, &shape), 0);
    assert_int_equal(shape.kind, HR_SHAPE_OBJECT);
    expect_text(&shape.type, "boxes:Box");
    assert_int_equal(hr_frozen_field(frozen, row.shape, 1, &field), 0);
    expect_text(&field, "bounding box");
    field = item_at(frozen, &row, 0);
    expect_text(&field, "the name of a box");
    hr_frozen_close(frozen);
}

/* {TYPED (name, value): 1} */
static hr_frozen *store_of_typed_key(const char *name, hr_value (*make)(hr_builder *), int native) {
    hr_builder *builder = open_builder();
    hr_value dict, typed;
    assert_int_equal(hr_builder_container(builder, HR_KIND_DICT, 1, &dict), 0);
    assert_int_equal(hr_builder_container(builder, HR_KIND_TYPED, 2, &typed), 0);
    hr_builder_put(builder, typed, 0, build_text(builder, name));
    hr_builder_put(builder, typed, 1, make(builder));
    hr_builder_put(builder, dict, 0, typed);
    hr_builder_put_entry(builder, dict, 0, build_int(builder, 1));
    assert_int_equal(hr_builder_index(builder, dict), native);
    return finish(builder, dict);
}

static hr_value make_seven(hr_builder *builder) {
    return build_int(builder, 7);
}

static void words_that_are_not_values_are_refused(void **state) {
    (void)state;
    const hr_value garbage[] = {0, UINT64_C(0xDEADBEEFDEADBEEF), UINT64_MAX, hr__word(TAG_LIST, 1, UINT64_C(1) << 40)};
    hr_builder *builder = open_builder();
    hr_value list, dict, text = build_text(builder, "name"), one = build_int(builder, 1);
    uint32_t shape;
    assert_int_equal(hr_builder_container(builder, HR_KIND_LIST, 1, &list), 0);
    assert_int_equal(hr_builder_container(builder, HR_KIND_DICT, 1, &dict), 0);
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        assert_int_equal(hr_builder_put(builder, list, 0, garbage[i]), -EINVAL);
        assert_string_equal(hr_error_message(), "frozen data: item 0 is not a value of this builder");
        assert_int_equal(hr_builder_put(builder, garbage[i], 0, one), -EINVAL);
        assert_int_equal(hr_builder_put_entry(builder, dict, 0, garbage[i]), -EINVAL);
        assert_int_equal(hr_builder_shape(builder, HR_SHAPE_DICT, garbage[i], &text, 1, &shape), -EINVAL);
        assert_int_equal(hr_builder_shape(builder, HR_SHAPE_DICT, hr_value_none(), &garbage[i], 1, &shape), -EINVAL);
    }
    void *data;
    assert_int_equal(hr_builder_array(builder, HR_ARRAY_NUMPY, garbage[0], 4, NULL, 0, &list, &data), -EINVAL);
    assert_int_equal(hr_builder_array(builder, HR_ARRAY_NUMPY, one, 4, NULL, 0, &list, &data), -EINVAL);
    assert_int_equal(hr_builder_shape(builder, HR_SHAPE_OBJECT, one, &text, 1, &shape), -EINVAL);
    assert_int_equal(hr_builder_shape(builder, HR_SHAPE_DICT, hr_value_none(), &one, 1, &shape), -EINVAL);
    assert_non_null(strstr(hr_error_message(), "a name in a shape is a value of kind 4"));
    assert_int_equal(hr_builder_put(builder, list, 0, text), 0);
    hr_frozen *frozen = finish(builder, list);
    struct hr_item root = read_root(frozen), item = item_at(frozen, &root, 0);
    expect_text(&item, "name");
    hr_frozen_close(frozen);
}

static void typed_keys_are_found_by_name_and_value(void **state) {
    (void)state;
    uint64_t place;
    hr_frozen *frozen = store_of_typed_key("timedelta", make_seven, 1);
    struct hr_item root = read_root(frozen);
    struct hr_key parts[2] = {{.kind = HR_KIND_TEXT, .count = 9, .bytes = "timedelta"},
                              {.kind = HR_KIND_INT, .integer = 7}};
    struct hr_key key = {.kind = HR_KIND_TYPED, .count = 2, .keys = parts};
    assert_int_equal(hr_frozen_find(frozen, &root, &key, &place), 1);
    assert_int_equal(find_int(frozen, &root, 7, &place), 0);
    key.kind = HR_KIND_TUPLE;
    assert_int_equal(hr_frozen_find(frozen, &root, &key, &place), 0);
    key.kind = HR_KIND_TYPED;
    parts[0].bytes = "timedeltb";
    assert_int_equal(hr_frozen_find(frozen, &root, &key, &place), 0);
    hr_frozen_close(frozen);
}

static void typed_keys_that_equal_others_are_not_entered(void **state) {
    (void)state;
    hr_frozen_close(store_of_typed_key("Decimal", make_seven, 0));
    hr_frozen_close(store_of_typed_key("datetime", make_seven, 0)); /* not of nine parts */
    hr_frozen_close(store_of_typed_key("Path", make_seven, 0));
}

static void the_same_text_is_stored_once(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    hr_value first = build_text(builder, "a text of some length");
    uint64_t bytes = hr_builder_bytes(builder);
    assert_true(build_text(builder, "a text of some length") == first);
    assert_int_equal(hr_builder_bytes(builder), bytes);
    hr_builder_close(builder);
}

static void an_array_is_aligned_and_has_its_shape(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    hr_frozen *frozen = finish(builder, build_array(builder));
    struct hr_item root = read_root(frozen);
    struct hr_frozen_array array;
    assert_int_equal(hr_frozen_array(frozen, &root, &array), 0);
    assert_int_equal((uintptr_t)array.data % 64, 0);
    assert_int_equal(array.dimension_count, 2);
    assert_int_equal(array.dimensions[1], 3);
    assert_true(((const float *)array.data)[5] == 6);
    expect_text(&array.dtype, "<f4");
    hr_frozen_close(frozen);
}

static struct hr_frozen_array layout_of(uint64_t first, uint64_t bytes) {
    return (struct hr_frozen_array){.kind = HR_ARRAY_NUMPY,
                                    .item_bytes = 4,
                                    .dimension_count = 2,
                                    .dimensions = {3, 2},
                                    .strides = {1, -1},
                                    .first = first,
                                    .bytes = bytes};
}

static void a_strided_array_has_each_element_once(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    hr_frozen *frozen = finish(builder, build_strided(builder));
    struct hr_item root = read_root(frozen);
    struct hr_frozen_array array;
    assert_int_equal(hr_frozen_array(frozen, &root, &array), 0);
    assert_int_equal(array.is_strided, 1);
    assert_int_equal(array.bytes, 16);
    assert_int_equal(array.first, 1);
    assert_int_equal(array.dimensions[0], 3);
    assert_true(array.strides[0] == 0 && array.strides[1] == 1 && array.strides[2] == -1);
    assert_int_equal((uintptr_t)array.data % 64, 0);
    assert_true(((const float *)array.data)[3] == 4);
    hr_frozen_close(frozen);
}

static void strided_arrays_share_what_is_stored(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    hr_value pair, other, dtype = build_text(builder, "<f4"), first = build_strided(builder);
    struct hr_frozen_array arrays[2], layout = layout_of(1, 16);
    void *data = builder;
    assert_int_equal(hr_builder_container(builder, HR_KIND_LIST, 2, &pair), 0);
    assert_int_equal(hr_builder_strided(builder, &layout, dtype, first, &other, &data), 0);
    assert_null(data);
    assert_int_equal(hr_builder_put(builder, pair, 0, first), 0);
    assert_int_equal(hr_builder_put(builder, pair, 1, other), 0);
    assert_int_equal(hr_builder_strided(builder, &layout, dtype, pair, &other, &data), -EINVAL);
    assert_int_equal(hr_builder_strided(builder, &layout, dtype, build_array(builder), &other, &data), -EINVAL);
    layout.bytes = 20;
    assert_int_equal(hr_builder_strided(builder, &layout, dtype, first, &other, &data), -EINVAL);
    hr_frozen *frozen = finish(builder, pair);
    struct hr_item root = read_root(frozen);
    for (uint64_t i = 0; i < 2; i++) {
        struct hr_item item = item_at(frozen, &root, i);
        assert_int_equal(hr_frozen_array(frozen, &item, &arrays[i]), 0);
    }
    assert_ptr_equal(arrays[0].data, arrays[1].data);
    hr_frozen_close(frozen);
}

static void expect_outside(hr_builder *builder, const struct hr_frozen_array *layout) {
    hr_value value;
    void *data;
    assert_int_equal(hr_builder_strided(builder, layout, build_text(builder, "<f4"), 0, &value, &data), -EINVAL);
}

static void strides_that_lead_outside_are_refused(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    struct hr_frozen_array layout = layout_of(1, 16), changed;
    hr_value value;
    void *data;
    assert_int_equal(hr_builder_strided(builder, &layout, build_text(builder, "<f4"), 0, &value, &data), 0);
#define EXPECT_OUTSIDE(change) (changed = layout, changed.change, expect_outside(builder, &changed))
    EXPECT_OUTSIDE(first = 0);
    EXPECT_OUTSIDE(first = 2);
    EXPECT_OUTSIDE(first = UINT64_MAX);
    EXPECT_OUTSIDE(bytes = 12);
    EXPECT_OUTSIDE(bytes = 17);
    EXPECT_OUTSIDE(bytes = 0);
    EXPECT_OUTSIDE(item_bytes = 0);
    EXPECT_OUTSIDE(dimension_count = HR_FROZEN_MAX_DIMENSIONS + 1);
    EXPECT_OUTSIDE(dimensions[0] = 0);
    EXPECT_OUTSIDE(dimensions[0] = UINT64_MAX);
    EXPECT_OUTSIDE(strides[0] = 2);
    EXPECT_OUTSIDE(strides[0] = INT64_MAX);
    EXPECT_OUTSIDE(strides[1] = INT64_MIN);
    layout.strides[0] = 0;
    EXPECT_OUTSIDE(dimensions[0] = UINT64_C(1) << 62); /* times 2: more than an int64_t counts */
    hr_builder_close(builder);
}

static void memory_is_sealed_and_seen_by_a_child(void **state) {
    (void)state;
    hr_builder *builder = open_builder();
    hr_frozen *frozen = finish(builder, build_each_kind(builder));
    struct hr_frozen_info info;
    hr_frozen_look(frozen, &info);
    assert_int_equal(ftruncate(info.fd, 0), -1);
    pid_t child = fork();
    if (child == 0) {
        hr_frozen *again = NULL;
        _exit(hr_frozen_open_fd(info.fd, "handed on", HR_FROZEN_VERIFY, &again) == 0 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(touch_contents(info.contents, info.bytes), 1);
    hr_frozen_close(frozen);
}

/* The digest of frozen data with a value of each kind: another one is another format, and wants another version. */
static void the_format_is_that_of_its_version(void **state) {
    (void)state;
    static const unsigned char version_3[16] = {0x96, 0x68, 0xfc, 0x5c, 0x34, 0x4f, 0x82, 0x61,
                                                0x86, 0xef, 0x12, 0x71, 0xbb, 0x22, 0x33, 0xc6};
    hr_builder *builder = open_builder();
    hr_frozen *frozen = finish(builder, build_each_kind(builder));
    struct hr_frozen_info info;
    hr_frozen_look(frozen, &info);
    assert_memory_equal(info.digest, version_3, sizeof version_3);
    hr_frozen_close(frozen);
}

/* ---- files ---- */

static void folder_path(char *path, size_t size, const char *name) {
    const char *folder = getenv("TMPDIR");
    snprintf(path, size, "%s/headrace-store-%d-%s", folder && *folder ? folder : "/tmp", (int)getpid(), name);
}

static void a_file_appears_when_it_is_finished(void **state) {
    (void)state;
    char path[300];
    hr_builder *builder;
    hr_frozen *frozen, *again;
    folder_path(path, sizeof path, "whole");
    assert_int_equal(hr_builder_open("", &builder), -ENOENT);
    assert_int_equal(hr_builder_open(path, &builder), 0);
    hr_value root = build_each_kind(builder);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(hr_builder_finish(builder, root, &frozen), 0);
    assert_int_equal(hr_frozen_open(path, HR_FROZEN_VERIFY, &again), 0);
    struct hr_frozen_info a, b;
    hr_frozen_look(frozen, &a), hr_frozen_look(again, &b);
    assert_memory_equal(a.id, b.id, sizeof a.id);
    assert_memory_equal(a.digest, b.digest, sizeof a.digest);
    hr_frozen_close(frozen), hr_frozen_close(again);

    assert_int_equal(hr_builder_open(path, &builder), 0); /* a second one takes its place */
    assert_int_equal(hr_builder_finish(builder, build_int(builder, 5), &frozen), 0);
    assert_int_equal(read_root(frozen).integer, 5);
    hr_frozen_close(frozen);
    unlink(path);
}

static void a_truncated_file_is_refused(void **state) {
    (void)state;
    char path[300];
    hr_builder *builder;
    hr_frozen *frozen;
    folder_path(path, sizeof path, "cut");
    assert_int_equal(hr_builder_open(path, &builder), 0);
    assert_int_equal(hr_builder_finish(builder, build_each_kind(builder), &frozen), 0);
    hr_frozen_close(frozen);
    struct stat info;
    stat(path, &info);
    assert_int_equal(truncate(path, info.st_size - 8), 0);
    assert_int_equal(hr_frozen_open(path, 0, &frozen), HR_E_CORRUPT);
    assert_non_null(strstr(hr_error_message(), "truncated"));
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(hr_frozen_open(path, 0, &frozen), -EINVAL);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(hr_frozen_open(path, 0, &frozen), -EINVAL);
    unlink(path);
    assert_int_equal(hr_frozen_open(path, 0, &frozen), -ENOENT);
    assert_int_equal(hr_frozen_open("/tmp", 0, &frozen), -EISDIR);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_come_back_bit_for_bit),
        cmocka_unit_test(a_list_longer_than_a_word_counts_is_whole),
        cmocka_unit_test(texts_of_a_packed_list_come_back),
        cmocka_unit_test(texts_of_a_packed_list_of_ascii_are_read_without_items),
        cmocka_unit_test(long_lists_of_texts_are_read_with_a_guide),
        cmocka_unit_test(a_damaged_guide_changes_nothing_that_is_read),
        cmocka_unit_test(more_texts_than_announced_are_refused),
        cmocka_unit_test(each_key_of_a_large_dict_is_found_and_no_other),
        cmocka_unit_test(a_dict_larger_than_narrow_slots_reach_has_wide_ones),
        cmocka_unit_test(keys_of_all_kinds_are_found),
        cmocka_unit_test(a_dict_with_other_keys_has_no_index),
        cmocka_unit_test(equal_keys_make_no_index),
        cmocka_unit_test(a_dict_without_an_index_keeps_no_room_for_one),
        cmocka_unit_test(records_of_one_shape_share_it),
        cmocka_unit_test(words_that_are_not_values_are_refused),
        cmocka_unit_test(typed_keys_are_found_by_name_and_value),
        cmocka_unit_test(typed_keys_that_equal_others_are_not_entered),
        cmocka_unit_test(the_same_text_is_stored_once),
        cmocka_unit_test(an_array_is_aligned_and_has_its_shape),
        cmocka_unit_test(a_strided_array_has_each_element_once),
        cmocka_unit_test(strided_arrays_share_what_is_stored),
        cmocka_unit_test(strides_that_lead_outside_are_refused),
        cmocka_unit_test(memory_is_sealed_and_seen_by_a_child),
        cmocka_unit_test(the_format_is_that_of_its_version),
        cmocka_unit_test(a_file_appears_when_it_is_finished),
        cmocka_unit_test(a_truncated_file_is_refused),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
