/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the user that are read with pread: closed when there are too many, and opened again. */
#include "pool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "arena/network.h"
#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "remote/blocks.h"

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

/* Says whether an open file is that of the pool: what is kept of a remote object is in the file that was opened last.
 */
static bool is_file_of(const struct hr__pool_file *file, const struct hr__file_info *now) {
    if (!file->remote) return is_same(&file->first, now);
    return atomic_load(&file->kept_device) == now->device && atomic_load(&file->kept_inode) == now->inode;
}

static int check_unchanged(const struct hr__pool_file *file, const struct hr__file_info *now) {
    if (file->remote) return 0; /* its file was checked when it was opened, and grows */
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
    if (hr__file_look_fd(fd, &now) == 0 && is_file_of(file, &now)) hr__close(&fd);
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

static int open_once(const struct hr__pool *pool, const struct hr__pool_file *file, int *ret_fd) {
    const struct hr__known *remote = file->remote;
    if (!remote) return hr__file_open(file->path, ret_fd);
    return hr__blocks_open(pool->folder, remote->object.name, remote->object.bytes, ret_fd);
}

/* Opens a file within the limit. A pool may always have one file open, whatever the others have. With a message, but
 * not for a remote object, of which nothing may be kept. */
static int open_within(struct hr__pool *pool, const struct hr__pool_file *file, int *ret_fd) {
    const char *path = file->path;
    while (atomic_load(&open_count) >= open_most() && close_one(pool)) continue;
    int r = open_once(pool, file, ret_fd);
    while ((r == -EMFILE || r == -ENFILE) && close_one(pool)) r = open_once(pool, file, ret_fd);
    if (file->remote) return r;
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

/* Opens the file once more. With a message; see open_within. */
static int open_same(struct hr__pool *pool, struct hr__pool_file *file, int *ret_fd) {
    struct hr__file_info now = {0};
    int fd = -1;
    int r = open_within(pool, file, &fd);
    if (r < 0) return r;
    r = hr__file_look_fd(fd, &now);
    if (r == 0 && file->remote) {
        atomic_store(&file->whole_inode, 0); /* the number of a file that was removed may be that of another one */
        atomic_store(&file->kept_device, now.device);
        atomic_store(&file->kept_inode, now.inode);
    }
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

/* Returns the descriptor of a file, which is the one that was added and has not changed, and its inode. The caller
 * gives it back. */
static int take_with_inode(struct hr__pool *pool, struct hr__pool_file *file, uint64_t *ret_inode) {
    for (;;) {
        struct hr__file_info now;
        int fd = take(file), r = 0;
        if (fd < 0) {
            r = open_again(pool, file, -1);
            if (r < 0) return r;
            continue;
        }
        bool is_ours = hr__file_look_fd(fd, &now) == 0 && is_file_of(file, &now);
        if (is_ours) r = check_unchanged(file, &now);
        if (is_ours && r == 0) {
            *ret_inode = now.inode;
            return fd;
        }
        if (!is_ours) r = open_again(pool, file, fd);
        give_back(file);
        if (r < 0) return r;
    }
}

static int take_checked(struct hr__pool *pool, struct hr__pool_file *file) {
    uint64_t inode;
    return take_with_inode(pool, file, &inode);
}

/* ---- reading a remote object ---- */

/* Says whether an open file has all of its object, so that its bits need not be read. Looks rarely. */
static bool is_whole(struct hr__pool_file *file, int fd, uint64_t inode) {
    enum { OFTEN = 512 };
    if (atomic_load(&file->whole_inode) == inode) return true;
    if (atomic_fetch_add(&file->read_count, 1) % OFTEN != 0) return false;
    if (!hr__blocks_have(fd, file->first.bytes, 0, file->first.bytes)) return false;
    atomic_store(&file->whole_inode, inode);
    return true;
}

/* Takes the descriptor of the kept part, if it has all of a range; -1: it has not. The caller gives it back. */
static int take_kept(struct hr__pool *pool, struct hr__pool_file *file, uint64_t at, uint64_t bytes) {
    uint64_t inode = 0;
    int fd = take_with_inode(pool, file, &inode);
    if (fd < 0) return -1;
    if (is_whole(file, fd, inode) || hr__blocks_have(fd, file->first.bytes, at, bytes)) return fd;
    give_back(file);
    return -1;
}

static int cannot_get(const struct hr__pool_file *file, uint64_t at, uint64_t bytes, int code) {
    return hr__fail_more(code, "source: wanted %" PRIu64 " bytes at offset %" PRIu64 " of %s", bytes, at, file->path);
}

/* Reads what is kept, else asks the fetcher. What it has then fetched is in the file, or if the file of this process is
 * another one, or cannot be read, it sends the bytes. once: it sends them anyway, and does not keep them. */
static int read_remote(struct hr__pool *pool, struct hr__pool_file *file, uint64_t at,
                       const struct hr__read_part *places, size_t count, uint64_t bytes, bool once) {
    struct hr__read_part left[HR__READ_PARTS_MOST];
    bool is_direct = false, has_waited = false;
    if (at > file->first.bytes || bytes > file->first.bytes - at || count > HR__READ_PARTS_MOST)
        return hr__fail(-EIO, "source: %s has %" PRIu64 " bytes, and not %" PRIu64 " from offset %" PRIu64 " on",
                        file->path, file->first.bytes, bytes, at);
    if (bytes == 0) return 0;
    for (;;) {
        int fd = is_direct ? -1 : take_kept(pool, file, at, bytes), r = -EIO;
        memcpy(left, places, count * sizeof *left);
        if (fd >= 0) {
            r = hr__fail_at("source_read");
            if (r == 0) r = hr__read_parts(fd, at, left, count);
            give_back(file);
            if (r == 0 && !has_waited) hr__network_hit();
            if (r == 0) return 0;
            is_direct = true;
            memcpy(left, places, count * sizeof *left);
        }
        has_waited = true;
        r = hr__remote_get(file->remote, at, bytes, is_direct || once, left, count);
        if (r < 0) return cannot_get(file, at, bytes, r);
        if (r == 1) return 0;
        fd = take_kept(pool, file, at, bytes);
        if (fd >= 0) give_back(file);
        is_direct = fd < 0;
    }
}

static void ask_remote(struct hr__pool *pool, struct hr__pool_file *file, uint64_t at, uint64_t bytes,
                       hr_announcer *announcer) {
    if (at >= file->first.bytes || !bytes) return;
    bytes = hr__min(bytes, file->first.bytes - at);
    int fd = take_kept(pool, file, at, bytes);
    if (fd < 0 && announcer) hr__announcer_add(announcer, file->remote, at, bytes);
    if (fd < 0 && !announcer) hr__remote_ask(file->remote, at, bytes);
    if (fd < 0) return;
    if (!announcer) hr__file_ask(fd, at, bytes);
    give_back(file);
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
    if (file->remote) return read_remote(pool, file, at, &(struct hr__read_part){data, bytes}, 1, bytes, false);
    int fd = take_checked(pool, file);
    if (fd < 0) return hr__fail_more(fd, "source: wanted %zu bytes at offset %" PRIu64, bytes, at);
    int r = hr__fail_at("source_read");
    if (r == 0) r = hr__read_at(fd, at, data, bytes);
    give_back(file);
    return r < 0 ? cannot_read(file, at, bytes, r) : 0;
}

int hr__pool_read_once(struct hr__pool *pool, uint32_t number, uint64_t at, void *data, size_t bytes) {
    struct hr__pool_file *file = &pool->files[number];
    if (!file->remote) return hr__pool_read(pool, number, at, data, bytes);
    return read_remote(pool, file, at, &(struct hr__read_part){data, bytes}, 1, bytes, true);
}

int hr__pool_read_parts(struct hr__pool *pool, uint32_t number, uint64_t at, struct hr__read_part *places,
                        size_t count) {
    struct hr__pool_file *file = &pool->files[number];
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += places[i].bytes;
    if (file->remote) return read_remote(pool, file, at, places, count, bytes, false);
    int fd = take_checked(pool, file);
    if (fd < 0) return hr__fail_more(fd, "source: wanted what is at offset %" PRIu64, at);
    int r = hr__fail_at("source_read");
    if (r == 0) r = hr__read_parts(fd, at, places, count);
    give_back(file);
    return r < 0 ? cannot_read(file, at, bytes, r) : 0;
}

int hr__pool_read_now(struct hr__pool *pool, uint32_t number, uint64_t at, void *data, size_t bytes) {
    struct hr__pool_file *file = &pool->files[number];
    /* A part that is not kept is a hole of the file, which would read as zeros. */
    int fd = file->remote ? take_kept(pool, file, at, bytes) : take_checked(pool, file);
    if (fd < 0) return -EAGAIN;
    int r = hr__fail_at("source_read");
    if (r == 0) r = hr__read_now(fd, at, data, bytes);
    give_back(file);
    if (r == 0 && file->remote) hr__network_hit();
    return r < 0 ? -EAGAIN : 0;
}

void hr__pool_ask(struct hr__pool *pool, uint32_t number, uint64_t at, uint64_t bytes, hr_announcer *announcer) {
    struct hr__pool_file *file = &pool->files[number];
    if (file->remote) {
        ask_remote(pool, file, at, bytes, announcer);
        return;
    }
    if (announcer) return;
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
    hr__free(pool->folder);
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

/* ---- remote objects ---- */

static struct hr__file_info info_of(const struct hr__known *known) {
    return (struct hr__file_info){.bytes = known->object.bytes, .changed_ns = known->stamp, .is_regular = true};
}

int hr__place_look(const char *path, struct hr__file_info *ret_info) {
    const struct hr__known *known;
    int r;
    if (!hr__remote_is(path)) {
        r = hr__file_look_through(path, ret_info);
        return r < 0 ? hr__fail(r, "source: cannot open %s: %s", path, hr_error_text(r)) : 0;
    }
    r = hr__known_look(path, &known);
    if (r == 0) *ret_info = info_of(known);
    return r;
}

bool hr__place_exists(const char *path) {
    struct hr__file_info info;
    if (hr__remote_is(path)) return hr__place_look(path, &info) == 0;
    return hr__file_look(path, &info) == 0 && !info.is_folder;
}

static int copy_text(const char *text, char **ret_text) {
    char *copied = hr__realloc(NULL, strlen(text) + 1);
    if (!copied) return -ENOMEM;
    memcpy(copied, text, strlen(text) + 1);
    *ret_text = copied;
    return 0;
}

static int add_remote(struct hr__pool *pool, const char *path, uint32_t *ret_number) {
    char folder[HR__PATH_BYTES];
    struct hr__pool_file file = {0};
    int r = hr__known_look(path, &file.remote);
    if (r == 0 && !pool->folder) {
        r = hr_remote_folder(folder, sizeof folder);
        if (r == 0) r = copy_text(folder, &pool->folder);
    }
    if (r == 0) r = grow(pool);
    if (r == 0) r = copy_text(file.remote->object.path, &file.path);
    if (r < 0) return r;
    file.first = info_of(file.remote);
    *ret_number = pool->count;
    pool->files[pool->count++] = file;
    return 0;
}

/* ---- adding ---- */

int hr__pool_add_known(struct hr__pool *pool, const char *path, const struct hr__file_info *info,
                       uint32_t *ret_number) {
    struct hr__pool_file file = {.first = *info};
    if (hr__remote_is(path)) return add_remote(pool, path, ret_number);
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
    if (hr__remote_is(path)) return add_remote(pool, path, ret_number);
    int r = grow(pool);
    if (r == 0) r = make_absolute(path, &file.path);
    if (r == 0) r = open_within(pool, &file, &fd);
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
