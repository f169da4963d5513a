/* SPDX-License-Identifier: Apache-2.0 */
#include "batch_scene.h"

#include "batch/buffer.h"

#include <errno.h>
#include <math.h>

static void each_scalar_arrives_unchanged(void **state) {
    struct scene *scene = *state;
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 9), 0);
    assert_int_equal(hr_batch_add_none(scene->batch), 0);
    assert_int_equal(hr_batch_add_bool(scene->batch, 7), 0);
    assert_int_equal(hr_batch_add_bool(scene->batch, 0), 0);
    assert_int_equal(hr_batch_add_int(scene->batch, INT64_MIN), 0);
    assert_int_equal(hr_batch_add_float(scene->batch, -0.0), 0);
    assert_int_equal(hr_batch_add_float(scene->batch, NAN), 0);
    assert_int_equal(hr_batch_add_text(scene->batch, "na\xc3\xafve", 6), 0);
    assert_int_equal(hr_batch_add_bytes(scene->batch, "\0\1\2\3\4\5\6\7", 8), 0);
    assert_int_equal(hr_batch_add_text(scene->batch, NULL, 0), 0);
    deliver(scene);

    assert_int_equal(next_node(scene, HR_NODE_LIST).count, 9);
    next_node(scene, HR_NODE_NONE);
    assert_int_equal(next_node(scene, HR_NODE_BOOL).integer, 1);
    assert_int_equal(next_node(scene, HR_NODE_BOOL).integer, 0);
    assert_true(next_node(scene, HR_NODE_INT).integer == INT64_MIN);
    assert_true(signbit(next_node(scene, HR_NODE_FLOAT).real));
    assert_true(isnan(next_node(scene, HR_NODE_FLOAT).real));
    struct hr_node text = next_node(scene, HR_NODE_TEXT), bytes = next_node(scene, HR_NODE_BYTES);
    assert_int_equal(text.length, 6);
    assert_memory_equal(text.bytes, "na\xc3\xafve", 6);
    assert_int_equal(bytes.length, 8);
    assert_memory_equal(bytes.bytes, "\0\1\2\3\4\5\6\7", 8);
    assert_int_equal(next_node(scene, HR_NODE_TEXT).length, 0);
    expect_end(scene);
    expect_end(scene);
}

static void a_scalar_alone_is_a_batch(void **state) {
    struct scene *scene = *state;
    assert_int_equal(hr_batch_add_int(scene->batch, 5), 0);
    deliver(scene);
    assert_int_equal(scene->bytes, 64 + 16);
    assert_int_equal(next_node(scene, HR_NODE_INT).integer, 5);
    expect_end(scene);
}

static void containers_nest_and_arrive_in_pre_order(void **state) {
    struct scene *scene = *state;
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_DICT, 2), 0);
    assert_int_equal(hr_batch_add_text(scene->batch, "a", 1), 0);
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_TUPLE, 2), 0);
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 0), 0);
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_NAMED, 1), 0);
    assert_int_equal(hr_batch_add_text(scene->batch, "Point", 5), 0);
    assert_int_equal(hr_batch_add_int(scene->batch, 1), 0);
    assert_int_equal(hr_batch_add_text(scene->batch, "b", 1), 0);
    assert_int_equal(hr_batch_open_pickle(scene->batch, "pickle", 6, 1), 0);
    assert_int_equal(hr_batch_add_none(scene->batch), 0);
    deliver(scene);

    assert_int_equal(next_node(scene, HR_NODE_DICT).count, 2);
    next_node(scene, HR_NODE_TEXT);
    assert_int_equal(next_node(scene, HR_NODE_TUPLE).count, 2);
    assert_int_equal(next_node(scene, HR_NODE_LIST).count, 0);
    assert_int_equal(next_node(scene, HR_NODE_NAMED).count, 1);
    next_node(scene, HR_NODE_TEXT);
    next_node(scene, HR_NODE_INT);
    next_node(scene, HR_NODE_TEXT);
    struct hr_node pickle = next_node(scene, HR_NODE_PICKLE);
    assert_int_equal(pickle.count, 1);
    assert_int_equal(pickle.length, 6);
    assert_memory_equal(pickle.bytes, "pickle", 6);
    next_node(scene, HR_NODE_NONE);
    expect_end(scene);
}

static void containers_nest_as_deep_as_the_limit_and_no_deeper(void **state) {
    struct scene *scene = *state;
    for (int depth = 0; depth < HR_BATCH_MAX_DEPTH; depth++)
        assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 1), 0);
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 1), -EINVAL);
    expect_message("1000 deep");
    assert_int_equal(hr_batch_open_pickle(scene->batch, "", 0, 1), -EINVAL);
    assert_int_equal(hr_batch_add_none(scene->batch), 0);
    deliver(scene);
    for (int depth = 0; depth < HR_BATCH_MAX_DEPTH; depth++) next_node(scene, HR_NODE_LIST);
    next_node(scene, HR_NODE_NONE);
    expect_end(scene);
}

static void an_incomplete_tree_is_neither_measured_nor_written(void **state) {
    struct scene *scene = *state;
    uint64_t bytes = 99;
    assert_int_equal(hr_batch_measure(scene->batch, &bytes), -EINVAL);
    expect_message("nothing was added");
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_DICT, 1), 0);
    assert_int_equal(hr_batch_add_text(scene->batch, "key", 3), 0);
    assert_int_equal(hr_batch_measure(scene->batch, &bytes), -EINVAL);
    expect_message("lacks 1 children");
    assert_int_equal(hr_batch_write(scene->batch, NULL, 0), -EINVAL);
    assert_int_equal(bytes, 99);
}

static void a_second_root_is_refused(void **state) {
    struct scene *scene = *state;
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 0), 0);
    assert_int_equal(hr_batch_add_none(scene->batch), -EINVAL);
    expect_message("complete already");
    deliver(scene);
    next_node(scene, HR_NODE_LIST);
    expect_end(scene);
}

static void a_kind_that_is_not_a_container_cannot_be_opened(void **state) {
    struct scene *scene = *state;
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_PICKLE, 1), -EINVAL);
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_TEXT, 1), -EINVAL);
    assert_int_equal(hr_batch_open(scene->batch, (enum hr_node_kind)99, 1), -EINVAL);
    expect_message("not a container");
}

static void a_batch_is_written_only_where_it_fits(void **state) {
    struct scene *scene = *state;
    _Alignas(64) unsigned char to[256];
    uint64_t bytes = 0;
    assert_int_equal(hr_batch_add_text(scene->batch, "twelve bytes", 12), 0);
    assert_int_equal(hr_batch_measure(scene->batch, &bytes), 0);
    memset(to, UNTOUCHED, sizeof to);
    assert_int_equal(hr_batch_write(scene->batch, to, bytes - 1), -ENOSPC);
    expect_message("do not fit");
    assert_int_equal(hr_batch_write(scene->batch, to + 8, bytes), -EINVAL);
    for (size_t i = 0; i < sizeof to; i++) assert_int_equal(to[i], UNTOUCHED);
    assert_int_equal(hr_batch_write(scene->batch, to, bytes), 0);
    assert_int_equal(to[bytes], UNTOUCHED);
}

static void a_writer_can_be_used_again_after_a_reset(void **state) {
    struct scene *scene = *state;
    for (int round = 0; round < 3; round++) {
        hr_batch_reset(scene->batch);
        assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 3), 0); /* is left open in the first two rounds */
        assert_int_equal(hr_batch_add_int(scene->batch, round), 0);
    }
    assert_int_equal(hr_batch_add_none(scene->batch), 0);
    assert_int_equal(hr_batch_add_none(scene->batch), 0);
    deliver(scene);
    assert_int_equal(next_node(scene, HR_NODE_LIST).count, 3);
    assert_int_equal(next_node(scene, HR_NODE_INT).integer, 2);
}

static void a_batch_can_be_written_twice(void **state) {
    struct scene *scene = *state;
    int64_t shape[] = {3};
    struct hr_array array = {"abc", uint8, 1, shape, NULL};
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_NUMPY, &array), 0);
    deliver(scene);
    deliver(scene);
    struct hr_node node = next_node(scene, HR_NODE_ARRAY);
    assert_memory_equal(node_data(scene, &node), "abc", 3);
}

static void freeing_nothing_is_fine(void **state) {
    (void)state;
    assert_null(hr_batch_free(NULL));
}

static void unused_memory_is_freed_after_a_small_batch(void **state) {
    (void)state;
    enum { MUCH = 64 << 20, HALF = MUCH / 2, LITTLE = 1000 };
    struct hr__buffer buffer = {0};
    const size_t used[] = {MUCH, HALF, LITTLE};
    for (int i = 0; i < 3; i++) {
        assert_non_null(hr__buffer_room(&buffer, used[i]));
        assert_true(buffer.capacity >= MUCH);
        buffer.used = used[i];
        hr__buffer_empty(&buffer, false);
        assert_int_equal(buffer.used, 0);
        assert_true(buffer.capacity >= MUCH);
        buffer.used = LITTLE; /* when it is started again, it takes less */
        hr__buffer_empty(&buffer, true);
        assert_int_equal(buffer.used, 0);
    }
    assert_int_equal(buffer.capacity, 0);
    assert_non_null(hr__buffer_room(&buffer, LITTLE));
    hr__buffer_empty(&buffer, true);
    assert_true(buffer.capacity >= LITTLE);
    hr__buffer_done(&buffer);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, open_scene, close_scene)

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE(each_scalar_arrives_unchanged),
        SCENE(a_scalar_alone_is_a_batch),
        SCENE(containers_nest_and_arrive_in_pre_order),
        SCENE(containers_nest_as_deep_as_the_limit_and_no_deeper),
        SCENE(an_incomplete_tree_is_neither_measured_nor_written),
        SCENE(a_second_root_is_refused),
        SCENE(a_kind_that_is_not_a_container_cannot_be_opened),
        SCENE(a_batch_is_written_only_where_it_fits),
        SCENE(a_writer_can_be_used_again_after_a_reset),
        SCENE(a_batch_can_be_written_twice),
        cmocka_unit_test(freeing_nothing_is_fine),
        cmocka_unit_test(unused_memory_is_freed_after_a_small_batch),
    };
    return cmocka_run_group_tests_name("batch", tests, NULL, NULL);
}
