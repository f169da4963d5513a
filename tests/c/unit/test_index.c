/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tar_scene.h"

#include <errno.h>
#include <signal.h>

#include "source/index.h"

/* Indexes: their serial form, which is never believed, and the files in which they are saved. */

static void an_index_is_one_block_of_bytes(void **state) {
    struct hr_index_info info;
    struct hr__sample sample;
    uint64_t bytes;
    hr_index *index, *again;
    (void)state;
    put_tar("a.tar", two_samples());
    must(index_one("a.tar", false, &index));
    const void *data = hr_index_data(index, &bytes);
    must(hr_index_open(data, bytes, HR_INDEX_TAR, true, &again));
    hr_index_look(again, &info);
    check(info.file_count == 1 && info.entry_count == 4 && info.sample_count == 2 && info.bytes == bytes);
    must(hr__index_sample(again, 1, &sample));
    check(sample.file == 0 && sample.first == 2 && sample.count == 2);
    assert_refused(hr__index_sample(again, 2, &sample), -ERANGE, "no sample 2 of 2");
    assert_refused(hr_index_open(data, bytes, HR_INDEX_LINES, true, &again), -EINVAL, "of kind 1");
    check(hr_index_look_file(index, 1) == NULL && hr_index_name(index, 2, &bytes) == NULL);
    hr_index_close(again);
    hr_index_close(index);
}

static void several_files_are_one_index(void **state) {
    static const char *const names[] = {"a.tar", "empty.tar", "b.tar"};
    struct tar *tar = two_samples(), empty = {.count = 0};
    struct hr__sample sample;
    const char *paths[3];
    hr_indexing *indexing;
    hr_index *index;
    uint64_t bytes;
    (void)state;
    add_end(&empty);
    put_tar("a.tar", tar);
    put_tar("empty.tar", &empty);
    add_file(tar, "behind.jpg", "");
    put_tar("b.tar", tar);
    for (int i = 0; i < 3; i++) paths[i] = path_of(names[i]);
    must(hr_indexing_start(HR_INDEX_TAR, paths, 3, false, &indexing));
    check(hr_indexing_wait(indexing, HR_NO_DEADLINE) == 1);
    must(hr_indexing_take(indexing, &index));
    hr_indexing_free(indexing);
    must(hr__index_sample(index, 3, &sample));
    check(sample.file == 2 && sample.first == 6 && sample.count == 2);
    check(hr_index_look_file(index, 1)->sample_count == 0 && hr_index_look_file(index, 2)->first_name == 2);
    check(hr_index_look_file(index, 2)->counts[HR_TAR_BEHIND] == BLOCK);
    check(memcmp(hr_index_name(index, 3, &bytes), "cls", 3) == 0 && bytes == 3);
    hr_index_close(index);
}

/* Each byte of the block is changed in turn: the checksum finds all of it, and without the checksum nothing is read
 * outside of the block. */
static void a_changed_byte_is_found(void **state) {
    struct hr__sample sample;
    hr_index *index, *forged;
    uint64_t bytes, length;
    (void)state;
    put_tar("a.tar", two_samples());
    must(index_one("a.tar", false, &index));
    const unsigned char *data = hr_index_data(index, &bytes);
    unsigned char *copy = malloc(bytes);
    check(copy != NULL);
    for (uint64_t i = 0; i < bytes; i++) {
        memcpy(copy, data, bytes);
        copy[i] ^= 0x81;
        check(hr_index_open(copy, bytes, HR_INDEX_TAR, true, &forged) < 0);
        if (hr_index_open(copy, bytes, HR_INDEX_TAR, false, &forged) < 0) continue;
        for (uint64_t n = 0; n < 3; n++) {
            int r = hr__index_sample(forged, n, &sample);
            if (r == 0) check(sample.first + sample.count <= forged->head->entry_count);
            hr_index_name(forged, n, &length);
        }
        hr_index_close(forged);
    }
    for (uint64_t i = 0; i < bytes; i++) check(hr_index_open(copy, i, HR_INDEX_TAR, false, &forged) < 0);
    free(copy);
    hr_index_close(index);
}

/* Its block can be changed by a test. */
static struct hr__index_head *head_of(hr_index *index) {
    return index->owned;
}

static void the_samples_of_an_index_are_those_of_its_kind(void **state) {
    struct hr__index_head sizes = {.kind = HR_INDEX_TAR, .file_count = 1, .entry_count = 1};
    hr_index *index, *again;
    (void)state;
    put_tar("a.tar", two_samples());
    must(index_one("a.tar", false, &index));
    head_of(index)->kind = HR_INDEX_LINES;
    hr__index_seal(index);
    assert_refused(hr_index_open(index->head, index->head->bytes, HR_INDEX_LINES, true, &again), -EINVAL, "samples");
    hr_index_close(index);
    must(hr__index_new(&sizes, &index));
    memset((unsigned char *)index->owned + sizeof sizes, 0, (size_t)index->head->bytes - sizeof sizes);
    struct hr_index_file *file = (void *)(head_of(index) + 1);
    file->entry_count = 1;
    file->sample_count = 1;
    assert_refused(hr_index_open(index->head, index->head->bytes, HR_INDEX_TAR, false, &again), -EINVAL, "samples");
    hr_index_close(index);
}

static void a_saved_index_that_is_too_large_is_not_read(void **state) {
    hr_index *index;
    (void)state;
    put_tar("a.tar", two_samples());
    must(index_one("a.tar", false, &index));
    must(hr_index_save(index, path_of("a.tar")));
    hr_index_close(index);
    check(truncate(path_of("a.tar.hri"), INT64_C(1) << 40) == 0);
    assert_refused(hr_index_load(HR_INDEX_TAR, path_of("a.tar"), &index), -EINVAL, "more than");
}

/* So that all processes have the same block, whether they have read the file or a saved index. */
static void a_loaded_index_has_the_inode_of_its_file(void **state) {
    hr_index *index, *loaded;
    (void)state;
    put_tar("a.tar", two_samples());
    must(index_one("a.tar", false, &index));
    struct hr_index_file *file = (void *)(head_of(index) + 1);
    uint64_t inode = file->inode++;
    hr__index_seal(index);
    must(hr_index_save(index, path_of("a.tar")));
    must(hr_index_load(HR_INDEX_TAR, path_of("a.tar"), &loaded));
    file->inode = inode;
    hr__index_seal(index);
    check(loaded->head->bytes == index->head->bytes);
    assert_memory_equal(loaded->head, index->head, index->head->bytes);
    hr_index_close(loaded);
    hr_index_close(index);
}

static void a_saved_index_is_used_while_its_file_is_the_same(void **state) {
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000}};
    hr_index *index, *loaded;
    (void)state;
    put_tar("a.tar", two_samples());
    assert_refused(hr_index_load(HR_INDEX_TAR, path_of("a.tar"), &loaded), -ENOENT, "a.tar.hri");
    must(index_one("a.tar", true, &index));
    must(hr_index_save(index, path_of("a.tar")));
    must(hr_index_load(HR_INDEX_TAR, path_of("a.tar"), &loaded));
    hr_index_close(loaded);
    check(utimensat(AT_FDCWD, path_of("a.tar"), times, 0) == 0);
    assert_refused(hr_index_load(HR_INDEX_TAR, path_of("a.tar"), &loaded), -ESTALE, "older than its file");
    assert_refused(hr_index_load(HR_INDEX_LINES, path_of("a.tar"), &loaded), -EINVAL, "of kind 1");
    put("a.tar.hri", "HRINDEX", 7);
    assert_refused(hr_index_load(HR_INDEX_TAR, path_of("a.tar"), &loaded), -EINVAL, "damaged");
    hr_index_close(index);
}

/* A saved index is used without a look at the members: here it is that of a file with other ones. */
static void a_saved_index_spares_reading_the_file(void **state) {
    struct hr_indexing_info info;
    struct hr_index_info found;
    hr_indexing *indexing;
    hr_index *index;
    (void)state;
    const char *path = path_of("a.tar"), *paths[] = {path, path};
    put_tar("a.tar", two_samples());
    must(index_one("a.tar", false, &index));
    must(hr_index_save(index, path));
    hr_index_close(index);
    must(hr_indexing_start(HR_INDEX_TAR, paths, 2, true, &indexing));
    check(hr_indexing_wait(indexing, HR_NO_DEADLINE) == 1);
    hr_indexing_look(indexing, &info);
    check(info.saved_count == 2 && info.bytes_done == 0 && info.files_done == 2 && info.unused_count == 0);
    must(hr_indexing_take(indexing, &index));
    hr_index_look(index, &found);
    check(found.sample_count == 4 && found.file_count == 2);
    assert_refused(hr_index_save(index, path), -EINVAL, "not that of 2 files");
    hr_index_close(index);
    hr_indexing_free(indexing);
    put("a.tar.hri", "nothing", 7);
    must(hr_indexing_start(HR_INDEX_TAR, paths, 1, true, &indexing));
    check(hr_indexing_wait(indexing, HR_NO_DEADLINE) == 1);
    hr_indexing_look(indexing, &info);
    check(info.unused_count == 1 && strstr(info.unused, "damaged") && info.bytes_done > 0);
    hr_indexing_free(indexing);
}

static void ignore(int signal) {
    (void)signal;
}

/* A signal ends the wait, and not as the deadline does. The files are read all the same. */
static void a_signal_interrupts_the_wait(void **state) {
    enum { FILES = 2000 };
    struct sigaction action = {.sa_handler = ignore}, old;
    const char *paths[FILES];
    int64_t deadline_ns = in_s(PATIENCE_S);
    int r = 1;
    (void)state;
    put_tar("a.tar", two_samples());
    for (int i = 0; i < FILES; i++) paths[i] = path_of("a.tar");
    sigaction(SIGALRM, &action, &old);
    ualarm(500, 500);
    for (bool was_interrupted = false; !was_interrupted && hr__now_ns() < deadline_ns;) {
        hr_indexing *indexing;
        must(hr_indexing_start(HR_INDEX_TAR, paths, FILES, false, &indexing));
        while ((r = hr_indexing_wait(indexing, HR_NO_DEADLINE)) == -EINTR) was_interrupted = true;
        hr_indexing_free(indexing);
        check(r == 1);
        if (was_interrupted) r = -EINTR;
    }
    ualarm(0, 0);
    sigaction(SIGALRM, &old, NULL);
    check(r == -EINTR);
}

static void a_file_that_cannot_be_read_is_an_error(void **state) {
    hr_index *index;
    (void)state;
    assert_refused(index_one("absent.tar", true, &index), -ENOENT, "absent.tar");
    check(mkdir(path_of("folder.tar"), 0700) == 0);
    assert_refused(index_one("folder.tar", true, &index), -EISDIR, "folder.tar");
    put_tar("a.tar", two_samples());
    check(setenv("HEADRACE_FAIL", "source_read:EIO", 1) == 0);
    assert_refused(index_one("a.tar", true, &index), -EIO, "cannot read");
    check(setenv("HEADRACE_FAIL", "thread:EAGAIN", 1) == 0);
    assert_refused(index_one("a.tar", true, &index), -EAGAIN, "cannot start a thread");
    check(unsetenv("HEADRACE_FAIL") == 0);
}

#define T(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(an_index_is_one_block_of_bytes),
        T(several_files_are_one_index),
        T(a_changed_byte_is_found),
        T(the_samples_of_an_index_are_those_of_its_kind),
        T(a_saved_index_that_is_too_large_is_not_read),
        T(a_loaded_index_has_the_inode_of_its_file),
        T(a_saved_index_is_used_while_its_file_is_the_same),
        T(a_saved_index_spares_reading_the_file),
        T(a_signal_interrupts_the_wait),
        T(a_file_that_cannot_be_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
