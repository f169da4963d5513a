/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cache/cache.h"
#include "cache/samples.h"

/* Lists the objects and builds of a cache, and the processes that have them. */

struct listing {
    hr_cache *cache;
    uint32_t store;
    const char *part; /* objects, partial or trash */
    int (*visit)(void *context, const struct hr_cache_entry *entry);
    void *context;
};

/* ---- claims ---- */

struct claims {
    hr_cache *cache;
    const char *id;
    int (*visit)(void *context, const struct hr_cache_claim *claim);
    void *context;
};

/* Reads a claim. Returns false if its process has ended, and removes what it left. */
static bool read_claim(const char *path, struct hr_cache_claim *ret_claim) {
    char text[HR_CACHE_COMMAND_BYTES + 80];
    struct hr__file_info info;
    int fd = -1;
    if (hr__file_open(path, &fd) < 0) return false;
    if (hr__lock_file(fd, HR__EXCLUSIVE) == 0) {
        hr__file_remove(path);
        hr__close(&fd);
        return false;
    }
    size_t bytes = hr__file_look_fd(fd, &info) == 0 ? hr__min(info.bytes, sizeof text - 1) : 0;
    if (hr__read_at(fd, 0, text, bytes) < 0) bytes = 0;
    hr__close(&fd);
    text[bytes] = '\0';
    char *rest = text;
    *ret_claim = (struct hr_cache_claim){.pid = (uint32_t)strtoul(text, &rest, 10)};
    ret_claim->is_visible = strtoull(rest, &rest, 10) == hr__pid_namespace();
    ret_claim->since_ns = strtoll(rest, &rest, 10);
    snprintf(ret_claim->command, sizeof ret_claim->command, "%s", rest + (*rest == ' '));
    return true;
}

static int visit_claim(void *context, const char *name) {
    const struct claims *claims = context;
    struct hr_cache_claim claim;
    char path[HR__PATH_BYTES];
    size_t length = strlen(claims->id);
    if (strncmp(name, claims->id, length) != 0 || name[length] != '.') return 0;
    if (hr__path(path, "%s/claims/%s", claims->cache->stores[0].path, name) < 0 || !read_claim(path, &claim)) return 0;
    return claims->visit(claims->context, &claim);
}

int hr_cache_claims(hr_cache *cache, const char *id, int (*visit)(void *context, const struct hr_cache_claim *claim),
                    void *context) {
    struct claims claims = {cache, id, visit, context};
    char path[HR__PATH_BYTES];
    int r = hr__path(path, "%s/claims", cache->stores[0].path);
    if (r == 0) r = hr__folder_visit(path, visit_claim, &claims);
    return r;
}

static int sweep_claim(void *context, const char *name) {
    struct hr_cache_claim claim;
    char path[HR__PATH_BYTES];
    if (hr__path(path, "%s/claims/%s", ((hr_cache *)context)->stores[0].path, name) == 0) read_claim(path, &claim);
    return 0;
}

void hr__claims_sweep(hr_cache *cache) {
    char path[HR__PATH_BYTES];
    if (hr__path(path, "%s/claims", cache->stores[0].path) == 0) hr__folder_visit(path, sweep_claim, cache);
}

static int count_claim(void *context, const struct hr_cache_claim *claim) {
    (void)claim;
    ++*(uint32_t *)context;
    return 0;
}

/* ---- entries ---- */

static void fill_info(const struct hr__cache_record *record, const char *path, struct hr_cached_info *ret_info) {
    *ret_info = (struct hr_cached_info){.name = record->name ? record->name : "",
                                        .version = record->version ? record->version : "",
                                        .id = record->id,
                                        .format = record->format ? record->format : "",
                                        .stamp = record->stamp ? record->stamp : "",
                                        .meta = record->meta ? record->meta : "",
                                        .path = path,
                                        .place = record->place ? record->place : "",
                                        .command = record->command ? record->command : "",
                                        .keep = record->keep,
                                        .pid = record->pid,
                                        .built_ns = record->built_ns,
                                        .bytes = record->bytes,
                                        .chunk_bytes = record->chunk_bytes,
                                        .fd = -1};
}

static void look_at_build(const struct listing *listing, const char *name, struct hr_cache_entry *entry) {
    char key[KEY_BYTES];
    struct hr__build_state state;
    snprintf(key, sizeof key, "%.*s", (int)strcspn(name, "."), name);
    bool is_taken = hr__lock_is_taken(listing->cache, key);
    hr__state_read(listing->cache, key, &state);
    hr__builder_describe(&state, is_taken, &entry->builder);
    entry->state = is_taken ? HR_CACHE_BUILDING : HR_CACHE_ORPHAN;
}

static void judge_files(const char *folder, const char *path, struct hr__cache_record *record,
                        struct hr_cache_entry *entry) {
    struct hr__file_info info;
    char record_path[HR__PATH_BYTES];
    int r = hr__record_read(folder, record);
    if (r < 0) hr__record_init(record);
    bool is_whole = r == 0 && hr__file_look(path, &info) == 0 && info.bytes >= record->bytes;
    entry->state = is_whole ? HR_CACHE_READY : HR_CACHE_DAMAGED;
    if (hr__path(record_path, "%s/info", folder) == 0 && hr__file_look(record_path, &info) == 0)
        entry->attached_ns = info.changed_ns;
}

static int visit_entry(void *context, const char *name) {
    const struct listing *listing = context;
    struct hr_cache_entry entry = {0};
    struct hr__cache_record record;
    char folder[HR__PATH_BYTES], path[HR__PATH_BYTES];
    if (hr__path(folder, "%s/%s/%s", listing->cache->stores[listing->store].path, listing->part, name) < 0 ||
        hr__path(path, "%s/data", folder) < 0)
        return 0;
    judge_files(folder, path, &record, &entry);
    fill_info(&record, path, &entry.info);
    struct hr__file_info info;
    bool is_sparse = strcmp(entry.info.format, HR_SAMPLES_FORMAT) == 0;
    if (is_sparse && hr__file_look(path, &info) == 0) entry.info.bytes = info.committed_bytes;
    if (strcmp(listing->part, "partial") == 0) look_at_build(listing, name, &entry);
    if (strcmp(listing->part, "trash") == 0) entry.state = HR_CACHE_REMOVED;
    if (!*entry.info.name) entry.info.name = name;
    if (*record.id) hr_cache_claims(listing->cache, record.id, count_claim, &entry.claim_count);
    int r = listing->visit(listing->context, &entry);
    hr__record_done(&record);
    return r;
}

int hr_cache_list(hr_cache *cache, int (*visit)(void *context, const struct hr_cache_entry *entry), void *context) {
    static const char *const parts[] = {"objects", "partial", "trash"};
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < cache->store_count; i++)
        for (size_t k = 0; r == 0 && k < sizeof parts / sizeof *parts; k++) {
            struct listing listing = {cache, i, parts[k], visit, context};
            char path[HR__PATH_BYTES];
            r = hr__path(path, "%s/%s", cache->stores[i].path, parts[k]);
            if (r == 0) r = hr__folder_visit(path, visit_entry, &listing);
            if (r < 0 && r != -ENOENT) return hr__fail(r, "cache: cannot list %s: %s", path, hr_error_text(r));
            if (r == -ENOENT) r = 0;
        }
    return r;
}
