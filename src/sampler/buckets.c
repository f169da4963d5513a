/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#include "base/alloc.h"
#include "base/base.h"

#include <errno.h>
#include <string.h>

/* Plans by buckets. Each bucket keeps the order of its entries, so that its batches differ from epoch to epoch, and
 * which entries are left over is random. The entries of several steps are sorted by length: a step then has batches of
 * similar lengths, whose longest samples differ little. What does not fill a step joins the next larger bucket. */

/* Entries in the order of the plan, and the buckets' places in them. */
struct queues {
    uint64_t *keys;    /* the key of each entry, bucket by bucket */
    int64_t *starts;   /* where buckets start in `keys`; the last one is for longer samples, and has batches of one */
    uint64_t *carried; /* entries of smaller buckets that are left over, a queue */
    int64_t carried_first, carried_end;
    uint64_t *step, *other; /* one step, and room to sort it */
};

static int64_t bucket_of(const struct hr_plan_settings *settings, int64_t length) {
    int64_t bucket = 0;
    while (bucket < settings->bucket_count && length > settings->buckets[bucket].longest) bucket++;
    return bucket;
}

int64_t hr__bucket_size(const struct hr_plan_settings *settings, int64_t longest) {
    int64_t bucket = bucket_of(settings, longest);
    return bucket < settings->bucket_count ? settings->buckets[bucket].batch_size : 1;
}

/* Sorts the entries into buckets, each of which keeps their order. */
static void fill_buckets(const struct hr__planner *planner, struct queues *queues) {
    const struct hr_plan_settings *settings = planner->settings;
    int64_t *starts = queues->starts, buckets = settings->bucket_count + 1;
    memset(starts, 0, (size_t)(buckets + 2) * sizeof *starts);
    for (int64_t i = 0; i < planner->count; i++) starts[bucket_of(settings, planner->lengths[i]) + 2]++;
    for (int64_t i = 2; i < buckets + 2; i++) starts[i] += starts[i - 1];
    for (int64_t i = 0; i < planner->count; i++)
        queues->keys[starts[bucket_of(settings, planner->lengths[i]) + 1]++] = hr__key_of(planner, i);
}

/* Makes a step of `own` entries of a bucket and as many that were left over as are missing. */
static int take_step(struct hr__planner *planner, struct queues *queues, const uint64_t *keys, int64_t own,
                     int64_t count) {
    memcpy(queues->step, keys, (size_t)own * sizeof *keys);
    memcpy(queues->step + own, queues->carried + queues->carried_first, (size_t)(count - own) * sizeof *keys);
    queues->carried_first += count - own;
    hr__sort_keys(queues->step, count, queues->other);
    return hr__plan_deal(planner, queues->step, count, planner->settings->width);
}

/* Makes steps of a bucket whose entries are keys[0..own-1], as many as they suffice for. Returns how many entries are
 * left, at the end of `keys`, or -ENOMEM. */
static int64_t take_steps(struct hr__planner *planner, struct queues *queues, uint64_t *keys, int64_t own,
                          int64_t count) {
    int64_t most = hr__plan_window(planner, 0, 0) / count;
    while (own >= count) {
        int64_t steps = (int64_t)hr__min((uint64_t)(own / count), hr__max((uint64_t)most, 1));
        hr__sort_keys(keys, steps * count, queues->other);
        for (; steps > 0; steps--, keys += count, own -= count) {
            int r = hr__plan_deal(planner, keys, count, planner->settings->width);
            if (r < 0) return r;
        }
    }
    return own;
}

/* Plans a bucket whose entries are keys[0..own-1]. */
static int plan_bucket(struct hr__planner *planner, struct queues *queues, uint64_t *keys, int64_t own,
                       int64_t batch_size) {
    int64_t count; /* entries of a step; more than all entries if it would be even more */
    if (__builtin_mul_overflow(planner->settings->width, batch_size, &count)) count = INT64_MAX;
    int64_t left = take_steps(planner, queues, keys, own, count);
    if (left < 0) return (int)left;
    keys += own - left;
    if (left > 0 && left >= count - (queues->carried_end - queues->carried_first))
        return take_step(planner, queues, keys, left, count);
    memcpy(queues->carried + queues->carried_end, keys, (size_t)left * sizeof *keys);
    queues->carried_end += left;
    return 0;
}

static int plan_all(struct hr__planner *planner, struct queues *queues) {
    const struct hr_plan_settings *settings = planner->settings;
    fill_buckets(planner, queues);
    for (int64_t i = 0; i <= settings->bucket_count; i++) {
        int64_t size = i < settings->bucket_count ? settings->buckets[i].batch_size : 1;
        int64_t start = queues->starts[i], count = queues->starts[i + 1] - start;
        int r = plan_bucket(planner, queues, queues->keys + start, count, size);
        if (r < 0) return r;
    }
    int64_t left_over = queues->carried_end - queues->carried_first;
    uint64_t *keys = queues->carried + queues->carried_first;
    hr__sort_keys(keys, left_over, queues->other);
    return hr__plan_tail(planner, keys, left_over);
}

int hr__plan_buckets(struct hr__planner *planner) {
    int64_t count = planner->count;
    struct queues queues = {.keys = hr__plan_array(count, sizeof *queues.keys),
                            .starts = hr__plan_array(planner->settings->bucket_count + 3, sizeof *queues.starts),
                            .carried = hr__plan_array(count, sizeof *queues.carried),
                            .step = hr__plan_array(count, sizeof *queues.step),
                            .other = hr__plan_array(count, sizeof *queues.other)};
    bool is_ready = queues.keys && queues.starts && queues.carried && queues.step && queues.other;
    int r = is_ready ? plan_all(planner, &queues) : -ENOMEM;
    hr__free(queues.keys);
    hr__free(queues.starts);
    hr__free(queues.carried);
    hr__free(queues.step);
    hr__free(queues.other);
    return r;
}
