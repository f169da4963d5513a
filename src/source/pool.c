/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the user that are read with pread: closed when there are too many, and opened again. */
#include "pool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"

enum { OPEN_MOST = 64, OPEN_SHARE = 8, DESCRIPTOR_SHIFT = 32 };

static _Atomic uint32_t open_count; /* in all pools of this process */

static uint64_t state_of(int fd, uint32_t readers) {
    return (uint64_t)((uint32_t)fd + 1) << DESCRIPTOR_SHIFT | readers;
}

static bool is_open(uint64_t state) {
    return state >> DESCRIPTOR_SHIFT != 0;
}

static int descriptor_of(uint64_t state) {
    return (int)(state >> DESCRIPTOR_SHIFT) - 1;
}

static uint32_t readers_of(uint64_t state) {
    return (uint32_t)state;
}

/* ---- is it still the same file? ---- */

static bool is_same(const struct hr__file_info *one, const struct hr__file_info *other) {
    return one->device == other->device && one->inode == other->inode;
}

static int check_unchanged(const struct hr__pool_file *file, const struct hr__file_info *now) {
    static const char advice[] =
        "Open the source again, and do not write to files that are in use" HR_HELP("source-changed");
    if (!is_same(&file->first, now))
        return hr__fail(-ESTALE, "source: %s was replaced by another file since it was opened. %s", file->path, advice);
    if (file->first.bytes != now->bytes)
        return hr__fail(-ESTALE,
                        "source: %s was changed since it was opened: it had %" PRIu64 " bytes, and now has %" PRIu64
                        ". %s",
                        file->path, file->first.bytes, now->bytes, advice);
    if (file->first.changed_ns != now->changed_ns)
        return hr__fail(-ESTALE, "source: %s was written to since it was opened. %s", file->path, advice);
    return 0;
}

/* ---- descriptors ---- */

/* Closes the descriptor, unless the program has closed it and its number is another file's now. */
static void close_ours(const struct hr__pool_file *file, int fd) {
    struct hr__file_info now;
    if (hr__file_look_fd(fd, &now) == 0 && is_same(&file->first, &now)) hr__close(&fd);
    atomic_fetch_sub(&open_count, 1);
}

/* Closes a file that has no reader. Returns false if all are in use or closed. */
static bool close_one(struct hr__pool *pool) {
    for (uint32_t i = 0; i < pool->count; i++) {
        struct hr__pool_file *file = &pool->files[atomic_fetch_add(&pool->hand, 1) % pool->count];
        uint64_t state = atomic_load(&file->state);
        if (!is_open(state) || readers_of(state)) continue;
        if (!atomic_compare_exchange_strong(&file->state, &state, 0)) continue;
        close_ours(file, descriptor_of(state));
        return true;
    }
    return false;
}

static uint32_t open_most(void) {
    return (uint32_t)hr__max(1, hr__min(OPEN_MOST, hr__open_file_limit() / OPEN_SHARE));
}

/* Opens a file within the limit. A pool may always have one file open, whatever the others have. */
static int open_within(struct hr__pool *pool, const char *path, int *ret_fd) {
    while (atomic_load(&open_count) >= open_most() && close_one(pool)) continue;
    int r = hr__file_open(path, ret_fd);
    while ((r == -EMFILE || r == -ENFILE) && close_one(pool)) r = hr__file_open(path, ret_fd);
    if (r == -EINVAL) return hr__fail(r, "source: %s is not a regular file", path);
    if (r == -EMFILE || r == -ENFILE)
        return hr__fail(
            r, "source: cannot open %s: this process has too many open files (ulimit -n)" HR_HELP("open-files"), path);
    return r < 0 ? hr__fail(r, "source: cannot open %s: %s", path, hr_error_text(r)) : 0;
}

/* Returns the descriptor of an open file, which then has one reader more; -1: it is closed. */
static int take(struct hr__pool_file *file) {
    uint64_t state = atomic_load(&file->state);
    while (is_open(state))
        if (atomic_compare_exchange_weak(&file->state, &state, state + 1)) return descriptor_of(state);
    return -1;
}

static void give_back(struct hr__pool_file *file) {
    atomic_fetch_sub(&file->state, 1);
}

/* Opens the file once more. With a message. */
static int open_same(struct hr__pool *pool, const struct hr__pool_file *file, int *ret_fd) {
    struct hr__file_info now;
    int fd = -1;
    int r = open_within(pool, file->path, &fd);
    if (r < 0) return r;
    r = hr__file_look_fd(fd, &now);
    r = r < 0 ? hr__fail(r, "source: cannot look at %s: %s", file->path, hr_error_text(r))
              : check_unchanged(file, &now);
    if (r < 0)
        hr__close(&fd);
    else
        *ret_fd = fd;
    return r;
}

/* Opens a file whose descriptor is `fd`, -1: it is closed. It is another one if the program has closed it. */
static int open_again(struct hr__pool *pool, struct hr__pool_file *file, int fd) {
    uint64_t state = atomic_load(&file->state);
    int again = -1;
    int r = open_same(pool, file, &again);
    if (r < 0) return r;
    while (is_open(state) == (fd >= 0) && (fd < 0 || descriptor_of(state) == fd))
        if (atomic_compare_exchange_weak(&file->state, &state, state_of(again, readers_of(state)))) {
            if (fd < 0) atomic_fetch_add(&open_count, 1);
            return 0;
        }
    hr__close(&again); /* another thread was quicker */
    return 0;
}

/* Returns the descriptor of a file, which is the one that was added and has not changed. The caller gives it back. */
static int take_checked(struct hr__pool *pool, struct hr__pool_file *file) {
    for (;;) {
        struct hr__file_info now;
        int fd = take(file), r = 0;
        if (fd < 0) {
            r = open_again(pool, file, -1);
            if (r < 0) return r;
            continue;
        }
        bool is_ours = hr__file_look_fd(fd, &now) == 0 && is_same(&file->first, &now);
        if (is_ours) r = check_unchanged(file, &now);
        if (is_ours && r == 0) return fd;
        if (!is_ours) r = open_again(pool, file, fd);
        give_back(file);
        if (r < 0) return r;
    }
}

/* ---- reading ---- */

static int cannot_read(const struct hr__pool_file *file, uint64_t at, uint64_t bytes, int code) {
    return hr__fail(code,
                    "source: cannot read %" PRIu64 " bytes at offset %" PRIu64
                    " of %s: %s. Look at the file system and the "
                    "disk, and open the source again",
                    bytes, at, file->path, hr_error_text(code));
}

int hr__pool_read(struct hr__pool *pool, uint32_t number, uint64_t at, void *data, size_t bytes) {
    struct hr__pool_file *file = &pool->files[number];
    int fd = take_checked(pool, file);
    if (fd < 0) return hr__fail_more(fd, "source: wanted %zu bytes at offset %" PRIu64, bytes, at);
    int r = hr__fail_at("source_read");
    if (r == 0) r = hr__read_at(fd, at, data, bytes);
    give_back(file);
    return r < 0 ? cannot_read(file, at, bytes, r) : 0;
}

int hr__pool_read_parts(struct hr__pool *pool, uint32_t number, uint64_t at, struct hr__read_part *places,
                        size_t count) {
    struct hr__pool_file *file = &pool->files[number];
    int fd = take_checked(pool, file);
    if (fd < 0) return hr__fail_more(fd, "source: wanted what is at offset %" PRIu64, at);
    int r = hr__fail_at("source_read");
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += places[i].bytes;
    if (r == 0) r = hr__read_parts(fd, at, places, count);
    give_back(file);
    return r < 0 ? cannot_read(file, at, bytes, r) : 0;
}

int hr__pool_read_now(struct hr__pool *pool, uint32_t number, uint64_t at, void *data, size_t bytes) {
    struct hr__pool_file *file = &pool->files[number];
    int fd = take_checked(pool, file);
    if (fd < 0) return -EAGAIN;
    int r = hr__fail_at("source_read");
    if (r == 0) r = hr__read_now(fd, at, data, bytes);
    give_back(file);
    return r < 0 ? -EAGAIN : 0;
}

void hr__pool_ask(struct hr__pool *pool, uint32_t number, uint64_t at, uint64_t bytes) {
    struct hr__pool_file *file = &pool->files[number];
    int fd = take_checked(pool, file);
    if (fd < 0) return;
    hr__file_ask(fd, at, bytes);
    give_back(file);
}

/* ---- the pool ---- */

int hr__pool_new(struct hr__pool **ret_pool) {
    struct hr__pool *pool = hr__realloc(NULL, sizeof *pool);
    if (!pool) return -ENOMEM;
    memset(pool, 0, sizeof *pool);
    *ret_pool = pool;
    return 0;
}

struct hr__pool *hr__pool_free(struct hr__pool *pool) {
    if (!pool) return NULL;
    for (uint32_t i = 0; i < pool->count; i++) {
        uint64_t state = atomic_load(&pool->files[i].state);
        if (is_open(state)) close_ours(&pool->files[i], descriptor_of(state));
        hr__free(pool->files[i].path);
    }
    hr__free(pool->files);
    hr__free(pool);
    return NULL;
}

/* Owned by the caller. */
static int make_absolute(const char *path, char **ret_path) {
    char folder[HR__PATH_BYTES] = "";
    int r = *path == '/' ? 0 : hr__folder_current(folder, sizeof folder);
    if (r < 0) return hr__fail(r, "source: the working directory, for %s, is not known: %s", path, hr_error_text(r));
    size_t room = strlen(folder) + strlen(path) + 2;
    char *whole = hr__realloc(NULL, room);
    if (!whole) return -ENOMEM;
    snprintf(whole, room, "%s%s%s", folder, *path == '/' ? "" : "/", path);
    *ret_path = whole;
    return 0;
}

static int grow(struct hr__pool *pool) {
    if (pool->count < pool->room) return 0;
    if (pool->room > UINT32_MAX / 4) return -ENOMEM;
    uint32_t room = 2 * pool->room + 4;
    struct hr__pool_file *files = hr__realloc(pool->files, room * sizeof *files);
    if (!files) return -ENOMEM;
    pool->files = files;
    pool->room = room;
    return 0;
}

int hr__pool_add_known(struct hr__pool *pool, const char *path, const struct hr__file_info *info,
                       uint32_t *ret_number) {
    struct hr__pool_file file = {.first = *info};
    int r = grow(pool);
    if (r == 0) r = make_absolute(path, &file.path);
    if (r < 0) return r;
    *ret_number = pool->count;
    pool->files[pool->count++] = file;
    return 0;
}

int hr__pool_add(struct hr__pool *pool, const char *path, uint32_t *ret_number) {
    struct hr__pool_file file = {0};
    int fd = -1;
    int r = grow(pool);
    if (r == 0) r = make_absolute(path, &file.path);
    if (r == 0) r = open_within(pool, file.path, &fd);
    if (r == 0 && (r = hr__file_look_fd(fd, &file.first)) < 0)
        hr__fail(r, "source: cannot look at %s: %s", file.path, hr_error_text(r));
    if (r < 0) {
        hr__close(&fd);
        hr__free(file.path);
        return r;
    }
    atomic_fetch_add(&open_count, 1);
    atomic_init(&file.state, state_of(fd, 0));
    *ret_number = pool->count;
    pool->files[pool->count++] = file;
    return 0;
}
