/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_BATCH_SCENE_H
#define HR_TESTS_BATCH_SCENE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <headrace/batch.h>
#include <headrace/error.h>

/* A writer, the batch that it wrote, and a reader of that. */
struct scene {
    hr_batch *batch;
    void *memory; /* as long as the batch */
    uint64_t bytes;
    struct hr_batch_reader reader;
    uint64_t random;
};

enum { UNTOUCHED = 0xA5 };

static const struct hr_dtype uint8 = {1, 8, 1}, float32 = {2, 32, 1}, int64 = {0, 64, 1};

static inline int open_scene(void **state) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    assert_int_equal(hr_batch_new(&scene->batch), 0);
    scene->random = 1;
    *state = scene;
    return 0;
}

static inline int close_scene(void **state) {
    struct scene *scene = *state;
    hr_batch_free(scene->batch);
    free(scene->memory);
    free(scene);
    return 0;
}

/* Writes what was added and begins to read it. */
static inline void deliver(struct scene *scene) {
    assert_int_equal(hr_batch_measure(scene->batch, &scene->bytes), 0);
    free(scene->memory);
    assert_int_equal(posix_memalign(&scene->memory, HR_BATCH_LARGE_ALIGN, scene->bytes), 0);
    memset(scene->memory, UNTOUCHED, scene->bytes);
    assert_int_equal(hr_batch_write(scene->batch, scene->memory, scene->bytes), 0);
    assert_int_equal(hr_batch_read(&scene->reader, scene->memory, scene->bytes), 0);
}

static inline struct hr_node next_node(struct scene *scene, enum hr_node_kind kind) {
    struct hr_node node = {0};
    assert_int_equal(hr_batch_read_node(&scene->reader, &node), 1);
    assert_int_equal(node.kind, kind);
    return node;
}

static inline void expect_end(struct scene *scene) {
    struct hr_node node;
    assert_int_equal(hr_batch_read_node(&scene->reader, &node), 0);
}

static inline void expect_numbers(const int64_t *numbers, uint32_t count, const int64_t *expected) {
    for (uint32_t i = 0; i < count; i++) assert_int_equal(numbers[i], expected[i]);
}

static inline const void *node_data(const struct scene *scene, const struct hr_node *node) {
    return (const unsigned char *)scene->memory + node->data_offset;
}

/* Below `limit`, the same in each run (xorshift). */
static inline uint64_t random_below(struct scene *scene, uint64_t limit) {
    scene->random ^= scene->random << 13;
    scene->random ^= scene->random >> 7;
    scene->random ^= scene->random << 17;
    return scene->random % limit;
}

/* A failure has a message that names the module and says what to do. */
static inline void expect_message(const char *part) {
    assert_non_null(strstr(hr_error_message(), "batch: "));
    assert_non_null(strstr(hr_error_message(), part));
}

#endif
