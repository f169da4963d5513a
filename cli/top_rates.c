/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of the loaders that `headrace top` has looked at, over the looks that are kept. */
#include "top.h"

#include <string.h>

static uint64_t since(int64_t now_ns, uint64_t since_ns) {
    return since_ns && (int64_t)since_ns > 0 && (int64_t)since_ns < now_ns ? (uint64_t)now_ns - since_ns : 0;
}

static uint64_t waits_ns(int64_t now_ns, const struct hr_arena_look *look) {
    uint64_t waits = since(now_ns, look->wait_since_ns), inside = since(now_ns, look->inside_since_ns);
    return waits > inside ? waits : inside;
}

double top_waits_s(const struct top *top, const struct top_loader *loader) {
    return (double)waits_ns(top->now_ns, &loader->look) / 1e9;
}

static uint64_t phase_ns_of(int64_t now_ns, const struct hr_worker_status *status, enum hr_phase phase) {
    return status->phase_ns[phase] + (status->phase == phase ? since(now_ns, (uint64_t)status->phase_since_ns) : 0);
}

static uint64_t busy_ns_of(int64_t now_ns, const struct hr_worker_status *status) {
    return phase_ns_of(now_ns, status, HR_PHASE_FETCH) + phase_ns_of(now_ns, status, HR_PHASE_COLLATE);
}

struct hr_network_look top_sum_network(int64_t now_ns, const struct top_loader *loader) {
    struct hr_network_look sum = loader->look.network;
    sum.wait_ns += since(now_ns, sum.since_ns);
    for (uint32_t i = 0; i < loader->look.worker_count; i++) {
        const struct hr_network_look *one = &loader->workers[i].look.network;
        sum.wait_ns += one->wait_ns + since(now_ns, one->since_ns);
        sum.wait_count += one->wait_count;
        sum.hit_count += one->hit_count;
    }
    return sum;
}

static void mark_worker(struct top_worker *worker, int64_t now_ns) {
    worker->marks[worker->mark_count++ % TOP_HISTORY] = (struct top_worker_mark){
        .now_ns = now_ns, .done = worker->look.status.done_count, .busy_ns = busy_ns_of(now_ns, &worker->look.status)};
}

void top_mark(struct top_loader *loader, int64_t now_ns) {
    const struct hr_arena_look *look = &loader->look;
    struct top_mark mark = {.now_ns = now_ns,
                            .batches = look->batches,
                            .samples = look->samples,
                            .bytes = look->bytes,
                            .inside_ns = look->inside_ns + (look->step ? waits_ns(now_ns, look) : 0)};
    mark.network_ns = top_sum_network(now_ns, loader).wait_ns;
    for (uint32_t i = 0; i < look->worker_count; i++) {
        mark_worker(&loader->workers[i], now_ns);
        mark.busy_ns += busy_ns_of(now_ns, &loader->workers[i].look.status);
        mark.collate_ns += phase_ns_of(now_ns, &loader->workers[i].look.status, HR_PHASE_COLLATE);
    }
    loader->marks[loader->mark_count++ % TOP_HISTORY] = mark;
}

static uint32_t kept(uint32_t count) {
    return count < TOP_HISTORY ? count : TOP_HISTORY;
}

static double growth(uint64_t before, uint64_t now) {
    return now > before ? (double)(now - before) : 0;
}

static double share(double part) {
    return part < 0 ? 0 : part > 1 ? 1 : part;
}

static double share_of_network(double network_s, double of_s) {
    return of_s > 0 ? share(network_s / of_s) : 0;
}

/* Over the looks that are kept; at the first look, since the loader was made. */
struct top_rates top_rates_of(const struct top *top, const struct top_loader *loader) {
    struct top_mark none = {.now_ns = loader->look.opened_ns};
    const struct top_mark *last = &loader->marks[(loader->mark_count + TOP_HISTORY - 1) % TOP_HISTORY], *first = &none;
    if (loader->mark_count > 1) first = &loader->marks[(loader->mark_count - kept(loader->mark_count)) % TOP_HISTORY];
    double s = (double)(last->now_ns - first->now_ns) / 1e9, busy_s = growth(first->busy_ns, last->busy_ns) / 1e9;
    double network_s = growth(first->network_ns, last->network_ns) / 1e9;
    uint32_t workers = loader->look.used_count;
    (void)top;
    if (s <= 0 || loader->is_over) return (struct top_rates){0};
    return (struct top_rates){.wait = share(growth(first->inside_ns, last->inside_ns) / 1e9 / s),
                              .batches = growth(first->batches, last->batches) / s,
                              .samples = growth(first->samples, last->samples) / s,
                              .bytes = growth(first->bytes, last->bytes) / s,
                              .busy = workers ? share(busy_s / s / workers) : 0,
                              .collate =
                                  busy_s > 0 ? share(growth(first->collate_ns, last->collate_ns) / 1e9 / busy_s) : 0,
                              .network = share_of_network(network_s, loader->look.worker_count ? busy_s : s)};
}

struct top_worker_rates top_worker_rates_of(const struct top_worker *worker) {
    uint32_t count = kept(worker->mark_count);
    if (count < 2) return (struct top_worker_rates){.delay = -1};
    const struct top_worker_mark *last = &worker->marks[(worker->mark_count - 1) % TOP_HISTORY];
    const struct top_worker_mark *first = &worker->marks[(worker->mark_count - count) % TOP_HISTORY];
    double s = (double)(last->now_ns - first->now_ns) / 1e9;
    double hours = (double)(last->now_ns - worker->first_ns) / 3600e9;
    if (s <= 0) return (struct top_worker_rates){.delay = -1};
    bool has_cpu = first->has_cpu && last->has_cpu;
    bool has_delay = has_cpu && first->delay_ns != UINT64_MAX && last->delay_ns != UINT64_MAX;
    return (struct top_worker_rates){.batches = growth(first->done, last->done) / s,
                                     .busy = share(growth(first->busy_ns, last->busy_ns) / 1e9 / s),
                                     .cpu = has_cpu ? growth(first->cpu_ns, last->cpu_ns) / 1e9 / s : 0,
                                     .delay = has_delay ? growth(first->delay_ns, last->delay_ns) / 1e9 / s : -1,
                                     .growth = worker->is_known && hours > 1.0 / 120
                                                   ? growth(worker->first_bytes, worker->private_bytes) / hours
                                                   : 0};
}

/* Returns true if most of the processes that make a batch wait for the network. */
static bool waits_for_network(const struct top_loader *loader) {
    uint32_t busy = 0, waiting = 0;
    for (uint32_t i = 0; i < loader->look.worker_count; i++) {
        bool is_busy = loader->workers[i].look.status.phase != HR_PHASE_WAIT;
        busy += is_busy;
        waiting += is_busy && loader->workers[i].look.network.since_ns;
    }
    return loader->look.worker_count ? 2 * waiting > busy : loader->look.network.since_ns != 0;
}

const char *top_state_of(const struct top *top, const struct top_loader *loader) {
    enum { STALLED_S = 30, IDLE_LOOKS = 3 };
    double waits = top_waits_s(top, loader);
    if (loader->is_over) return "ended";
    if (loader->look.has_stopped) return "ends";
    if (waits > 0 && waits_for_network(loader)) return "network";
    if (waits > STALLED_S) return "stalled";
    if (loader->look.step == 0) return waits > 0 ? "starts" : "new";
    if (waits > 0) return "waits";
    return loader->mark_count > IDLE_LOOKS && top_rates_of(top, loader).batches == 0 ? "idle" : "runs";
}

/* ---- jobs ---- */

static bool is_of_job(const struct top_loader *one, const struct top_loader *other) {
    return strcmp(one->look.name, other->look.name) == 0 && one->look.world_size == other->look.world_size &&
           one->look.epoch == other->look.epoch && one->look.rank >= 0 && other->look.rank >= 0 && !other->is_over;
}

/* The steps that all ranks have done and still keep: those after *ret_from, up to *ret_to. */
static void common_steps(const struct top *top, const struct top_loader *loader, uint64_t *ret_from, uint64_t *ret_to,
                         uint32_t *ret_ranks) {
    uint64_t most = loader->look.step, least = most;
    *ret_ranks = 0;
    for (uint32_t i = 0; i < top->count; i++) {
        const struct top_loader *other = &top->loaders[i];
        if (!is_of_job(loader, other)) continue;
        ++*ret_ranks;
        if (other->look.step > most) most = other->look.step;
        if (other->look.step < least) least = other->look.step;
    }
    *ret_to = least;
    *ret_from = most > HR_LOOK_STEPS ? most - HR_LOOK_STEPS : 0;
}

static uint32_t slowest_us(const struct top *top, const struct top_loader *loader, uint64_t step) {
    uint32_t slowest = 0;
    for (uint32_t i = 0; i < top->count; i++) {
        if (!is_of_job(loader, &top->loaders[i])) continue;
        uint32_t us = top->loaders[i].look.step_us[step % HR_LOOK_STEPS];
        if (us == HR_LOOK_NO_STEP) return us;
        if (us > slowest) slowest = us;
    }
    return slowest;
}

double top_job_wait(const struct top *top, const struct top_loader *loader, int *ret_behind, uint64_t *ret_steps) {
    uint64_t from, to, steps = 0;
    double waited_s = 0, rate = top_rates_of(top, loader).batches;
    uint32_t ranks;
    common_steps(top, loader, &from, &to, &ranks);
    *ret_behind = -1;
    *ret_steps = 0;
    for (uint32_t i = 0; i < top->count; i++) {
        const struct top_loader *other = &top->loaders[i];
        if (!is_of_job(loader, other) || loader->look.step <= other->look.step + *ret_steps) continue;
        *ret_steps = loader->look.step - other->look.step;
        *ret_behind = other->look.rank;
    }
    if (ranks < 2 || rate <= 0) return -1;
    for (uint64_t step = from + 1; step <= to; step++) {
        uint32_t us = slowest_us(top, loader, step);
        if (us == HR_LOOK_NO_STEP) continue;
        waited_s += us / 1e6;
        steps++;
    }
    return steps ? share(waited_s / ((double)steps / rate)) : -1;
}

/* ---- histograms ---- */

static void add_times(struct hr_times *to, const struct hr_times *from) {
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) to->buckets[i] += from->buckets[i];
    to->sum_ns += from->sum_ns;
    if (from->worst_ns <= to->worst_ns) return;
    to->worst_ns = from->worst_ns;
    to->worst_index = from->worst_index;
}

void top_sum_times(const struct top_loader *loader, struct hr_times *ret_samples, struct hr_times *ret_collates) {
    *ret_samples = *ret_collates = (struct hr_times){.worst_index = HR_NO_SAMPLE};
    for (uint32_t i = 0; i < loader->look.worker_count; i++) {
        add_times(ret_samples, &loader->workers[i].look.samples);
        add_times(ret_collates, &loader->workers[i].look.collates);
    }
}
