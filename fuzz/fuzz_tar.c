/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <headrace/headrace.h>

#include "folder.h"
#include "source/tar_header.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

/* Reads tar files, headers of pax and saved indexes. Whatever the bytes are, they are refused, or all samples are read,
 * or are an error, within arrays of exactly their length. */

enum { SAMPLES_MOST = 64, MEMBERS_MOST = 64 };

static void read_sample(const hr_tar *tar, uint64_t number) {
    struct hr_tar_member members[MEMBERS_MOST];
    void *targets[MEMBERS_MOST] = {NULL};
    char key[16];
    size_t key_bytes;
    uint64_t file;
    int count = hr_tar_find(tar, number, members, MEMBERS_MOST, &file);
    if (count > MEMBERS_MOST) count = MEMBERS_MOST;
    for (int i = 0; i < count; i++)
        if (!(targets[i] = malloc(members[i].bytes + 1))) abort();
    if (count > 0) hr_tar_read(tar, file, members, (size_t)count, targets, key, sizeof key, &key_bytes);
    for (int i = 0; i < count; i++) free(targets[i]);
}

static void read_all(const hr_index *index) {
    const char *paths[] = {path_of("a.tar")};
    struct hr_tar_options options = {.skips_missing = true, .skips_repeated = true};
    struct hr_tar_info info;
    hr_tar *tar;
    if (hr_tar_open(paths, 1, index, &options, &tar) < 0) return;
    hr_tar_look(tar, &info);
    for (uint64_t i = 0; i < info.sample_count && i < SAMPLES_MOST; i++) read_sample(tar, i);
    hr_tar_close(tar);
}

static int make_index(hr_index **ret_index) {
    const char *paths[] = {path_of("a.tar")};
    hr_indexing *indexing;
    if (hr_indexing_start(HR_INDEX_TAR, paths, 1, false, &indexing) < 0) abort();
    int r;
    do r = hr_indexing_wait(indexing, HR_NO_DEADLINE);
    while (r == -EINTR); /* of a debugger, a profiler or the fuzzer */
    if (r > 0) r = hr_indexing_take(indexing, ret_index);
    hr_indexing_free(indexing);
    return r;
}

/* Makes the checksums of headers right, so that the parser gets further. */
static void repair(uint8_t *tar, size_t bytes) {
    for (size_t at = 0; at + HR__TAR_BLOCK <= bytes; at += HR__TAR_BLOCK) {
        unsigned sum = 8 * ' ';
        for (int i = 0; i < HR__TAR_BLOCK; i++) sum += i >= 148 && i < 156 ? 0 : tar[at + (size_t)i];
        snprintf((char *)tar + at + 148, 8, "%06o", sum);
    }
}

/* A tar file of these bytes. */
static void as_tar(const uint8_t *input, size_t bytes, bool is_repaired) {
    hr_index *index;
    uint8_t *copy = malloc(bytes + 1);
    if (!copy) abort();
    memcpy(copy, input, bytes);
    if (is_repaired) repair(copy, bytes);
    write_file("a.tar", copy, bytes);
    free(copy);
    if (make_index(&index) < 0) return;
    read_all(index);
    hr_index_close(index);
}

/* An index of these bytes, behind which is the head of a right one, for a fixed tar file. */
static void as_index(const uint8_t *input, size_t bytes) {
    uint8_t tar[4 * HR__TAR_BLOCK] = "a.jpg";
    hr_index *index, *forged;
    uint64_t length;
    tar[156] = '0';
    memcpy(tar + HR__TAR_BLOCK, "a.cls", 5);
    repair(tar, 2 * HR__TAR_BLOCK);
    write_file("a.tar", tar, sizeof tar);
    if (make_index(&index) < 0) abort();
    const void *data = hr_index_data(index, &length);
    uint8_t *copy = malloc(length + bytes);
    if (!copy) abort();
    memcpy(copy, data, length);
    for (size_t i = 0; i + 2 <= bytes; i += 2) copy[input[i] * (length - 1) / 255] ^= input[i + 1];
    if (hr_index_open(copy, length, HR_INDEX_TAR, false, &forged) == 0) {
        read_all(forged);
        hr_index_close(forged);
    }
    free(copy);
    copy = malloc(bytes + 8);
    if (!copy) abort();
    memcpy(copy, input, bytes);
    if (hr_index_open(copy, bytes, HR_INDEX_TAR, false, &forged) == 0) {
        read_all(forged);
        hr_index_close(forged);
    }
    free(copy);
    hr_index_close(index);
}

/* The first byte of input decides what the rest is. */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    if (!*folder) make_folder();
    if (bytes == 0) return 0;
    if (input[0] % 4 == 3)
        as_index(input + 1, bytes - 1);
    else
        as_tar(input + 1, bytes - 1, input[0] % 4 != 0);
    return 0;
}
