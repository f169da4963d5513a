/* SPDX-License-Identifier: Apache-2.0 */
#include "batch_scene.h"

#include <errno.h>

enum { PARENT_BYTES = 1 << 17, ROUNDS = 20000 };

static unsigned char *new_parent(struct scene *scene) {
    unsigned char *parent = malloc(PARENT_BYTES);
    assert_non_null(parent);
    for (size_t i = 0; i < PARENT_BYTES; i++) parent[i] = (unsigned char)random_below(scene, 256);
    return parent;
}

/* An array as slicing, flipping, expanding and permuting make one out of a parent in C order. */
struct random_array {
    struct hr_array array;
    int64_t shape[5], strides[5];
    int64_t first; /* bytes from the parent to the first element */
};

static void random_slice(struct scene *scene, struct random_array *a, uint32_t d, int64_t size, int64_t stride) {
    static const int64_t steps[] = {1, 1, 1, 2, -1, -2, 0};
    int64_t step = steps[random_below(scene, sizeof steps / sizeof *steps)], magnitude = step < 0 ? -step : step;
    a->shape[d] = magnitude ? (size + magnitude - 1) / magnitude : size;
    a->strides[d] = step * stride;
    if (step < 0 && size) a->first += (size - 1) * stride;
}

static void swap(int64_t *numbers, uint64_t i, uint64_t j) {
    int64_t number = numbers[i];
    numbers[i] = numbers[j];
    numbers[j] = number;
}

static void permute(struct scene *scene, struct random_array *a) {
    for (uint32_t d = a->array.ndim; d > 1; d--) {
        uint64_t other = random_below(scene, d);
        swap(a->shape, d - 1, other);
        swap(a->strides, d - 1, other);
    }
}

static void make_random(struct scene *scene, const unsigned char *parent, struct random_array *a) {
    static const struct hr_dtype dtypes[] = {{1, 8, 1},  {2, 16, 1}, {1, 8, 3},   {2, 32, 1},
                                             {0, 64, 1}, {2, 32, 3}, {5, 128, 1}, {2, 64, 4}};
    struct hr_dtype dtype = dtypes[random_below(scene, sizeof dtypes / sizeof *dtypes)];
    *a = (struct random_array){.array = {NULL, dtype, (uint32_t)random_below(scene, 6), a->shape, a->strides}};
    int64_t stride = 1;
    for (uint32_t d = a->array.ndim; d-- > 0;) {
        int64_t size = random_below(scene, 40) ? 1 + (int64_t)random_below(scene, 5) : 0;
        random_slice(scene, a, d, size, stride);
        stride *= size ? size : 1;
    }
    a->first *= dtype.bits * dtype.lanes / 8;
    a->array.data = parent + a->first;
    if (random_below(scene, 3)) permute(scene, a);
}

/* Element by element, as an array's definition has it. */
static void expect_equal(const struct hr_array *array, const unsigned char *data, const int64_t *strides) {
    size_t item_bytes = array->dtype.bits * (size_t)array->dtype.lanes / 8;
    int64_t elements = 1;
    for (uint32_t d = 0; d < array->ndim; d++) elements *= array->shape[d];
    for (int64_t i = 0; i < elements; i++) {
        int64_t left = i, from = 0, to = 0;
        for (uint32_t d = array->ndim; d-- > 0; left /= array->shape[d]) {
            from += left % array->shape[d] * array->strides[d];
            to += left % array->shape[d] * strides[d];
        }
        const unsigned char *source = array->data;
        assert_memory_equal(data + to * (int64_t)item_bytes, source + from * (int64_t)item_bytes, item_bytes);
    }
}

static void expect_array(struct scene *scene, const struct hr_array *array) {
    struct hr_node node = next_node(scene, HR_NODE_ARRAY);
    assert_int_equal(node.ndim, array->ndim);
    assert_memory_equal(&node.dtype, &array->dtype, sizeof node.dtype);
    expect_numbers(node.shape, node.ndim, array->shape);
    expect_equal(array, node_data(scene, &node), node.strides);
}

static void random_arrays_arrive_element_by_element(void **state) {
    struct scene *scene = *state;
    unsigned char *parent = new_parent(scene);
    for (int round = 0; round < ROUNDS; round++) {
        struct random_array a;
        make_random(scene, parent, &a);
        hr_batch_reset(scene->batch);
        assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_NUMPY, &a.array), 0);
        deliver(scene);
        expect_array(scene, &a.array);
        expect_end(scene);
    }
    free(parent);
}

static void random_views_arrive_element_by_element(void **state) {
    struct scene *scene = *state;
    unsigned char *parent = new_parent(scene);
    for (int round = 0; round < ROUNDS / 20; round++) {
        struct random_array a, b;
        uint32_t storage = 99;
        make_random(scene, parent, &a);
        make_random(scene, parent, &b);
        hr_batch_reset(scene->batch);
        assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 2), 0);
        assert_int_equal(hr_batch_add_storage(scene->batch, parent, PARENT_BYTES, &storage), 0);
        assert_int_equal(hr_batch_add_view(scene->batch, 0, storage, (uint64_t)a.first, &a.array), 0);
        assert_int_equal(hr_batch_add_view(scene->batch, 0, storage, (uint64_t)b.first, &b.array), 0);
        deliver(scene);
        next_node(scene, HR_NODE_LIST);
        expect_array(scene, &a.array);
        expect_array(scene, &b.array);
        expect_end(scene);
    }
    free(parent);
}

static void random_stacks_arrive_element_by_element(void **state) {
    struct scene *scene = *state;
    unsigned char *parent = new_parent(scene);
    for (int round = 0; round < ROUNDS; round++) {
        struct random_array a;
        make_random(scene, parent, &a);
        struct hr_array plain = a.array, strided = a.array;
        plain.data = parent + 100;
        plain.strides = NULL;
        strided.data = parent + a.first + 3;
        struct hr_array arrays[] = {a.array, plain, strided};
        hr_batch_reset(scene->batch);
        assert_int_equal(hr_batch_add_stack(scene->batch, HR_FLAVOR_TENSOR, arrays, 3), 0);
        deliver(scene);

        struct hr_node node = next_node(scene, HR_NODE_ARRAY);
        assert_int_equal(node.ndim, a.array.ndim + 1);
        assert_int_equal(node.shape[0], 3);
        expect_numbers(node.shape + 1, a.array.ndim, a.shape);
        arrays[1].strides = node.strides + 1; /* the strides of C order */
        for (uint64_t i = 0; i < 3; i++) {
            const unsigned char *piece = (const unsigned char *)node_data(scene, &node) + i * node.storage_bytes / 3;
            expect_equal(&arrays[i], piece, node.strides + 1);
        }
    }
    free(parent);
}

static void a_dense_array_in_another_order_keeps_its_strides(void **state) {
    struct scene *scene = *state;
    static const unsigned char bytes[24] = "abcdefghijklmnopqrstuvw";
    int64_t shape[] = {2, 4, 3, 1}, channels_last[] = {12, 1, 4, 999};
    struct hr_array array = {bytes, uint8, 4, shape, channels_last};
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_TENSOR, &array), 0);
    deliver(scene);
    struct hr_node node = next_node(scene, HR_NODE_ARRAY);
    expect_numbers(node.strides, 4, (const int64_t[]){12, 1, 4, 1});
    assert_memory_equal(node_data(scene, &node), bytes, sizeof bytes);
}

static void an_array_with_gaps_arrives_compact(void **state) {
    struct scene *scene = *state;
    int64_t shape[] = {2, 3}, strides[] = {0, -2};
    struct hr_array array = {&"a-b-c"[4], uint8, 2, shape, strides};
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_NUMPY, &array), 0);
    deliver(scene);
    struct hr_node node = next_node(scene, HR_NODE_ARRAY);
    expect_numbers(node.strides, 2, (const int64_t[]){3, 1});
    assert_int_equal(node.storage_bytes, 6);
    assert_memory_equal(node_data(scene, &node), "cbacba", 6);
}

static void an_array_of_no_dimensions_is_one_element(void **state) {
    struct scene *scene = *state;
    double value = 2.5;
    struct hr_array array = {&value, {2, 64, 1}, 0, NULL, NULL};
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_TUPLE, 2), 0);
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_BUFFER, &array), 0);
    assert_int_equal(hr_batch_add_stack(scene->batch, HR_FLAVOR_TENSOR, &array, 1), 0);
    deliver(scene);
    next_node(scene, HR_NODE_TUPLE);
    struct hr_node node = next_node(scene, HR_NODE_ARRAY), stack = next_node(scene, HR_NODE_ARRAY);
    assert_int_equal(node.flavor, HR_FLAVOR_BUFFER);
    assert_null(node.strides);
    assert_memory_equal(node_data(scene, &node), &value, sizeof value);
    assert_int_equal(stack.ndim, 1);
    assert_memory_equal(node_data(scene, &stack), &value, sizeof value);
}

static void an_empty_array_needs_no_data(void **state) {
    struct scene *scene = *state;
    int64_t shape[] = {2, 0, 3}, strides[] = {7, 7, 7};
    struct hr_array array = {NULL, float32, 3, shape, strides};
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_TENSOR, &array), 0);
    deliver(scene);
    struct hr_node node = next_node(scene, HR_NODE_ARRAY);
    assert_int_equal(node.storage_bytes, 0);
    expect_numbers(node.shape, 3, shape);
    expect_numbers(node.strides, 3, (const int64_t[]){3, 3, 1});
}

static void a_filled_array_has_what_the_caller_put_in(void **state) {
    struct scene *scene = *state;
    enum { COUNT = 10000 };
    int64_t shape[] = {COUNT};
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 3), 0);
    for (int column = 0; column < 3; column++) {
        void *data = NULL;
        assert_int_equal(hr_batch_add_filled(scene->batch, HR_FLAVOR_TENSOR, int64, 1, shape, &data), 0);
        for (int64_t i = 0; i < COUNT; i++) ((int64_t *)data)[i] = i * (column + 1);
    }
    deliver(scene);
    next_node(scene, HR_NODE_LIST);
    for (int column = 0; column < 3; column++) {
        struct hr_node node = next_node(scene, HR_NODE_ARRAY);
        const int64_t *data = node_data(scene, &node);
        for (int64_t i = 0; i < COUNT; i++) assert_int_equal(data[i], i * (column + 1));
    }
}

/* The caller writes small and large reserved arrays after the batch was written, between arrays that are copied. */
static void a_reserved_array_is_left_to_the_caller(void **state) {
    struct scene *scene = *state;
    enum { ARRAYS = 4 };
    static const int64_t counts[ARRAYS] = {3, 5000, 7, 6000};
    uint64_t places[ARRAYS], offset, filled_bytes = 5 * sizeof(int64_t);
    void *filled;
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, ARRAYS + 1), 0);
    for (int i = 0; i < ARRAYS; i++) {
        if (i == 1)
            assert_int_equal(hr_batch_add_filled(scene->batch, HR_FLAVOR_TENSOR, int64, 1, &(int64_t){5}, &filled), 0);
        if (i == 1) memset(filled, 1, filled_bytes);
        assert_int_equal(hr_batch_add_reserved(scene->batch, HR_FLAVOR_TENSOR, int64, 1, &counts[i], &places[i]), 0);
    }
    assert_int_equal(hr_batch_place(scene->batch, places[0] + 1, &offset), -EINVAL); /* it is filled */
    assert_int_equal(hr_batch_place(scene->batch, 99, &offset), -EINVAL);
    deliver(scene);
    for (int i = 0; i < ARRAYS; i++) {
        assert_int_equal(hr_batch_place(scene->batch, places[i], &offset), 0);
        memset((char *)scene->memory + offset, 10 + i, (size_t)counts[i] * sizeof(int64_t));
    }
    next_node(scene, HR_NODE_LIST);
    for (int i = 0, reserved = 0; i <= ARRAYS; i++) {
        struct hr_node node = next_node(scene, HR_NODE_ARRAY);
        unsigned char expected = i == 1 ? 1 : (unsigned char)(10 + reserved++);
        const unsigned char *data = node_data(scene, &node);
        for (uint64_t k = 0; k < node.storage_bytes; k++) assert_int_equal(data[k], expected);
    }
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, open_scene, close_scene)

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE(random_arrays_arrive_element_by_element),
        SCENE(random_views_arrive_element_by_element),
        SCENE(random_stacks_arrive_element_by_element),
        SCENE(a_dense_array_in_another_order_keeps_its_strides),
        SCENE(an_array_with_gaps_arrives_compact),
        SCENE(an_array_of_no_dimensions_is_one_element),
        SCENE(an_empty_array_needs_no_data),
        SCENE(a_filled_array_has_what_the_caller_put_in),
        SCENE(a_reserved_array_is_left_to_the_caller),
    };
    return cmocka_run_group_tests_name("batch arrays", tests, NULL, NULL);
}
