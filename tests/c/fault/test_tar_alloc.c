/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../unit/tar_scene.h"

#include <pthread.h>

#include "base/alloc.h"
#include "source/index.h"

/* Tar files whose samples are read while allocations fail, and by several threads at the same time. */

enum { MOST_ALLOCATIONS = 100, FIELDS = 2, LONG_NAME = 20 << 10 };

static char path_a[HR__PATH_BYTES], path_b[HR__PATH_BYTES];
static const char *const paths[] = {path_a, path_b};

struct opened {
    hr_index *index;
    hr_tar *tar;
};

static void close_opened(struct opened *opened) {
    hr_tar_close(opened->tar);
    hr_index_close(opened->index);
}

static int open_all(struct opened *opened) {
    static const char *const fields[FIELDS] = {"cls", "jpg;png"};
    struct hr_tar_options options = {fields, FIELDS, true, true};
    hr_indexing *indexing = NULL;
    *opened = (struct opened){NULL, NULL};
    int r = hr_indexing_start(HR_INDEX_TAR, paths, 2, true, &indexing);
    if (r == 0) r = hr_indexing_wait(indexing, in_s(PATIENCE_S));
    if (r == 1) r = hr_indexing_take(indexing, &opened->index);
    hr_indexing_free(indexing);
    return r < 0 ? r : hr_tar_open(paths, 2, opened->index, &options, &opened->tar);
}

/* Reads both fields of a sample to `texts`, which are then ended by 0. */
static int read_texts(const hr_tar *tar, uint64_t sample, char texts[FIELDS][16]) {
    struct hr_tar_member members[FIELDS];
    void *targets[FIELDS] = {texts[0], texts[1]};
    char key[8];
    size_t key_bytes;
    uint64_t file;
    int r = hr_tar_find(tar, sample, members, FIELDS, &file);
    if (r < 0) return r;
    for (int i = 0; i < FIELDS; i++) {
        if (members[i].bytes >= sizeof texts[i]) return -E2BIG;
        texts[i][members[i].bytes] = '\0';
    }
    return hr_tar_read(tar, file, members, FIELDS, targets, key, sizeof key, &key_bytes);
}

/* A member with a name of GNU that is longer than the headers for which the reader has room on its stack. */
static void add_long(struct tar *tar, char first, const char *field, const char *data) {
    static char name[LONG_NAME];
    memset(name, 'n', sizeof name);
    name[0] = first;
    snprintf(name + sizeof name - 8, 8, ".%s", field);
    add_typed(tar, "././@LongLink", 'L', name);
    add_file(tar, "short", data);
}

static void put_files(void) {
    static struct tar other;
    other.count = 0;
    put_tar("a.tar", two_samples());
    add_long(&other, '2', "png", "long");
    add_long(&other, '2', "cls", "9");
    add_file(&other, "3.jpg", "no class");
    add_end(&other);
    put_tar("b.tar", &other);
    snprintf(path_a, sizeof path_a, "%s", path_of("a.tar"));
    snprintf(path_b, sizeof path_b, "%s", path_of("b.tar"));
}

static bool has_samples(const hr_tar *tar) {
    static const char *const wanted[][FIELDS] = {{"7", "picture"}, {"8", "another"}, {"9", "long"}};
    struct hr_tar_info info;
    hr_tar_look(tar, &info);
    if (info.sample_count != 3 || info.missing_count != 1) return false;
    for (uint64_t i = 0; i < info.sample_count; i++) {
        char texts[FIELDS][16];
        if (read_texts(tar, i, texts) < 0) return false;
        for (int k = 0; k < FIELDS; k++)
            if (strcmp(texts[k], wanted[i][k]) != 0) return false;
    }
    return true;
}

/* Returns how many of the first allocations of indexing and opening cannot fail without an error. */
static int count_failures(void) {
    struct opened opened;
    int failures = 0, r = 0;
    for (int nth = 1; nth < MOST_ALLOCATIONS; nth++) {
        hr__alloc_fail_at((uint64_t)nth);
        r = open_all(&opened);
        hr__alloc_fail_at(0);
        failures += r < 0;
        if (r < 0)
            assert_refused(r, -ENOMEM, "memory");
        else
            check(has_samples(opened.tar));
        close_opened(&opened);
    }
    check(r == 0);
    return failures;
}

static void a_failed_allocation_is_reported_and_frees_all(void **state) {
    hr_index *index;
    (void)state;
    put_files();
    int failures = count_failures();
    check(failures > 10);
    for (int i = 0; i < 2; i++) {
        must(index_one(i ? "b.tar" : "a.tar", false, &index));
        must(hr_index_save(index, paths[i]));
        hr_index_close(index);
    }
    check(count_failures() < failures); /* a saved index that cannot be read only costs a look at the file */
}

/* A member whose headers are large needs memory when it is read. */
static void a_failed_allocation_of_a_read_is_reported(void **state) {
    struct opened opened;
    char texts[FIELDS][16];
    (void)state;
    put_files();
    must(open_all(&opened));
    hr__alloc_fail_at(1);
    int r = read_texts(opened.tar, 2, texts);
    hr__alloc_fail_at(0);
    assert_refused(r, -ENOMEM, "no memory for the headers");
    check(has_samples(opened.tar));
    close_opened(&opened);
}

/* ---- threads ---- */

enum { THREADS = 8, ROUNDS = 200 };

static void *read_in_thread(void *argument) {
    for (int i = 0; i < ROUNDS; i++) {
        const int64_t numbers[] = {2, 1, 0, -1, 99};
        hr_tar_ask(argument, numbers, sizeof numbers / sizeof *numbers, NULL);
        if (!has_samples(argument)) return argument;
    }
    return NULL;
}

static void threads_read_the_same_files(void **state) {
    pthread_t threads[THREADS];
    struct opened opened;
    (void)state;
    put_files();
    must(open_all(&opened));
    for (int i = 0; i < THREADS; i++) check(pthread_create(&threads[i], NULL, read_in_thread, opened.tar) == 0);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        check(pthread_join(threads[i], &wrong) == 0 && wrong == NULL);
    }
    close_opened(&opened);
}

#define T(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(a_failed_allocation_is_reported_and_frees_all),
        T(a_failed_allocation_of_a_read_is_reported),
        T(threads_read_the_same_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
