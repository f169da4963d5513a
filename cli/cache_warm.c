/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "options.h"
#include "stop.h"

#include <headrace/error.h>
#include <headrace/face/cache.h>
#include <headrace/face/cache_files.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* headrace cache warm: copies array files into the cache. */

enum { BAR = 24, LOG_S = 10, LIST_MAX = 20, WAIT_NS = 200000000 };

struct warm {
    const char *root, *name, *version, *workers, *keys, *keep_text;
    int is_dry, is_held, is_json;
    uint32_t worker_count, keep;
    hr_files_plan *plan;
    struct hr_files_totals totals;
};

/* ---- progress ---- */

struct progress {
    const char *name;
    int64_t began_ns, shown_ns;
    int is_terminal, is_shown;
};

static void show_bar(struct progress *progress, const struct hr_files_progress *now, double seconds) {
    char done[UNITS_BYTES], total[UNITS_BYTES], rate[UNITS_BYTES], left[UNITS_BYTES], bar[BAR + 1];
    double part = now->total_bytes ? (double)now->done_bytes / (double)now->total_bytes : 1;
    double speed = seconds > 0 ? (double)(now->done_bytes - now->kept_bytes) / seconds : 0;
    double rest = speed > 0 ? (double)(now->total_bytes - now->done_bytes) / speed : 0;
    for (int i = 0; i < BAR; i++) bar[i] = i < (int)(part * BAR) ? '#' : '.';
    bar[BAR] = '\0';
    in_bytes(now->done_bytes, done);
    in_bytes(now->total_bytes, total);
    in_bytes((uint64_t)speed, rate);
    in_time(rest, left);
    if (progress->is_terminal)
        fprintf(stderr, "\r%s [%s] %3.0f %%, %s of %s, %s/s, %s left \033[K", progress->name, bar, 100 * part, done,
                total, rate, left);
    else
        fprintf(stderr, "%s: %.0f %%, %s of %s, %s/s, %s left\n", progress->name, 100 * part, done, total, rate, left);
    fflush(stderr);
    progress->is_shown = 1;
}

/* Draws a bar on a terminal, and writes a line from time to time elsewhere, for example in a log file. */
static int report(void *context, const struct hr_files_progress *now) {
    struct progress *progress = context;
    int64_t now_time_ns = clock_ns();
    int64_t interval_ns = progress->is_terminal ? WAIT_NS : LOG_S * INT64_C(1000000000);
    if (now_time_ns - progress->shown_ns >= interval_ns) {
        progress->shown_ns = now_time_ns;
        show_bar(progress, now, (double)(now_time_ns - progress->began_ns) / 1e9);
    }
    return is_stopped();
}

static void end_bar(const struct progress *progress) {
    if (progress->is_terminal && progress->is_shown) fputs("\r\033[K", stderr);
}

/* ---- what is missing ---- */

struct missing {
    int is_json, count;
};

static void show_missing(void *context, const char *scene, const char *keys) {
    struct missing *missing = context;
    if (missing->is_json) {
        printf("%s{\"scene\": ", missing->count ? ",\n  " : "{\"missing\": [\n  ");
        put_json(stdout, scene);
        printf(", \"keys\": ");
        put_json(stdout, keys);
        printf("}");
    } else
        printf("%s lacks %s\n", scene, keys);
    missing->count++;
}

/* Returns 0 if no scene lacks a key, or the exit code. */
static int check_keys(const struct warm *warm) {
    struct missing missing = {warm->is_json, 0};
    int r = hr_files_check_keys(warm->plan, warm->keys, show_missing, &missing);
    if (r < 0) return fail_with_message();
    if (r == 0) return 0;
    if (warm->is_json) printf("\n]}\n");
    fprintf(stderr, "headrace: %d scenes lack keys; nothing was copied\n", r);
    return 1;
}

/* ---- the object ---- */

static void put_result(const struct warm *warm, const struct hr_cached_info *info, double seconds, int is_built) {
    char size[UNITS_BYTES], time[UNITS_BYTES];
    if (warm->is_json) {
        printf("{\"name\": ");
        put_json(stdout, info->name);
        printf(", \"built\": %s, \"files\": %" PRIu64 ", \"arrays\": %" PRIu64 ", \"bytes\": %" PRIu64
               ", \"seconds\": %.3f, \"path\": ",
               is_built ? "true" : "false", warm->totals.file_count, warm->totals.array_count, info->bytes, seconds);
        put_json(stdout, info->path);
        printf(", \"place\": ");
        put_json(stdout, info->place);
        printf("}\n");
    } else
        printf("%s: %" PRIu64 " arrays of %" PRIu64 " files, %s, %s %s; in %s\n", info->name, warm->totals.array_count,
               warm->totals.file_count, in_bytes(info->bytes, size), is_built ? "copied in" : "already there, found in",
               in_time(seconds, time), info->path);
    fflush(stdout);
}

/* Fills the build. Returns the exit code; 0: `*ret_cached` is set. */
static int build_object(const struct warm *warm, hr_cache_build *build, hr_cached **ret_cached) {
    struct progress progress = {
        .name = warm->name, .began_ns = clock_ns(), .shown_ns = clock_ns(), .is_terminal = isatty(STDERR_FILENO)};
    int r = hr_files_fill(warm->plan, build, warm->worker_count, report, &progress);
    end_bar(&progress);
    if (r >= 0) r = hr_cache_build_finish(build, NULL, ret_cached);
    if (r >= 0) return 0;
    if (r == -ECANCELED) {
        hr_cache_build_abandon(build);
        fprintf(stderr, "headrace: stopped; what was copied is kept, run the command again to continue\n");
        return EXIT_INTERRUPTED;
    }
    fail_with_message();
    hr_cache_build_fail(build, hr_error_message(), strlen(hr_error_message()), 1);
    return 1;
}

static void tell_wait(hr_cache_ticket *ticket, const char *name, int64_t *shown_ns) {
    struct hr_cache_builder builder;
    if (clock_ns() - *shown_ns < LOG_S * INT64_C(1000000000)) return;
    *shown_ns = clock_ns();
    hr_cache_ticket_look(ticket, &builder);
    fprintf(stderr, "headrace: %s: waiting for process %" PRIu32 "%s (%s), which builds it%s\n", name, builder.pid,
            builder.is_visible ? "" : " of another container", builder.command,
            builder.is_stopped ? " and is stopped" : "");
}

static int wait_for_object(const struct warm *warm, hr_cache_ticket *ticket, hr_cached **ret_cached,
                           int *ret_is_built) {
    hr_cache_build *build;
    int64_t shown_ns = clock_ns();
    int r;
    while ((r = hr_cache_wait(ticket, clock_ns() + WAIT_NS, ret_cached, &build)) == -ETIMEDOUT) {
        if (is_stopped()) return EXIT_INTERRUPTED;
        tell_wait(ticket, warm->name, &shown_ns);
    }
    if (r < 0) return fail_with_message();
    *ret_is_built = r == HR_CACHE_BUILD;
    return *ret_is_built ? build_object(warm, build, ret_cached) : 0;
}

/* Waits for a signal, then removes the object. */
static int hold(const struct warm *warm, hr_cache *cache, hr_cached *cached) {
    sigset_t blocked, before;
    fprintf(stderr, "headrace: holding %s; Ctrl-C removes it\n", warm->name);
    sigfillset(&blocked);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    while (!is_stopped()) sigsuspend(&before);
    sigprocmask(SIG_SETMASK, &before, NULL);
    int r = hr_cache_remove(cache, warm->name, warm->version, 1);
    hr_cached_detach(cached);
    if (r < 0 && r != -ENOENT) return fail_with_message();
    fprintf(stderr, "headrace: removed %s; processes that have it keep it\n", warm->name);
    return 0;
}

static int warm_object(const struct warm *warm, hr_cache *cache) {
    struct hr_cache_request request = {.name = warm->name,
                                       .version = warm->version,
                                       .stamp = hr_files_plan_stamp(warm->plan),
                                       .format = "files",
                                       .keep = warm->keep};
    struct hr_cached_info info;
    hr_cache_ticket *ticket;
    hr_cached *cached = NULL;
    int64_t began_ns = clock_ns();
    int is_built = 0;
    if (hr_cache_ask(cache, &request, &ticket) < 0) return fail_with_message();
    int code = wait_for_object(warm, ticket, &cached, &is_built);
    hr_cache_ticket_free(ticket);
    if (code) return code;
    hr_cached_look(cached, &info);
    put_result(warm, &info, (double)(clock_ns() - began_ns) / 1e9, is_built);
    if (warm->is_held) return hold(warm, cache, cached);
    hr_cached_detach(cached);
    return 0;
}

/* ---- dry run ---- */

static int show_plan(const struct warm *warm, hr_cache *cache) {
    struct hr_cache_room room;
    char size[UNITS_BYTES], time[UNITS_BYTES];
    int r = hr_cache_look_for_room(cache, warm->name, warm->totals.bytes, warm->keep, &room);
    double seconds =
        (double)warm->totals.bytes / 1.5e9; /* a disk and memory of today; a cold network disk takes longer */
    if (warm->is_json) {
        printf("{\"name\": ");
        put_json(stdout, warm->name);
        printf(", \"files\": %" PRIu64 ", \"arrays\": %" PRIu64 ", \"bytes\": %" PRIu64
               ", \"fits\": %s, \"seconds\": %.1f",
               warm->totals.file_count, warm->totals.array_count, warm->totals.bytes, r < 0 ? "false" : "true",
               seconds);
        printf(", \"folder\": ");
        put_json(stdout, r < 0 ? "" : room.folder);
        printf(", \"place\": ");
        put_json(stdout, r < 0 ? hr_error_message() : room.why);
        printf("}\n");
        return r < 0;
    }
    printf("%s: %" PRIu64 " arrays of %" PRIu64 " files, %s\n", warm->name, warm->totals.array_count,
           warm->totals.file_count, in_bytes(warm->totals.bytes, size));
    if (r < 0) return fail_with_message();
    printf("it would be in %s: %s\nit takes about %s if the files are read at 1.5 GB/s\n", room.folder, room.why,
           in_time(seconds, time));
    return 0;
}

/* ---- the command ---- */

static int parse_keep(const char *text, uint32_t *ret_keep) {
    static const char *const names[] = {"job", "boot", "disk"};
    for (uint32_t i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *ret_keep = i;
            return 0;
        }
    fprintf(stderr, "headrace: --keep is '%s'; give job, boot or disk\n", text);
    return -1;
}

static int run(struct warm *warm, hr_cache *cache) {
    int code = warm->keys ? check_keys(warm) : 0;
    if (code) return code;
    if (warm->is_dry) return show_plan(warm, cache);
    watch_stop_signals();
    return warm_object(warm, cache);
}

int cache_warm(int count, char **words) {
    struct warm warm = {.version = "0", .keep_text = "boot"};
    const struct option options[] = {
        {"--root", &warm.root, NULL},       {"--name", &warm.name, NULL},         {"--version", &warm.version, NULL},
        {"--workers", &warm.workers, NULL}, {"--require-keys", &warm.keys, NULL}, {"--keep", &warm.keep_text, NULL},
        {"--hold", NULL, &warm.is_held},    {"--dry-run", NULL, &warm.is_dry},    {"--json", NULL, &warm.is_json}};
    int others = parse_options("cache warm", count, words, options, sizeof options / sizeof *options);
    if (others == 0 && count)
        fputs("headrace: give files, folders or patterns; see headrace cache warm --help\n", stderr);
    if (others > 0 && !warm.name)
        fputs("headrace: give the object a name: --name NAME; see headrace cache warm --help\n", stderr);
    if (others <= 0 || !warm.name || parse_keep(warm.keep_text, &warm.keep) < 0 ||
        (warm.workers && parse_count(warm.workers, "--workers", &warm.worker_count) < 0))
        return EXIT_USAGE;
    if (hr_cache_check_name(warm.name, warm.version) < 0 ||
        hr_files_plan_new((const char *const *)words, (size_t)others, &warm.plan) < 0)
        return fail_with_message();
    hr_files_plan_look(warm.plan, &warm.totals);
    hr_cache *cache = open_cache(warm.root);
    int code = cache ? run(&warm, cache) : 1;
    hr_cache_close(cache);
    hr_files_plan_free(warm.plan);
    return code;
}
