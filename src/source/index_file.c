/* SPDX-License-Identifier: Apache-2.0 */
/* An index next to its file: PATH.hri. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "index.h"
#include "pool.h"

/* Owned by the caller. */
static int name_index(const char *path, char **ret_name) {
    size_t room = strlen(path) + sizeof ".hri";
    char *name = hr__realloc(NULL, room);
    if (!name) return hr__fail(-ENOMEM, "source: no memory for the name of an index");
    snprintf(name, room, "%s.hri", path);
    *ret_name = name;
    return 0;
}

/* ---- writing ---- */

static int write_file(const hr_index *index, const char *name) {
    char *temporary = NULL;
    int fd = -1;
    int r = hr__file_create(name, &fd, &temporary);
    if (r == 0) r = hr__fail_at("index_write");
    if (r == 0) r = hr__write_at(fd, 0, index->head, index->head->bytes);
    if (r == 0) r = hr__file_sync(fd); /* or a machine that stops could leave a file of zeros under the name */
    if (r == 0) r = hr__file_publish(fd, temporary, name);
    if (r < 0) hr__file_remove(temporary);
    hr__close(&fd);
    hr__free(temporary);
    return r < 0 ? hr__fail(r, "source: cannot write %s: %s", name, hr_error_text(r)) : 0;
}

int hr_index_save(const hr_index *index, const char *path) {
    char *name;
    if (index->head->file_count != 1)
        return hr__fail(-EINVAL, "source: the index of one file is saved next to it, not that of %" PRIu64 " files",
                        index->head->file_count);
    int r = name_index(path, &name);
    if (r < 0) return r;
    r = write_file(index, name);
    hr__free(name);
    return r;
}

/* ---- reading ---- */

/* Says whether a file of `file_bytes` bytes can have an index of `bytes` bytes: of lines it takes the most, with an
 * entry for a byte and its line feed. */
static bool may_have(uint64_t file_bytes, uint64_t bytes) {
    enum { LINE_BYTES_LEAST = 2, FIXED_BYTES = 512 };
    return bytes <= FIXED_BYTES || (bytes - FIXED_BYTES) / sizeof(struct hr__entry) <= file_bytes / LINE_BYTES_LEAST;
}

/* Opens the bytes of an index, which the index then owns. */
static int open_block(void *block, uint64_t bytes, enum hr_index_kind kind, hr_index **ret_index) {
    int r = hr_index_open(block, bytes, kind, true, ret_index);
    if (r < 0)
        hr__free(block);
    else
        (*ret_index)->owned = block;
    return r;
}

static int make_block(uint64_t file_bytes, uint64_t bytes, void **ret_block) {
    if (!may_have(file_bytes, bytes))
        return hr__fail(-EINVAL,
                        "source: an index is damaged: it has %" PRIu64 " bytes, more than a file of %" PRIu64 " needs",
                        bytes, file_bytes);
    *ret_block = hr__realloc(NULL, bytes + 1);
    if (*ret_block) return 0;
    return hr__fail(-ENOMEM, "source: no memory to read an index of %" PRIu64 " bytes", bytes);
}

static int read_block(int fd, uint64_t file_bytes, hr_index **ret_index, enum hr_index_kind kind) {
    uint64_t bytes = 0;
    void *block = NULL;
    int r = hr__memory_bytes(fd, &bytes);
    if (r < 0) return hr__fail(r, "source: cannot look at an index: %s", hr_error_text(r));
    r = make_block(file_bytes, bytes, &block);
    if (r < 0) return r;
    r = hr__read_at(fd, 0, block, bytes);
    if (r == 0) return open_block(block, bytes, kind, ret_index);
    hr__free(block);
    return hr__fail(r, "source: cannot read an index: %s", hr_error_text(r));
}

static int look_at(const char *path, struct hr__file_info *ret_info) {
    int fd = -1;
    *ret_info = (struct hr__file_info){0};
    int r = hr__file_open(path, &fd);
    if (r == 0) r = hr__file_look_fd(fd, ret_info);
    hr__close(&fd);
    return r < 0 ? hr__fail(r, "source: cannot open %s: %s", path, hr_error_text(r)) : 0;
}

/* Compares an index with its file, whose inode it gets: so an index is the same bytes, whether it was made or saved. */
static int take_file(hr_index *index, const char *path, const struct hr__file_info *now) {
    struct hr_index_file *file = (void *)((struct hr__index_head *)index->owned + 1);
    if (index->head->file_count != 1) return hr__fail(-EINVAL, "source: an index is not that of one file");
    if (file->bytes != now->bytes || file->changed_ns != now->changed_ns)
        return hr__fail(-ESTALE,
                        "source: an index is older than its file: it was made of %" PRIu64
                        " bytes, and %s now has %" PRIu64 " or another time",
                        file->bytes, path, now->bytes);
    if (file->inode != now->inode) {
        file->inode = now->inode;
        hr__index_seal(index);
    }
    return 0;
}

/* Gives an index of a remote object the stamp of the object, because it was made of a local file. */
static int take_remote_file(hr_index *index, const char *path, const struct hr__file_info *now) {
    struct hr_index_file *file = (void *)((struct hr__index_head *)index->owned + 1);
    if (index->head->file_count != 1) return hr__fail(-EINVAL, "source: an index is not that of one file");
    if (file->bytes != now->bytes)
        return hr__fail(
            -ESTALE, "source: an index is not that of its file: it was made of %" PRIu64 " bytes, and %s has %" PRIu64,
            file->bytes, path, now->bytes);
    file->changed_ns = now->changed_ns;
    file->inode = now->inode;
    hr__index_seal(index);
    return 0;
}

/* Reads an index that is next to a remote object. Only one that is known is looked for: who opens the source has asked
 * for it. */
static int load_remote(enum hr_index_kind kind, const char *path, const char *name, hr_index **ret_index) {
    struct hr__file_info object, info;
    struct hr__pool *pool = NULL;
    hr_index *index = NULL;
    void *block = NULL;
    uint32_t number;
    if (!hr__known_find(name)) return hr__fail(-ENOENT, "source: %s is not known", name);
    int r = hr__place_look(path, &object);
    if (r == 0) r = hr__place_look(name, &info);
    if (r == 0) r = hr__pool_new(&pool);
    if (r == 0) r = hr__pool_add(pool, name, &number);
    if (r == 0) r = make_block(object.bytes, info.bytes, &block);
    if (r == 0) r = hr__pool_read(pool, number, 0, block, info.bytes);
    hr__pool_free(pool);
    if (r == 0)
        r = open_block(block, info.bytes, kind, &index);
    else
        hr__free(block);
    if (r == 0) r = take_remote_file(index, path, &object);
    if (r == 0)
        *ret_index = index;
    else
        hr_index_close(index);
    return r < 0 ? hr__fail_more(r, "source: the index is %s", name) : 0;
}

static int load(enum hr_index_kind kind, const char *path, const char *name, hr_index **ret_index) {
    struct hr__file_info now;
    hr_index *index = NULL;
    int fd = -1;
    int r = hr__file_open(name, &fd);
    if (r < 0) return hr__fail(r, "source: cannot open %s: %s", name, hr_error_text(r));
    r = look_at(path, &now);
    if (r == 0) r = read_block(fd, now.bytes, &index, kind);
    hr__close(&fd);
    if (r == 0) r = take_file(index, path, &now);
    if (r == 0)
        *ret_index = index;
    else
        hr_index_close(index);
    return r < 0 ? hr__fail_more(r, "source: the index is %s", name) : 0;
}

int hr_index_load(enum hr_index_kind kind, const char *path, hr_index **ret_index) {
    char *name;
    int r = name_index(path, &name);
    if (r < 0) return r;
    r = (hr__remote_is(path) ? load_remote : load)(kind, path, name, ret_index);
    hr__free(name);
    return r;
}
