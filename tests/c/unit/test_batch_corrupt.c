/* SPDX-License-Identifier: Apache-2.0 */
#include "batch_scene.h"

#include <errno.h>

#include "batch/format.h"

#include "batch_touch.h"

static void deliver_each_kind(struct scene *scene) {
    assert_int_equal(add_each_kind(scene->batch), 0);
    deliver(scene);
}

static void a_batch_with_any_byte_changed_is_refused_or_lies_inside(void **state) {
    struct scene *scene = *state;
    static const unsigned char masks[] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x7f, 0xff};
    deliver_each_kind(scene);
    unsigned char *memory = scene->memory;
    uint64_t refused = 0;
    for (uint64_t i = 0; i < scene->bytes; i++) {
        for (size_t mask = 0; mask < sizeof masks; mask++) {
            memory[i] ^= masks[mask];
            int r = touch_batch(memory, scene->bytes);
            assert_true(r == 0 || r == HR_E_CORRUPT || r == HR_E_VERSION);
            refused += r != 0;
            memory[i] ^= masks[mask];
        }
    }
    assert_true(refused > scene->bytes);
    assert_int_equal(touch_batch(memory, scene->bytes), 0);
}

static void a_batch_cut_short_is_refused(void **state) {
    struct scene *scene = *state;
    deliver_each_kind(scene);
    for (uint64_t bytes = 0; bytes < scene->bytes; bytes++) {
        void *part = NULL;
        assert_int_equal(posix_memalign(&part, HR_BATCH_SMALL_ALIGN, bytes + !bytes), 0);
        memcpy(part, scene->memory, bytes);
        assert_int_equal(touch_batch(part, bytes), HR_E_CORRUPT);
        free(part);
    }
}

static void a_tree_cut_short_is_refused(void **state) {
    struct scene *scene = *state;
    deliver_each_kind(scene);
    struct hr__batch_head *head = scene->memory;
    for (uint64_t tree_bytes = head->tree_bytes; tree_bytes-- > 0;) {
        head->tree_bytes = tree_bytes;
        assert_int_equal(touch_batch(scene->memory, scene->bytes), HR_E_CORRUPT);
        expect_message("something else wrote into");
    }
}

static void nodes_after_the_last_are_refused(void **state) {
    struct scene *scene = *state;
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 2), 0);
    assert_int_equal(hr_batch_add_none(scene->batch), 0);
    assert_int_equal(hr_batch_add_none(scene->batch), 0);
    deliver(scene);
    struct hr__batch_head *head = scene->memory;
    struct hr__tree_record *root = (struct hr__tree_record *)(head + 1);
    root->count = 1;
    assert_int_equal(touch_batch(scene->memory, scene->bytes), HR_E_CORRUPT);
    head->node_count = 2;
    assert_int_equal(touch_batch(scene->memory, scene->bytes), HR_E_CORRUPT);
    root->count = 3;
    head->node_count = 4;
    assert_int_equal(touch_batch(scene->memory, scene->bytes), HR_E_CORRUPT);
    root->count = 2;
    assert_int_equal(touch_batch(scene->memory, scene->bytes), HR_E_CORRUPT);
    head->node_count = 3;
    assert_int_equal(touch_batch(scene->memory, scene->bytes), 0);
}

static void a_length_that_wraps_around_is_refused(void **state) {
    struct scene *scene = *state;
    assert_int_equal(hr_batch_add_text(scene->batch, NULL, 0), 0);
    deliver(scene);
    struct hr__tree_record *record = (struct hr__tree_record *)((struct hr__batch_head *)scene->memory + 1);
    for (uint64_t length = UINT64_MAX; length > UINT64_MAX - 16; length--) {
        record->value = length;
        assert_int_equal(touch_batch(scene->memory, scene->bytes), HR_E_CORRUPT);
    }
}

static void an_array_that_looks_into_the_tree_is_refused(void **state) {
    struct scene *scene = *state;
    int64_t shape[] = {3};
    struct hr_array array = {"abc", uint8, 1, shape, NULL};
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_TENSOR, &array), 0);
    deliver(scene);
    struct hr__array_record *record = (struct hr__array_record *)((struct hr__batch_head *)scene->memory + 1);
    record->storage_offset = record->record.value = scene->reader.end - 1;
    assert_int_equal(touch_batch(scene->memory, scene->bytes), HR_E_CORRUPT);
    record->storage_offset = record->record.value = scene->reader.end;
    assert_int_equal(touch_batch(scene->memory, scene->bytes), 0);
}

static void more_children_than_the_tree_has_room_for_are_refused_at_once(void **state) {
    struct scene *scene = *state;
    struct hr_node node = {.count = 99};
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_LIST, 1), 0);
    assert_int_equal(hr_batch_add_none(scene->batch), 0);
    deliver(scene);
    ((struct hr__tree_record *)((struct hr__batch_head *)scene->memory + 1))->count = UINT32_MAX;
    assert_int_equal(hr_batch_read_node(&scene->reader, &node), HR_E_CORRUPT);
    assert_int_equal(hr_batch_read_node(&scene->reader, &node), HR_E_CORRUPT);
    assert_int_equal(node.count, 99);
}

static void another_version_is_reported_as_such(void **state) {
    struct scene *scene = *state;
    deliver_each_kind(scene);
    struct hr__batch_head *head = scene->memory;
    head->version++;
    assert_int_equal(hr_batch_read(&scene->reader, head, scene->bytes), HR_E_VERSION);
    expect_message("same version");
    head->magic++;
    assert_int_equal(hr_batch_read(&scene->reader, head, scene->bytes), HR_E_CORRUPT);
}

static void a_batch_in_a_longer_memory_is_read(void **state) {
    struct scene *scene = *state;
    _Alignas(64) unsigned char memory[512];
    assert_int_equal(hr_batch_add_none(scene->batch), 0);
    assert_int_equal(hr_batch_write(scene->batch, memory, sizeof memory), 0);
    assert_int_equal(touch_batch(memory, sizeof memory), 0);
    assert_int_equal(touch_batch(memory + 8, sizeof memory - 8), -EINVAL);
    expect_message("64-aligned");
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, open_scene, close_scene)

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE(a_batch_with_any_byte_changed_is_refused_or_lies_inside),
        SCENE(a_batch_cut_short_is_refused),
        SCENE(a_tree_cut_short_is_refused),
        SCENE(nodes_after_the_last_are_refused),
        SCENE(a_length_that_wraps_around_is_refused),
        SCENE(an_array_that_looks_into_the_tree_is_refused),
        SCENE(more_children_than_the_tree_has_room_for_are_refused_at_once),
        SCENE(another_version_is_reported_as_such),
        SCENE(a_batch_in_a_longer_memory_is_read),
    };
    return cmocka_run_group_tests_name("batch corrupt", tests, NULL, NULL);
}
