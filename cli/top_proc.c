/* SPDX-License-Identifier: Apache-2.0 */
/* Looks into /proc and the cache for `headrace top`: processes of workers, the machine, cached objects. */
#define _GNU_SOURCE
#include "cli.h"
#include "top.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <headrace/face/cache_samples.h>
#include <headrace/face/kept.h>

#define S_NS INT64_C(1000000000)
enum {
    LINE_BYTES = 512,
    FIELDS_TO_TIMES = 12 /* in /proc/PID/stat, from the end of the name to the CPU times */
};

/* ---- numbers in texts of the kernel ---- */

bool top_read_number(const char **text, int base, uint64_t *ret_number) {
    const char *digits = *text + strspn(*text, " \t");
    char *end;
    if (!isxdigit((unsigned char)*digits)) return false; /* strtoull takes signs */
    errno = 0;
    uint64_t number = strtoull(digits, &end, base);
    if (end == digits || errno) return false;
    *text = end;
    *ret_number = number;
    return true;
}

bool top_read_field(const char *line, const char *name, int base, uint64_t *ret_number) {
    size_t length = strlen(name);
    const char *rest = line + length;
    return !strncmp(line, name, length) && top_read_number(&rest, base, ret_number);
}

/* ---- workers ---- */

const char *top_read_stat(int pid, char *line, int bytes) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    const char *end = file && fgets(line, bytes, file) ? strrchr(line, ')') : NULL;
    if (file) fclose(file);
    return end;
}

static bool read_cpu_ns(int pid, uint64_t *ret_ns) {
    char line[LINE_BYTES];
    uint64_t user = 0, kernel = 0;
    const char *end = top_read_stat(pid, line, sizeof line);
    for (int i = 0; end && i < FIELDS_TO_TIMES; i++) end = strchr(end + 1, ' ');
    if (!end || !top_read_number(&end, 10, &user) || !top_read_number(&end, 10, &kernel)) return false;
    *ret_ns = (user + kernel) * (uint64_t)(S_NS / sysconf(_SC_CLK_TCK));
    return true;
}

/* How long the main thread has waited for a core; UINT64_MAX: the kernel does not count that. */
static uint64_t read_delay_ns(int pid) {
    char path[64], line[LINE_BYTES];
    uint64_t cpu, delay;
    snprintf(path, sizeof path, "/proc/%d/schedstat", pid);
    FILE *file = fopen(path, "re");
    const char *rest = file && fgets(line, sizeof line, file) ? line : "";
    if (file) fclose(file);
    return top_read_number(&rest, 10, &cpu) && top_read_number(&rest, 10, &delay) ? delay : UINT64_MAX;
}

/* RssAnon has the pages that are no file's. smaps_rollup would tell those that are shared with the parent from the
 * others, but takes the lock of the job's memory for a quarter of a second. */
static bool read_private(int pid, uint64_t *ret_bytes) {
    char path[64], line[LINE_BYTES];
    uint64_t kib = 0;
    bool is_found = false;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    while (file && !is_found && fgets(line, sizeof line, file)) is_found = top_read_field(line, "RssAnon:", 10, &kib);
    if (file) fclose(file);
    *ret_bytes = kib * 1024;
    return is_found;
}

static void look_at_process(struct top_worker *worker, int64_t now_ns) {
    int pid = (int)worker->look.status.pid;
    if (pid != worker->pid) worker->first_ns = 0; /* another process */
    worker->pid = pid;
    worker->is_known = pid > 0 && read_private(pid, &worker->private_bytes);
    if (!worker->is_known) return;
    if (!worker->first_ns) {
        worker->first_ns = now_ns;
        worker->first_bytes = worker->private_bytes;
    }
    struct top_worker_mark *last = &worker->marks[(worker->mark_count + TOP_HISTORY - 1) % TOP_HISTORY];
    last->has_cpu = read_cpu_ns(pid, &last->cpu_ns);
    last->delay_ns = read_delay_ns(pid);
}

void top_look_at_workers(struct top *top, struct top_loader *loader) {
    if (!loader->is_same_namespace || loader->is_over) return;
    for (uint32_t i = 0; i < loader->look.worker_count; i++) look_at_process(&loader->workers[i], top->now_ns);
}

/* ---- the machine ---- */

static void look_at_cores(struct top *top) {
    char line[LINE_BYTES];
    uint64_t parts[8] = {0}, all = 0;
    FILE *file = fopen("/proc/stat", "re");
    bool is_read = file && fgets(line, sizeof line, file) && !strncmp(line, "cpu ", 4);
    const char *rest = line + 4;
    for (int i = 0; i < 8 && is_read; i++) is_read = top_read_number(&rest, 10, &parts[i]);
    if (file) fclose(file);
    if (!is_read) return;
    for (int i = 0; i < 8; i++) all += parts[i];
    uint64_t busy = all - parts[3] - parts[4]; /* without idle and waiting for disks */
    top->cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    if (top->cpu_all && all > top->cpu_all && busy >= top->cpu_busy)
        top->cores_used = top->cores * (double)(busy - top->cpu_busy) / (double)(all - top->cpu_all);
    top->cpu_all = all;
    top->cpu_busy = busy;
}

static void look_at_memory(struct top *top) {
    char line[LINE_BYTES];
    uint64_t total = 0, available = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        top_read_field(line, "MemTotal:", 10, &total);
        if (top_read_field(line, "MemAvailable:", 10, &available)) break;
    }
    if (file) fclose(file);
    top->memory_total = total * 1024;
    top->memory_used = total > available ? (total - available) * 1024 : 0;
}

void top_look_at_machine(struct top *top) {
    look_at_cores(top);
    look_at_memory(top);
}

/* ---- the fetcher of remote objects ---- */

static double per_second(uint64_t before, uint64_t now, double seconds) {
    return seconds > 0 && now > before ? (double)(now - before) / seconds : 0;
}

static double share_of_hits(const struct top_fetcher *before, const struct top_fetcher *now) {
    uint64_t hits = now->hit_count - before->hit_count, waits = now->wait_count - before->wait_count;
    if (now->hit_count < before->hit_count || now->wait_count < before->wait_count) return -1; /* a loader has ended */
    return hits + waits ? (double)hits / (double)(hits + waits) : -1;
}

void top_look_at_fetcher(struct top *top) {
    struct top_fetcher before = top->fetcher, *now = &top->fetcher;
    *now = (struct top_fetcher){.hits = -1};
    for (uint32_t i = 0; i < top->count; i++) {
        struct hr_network_look sum = top_sum_network(top->now_ns, &top->loaders[i]);
        now->hit_count += sum.hit_count;
        now->wait_count += sum.wait_count;
    }
    now->is_there =
        hr_kept_folder(now->folder, sizeof now->folder) == 0 && hr_fetcher_peek(now->folder, &now->now) == 0;
    if (!now->is_there) return;
    now->hits = share_of_hits(&before, now);
    if (!before.is_there || before.now.began_ns != now->now.began_ns) return;
    double seconds = (double)(now->now.at_ns - before.now.at_ns) / 1e9;
    now->fetched = per_second(before.now.fetched_bytes, now->now.fetched_bytes, seconds);
    now->requests = per_second(before.now.requests, now->now.requests, seconds);
    now->retries = per_second(before.now.retries, now->now.retries, seconds);
}

/* ---- the cache ---- */

struct listing {
    struct top *top;
    struct top_cached *earlier;
    uint32_t earlier_count, room;
    double seconds; /* since the look before */
};

static void count_hits(struct listing *listing, struct top_cached *cached) {
    for (uint32_t i = 0; i < listing->earlier_count; i++) {
        const struct top_cached *earlier = &listing->earlier[i];
        if (strcmp(earlier->name, cached->name) != 0 || listing->seconds <= 0 || cached->hits < earlier->hits) continue;
        cached->hits_per_s = (double)(cached->hits - earlier->hits) / listing->seconds;
    }
}

static int list_cached(void *context, const struct hr_cache_entry *entry) {
    struct listing *listing = context;
    struct top *top = listing->top;
    struct hr_samples_report report;
    if (entry->state != HR_CACHE_READY || !entry->claim_count) return 0;
    if (top->cached_count == listing->room) {
        uint32_t room = listing->room ? 2 * listing->room : 16;
        struct top_cached *grown = realloc(top->cached, room * sizeof *grown);
        if (!grown) return -1;
        top->cached = grown;
        listing->room = room;
    }
    struct top_cached *cached = &top->cached[top->cached_count++];
    *cached = (struct top_cached){.bytes = entry->info.bytes, .jobs = entry->claim_count};
    snprintf(cached->name, sizeof cached->name, "%s", entry->info.name);
    const char *slash = strrchr(entry->info.path, '/');
    snprintf(cached->place, sizeof cached->place, "%.*s", slash ? (int)(slash - entry->info.path) : 0,
             entry->info.path);
    if (strcmp(entry->info.format, HR_SAMPLES_FORMAT) != 0 || hr_samples_peek(entry->info.path, &report) < 0) return 0;
    cached->is_table = true;
    cached->budget_bytes = report.budget_bytes;
    cached->used_bytes = report.used_bytes;
    cached->hits = report.hits;
    count_hits(listing, cached);
    return 0;
}

void top_look_at_cache(struct top *top) {
    struct listing listing = {.top = top,
                              .earlier = top->cached,
                              .earlier_count = top->cached_count,
                              .seconds = (double)(top->now_ns - top->cached_ns) / 1e9};
    bool is_missing;
    hr_cache *cache = find_cache(NULL, &is_missing);
    top->cached = NULL;
    top->cached_count = 0;
    top->cached_ns = top->now_ns;
    if (cache) hr_cache_list(cache, list_cached, &listing);
    hr_cache_close(cache);
    free(listing.earlier);
}
