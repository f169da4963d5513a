/* SPDX-License-Identifier: Apache-2.0 */
/* Times of samples in a recording: histograms by hour, and the slowest ones. The recorder calls it. */
#include <string.h>

#include "arena/look.h"
#include "base/base.h"
#include "recorder.h"

static const int64_t HOUR_NS = 3600 * HR_NS_PER_S, HANGS_NS = HR_NS_PER_S, LATE_NS = 60 * HR_NS_PER_S;

/* ---- the slowest samples ---- */

static bool is_same(const struct hr_record_sample *one, const struct hr_record_sample *other) {
    return one->worker == other->worker && one->task == other->task && one->index == other->index;
}

/* Moves an entry that has grown to its place. */
static void move_up(struct hr__recorded *loader, uint32_t i) {
    for (; i && loader->slowest[i].sample.ns > loader->slowest[i - 1].sample.ns; i--) {
        struct hr__slow other = loader->slowest[i - 1];
        loader->slowest[i - 1] = loader->slowest[i];
        loader->slowest[i] = other;
    }
}

static void remove_entry(struct hr__recorded *loader, uint32_t i) {
    loader->slow_count--;
    memmove(&loader->slowest[i], &loader->slowest[i + 1], (loader->slow_count - i) * sizeof *loader->slowest);
}

/* The time that the worker measured replaces what was seen from outside, which may have been noticed later. */
static bool is_known(struct hr__recorded *loader, const struct hr__slow *slow) {
    for (uint32_t i = 0; i < loader->slow_count; i++) {
        const struct hr__slow *known = &loader->slowest[i];
        if (!is_same(&known->sample, &slow->sample)) continue;
        if (slow->is_measured) {
            if (known->is_measured) continue; /* in another epoch */
        } else if (known->is_measured) {
            if (slow->sample.began_ns - known->sample.began_ns < (int64_t)known->sample.ns + LATE_NS) return true;
            continue;
        } else if (known->sample.began_ns != slow->sample.began_ns)
            continue;
        remove_entry(loader, i);
        return false;
    }
    return false;
}

static void offer(struct hr__recorded *loader, const struct hr__slow *slow) {
    bool is_full = loader->slow_count == HR_RECORD_SLOWEST;
    if (is_full && slow->sample.ns <= loader->slowest[loader->slow_count - 1].sample.ns) return;
    if (is_known(loader, slow)) return;
    if (loader->slow_count == HR_RECORD_SLOWEST) loader->slow_count--;
    loader->slowest[loader->slow_count++] = *slow;
    move_up(loader, loader->slow_count - 1);
    loader->has_changed = true;
}

void hr__slowest_offer_batch(struct hr__recorded *loader, const struct hr_record_batch *batch) {
    const struct hr_batch_look *look = &batch->look;
    if (!look->slowest_ns) return;
    offer(loader, &(struct hr__slow){.is_measured = true,
                                     .sample = {.ns = look->slowest_ns,
                                                .index = look->slowest_index,
                                                .worker = batch->worker,
                                                .task = look->task,
                                                .began_ns = (int64_t)look->began_ns}});
}

static void offer_reading(struct hr__recorded *loader, uint32_t worker, const struct hr__reading *reading) {
    if (reading->last_ns <= reading->first_ns) return;
    offer(loader, &(struct hr__slow){.sample = {.ns = (uint64_t)(reading->last_ns - reading->first_ns),
                                                .index = reading->index,
                                                .worker = worker,
                                                .task = reading->task,
                                                .began_ns = reading->first_ns}});
}

/* A sample that two glances see takes so long at least. */
void hr__slowest_glance(struct hr__recorded *loader, uint32_t worker, const struct hr__glance *glance, int64_t now_ns) {
    struct hr__reading *reading = &loader->readings[worker];
    bool reads = glance && glance->phase == HR_PHASE_FETCH && glance->index != HR_NO_SAMPLE;
    bool is_same_one = reads && reading->first_ns && reading->task == glance->task &&
                       reading->sample == glance->sample && reading->index == glance->index;
    if (is_same_one) {
        reading->last_ns = now_ns;
        if (now_ns - reading->first_ns >= HANGS_NS) offer_reading(loader, worker, reading);
        return;
    }
    if (reading->first_ns) offer_reading(loader, worker, reading);
    *reading = (struct hr__reading){0};
    if (reads) *reading = (struct hr__reading){glance->task, glance->sample, glance->index, now_ns, now_ns};
}

/* ---- histograms ---- */

static void sum_times(const struct hr__recorded *loader, struct hr_record_hour *ret_sums) {
    *ret_sums = (struct hr_record_hour){0};
    for (uint32_t i = 0; i < loader->look.worker_count; i++) {
        for (int k = 0; k < HR_LOOK_BUCKETS; k++) {
            ret_sums->samples[k] += loader->workers[i].samples.buckets[k];
            ret_sums->collates[k] += loader->workers[i].collates.buckets[k];
        }
    }
}

/* Fewer workers in a later epoch make a sum smaller. */
static uint64_t growth(uint64_t now, uint64_t before) {
    return now > before ? now - before : 0;
}

static void add_times(struct hr__recorded *loader) {
    struct hr_record_hour sums;
    sum_times(loader, &sums);
    for (int i = 0; i < HR_LOOK_BUCKETS; i++) {
        loader->hour.samples[i] += growth(sums.samples[i], loader->hour_before.samples[i]);
        loader->hour.collates[i] += growth(sums.collates[i], loader->hour_before.collates[i]);
    }
    loader->has_changed |= memcmp(&sums, &loader->hour_before, sizeof sums) != 0;
    loader->hour_before = sums;
}

static void begin_hour(struct hr__recorded *loader, int64_t now_ns) {
    loader->hour = (struct hr_record_hour){.at_ns = now_ns};
    loader->has_changed = true;
}

static int write_now(struct hr__recorded *loader) {
    struct hr_record_sample slowest[HR_RECORD_SLOWEST];
    for (uint32_t i = 0; i < loader->slow_count; i++) slowest[i] = loader->slowest[i].sample;
    loader->has_changed = false;
    return hr__record_put_now(&loader->writer, &loader->hour, slowest, loader->slow_count);
}

int hr__slowest_write(struct hr__recorded *loader, int64_t now_ns) {
    int r = 0;
    if (!loader->hour.at_ns) {
        if (!loader->is_whole) sum_times(loader, &loader->hour_before);
        begin_hour(loader, now_ns);
    }
    add_times(loader);
    if (now_ns - loader->hour.at_ns >= HOUR_NS) {
        r = hr__record_put_hour(&loader->writer, &loader->hour);
        begin_hour(loader, loader->hour.at_ns + HOUR_NS * ((now_ns - loader->hour.at_ns) / HOUR_NS));
    }
    return r == 0 && loader->has_changed ? write_now(loader) : r;
}
