/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cache/cache.h"

/* Decides once for each object where its data goes, and commits the space. reserve.c calls it. */

enum {
    MARGIN_BYTES = 16 << 20,
    HUGE_BYTES = 2 << 20,
    STEP_BYTES = 64 << 20,
    FIRST_STEP_BYTES = 4 << 20,
    SLOW_NS = 1000000
};

/* A cgroup of version 1 without a limit has one of almost 2^63 bytes. */
static bool has_no_limit(uint64_t headroom) {
    return headroom >= UINT64_C(1) << 60;
}

static double in_gib(uint64_t bytes) {
    return (double)bytes / (1 << 30);
}

/* How much of each limit is left for data in memory. */
struct room {
    uint64_t file_system, cgroup, half_of_available;
};

static struct room look_at_memory(const struct hr__file_system *system) {
    uint64_t available = hr__read_field("/proc/meminfo", "MemAvailable:");
    return (struct room){.file_system = system->free_bytes,
                         .cgroup = hr__cgroup_headroom(),
                         .half_of_available = available == UINT64_MAX ? UINT64_MAX : available * 1024 / 2};
}

/* Returns true if the bytes fit, and writes what was compared. */
static bool fits_memory(uint64_t bytes, const struct hr__file_system *system, char *ret_why) {
    struct room room = look_at_memory(system);
    char cgroup[64] = "no limit";
    if (!has_no_limit(room.cgroup)) snprintf(cgroup, sizeof cgroup, "%.2f GiB", in_gib(room.cgroup));
    bool fits = bytes <= room.file_system && bytes <= room.half_of_available &&
                (has_no_limit(room.cgroup) || (room.cgroup > MARGIN_BYTES && bytes <= room.cgroup - MARGIN_BYTES));
    snprintf(ret_why, HR__WHY_BYTES,
             "%.2f GiB %s memory: free in the file system %.2f GiB, left in the cgroup %s, half of the available "
             "memory %.2f GiB",
             in_gib(bytes), fits ? "fit into" : "do not fit into", in_gib(room.file_system), cgroup,
             in_gib(room.half_of_available));
    return fits;
}

static bool fits_disk(uint64_t bytes, const struct hr__file_system *system, char *ret_why) {
    bool fits = bytes <= system->free_bytes;
    snprintf(ret_why, HR__WHY_BYTES, "%.2f GiB %s disk: free %.2f GiB", in_gib(bytes),
             fits ? "fit on the" : "do not fit on the", in_gib(system->free_bytes));
    return fits;
}

static bool fits(const struct hr__store *store, uint64_t bytes, char *ret_why) {
    enum { FILES = 6 };
    struct hr__file_system system;
    int r = hr__file_system_look(store->path, &system);
    if (r < 0 || system.free_files < FILES) {
        snprintf(ret_why, HR__WHY_BYTES, "%.300s cannot take more files: %s", store->path,
                 r < 0 ? hr_error_text(r) : "it has no free inode");
        return false;
    }
    return store->is_memory ? fits_memory(bytes, &system, ret_why) : fits_disk(bytes, &system, ret_why);
}

int hr__cache_choose(hr_cache *cache, const char *name, uint64_t bytes, uint32_t keep, uint32_t *ret_store,
                     char *ret_why) {
    char first[HR__WHY_BYTES] = "keep=\"disk\" was asked for", second[HR__WHY_BYTES];
    bool wants_disk = keep == HR_CACHE_KEEP_DISK && !cache->is_given;
    if (keep == HR_CACHE_KEEP_DISK && cache->is_given && cache->stores[0].is_memory)
        return hr__fail(-EINVAL,
                        "cache: '%s' shall be kept on disk, but the folder that was given, %s, is memory; give a "
                        "folder on a disk",
                        name, cache->root);
    if (!wants_disk && fits(&cache->stores[0], bytes, first)) {
        *ret_store = 0;
        memcpy(ret_why, first, HR__WHY_BYTES);
        return 0;
    }
    if (hr__cache_make_disk(cache) < 0)
        return hr__fail_more(-ENOSPC,
                             "cache: no room for '%s' in %s: %s; free some space (headrace cache gc), or give "
                             "another folder" HR_HELP("cache-no-room"),
                             name, cache->root, first);
    if (!fits(&cache->stores[1], bytes, second))
        return hr__fail(
            -ENOSPC,
            "cache: no room for '%s': %s; and %s; free some space (headrace cache gc)" HR_HELP("cache-no-room"), name,
            first, second);
    *ret_store = 1;
    int length = snprintf(ret_why, HR__WHY_BYTES, "%.240s; %.240s", first, second);
    return length < 0 ? -EINVAL : 0;
}

int hr__cache_memory_left(const hr_cache *cache, uint64_t *ret_bytes) {
    struct hr__file_system system;
    int r = hr__file_system_look(cache->stores[0].path, &system);
    if (r < 0) return hr__fail(r, "cache: cannot look at %s: %s", cache->stores[0].path, hr_error_text(r));
    *ret_bytes = system.free_bytes;
    if (!cache->stores[0].is_memory) return 0;
    struct room room = look_at_memory(&system);
    uint64_t cgroup = room.cgroup > MARGIN_BYTES ? room.cgroup - MARGIN_BYTES : 0;
    *ret_bytes = hr__min(hr__min(room.file_system, room.half_of_available), cgroup);
    return 0;
}

int hr_cache_look_for_room(hr_cache *cache, const char *name, uint64_t bytes, uint32_t keep,
                           struct hr_cache_room *ret_room) {
    static_assert(sizeof ret_room->folder >= HR__PATH_BYTES && sizeof ret_room->why >= HR__WHY_BYTES,
                  "they are copied");
    char why[HR__WHY_BYTES];
    uint32_t store;
    int r = hr__cache_choose(cache, name, bytes, keep, &store, why);
    if (r < 0) return r;
    memcpy(ret_room->folder, cache->stores[store].path, HR__PATH_BYTES);
    memcpy(ret_room->why, why, sizeof why);
    return 0;
}

/* ---- commit ---- */

static int check_headroom(uint64_t bytes) {
    uint64_t headroom = hr__cgroup_headroom();
    if (has_no_limit(headroom) || headroom > bytes + MARGIN_BYTES) return 0;
    return hr__fail(-ENOMEM,
                    "cache: the cgroup of this process has %.2f GiB left, and %.2f GiB more are needed; the kernel "
                    "would kill it. Raise the memory limit of the container or job" HR_HELP("cache-no-room"),
                    in_gib(headroom), in_gib(bytes));
}

static int commit_step(int fd, void *address, uint64_t offset, uint64_t bytes) {
    uint64_t huge = address ? bytes & ~(uint64_t)(HUGE_BYTES - 1) : 0;
    int r = huge ? hr__commit_huge(fd, address, offset, huge) : 0;
    if (r == 0 && bytes > huge) r = hr__commit(fd, offset + huge, bytes - huge);
    return r < 0 ? hr__fail(r, "cache: cannot reserve %.2f GiB: %s", in_gib(bytes), hr_error_text(r)) : 0;
}

int hr__cache_commit_more(int fd, bool is_memory, uint64_t offset, uint64_t bytes) {
    int r = 0;
    for (uint64_t end = offset + bytes; r == 0 && offset < end; offset += STEP_BYTES) {
        uint64_t step = hr__min(STEP_BYTES, end - offset);
        if (is_memory) r = check_headroom(step);
        if (r == 0) r = commit_step(fd, NULL, offset, step);
    }
    return r;
}

/* Making a huge page waits for all processors, which takes longer than small pages on a busy machine; then the next
 * steps get small ones. */
static int commit_watched(int fd, void *address, uint64_t offset, uint64_t bytes, bool *wants_huge) {
    int64_t start_ns = hr__now_ns();
    int r = commit_step(fd, *wants_huge ? address : NULL, offset, bytes);
    if (hr__now_ns() - start_ns > (int64_t)(bytes / HUGE_BYTES) * SLOW_NS) *wants_huge = false;
    return r;
}

int hr__cache_commit_mapped(int fd, void *address, bool is_memory, uint64_t offset, uint64_t bytes, bool *wants_huge) {
    int r = is_memory ? check_headroom(bytes) : 0;
    return r < 0 ? r : commit_watched(fd, address, offset, bytes, wants_huge);
}

int hr__cache_commit(int fd, bool is_memory, uint64_t bytes) {
    void *address = NULL;
    int r = hr__file_cut(fd, bytes);
    if (r < 0) return hr__fail(r, "cache: cannot make a file of %.2f GiB: %s", in_gib(bytes), hr_error_text(r));
    bool wants_huge = is_memory && bytes >= HUGE_BYTES && hr__map(fd, bytes, &address) == 0;
    uint64_t limit = FIRST_STEP_BYTES;
    for (uint64_t offset = 0; r == 0 && offset < bytes;) {
        uint64_t step = hr__min(limit, bytes - offset);
        r = hr__cache_commit_mapped(fd, address, is_memory, offset, step, &wants_huge);
        offset += step;
        limit = STEP_BYTES;
    }
    hr__unmap(address, bytes);
    return r;
}
