/* SPDX-License-Identifier: Apache-2.0 */
#include "batch_scene.h"

#include <errno.h>

static unsigned char *new_bytes(uint64_t bytes, int value) {
    unsigned char *memory = malloc(bytes);
    assert_non_null(memory);
    return memset(memory, value, bytes);
}

static void add_flat(struct scene *scene, const void *data, int64_t bytes) {
    struct hr_array array = {data, uint8, 1, &bytes, NULL};
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_NUMPY, &array), 0);
}

static void small_leaves_are_packed_and_large_ones_begin_at_pages(void **state) {
    struct scene *scene = *state;
    enum { LARGE = HR_BATCH_LARGE_BYTES, SMALL = LARGE - 1 };
    unsigned char *data = new_bytes(2 * LARGE, 7);
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_TUPLE, 4), 0);
    add_flat(scene, data, LARGE);
    add_flat(scene, data, 10);
    add_flat(scene, data, LARGE + 1);
    add_flat(scene, data, SMALL);
    deliver(scene);

    next_node(scene, HR_NODE_TUPLE);
    struct hr_node nodes[4];
    for (int i = 0; i < 4; i++) nodes[i] = next_node(scene, HR_NODE_ARRAY);
    uint64_t tree_end = scene->reader.end;
    assert_int_equal(nodes[1].data_offset, (tree_end + 63) / 64 * 64);
    assert_int_equal(nodes[3].data_offset, nodes[1].data_offset + 64);
    assert_int_equal(nodes[0].data_offset % 4096, 0);
    assert_int_equal(nodes[2].data_offset, nodes[0].data_offset + LARGE);
    assert_in_range(nodes[0].data_offset, nodes[3].data_offset + SMALL, nodes[3].data_offset + SMALL + 4095);
    assert_int_equal(scene->bytes, nodes[2].data_offset + LARGE + 1);
    free(data);
}

static void memory_between_leaves_is_never_written(void **state) {
    struct scene *scene = *state;
    enum { LARGE = HR_BATCH_LARGE_BYTES };
    unsigned char *data = new_bytes(LARGE, 7);
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_TUPLE, 2), 0);
    add_flat(scene, data, LARGE);
    add_flat(scene, data, 1);
    deliver(scene);
    next_node(scene, HR_NODE_TUPLE);
    struct hr_node large = next_node(scene, HR_NODE_ARRAY), small = next_node(scene, HR_NODE_ARRAY);
    const unsigned char *memory = scene->memory;
    for (uint64_t i = small.data_offset + 1; i < large.data_offset; i++) assert_int_equal(memory[i], UNTOUCHED);
    free(data);
}

static void views_of_a_storage_share_it(void **state) {
    struct scene *scene = *state;
    uint32_t storage = 99;
    int64_t shape[] = {2, 2}, strides[] = {-3, 1};
    struct hr_array plain = {NULL, uint8, 2, shape, NULL}, flipped = {NULL, uint8, 2, shape, strides};
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 3), 0);
    assert_int_equal(hr_batch_add_storage(scene->batch, "abcdefgh", 8, &storage), 0);
    assert_int_equal(hr_batch_add_view(scene->batch, HR_FLAVOR_TENSOR, storage, 4, &plain), 0);
    assert_int_equal(hr_batch_add_view(scene->batch, HR_FLAVOR_TENSOR, storage, 3, &flipped), 0);
    add_flat(scene, "z", 1);
    deliver(scene);

    next_node(scene, HR_NODE_LIST);
    struct hr_node a = next_node(scene, HR_NODE_ARRAY), b = next_node(scene, HR_NODE_ARRAY);
    assert_true(a.is_shared && b.is_shared);
    assert_int_equal(a.storage_offset, b.storage_offset);
    assert_int_equal(a.storage_bytes, 8);
    assert_int_equal(a.data_offset - a.storage_offset, 4);
    assert_int_equal(b.data_offset - b.storage_offset, 3);
    expect_numbers(b.strides, 2, strides);
    assert_memory_equal((const unsigned char *)scene->memory + a.storage_offset, "abcdefgh", 8);
    assert_false(next_node(scene, HR_NODE_ARRAY).is_shared);
}

static void a_view_that_leaves_its_storage_is_refused(void **state) {
    struct scene *scene = *state;
    uint32_t storage = 99;
    int64_t shape[] = {2, 2}, strides[] = {-3, 1};
    struct hr_array plain = {NULL, uint8, 2, shape, NULL}, flipped = {NULL, uint8, 2, shape, strides};
    assert_int_equal(hr_batch_add_storage(scene->batch, "abcdefgh", 8, &storage), 0);
    assert_int_equal(hr_batch_add_view(scene->batch, HR_FLAVOR_TENSOR, storage, 5, &plain), -EINVAL);
    expect_message("leaves its storage of 8 bytes");
    assert_int_equal(hr_batch_add_view(scene->batch, HR_FLAVOR_TENSOR, storage, 9, &plain), -EINVAL);
    assert_int_equal(hr_batch_add_view(scene->batch, HR_FLAVOR_TENSOR, storage, UINT64_MAX, &plain), -EINVAL);
    assert_int_equal(hr_batch_add_view(scene->batch, HR_FLAVOR_TENSOR, storage, 2, &flipped), -EINVAL);
    assert_int_equal(hr_batch_add_view(scene->batch, HR_FLAVOR_TENSOR, storage + 1, 0, &plain), -EINVAL);
    expect_message("no storage 1");
    assert_int_equal(hr_batch_add_view(scene->batch, HR_FLAVOR_TENSOR, storage, 4, &plain), 0);
}

static void a_leaf_is_not_a_storage(void **state) {
    struct scene *scene = *state;
    int64_t shape[] = {1};
    struct hr_array view = {NULL, uint8, 1, shape, NULL};
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 2), 0);
    add_flat(scene, "a", 1);
    assert_int_equal(hr_batch_add_view(scene->batch, HR_FLAVOR_TENSOR, 0, 0, &view), -EINVAL);
}

static void arrays_that_differ_cannot_be_stacked(void **state) {
    struct scene *scene = *state;
    int64_t shape[] = {2, 3}, other[] = {2, 4};
    struct hr_array a = {"abcdef", uint8, 2, shape, NULL}, b = a, c = a, d = a;
    b.shape = other;
    c.dtype = (struct hr_dtype){0, 8, 1};
    d.ndim = 1;
    struct hr_array pairs[][2] = {{a, b}, {a, c}, {a, d}};
    for (int i = 0; i < 3; i++)
        assert_int_equal(hr_batch_add_stack(scene->batch, HR_FLAVOR_TENSOR, pairs[i], 2), -EINVAL);
    expect_message("array 1, uint8 [2], on array 0, uint8 [2, 3]");
    assert_int_equal(hr_batch_add_stack(scene->batch, HR_FLAVOR_TENSOR, pairs[0], 0), -EINVAL);
    assert_int_equal(hr_batch_add_stack(scene->batch, HR_FLAVOR_TENSOR, pairs[0], 1), 0);
}

static void elements_of_no_whole_bytes_are_refused(void **state) {
    struct scene *scene = *state;
    static const struct hr_dtype bad[] = {{1, 4, 1}, {1, 1, 1}, {0, 12, 1}, {2, 0, 1}, {2, 32, 0}, {1, 2, 3}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct hr_array array = {"", bad[i], 0, NULL, NULL};
        assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_TENSOR, &array), -EINVAL);
        expect_message("not a whole number of bytes");
    }
    struct hr_array packed = {"a", {1, 4, 2}, 0, NULL, NULL};
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_TENSOR, &packed), 0);
}

static void impossible_shapes_are_refused(void **state) {
    struct scene *scene = *state;
    int64_t huge = INT64_C(1) << 40, shape[HR_BATCH_MAX_NDIM + 1] = {huge, huge, huge}, two[] = {2};
    struct hr_array array = {"", float32, 3, shape, NULL};
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_TENSOR, &array), -EOVERFLOW);
    expect_message("does not fit 63 bits");
    shape[0] = 0; /* empty, but strides of C order would not fit */
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_TENSOR, &array), -EOVERFLOW);
    shape[0] = -1;
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_TENSOR, &array), -EINVAL);
    array.ndim = HR_BATCH_MAX_NDIM + 1;
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_TENSOR, &array), -EINVAL);
    array.ndim = HR_BATCH_MAX_NDIM;
    assert_int_equal(hr_batch_add_stack(scene->batch, HR_FLAVOR_TENSOR, &array, 1), -EINVAL);

    array = (struct hr_array){"", float32, 1, two, (int64_t[]){INT64_MIN}};
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_TENSOR, &array), -EOVERFLOW);
    array = (struct hr_array){"", float32, 2, (int64_t[]){0, 2}, (int64_t[]){1, INT64_MAX}};
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_TENSOR, &array), -EOVERFLOW);
    array = (struct hr_array){NULL, float32, 1, two, NULL};
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_TENSOR, &array), -EINVAL);
    assert_int_equal(hr_batch_add_array(scene->batch, (enum hr_flavor)3, &array), -EINVAL);
}

static void leaves_that_do_not_fit_together_are_refused_when_measured(void **state) {
    struct scene *scene = *state;
    uint32_t storage = 99;
    uint64_t bytes = 99;
    assert_int_equal(hr_batch_add_storage(scene->batch, "", UINT64_MAX, &storage), -EOVERFLOW);
    assert_int_equal(hr_batch_add_storage(scene->batch, "", INT64_MAX, &storage), 0);
    assert_int_equal(hr_batch_add_none(scene->batch), 0);
    assert_int_equal(hr_batch_measure(scene->batch, &bytes), -EOVERFLOW);
    assert_int_equal(hr_batch_add_text(scene->batch, "", SIZE_MAX), -EOVERFLOW);
    assert_int_equal(bytes, 99);
}

static void a_failed_add_adds_nothing(void **state) {
    struct scene *scene = *state;
    int64_t shape[] = {3};
    struct hr_array good = {"abc", uint8, 1, shape, NULL}, bad = {NULL, uint8, 1, shape, NULL};
    struct hr_array arrays[] = {good, bad};
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 1), 0);
    assert_int_equal(hr_batch_add_stack(scene->batch, HR_FLAVOR_TENSOR, arrays, 2), -EINVAL);
    assert_int_equal(hr_batch_add_array(scene->batch, (enum hr_flavor)3, &good), -EINVAL);
    add_flat(scene, "xyz", 3);
    deliver(scene);
    next_node(scene, HR_NODE_LIST);
    struct hr_node node = next_node(scene, HR_NODE_ARRAY);
    assert_memory_equal(node_data(scene, &node), "xyz", 3);
    assert_int_equal(scene->bytes, node.data_offset + 3);
    expect_end(scene);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, open_scene, close_scene)

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE(small_leaves_are_packed_and_large_ones_begin_at_pages),
        SCENE(memory_between_leaves_is_never_written),
        SCENE(views_of_a_storage_share_it),
        SCENE(a_view_that_leaves_its_storage_is_refused),
        SCENE(a_leaf_is_not_a_storage),
        SCENE(arrays_that_differ_cannot_be_stacked),
        SCENE(elements_of_no_whole_bytes_are_refused),
        SCENE(impossible_shapes_are_refused),
        SCENE(leaves_that_do_not_fit_together_are_refused_when_measured),
        SCENE(a_failed_add_adds_nothing),
    };
    return cmocka_run_group_tests_name("batch layout", tests, NULL, NULL);
}
