/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_remote.h"
#include "cli.h"
#include "options.h"

#include <headrace/error.h>
#include <headrace/frozen.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* headrace cache verify, rm and gc. Remote objects: cache_remote.c */

/* ---- verify ---- */

/* A word names a file if it has a slash, or if there is a file of that name that is no folder. */
static int is_file(const char *word) {
    struct stat found;
    return strchr(word, '/') != NULL || (stat(word, &found) == 0 && !S_ISDIR(found.st_mode));
}

static int verify_file(const char *path, uint64_t *ret_bytes) {
    hr_frozen *store;
    struct hr_frozen_info info;
    int r = hr_frozen_open(path, HR_FROZEN_VERIFY, &store);
    if (r < 0) return r;
    hr_frozen_look(store, &info);
    *ret_bytes = info.bytes;
    hr_frozen_close(store);
    return 0;
}

static int verify_object(hr_cache *cache, const char *name, const char *version, uint64_t *ret_bytes) {
    hr_cached *cached;
    struct hr_cached_info info;
    int r = hr_cache_attach(cache, name, version, &cached);
    if (r < 0) return r;
    hr_cached_look(cached, &info);
    *ret_bytes = info.bytes;
    r = hr_cached_verify(cached);
    hr_cached_detach(cached);
    return r;
}

int cache_verify(int count, char **words) {
    const char *root = NULL, *version = "0";
    int is_json = 0, code = 0;
    const struct option options[] = {
        {"--root", &root, NULL}, {"--version", &version, NULL}, {"--json", NULL, &is_json}};
    int others = parse_options("cache verify", count, words, options, 3);
    if (others <= 0) {
        if (others == 0 && count) fputs("headrace: give names or files; see headrace cache verify --help\n", stderr);
        return EXIT_USAGE;
    }
    hr_cache *cache = NULL;
    remote_use_root(root);
    if (is_json) printf("[");
    for (int i = 0, number = 0; i < others && code != EXIT_INTERRUPTED; i++) {
        uint64_t bytes = 0;
        if (is_url(words[i])) {
            int remote_code = remote_verify(words[i], is_json, &number);
            code = remote_code ? remote_code : code;
            continue;
        }
        int r = is_file(words[i])                           ? verify_file(words[i], &bytes)
                : cache || hr_cache_open(root, &cache) >= 0 ? verify_object(cache, words[i], version, &bytes)
                                                            : -1; /* its message is set */
        put_verified(words[i], r, bytes, is_json, &number);
        if (r < 0) code = 1;
    }
    if (is_json) printf("\n]\n");
    hr_cache_close(cache);
    return code;
}

/* ---- rm ---- */

int cache_rm(int count, char **words) {
    const char *root = NULL, *version = "0";
    int force = 0, is_json = 0, code = 0;
    const struct option options[] = {
        {"--root", &root, NULL}, {"--version", &version, NULL}, {"--force", NULL, &force}, {"--json", NULL, &is_json}};
    int others = parse_options("cache rm", count, words, options, 4);
    if (others <= 0) {
        if (others == 0 && count) fputs("headrace: give names; see headrace cache rm --help\n", stderr);
        return EXIT_USAGE;
    }
    bool is_missing = false, is_all_remote = true;
    remote_use_root(root);
    for (int i = 0; i < others; i++) is_all_remote = is_all_remote && is_url(words[i]);
    hr_cache *cache = is_all_remote ? NULL : find_cache(root, &is_missing);
    if (is_missing) fputs("headrace: the cache is empty\n", stderr);
    if (!cache && !is_all_remote) return 1;
    if (is_json) printf("[");
    for (int i = 0, number = 0; i < others; i++) {
        if (is_url(words[i])) {
            code = remote_remove(words[i], force, is_json, &number) ? 1 : code;
            continue;
        }
        int r = hr_cache_remove(cache, words[i], version, force);
        if (is_json) {
            printf("%s{\"name\": ", number++ ? ",\n " : "\n ");
            put_json(stdout, words[i]);
            printf(", \"removed\": %s, \"message\": ", r < 0 ? "false" : "true");
            put_json(stdout, r < 0 ? hr_error_message() : "");
            printf("}");
        } else if (r < 0)
            fail_with_message();
        else
            printf("removed %s\n", words[i]);
        if (r < 0) code = 1;
    }
    if (is_json) printf("\n]\n");
    hr_cache_close(cache);
    return code;
}

/* ---- gc ---- */

struct sweep {
    int is_dry, is_json, count;
};

static int show_candidate(void *context, const struct hr_cache_entry *entry) {
    struct sweep *sweep = context;
    char size[UNITS_BYTES];
    if (sweep->is_json) {
        printf("%s{\"name\": ", sweep->count ? ",\n  " : "\n  ");
        put_json(stdout, entry->info.name);
        printf(", \"version\": ");
        put_json(stdout, entry->info.version);
        printf(", \"bytes\": %" PRIu64 "}", entry->info.bytes);
    } else
        printf("%s %s, version %s: %s\n", sweep->is_dry ? "would delete" : "deleting", entry->info.name,
               entry->info.version, in_bytes(entry->info.bytes, size));
    sweep->count++;
    return sweep->is_dry;
}

int cache_gc(int count, char **words) {
    const char *root = NULL, *older = NULL, *quota = NULL, *remote_quota = getenv("HEADRACE_REMOTE_QUOTA");
    char size[UNITS_BYTES], left[UNITS_BYTES];
    double seconds = 0;
    uint64_t quota_bytes = UINT64_MAX;
    struct hr_cache_collected result = {0};
    struct sweep sweep = {0};
    struct hr_kept_limits limits = {.older_ns = -1, .quota_bytes = UINT64_MAX};
    const struct option options[] = {{"--root", &root, NULL},
                                     {"--older", &older, NULL},
                                     {"--quota", &quota, NULL},
                                     {"--remote-quota", &remote_quota, NULL},
                                     {"--dry-run", NULL, &sweep.is_dry},
                                     {"--json", NULL, &sweep.is_json}};
    int others = parse_options("cache gc", count, words, options, 6);
    if (others > 0) fputs("headrace: gc takes no names; use headrace cache rm NAME\n", stderr);
    if (others || (older && parse_seconds(older, "--older", &seconds) < 0) ||
        (quota && parse_bytes(quota, "--quota", &quota_bytes) < 0) ||
        (remote_quota && *remote_quota && parse_bytes(remote_quota, "--remote-quota", &limits.quota_bytes) < 0))
        return EXIT_USAGE;
    remote_use_root(root);
    bool is_missing;
    hr_cache *cache = find_cache(root, &is_missing);
    if (!cache && !is_missing) return 1;
    if (sweep.is_json) printf("{\"deleted\": [");
    int64_t older_ns = older ? (int64_t)(seconds * 1e9) : -1;
    int r = is_missing ? 0 : hr_cache_collect(cache, older_ns, quota_bytes, show_candidate, &sweep, &result);
    hr_cache_close(cache);
    if (r < 0) return fail_with_message();
    if (sweep.is_json)
        printf("%s], \"objects\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"bytes_left\": %" PRIu64,
               sweep.count ? "\n" : "", result.objects, result.bytes, result.bytes_left);
    else
        printf("deleted %" PRIu64 " objects, %s; %s remain\n", result.objects, in_bytes(result.bytes, size),
               in_bytes(result.bytes_left, left));
    limits.older_ns = older_ns;
    limits.is_dry = sweep.is_dry;
    int code = remote_collect(&limits, sweep.is_json);
    if (sweep.is_json) printf("}\n");
    if (quota && !sweep.is_dry && result.bytes_left > quota_bytes) {
        fputs("headrace: processes have the rest; headrace cache ls shows how many\n", stderr);
        return 1;
    }
    return code;
}
