/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cache/cache.h"

/* Removes objects: by name, or those that no process has, by age and by a quota. */

/* ---- by name ---- */

/* Refuses to remove an object that a process has. */
static int check_unclaimed(const char *name, const char *version, const char *folder) {
    char path[HR__PATH_BYTES];
    int fd = -1;
    int r = hr__path(path, "%s/data", folder);
    if (r == 0) r = hr__file_open(path, &fd);
    if (r == 0) r = hr__lock_file(fd, HR__EXCLUSIVE);
    hr__close(&fd);
    if (r != -EAGAIN) return 0;
    return hr__fail(-EBUSY,
                    "cache: processes have '%s' version '%s'; see headrace cache info %s. Force removes the name, and "
                    "the data is deleted with the last of them",
                    name, version, name);
}

/* Removes the objects of a key. The caller has the builder's lock. */
static int remove_objects(hr_cache *cache, const char *name, const char *version, const char *key, int force,
                          bool *ret_is_found) {
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < cache->store_count; i++) {
        char folder[HR__PATH_BYTES];
        struct hr__file_info info;
        r = hr__path(folder, "%s/objects/%s", cache->stores[i].path, key);
        if (r < 0 || hr__file_look(folder, &info) < 0) continue;
        *ret_is_found = true;
        if (!force) r = check_unclaimed(name, version, folder);
        if (r == 0) r = hr__retire(cache, i, key, folder, NULL);
    }
    return r;
}

/* Removes the files of a lock that this process has. A process that waits for it notices, and makes new ones. */
static void remove_lock_files(hr_cache *cache, const char *key) {
    static const char *const suffixes[] = {"failed", "failed.tmp", "state", "wait", "lock"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        char path[HR__PATH_BYTES];
        if (hr__path(path, "%s/locks/%s.%s", cache->stores[0].path, key, suffixes[i]) == 0) hr__file_remove(path);
    }
}

/* Returns true if a process waits for an object of the key. */
static bool is_awaited(hr_cache *cache, const char *key) {
    char path[HR__PATH_BYTES];
    int fd = -1;
    if (hr__path(path, "%s/locks/%s.wait", cache->stores[0].path, key) < 0 || hr__file_open(path, &fd) < 0)
        return false;
    bool is_awaited = hr__lock_file(fd, HR__EXCLUSIVE) == -EAGAIN;
    hr__close(&fd);
    return is_awaited;
}

static bool has_object(hr_cache *cache, const char *key) {
    struct hr__file_info info;
    char path[HR__PATH_BYTES];
    uint32_t store;
    for (uint32_t i = 0; i < cache->store_count; i++)
        if (hr__path(path, "%s/objects/%s", cache->stores[i].path, key) == 0 && hr__file_look(path, &info) == 0)
            return true;
    return hr__partial_find(cache, key, &store, path) == 0;
}

/* Removes the files of a lock for which there is no object, and that no process uses. */
static int sweep_lock(void *context, const char *name) {
    char key[KEY_BYTES];
    struct hr__held_lock *lock;
    const char *suffix = strrchr(name, '.');
    if (!suffix || strcmp(suffix, ".lock") != 0 || (size_t)(suffix - name) >= sizeof key) return 0;
    snprintf(key, sizeof key, "%.*s", (int)(suffix - name), name);
    if (has_object(context, key) || is_awaited(context, key) || hr__lock_take(context, key, &lock) < 0) return 0;
    if (!has_object(context, key)) remove_lock_files(context, key);
    hr__lock_release(lock);
    return 0;
}

static void sweep_locks(hr_cache *cache) {
    char path[HR__PATH_BYTES];
    if (hr__path(path, "%s/locks", cache->stores[0].path) == 0) hr__folder_visit(path, sweep_lock, cache);
}

static int remove_key(hr_cache *cache, const char *name, const char *version, const char *key, int force) {
    char partial[HR__PATH_BYTES];
    uint32_t store;
    bool is_found = hr__partial_find(cache, key, &store, partial) == 0;
    int r = remove_objects(cache, name, version, key, force, &is_found);
    if (r < 0) return r;
    hr__partials_delete(cache, key);
    remove_lock_files(cache, key);
    return is_found ? 0 : hr__fail(-ENOENT, "cache: there is no '%s' version '%s' in %s", name, version, cache->root);
}

int hr_cache_remove(hr_cache *cache, const char *name, const char *version, int force) {
    char key[KEY_BYTES];
    struct hr__held_lock *lock;
    int r = hr_cache_check_name(name, version);
    if (r < 0) return r;
    hr__cache_key(name, version, key);
    r = hr__lock_take(cache, key, &lock);
    if (r == -EAGAIN || r == -EDEADLK) {
        struct hr__build_state state;
        hr__state_read(cache, key, &state);
        return hr__fail(-EBUSY, "cache: process %" PRIu32 " builds '%s' (%.120s); end it first", state.pid, name,
                        state.command);
    }
    if (r < 0) return r;
    r = remove_key(cache, name, version, key, force);
    hr__lock_release(lock);
    return r;
}

/* ---- what no process has ---- */

/* An object that may go, as it was listed. */
struct candidate {
    char *name, *version;
    int64_t attached_ns;
    uint64_t bytes;
};

struct collection {
    hr_cache *cache;
    int64_t before_ns; /* objects that were attached before go */
    struct candidate *candidates;
    size_t count, room;
    uint64_t held_bytes; /* bytes of objects that processes have */
    int (*visit)(void *context, const struct hr_cache_entry *entry);
    void *context;
    struct hr_cache_collected result;
    int error;
};

static char *copy_text(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = hr__realloc(NULL, bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

static int add_candidate(struct collection *all, const struct hr_cache_entry *entry) {
    if (all->count == all->room) {
        size_t room = 2 * all->room + 16;
        struct candidate *more = hr__realloc(all->candidates, room * sizeof *more);
        if (!more) return -ENOMEM;
        all->candidates = more;
        all->room = room;
    }
    struct candidate *one = &all->candidates[all->count++];
    *one = (struct candidate){copy_text(entry->info.name), copy_text(entry->info.version), entry->attached_ns,
                              entry->info.bytes};
    return one->name && one->version ? 0 : -ENOMEM;
}

static void count_deleted(struct collection *all, uint64_t bytes) {
    all->result.objects++;
    all->result.bytes += bytes;
}

static bool is_allowed(struct collection *all, const struct hr_cache_entry *entry) {
    return !all->visit || all->visit(all->context, entry) == 0;
}

/* The folder of an entry, which its data is in. */
static void folder_of(const struct hr_cache_entry *entry, char *ret_folder) {
    hr__path(ret_folder, "%.*s", (int)(strrchr(entry->info.path, '/') - entry->info.path), entry->info.path);
}

/* Returns true if the object in a folder is still the one that was listed: it may have been replaced since. */
static bool is_same(const struct hr_cache_entry *entry, const char *folder) {
    struct hr__cache_record record;
    struct hr__file_info info;
    int r = hr__record_read(folder, &record);
    if (r < 0) return entry->state == HR_CACHE_DAMAGED;
    bool is_whole = hr__file_look(entry->info.path, &info) == 0 && info.bytes >= record.bytes;
    bool is_same = entry->state == HR_CACHE_DAMAGED ? !is_whole : strcmp(record.id, entry->info.id) == 0;
    hr__record_done(&record);
    return is_same;
}

/* Deletes an object that no process has, with the lock of its builders, so that none publishes at the same time. */
static bool delete_object(hr_cache *cache, const struct hr_cache_entry *entry, const char *folder) {
    char trash[HR__PATH_BYTES], key[KEY_BYTES], id[HR_CACHE_ID_CHARACTERS];
    struct hr__held_lock *lock;
    const char *name = strrchr(folder, '/') + 1; /* FOLDER is TOP/objects/KEY */
    int top_bytes = (int)(name - folder) - (int)sizeof "/objects";
    hr__cache_draw_id(id);
    snprintf(key, sizeof key, "%s", name);
    if (hr__path(trash, "%.*s/trash/%s~%s", top_bytes, folder, name, id) < 0) return false;
    if (hr__lock_take(cache, key, &lock) < 0) return false;
    bool is_deleted = is_same(entry, folder) && hr__delete_unclaimed(folder, trash) == 1;
    hr__lock_release(lock);
    return is_deleted;
}

/* Deletes an object that was listed, or one that was removed before, if no process has it. */
static void delete_folder(struct collection *all, const struct hr_cache_entry *entry) {
    char folder[HR__PATH_BYTES];
    folder_of(entry, folder);
    if (!is_allowed(all, entry)) return;
    bool is_deleted = entry->state == HR_CACHE_REMOVED ? hr__delete_unclaimed(folder, folder) == 1
                                                       : delete_object(all->cache, entry, folder);
    if (is_deleted)
        count_deleted(all, entry->info.bytes);
    else
        all->held_bytes += entry->info.bytes;
}

/* An unfinished build of a process that has ended. */
static void delete_orphan(struct collection *all, const struct hr_cache_entry *entry) {
    char folder[HR__PATH_BYTES], key[KEY_BYTES];
    struct hr__held_lock *lock;
    folder_of(entry, folder);
    const char *name = strrchr(folder, '/') + 1;
    snprintf(key, sizeof key, "%.*s", (int)strcspn(name, "."), name);
    if (!is_allowed(all, entry) || hr__lock_take(all->cache, key, &lock) < 0) return;
    hr__partials_delete(all->cache, key);
    hr__lock_release(lock);
    count_deleted(all, entry->info.bytes);
}

static bool is_over(const struct hr_cache_entry *entry, const char *boot_id, const struct hr__cache_record *record) {
    return entry->info.keep == HR_CACHE_KEEP_JOB ||
           (entry->info.keep == HR_CACHE_KEEP_BOOT && *boot_id && strcmp(record->boot_id, boot_id) != 0);
}

static int sort_entry(void *context, const struct hr_cache_entry *entry) {
    struct collection *all = context;
    char boot_id[HR__BOOT_ID_BYTES], folder[HR__PATH_BYTES];
    struct hr__cache_record record;
    if (entry->state == HR_CACHE_REMOVED || entry->state == HR_CACHE_DAMAGED) delete_folder(all, entry);
    if (entry->state == HR_CACHE_ORPHAN) delete_orphan(all, entry);
    if (entry->state != HR_CACHE_READY) return 0;
    hr__boot_id(boot_id);
    folder_of(entry, folder);
    if (hr__record_read(folder, &record) < 0) return 0;
    bool is_due = is_over(entry, boot_id, &record);
    hr__record_done(&record);
    if (entry->claim_count) {
        all->held_bytes += entry->info.bytes;
        return 0;
    }
    if (is_due || entry->attached_ns < all->before_ns) {
        delete_folder(all, entry);
        return 0;
    }
    return add_candidate(all, entry);
}

static int compare_age(const void *one, const void *other) {
    int64_t a = ((const struct candidate *)one)->attached_ns, b = ((const struct candidate *)other)->attached_ns;
    return (a > b) - (a < b);
}

/* Deletes the objects that were attached longest ago, until the rest is within the quota. */
static void keep_quota(struct collection *all, uint64_t quota_bytes) {
    uint64_t left = all->held_bytes;
    if (all->count) qsort(all->candidates, all->count, sizeof *all->candidates, compare_age);
    for (size_t i = 0; i < all->count; i++) left += all->candidates[i].bytes;
    for (size_t i = 0; i < all->count && left > quota_bytes; i++) {
        const struct candidate *one = &all->candidates[i];
        struct hr_cache_entry entry = {.state = HR_CACHE_READY, .attached_ns = one->attached_ns};
        entry.info = (struct hr_cached_info){.name = one->name, .version = one->version, .bytes = one->bytes, .fd = -1};
        if (!is_allowed(all, &entry) || hr_cache_remove(all->cache, one->name, one->version, 0) < 0) continue;
        left -= one->bytes;
        count_deleted(all, one->bytes);
    }
    all->result.bytes_left = left;
}

static int lock_collection(hr_cache *cache, struct hr__held_lock **ret_lock) {
    int r = hr__lock_take(cache, "quota", ret_lock);
    if (r == -EAGAIN || r == -EDEADLK)
        return hr__fail(-EBUSY, "cache: another process is collecting in %s; try again", cache->root);
    return r;
}

int hr_cache_collect(hr_cache *cache, int64_t older_ns, uint64_t quota_bytes,
                     int (*visit)(void *context, const struct hr_cache_entry *entry), void *context,
                     struct hr_cache_collected *ret_collected) {
    struct collection all = {.cache = cache, .visit = visit, .context = context};
    struct hr__held_lock *lock;
    int r = lock_collection(cache, &lock);
    if (r < 0) return r;
    all.before_ns = older_ns < 0 ? INT64_MIN : hr__wall_ns() - older_ns;
    r = hr_cache_list(cache, sort_entry, &all);
    if (r == 0) keep_quota(&all, quota_bytes);
    hr__claims_sweep(cache);
    sweep_locks(cache);
    remove_lock_files(cache, "quota");
    hr__lock_release(lock);
    for (size_t i = 0; i < all.count; i++) {
        hr__free(all.candidates[i].name);
        hr__free(all.candidates[i].version);
    }
    hr__free(all.candidates);
    if (r == 0) *ret_collected = all.result;
    return r;
}

static int keep_others(void *context, const struct hr_cache_entry *entry) {
    (void)context;
    return entry->state != HR_CACHE_REMOVED && entry->info.keep != HR_CACHE_KEEP_JOB;
}

int hr_cache_sweep(hr_cache *cache) {
    struct hr_cache_collected ignored;
    return hr_cache_collect(cache, -1, UINT64_MAX, keep_others, NULL, &ignored);
}
