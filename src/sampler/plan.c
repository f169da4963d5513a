/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#include "base/alloc.h"
#include "base/base.h"
#include "check.h"
#include "random.h"
#include "several.h"

#include <string.h>

/* Plans of batches (headrace/sampler.h): checks the arguments, chooses the way to plan, and shuffles the steps. The
 * results are part of saved states: a change that changes them needs a number of its own (`algorithm` in
 * python/headrace/sampling/_plan_settings.py). */

static const uint64_t plan_seed = UINT64_C(0x706C616E); /* "plan": other numbers than those of a stream order */

void *hr__plan_array(int64_t count, size_t item_bytes) {
    uint64_t bytes;
    if (!hr__mul((uint64_t)count + 1, item_bytes, &bytes) || bytes > SIZE_MAX) return NULL;
    return hr__realloc(NULL, (size_t)bytes);
}

/* ---- what all ways to plan do ---- */

int64_t hr__plan_window(const struct hr__planner *planner, int64_t next, int64_t left_over) {
    int64_t left = planner->count - next, window = planner->settings->window;
    if (window == 0) return left;
    return (int64_t)hr__min((uint64_t)left, hr__max((uint64_t)window, (uint64_t)left_over));
}

bool hr__plan_allows(const struct hr_plan_settings *settings, int64_t rows, int64_t longest, int64_t sum) {
    if (rows <= 1) return true;
    if (settings->max_sum && sum > settings->max_sum) return false;
    if (settings->max_padded && longest > settings->max_padded / rows) return false;
    if (settings->max_batch && rows > settings->max_batch) return false;
    return !settings->bucket_count || rows <= hr__bucket_size(settings, longest);
}

int hr__plan_grow(void **array, int64_t *room, int64_t needed, size_t item_bytes) {
    if (needed <= *room) return 0;
    int64_t larger = needed + *room / 2;
    void *moved = hr__realloc(*array, (size_t)(larger + 1) * item_bytes);
    if (!moved) return -ENOMEM;
    *array = moved;
    *room = larger;
    return 0;
}

int hr__plan_reserve(struct hr__planner *planner, int64_t batches) {
    void *starts = planner->plan->starts, *costs = planner->costs;
    int r = hr__plan_grow(&starts, &planner->start_room, planner->plan->batch_count + batches,
                          sizeof *planner->plan->starts);
    if (r == 0) r = hr__plan_grow(&costs, &planner->cost_room, batches, sizeof *planner->costs);
    planner->plan->starts = starts;
    planner->costs = costs;
    return r;
}

void hr__plan_end_batch(struct hr__planner *planner) {
    struct hr_plan *plan = planner->plan;
    if (plan->entry_count == plan->starts[plan->batch_count])
        plan->entries[plan->entry_count++] = -1 - (int32_t)(plan->repeat_count++ % planner->count);
    plan->starts[++plan->batch_count] = plan->entry_count;
}

static int compare_costs(const void *one, const void *other) {
    const struct hr__batch_cost *a = one, *b = other;
    if (a->cost != b->cost) return a->cost < b->cost ? 1 : -1;
    return (a->batch > b->batch) - (a->batch < b->batch);
}

void hr__plan_sort_costs(struct hr__planner *planner, int64_t count) {
    qsort(planner->costs, (size_t)count, sizeof *planner->costs, compare_costs);
}

/* Returns the place of a batch in a row of the deal. */
static int64_t place_in_row(int64_t row, int64_t batch, int64_t batches) {
    return row % 2 ? batches - 1 - batch : batch;
}

int hr__plan_deal(struct hr__planner *planner, const uint64_t *sorted, int64_t count, int64_t batches) {
    struct hr_plan *plan = planner->plan;
    int r = hr__plan_reserve(planner, batches);
    if (r < 0) return r;
    for (int64_t batch = 0; batch < batches; batch++) planner->costs[batch] = (struct hr__batch_cost){0, batch};
    for (int64_t i = 0; i < count; i++) {
        int64_t length = hr__key_length(sorted[count - 1 - i]);
        planner->costs[place_in_row(i / batches, i % batches, batches)].cost += hr__cost_of(planner->settings, length);
    }
    hr__plan_sort_costs(planner, batches);
    for (int64_t k = 0; k < batches; k++) {
        for (int64_t first = 0, row = 0; first < count; first += batches, row++) {
            int64_t i = first + place_in_row(row, planner->costs[k].batch, batches);
            if (i < count) plan->entries[plan->entry_count++] = hr__key_entry(sorted[count - 1 - i]);
        }
        hr__plan_end_batch(planner);
    }
    return 0;
}

/* Returns whether sorted keys can be dealt to so many batches. */
static bool can_be_dealt(const struct hr_plan_settings *settings, const uint64_t *sorted, int64_t count,
                         int64_t batches) {
    int64_t sum = 0, rows = 0;
    for (int64_t i = count - 1; i >= 0; i -= batches, rows++) sum += hr__key_length(sorted[i]);
    return hr__plan_allows(settings, rows, hr__key_length(sorted[count - 1]), sum);
}

/* The entries that are left over, sorted, and the number of batches that they are dealt to. */
struct tail {
    const uint64_t *sorted;
    int64_t count, batches;
};

/* Returns the batch that gets key i of the deal, counted from the longest one. */
static int64_t batch_of_key(const struct tail *tail, int64_t i) {
    return place_in_row(i / tail->batches, i % tail->batches, tail->batches);
}

/* Returns the batch that gets an entry, or -1 if the entry is not left over. */
static int64_t batch_of_entry(const struct hr__planner *planner, const struct tail *tail, int64_t entry) {
    uint64_t key = hr__key_of(planner, entry);
    int64_t low = 0, high = tail->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (tail->sorted[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low < tail->count && tail->sorted[low] == key ? batch_of_key(tail, tail->count - 1 - low) : -1;
}

/* Returns the length up to which a batch can have one more sample in the last row, so that it keeps the limits and does
 * not become longer than the longest one. */
static int64_t longest_repeat(const struct hr__planner *planner, const struct tail *tail) {
    int64_t longest = hr__key_length(tail->sorted[tail->count - 1]), room = planner->settings->max_sum;
    if (!room || tail->count < tail->batches) return longest;
    for (int64_t i = 0; i + tail->batches < tail->count; i += tail->batches)
        room -= hr__key_length(tail->sorted[tail->count - 1 - i]);
    return room < longest ? room : longest;
}

/* Sets repeats[missing - 1] to repeats[0] to the keys for the last row that lack: for each the next entry of the order
 * that is short enough, and that its batch does not have. If the order has no such entry any more, it is the first one
 * of the last row, which another batch has and which has room in each. */
static void find_repeats(const struct hr__planner *planner, const struct tail *tail, uint64_t *repeats,
                         int64_t missing) {
    int64_t longest = longest_repeat(planner, tail), next = 0;
    uint64_t first = tail->sorted[tail->count - 1 - tail->count / tail->batches * tail->batches];
    for (int64_t k = 0; k < missing; k++) {
        int64_t batch = batch_of_key(tail, tail->count + k);
        while (next < planner->count &&
               (planner->lengths[next] > longest || batch_of_entry(planner, tail, next) == batch))
            next++;
        uint64_t key = next < planner->count ? hr__key_of(planner, next++) : first;
        repeats[missing - 1 - k] = key | HR_KEY_REPEAT;
    }
}

/* Deals what is left over, with so many repeats that all batches of a step can have equally many samples. */
static int deal_padded(struct hr__planner *planner, const struct tail *tail, int64_t missing) {
    uint64_t *keys = hr__plan_array(missing + tail->count, sizeof *keys);
    if (!keys) return -ENOMEM;
    find_repeats(planner, tail, keys, missing);
    memcpy(keys + missing, tail->sorted, (size_t)tail->count * sizeof *keys);
    planner->plan->repeat_count += missing;
    int r = hr__plan_deal(planner, keys, missing + tail->count, tail->batches);
    hr__free(keys);
    return r;
}

int hr__plan_tail(struct hr__planner *planner, const uint64_t *sorted, int64_t count) {
    if (count == 0 || planner->settings->tail == HR_PLAN_DROP) return 0;
    int64_t width = planner->settings->width, steps = 1;
    while (!can_be_dealt(planner->settings, sorted, count, steps * width)) steps++;
    planner->fixed_steps = steps;
    struct tail tail = {.sorted = sorted, .count = count, .batches = steps * width};
    if (planner->settings->tail == HR_PLAN_PAD && count % width)
        return deal_padded(planner, &tail, width - count % width);
    return hr__plan_deal(planner, sorted, count, tail.batches);
}

/* ---- the order of the steps ---- */

/* Draws an order of the steps, except for the last ones. */
static void shuffle(struct hr__planner *planner, int64_t *steps, int64_t count) {
    for (int64_t i = 0; i < count; i++) steps[i] = i;
    for (int64_t i = count - planner->fixed_steps - 1; i > 0; i--) {
        int64_t place = (int64_t)hr__scale(hr__random_next(&planner->random), (uint64_t)i + 1), swapped = steps[i];
        steps[i] = steps[place];
        steps[place] = swapped;
    }
}

/* Copies the steps in another order. */
static void copy_steps(const struct hr_plan *plan, int64_t width, const int64_t *steps, int32_t *entries,
                       int64_t *starts) {
    int64_t count = 0, batch = 0;
    for (int64_t i = 0; i < plan->step_count; i++) {
        const int64_t *from = plan->starts + steps[i] * width;
        for (int64_t k = 0; k < width; k++) starts[batch++] = count + from[k] - from[0];
        memcpy(entries + count, plan->entries + from[0], (size_t)(from[width] - from[0]) * sizeof *entries);
        count += from[width] - from[0];
    }
    starts[batch] = count;
}

static int shuffle_steps(struct hr__planner *planner) {
    struct hr_plan *plan = planner->plan;
    if (plan->repeat_count && !planner->fixed_steps) planner->fixed_steps = 1; /* repeats stay the last ones */
    int64_t *steps = hr__plan_array(plan->step_count, sizeof *steps);
    int32_t *entries = hr__plan_array(plan->entry_count, sizeof *entries);
    int64_t *starts = hr__plan_array(plan->batch_count, sizeof *starts);
    bool is_ready = steps && entries && starts;
    if (is_ready) {
        shuffle(planner, steps, plan->step_count);
        copy_steps(plan, planner->settings->width, steps, entries, starts);
        int32_t *old_entries = plan->entries;
        int64_t *old_starts = plan->starts;
        plan->entries = entries;
        plan->starts = starts;
        entries = old_entries;
        starts = old_starts;
    }
    hr__free(steps);
    hr__free(entries);
    hr__free(starts);
    return is_ready ? 0 : -ENOMEM;
}

/* ---- checks ---- */

static int check_limit(const char *name, int64_t limit) {
    if (limit >= 0) return 0;
    return hr__fail(-EINVAL, "plan: %s is %lld; give 1 or more, or 0 for no limit", name, (long long)limit);
}

static int check_buckets(const struct hr_plan_settings *settings) {
    for (int64_t i = 0; i < settings->bucket_count; i++) {
        const struct hr_bucket *bucket = &settings->buckets[i];
        if (bucket->batch_size < 1)
            return hr__fail(-EINVAL, "plan: the batch size of bucket %lld is %lld; give 1 or more", (long long)i,
                            (long long)bucket->batch_size);
        if (bucket->longest < 0 || (i && bucket->longest <= bucket[-1].longest))
            return hr__fail(-EINVAL, "plan: bucket %lld is for lengths up to %lld; give rising lengths from 0 on",
                            (long long)i, (long long)bucket->longest);
        if (i && bucket->batch_size > bucket[-1].batch_size)
            return hr__fail(-EINVAL, "plan: bucket %lld has batches of %lld, more than the bucket of shorter samples",
                            (long long)i, (long long)bucket->batch_size);
    }
    return 0;
}

/* Checks that there is exactly one way to plan. */
static int check_way(const struct hr_plan_settings *settings) {
    bool has_budget = settings->max_sum || settings->max_padded;
    int ways = (has_budget || (settings->max_batch && !settings->pack)) + !!settings->bucket_count + !!settings->pack;
    if (ways == 0) return hr__fail(-EINVAL, "plan: give max_sum, max_padded, max_batch, buckets or pack");
    if (ways > 1 || settings->bucket_count < 0)
        return hr__fail(-EINVAL, "plan: give either limits of batches, or buckets, or pack with or without max_batch");
    return 0;
}

int hr__plan_check_common(const struct hr_plan_settings *settings, int64_t count) {
    if (settings->width < 1 || settings->width > HR_PLAN_WIDTH_MAX)
        return hr__fail(-EINVAL, "plan: a step of %lld batches; give 1 to %lld", (long long)settings->width,
                        (long long)HR_PLAN_WIDTH_MAX);
    if (settings->ranks < 0 || (settings->ranks && settings->width % settings->ranks))
        return hr__fail(-EINVAL, "plan: a step of %lld batches for %lld ranks; give a multiple of the ranks",
                        (long long)settings->width, (long long)settings->ranks);
    if (count < 0 || count > INT32_MAX - settings->width)
        return hr__fail(-EINVAL, "plan: %lld samples; give 0 to %lld", (long long)count,
                        (long long)(INT32_MAX - settings->width));
    int r = check_limit("max_batch", settings->max_batch);
    if (r == 0) r = check_limit("window", settings->window);
    if (r == 0 && (unsigned)settings->tail > HR_PLAN_EXACT)
        r = hr__fail(-EINVAL, "plan: tail is %d; give HR_PLAN_PAD, HR_PLAN_DROP or HR_PLAN_EXACT", (int)settings->tail);
    return r;
}

static int check_settings(const struct hr_plan_settings *settings) {
    int r = check_limit("max_sum", settings->max_sum);
    if (r == 0) r = check_limit("max_padded", settings->max_padded);
    if (r == 0) r = check_limit("pack", settings->pack);
    if (r == 0 && settings->pack > HR_PLAN_PACK_MAX)
        r = hr__fail(-EINVAL, "plan: pack is %lld; give %lld at most, or lengths in a larger unit",
                     (long long)settings->pack, (long long)HR_PLAN_PACK_MAX);
    if (r == 0) r = check_way(settings);
    return r < 0 ? r : check_buckets(settings);
}

/* Checks that the cost of all samples fits into 63 bits, even if all were as long as the longest one. */
static int check_costs(const struct hr_plan_settings *settings, int64_t longest, int64_t count) {
    uint64_t linear, square, cost;
    if (hr__mul(settings->cost_linear, (uint64_t)longest, &linear) &&
        hr__mul((uint64_t)longest * (uint64_t)longest, settings->cost_quadratic, &square) &&
        hr__add(linear, square, &cost) && hr__add(cost, 1, &cost) && hr__mul(cost, (uint64_t)count + 1, &cost) &&
        cost <= INT64_MAX)
        return 0;
    return hr__fail(
        -EINVAL,
        "plan: with cost_linear=%llu and cost_quadratic=%llu, the cost of %lld samples of lengths up to %lld "
        "does not fit into 63 bits; only the ratio of the two counts, so give smaller numbers, or lengths in "
        "a larger unit",
        (unsigned long long)settings->cost_linear, (unsigned long long)settings->cost_quadratic, (long long)count,
        (long long)longest);
}

static int check_lengths(const int32_t *lengths, int64_t count, const struct hr_plan_settings *settings) {
    int32_t longest = 0;
    for (int64_t i = 0; i < count; i++) {
        if (lengths[i] < 0)
            return hr__fail(-EINVAL, "plan: the length at position %lld is %d; give 0 or more", (long long)i,
                            (int)lengths[i]);
        if (lengths[i] > longest) longest = lengths[i];
    }
    return check_costs(settings, longest, count);
}

/* ---- making one ---- */

struct hr_plan *hr_plan_free(struct hr_plan *plan) {
    if (plan) {
        hr__free(plan->entries);
        hr__free(plan->starts);
        hr__free(plan);
    }
    return NULL;
}

/* Returns an empty plan with room for each entry, and for the repeats of a step. */
static struct hr_plan *new_plan(int64_t count, int64_t width) {
    struct hr_plan *plan = hr__plan_array(1, sizeof *plan);
    if (!plan) return NULL;
    *plan = (struct hr_plan){.entries = hr__plan_array(count + width, sizeof *plan->entries),
                             .starts = hr__plan_array(1, sizeof *plan->starts)};
    if (!plan->entries || !plan->starts) return hr_plan_free(plan);
    plan->starts[0] = 0;
    return plan;
}

static int plan_all(struct hr__planner *planner) {
    if (planner->several) return hr__several_plan(planner);
    if (planner->settings->pack) return hr__plan_pack(planner);
    return planner->settings->bucket_count ? hr__plan_buckets(planner) : hr__plan_budget(planner);
}

static int make(struct hr__planner *planner) {
    const struct hr_plan_settings *settings = planner->settings;
    if (planner->count == 0) return 0;
    int r = plan_all(planner);
    if (r < 0) return r;
    planner->plan->step_count = planner->plan->batch_count / settings->width;
    r = shuffle_steps(planner);
    return r == 0 && settings->ranks && settings->ranks < settings->width ? hr__plan_arrange(planner) : r;
}

int hr__plan_make(struct hr__planner *planner, int prepared, struct hr_plan **ret_plan) {
    const struct hr_plan_settings *settings = planner->settings;
    int r = prepared;
    planner->random = hr__mixed_seed(settings->seed ^ plan_seed, settings->epoch);
    planner->plan = r < 0 ? NULL : new_plan(planner->count, settings->width);
    if (r == 0) r = planner->plan ? make(planner) : -ENOMEM;
    hr__free(planner->costs);
    if (r < 0) {
        hr_plan_free(planner->plan);
        return hr__fail(-ENOMEM, "plan: no memory to plan %lld samples", (long long)planner->count);
    }
    *ret_plan = planner->plan;
    return 0;
}

int hr_plan_new(const int32_t *lengths, int64_t count, const struct hr_plan_settings *settings,
                struct hr_plan **ret_plan) {
    int r = hr__plan_check_common(settings, count);
    if (r == 0) r = check_settings(settings);
    if (r == 0) r = check_lengths(lengths, count, settings);
    if (r < 0) return r;
    struct hr_plan_length length = {
        .values = lengths, .cost_linear = settings->cost_linear, .cost_quadratic = settings->cost_quadratic};
    struct hr__planner planner = {
        .lengths = lengths, .count = count, .settings = settings, .names = &length, .name_count = 1};
    return hr__plan_make(&planner, 0, ret_plan);
}
