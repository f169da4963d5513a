/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/batch.h>

#include "bench.h"

/* Measures the cost of a batch, compared with a plain memcpy of its bytes. Lines: "name: value unit (ratio x)". */

enum { REPETITIONS = 5, TINY_ROUNDS = 200000, STACK_COUNT = 64, STACK_BYTES = 602112, BIG_BYTES = 32 << 20 };

static const struct hr_dtype float32 = {2, 32, 1};

static double time_us(void (*run)(void *), void *argument) {
    int64_t start_ns = now_ns();
    run(argument);
    return (double)(now_ns() - start_ns) / 1e3;
}

struct scene {
    hr_batch *batch;
    unsigned char *from, *to;
    struct hr_array *arrays;
    uint32_t array_count;
    uint64_t array_bytes;
    uint64_t capacity;
};

static void add_tiny(hr_batch *batch) {
    static const float image[4][8] = {{0}};
    static const float label[4] = {0};
    static const int64_t image_shape[] = {4, 8}, label_shape[] = {4};
    struct hr_array a = {image, float32, 2, image_shape, NULL}, b = {label, float32, 1, label_shape, NULL};
    check(hr_batch_open(batch, HR_NODE_DICT, 2));
    check(hr_batch_add_text(batch, "image", 5));
    check(hr_batch_add_array(batch, HR_FLAVOR_TENSOR, &a));
    check(hr_batch_add_text(batch, "label", 5));
    check(hr_batch_add_array(batch, HR_FLAVOR_TENSOR, &b));
}

static void read_all(const void *data, uint64_t bytes) {
    struct hr_batch_reader reader;
    struct hr_node node;
    check(hr_batch_read(&reader, data, bytes));
    int r;
    while ((r = hr_batch_read_node(&reader, &node)) > 0) {
    }
    check(r);
}

static void run_tiny(void *argument) {
    struct scene *scene = argument;
    uint64_t bytes = 0;
    for (int i = 0; i < TINY_ROUNDS; i++) {
        hr_batch_reset(scene->batch);
        add_tiny(scene->batch);
        check(hr_batch_measure(scene->batch, &bytes));
        check(hr_batch_write(scene->batch, scene->to, scene->capacity));
        read_all(scene->to, bytes);
    }
}

static void run_stack(void *argument) {
    struct scene *scene = argument;
    uint64_t bytes = 0;
    hr_batch_reset(scene->batch);
    check(hr_batch_add_stack(scene->batch, HR_FLAVOR_TENSOR, scene->arrays, scene->array_count));
    check(hr_batch_measure(scene->batch, &bytes));
    check(hr_batch_write(scene->batch, scene->to, scene->capacity));
    read_all(scene->to, bytes);
}

static void run_memcpy(void *argument) {
    struct scene *scene = argument;
    for (uint32_t i = 0; i < scene->array_count; i++)
        memcpy(scene->to + HR_BATCH_LARGE_ALIGN + i * scene->array_bytes, scene->arrays[i].data, scene->array_bytes);
    __asm__ volatile("" ::: "memory");
}

static void *buffer_new(uint64_t bytes) {
    void *memory = aligned_alloc(HR_BATCH_LARGE_ALIGN, bytes);
    if (!memory) exit(1);
    return memset(memory, 1, bytes);
}

static void bench_stack(struct scene *scene, const char *name, uint32_t count, uint64_t bytes, const int64_t *strides) {
    int64_t shape[] = {3, (int64_t)bytes / 12};
    scene->array_count = count;
    scene->array_bytes = bytes;
    for (uint32_t i = 0; i < count; i++)
        scene->arrays[i] = (struct hr_array){scene->from + i * bytes, float32, 2, shape, strides};
    run_memcpy(scene); /* warms caches and faults pages in */
    run_stack(scene);
    double plain[REPETITIONS], ours[REPETITIONS];
    for (int i = 0; i < REPETITIONS; i++) { /* in turns, so that a busy machine is unfair to both */
        plain[i] = time_us(run_memcpy, scene);
        ours[i] = time_us(run_stack, scene);
    }
    double plain_us = median(plain, REPETITIONS), us = median(ours, REPETITIONS);
    printf("%s: %.2f GB/s (%.2f x memcpy)\n", name, (double)(count * bytes) / us / 1e3, plain_us / us);
}

int main(void) {
    uint64_t payload = (uint64_t)STACK_COUNT * STACK_BYTES + HR_BATCH_LARGE_ALIGN;
    struct scene scene = {.capacity = payload + 2 * HR_BATCH_LARGE_ALIGN};
    check(hr_batch_new(&scene.batch));
    scene.from = buffer_new(payload);
    scene.to = buffer_new(scene.capacity);
    scene.arrays = calloc(STACK_COUNT, sizeof *scene.arrays);
    if (!scene.arrays) return 1;

    double tiny[REPETITIONS];
    for (int i = 0; i < REPETITIONS; i++) tiny[i] = time_us(run_tiny, &scene) / TINY_ROUNDS;
    printf("tiny batch, add+measure+write+read: %.3f us\n", median(tiny, REPETITIONS));
    bench_stack(&scene, "stack of 64 x 602112 bytes", STACK_COUNT, STACK_BYTES, NULL);
    bench_stack(&scene, "1 x 32 MiB", 1, BIG_BYTES / 12 * 12, NULL);
    check(hr_batch_set_threads(scene.batch, 2));
    bench_stack(&scene, "stack of 64 x 602112 bytes, two threads", STACK_COUNT, STACK_BYTES, NULL);
    bench_stack(&scene, "stack of 64 x 150528 bytes, two threads", STACK_COUNT, STACK_BYTES / 4, NULL);
    bench_stack(&scene, "1 x 32 MiB, two threads", 1, BIG_BYTES / 12 * 12, NULL);
    check(hr_batch_set_threads(scene.batch, 1));
    bench_stack(&scene, "stack of 64 x 602112 bytes, channels last", STACK_COUNT, STACK_BYTES, (const int64_t[]){1, 3});

    free(scene.arrays);
    free(scene.from);
    free(scene.to);
    hr_batch_free(scene.batch);
    return 0;
}
