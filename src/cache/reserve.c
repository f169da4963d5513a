/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "cache/cache.h"

/* Reserves the space of a build, or takes over what a dead builder had finished. */

/* ---- chunks ---- */

uint64_t hr__count_chunks(uint64_t bytes, uint64_t chunk_bytes) {
    return bytes / chunk_bytes + (bytes % chunk_bytes != 0);
}

uint64_t hr__chunk_end(const struct hr__cache_record *record, uint64_t chunk) {
    return hr__min((chunk + 1) * record->chunk_bytes, record->bytes);
}

int hr__sum(int fd, uint64_t offset, uint64_t bytes, uint64_t *ret_sum) {
    enum { PIECE = 1 << 20 };
    uint64_t sum = bytes;
    unsigned char *piece = hr__realloc(NULL, PIECE);
    int r = piece ? 0 : -ENOMEM;
    while (r == 0 && bytes) {
        uint64_t count = hr__min(bytes, PIECE);
        r = hr__read_at(fd, offset, piece, count);
        if (r < 0) break;
        sum = hr__hash(piece, count, sum);
        offset += count;
        bytes -= count;
    }
    hr__free(piece);
    if (r == 0) *ret_sum = sum ? sum : 1;
    return r;
}

/* ---- unfinished builds ---- */

struct search {
    hr_cache *cache;
    const char *key;
    size_t key_length;
    const char *folder; /* the folder of unfinished builds */
    uint64_t newest;
    uint32_t store;
    bool is_found;
};

/* Returns true if a name is KEY.GENERATION. */
static bool is_of_key(const struct search *search, const char *name, uint64_t *ret_generation) {
    if (strncmp(name, search->key, search->key_length) != 0 || name[search->key_length] != '.') return false;
    *ret_generation = strtoull(name + search->key_length + 1, NULL, 10);
    return true;
}

static int find_newest(void *context, const char *name) {
    struct search *search = context;
    uint64_t generation;
    if (!is_of_key(search, name, &generation)) return 0;
    if (!search->is_found || generation > search->newest) search->newest = generation;
    search->is_found = true;
    return 0;
}

/* A folder of unfinished builds may have an object that processes have: its builder died between the moment when it
 * changed places with its successor and the moment when it went to the trash. So it goes there now. */
static int retire_one(void *context, const char *name) {
    struct search *search = context;
    char folder[HR__PATH_BYTES];
    uint64_t generation;
    if (!is_of_key(search, name, &generation) || hr__path(folder, "%s/%s", search->folder, name) < 0) return 0;
    hr__retire(search->cache, search->store, search->key, folder, NULL);
    return 0;
}

void hr__partials_delete(hr_cache *cache, const char *key) {
    for (uint32_t i = 0; i < cache->store_count; i++) {
        char partial[HR__PATH_BYTES];
        struct search search = {.cache = cache, .key = key, .key_length = strlen(key), .folder = partial, .store = i};
        if (hr__path(partial, "%s/partial", cache->stores[i].path) == 0) hr__folder_visit(partial, retire_one, &search);
    }
}

int hr__partial_find(hr_cache *cache, const char *key, uint32_t *ret_store, char *ret_folder) {
    for (uint32_t i = 0; i < cache->store_count; i++) {
        char partial[HR__PATH_BYTES];
        struct search search = {.key = key, .key_length = strlen(key)};
        if (hr__path(partial, "%s/partial", cache->stores[i].path) < 0) continue;
        hr__folder_visit(partial, find_newest, &search);
        if (!search.is_found) continue;
        *ret_store = i;
        return hr__path(ret_folder, "%s/%s.%" PRIu64, partial, key, search.newest);
    }
    return -ENOENT;
}

static int name_folder(hr_cache_build *build, uint32_t store) {
    build->store = store;
    int r = hr__path(build->folder, "%s/partial/%s.%" PRIu64, build->cache->stores[store].path, build->key,
                     build->lock->state.generation);
    return r < 0 ? r : hr__path(build->data_path, "%s/data", build->folder);
}

/* ---- taking over ---- */

static bool is_same_plan(const struct hr__cache_record *a, const struct hr__cache_record *b) {
    return strcmp(a->name, b->name) == 0 && strcmp(a->version, b->version) == 0 && strcmp(a->stamp, b->stamp) == 0 &&
           strcmp(a->format, b->format) == 0 && strcmp(a->meta, b->meta) == 0 && a->bytes == b->bytes &&
           a->chunk_bytes == b->chunk_bytes && a->keep == b->keep;
}

static int open_part(const hr_cache_build *build, const char *name, bool is_new, int *ret_fd) {
    char path[HR__PATH_BYTES];
    int r = hr__path(path, "%s/%s", build->folder, name);
    if (r == 0) r = is_new ? hr__file_make(path, ret_fd) : hr__file_open_or_make(path, ret_fd);
    return r;
}

/* Forgets the checksums of chunks that do not have them, for example after the machine stopped. */
static int check_chunks(hr_cache_build *build) {
    struct hr__file_info info;
    int r = hr__file_look_fd(build->fd, &info);
    if (r < 0 || info.bytes != build->record.bytes) return -ESTALE;
    if (hr__file_look_fd(build->sums_fd, &info) < 0 || info.bytes != build->chunk_count * sizeof *build->sums)
        return -ESTALE;
    r = hr__read_at(build->sums_fd, 0, build->sums, build->chunk_count * sizeof *build->sums);
    for (uint64_t i = 0; r == 0 && i < build->chunk_count; i++) {
        uint64_t sum, begin = i * build->record.chunk_bytes;
        if (!build->sums[i]) continue;
        r = hr__sum(build->fd, begin, hr__chunk_end(&build->record, i) - begin, &sum);
        if (r == 0 && sum != build->sums[i]) build->sums[i] = 0;
    }
    return r;
}

enum { LAST_OWNER_NS = 1000000000 };

/* Locks the data of an unfinished build for this builder alone. No process has attached it, because it was never
 * published. But a process that ends closes its descriptors one after the other: the lock of builders may be free while
 * it still has this one, and so may a child that it has just forked. -EAGAIN: another process keeps it. */
static int lock_data(int fd) {
    int64_t deadline_ns = hr__now_ns() + LAST_OWNER_NS;
    for (;;) {
        int r = hr__lock_file(fd, HR__EXCLUSIVE);
        if (r != -EAGAIN || hr__now_ns() >= deadline_ns) return r;
        hr__sleep_until(hr__now_ns() + RETRY_NS);
    }
}

/* Returns true if the newest unfinished build is of the same plan and is now this one's. */
static bool take_over(hr_cache_build *build) {
    char folder[HR__PATH_BYTES];
    struct hr__cache_record found;
    uint32_t store;
    if (hr__partial_find(build->cache, build->key, &store, folder) < 0 || hr__record_read(folder, &found) < 0)
        return false;
    bool is_same = is_same_plan(&found, &build->record);
    int r = is_same ? hr__record_set(&build->record.place, found.place) : -ESTALE;
    hr__record_done(&found);
    if (r == 0) r = name_folder(build, store);
    if (r == 0) r = hr__rename_new(folder, build->folder);
    if (r == 0) hr__stop_at(HR__AT_CACHE_TAKEN_OVER);
    if (r == 0) r = open_part(build, "data", false, &build->fd);
    if (r == 0) r = lock_data(build->fd);
    if (r == 0) r = hr__lock_file(build->fd, HR__SHARED);
    if (r == 0) r = open_part(build, "sums", false, &build->sums_fd);
    if (r == 0) r = check_chunks(build);
    if (r == 0) return true;
    hr__close(&build->fd);
    hr__close(&build->sums_fd);
    memset(build->sums, 0, build->chunk_count * sizeof *build->sums);
    return false;
}

/* ---- reserving ---- */

static int begin_folder(hr_cache_build *build, uint64_t bytes) {
    char why[HR__WHY_BYTES];
    uint32_t store = 0;
    hr__partials_delete(build->cache, build->key);
    int r = hr__cache_choose(build->cache, build->record.name, bytes, build->record.keep, &store, why);
    if (r == 0) r = hr__record_set(&build->record.place, why);
    if (r == 0) r = name_folder(build, store);
    if (r < 0) return r;
    r = hr__folder_make_new(build->folder);
    if (r < 0) return hr__fail(r, "cache: cannot make %s: %s", build->folder, hr_error_text(r));
    hr__stop_at(HR__AT_CACHE_FOLDER);
    return 0;
}

static int begin_files(hr_cache_build *build) {
    int r = open_part(build, "data", true, &build->fd);
    if (r == 0) r = hr__lock_file(build->fd, HR__SHARED); /* so that no process deletes it */
    if (r < 0) return hr__fail(r, "cache: cannot make %s: %s", build->data_path, hr_error_text(r));
    r = hr__cache_commit(build->fd, build->cache->stores[build->store].is_memory, build->record.bytes);
    if (r < 0) return hr__fail_more(r, "cache: no room for '%s' in %s", build->record.name, build->folder);
    hr__stop_at(HR__AT_CACHE_RESERVED);
    r = open_part(build, "sums", true, &build->sums_fd);
    if (r == 0 && build->chunk_count)
        r = hr__write_at(build->sums_fd, 0, build->sums, build->chunk_count * sizeof *build->sums);
    if (r < 0) return hr__fail(r, "cache: cannot write checksums in %s: %s", build->folder, hr_error_text(r));
    r = hr__record_write(&build->record, build->folder); /* from here on, a later builder can take it over */
    hr__stop_at(HR__AT_CACHE_PLANNED);
    return r;
}

static int check_begin(const hr_cache_build *build) {
    if (build->pid != hr__pid())
        return hr__fail(HR_E_STATE, "cache: process %" PRIu32 " builds '%s'; a forked child of it cannot", build->pid,
                        build->record.name);
    if (*build->folder) return hr__fail(HR_E_STATE, "cache: '%s' has its place already", build->record.name);
    return 0;
}

int hr_cache_build_reserve(hr_cache_build *build, uint64_t bytes, uint64_t chunk_bytes, const char *meta) {
    int r = check_begin(build);
    if (r < 0) return r;
    if (bytes > INT64_MAX || chunk_bytes > INT64_MAX)
        return hr__fail(-EINVAL, "cache: '%s' cannot have %" PRIu64 " bytes", build->record.name, bytes);
    build->record.bytes = bytes;
    build->record.chunk_bytes = chunk_bytes ? chunk_bytes : HR_CACHE_CHUNK_BYTES;
    build->chunk_count = hr__count_chunks(bytes, build->record.chunk_bytes);
    build->sums = hr__realloc(NULL, (build->chunk_count + 1) * sizeof *build->sums);
    if (!build->sums) return hr__fail(-ENOMEM, "cache: no memory for %" PRIu64 " checksums", build->chunk_count);
    memset(build->sums, 0, (build->chunk_count + 1) * sizeof *build->sums);
    r = hr__record_set(&build->record.meta, meta);
    if (r < 0 || take_over(build)) return r;
    r = begin_folder(build, bytes);
    return r < 0 ? r : begin_files(build);
}

int hr_cache_build_check_room(hr_cache_build *build, uint64_t bytes) {
    char why[HR__WHY_BYTES];
    uint32_t store;
    int r = check_begin(build);
    return r < 0 ? r : hr__cache_choose(build->cache, build->record.name, bytes, build->record.keep, &store, why);
}

int hr_cache_build_file(hr_cache_build *build, uint64_t bytes_hint, const char **ret_path) {
    int r = check_begin(build);
    if (r == 0) r = begin_folder(build, bytes_hint);
    if (r < 0) return r;
    *ret_path = build->data_path;
    return 0;
}
