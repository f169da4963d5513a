/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_remote.h"

#include "cli.h"
#include "options.h"
#include "stop.h"

#include <headrace/error.h>
#include <headrace/face/kept.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* headrace cache ls, info, verify, rm and gc of remote objects. */

static const char run_fetcher[] = "import sys\n"
                                  "if sys.path[:1] == ['']: del sys.path[0]\n"
                                  "from headrace._remote.fetcher import main\n"
                                  "main()\n";

void remote_use_root(const char *root) {
    char path[PATH_MAX];
    if (root) setenv("HEADRACE_REMOTE", root, 1);
    const char *interpreter = find_interpreter(path, sizeof path);
    if (interpreter) hr_remote_use((const char *const[]){interpreter, "-c", run_fetcher, NULL});
}

static double seconds_since(int64_t wall_ns) {
    double seconds = difftime(time(NULL), (time_t)(wall_ns / 1000000000));
    return seconds > 0 ? seconds : 0;
}

static int share_of(const struct hr_kept *kept) {
    return kept->bytes ? (int)(100.0 * (double)kept->kept_bytes / (double)kept->bytes) : 100;
}

/* ---- all objects that words name ---- */

struct matches {
    char folder[PATH_MAX];
    const char *word; /* NULL: all */
    struct hr_kept *all;
    size_t count, room;
};

static int add_match(void *context, const struct hr_kept *kept) {
    struct matches *matches = context;
    if (matches->word && !hr_kept_is_of(kept, matches->word)) return 0;
    if (matches->count == matches->room) {
        size_t room = 2 * matches->room + 16;
        struct hr_kept *grown = realloc(matches->all, room * sizeof *grown);
        if (!grown) return -ENOMEM;
        matches->all = grown;
        matches->room = room;
    }
    matches->all[matches->count++] = *kept;
    return 0;
}

static int compare_addresses(const void *one, const void *other) {
    return strcmp(((const struct hr_kept *)one)->shown, ((const struct hr_kept *)other)->shown);
}

/* Finds the objects of a word, by their addresses. Returns 0, also for none, or a negative errno. */
static int find_matches(struct matches *matches, const char *word) {
    matches->word = word;
    matches->count = 0;
    int r = hr_kept_folder(matches->folder, sizeof matches->folder);
    if (r == -ENOENT) return 0;
    if (r == 0) r = hr_kept_list(matches->folder, add_match, matches);
    if (matches->count) qsort(matches->all, matches->count, sizeof *matches->all, compare_addresses);
    return r;
}

/* The same for a command that needs one: with a message. */
static int need_matches(struct matches *matches, const char *word) {
    int r = find_matches(matches, word);
    if (r < 0) return fail_with_message();
    if (matches->count) return 0;
    fprintf(stderr, "headrace: nothing is kept of %s; headrace cache ls lists what is\n", word);
    return 1;
}

/* ---- ls ---- */

static void put_kept_json(const struct hr_kept *kept, const char *folder) {
    printf("{\"name\": ");
    put_json(stdout, kept->shown);
    printf(", \"version\": \"\", \"state\": \"%s\", \"bytes\": %" PRIu64 ", \"kept_bytes\": %" PRIu64
           ", \"disk_bytes\": %" PRIu64 ", \"used\": %.3f, \"id\": \"%s\", \"path\": ",
           kept->is_damaged ? "damaged" : "remote", kept->bytes, kept->kept_bytes, kept->disk_bytes,
           (double)kept->used_ns / 1e9, kept->name);
    char path[PATH_MAX + HR_KEPT_NAME_BYTES + 4];
    snprintf(path, sizeof path, "%s/%.2s/%s", folder, kept->name, kept->name);
    put_json(stdout, path);
}

static void put_rows(const struct matches *matches) {
    char size[UNITS_BYTES], kept[UNITS_BYTES], age[UNITS_BYTES];
    uint64_t total = 0, all_kept = 0;
    for (size_t i = 0; i < matches->count; i++) {
        const struct hr_kept *one = &matches->all[i];
        if (i == 0) printf("%10s %10s %6s %8s  %s\n", "SIZE", "KEPT", "KEPT%", "USED", "REMOTE OBJECT");
        printf("%10s %10s %6d %8s  %s\n", in_bytes(one->bytes, size), in_bytes(one->kept_bytes, kept), share_of(one),
               in_time(seconds_since(one->used_ns), age), one->is_damaged ? "(damaged; gc removes it)" : one->shown);
        total += one->bytes;
        all_kept += one->kept_bytes;
    }
    if (matches->count)
        printf("%zu remote objects, %s of %s kept, in %s\n", matches->count, in_bytes(all_kept, kept),
               in_bytes(total, size), matches->folder);
}

int remote_list(bool is_json, int *count) {
    struct matches matches = {.count = 0};
    int r = find_matches(&matches, NULL);
    if (r == 0 && !is_json) put_rows(&matches);
    for (size_t i = 0; i < matches.count && is_json && r == 0; i++) {
        printf("%s", *count + (int)i ? ",\n " : "\n ");
        put_kept_json(&matches.all[i], matches.folder);
        printf("}");
    }
    *count += (int)matches.count;
    free(matches.all);
    return r;
}

/* ---- info ---- */

static void put_kept(const struct hr_kept *kept, const char *folder) {
    char size[UNITS_BYTES], part[UNITS_BYTES], disk[UNITS_BYTES], age[UNITS_BYTES];
    printf("%s: remote object\n", kept->shown);
    printf("  size       %s (%" PRIu64 " bytes)\n", in_bytes(kept->bytes, size), kept->bytes);
    printf("  kept       %s (%d %%), in %s of the disk\n", in_bytes(kept->kept_bytes, part), share_of(kept),
           in_bytes(kept->disk_bytes, disk));
    printf("  file       %s/%.2s/%s\n", folder, kept->name, kept->name);
    printf("  used       %s ago\n", in_time(seconds_since(kept->used_ns), age));
    printf("  open       %s\n", hr_kept_is_open(folder, kept->name) ? "in a process" : "in no process");
}

int remote_info(const char *word, bool is_json) {
    struct matches matches = {.count = 0};
    int code = need_matches(&matches, word);
    for (size_t i = 0; i < matches.count && !code; i++) {
        if (!is_json) {
            put_kept(&matches.all[i], matches.folder);
            continue;
        }
        put_kept_json(&matches.all[i], matches.folder);
        printf(", \"open\": %s}\n", hr_kept_is_open(matches.folder, matches.all[i].name) ? "true" : "false");
    }
    free(matches.all);
    return code;
}

/* ---- verify ---- */

void put_verified(const char *name, int r, uint64_t bytes, bool is_json, int *number) {
    if (is_json) {
        printf("%s{\"name\": ", (*number)++ ? ",\n " : "\n ");
        put_json(stdout, name);
        printf(", \"ok\": %s, \"bytes\": %" PRIu64 ", \"message\": ", r < 0 ? "false" : "true", bytes);
        put_json(stdout, r < 0 ? hr_error_message() : "");
        printf("}");
    } else if (r < 0)
        fail_with_message();
    else
        printf("%s: %" PRIu64 " bytes, no damage found\n", name, bytes);
}

static void put_check(const struct hr_kept *kept, int r, uint64_t bytes, bool is_json, int *number) {
    if (r < 0 || is_json)
        put_verified(kept->shown, r, bytes, is_json, number);
    else
        printf("%s: %" PRIu64 " of %" PRIu64 " bytes are kept, no damage found\n", kept->shown, bytes, kept->bytes);
}

int remote_verify(const char *word, bool is_json, int *number) {
    struct matches matches = {.count = 0};
    int code = need_matches(&matches, word);
    watch_stop_signals();
    for (size_t i = 0; i < matches.count && code != EXIT_INTERRUPTED; i++) {
        struct hr_kept_check check = {0};
        int r = hr_kept_verify(matches.folder, matches.all[i].name, is_stopped, &check);
        if (r == -EINTR)
            code = EXIT_INTERRUPTED;
        else
            put_check(&matches.all[i], r, check.bytes, is_json, number);
        if (r < 0 && r != -EINTR) code = 1;
    }
    free(matches.all);
    return code;
}

/* ---- rm ---- */

int remote_remove(const char *word, bool force, bool is_json, int *number) {
    struct matches matches = {.count = 0};
    int code = need_matches(&matches, word);
    for (size_t i = 0; i < matches.count; i++) {
        int r = hr_kept_remove(matches.folder, matches.all[i].name, force);
        if (is_json) {
            printf("%s{\"name\": ", (*number)++ ? ",\n " : "\n ");
            put_json(stdout, matches.all[i].shown);
            printf(", \"removed\": %s, \"message\": ", r < 0 ? "false" : "true");
            put_json(stdout, r < 0 ? hr_error_message() : "");
            printf("}");
        } else if (r < 0)
            fail_with_message();
        else
            printf("removed %s\n", matches.all[i].shown);
        if (r < 0) code = 1;
    }
    free(matches.all);
    return code;
}

/* ---- gc ---- */

struct sweep {
    bool is_dry, is_json;
    int count;
};

static void show_removed(void *context, const struct hr_kept *kept) {
    struct sweep *sweep = context;
    char size[UNITS_BYTES];
    const char *shown = kept->is_damaged ? kept->name : kept->shown;
    if (sweep->is_json) {
        printf("%s{\"name\": ", sweep->count ? ",\n  " : "\n  ");
        put_json(stdout, shown);
        printf(", \"bytes\": %" PRIu64 "}", kept->disk_bytes);
    } else
        printf("%s %s: %s\n", sweep->is_dry ? "would delete" : "deleted", shown, in_bytes(kept->disk_bytes, size));
    sweep->count++;
}

int remote_collect(const struct hr_kept_limits *limits, bool is_json) {
    struct sweep sweep = {.is_dry = limits->is_dry, .is_json = is_json};
    struct hr_kept_collected found = {0};
    char folder[PATH_MAX], size[UNITS_BYTES], left[UNITS_BYTES];
    int r = hr_kept_folder(folder, sizeof folder);
    bool is_missing = r == -ENOENT;
    if (is_json) printf(", \"remote\": {\"deleted\": [");
    if (r == 0) r = hr_kept_collect(folder, limits, show_removed, &sweep, &found);
    if (is_json)
        printf("%s], \"objects\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"bytes_left\": %" PRIu64 "}",
               sweep.count ? "\n" : "", found.objects, found.bytes, found.bytes_left);
    if (is_missing) return 0;
    if (r < 0) return fail_with_message();
    if (!is_json)
        printf("deleted %" PRIu64 " remote objects, %s; %s remain\n", limits->is_dry ? 0 : found.objects,
               in_bytes(limits->is_dry ? 0 : found.bytes, size), in_bytes(found.bytes_left, left));
    if (limits->is_dry || found.bytes_left <= limits->quota_bytes) return 0;
    fputs("headrace: the other remote objects are in use\n", stderr);
    return 1;
}
