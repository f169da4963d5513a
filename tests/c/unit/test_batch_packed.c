/* SPDX-License-Identifier: Apache-2.0 */
#include "batch_scene.h"

#include <errno.h>

/* The parts of a packed batch: hr_batch_add_packed, and what is joined with it: hr_batch_add_joined. */

enum { LONG = 50000, PARTS = 5 };

static const struct hr_dtype int32 = {0, 32, 1};

static const void *data_of(struct scene *scene, const struct hr_node *node) {
    return (const char *)scene->memory + node->data_offset;
}

static void add_all(struct scene *scene, const struct hr_array *documents, uint32_t count) {
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, PARTS), 0);
    for (int part = 0; part < PARTS; part++)
        assert_int_equal(
            hr_batch_add_packed(scene->batch, HR_FLAVOR_TENSOR, (enum hr_packed_part)part, documents, count), 0);
    deliver(scene);
    next_node(scene, HR_NODE_LIST);
}

static void assert_row(struct scene *scene, struct hr_dtype dtype, const void *expected, int64_t count) {
    struct hr_node node = next_node(scene, HR_NODE_ARRAY);
    assert_int_equal(node.dtype.bits, dtype.bits);
    assert_int_equal(node.shape[node.ndim - 1], count);
    assert_true(node.ndim == 1 || node.shape[0] == 1);
    assert_memory_equal(data_of(scene, &node), expected, (size_t)count * dtype.bits / 8);
}

/* The documents have several types, strides, and no elements at all. */
static void documents_of_any_integers_are_laid_end_to_end(void **state) {
    struct scene *scene = *state;
    static const int8_t a[] = {-1, 2, 3};
    static const uint16_t b[] = {65535, 0, 7, 0};
    static const uint32_t c[] = {4000000000U};
    static const int64_t d[] = {-5000000000, 6}, three[] = {3}, two[] = {2}, one[] = {1}, none[] = {0};
    static const int64_t step[] = {2}, back[] = {-1};
    const struct hr_array documents[] = {{a + 2, {0, 8, 1}, 1, three, back},
                                         {b, {1, 16, 1}, 1, two, step},
                                         {NULL, {0, 64, 1}, 1, none, NULL},
                                         {c, {1, 32, 1}, 1, one, NULL},
                                         {d, {0, 64, 1}, 1, two, NULL}};
    static const int64_t tokens[] = {3, 2, -1, 65535, 7, 4000000000, -5000000000, 6};
    static const int64_t labels[] = {-100, 2, -1, -100, 7, -100, -100, 6}, positions[] = {0, 1, 2, 0, 1, 0, 0, 1};
    static const int32_t numbers[] = {0, 0, 0, 1, 1, 3, 4, 4}, starts[] = {0, 3, 5, 5, 6, 8};
    add_all(scene, documents, 5);
    assert_row(scene, int64, tokens, 8);
    assert_row(scene, int64, labels, 8);
    assert_row(scene, int64, positions, 8);
    assert_row(scene, int32, numbers, 8);
    assert_row(scene, int32, starts, 6);
}

/* A batch that two threads write, in parts. */
static void large_documents_are_written_by_two_threads(void **state) {
    struct scene *scene = *state;
    static int32_t data[LONG];
    static int64_t expected[4 * LONG];
    static const int64_t shape[] = {LONG};
    struct hr_array documents[4];
    for (int i = 0; i < LONG; i++) data[i] = i * 7;
    for (int i = 0; i < 4; i++) documents[i] = (struct hr_array){data, int32, 1, shape, NULL};
    for (int i = 0; i < 4 * LONG; i++) expected[i] = i % LONG * 7;
    assert_int_equal(hr_batch_set_threads(scene->batch, 2), 0);
    add_all(scene, documents, 4);
    assert_row(scene, int64, expected, 4 * LONG);
}

static void assert_refused(struct scene *scene, const struct hr_array *documents, uint32_t count, const char *text) {
    assert_int_equal(hr_batch_add_packed(scene->batch, HR_FLAVOR_TENSOR, HR_PACKED_TOKENS, documents, count), -EINVAL);
    assert_non_null(strstr(hr_error_message(), text));
}

static void other_arrays_are_refused(void **state) {
    struct scene *scene = *state;
    static const int64_t data[4], shape[] = {2, 2}, negative[] = {-1}, huge[] = {INT32_MAX};
    assert_refused(scene, NULL, 0, "no documents");
    assert_refused(scene, &(struct hr_array){data, int64, 2, shape, NULL}, 1, "document 0 cannot be packed");
    assert_refused(scene, &(struct hr_array){data, float32, 1, shape, NULL}, 1, "document 0 cannot be packed");
    assert_refused(scene, &(struct hr_array){data, {1, 64, 1}, 1, shape, NULL}, 1, "document 0 cannot be packed");
    assert_refused(scene, &(struct hr_array){data, {0, 4, 1}, 1, shape, NULL}, 1, "document 0 cannot be packed");
    assert_refused(scene, &(struct hr_array){data, {0, 64, 2}, 1, shape, NULL}, 1, "document 0 cannot be packed");
    assert_refused(scene, &(struct hr_array){NULL, int64, 1, shape, NULL}, 1, "document 0 cannot be packed");
    assert_refused(scene, &(struct hr_array){data, int64, 1, negative, NULL}, 1, "document 0 cannot be packed");
    const struct hr_array two[] = {{data, int64, 1, huge, NULL}, {data, int64, 1, huge, NULL}};
    assert_refused(scene, two, 2, "2 documents have more than 2^31 - 1 elements");
    assert_int_equal(hr_batch_add_packed(scene->batch, HR_FLAVOR_TENSOR, HR_PACKED_PART_END_, two, 1), -EINVAL);
    assert_int_equal(hr_batch_add_int(scene->batch, 1), 0); /* nothing was added */
}

/* ---- joined arrays ---- */

static void assert_joined(struct scene *scene, const struct hr_array *arrays, uint32_t count, const void *expected,
                          int64_t rows, int64_t row_bytes) {
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 1), 0);
    assert_int_equal(hr_batch_add_joined(scene->batch, HR_FLAVOR_TENSOR, arrays, count), 0);
    deliver(scene);
    next_node(scene, HR_NODE_LIST);
    struct hr_node node = next_node(scene, HR_NODE_ARRAY);
    assert_int_equal(node.ndim, arrays->ndim);
    assert_int_equal(node.shape[0], rows);
    for (uint32_t d = 1; d < arrays->ndim; d++) assert_int_equal(node.shape[d], arrays->shape[d]);
    assert_memory_equal(data_of(scene, &node), expected, (size_t)(rows * row_bytes));
}

/* Arrays of different numbers of rows, with other strides than those of C order, and without rows. */
static void arrays_are_joined_along_their_first_dimension(void **state) {
    struct scene *scene = *state;
    static const uint8_t a[] = {1, 2, 3, 4, 5, 6}, b[] = {7, 9, 8, 10};
    static const int64_t three[] = {3, 2}, two[] = {2, 2}, none[] = {0, 2}, swapped[] = {1, 2}, back[] = {-2, 1};
    const struct hr_array arrays[] = {{NULL, {1, 8, 1}, 2, none, NULL},
                                      {a, {1, 8, 1}, 2, three, NULL},
                                      {b, {1, 8, 1}, 2, two, swapped},
                                      {NULL, {1, 8, 1}, 2, none, NULL},
                                      {a + 4, {1, 8, 1}, 2, three, back}};
    static const uint8_t expected[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 5, 6, 3, 4, 1, 2};
    assert_joined(scene, arrays, 5, expected, 8, 2);
    hr_batch_reset(scene->batch);
    assert_joined(scene, arrays, 1, expected, 0, 2);
}

/* A batch that two threads write, in parts that begin and end within the arrays. */
static void large_arrays_are_joined_by_two_threads(void **state) {
    struct scene *scene = *state;
    enum { ARRAYS = 9, WIDTH = 1000 };
    static float data[ARRAYS * 400 * WIDTH], expected[ARRAYS * 400 * WIDTH];
    int64_t shapes[ARRAYS][2] = {{0}}, first = 0;
    struct hr_array arrays[ARRAYS] = {{0}};
    for (int64_t i = 0; i < ARRAYS * 400 * WIDTH; i++) data[i] = (float)(i % 10007);
    for (int64_t i = 0; i < ARRAYS; i++) {
        int64_t rows = i * 97 % 400;
        shapes[i][0] = rows;
        shapes[i][1] = WIDTH;
        arrays[i] = (struct hr_array){data + i * 400 * WIDTH, float32, 2, shapes[i], NULL};
        memcpy(expected + first * WIDTH, arrays[i].data, (size_t)(rows * WIDTH) * sizeof *data);
        first += rows;
    }
    assert_int_equal(hr_batch_set_threads(scene->batch, 2), 0);
    assert_joined(scene, arrays, ARRAYS, expected, first, WIDTH * (int64_t)sizeof *data);
}

static void arrays_that_differ_are_not_joined(void **state) {
    struct scene *scene = *state;
    static const int64_t data[6], pair[] = {1, 2}, triple[] = {1, 3}, flat[] = {2}, huge[] = {INT64_MAX, 2};
    const struct hr_array one = {data, int64, 2, pair, NULL};
    const struct {
        struct hr_array other;
        const char *text;
    } cases[] = {{{data, int64, 2, triple, NULL}, "cannot join array 1, int64 [1, 3], to array 0, int64 [1, 2]"},
                 {{data, int64, 1, flat, NULL}, "cannot join array 1"},
                 {{data, {0, 32, 1}, 2, pair, NULL}, "cannot join array 1, int32"},
                 {{NULL, int64, 2, pair, NULL}, "is NULL"}};
    for (int i = 0; i < 4; i++) {
        const struct hr_array arrays[] = {one, cases[i].other};
        assert_int_equal(hr_batch_add_joined(scene->batch, HR_FLAVOR_TENSOR, arrays, 2), -EINVAL);
        assert_non_null(strstr(hr_error_message(), cases[i].text));
    }
    const struct hr_array large[] = {one, {data, int64, 2, huge, NULL}}, scalar = {data, int64, 0, NULL, NULL};
    assert_int_equal(hr_batch_add_joined(scene->batch, HR_FLAVOR_TENSOR, large, 2), -EOVERFLOW);
    assert_int_equal(hr_batch_add_joined(scene->batch, HR_FLAVOR_TENSOR, &scalar, 1), -EINVAL);
    assert_int_equal(hr_batch_add_joined(scene->batch, HR_FLAVOR_TENSOR, &one, 0), -EINVAL);
    assert_non_null(strstr(hr_error_message(), "no arrays with a first dimension"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(documents_of_any_integers_are_laid_end_to_end, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(large_documents_are_written_by_two_threads, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(other_arrays_are_refused, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(arrays_are_joined_along_their_first_dimension, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(large_arrays_are_joined_by_two_threads, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(arrays_that_differ_are_not_joined, open_scene, close_scene),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
