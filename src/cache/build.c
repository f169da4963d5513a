/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "cache/cache.h"

/* Writes, publishes and ends a build. wait.c begins it, reserve.c gives it its place. */

int hr__build_new(hr_cache *cache, const char *key, struct hr__held_lock *lock, const struct hr__cache_record *plan,
                  hr_cache_build **ret_build) {
    hr_cache_build *build = hr__realloc(NULL, sizeof *build);
    if (!build) return hr__fail(-ENOMEM, "cache: no memory for a build");
    memset(build, 0, sizeof *build);
    int r = hr__record_copy(plan, &build->record);
    if (r < 0) {
        hr__free(build);
        return r;
    }
    build->cache = hr__cache_ref(cache);
    build->lock = lock;
    lock->data_fd = &build->fd;
    build->fd = build->sums_fd = -1;
    build->pid = hr__pid();
    build->record.chunk_bytes = HR_CACHE_CHUNK_BYTES;
    memcpy(build->key, key, strlen(key) + 1);
    hr__cache_draw_id(build->record.id);
    hr__boot_id(build->record.boot_id);
    build->record.pid = build->pid;
    *ret_build = build;
    return 0;
}

static hr_cache_build *free_build(hr_cache_build *build) {
    hr__close(&build->fd);
    hr__close(&build->sums_fd);
    hr__lock_release(build->lock);
    hr__record_done(&build->record);
    hr__free(build->sums);
    hr_cache_close(build->cache);
    hr__free(build);
    return NULL;
}

/* ---- writing ---- */

static int check_owner(const hr_cache_build *build) {
    if (build->pid == hr__pid()) return 0;
    return hr__fail(HR_E_STATE, "cache: process %" PRIu32 " builds '%s'; a forked child of it cannot", build->pid,
                    build->record.name);
}

int hr_cache_build_write(hr_cache_build *build, uint64_t offset, const void *data, uint64_t bytes) {
    uint64_t end;
    int r = check_owner(build);
    if (r < 0) return r;
    if (build->fd < 0) return hr__fail(HR_E_STATE, "cache: reserve space for '%s' before writing", build->record.name);
    if (!hr__add(offset, bytes, &end) || end > build->record.bytes)
        return hr__fail(-ERANGE, "cache: bytes %" PRIu64 " to %" PRIu64 " are not within the %" PRIu64 " of '%s'",
                        offset, offset + bytes, build->record.bytes, build->record.name);
    r = hr__fail_at("write_data");
    if (r == 0) r = hr__write_at(build->fd, offset, data, bytes);
    hr__stop_at(HR__AT_CACHE_WRITTEN);
    return r < 0 ? hr__fail(r, "cache: cannot write %s: %s", build->data_path, hr_error_text(r)) : 0;
}

int hr_cache_build_mark(hr_cache_build *build, uint64_t chunk) {
    uint64_t begin, sum;
    int r = check_owner(build);
    if (r < 0) return r;
    if (build->fd < 0 || chunk >= build->chunk_count)
        return hr__fail(-ERANGE, "cache: '%s' has no chunk %" PRIu64, build->record.name, chunk);
    begin = chunk * build->record.chunk_bytes;
    r = hr__sum(build->fd, begin, hr__chunk_end(&build->record, chunk) - begin, &sum);
    if (r == 0) r = hr__write_at(build->sums_fd, chunk * sizeof sum, &sum, sizeof sum);
    if (r < 0) return hr__fail(r, "cache: cannot note a chunk of %s: %s", build->data_path, hr_error_text(r));
    build->sums[chunk] = sum;
    hr__stop_at(HR__AT_CACHE_MARKED);
    return 0;
}

uint64_t hr_cache_build_chunk_count(const hr_cache_build *build) {
    return build->chunk_count;
}

int hr_cache_build_has(const hr_cache_build *build, uint64_t chunk) {
    return chunk < build->chunk_count && build->sums[chunk] != 0;
}

void hr_cache_build_progress(hr_cache_build *build, uint64_t done, uint64_t total) {
    if (build->pid != hr__pid()) return;
    build->lock->state.done = done;
    build->lock->state.total = total;
    hr__lock_write_state(build->lock); /* best effort: it is only shown */
}

/* ---- publishing ---- */

/* Opens the file of hr_cache_build_file. */
static int open_file(hr_cache_build *build) {
    if (build->fd >= 0) return 0;
    if (!*build->folder) return hr__fail(HR_E_STATE, "cache: '%s' has no data", build->record.name);
    int r = hr__file_open_or_make(build->data_path, &build->fd);
    if (r == 0) r = hr__lock_file(build->fd, HR__SHARED);
    return r < 0 ? hr__fail(r, "cache: cannot open %s: %s", build->data_path, hr_error_text(r)) : 0;
}

int hr_cache_build_append(hr_cache_build *build, const void *data, uint64_t bytes) {
    struct hr__file_info info;
    int r = check_owner(build);
    if (r == 0 && build->sums)
        r = hr__fail(HR_E_STATE, "cache: '%s' has a fixed size; use hr_cache_build_write", build->record.name);
    if (r == 0) r = open_file(build);
    if (r < 0 || bytes == 0) return r;
    r = hr__file_look_fd(build->fd, &info);
    if (r == 0) r = hr__cache_commit_more(build->fd, build->cache->stores[build->store].is_memory, info.bytes, bytes);
    if (r < 0) return hr__fail_more(r, "cache: '%s' has %" PRIu64 " bytes so far", build->record.name, info.bytes);
    r = hr__write_at(build->fd, info.bytes, data, bytes);
    return r < 0 ? hr__fail(r, "cache: cannot write %s: %s", build->data_path, hr_error_text(r)) : 0;
}

/* The size and the chunks of that file are known now. */
static int adopt_file(hr_cache_build *build) {
    struct hr__file_info info;
    int r = open_file(build);
    if (r < 0) return r;
    r = hr__file_look_fd(build->fd, &info);
    if (r < 0) return hr__fail(r, "cache: cannot look at %s: %s", build->data_path, hr_error_text(r));
    build->record.bytes = info.bytes;
    build->chunk_count = hr__count_chunks(info.bytes, build->record.chunk_bytes);
    build->sums = hr__realloc(NULL, (build->chunk_count + 1) * sizeof *build->sums);
    if (!build->sums) return hr__fail(-ENOMEM, "cache: no memory for checksums");
    memset(build->sums, 0, (build->chunk_count + 1) * sizeof *build->sums);
    return 0;
}

static int write_sums(hr_cache_build *build) {
    char path[HR__PATH_BYTES];
    int r = hr__path(path, "%s/sums", build->folder);
    for (uint64_t i = 0; r == 0 && i < build->chunk_count; i++) {
        uint64_t begin = i * build->record.chunk_bytes;
        if (!build->sums[i]) r = hr__sum(build->fd, begin, hr__chunk_end(&build->record, i) - begin, &build->sums[i]);
    }
    if (r == 0 && build->sums_fd < 0) r = hr__file_open_or_make(path, &build->sums_fd);
    if (r == 0) r = hr__fail_at("write_sums");
    if (r == 0 && build->chunk_count)
        r = hr__write_at(build->sums_fd, 0, build->sums, build->chunk_count * sizeof *build->sums);
    build->record.sums_hash = hr__hash(build->sums, build->chunk_count * sizeof *build->sums, 0);
    return r < 0 ? hr__fail(r, "cache: cannot write the checksums of '%s': %s", build->record.name, hr_error_text(r))
                 : 0;
}

static int sync_files(hr_cache_build *build) {
    if (build->cache->stores[build->store].is_memory) return 0;
    int r = hr__file_sync(build->fd);
    if (r == 0) r = hr__file_sync(build->sums_fd);
    if (r == 0) r = hr__folder_sync(build->folder);
    return r < 0 ? hr__fail(r, "cache: cannot write '%s' to the disk: %s", build->record.name, hr_error_text(r)) : 0;
}

/* Moves the data under its name. If the name is in use, the two change places, so that at no moment the name is
 * missing, and the old object goes to the trash. */
static int try_to_take_name(hr_cache_build *build, const char *folder) {
    int r = hr__rename_new(build->folder, folder);
    if (r != -EEXIST) return r;
    r = hr__rename_swap(build->folder, folder);
    hr__stop_at(HR__AT_CACHE_SWAPPED);
    if (r == 0) return hr__retire(build->cache, build->store, build->key, build->folder, NULL);
    if (r == -EINVAL || r == -ENOSYS) r = hr__retire(build->cache, build->store, build->key, folder, NULL);
    return r < 0 ? r : hr__rename_new(build->folder, folder);
}

/* The old object may be deleted between the two attempts, by the process that ends its last claim. */
static int take_name(hr_cache_build *build, const char *folder) {
    struct hr__file_info info;
    int r = -ENOENT;
    for (int i = 0; r == -ENOENT && i < RETRIES && hr__file_look(build->folder, &info) == 0; i++)
        r = try_to_take_name(build, folder);
    return r;
}

static int rename_into_place(hr_cache_build *build) {
    char folder[HR__PATH_BYTES], parent[HR__PATH_BYTES];
    hr_cache *cache = build->cache;
    const char *top = cache->stores[build->store].path;
    int r = hr__path(folder, "%s/objects/%s", top, build->key);
    if (r == 0) r = hr__path(parent, "%s/objects", top);
    if (r == 0) r = take_name(build, folder);
    hr__stop_at(HR__AT_CACHE_RENAMED);
    if (r == 0 && !cache->stores[build->store].is_memory) r = hr__folder_sync(parent);
    for (uint32_t i = 0; r == 0 && i < cache->store_count; i++) {
        if (i == build->store) continue;
        r = hr__path(folder, "%s/objects/%s", cache->stores[i].path, build->key);
        if (r == 0) r = hr__retire(cache, i, build->key, folder, NULL);
    }
    return r;
}

/* If the folder of the cache was removed meanwhile, only this process has the data: it is mapped, and has no name. */
static int publish(hr_cache_build *build, bool *ret_is_private) {
    bool is_rooted = hr__cache_is_rooted(build->cache);
    int r = is_rooted ? rename_into_place(build) : -ENOENT;
    *ret_is_private = r == -ENOENT && !hr__cache_is_rooted(build->cache);
    if (*ret_is_private) return 0;
    return r < 0 ? hr__fail(r, "cache: cannot publish '%s' in %s: %s", build->record.name, build->cache->root,
                            hr_error_text(r))
                 : 0;
}

static void set_idle(hr_cache_build *build, bool has_succeeded) {
    struct hr__build_state *state = &build->lock->state;
    state->phase = PHASE_IDLE;
    state->deaths = 0;
    if (!has_succeeded) state->failed_generation = state->generation;
    hr__lock_write_state(build->lock);
}

/* Opens the data again, read-only and with the shared lock that is this process's claim. */
static int open_claimed(const hr_cache_build *build, int *ret_fd) {
    int r = hr__file_reopen(build->fd, ret_fd);
    if (r == 0) r = hr__lock_file(*ret_fd, HR__SHARED);
    return r < 0 ? hr__fail(r, "cache: cannot claim '%s': %s", build->record.name, hr_error_text(r)) : 0;
}

static int complete(hr_cache_build *build, const char *meta) {
    int r = check_owner(build);
    if (r == 0 && !build->sums) r = adopt_file(build);
    if (r == 0 && meta) r = hr__record_set(&build->record.meta, meta);
    if (r == 0) r = write_sums(build);
    hr__stop_at(HR__AT_CACHE_SUMMED);
    if (r < 0) return r;
    build->record.built_ns = hr__wall_ns();
    r = hr__record_write(&build->record, build->folder);
    if (r == 0) r = sync_files(build);
    hr__stop_at(HR__AT_CACHE_COMPLETE);
    return r;
}

int hr_cache_build_finish(hr_cache_build *build, const char *meta, hr_cached **ret_cached) {
    int fd = -1;
    bool is_private = false;
    int r = complete(build, meta);
    if (r < 0 && build->fd >= 0 && !hr__cache_is_rooted(build->cache)) r = 0; /* publish deals with it */
    if (r == 0) r = open_claimed(build, &fd);
    if (r == 0) r = publish(build, &is_private);
    if (r == 0) r = hr__attach_own(build->cache, build->key, build->store, fd, &build->record, is_private, ret_cached);
    if (r < 0) {
        hr__close(&fd);
        return r;
    }
    set_idle(build, true);
    hr__stop_at(HR__AT_CACHE_PUBLISHED);
    free_build(build);
    return 0;
}

/* ---- other ends ---- */

static int write_failure(const hr_cache_build *build, const void *text, uint64_t count) {
    char path[HR__PATH_BYTES], temporary[HR__PATH_BYTES];
    uint64_t generation = build->lock->state.generation;
    int fd = -1;
    int r = hr__path(path, "%s/locks/%s.failed", build->cache->stores[0].path, build->key);
    if (r == 0) r = hr__path(temporary, "%s.tmp", path);
    if (r == 0) r = hr__file_open_or_make(temporary, &fd);
    if (r == 0) r = hr__file_cut(fd, 0);
    if (r == 0) r = hr__write_at(fd, 0, &generation, sizeof generation);
    if (r == 0) r = hr__write_at(fd, sizeof generation, text, count);
    hr__close(&fd);
    return r < 0 ? r : hr__rename(temporary, path);
}

hr_cache_build *hr_cache_build_fail(hr_cache_build *build, const void *text, uint64_t count, int keeps_chunks) {
    if (build->pid != hr__pid()) return free_build(build);
    write_failure(build, text, count); /* if it fails, those that wait only learn that the build failed */
    hr__stop_at(HR__AT_CACHE_FAILED);
    hr__close(&build->fd);
    if (!keeps_chunks) hr__partials_delete(build->cache, build->key);
    set_idle(build, false);
    return free_build(build);
}

hr_cache_build *hr_cache_build_abandon(hr_cache_build *build) {
    return build ? free_build(build) : NULL;
}
