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
#include "cache/samples.h"
#include "cache/shared.h"

/* Attaches objects, claims them, and deletes what no process claims. */

/* ---- claims ---- */

/* Notes who has the object, for those who ask. The lock on the data is what counts, so a failure (a full or read-only
 * file system) is ignored. */
static void note_claim(hr_cached *cached) {
    static _Atomic uint32_t number;
    static _Thread_local char command[HR_CACHE_COMMAND_BYTES]; /* that of `command_pid`: reading it takes 10 us */
    static _Thread_local uint32_t command_pid;
    char text[HR_CACHE_COMMAND_BYTES + 80];
    if (command_pid != cached->pid) hr__command_line((int)cached->pid, command, sizeof command);
    command_pid = cached->pid;
    int length = snprintf(text, sizeof text, "%" PRIu32 " %" PRIu64 " %" PRId64 " %s", cached->pid, hr__pid_namespace(),
                          hr__wall_ns(), command);
    int r = hr__path(cached->claim, "%s/claims/%s.%" PRIu32 ".%" PRIu32, cached->cache->stores[0].path,
                     cached->record.id, cached->pid, atomic_fetch_add(&number, 1));
    if (r == 0) r = hr__file_make(cached->claim, &cached->claim_fd);
    if (r == 0) r = hr__lock_file(cached->claim_fd, HR__SHARED);
    if (r == 0) hr__write_at(cached->claim_fd, 0, text, (size_t)length);
}

/* Removes the note, unless a forked child still has it. */
static void end_note(hr_cached *cached) {
    bool is_noted = cached->claim_fd >= 0;
    hr__close(&cached->claim_fd);
    if (!is_noted || cached->pid != hr__pid()) return;
    int fd = -1;
    if (hr__file_open(cached->claim, &fd) == 0 && hr__lock_file(fd, HR__EXCLUSIVE) == 0) hr__file_remove(cached->claim);
    hr__close(&fd);
}

/* ---- deleting ---- */

int hr__delete_unclaimed(const char *folder, const char *trash) {
    char data[HR__PATH_BYTES];
    int fd = -1;
    int r = hr__path(data, "%s/data", folder);
    if (r == 0) r = hr__file_open(data, &fd);
    if (r == 0) r = hr__lock_file(fd, HR__EXCLUSIVE);
    if (r == 0 || r == -ENOENT) {
        hr__stop_at(HR__AT_CACHE_DELETE);
        r = strcmp(folder, trash) == 0 ? 0 : hr__rename_new(folder, trash);
        hr__stop_at(HR__AT_CACHE_TRASHED);
        if (r == 0) r = hr__folder_remove(trash);
    }
    hr__close(&fd);
    if (r == -EAGAIN) return 0;
    return r == -ENOENT || r == 0 ? 1 : r;
}

int hr__retire(hr_cache *cache, uint32_t store, const char *key, const char *folder, bool *ret_is_deleted) {
    char trash[HR__PATH_BYTES], id[HR_CACHE_ID_CHARACTERS];
    struct hr__cache_record old;
    hr__cache_draw_id(id);
    if (hr__record_read(folder, &old) == 0) {
        memcpy(id, old.id, sizeof id);
        hr__record_done(&old);
    }
    int r = hr__path(trash, "%s/trash/%s~%s", cache->stores[store].path, key, id);
    if (r == 0) r = hr__rename_new(folder, trash);
    if (r < 0) return r == -ENOENT ? 0 : r;
    hr__stop_at(HR__AT_CACHE_RETIRED);
    r = hr__delete_unclaimed(trash, trash);
    if (ret_is_deleted) *ret_is_deleted = r == 1;
    return r < 0 ? r : 0;
}

static bool has_id(const char *folder, const char *id) {
    struct hr__cache_record record;
    if (hr__record_read(folder, &record) < 0) return false;
    bool has_id = strcmp(record.id, id) == 0;
    hr__record_done(&record);
    return has_id;
}

/* With the lock of its builders, so that the name does not get another object meanwhile. A builder that has the lock
 * deletes what it replaces. */
static void delete_named(hr_cache *cache, const char *key, const char *id, const char *folder, const char *trash) {
    struct hr__held_lock *lock = NULL;
    int r = hr__lock_take(cache, key, &lock);
    if ((r == 0 || r == -EDEADLK) && has_id(folder, id)) hr__delete_unclaimed(folder, trash);
    hr__lock_release(lock);
}

static void delete_ended(hr_cache *cache, uint32_t store, const char *key, const char *id, bool is_of_job) {
    char folder[HR__PATH_BYTES], trash[HR__PATH_BYTES];
    const char *top = cache->stores[store].path;
    if (hr__path(trash, "%s/trash/%s~%s", top, key, id) < 0 || hr__path(folder, "%s/objects/%s", top, key) < 0) return;
    hr__delete_unclaimed(trash, trash);
    if (is_of_job) delete_named(cache, key, id, folder, trash);
}

/* ---- attaching ---- */

/* Returns true if the path still names the data that was opened. */
static bool is_named(const hr_cached *cached) {
    struct hr__file_info opened, named;
    return hr__file_look_fd(cached->fd, &opened) == 0 && hr__file_look(cached->path, &named) == 0 &&
           named.inode == opened.inode;
}

/* Opens the data, locks it, and reads the record that belongs to it. -EAGAIN: it is being replaced or deleted. */
static int claim(const char *folder, hr_cached *cached) {
    struct hr__file_info opened = {0};
    int r = hr__path(cached->path, "%s/data", folder);
    if (r == 0) r = hr__file_open(cached->path, &cached->fd);
    hr__stop_at(HR__AT_CACHE_OPENED);
    if (r == 0) r = hr__lock_file(cached->fd, HR__SHARED);
    if (r == 0) r = hr__file_look_fd(cached->fd, &opened);
    if (r == 0) r = hr__record_read(folder, &cached->record);
    if (r < 0) return r;
    if (!is_named(cached)) return -EAGAIN;
    if (opened.bytes < cached->record.bytes)
        return hr__fail(HR_E_CORRUPT,
                        "cache: %s has %" PRIu64 " bytes instead of %" PRIu64 ": it was truncated. Remove it and build "
                        "it again (headrace cache rm %s)",
                        cached->path, opened.bytes, cached->record.bytes, cached->record.name);
    return 0;
}

/* On a disk, an object may be of an earlier start of the machine. */
static bool is_of_this_start(const struct hr__cache_record *record) {
    char boot_id[HR__BOOT_ID_BYTES];
    if (record->keep != HR_CACHE_KEEP_BOOT) return true;
    hr__boot_id(boot_id);
    return !*boot_id || !*record->boot_id || strcmp(boot_id, record->boot_id) == 0;
}

/* Returns 1 for an object of a job that has ended, or of an earlier start of the machine: no process has a claim, and
 * this one asks for a new one. The attempt to find out drops the claim of this process; if the last other one ends
 * then, it deletes the object. -EAGAIN: it may have done so. */
static int has_ended(const hr_cache *cache, hr_cached *cached) {
    bool may_have_ended = cached->record.keep == HR_CACHE_KEEP_JOB ||
                          (!cache->stores[cached->store].is_memory && !is_of_this_start(&cached->record));
    if (!may_have_ended) return 0;
    if (hr__lock_file(cached->fd, HR__EXCLUSIVE) == 0) return 1;
    hr__stop_at(HR__AT_CACHE_RECLAIMING);
    int r = hr__lock_file(cached->fd, HR__SHARED);
    return r == 0 && !is_named(cached) ? -EAGAIN : r;
}

static int check_identity(const hr_cached *cached, const char *name, const char *version, const char *id) {
    if (id && strcmp(cached->record.id, id) != 0) return -ENOENT;
    if (strcmp(cached->record.name, name) == 0 && strcmp(cached->record.version, version) == 0) return 0;
    return hr__fail(HR_E_CORRUPT, "cache: %s has the object '%s' version '%s', not '%s' version '%s'", cached->path,
                    cached->record.name, cached->record.version, name, version);
}

/* Keeps the claim of an array that is written, also if the program closes all its descriptors: a mapped page keeps the
 * open file description that has the lock. Without it, what is written could be lost. */
static int keep_claim(hr_cached *cached) {
    const void *page = NULL;
    int r =
        strcmp(cached->record.format, HR_SHARED_FORMAT) == 0 ? hr__map_to_read(cached->fd, hr__page_bytes(), &page) : 0;
    cached->claim_page = (void *)(uintptr_t)page;
    return r;
}

/* Maps the data by a descriptor of its own: a mapping keeps the open file description alive, and so the lock of the
 * claim, which has to be able to end before the mapping does (hr_cached_unclaim). */
static int map_data(hr_cached *cached) {
    const void *data = NULL;
    int fd = -1;
    int r = cached->record.bytes ? hr__file_reopen(cached->fd, &fd) : 0;
    if (r == 0 && fd >= 0) r = hr__map_to_read(fd, cached->record.bytes, &data);
    hr__close(&fd);
    cached->data = (void *)(uintptr_t)data;
    if (r == 0) r = keep_claim(cached);
    if (r == 0) return 0;
    hr__unmap(cached->data, cached->record.bytes);
    return hr__fail(r, "cache: cannot map '%s' (%" PRIu64 " bytes): %s", cached->record.name, cached->record.bytes,
                    hr_error_text(r));
}

static hr_cached *new_cached(hr_cache *cache, const char *key, uint32_t store) {
    hr_cached *cached = hr__realloc(NULL, sizeof *cached);
    if (!cached) return NULL;
    memset(cached, 0, sizeof *cached);
    cached->cache = hr__cache_ref(cache);
    memcpy(cached->key, key, strlen(key) + 1);
    cached->fd = cached->claim_fd = -1;
    cached->store = store;
    cached->pid = hr__pid();
    return cached;
}

static void end_lock(hr_cached *cached) {
    hr__unmap(cached->claim_page, hr__page_bytes());
    cached->claim_page = NULL;
    hr__close(&cached->fd);
}

static hr_cached *free_cached(hr_cached *cached) {
    end_lock(cached);
    hr__record_done(&cached->record);
    hr_cache_close(cached->cache);
    hr__free(cached);
    return NULL;
}

static int attach_folder(hr_cached *cached, const char *folder, const char *name, const char *version, const char *id) {
    int r = claim(folder, cached);
    if (r == 0) r = check_identity(cached, name, version, id);
    if (r == 0) r = has_ended(cached->cache, cached);
    if (r == 1) {
        char key_id[HR_CACHE_ID_CHARACTERS];
        memcpy(key_id, cached->record.id, sizeof key_id);
        hr__close(&cached->fd);
        delete_ended(cached->cache, cached->store, cached->key, key_id, true);
        return -ENOENT;
    }
    return r == 0 ? map_data(cached) : r;
}

/* One attempt for one place. A failed one leaves nothing. */
static int attach_once(hr_cache *cache, uint32_t store, const char *key, const char *folder, const char *name,
                       const char *version, const char *id, hr_cached **ret_cached) {
    hr_cached *cached = new_cached(cache, key, store);
    if (!cached) return hr__fail(-ENOMEM, "cache: no memory");
    int r = attach_folder(cached, folder, name, version, id);
    if (r < 0) {
        free_cached(cached);
        return r;
    }
    *ret_cached = cached;
    return 0;
}

/* A builder or a collector has the exclusive lock for microseconds only, or has moved the folder. */
static int attach_patiently(hr_cache *cache, uint32_t store, const char *key, const char *folder, const char *name,
                            const char *version, const char *id, hr_cached **ret_cached) {
    int r = -EAGAIN;
    for (int i = 0; r == -EAGAIN && i < RETRIES; i++) {
        r = attach_once(cache, store, key, folder, name, version, id, ret_cached);
        if (r == -EAGAIN) hr__sleep_until(hr__now_ns() + RETRY_NS);
    }
    if (r == -EAGAIN) return hr__fail(-EBUSY, "cache: another process has had a lock on %s for a second", folder);
    if (r == -EMFILE || r == -ENFILE)
        return hr__fail(r,
                        "cache: cannot open '%s': %s; each object that is attached has two descriptors: raise the "
                        "limit on open files (ulimit -n)" HR_HELP("open-files"),
                        name, hr_error_text(r));
    return r;
}

static int attach_in(hr_cache *cache, uint32_t store, const char *name, const char *version, const char *id,
                     hr_cached **ret_cached) {
    char key[KEY_BYTES], folder[HR__PATH_BYTES];
    const char *top = cache->stores[store].path;
    hr__cache_key(name, version, key);
    int r = hr__path(folder, "%s/objects/%s", top, key);
    if (r == 0) r = attach_patiently(cache, store, key, folder, name, version, id, ret_cached);
    if (r != -ENOENT || !id) return r;
    r = hr__path(folder, "%s/trash/%s~%s", top, key, id);
    return r < 0 ? r : attach_patiently(cache, store, key, folder, name, version, id, ret_cached);
}

int hr__attach(hr_cache *cache, const char *name, const char *version, const char *id, hr_cached **ret_cached) {
    int r = -ENOENT;
    for (uint32_t i = 0; r == -ENOENT && i < cache->store_count; i++)
        r = attach_in(cache, i, name, version, id, ret_cached);
    if (r < 0) return r;
    char info[HR__PATH_BYTES];
    hr_cached *cached = *ret_cached;
    note_claim(cached);
    if (hr__path(info, "%.*sinfo", (int)(strrchr(cached->path, '/') + 1 - cached->path), cached->path) == 0)
        hr__file_touch(info); /* the time of the last attach; a read-only file system keeps the old one */
    if (!cache->stores[cached->store].is_memory) hr__file_read_ahead(cached->fd);
    return 0;
}

static int no_such(const hr_cache *cache, const char *name, const char *version) {
    return hr__fail(-ENOENT, "cache: there is no '%s' version '%s' in %s", name, version, cache->root);
}

int hr_cache_attach(hr_cache *cache, const char *name, const char *version, hr_cached **ret_cached) {
    int r = hr_cache_check_name(name, version);
    if (r == 0) r = hr__attach(cache, name, version, NULL, ret_cached);
    return r == -ENOENT ? no_such(cache, name, version) : r;
}

static int peek_in(hr_cache *cache, uint32_t store, const char *key, char *ret_id, char **ret_stamp) {
    char folder[HR__PATH_BYTES];
    struct hr__cache_record record = {0};
    int r = hr__path(folder, "%s/objects/%s", cache->stores[store].path, key);
    if (r == 0) r = hr__record_read(folder, &record);
    if (r < 0) return r;
    memcpy(ret_id, record.id, HR_CACHE_ID_CHARACTERS);
    *ret_stamp = hr_take(record.stamp);
    hr__record_done(&record);
    return 0;
}

int hr_cache_peek(hr_cache *cache, const char *name, const char *version, char ret_id[HR_CACHE_ID_CHARACTERS],
                  char **ret_stamp) {
    char key[KEY_BYTES];
    int r = hr_cache_check_name(name, version);
    if (r < 0) return r;
    hr__cache_key(name, version, key);
    r = -ENOENT;
    for (uint32_t i = 0; r == -ENOENT && i < cache->store_count; i++) r = peek_in(cache, i, key, ret_id, ret_stamp);
    return r == -ENOENT ? no_such(cache, name, version) : r;
}

void hr_cache_free_text(char *text) {
    hr__free(text);
}

int hr_cache_attach_id(hr_cache *cache, const char *name, const char *version, const char *id, hr_cached **ret_cached) {
    int r = hr_cache_check_name(name, version);
    if (r == 0 && (strlen(id) != HR_CACHE_ID_CHARACTERS - 1 || strspn(id, "0123456789abcdef") != strlen(id)))
        return hr__fail(-EINVAL, "cache: '%s' is not an id of an object", id);
    if (r == 0) r = hr__attach(cache, name, version, id, ret_cached);
    return r == -ENOENT ? no_such(cache, name, version) : r;
}

int hr__attach_own(hr_cache *cache, const char *key, uint32_t store, int fd, struct hr__cache_record *record,
                   bool is_private, hr_cached **ret_cached) {
    hr_cached *cached = new_cached(cache, key, store);
    if (!cached) return hr__fail(-ENOMEM, "cache: no memory");
    int r = hr__path(cached->path, "%s/objects/%s/data", cache->stores[store].path, key);
    cached->fd = fd;
    struct hr__cache_record kept = cached->record;
    cached->record = *record;
    if (r == 0) r = map_data(cached);
    if (r < 0) {
        cached->fd = -1; /* they stay with the caller */
        cached->record = kept;
        free_cached(cached);
        return r;
    }
    hr__record_init(record);
    cached->is_private = is_private;
    if (!is_private) note_claim(cached);
    *ret_cached = cached;
    return 0;
}

/* ---- detaching ---- */

void hr_cached_unclaim(hr_cached *cached) {
    if (cached->fd < 0) return;
    end_note(cached);
    end_lock(cached);
    if (cached->pid == hr__pid() && !cached->is_private)
        delete_ended(cached->cache, cached->store, cached->key, cached->record.id,
                     cached->record.keep == HR_CACHE_KEEP_JOB);
}

hr_cached *hr_cached_detach(hr_cached *cached) {
    if (!cached) return NULL;
    hr__unmap(cached->data, cached->record.bytes);
    hr_cached_unclaim(cached);
    return free_cached(cached);
}

void hr_cached_look(const hr_cached *cached, struct hr_cached_info *ret_info) {
    const struct hr__cache_record *record = &cached->record;
    *ret_info = (struct hr_cached_info){
        .name = record->name,
        .version = record->version,
        .id = record->id,
        .format = record->format,
        .stamp = record->stamp,
        .meta = record->meta,
        .path = cached->path,
        .place = record->place,
        .command = record->command,
        .keep = record->keep,
        .pid = record->pid,
        .built_ns = record->built_ns,
        .bytes = record->bytes,
        .chunk_bytes = record->chunk_bytes,
        .data = cached->data,
        .fd = cached->fd,
        .is_private = cached->is_private,
    };
}

/* ---- verifying ---- */

static int read_sums(const hr_cached *cached, uint64_t count, uint64_t **ret_sums) {
    char path[HR__PATH_BYTES];
    int fd = -1;
    uint64_t *sums = hr__realloc(NULL, (count + 1) * sizeof *sums);
    int r =
        sums ? hr__path(path, "%.*ssums", (int)(strrchr(cached->path, '/') + 1 - cached->path), cached->path) : -ENOMEM;
    if (r == 0) r = hr__file_open(path, &fd);
    if (r == 0) r = hr__read_at(fd, 0, sums, count * sizeof *sums);
    hr__close(&fd);
    if (r == 0 && hr__hash(sums, count * sizeof *sums, 0) == cached->record.sums_hash) {
        *ret_sums = sums;
        return 0;
    }
    hr__free(sums);
    return hr__fail(HR_E_CORRUPT, "cache: the checksums of '%s' are damaged; remove it and build it again",
                    cached->record.name);
}

static int verify_samples(const hr_cached *cached) {
    hr_samples *samples = NULL;
    int r = hr_samples_open(cached, &samples);
    if (r == 0) r = hr__samples_verify(samples);
    hr_samples_close(samples);
    return r;
}

/* An array that is written all the time has no checksums; its head is checked. */
static int verify_shared(const hr_cached *cached) {
    struct hr_shared_info info;
    return hr__shared_read_head(cached->fd, cached->path, &info);
}

int hr_cached_verify(const hr_cached *cached) {
    if (strcmp(cached->record.format, HR_SHARED_FORMAT) == 0) return verify_shared(cached);
    if (strcmp(cached->record.format, HR_SAMPLES_FORMAT) == 0) return verify_samples(cached);
    const struct hr__cache_record *record = &cached->record;
    uint64_t *sums, sum, count = hr__count_chunks(record->bytes, record->chunk_bytes);
    int r = read_sums(cached, count, &sums);
    if (r < 0) return r;
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t begin = i * record->chunk_bytes, end = hr__chunk_end(record, i);
        r = hr__sum(cached->fd, begin, end - begin, &sum);
        if (r < 0)
            r = hr__fail(r, "cache: cannot read %s: %s", cached->path, hr_error_text(r));
        else if (sum != sums[i])
            r = hr__fail(HR_E_CORRUPT,
                         "cache: '%s' is damaged: bytes %" PRIu64 " to %" PRIu64 " of %s do not match their checksum; "
                         "remove it and build it again (headrace cache rm %s)",
                         record->name, begin, end, cached->path, record->name);
    }
    hr__free(sums);
    return r;
}
