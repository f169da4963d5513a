/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds and minutes of a recording: what was added since the last one. The recorder calls it. */
#include <errno.h>
#include <string.h>

#include <headrace/face/kept.h>

#include "base/alloc.h"
#include "base/base.h"
#include "recorder.h"

#define MINUTE_NS (60 * HR_NS_PER_S)
static const int64_t EARLY_NS =
    HR_NS_PER_S / 20; /* a row may be so much shorter, because looks are not exactly on time */
enum { MILLI = 1000 };

void *hr__zeros(size_t count, size_t bytes) {
    void *memory = hr__realloc(NULL, (count + 1) * bytes);
    if (memory) memset(memory, 0, (count + 1) * bytes);
    return memory;
}

int hr__rows_make(struct hr__recorded *loader) {
    uint32_t count = loader->writer.worker_count;
    loader->second.length_ns = HR_NS_PER_S;
    loader->minute.length_ns = MINUTE_NS;
    loader->waiting = hr__zeros(count, sizeof *loader->waiting);
    loader->cpu_ns = hr__zeros(count, sizeof *loader->cpu_ns);
    loader->delay_ns = hr__zeros(count, sizeof *loader->delay_ns);
    loader->cpu_pids = hr__zeros(count, sizeof *loader->cpu_pids);
    loader->totals.workers = hr__zeros(count, sizeof(struct hr_record_worker));
    loader->second.before.workers = hr__zeros(count, sizeof(struct hr_record_worker));
    loader->minute.before.workers = hr__zeros(count, sizeof(struct hr_record_worker));
    bool is_made = loader->waiting && loader->cpu_ns && loader->delay_ns && loader->cpu_pids &&
                   loader->totals.workers && loader->second.before.workers && loader->minute.before.workers;
    return is_made ? 0 : -ENOMEM;
}

void hr__rows_free(struct hr__recorded *loader) {
    hr__free(loader->waiting);
    hr__free(loader->cpu_ns);
    hr__free(loader->delay_ns);
    hr__free(loader->cpu_pids);
    hr__free(loader->totals.workers);
    hr__free(loader->second.before.workers);
    hr__free(loader->minute.before.workers);
}

/* ---- totals ---- */

static void keep_larger(uint64_t *total, uint64_t value) {
    *total = hr__max(*total, value);
}

static void add_growth(uint64_t *total, uint64_t *before, uint64_t now) {
    if (now <= *before) return;
    *total += now - *before;
    *before = now;
}

static uint64_t since(int64_t now_ns, uint64_t since_ns) {
    return since_ns && since_ns < (uint64_t)now_ns ? (uint64_t)now_ns - since_ns : 0;
}

/* With the wait that goes on; the one for the first batch of an epoch is counted apart. */
static void add_loop(struct hr_record_row *total, const struct hr_arena_look *look, int64_t now_ns) {
    uint64_t waits_ns = hr__max(since(now_ns, look->wait_since_ns), since(now_ns, look->inside_since_ns));
    keep_larger(&total->inside_ns, look->inside_ns + (look->step ? waits_ns : 0));
    keep_larger(&total->start_ns, look->start_ns + (look->step ? 0 : waits_ns));
    keep_larger(&total->starts, look->starts);
    keep_larger(&total->wait_ns, look->wait_ns);
    keep_larger(&total->pin_ns, look->pin_ns);
    keep_larger(&total->draw_ns, look->draw_ns);
    keep_larger(&total->rebuild_ns, look->rebuild_ns);
}

static void add_counts(struct hr_record_row *total, const struct hr_arena_look *look) {
    keep_larger(&total->batches, look->batches);
    keep_larger(&total->samples, look->samples);
    keep_larger(&total->bytes, look->bytes);
    keep_larger(&total->errors, look->errors);
    keep_larger(&total->restarts, look->restarts);
    keep_larger(&total->bad_samples, look->bad_samples);
    total->epoch = look->epoch;
    total->step = look->step;
    total->queue_count = look->queue_count;
    total->used_workers = look->used_count;
    total->used_bytes = look->used_bytes;
}

/* A parked worker waits for no task. */
static void add_wait(struct hr__recorded *loader, uint32_t worker, uint64_t wait_ns) {
    struct hr__waiting *waiting = &loader->waiting[worker];
    bool is_parked = worker >= loader->look.used_count, has_begun = loader->workers[worker].status.phase_since_ns != 0;
    if (is_parked || (waiting->is_new && has_begun))
        keep_larger(&waiting->ns, wait_ns);
    else
        add_growth(&loader->totals.workers[worker].wait_ns, &waiting->ns, wait_ns);
    waiting->is_new = !has_begun && (is_parked || waiting->is_new);
}

static void add_worker(struct hr__recorded *loader, uint32_t worker, int64_t now_ns) {
    const struct hr_worker_status *status = &loader->workers[worker].status;
    struct hr_record_worker *total = &loader->totals.workers[worker];
    uint64_t phases[HR_PHASE_COUNT];
    memcpy(phases, status->phase_ns, sizeof phases);
    if (status->pid && status->phase < HR_PHASE_COUNT)
        phases[status->phase] += since(now_ns, (uint64_t)status->phase_since_ns);
    keep_larger(&total->fetch_ns, phases[HR_PHASE_FETCH]);
    keep_larger(&total->collate_ns, phases[HR_PHASE_COLLATE]);
    const struct hr_network_look *network = &loader->workers[worker].network;
    keep_larger(&total->network_ns, network->wait_ns + since(now_ns, network->since_ns));
    add_wait(loader, worker, phases[HR_PHASE_WAIT]);
}

/* A new process that is this worker begins at 0. */
static void add_process(struct hr__recorded *loader, uint32_t worker) {
    struct hr_record_worker *total = &loader->totals.workers[worker];
    uint32_t pid = loader->workers[worker].status.pid;
    uint64_t cpu_ns = pid && loader->is_same_namespace ? hr__cpu_ns((int)pid) : 0;
    total->private_bytes = cpu_ns ? hr__private_bytes((int)pid) : 0;
    if (loader->cpu_pids[worker] != pid) loader->cpu_ns[worker] = loader->delay_ns[worker] = 0;
    loader->cpu_pids[worker] = pid;
    add_growth(&total->cpu_ns, &loader->cpu_ns[worker], cpu_ns);
    add_growth(&total->delay_ns, &loader->delay_ns[worker], cpu_ns ? hr__delay_ns((int)pid) : 0);
}

/* Reads of remote objects, by the training process and by all workers. */
static void add_network(struct hr__recorded *loader, int64_t now_ns) {
    const struct hr_network_look *own = &loader->look.network;
    uint64_t hits = own->hit_count, waits = own->wait_count;
    for (uint32_t i = 0; i < loader->look.worker_count; i++) {
        hits += loader->workers[i].network.hit_count;
        waits += loader->workers[i].network.wait_count;
    }
    keep_larger(&loader->totals.row.network_ns, own->wait_ns + since(now_ns, own->since_ns));
    keep_larger(&loader->totals.row.hit_count, hits);
    keep_larger(&loader->totals.row.wait_count, waits);
}

/* Another fetcher begins at 0. One that was not there at the begin of the recording may have begun before. */
static void add_fetcher(struct hr__recorded *loader) {
    struct hr_record_row *total = &loader->totals.row;
    struct hr_fetcher_figures now, *before = &loader->fetcher;
    char folder[HR__PATH_BYTES];
    if (hr_kept_folder(folder, sizeof folder) < 0 || hr_fetcher_peek(folder, &now) < 0) return;
    if (now.began_ns != before->began_ns) *before = (struct hr_fetcher_figures){.began_ns = now.began_ns};
    add_growth(&total->fetched_bytes, &before->fetched_bytes, now.fetched_bytes);
    add_growth(&total->requests, &before->requests, now.requests);
    add_growth(&total->retries, &before->retries, now.retries);
}

/* Adds what the rest of the machine does. A process that has ended leaves the numbers as they were. */
static void add_machine(struct hr__recorded *loader) {
    struct hr_record_row *total = &loader->totals.row;
    uint64_t throttled_ns = hr__cgroup_throttled_ns(loader->pid);
    uint64_t quota = hr__cgroup_millicores_of(loader->pid), cores = (uint64_t)hr__core_count_of(loader->pid) * MILLI;
    keep_larger(&total->cores_busy, hr__machine_cpu_ns());
    if (throttled_ns != UINT64_MAX) keep_larger(&total->throttled_ns, throttled_ns);
    keep_larger(&total->trainer_cpu_ns, hr__cpu_ns(loader->pid));
    keep_larger(&total->trainer_delay_ns, hr__delay_ns(loader->pid));
    total->cores_allowed = hr__min(cores, quota);
    total->memory_available = hr__available_memory();
    for (uint32_t i = 0; i < loader->look.worker_count; i++) add_process(loader, i);
    add_fetcher(loader);
}

/* Adds the look. The work that goes on at `now_ns` is added until `until_ns`. */
static void add_look(struct hr__recorded *loader, int64_t now_ns, int64_t until_ns) {
    add_loop(&loader->totals.row, &loader->look, until_ns);
    add_counts(&loader->totals.row, &loader->look);
    for (uint32_t i = 0; i < loader->look.worker_count; i++) add_worker(loader, i, until_ns);
    add_network(loader, until_ns);
    loader->totals.row.at_ns = now_ns;
    loader->totals.row.real_ns = hr__wall_ns();
}

/* ---- rows ---- */

static void copy_totals(const struct hr__recorded *loader, struct hr__totals *to) {
    to->row = loader->totals.row;
    memcpy(to->workers, loader->totals.workers, loader->writer.worker_count * sizeof *to->workers);
}

static void begin(const struct hr__recorded *loader, struct hr__interval *interval, int64_t now_ns) {
    interval->began_ns = now_ns;
    copy_totals(loader, &interval->before);
}

static void write_differences(const struct hr_record_row *now, const struct hr_record_row *before, int64_t length_ns,
                              struct hr_record_row *ret_row) {
    *ret_row = *now;
    ret_row->length_ns = (uint64_t)length_ns;
    ret_row->batches -= before->batches;
    ret_row->samples -= before->samples;
    ret_row->bytes -= before->bytes;
    ret_row->errors -= before->errors;
    ret_row->inside_ns -= before->inside_ns;
    ret_row->start_ns -= before->start_ns;
    ret_row->starts -= before->starts;
    ret_row->wait_ns -= before->wait_ns;
    ret_row->pin_ns -= before->pin_ns;
    ret_row->draw_ns -= before->draw_ns;
    ret_row->rebuild_ns -= before->rebuild_ns;
    ret_row->restarts -= before->restarts;
    ret_row->bad_samples -= before->bad_samples;
    ret_row->throttled_ns -= before->throttled_ns;
    ret_row->trainer_cpu_ns -= before->trainer_cpu_ns;
    ret_row->trainer_delay_ns -= before->trainer_delay_ns;
    ret_row->network_ns -= before->network_ns;
    ret_row->hit_count -= before->hit_count;
    ret_row->wait_count -= before->wait_count;
    ret_row->fetched_bytes -= before->fetched_bytes;
    ret_row->requests -= before->requests;
    ret_row->retries -= before->retries;
    ret_row->cores_busy = (now->cores_busy - before->cores_busy) * MILLI / (uint64_t)length_ns;
}

static int write_row(struct hr__recorded *loader, enum hr_record_part part, struct hr__interval *interval) {
    struct hr_record_row row;
    int64_t length_ns = loader->totals.row.at_ns - interval->began_ns;
    uint32_t count = loader->writer.worker_count;
    if (length_ns <= 0) return 0; /* no look was since it began */
    struct hr_record_worker *workers = hr__zeros(count, sizeof *workers);
    if (!workers) return -ENOMEM;
    write_differences(&loader->totals.row, &interval->before.row, length_ns, &row);
    for (uint32_t i = 0; i < count; i++) {
        const struct hr_record_worker *now = &loader->totals.workers[i], *before = &interval->before.workers[i];
        workers[i] = (struct hr_record_worker){.fetch_ns = now->fetch_ns - before->fetch_ns,
                                               .collate_ns = now->collate_ns - before->collate_ns,
                                               .wait_ns = now->wait_ns - before->wait_ns,
                                               .delay_ns = now->delay_ns - before->delay_ns,
                                               .cpu_ns = now->cpu_ns - before->cpu_ns,
                                               .private_bytes = now->private_bytes,
                                               .network_ns = now->network_ns - before->network_ns};
    }
    int r = hr__record_put_row(&loader->writer, part, &row, workers);
    hr__free(workers);
    begin(loader, interval, loader->totals.row.at_ns);
    return r;
}

static bool is_over(const struct hr__interval *interval, int64_t now_ns) {
    return now_ns - interval->began_ns >= interval->length_ns - EARLY_NS;
}

int hr__rows_begin(struct hr__recorded *loader, int64_t now_ns) {
    bool is_first = !loader->minute.began_ns;
    int r = 0;
    if (!is_first && is_over(&loader->minute, now_ns)) {
        r = write_row(loader, HR_RECORD_MINUTES, &loader->minute);
        is_first = true;
    }
    add_machine(loader);
    if (!loader->totals.row.at_ns && loader->is_whole)
        now_ns = loader->look.opened_ns;
    else if (!loader->totals.row.at_ns)
        add_look(loader, now_ns, now_ns); /* what was before the recording is no part of it */
    begin(loader, &loader->second, now_ns);
    if (is_first) begin(loader, &loader->minute, now_ns);
    return r;
}

int hr__rows_add(struct hr__recorded *loader, int64_t now_ns, bool is_last) {
    /* An epoch that has ended leaves its last call of next() and its workers as they were. */
    bool goes_on = !is_last || !hr__inner_pid(loader->pid);
    add_look(loader, now_ns, goes_on ? now_ns : 0);
    if (!is_last && !is_over(&loader->second, now_ns)) return 0;
    add_machine(loader);
    int r = write_row(loader, HR_RECORD_SECONDS, &loader->second);
    return r == 0 && is_over(&loader->minute, now_ns) ? write_row(loader, HR_RECORD_MINUTES, &loader->minute) : r;
}

int hr__rows_end(struct hr__recorded *loader) {
    return write_row(loader, HR_RECORD_MINUTES, &loader->minute);
}
