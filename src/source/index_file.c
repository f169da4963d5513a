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

static int read_block(int fd, hr_index **ret_index, enum hr_index_kind kind) {
    uint64_t bytes = 0;
    int r = hr__memory_bytes(fd, &bytes);
    if (r < 0) return hr__fail(r, "source: cannot look at an index: %s", hr_error_text(r));
    void *block = hr__realloc(NULL, bytes + 1);
    if (!block) return hr__fail(-ENOMEM, "source: no memory to read an index of %" PRIu64 " bytes", bytes);
    r = hr__read_at(fd, 0, block, bytes);
    if (r < 0)
        hr__fail(r, "source: cannot read an index: %s", hr_error_text(r));
    else
        r = hr_index_open(block, bytes, kind, true, ret_index);
    if (r < 0)
        hr__free(block);
    else
        (*ret_index)->owned = block;
    return r;
}

/* Compares an index with its file. */
static int check_file(const hr_index *index, const char *path) {
    struct hr__file_info now;
    const struct hr_index_file *file = index->files;
    int fd = -1;
    if (index->head->file_count != 1) return hr__fail(-EINVAL, "source: an index is not that of one file");
    int r = hr__file_open(path, &fd);
    if (r == 0) r = hr__file_look_fd(fd, &now);
    hr__close(&fd);
    if (r < 0) return hr__fail(r, "source: cannot open %s: %s", path, hr_error_text(r));
    if (file->bytes == now.bytes && file->changed_ns == now.changed_ns) return 0;
    return hr__fail(-ESTALE,
                    "source: an index is older than its file: it was made of %" PRIu64 " bytes, and %s now has %" PRIu64
                    " or another time",
                    file->bytes, path, now.bytes);
}

static int load(enum hr_index_kind kind, const char *path, const char *name, hr_index **ret_index) {
    hr_index *index = NULL;
    int fd = -1;
    int r = hr__file_open(name, &fd);
    if (r < 0) return hr__fail(r, "source: cannot open %s: %s", name, hr_error_text(r));
    r = read_block(fd, &index, kind);
    hr__close(&fd);
    if (r == 0) r = check_file(index, path);
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
    r = load(kind, path, name, ret_index);
    hr__free(name);
    return r;
}
