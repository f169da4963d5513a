/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_remote.h"
#include "cli.h"
#include "options.h"

#include <headrace/error.h>
#include <headrace/face/cache_shared.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* headrace cache ls and info. Remote objects: cache_remote.c */

static const char *const states[] = {"?", "ready", "building", "unfinished", "removed", "damaged"};
static const char *const keeps[] = {"job", "boot", "disk"};

static const char *keep_name(uint32_t keep) {
    return keep < 3 ? keeps[keep] : "?";
}

static double seconds_since(int64_t wall_ns) {
    return difftime(time(NULL), (time_t)(wall_ns / 1000000000));
}

static bool is_shared(const struct hr_cache_entry *entry) {
    return strcmp(entry->info.format, HR_SHARED_FORMAT) == 0;
}

/* ---- ls ---- */

struct listing {
    int is_json, count;
};

static void put_builder_json(const struct hr_cache_builder *builder) {
    printf(", \"builder\": {\"pid\": %" PRIu32 ", \"stopped\": %s, \"done\": %" PRIu64 ", \"total\": %" PRIu64
           ", \"command\": ",
           builder->pid, builder->is_stopped ? "true" : "false", builder->done, builder->total);
    put_json(stdout, builder->command);
    printf("}");
}

/* The fields of an object, without the closing brace. */
static void put_entry_json(const struct hr_cache_entry *entry) {
    const struct hr_cached_info *info = &entry->info;
    printf("{\"name\": ");
    put_json(stdout, info->name);
    printf(", \"version\": ");
    put_json(stdout, info->version);
    printf(", \"state\": \"%s\", \"bytes\": %" PRIu64 ", \"keep\": \"%s\", \"processes\": %" PRIu32,
           states[entry->state], info->bytes, keep_name(info->keep), entry->claim_count);
    printf(", \"built\": %.3f, \"attached\": %.3f, \"id\": \"%s\", \"path\": ", (double)info->built_ns / 1e9,
           (double)entry->attached_ns / 1e9, info->id);
    put_json(stdout, info->path);
    printf(", \"format\": ");
    put_json(stdout, info->format);
    if (entry->state == HR_CACHE_BUILDING || entry->state == HR_CACHE_ORPHAN) put_builder_json(&entry->builder);
}

static void put_row(const struct hr_cache_entry *entry) {
    char size[UNITS_BYTES], age[UNITS_BYTES], state[48];
    snprintf(state, sizeof state, "%s", states[entry->state]);
    if (entry->state == HR_CACHE_READY && is_shared(entry)) snprintf(state, sizeof state, "shared");
    if (entry->state == HR_CACHE_BUILDING && entry->builder.total)
        snprintf(state, sizeof state, "%s, %" PRIu64 " %%", entry->builder.is_stopped ? "stopped" : "building",
                 100 * entry->builder.done / entry->builder.total);
    printf("%-28s %-8s %-14s %10s  %-5s %9" PRIu32 "  %8s  %.*s\n", entry->info.name, entry->info.version, state,
           in_bytes(entry->info.bytes, size), keep_name(entry->info.keep), entry->claim_count,
           in_time(seconds_since(entry->attached_ns), age), (int)(strrchr(entry->info.path, '/') - entry->info.path),
           entry->info.path);
}

static int list_entry(void *context, const struct hr_cache_entry *entry) {
    struct listing *listing = context;
    if (listing->is_json) {
        printf("%s", listing->count ? ",\n " : "\n ");
        put_entry_json(entry);
        printf("}");
    } else {
        if (!listing->count)
            printf("%-28s %-8s %-14s %10s  %-5s %9s  %8s  %s\n", "NAME", "VERSION", "STATE", "SIZE", "KEEP",
                   "PROCESSES", "ATTACHED", "FOLDER");
        put_row(entry);
    }
    listing->count++;
    return 0;
}

int cache_ls(int count, char **words) {
    const char *root = NULL;
    struct listing listing = {0};
    const struct option options[] = {{"--root", &root, NULL}, {"--json", NULL, &listing.is_json}};
    int others = parse_options("cache ls", count, words, options, 2);
    if (others) {
        if (others > 0) fprintf(stderr, "headrace: ls takes no names; see headrace cache info %s\n", words[0]);
        return EXIT_USAGE;
    }
    bool is_missing;
    remote_use_root(root);
    hr_cache *cache = find_cache(root, &is_missing);
    if (!cache && !is_missing) return 1;
    if (listing.is_json) printf("[");
    int r = cache ? hr_cache_list(cache, list_entry, &listing) : 0;
    if (r >= 0) r = remote_list(listing.is_json, &listing.count);
    if (listing.is_json) printf("%s]\n", listing.count ? "\n" : "");
    if (r == 0 && !listing.count && !listing.is_json)
        printf("nothing in %s; headrace cache warm --help shows how to put files there\n",
               cache ? hr_cache_root(cache) : "the cache");
    hr_cache_close(cache);
    return r < 0 ? fail_with_message() : 0;
}

/* ---- info ---- */

struct search {
    hr_cache *cache;
    const char *name, *version;
    int is_json, is_found;
};

static int put_claim(void *context, const struct hr_cache_claim *claim) {
    int *count = context;
    char age[UNITS_BYTES];
    printf("%s pid %" PRIu32 "%s, for %s: %s\n", (*count)++ ? "            " : "  processes ", claim->pid,
           claim->is_visible ? "" : " (in another container)", in_time(seconds_since(claim->since_ns), age),
           claim->command);
    return 0;
}

static int put_claim_json(void *context, const struct hr_cache_claim *claim) {
    int *count = context;
    printf("%s{\"pid\": %" PRIu32 ", \"visible\": %s, \"since\": %.3f, \"command\": ", (*count)++ ? ", " : "",
           claim->pid, claim->is_visible ? "true" : "false", (double)claim->since_ns / 1e9);
    put_json(stdout, claim->command);
    printf("}");
    return 0;
}

static void put_info_json(const struct search *search, const struct hr_cache_entry *entry) {
    int count = 0;
    put_entry_json(entry);
    printf(", \"place\": ");
    put_json(stdout, entry->info.place);
    printf(", \"built_by\": ");
    put_json(stdout, entry->info.command);
    printf(", \"stamp\": ");
    put_json(stdout, entry->info.stamp);
    printf(", \"claims\": [");
    hr_cache_claims(search->cache, entry->info.id, put_claim_json, &count);
    printf("]}\n");
}

/* Prints the dtype and shape of an array that processes write, and by how many it is written. */
static void put_shared(const struct hr_cache_entry *entry) {
    struct hr_shared_plan plan;
    printf("  written by %" PRIu32 " %s\n", entry->claim_count, entry->claim_count == 1 ? "process" : "processes");
    if (entry->state != HR_CACHE_READY || hr_shared_read_plan(entry->info.path, &plan) < 0) return;
    printf("  array      dtype %s, shape (", plan.dtype);
    for (uint32_t i = 0; i < plan.dimension_count; i++) printf("%s%" PRIu64, i ? ", " : "", plan.dimensions[i]);
    printf("%s)\n", plan.dimension_count == 1 ? "," : "");
}

static void put_info(const struct search *search, const struct hr_cache_entry *entry) {
    const struct hr_cached_info *info = &entry->info;
    char size[UNITS_BYTES], built[UNITS_BYTES], attached[UNITS_BYTES];
    int count = 0;
    printf("%s, version %s: %s\n", info->name, info->version, states[entry->state]);
    printf("  size       %s (%" PRIu64 " bytes)\n", in_bytes(info->bytes, size), info->bytes);
    if (is_shared(entry)) put_shared(entry);
    printf("  keep       %s\n", keep_name(info->keep));
    printf("  file       %s\n", info->path);
    if (*info->place) printf("  place      %s\n", info->place);
    if (info->built_ns)
        printf("  built      %s ago by pid %" PRIu32 ": %s\n", in_time(seconds_since(info->built_ns), built), info->pid,
               info->command);
    printf("  attached   %s ago\n", in_time(seconds_since(entry->attached_ns), attached));
    if (*info->stamp) printf("  made from  %s\n", info->stamp);
    if (entry->builder.is_building)
        printf("  builder    pid %" PRIu32 "%s: %s\n", entry->builder.pid,
               entry->builder.is_stopped ? ", which is stopped" : "", entry->builder.command);
    hr_cache_claims(search->cache, info->id, put_claim, &count);
    if (!count) printf("  processes  none\n");
}

static int show_entry(void *context, const struct hr_cache_entry *entry) {
    struct search *search = context;
    if (strcmp(entry->info.name, search->name) != 0 || strcmp(entry->info.version, search->version) != 0) return 0;
    if (entry->state == HR_CACHE_REMOVED) return 0;
    search->is_found = 1;
    if (search->is_json)
        put_info_json(search, entry);
    else
        put_info(search, entry);
    return 1;
}

int cache_info(int count, char **words) {
    const char *root = NULL;
    struct search search = {.version = "0"};
    const struct option options[] = {
        {"--root", &root, NULL}, {"--version", &search.version, NULL}, {"--json", NULL, &search.is_json}};
    int others = parse_options("cache info", count, words, options, 3);
    if (others != 1) {
        if (others >= 0 && count) fputs("headrace: give one name; see headrace cache info --help\n", stderr);
        return EXIT_USAGE;
    }
    search.name = words[0];
    remote_use_root(root);
    if (is_url(words[0])) return remote_info(words[0], search.is_json);
    bool is_missing;
    search.cache = find_cache(root, &is_missing);
    if (!search.cache && !is_missing) return 1;
    int r = is_missing ? 0 : hr_cache_list(search.cache, show_entry, &search);
    if (r >= 0 && !search.is_found)
        fprintf(stderr, "headrace: there is no '%s' version '%s' in %s; headrace cache ls lists what is there\n",
                search.name, search.version, is_missing ? "the cache" : hr_cache_root(search.cache));
    hr_cache_close(search.cache);
    return r < 0 ? fail_with_message() : search.is_found ? 0 : 1;
}
