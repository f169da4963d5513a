/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files as samples. */
#include <headrace/objects.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"
#include "pool.h"
#include "remote/remote.h"

struct hr_objects {
    struct hr__pool *pool;
    _Atomic bool is_stopped;
};

static int add_file(struct hr__pool *pool, const char *path) {
    struct hr__file_info info;
    uint32_t number;
    int r = hr__place_look(path, &info);
    if (r < 0) return r;
    if (!info.is_regular)
        return hr__fail(-EINVAL, "source: %s is not a regular file; if it is a folder, give its files: %s/*", path,
                        path);
    return hr__pool_add_known(pool, path, &info, &number);
}

int hr_objects_open(const char *const *paths, size_t path_count, hr_objects **ret_objects) {
    if (path_count >= UINT32_MAX / 4) return hr__fail(-EINVAL, "source: %zu paths are too many", path_count);
    hr_objects *objects = hr__realloc(NULL, sizeof *objects);
    if (!objects) return hr__fail(-ENOMEM, "source: no memory to open files");
    *objects = (hr_objects){.pool = NULL};
    int r = hr__pool_new(&objects->pool);
    for (size_t i = 0; r == 0 && i < path_count; i++) r = add_file(objects->pool, paths[i]);
    if (r == 0)
        *ret_objects = objects;
    else
        hr_objects_close(objects);
    return r == -ENOMEM ? hr__fail(r, "source: no memory to open %zu files", path_count) : r;
}

hr_objects *hr_objects_close(hr_objects *objects) {
    if (!objects) return NULL;
    hr__pool_free(objects->pool);
    hr__free(objects);
    return NULL;
}

uint64_t hr_objects_stamp(const hr_objects *objects) {
    uint64_t stamp = objects->pool->count;
    for (uint32_t i = 0; i < objects->pool->count; i++) {
        const struct hr__file_info *info = &hr__pool_file(objects->pool, i)->first;
        stamp = hr__hash_word((uint64_t)info->changed_ns, hr__hash_word(info->bytes, stamp));
    }
    return stamp;
}

const char *hr_objects_look(const hr_objects *objects, uint64_t number, uint64_t *ret_bytes) {
    if (number >= objects->pool->count) return NULL;
    const struct hr__pool_file *file = hr__pool_file(objects->pool, (uint32_t)number);
    *ret_bytes = file->first.bytes;
    return file->path;
}

int hr_objects_read(const hr_objects *objects, uint64_t number, void *memory) {
    uint64_t bytes;
    if (!hr_objects_look(objects, number, &bytes))
        return hr__fail(-ERANGE, "source: there is no file %" PRIu64, number);
    return hr__pool_read(objects->pool, (uint32_t)number, 0, memory, bytes);
}

int hr_objects_read_part(const hr_objects *objects, uint64_t number, uint64_t at, uint64_t bytes, void *memory) {
    uint64_t file_bytes;
    if (!hr_objects_look(objects, number, &file_bytes) || at > file_bytes || bytes > file_bytes - at)
        return hr__fail(-ERANGE, "source: file %" PRIu64 " has no %" PRIu64 " bytes at %" PRIu64, number, bytes, at);
    hr__link_stop_with(&objects->is_stopped);
    int r = bytes ? hr__pool_read_once(objects->pool, (uint32_t)number, at, memory, bytes) : 0;
    hr__link_stop_with(NULL);
    return r;
}

void hr_objects_stop(hr_objects *objects) {
    atomic_store(&objects->is_stopped, true);
}

void hr_objects_ask(const hr_objects *objects, const int64_t *numbers, size_t count, hr_announcer *announcer) {
    uint64_t bytes;
    for (size_t i = 0; i < count; i++)
        if (numbers[i] >= 0 && hr_objects_look(objects, (uint64_t)numbers[i], &bytes))
            hr__pool_ask(objects->pool, (uint32_t)numbers[i], 0, bytes, announcer);
}
