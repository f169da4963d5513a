/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the picture of `headrace top`. */
#define _GNU_SOURCE
#include "options.h"
#include "top.h"

#include <headrace/face/show.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 1024, NAME_COLUMNS = 14 };

struct picture {
    FILE *to;
    struct top *top;
    struct top_view *view;
    bool is_terminal;
    int lines; /* that are left */
    bool has_line;
};

/* Writes a line, cut to the width. On a terminal the rest of the line is cleared. */
__attribute__((format(printf, 3, 4))) static void line(struct picture *picture, bool is_chosen, const char *format,
                                                       ...) {
    char text[LINE_BYTES];
    va_list arguments;
    if (picture->lines-- <= 0) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    top_cut(text, (size_t)picture->view->columns);
    for (size_t end = strlen(text); end && text[end - 1] == ' ';) text[--end] = '\0';
    if (picture->is_terminal) {
        fprintf(picture->to, "%s%s%s%s\x1b[K", picture->has_line ? "\r\n" : "", is_chosen ? "\x1b[7m" : "", text,
                is_chosen ? "\x1b[0m" : "");
    } else
        fprintf(picture->to, "%s\n", text);
    picture->has_line = true;
}

static void draw_head(struct picture *picture) {
    struct top *top = picture->top;
    char host[64] = "?", clean[64], clock[16] = "", used[UNITS_BYTES], all[UNITS_BYTES], cores[48] = "";
    time_t now = top_wall_s();
    struct tm local;
    uint32_t workers = 0;
    for (uint32_t i = 0; i < top->count; i++)
        workers += top->loaders[i].is_over ? 0 : top->loaders[i].look.worker_count;
    gethostname(host, sizeof host - 1);
    top_clean(host, clean, sizeof clean);
    if (localtime_r(&now, &local)) strftime(clock, sizeof clock, "%H:%M:%S", &local);
    if (top->cores > 0) snprintf(cores, sizeof cores, "cores %.1f/%.0f  ", top->cores_used, top->cores);
    line(picture, false, "headrace top  %s %s%s  %u loader%s  %u worker%s  %smem %s/%s", clean, clock,
         picture->view->is_frozen ? " (frozen)" : "", top->count, top->count == 1 ? "" : "s", workers,
         workers == 1 ? "" : "s", cores, top_in_size((double)top->memory_used, used),
         top_in_size((double)top->memory_total, all));
}

static void draw_loader(struct picture *picture, const struct top_loader *loader, bool is_chosen) {
    const struct hr_arena_look *look = &loader->look;
    struct top_rates rates = top_rates_of(picture->top, loader);
    char name[HR_LOOK_NAME_BYTES], step[32], samples[32], rank[24] = "-", queue[32] = "-", mb[32] = "-";
    top_clean(look->name, name, sizeof name);
    size_t wide = top_columns_of(name);
    const char *shown = name;
    while (wide > NAME_COLUMNS && wide-- && *shown) do
            shown++;
        while (((unsigned char)*shown & 0xC0) == 0x80);
    if (look->rank >= 0 && look->world_size > 1) snprintf(rank, sizeof rank, "%d/%d", look->rank, look->world_size);
    if (look->worker_count) {
        snprintf(queue, sizeof queue, "%u/%u", look->queue_count, look->queue_room);
        snprintf(mb, sizeof mb, "%.0f", rates.bytes / 1e6);
    }
    line(picture, is_chosen, "%c %3.0f   %s%*s %6s %5" PRIu64 " %8s %7.1f %8s %5s %5s  %s", is_chosen ? '>' : ' ',
         100 * rates.wait, shown, (int)(NAME_COLUMNS > wide ? NAME_COLUMNS - wide : 0), "", rank, look->epoch,
         top_in_count(look->step, step), rates.batches, top_in_count((uint64_t)(rates.samples + 0.5), samples), mb,
         queue, top_state_of(picture->top, loader));
}

/* A line for the ranks of one job, after its last row. */
static void draw_job(struct picture *picture, const struct top_loader *loader) {
    int behind;
    uint64_t steps;
    double wait = top_job_wait(picture->top, loader, &behind, &steps);
    char late[64] = "";
    if (wait < 0) return;
    if (behind >= 0) snprintf(late, sizeof late, "; rank %d is %" PRIu64 " steps behind", behind, steps);
    line(picture, false, "       job: %.0f %% (slowest rank of each step)%s", 100 * wait, late);
}

static bool is_last_of_job(const struct top *top, uint32_t row) {
    const struct top_loader *loader = &top->loaders[row];
    if (loader->look.world_size < 2 || loader->is_over) return false;
    for (uint32_t i = row + 1; i < top->count; i++)
        if (strcmp(top->loaders[i].look.name, loader->look.name) == 0) return false;
    return true;
}

/* The rows around the chosen one, as many as there is room for. */
static void draw_loaders(struct picture *picture, uint32_t rows) {
    struct top *top = picture->top;
    uint32_t first = picture->view->chosen >= rows ? picture->view->chosen - rows + 1 : 0;
    line(picture, false, "WAIT%%  LOADER          RANK EPOCH     STEP BATCH/S SAMPLE/S  MB/S QUEUE  STATE");
    for (uint32_t i = first; i < top->count && i < first + rows; i++) {
        draw_loader(picture, &top->loaders[i], i == picture->view->chosen);
        if (is_last_of_job(top, i)) draw_job(picture, &top->loaders[i]);
    }
    if (top->count > rows) line(picture, false, "       %u of %u loaders", rows, top->count);
}

/* ---- the chosen loader ---- */

static void draw_about(struct picture *picture, const struct top_loader *loader) {
    char name[HR_LOOK_NAME_BYTES], age[UNITS_BYTES], rank[32] = "", died[64] = "", verdict[320], text[640];
    top_clean(loader->look.name, name, sizeof name);
    if (loader->look.world_size > 1) snprintf(rank, sizeof rank, " rank %d", loader->look.rank);
    if (loader->look.restarts)
        snprintf(died, sizeof died, " (workers died and were replaced: %" PRIu64 ")", loader->look.restarts);
    top_explain(picture->top, loader, verdict, sizeof verdict);
    top_in_hours((double)(picture->top->now_ns - loader->look.opened_ns) / 1e9, age);
    int length = snprintf(text, sizeof text, "%s%s, pid %d, %s%s: %s", name, rank, loader->pid, age, died, verdict);
    /* In lines, between words. */
    for (char *at = text; length > 0 && *at;) {
        size_t width = (size_t)picture->view->columns, end = strlen(at);
        if (end > width)
            for (end = width; end && at[end] != ' ';) end--;
        if (!end) end = strlen(at);
        line(picture, false, "%.*s", (int)end, at);
        at += end;
        while (*at == ' ') at++;
    }
}

static const char *doing_of(const struct top_worker *worker, bool is_parked) {
    static const char *const doing[] = {"waits", "fetch", "collate"};
    const struct hr_worker_status *status = &worker->look.status;
    if (is_parked && status->phase == HR_PHASE_WAIT) return "parked";
    if (worker->look.network.since_ns && status->phase != HR_PHASE_WAIT) return "network";
    return status->pid ? doing[status->phase] : "starts";
}

static void draw_worker(struct picture *picture, const struct top_loader *loader, uint32_t number, int64_t now_ns) {
    const struct top_worker *worker = &loader->workers[number];
    const struct hr_worker_status *status = &worker->look.status;
    struct top_worker_rates rates = top_worker_rates_of(worker);
    char since[UNITS_BYTES] = "-", index[32] = "-", memory[UNITS_BYTES] = "-", amount[UNITS_BYTES],
         grown[UNITS_BYTES + 2] = "-", cpu[16] = "-";
    if (status->phase_since_ns) top_in_short((double)(now_ns - status->phase_since_ns) / 1e9, since);
    if (worker->look.index != HR_NO_SAMPLE) top_in_count(worker->look.index, index);
    if (worker->is_known) {
        top_in_size((double)worker->private_bytes, memory);
        top_in_size(rates.growth, amount);
        snprintf(grown, sizeof grown, "%s/h", amount);
        snprintf(cpu, sizeof cpu, "%.0f", 100 * rates.cpu);
    }
    line(picture, false, "%7u %5u %-7s %5s %9s %7.1f %5.0f %4s %8s %7s %6u", number, status->pid,
         doing_of(worker, number >= loader->look.used_count), since, index, rates.batches, 100 * rates.busy, cpu,
         memory, rates.growth > 0 ? grown : "-", status->starts);
}

static void draw_times(struct picture *picture, const struct top_loader *loader) {
    struct hr_times samples, collates;
    char worst[UNITS_BYTES], index[48] = "", number[32];
    top_sum_times(loader, &samples, &collates);
    if (!samples.sum_ns) return;
    if (samples.worst_index != HR_NO_SAMPLE)
        snprintf(index, sizeof index, " (index %s)", top_in_count(samples.worst_index, number));
    line(picture, false, " sample p50 %.3g ms  p99 %.3g ms  worst %s%s   collate p50 %.3g ms",
         hr_times_quantile_ns(samples.buckets, 0.5) / 1e6, hr_times_quantile_ns(samples.buckets, 0.99) / 1e6,
         top_in_short((double)samples.worst_ns / 1e9, worst), index, hr_times_quantile_ns(collates.buckets, 0.5) / 1e6);
}

static void draw_chosen(struct picture *picture, struct top_loader *loader, uint32_t rows) {
    uint32_t count = loader->is_over ? 0 : loader->look.worker_count;
    line(picture, false, "%.*s", picture->view->columns > 200 ? 200 : picture->view->columns,
         "----------------------------------------------------------------------------------------------------"
         "----------------------------------------------------------------------------------------------------");
    draw_about(picture, loader);
    if (count)
        line(picture, false, " WORKER   PID DOING     FOR    SAMPLE BATCH/S BUSY%% CPU%%  PRIVATE  GROWTH STARTS");
    for (uint32_t i = 0; i < count && i < rows; i++) draw_worker(picture, loader, i, picture->top->now_ns);
    if (count > rows) line(picture, false, "        %u of %u workers", rows, count);
    draw_times(picture, loader);
}

static void draw_cached(struct picture *picture) {
    char size[UNITS_BYTES], name[64], place[128], fill[16], hits[16];
    for (uint32_t i = 0; i < picture->top->cached_count; i++) {
        const struct top_cached *cached = &picture->top->cached[i];
        if (i == 0) line(picture, false, "CACHE             SIZE   FILL  HITS/S  PROC  PLACE");
        top_clean(cached->name, name, sizeof name);
        top_clean(cached->place, place, sizeof place);
        snprintf(fill, sizeof fill, "-");
        snprintf(hits, sizeof hits, "-");
        if (cached->is_table && cached->budget_bytes) {
            snprintf(fill, sizeof fill, "%.0f %%", 100.0 * (double)cached->used_bytes / (double)cached->budget_bytes);
            snprintf(hits, sizeof hits, "%.0f", cached->hits_per_s);
        }
        line(picture, false, "%-15.15s %6s %6s %7s %5u  %s", name, top_in_size((double)cached->bytes, size), fill, hits,
             cached->jobs, place);
    }
}

static void draw_fetcher(struct picture *picture) {
    const struct top_fetcher *fetcher = &picture->top->fetcher;
    char kept[UNITS_BYTES], quota[UNITS_BYTES], folder[sizeof fetcher->folder], pid[24], hits[16] = "-";
    if (!fetcher->is_there) return;
    if (fetcher->hits >= 0) snprintf(hits, sizeof hits, "%.0f %%", 100 * fetcher->hits);
    snprintf(pid, sizeof pid, "pid %" PRIu64, fetcher->now.pid);
    top_clean(fetcher->folder, folder, sizeof folder);
    line(picture, false, "FETCHER           MB/S   REQ/S RETRY/S  HITS   KEPT  QUOTA  PLACE");
    line(picture, false, "%-15.15s %6.1f %7.0f %7.1f %5s %6s %6s  %s", pid, fetcher->fetched / 1e6, fetcher->requests,
         fetcher->retries, hits, top_in_size((double)fetcher->now.kept_bytes, kept),
         top_in_size((double)fetcher->now.quota_bytes, quota), folder);
}

bool top_is_empty(const struct top *top) {
    return !top->count && !top->refused && !top->other_versions && !top->damaged;
}

const char *top_why_empty(const struct top *top) {
    if (!top->pid_count) return "no loader of headrace runs here";
    char line[1024];
    bool is_single = top->pid_count == 1;
    for (int i = 0; i < top->pid_count; i++)
        if (top_read_stat(top->pids[i], line, sizeof line))
            return is_single ? "this process has no loader that runs" : "these processes have no loader that runs";
    return is_single ? "there is no such process (any more)" : "there are no such processes (any more)";
}

/* One line for each reason why something is not in the picture. */
static void draw_missing(struct picture *picture) {
    const struct top *top = picture->top;
    if (top->refused)
        line(picture, false, "%u loader%s cannot be read: %s", top->refused, top->refused == 1 ? "" : "s",
             top->refused_users ? "of other users; run headrace top as root"
                                : "not dumpable, or with other capabilities; run headrace top as root");
    if (top->other_versions)
        line(picture, false, "%u loader%s of another version of headrace; use the headrace of that environment",
             top->other_versions, top->other_versions == 1 ? " is" : "s are");
    if (top->damaged) {
        char problem[sizeof top->problem];
        top_clean(top->problem, problem, sizeof problem);
        line(picture, false, "%u damaged: %s", top->damaged, problem);
    }
    if (top_is_empty(top)) line(picture, false, "%s", top_why_empty(top));
}

static void draw_help(struct picture *picture) {
    static const char *const texts[] = {
        "up, down  choose a loader              enter  only the chosen loader, and back",
        "o         sort by wait, name, rate     space  freeze the picture",
        "s         stacks of the workers        ?      this text            q  quit",
        "WAIT% is the share of the time in which the training loop is inside next().",
        "A GPU works on meanwhile, so it is at most what faster loading could save."};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) line(picture, false, "%s", texts[i]);
}

static void draw_text(struct picture *picture, const char *text) {
    while (*text && picture->lines > 0) {
        size_t length = strcspn(text, "\n");
        char raw[LINE_BYTES], clean[LINE_BYTES];
        snprintf(raw, sizeof raw, "%.*s", (int)(length < sizeof raw ? length : sizeof raw - 1), text);
        top_clean(raw, clean, sizeof clean);
        line(picture, false, "%s", clean);
        text += length + (text[length] == '\n');
    }
}

static void draw_parts(struct picture *picture) {
    struct top_view *view = picture->view;
    struct top_loader *chosen = top_chosen(picture->top, view);
    uint32_t all = (uint32_t)(picture->is_terminal ? (view->lines > 10 ? view->lines : 10) : 100000);
    uint32_t rows = view->has_detail ? 1 : all / 3;
    draw_head(picture);
    draw_missing(picture);
    if (!picture->top->count) return;
    draw_loaders(picture, rows > picture->top->count ? picture->top->count : rows);
    if (view->asks_stacks)
        line(picture, true, "The signal for stacks interrupts system calls of the workers. Write them? y/n");
    if (!chosen) return;
    uint32_t others = 6 + (picture->top->fetcher.is_there ? 2 : 0) +
                      (picture->top->cached_count ? 1 + picture->top->cached_count : 0);
    uint32_t workers = picture->lines > (int)others ? (uint32_t)picture->lines - others : 1;
    draw_chosen(picture, chosen, workers);
    draw_fetcher(picture);
    draw_cached(picture);
}

char *top_draw(struct top *top, struct top_view *view, bool is_terminal, size_t *ret_bytes) {
    char *text = NULL;
    struct picture picture = {.to = open_memstream(&text, ret_bytes),
                              .top = top,
                              .view = view,
                              .is_terminal = is_terminal,
                              .lines = is_terminal ? view->lines : 1 << 20};
    if (!picture.to) return NULL;
    if (is_terminal) fputs("\x1b[H", picture.to);
    if (view->shows_help)
        draw_help(&picture);
    else if (view->stacks)
        draw_text(&picture, view->stacks);
    else
        draw_parts(&picture);
    if (is_terminal) fputs("\x1b[J", picture.to);
    fclose(picture.to);
    return text;
}

/* ---- the order of rows ---- */

static const struct top *sorted_top;
static int sorted_order;

static int compare(const void *a, const void *b) {
    const struct top_loader *one = a, *other = b;
    int by_name = strcmp(one->look.name, other->look.name);
    if (!by_name) by_name = one->look.rank - other->look.rank;
    if (!by_name) by_name = one->pid - other->pid;
    if (!by_name) by_name = one->look.loader < other->look.loader ? -1 : 1;
    struct top_rates first = top_rates_of(sorted_top, one), second = top_rates_of(sorted_top, other);
    double difference = sorted_order == 1 ? second.wait - first.wait : second.batches - first.batches;
    if (sorted_order == 0 || (difference < 0.001 && difference > -0.001)) return by_name;
    return difference < 0 ? -1 : 1;
}

void top_sort(struct top *top, const struct top_view *view) {
    sorted_top = top;
    sorted_order = view->order;
    if (top->count) qsort(top->loaders, top->count, sizeof *top->loaders, compare);
}

/* The chosen loader stays chosen when rows move. */
struct top_loader *top_chosen(struct top *top, struct top_view *view) {
    if (!top->count) return NULL;
    for (uint32_t i = 0; view->chosen_pid && i < top->count; i++)
        if (top->loaders[i].pid == view->chosen_pid && top->loaders[i].look.loader == view->chosen_loader)
            view->chosen = i;
    if (view->chosen >= top->count) view->chosen = top->count - 1;
    struct top_loader *chosen = &top->loaders[view->chosen];
    view->chosen_pid = chosen->pid;
    view->chosen_loader = chosen->look.loader;
    return chosen;
}
