/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of `headrace top` for programs: JSON, and metrics in the format of OpenMetrics. */
#define _GNU_SOURCE
#include "options.h"
#include "top.h"

#include <headrace/face/show.h>

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

enum { VERSION = 1, FIRST_BUCKET = 10 /* about 1 us */, LAST_BUCKET = 36 /* about a minute */ };

static const char *const phases[] = {"wait", "fetch", "collate"};

static double in_s(uint64_t ns) {
    return (double)ns / 1e9;
}

/* ---- metrics ---- */

/* Quotes, backslashes and newlines are escaped; what a terminal could not show becomes '?'. */
static void put_label(FILE *to, const char *name, const char *text) {
    char one[2] = "", clean[8];
    fprintf(to, "%s=\"", name);
    for (const char *at = text; *at; at++) {
        if (*at == '\\' || *at == '"')
            fprintf(to, "\\%c", *at);
        else if (*at == '\n')
            fputs("\\n", to);
        else if ((unsigned char)*at >= 0x80)
            fputc(*at, to); /* the text was cleaned, apart from newlines */
        else {
            one[0] = *at;
            top_clean(one, clean, sizeof clean);
            fputs(clean, to);
        }
    }
    fputc('"', to);
}

/* Cleans a name, but leaves its newlines, which can be escaped. */
static void clean_name(const char *name, char *ret_name, size_t bytes) {
    top_clean(name, ret_name, bytes);
    if (strlen(name) != strlen(ret_name)) return;
    for (size_t i = 0; name[i]; i++)
        if (name[i] == '\n') ret_name[i] = '\n';
}

static void put_labels(FILE *to, const struct top_loader *loader, int worker) {
    char name[HR_LOOK_NAME_BYTES];
    clean_name(loader->look.name, name, sizeof name);
    fprintf(to, "{pid=\"%d\",id=\"%u\",", loader->pid, loader->look.loader);
    put_label(to, "loader", name);
    fprintf(to, ",rank=\"%d\"", loader->look.rank < 0 ? 0 : loader->look.rank);
    if (worker >= 0) fprintf(to, ",worker=\"%d\"", worker);
}

static void put_family(FILE *to, const char *name, const char *type, const char *help) {
    fprintf(to, "# TYPE headrace_%s %s\n# HELP headrace_%s %s\n", name, type, name, help);
}

/* A number of a loader: those that are counts have the suffix _total. */
struct number {
    const char *name, *help;
    size_t at; /* in struct hr_arena_look */
    bool is_count, is_ns, needs_workers;
};

#define NUMBER(name, field, is_count, is_ns, needs_workers, help)                                                      \
    { name, help, offsetof(struct hr_arena_look, field), is_count, is_ns, needs_workers }

static const struct number numbers[] = {
    NUMBER("batches", batches, true, false, false, "Batches that the training loop has."),
    NUMBER("samples", samples, true, false, false, "Samples in these batches."),
    NUMBER("delivered_bytes", bytes, true, false, true, "Bytes of these batches in shared memory."),
    NUMBER("batch_errors", errors, true, false, false, "Batches that came as an exception."),
    NUMBER("wait_seconds", inside_ns, true, true, false,
           "Time of the training loop inside next(), without first batches of epochs."),
    NUMBER("start_seconds", start_ns, true, true, false, "Time until the first batches of epochs."),
    NUMBER("worker_restarts", restarts, true, false, true, "Workers that died and were replaced."),
    NUMBER("bad_samples", bad_samples, true, false, true, "Samples that were left out or replaced."),
    NUMBER("arena_used_bytes", used_bytes, false, false, true, "Shared memory that is in use."),
};

static uint64_t value_of(const struct number *number, const struct hr_arena_look *look) {
    uint64_t value;
    memcpy(&value, (const char *)look + number->at, sizeof value);
    return value;
}

static void put_value(FILE *to, const struct number *number, const struct hr_arena_look *look) {
    uint64_t value = value_of(number, look);
    if (number->is_ns)
        fprintf(to, "%.6f", in_s(value));
    else
        fprintf(to, "%" PRIu64, value);
}

static void put_number(FILE *to, const struct top *top, const struct number *number) {
    put_family(to, number->name, number->is_count ? "counter" : "gauge", number->help);
    for (uint32_t i = 0; i < top->count; i++) {
        const struct top_loader *loader = &top->loaders[i];
        if (number->needs_workers && !loader->look.worker_count) continue;
        fprintf(to, "headrace_%s%s", number->name, number->is_count ? "_total" : "");
        put_labels(to, loader, -1);
        fputs("} ", to);
        put_value(to, number, &loader->look);
        fputc('\n', to);
    }
}

static void put_info(FILE *to, const struct top *top) {
    put_family(to, "loader_info", "gauge", "The loaders of this machine.");
    for (uint32_t i = 0; i < top->count; i++) {
        fputs("headrace_loader_info", to);
        put_labels(to, &top->loaders[i], -1);
        fprintf(to, ",world_size=\"%d\",workers=\"%u\"} 1\n", top->loaders[i].look.world_size,
                top->loaders[i].look.worker_count);
    }
    put_family(to, "active_workers", "gauge", "Workers that get tasks; with num_workers=auto, not all do.");
    for (uint32_t i = 0; i < top->count; i++) {
        if (!top->loaders[i].look.worker_count) continue;
        fputs("headrace_active_workers", to);
        put_labels(to, &top->loaders[i], -1);
        fprintf(to, "} %u\n", top->loaders[i].look.used_count);
    }
    put_family(to, "queue_batches", "gauge", "Batches that are ready and that the loop does not have yet.");
    for (uint32_t i = 0; i < top->count; i++) {
        if (!top->loaders[i].look.worker_count) continue;
        fputs("headrace_queue_batches", to);
        put_labels(to, &top->loaders[i], -1);
        fprintf(to, "} %u\n", top->loaders[i].look.queue_count);
    }
}

static void put_busy(FILE *to, const struct top *top) {
    put_family(to, "worker_busy_seconds", "counter", "Time of a worker in the dataset and in collating.");
    for (uint32_t i = 0; i < top->count; i++)
        for (uint32_t worker = 0; worker < top->loaders[i].look.worker_count; worker++)
            for (int phase = HR_PHASE_FETCH; phase < HR_PHASE_COUNT; phase++) {
                fputs("headrace_worker_busy_seconds_total", to);
                put_labels(to, &top->loaders[i], (int)worker);
                fprintf(to, ",phase=\"%s\"} %.6f\n", phases[phase],
                        in_s(top->loaders[i].workers[worker].look.status.phase_ns[phase]));
            }
}

/* Writes how the processes of loaders wait for remote objects. */
static void put_network(FILE *to, const struct top *top) {
    static const struct {
        const char *name, *help;
    } families[] = {{"network_seconds", "Time in which processes of a loader waited for remote objects."},
                    {"remote_hits", "Reads of remote objects that found all bytes on this machine."},
                    {"remote_waits", "Reads of remote objects that waited for the fetcher."}};
    for (size_t k = 0; k < sizeof families / sizeof *families; k++) {
        put_family(to, families[k].name, "counter", families[k].help);
        for (uint32_t i = 0; i < top->count; i++) {
            struct hr_network_look sum = top_sum_network(top->now_ns, &top->loaders[i]);
            fprintf(to, "headrace_%s_total", families[k].name);
            put_labels(to, &top->loaders[i], -1);
            if (k == 0)
                fprintf(to, "} %.6f\n", in_s(sum.wait_ns));
            else
                fprintf(to, "} %" PRIu64 "\n", k == 1 ? sum.hit_count : sum.wait_count);
        }
    }
}

/* A number of the fetcher: those that are counts have the suffix _total. */
static const struct fetched {
    const char *name, *help;
    size_t at; /* in struct hr_fetcher_figures */
    bool is_count;
} fetched[] = {
    {"fetcher_bytes", "Bytes that the fetcher has got from servers.",
     offsetof(struct hr_fetcher_figures, fetched_bytes), true},
    {"fetcher_sent_bytes", "Bytes that the fetcher has sent to readers, because they are not kept.",
     offsetof(struct hr_fetcher_figures, sent_bytes), true},
    {"fetcher_requests", "Requests that the fetcher has sent to servers.",
     offsetof(struct hr_fetcher_figures, requests), true},
    {"fetcher_retries", "Requests among these that were made again.", offsetof(struct hr_fetcher_figures, retries),
     true},
    {"fetcher_kept_bytes", "Bytes of remote objects that are kept on the disk.",
     offsetof(struct hr_fetcher_figures, kept_bytes), false},
    {"fetcher_quota_bytes", "The limit for these.", offsetof(struct hr_fetcher_figures, quota_bytes), false},
};
enum { FETCHED = sizeof fetched / sizeof *fetched };

static uint64_t figure_of(const struct top *top, const struct fetched *one) {
    uint64_t value;
    memcpy(&value, (const char *)&top->fetcher.now + one->at, sizeof value);
    return value;
}

static void put_fetcher(FILE *to, const struct top *top) {
    for (int i = 0; i < FETCHED && top->fetcher.is_there; i++) {
        put_family(to, fetched[i].name, fetched[i].is_count ? "counter" : "gauge", fetched[i].help);
        fprintf(to, "headrace_%s%s{pid=\"%" PRIu64 "\"} %" PRIu64 "\n", fetched[i].name,
                fetched[i].is_count ? "_total" : "", top->fetcher.now.pid, figure_of(top, &fetched[i]));
    }
}

static void put_fetcher_json(FILE *to, const struct top *top) {
    const struct top_fetcher *fetcher = &top->fetcher;
    if (!fetcher->is_there) {
        fputs("null", to);
        return;
    }
    fprintf(to, "{\"pid\": %" PRIu64 ", \"bytes_per_s\": %.0f, \"requests_per_s\": %.3f, \"retries_per_s\": %.3f",
            fetcher->now.pid, fetcher->fetched, fetcher->requests, fetcher->retries);
    if (fetcher->hits < 0)
        fputs(", \"hits\": null", to);
    else
        fprintf(to, ", \"hits\": %.4f", fetcher->hits);
    for (int i = 0; i < FETCHED; i++)
        fprintf(to, ", \"%s%s\": %" PRIu64, fetched[i].name, fetched[i].is_count ? "_total" : "",
                figure_of(top, &fetched[i]));
    fputs(", \"place\": ", to);
    put_json(to, fetcher->folder);
    fputc('}', to);
}

static void put_histogram(FILE *to, const struct top_loader *loader) {
    struct hr_times samples, collates;
    uint64_t seen = 0;
    top_sum_times(loader, &samples, &collates);
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) {
        seen += samples.buckets[i];
        if (i < FIRST_BUCKET || i > LAST_BUCKET) continue;
        fputs("headrace_sample_seconds_bucket", to);
        put_labels(to, loader, -1);
        fprintf(to, ",le=\"%.9g\"} %" PRIu64 "\n", in_s(UINT64_C(1) << (i + 1)), seen);
    }
    fputs("headrace_sample_seconds_bucket", to);
    put_labels(to, loader, -1);
    fprintf(to, ",le=\"+Inf\"} %" PRIu64 "\nheadrace_sample_seconds_count", seen);
    put_labels(to, loader, -1);
    fprintf(to, "} %" PRIu64 "\nheadrace_sample_seconds_sum", seen);
    put_labels(to, loader, -1);
    fprintf(to, "} %.6f\n", in_s(samples.sum_ns));
}

static void put_cache(FILE *to, const struct top *top) {
    char name[sizeof top->cached->name];
    put_family(to, "cache_hits", "counter", "Reads of a sample that was in the cache.");
    for (uint32_t i = 0; i < top->cached_count; i++) {
        if (!top->cached[i].is_table) continue;
        clean_name(top->cached[i].name, name, sizeof name);
        fputs("headrace_cache_hits_total{", to);
        put_label(to, "cache", name);
        fprintf(to, "} %" PRIu64 "\n", top->cached[i].hits);
    }
    put_family(to, "cache_bytes", "gauge", "Size of an object of the cache that processes have.");
    for (uint32_t i = 0; i < top->cached_count; i++) {
        clean_name(top->cached[i].name, name, sizeof name);
        fputs("headrace_cache_bytes{", to);
        put_label(to, "cache", name);
        fprintf(to, "} %" PRIu64 "\n", top->cached[i].bytes);
    }
}

void top_put_metrics(FILE *to, struct top *top) {
    put_info(to, top);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) put_number(to, top, &numbers[i]);
    put_busy(to, top);
    put_family(to, "sample_seconds", "histogram", "Time that the workers took for a sample.");
    for (uint32_t i = 0; i < top->count; i++)
        if (top->loaders[i].look.worker_count) put_histogram(to, &top->loaders[i]);
    put_network(to, top);
    put_fetcher(to, top);
    put_cache(to, top);
    put_family(to, "refused_loaders", "gauge", "Loaders that this process may not read.");
    fprintf(to, "headrace_refused_loaders %u\n# EOF\n", top->refused);
}

/* ---- JSON ---- */

static const char *phase_of(const struct top_worker *worker) {
    const struct hr_worker_status *status = &worker->look.status;
    bool is_waiting = worker->look.network.since_ns && status->phase != HR_PHASE_WAIT;
    return is_waiting ? "network" : phases[status->phase];
}

static void put_worker_json(FILE *to, const struct top_worker *worker, uint32_t number) {
    const struct hr_worker_status *status = &worker->look.status;
    struct top_worker_rates rates = top_worker_rates_of(worker);
    fprintf(to,
            "{\"worker\": %u, \"pid\": %u, \"phase\": \"%s\", \"batches_total\": %" PRIu64
            ", \"worker_busy_seconds_total\": {\"fetch\": %.6f, \"collate\": %.6f}, \"starts\": %u, "
            "\"batches_per_s\": %.3f, \"busy\": %.4f, \"cpu\": %.4f, ",
            number, status->pid, phase_of(worker), status->done_count, in_s(status->phase_ns[HR_PHASE_FETCH]),
            in_s(status->phase_ns[HR_PHASE_COLLATE]), status->starts, rates.batches, rates.busy, rates.cpu);
    if (worker->look.index == HR_NO_SAMPLE)
        fputs("\"sample\": null, ", to);
    else
        fprintf(to, "\"sample\": %" PRIu64 ", ", worker->look.index);
    if (worker->is_known)
        fprintf(to, "\"private_bytes\": %" PRIu64 "}", worker->private_bytes);
    else
        fputs("\"private_bytes\": null}", to);
}

static void put_samples_json(FILE *to, const struct top_loader *loader) {
    struct hr_times samples, collates;
    top_sum_times(loader, &samples, &collates);
    fprintf(to, "\"sample_seconds\": {\"sum\": %.6f, \"p50\": %.6g, \"p99\": %.6g, \"worst\": %.6g, \"worst_index\": ",
            in_s(samples.sum_ns), hr_times_quantile_ns(samples.buckets, 0.5) / 1e9,
            hr_times_quantile_ns(samples.buckets, 0.99) / 1e9, in_s(samples.worst_ns));
    if (samples.worst_index == HR_NO_SAMPLE)
        fputs("null}", to);
    else
        fprintf(to, "%" PRIu64 "}", samples.worst_index);
}

static void put_loader_json(FILE *to, const struct top *top, const struct top_loader *loader) {
    const struct hr_arena_look *look = &loader->look;
    struct top_rates rates = top_rates_of(top, loader);
    fprintf(to, "{\"pid\": %d, \"id\": %u, \"loader\": ", loader->pid, look->loader);
    put_json(to, look->name);
    fprintf(to,
            ", \"rank\": %d, \"world_size\": %d, \"state\": \"%s\", \"epoch\": %" PRIu64 ", \"step\": %" PRIu64
            ", \"active_workers\": %u, \"queue_batches\": %u, \"queue_room\": %u, \"wait\": %.4f, \"busy\": %.4f, "
            "\"batches_per_s\": %.3f, \"samples_per_s\": %.3f, \"bytes_per_s\": %.0f, ",
            look->rank, look->world_size, top_state_of(top, loader), look->epoch, look->step, look->used_count,
            look->queue_count, look->queue_room, rates.wait, rates.busy, rates.batches, rates.samples, rates.bytes);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        fprintf(to, "\"%s%s\": ", numbers[i].name, numbers[i].is_count ? "_total" : "");
        put_value(to, &numbers[i], look);
        fputs(", ", to);
    }
    fprintf(to, "\"parts\": {\"workers\": %.6f, \"pin\": %.6f, \"draw\": %.6f, \"rebuild\": %.6f}, ",
            in_s(look->wait_ns), in_s(look->pin_ns), in_s(look->draw_ns), in_s(look->rebuild_ns));
    struct hr_network_look network = top_sum_network(top->now_ns, loader);
    fprintf(to,
            "\"network\": %.4f, \"network_seconds_total\": %.6f, \"remote_hits_total\": %" PRIu64
            ", \"remote_waits_total\": %" PRIu64 ", ",
            rates.network, in_s(network.wait_ns), network.hit_count, network.wait_count);
    put_samples_json(to, loader);
    fputs(", \"workers\": [", to);
    for (uint32_t i = 0; i < look->worker_count; i++) {
        fputs(i ? ", " : "", to);
        put_worker_json(to, &loader->workers[i], i);
    }
    fputs("]}", to);
}

void top_put_json(FILE *to, struct top *top) {
    fprintf(to, "{\"version\": %d, \"loaders\": [", VERSION);
    for (uint32_t i = 0; i < top->count; i++) {
        fputs(i ? ",\n " : "\n ", to);
        put_loader_json(to, top, &top->loaders[i]);
    }
    fputs("], \"fetcher\": ", to);
    put_fetcher_json(to, top);
    fputs(", \"cache\": [", to);
    for (uint32_t i = 0; i < top->cached_count; i++) {
        const struct top_cached *cached = &top->cached[i];
        fputs(i ? ",\n {\"cache\": " : "\n {\"cache\": ", to);
        put_json(to, cached->name);
        fprintf(to, ", \"cache_bytes\": %" PRIu64 ", \"processes\": %u", cached->bytes, cached->jobs);
        if (cached->is_table)
            fprintf(to, ", \"used_bytes\": %" PRIu64 ", \"budget_bytes\": %" PRIu64 ", \"cache_hits_total\": %" PRIu64,
                    cached->used_bytes, cached->budget_bytes, cached->hits);
        fputs(", \"place\": ", to);
        put_json(to, cached->place);
        fputc('}', to);
    }
    fprintf(to, "], \"refused\": %u, \"other_versions\": %u, \"damaged\": %u}\n", top->refused, top->other_versions,
            top->damaged);
}
