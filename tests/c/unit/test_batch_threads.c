/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/sanitized.h"
#include "batch_scene.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/*
 * Large batches, and streams of smaller ones: written by one thread or two, through the caches or past them, the bytes
 * are the same.
 */

enum { MIB = 1 << 20, SHARED = 9 * MIB, PAST_CACHES = 30 * MIB, PIECES = 7, ROW = 3001 };

struct room {
    struct scene *scene;
    unsigned char *data; /* PAST_CACHES and a little more, of random bytes */
};

static int open_room(void **state) {
    struct room *room = calloc(1, sizeof *room);
    assert_non_null(room);
    open_scene((void **)&room->scene);
    room->data = malloc(2 * PAST_CACHES);
    assert_non_null(room->data);
    for (uint64_t i = 0; i < 2 * PAST_CACHES / sizeof i; i++) {
        uint64_t value = random_below(room->scene, UINT64_MAX);
        memcpy(room->data + i * sizeof i, &value, sizeof value);
    }
    *state = room;
    return 0;
}

static int close_room(void **state) {
    struct room *room = *state;
    void *scene = room->scene;
    close_scene(&scene);
    free(room->data);
    free(room);
    return 0;
}

/* One of each: a stack of pieces of an odd size from odd addresses, small leaves before and after, what the writer
 * holds itself, rows that lie apart, and elements that do. */
static void add_all(struct room *room, uint64_t bytes) {
    hr_batch *batch = room->scene->batch;
    int64_t flat = 100, piece = (int64_t)bytes / PIECES - 13, rows[] = {(int64_t)bytes / (4 * ROW), ROW};
    int64_t columns[] = {1000, 999}, row_strides[] = {ROW + 5, 1}, column_strides[] = {1, 1000};
    struct hr_array small = {room->data + 3, uint8, 1, &flat, NULL};
    struct hr_array apart = {room->data + 1, uint8, 2, rows, row_strides};
    struct hr_array turned = {room->data + 2, uint8, 2, columns, column_strides};
    struct hr_array pieces[PIECES];
    for (int i = 0; i < PIECES; i++)
        pieces[i] = (struct hr_array){room->data + (uint64_t)i * (uint64_t)piece + 1, uint8, 1, &piece, NULL};
    void *filled;
    hr_batch_reset(batch);
    assert_int_equal(hr_batch_open(batch, HR_NODE_LIST, 6), 0);
    assert_int_equal(hr_batch_add_array(batch, HR_FLAVOR_NUMPY, &small), 0);
    assert_int_equal(hr_batch_add_array(batch, HR_FLAVOR_NUMPY, &apart), 0);
    assert_int_equal(hr_batch_add_stack(batch, HR_FLAVOR_NUMPY, pieces, PIECES), 0);
    assert_int_equal(hr_batch_add_array(batch, HR_FLAVOR_NUMPY, &turned), 0);
    assert_int_equal(hr_batch_add_filled(batch, HR_FLAVOR_NUMPY, uint8, 1, &piece, &filled), 0);
    memcpy(filled, room->data, (size_t)piece);
    assert_int_equal(hr_batch_add_array(batch, HR_FLAVOR_NUMPY, &small), 0);
}

static void expect_bytes(const struct scene *scene, struct hr_node node, const unsigned char *expected,
                         uint64_t bytes) {
    assert_int_equal(node.storage_bytes, bytes);
    assert_memory_equal(node_data(scene, &node), expected, bytes);
}

static void expect_all(struct room *room, uint64_t bytes) {
    struct scene *scene = room->scene;
    uint64_t piece = bytes / PIECES - 13;
    next_node(scene, HR_NODE_LIST);
    expect_bytes(scene, next_node(scene, HR_NODE_ARRAY), room->data + 3, 100);
    struct hr_node apart = next_node(scene, HR_NODE_ARRAY);
    const unsigned char *row = node_data(scene, &apart);
    for (int64_t i = 0; i < apart.shape[0]; i++, row += ROW)
        assert_memory_equal(row, room->data + 1 + i * (ROW + 5), ROW);
    expect_bytes(scene, next_node(scene, HR_NODE_ARRAY), room->data + 1, PIECES * piece);
    struct hr_node turned = next_node(scene, HR_NODE_ARRAY);
    for (int64_t i = 0; i < turned.shape[0]; i++) /* dense as it lies, so that it keeps its strides */
        for (int64_t j = 0; j < turned.shape[1]; j++) {
            const unsigned char *element = node_data(scene, &turned);
            assert_int_equal(element[i * turned.strides[0] + j * turned.strides[1]], room->data[2 + i + j * 1000]);
        }
    expect_bytes(scene, next_node(scene, HR_NODE_ARRAY), room->data, piece);
    expect_bytes(scene, next_node(scene, HR_NODE_ARRAY), room->data + 3, 100);
    expect_end(scene);
}

static void expect_the_same_by(struct room *room, uint32_t threads) {
    const uint64_t sizes[] = {MIB, SHARED, PAST_CACHES};
    assert_int_equal(hr_batch_set_threads(room->scene->batch, threads), 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        add_all(room, sizes[i]);
        deliver(room->scene);
        assert_true(room->scene->bytes > sizes[i]);
        expect_all(room, sizes[i]);
    }
}

static void one_thread_writes_each_byte_to_its_place(void **state) {
    expect_the_same_by(*state, 1);
}

static void two_threads_write_each_byte_to_its_place(void **state) {
    expect_the_same_by(*state, 2);
}

static void memory_between_leaves_is_written_by_no_thread(void **state) {
    struct room *room = *state;
    struct scene *scene = room->scene;
    int64_t bytes = PAST_CACHES / 2 + 1;
    struct hr_array array = {room->data, uint8, 1, &bytes, NULL};
    assert_int_equal(hr_batch_set_threads(scene->batch, 2), 0);
    assert_int_equal(hr_batch_open(scene->batch, HR_NODE_TUPLE, 2), 0);
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_NUMPY, &array), 0);
    assert_int_equal(hr_batch_add_array(scene->batch, HR_FLAVOR_NUMPY, &array), 0);
    deliver(scene);
    next_node(scene, HR_NODE_TUPLE);
    struct hr_node first = next_node(scene, HR_NODE_ARRAY), second = next_node(scene, HR_NODE_ARRAY);
    const unsigned char *memory = scene->memory;
    assert_true(first.data_offset + first.storage_bytes < second.data_offset);
    for (uint64_t i = first.data_offset + first.storage_bytes; i < second.data_offset; i++)
        assert_int_equal(memory[i], UNTOUCHED);
}

/* ---- a stream: one batch right after another ---- */

enum { STREAMED = 2 * MIB, STREAM = 500, PATIENCE_S = 60, TRIES = 5 };

static void open_stream(struct room *room) {
    int64_t bytes = STREAMED;
    struct hr_array array = {room->data, uint8, 1, &bytes, NULL};
    assert_int_equal(hr_batch_set_threads(room->scene->batch, 2), 0);
    assert_int_equal(hr_batch_add_array(room->scene->batch, HR_FLAVOR_NUMPY, &array), 0);
    deliver(room->scene);
}

static void stream(const struct scene *scene, int count) {
    for (int i = 0; i < count; i++) assert_int_equal(hr_batch_write(scene->batch, scene->memory, scene->bytes), 0);
}

static void a_stream_is_written_each_byte_to_its_place(void **state) {
    struct room *room = *state;
    struct scene *scene = room->scene;
    open_stream(room);
    struct hr_node node = next_node(scene, HR_NODE_ARRAY);
    unsigned char *bytes = (unsigned char *)scene->memory + node.data_offset;
    for (int i = 0; i < 20; i++) {
        memset(bytes, UNTOUCHED, STREAMED);
        stream(scene, 1 + i % 3 * 20); /* alone, and with a second thread that others have awoken */
        assert_memory_equal(bytes, room->data, STREAMED);
    }
}

#if !IS_SANITIZED /* sanitizers have one of their own in its place */
static int created_count;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    created_count++;
    return real(thread, attributes, run, argument);
}

static int created_for(struct room *room, uint64_t bytes) {
    created_count = 0;
    add_all(room, bytes);
    deliver(room->scene);
    return created_count;
}

static void a_second_thread_is_started_only_if_allowed_and_useful(void **state) {
    struct room *room = *state;
    assert_int_equal(created_for(room, PAST_CACHES), 0);
    assert_int_equal(hr_batch_set_threads(room->scene->batch, 2), 0);
    assert_int_equal(created_for(room, MIB), 0);
    assert_int_equal(created_for(room, SHARED), 1);
    assert_int_equal(created_for(room, PAST_CACHES), 1);
    assert_int_equal(hr_batch_set_threads(room->scene->batch, 1), 0);
    assert_int_equal(created_for(room, SHARED), 0);
}

static int thread_count(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (const struct dirent *task; (task = readdir(tasks));) count += *task->d_name != '.';
    closedir(tasks);
    return count;
}

/* If the cores are busy, batches do not come right after another. */
static void stream_until_one_is_created(const struct scene *scene) {
    time_t end = time(NULL) + PATIENCE_S;
    for (created_count = 0; !created_count && time(NULL) < end;) stream(scene, 10);
    assert_true(created_count > 0);
}

static void a_stream_of_smaller_batches_has_a_second_thread_that_ends_with_it(void **state) {
    struct room *room = *state;
    open_stream(room);
    stream_until_one_is_created(room->scene);
    created_count = STREAM;
    for (int i = 0; i < TRIES && created_count >= STREAM / 2; i++) {
        created_count = 0;
        stream(room->scene, STREAM);
    }
    assert_true(created_count < STREAM / 2); /* it stays from one batch to the next */
    time_t end = time(NULL) + PATIENCE_S;
    while (thread_count() > 1 && time(NULL) < end) sched_yield();
    assert_int_equal(thread_count(), 1);
}

static void a_forked_child_in_the_middle_of_a_stream_writes_and_ends(void **state) {
    struct room *room = *state;
    struct scene *scene = room->scene;
    open_stream(room);
    for (int i = 0; i < 20; i++) {
        int status;
        stream(scene, 20);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            alarm(PATIENCE_S);
            memset(scene->memory, UNTOUCHED, scene->bytes);
            stream(scene, 20);
            struct hr_node node = next_node(scene, HR_NODE_ARRAY);
            int differs = memcmp(node_data(scene, &node), room->data, STREAMED) != 0;
            hr_batch_free(scene->batch);
            _exit(differs);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}
#endif

static void without_a_second_thread_one_thread_writes_all(void **state) {
    setenv("HEADRACE_FAIL", "thread:EAGAIN", 1);
    expect_the_same_by(*state, 2);
    unsetenv("HEADRACE_FAIL");
}

static void other_numbers_of_threads_are_refused(void **state) {
    struct room *room = *state;
    const uint32_t bad[] = {0, HR_BATCH_MAX_THREADS + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(hr_batch_set_threads(room->scene->batch, bad[i]), -EINVAL);
        expect_message("threads; give 1 to 2");
    }
}

#define in_a_room(test) cmocka_unit_test_setup_teardown(test, open_room, close_room)

int main(void) {
    const struct CMUnitTest tests[] = {
        in_a_room(one_thread_writes_each_byte_to_its_place),
        in_a_room(two_threads_write_each_byte_to_its_place),
        in_a_room(memory_between_leaves_is_written_by_no_thread),
        in_a_room(a_stream_is_written_each_byte_to_its_place),
#if !IS_SANITIZED
        in_a_room(a_second_thread_is_started_only_if_allowed_and_useful),
        in_a_room(a_stream_of_smaller_batches_has_a_second_thread_that_ends_with_it),
        in_a_room(a_forked_child_in_the_middle_of_a_stream_writes_and_ends),
#endif
        in_a_room(without_a_second_thread_one_thread_writes_all),
        in_a_room(other_numbers_of_threads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
