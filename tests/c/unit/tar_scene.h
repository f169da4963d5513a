/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_TAR_SCENE_H
#define HR_TESTS_TAR_SCENE_H

#include "tokens_scene.h"

#include "source/tar_header.h"

/* Tar files that are made by hand, in a folder of the test. */

enum { TAR_ROOM = 1 << 20, BLOCK = HR__TAR_BLOCK };

struct tar {
    unsigned char bytes[TAR_ROOM];
    size_t count;
};

static inline void put_sum(unsigned char *head) {
    unsigned sum = 0;
    memset(head + 148, ' ', 8);
    for (int i = 0; i < BLOCK; i++) sum += head[i];
    snprintf((char *)head + 148, 8, "%06o", sum);
}

/* Adds a header of ustar, which a test can change before put_sum. */
static inline unsigned char *add_head(struct tar *tar, const char *name, char type, size_t bytes) {
    unsigned char *head = tar->bytes + tar->count;
    memset(head, 0, BLOCK);
    snprintf((char *)head, 100, "%s", name);
    snprintf((char *)head + 100, 8, "%07o", 0644u);
    snprintf((char *)head + 124, 12, "%011o", (unsigned)bytes);
    memcpy(head + 257, "ustar\00000", 8);
    head[156] = (unsigned char)type;
    put_sum(head);
    tar->count += BLOCK;
    return head;
}

static inline void add_data(struct tar *tar, const void *data, size_t bytes) {
    size_t whole = (size_t)hr__tar_padded(bytes);
    memset(tar->bytes + tar->count, 0, whole);
    memcpy(tar->bytes + tar->count, data, bytes);
    tar->count += whole;
}

static inline void add_typed(struct tar *tar, const char *name, char type, const char *data) {
    add_head(tar, name, type, strlen(data));
    add_data(tar, data, strlen(data));
}

static inline void add_file(struct tar *tar, const char *name, const char *data) {
    add_typed(tar, name, '0', data);
}

static inline void add_end(struct tar *tar) {
    memset(tar->bytes + tar->count, 0, 2 * BLOCK);
    tar->count += 2 * BLOCK;
}

static inline void put_tar(const char *name, const struct tar *tar) {
    put(name, tar->bytes, tar->count);
}

/* The index of one file. */
static inline int index_one(const char *name, bool uses_saved, hr_index **ret_index) {
    const char *paths[] = {path_of(name)};
    hr_indexing *indexing;
    int r = hr_indexing_start(HR_INDEX_TAR, paths, 1, uses_saved, &indexing);
    if (r < 0) return r;
    do r = hr_indexing_wait(indexing, HR_NO_DEADLINE);
    while (r == -EINTR);
    if (r > 0) r = hr_indexing_take(indexing, ret_index);
    hr_indexing_free(indexing);
    return r;
}

/* Two samples of two fields each. */
static inline struct tar *two_samples(void) {
    static struct tar tar;
    tar.count = 0;
    add_file(&tar, "0.jpg", "picture");
    add_file(&tar, "0.cls", "7");
    add_file(&tar, "1.jpg", "another");
    add_file(&tar, "1.cls", "8");
    add_end(&tar);
    return &tar;
}

#endif
