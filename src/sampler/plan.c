/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#include "base/alloc.h"
#include "base/base.h"
#include "check.h"
#include "random.h"

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

static int grow(void **array, int64_t *room, int64_t needed, size_t item_bytes) {
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
    int r = grow(&starts, &planner->start_room, planner->plan->batch_count + batches, sizeof *planner->plan->starts);
    if (r == 0) r = grow(&costs, &planner->cost_room, batches, sizeof *planner->costs);
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

/* The last step, which is filled up. */
struct padded {
    const struct hr__planner *planner;
    const uint64_t *sorted; /* what is left over */
    int64_t count;
    uint64_t *keys, *other; /* room for a full step */
};

/* Returns the least number of keys that is too many for a step whose longest sample is the last one, or a number that
 * is more than there are. */
static int64_t too_many(const struct padded *padded) {
    const struct hr__planner *planner = padded->planner;
    int64_t longest = hr__key_length(padded->sorted[padded->count - 1]), rows = 1;
    while ((rows - 1) * planner->settings->width < padded->count + planner->count &&
           hr__plan_allows(planner->settings, rows, longest, longest))
        rows++;
    return (rows - 1) * planner->settings->width + 1;
}

/* Sets the keys to what is left over and so many entries of the beginning of the order that are not longer. Returns how
 * many keys there are; fewer if the order has no more. */
static int64_t fill_up(const struct padded *padded, int64_t repeats) {
    const struct hr__planner *planner = padded->planner;
    int64_t longest = hr__key_length(padded->sorted[padded->count - 1]), count = padded->count;
    memcpy(padded->keys, padded->sorted, (size_t)count * sizeof *padded->keys);
    for (int64_t i = 0; i < planner->count && count < padded->count + repeats; i++)
        if (planner->lengths[i] <= longest) padded->keys[count++] = hr__key_of(planner, i) | HR_KEY_REPEAT;
    hr__sort_keys(padded->keys, count, padded->other);
    return count;
}

/* Fills up a step with as many repeats as the limits allow. What holds for some repeats holds for fewer of them. */
static int deal_padded(struct hr__planner *planner, struct padded *padded, int64_t end) {
    int64_t width = planner->settings->width, fit = 0, above = end - padded->count;
    while (above - fit > 1) {
        int64_t repeats = fit + (above - fit) / 2, count = fill_up(padded, repeats);
        bool can = count == padded->count + repeats && can_be_dealt(planner->settings, padded->keys, count, width);
        *(can ? &fit : &above) = repeats;
    }
    int64_t count = fill_up(padded, fit);
    planner->plan->repeat_count += fit;
    return hr__plan_deal(planner, padded->keys, count, width);
}

static int pad(struct hr__planner *planner, const uint64_t *sorted, int64_t count) {
    struct padded padded = {.planner = planner, .sorted = sorted, .count = count};
    int64_t end = too_many(&padded);
    padded.keys = hr__plan_array(end, sizeof *padded.keys);
    padded.other = hr__plan_array(end, sizeof *padded.other);
    int r = padded.keys && padded.other ? deal_padded(planner, &padded, end) : -ENOMEM;
    hr__free(padded.keys);
    hr__free(padded.other);
    return r;
}

int hr__plan_tail(struct hr__planner *planner, const uint64_t *sorted, int64_t count) {
    if (count == 0 || planner->settings->tail == HR_PLAN_DROP) return 0;
    int64_t width = planner->settings->width, steps = 1;
    while (!can_be_dealt(planner->settings, sorted, count, steps * width)) steps++;
    planner->fixed_steps = steps;
    if (steps == 1 && planner->settings->tail == HR_PLAN_PAD) return pad(planner, sorted, count);
    return hr__plan_deal(planner, sorted, count, steps * width);
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

static int check_settings(const struct hr_plan_settings *settings) {
    if (settings->width < 1 || settings->width > HR_PLAN_WIDTH_MAX)
        return hr__fail(-EINVAL, "plan: a step of %lld batches; give 1 to %lld", (long long)settings->width,
                        (long long)HR_PLAN_WIDTH_MAX);
    int r = check_limit("max_sum", settings->max_sum);
    if (r == 0) r = check_limit("max_padded", settings->max_padded);
    if (r == 0) r = check_limit("max_batch", settings->max_batch);
    if (r == 0) r = check_limit("pack", settings->pack);
    if (r == 0) r = check_limit("window", settings->window);
    if (r == 0 && settings->pack > HR_PLAN_PACK_MAX)
        r = hr__fail(-EINVAL, "plan: pack is %lld; give %lld at most, or lengths in a larger unit",
                     (long long)settings->pack, (long long)HR_PLAN_PACK_MAX);
    if (r == 0 && (unsigned)settings->tail > HR_PLAN_EXACT)
        r = hr__fail(-EINVAL, "plan: tail is %d; give HR_PLAN_PAD, HR_PLAN_DROP or HR_PLAN_EXACT", (int)settings->tail);
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
    return hr__fail(-EINVAL,
                    "plan: the cost of %lld samples of lengths up to %lld does not fit into 63 bits; give smaller "
                    "numbers for cost_linear and cost_quadratic",
                    (long long)count, (long long)longest);
}

static int check_lengths(const int32_t *lengths, int64_t count, const struct hr_plan_settings *settings) {
    int32_t longest = 0;
    if (count < 0 || count > INT32_MAX - settings->width)
        return hr__fail(-EINVAL, "plan: %lld samples; give 0 to %lld", (long long)count,
                        (long long)(INT32_MAX - settings->width));
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

/* Returns an empty plan with room for each entry twice, because a step may be filled up with repeats, and for a step of
 * them. */
static struct hr_plan *new_plan(int64_t count, int64_t width) {
    struct hr_plan *plan = hr__plan_array(1, sizeof *plan);
    if (!plan) return NULL;
    *plan = (struct hr_plan){.entries = hr__plan_array(2 * count + width, sizeof *plan->entries),
                             .starts = hr__plan_array(1, sizeof *plan->starts)};
    if (!plan->entries || !plan->starts) return hr_plan_free(plan);
    plan->starts[0] = 0;
    return plan;
}

static int make(struct hr__planner *planner) {
    const struct hr_plan_settings *settings = planner->settings;
    if (planner->count == 0) return 0;
    int r = settings->pack           ? hr__plan_pack(planner)
            : settings->bucket_count ? hr__plan_buckets(planner)
                                     : hr__plan_budget(planner);
    if (r < 0) return r;
    planner->plan->step_count = planner->plan->batch_count / settings->width;
    return shuffle_steps(planner);
}

int hr_plan_new(const int32_t *lengths, int64_t count, const struct hr_plan_settings *settings,
                struct hr_plan **ret_plan) {
    int r = check_settings(settings);
    if (r == 0) r = check_lengths(lengths, count, settings);
    if (r < 0) return r;
    struct hr__planner planner = {
        .lengths = lengths,
        .count = count,
        .settings = settings,
        .random = hr__mixed_seed(settings->seed ^ plan_seed, settings->epoch),
        .plan = new_plan(count, settings->width),
    };
    r = planner.plan ? make(&planner) : -ENOMEM;
    hr__free(planner.costs);
    if (r < 0) {
        hr_plan_free(planner.plan);
        return hr__fail(-ENOMEM, "plan: no memory to plan %lld samples", (long long)count);
    }
    *ret_plan = planner.plan;
    return 0;
}
