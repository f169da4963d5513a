/* SPDX-License-Identifier: Apache-2.0 */
#include "several.h"

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "random.h"

#include <errno.h>
#include <string.h>

/* Plans of samples with several lengths (headrace/sampler.h): checks the arguments, and notes the limits and what each
 * sample costs. hr__plan_make (plan.c) then calls hr__several_plan. The results are part of saved states: a change that
 * changes them needs a number of its own (`algorithm` in python/headrace/sampling/_plan_settings.py). */

/* ---- checks ---- */

static int check_number(int64_t length, const char *name, int64_t limit) {
    if (limit >= 0) return 0;
    return hr__fail(-EINVAL, "plan: %s of length %lld is %lld; give 1 or more, or 0 for no limit", name,
                    (long long)length, (long long)limit);
}

static int check_length(const struct hr_plan_length *lengths, int64_t i, bool has_costs) {
    const struct hr_plan_length *length = &lengths[i];
    int r = length->values ? 0 : hr__fail(-EINVAL, "plan: length %lld has no values", (long long)i);
    if (r == 0) r = check_number(i, "max_sum", length->max_sum);
    if (r == 0) r = check_number(i, "max_padded", length->max_padded);
    if (r == 0) r = check_number(i, "pack", length->pack);
    if (r == 0 && length->pack > HR_PLAN_PACK_MAX)
        r = hr__fail(-EINVAL, "plan: pack of length %lld is %lld; give %lld at most, or lengths in a larger unit",
                     (long long)i, (long long)length->pack, (long long)HR_PLAN_PACK_MAX);
    if (r == 0 && has_costs && (length->cost_linear || length->cost_quadratic))
        r = hr__fail(-EINVAL, "plan: length %lld has a cost, but the costs of the samples are given; give one of them",
                     (long long)i);
    return r;
}

/* Checks that the limits are those of one way to plan. */
static int check_ways(const struct hr_plan_length *lengths, int64_t length_count,
                      const struct hr_plan_settings *settings) {
    bool has_rows = false, has_limits = settings->max_batch > 0;
    for (int64_t i = 0; i < length_count; i++) {
        has_rows = has_rows || lengths[i].pack;
        if (lengths[i].pack && (lengths[i].max_sum || lengths[i].max_padded))
            return hr__fail(-EINVAL, "plan: length %lld has pack and another limit; give one of them", (long long)i);
        has_limits = has_limits || lengths[i].max_sum || lengths[i].max_padded;
    }
    if (!has_rows && !has_limits)
        return hr__fail(-EINVAL, "plan: give max_sum, max_padded or pack of a length, or max_batch");
    for (int64_t i = 0; has_rows && i < length_count; i++)
        if (lengths[i].max_sum || lengths[i].max_padded)
            return hr__fail(-EINVAL, "plan: length %lld has a limit, but others have pack; give it pack too",
                            (long long)i);
    return 0;
}

static int check_settings(const struct hr_plan_settings *settings) {
    if (settings->max_sum || settings->max_padded || settings->pack || settings->bucket_count)
        return hr__fail(-EINVAL, "plan: max_sum, max_padded and pack belong to a length here, and buckets are for one "
                                 "length only");
    if (settings->cost_linear || settings->cost_quadratic)
        return hr__fail(-EINVAL, "plan: cost_linear and cost_quadratic belong to a length here");
    return 0;
}

static int check_values(const struct hr_plan_length *length, int64_t i, int64_t count, int32_t *ret_longest) {
    *ret_longest = 0;
    for (int64_t k = 0; k < count; k++) {
        if (length->values[k] < 0)
            return hr__fail(-EINVAL, "plan: length %lld at position %lld is %d; give 0 or more", (long long)i,
                            (long long)k, (int)length->values[k]);
        if (length->values[k] > *ret_longest) *ret_longest = length->values[k];
    }
    return 0;
}

static int check_costs(const uint32_t *costs, int64_t count) {
    for (int64_t i = 0; costs && i < count; i++)
        if (costs[i] < 1 || costs[i] > HR_PLAN_COST_MAX)
            return hr__fail(-EINVAL, "plan: the cost at position %lld is %lu; give 1 to %lu", (long long)i,
                            (unsigned long)costs[i], (unsigned long)HR_PLAN_COST_MAX);
    return 0;
}

/* Adds the cost of a length to the cost of a sample. Returns false if that does not fit into 63 bits. */
static bool add_cost(const struct hr_plan_length *length, int32_t value, uint64_t *cost) {
    uint64_t linear, square, sum;
    if (!hr__mul(length->cost_linear, (uint64_t)value, &linear) ||
        !hr__mul((uint64_t)value * (uint64_t)value, length->cost_quadratic, &square) ||
        !hr__add(linear, square, &sum) || !hr__add(*cost, sum, &sum) || sum > INT64_MAX)
        return false;
    *cost = sum;
    return true;
}

/* Checks the values, and that the cost of all samples fits into 63 bits, even if all had the longest lengths. */
static int check_all(const struct hr_plan_length *lengths, int64_t length_count, const uint32_t *costs, int64_t count) {
    uint64_t cost = 1;
    bool fits = true;
    for (int64_t i = 0; i < length_count; i++) {
        int32_t longest;
        int r = check_values(&lengths[i], i, count, &longest);
        if (r < 0) return r;
        fits = fits && add_cost(&lengths[i], longest, &cost);
    }
    if (fits && hr__mul(cost, (uint64_t)count + 1, &cost) && cost <= INT64_MAX) return check_costs(costs, count);
    return hr__fail(-EINVAL,
                    "plan: the cost of %lld samples with %lld lengths does not fit into 63 bits; only the ratio "
                    "of the factors counts, so give smaller ones, or lengths in a larger unit",
                    (long long)count, (long long)length_count);
}

static int check(const struct hr_plan_length *lengths, int64_t length_count, const uint32_t *costs, int64_t count,
                 const struct hr_plan_settings *settings) {
    if (length_count < 1 || length_count > HR_PLAN_LENGTHS_MAX)
        return hr__fail(-EINVAL, "plan: %lld lengths of a sample; give 1 to %d", (long long)length_count,
                        HR_PLAN_LENGTHS_MAX);
    int r = check_settings(settings);
    for (int64_t i = 0; r == 0 && i < length_count; i++) r = check_length(lengths, i, costs);
    if (r == 0) r = check_ways(lengths, length_count, settings);
    if (r == 0) r = hr__plan_check_common(settings, count);
    return r < 0 ? r : check_all(lengths, length_count, costs, count);
}

/* ---- what each sample costs ---- */

static void note_costs(const struct hr__planner *planner, uint64_t *ret_costs) {
    for (int64_t entry = 0; entry < planner->count; entry++) {
        uint64_t cost = planner->measured ? planner->measured[entry] : 1;
        for (int64_t i = 0; i < planner->name_count; i++)
            (void)add_cost(&planner->names[i], planner->names[i].values[entry], &cost);
        ret_costs[entry] = cost;
    }
}

/* Writes the costs with 31 bits, so that they can be sorted as lengths are. */
static void note_sorted_by(const struct hr__planner *planner, const uint64_t *costs, int32_t *ret_sorted_by) {
    uint64_t most = 0;
    int shift = 0;
    for (int64_t i = 0; i < planner->count; i++) most = hr__max(most, costs[i]);
    while (most >> shift > INT32_MAX) shift++;
    for (int64_t i = 0; i < planner->count; i++) ret_sorted_by[i] = (int32_t)(costs[i] >> shift);
}

/* ---- limits ---- */

static void add_limit(struct hr__several *several, const int32_t *lengths, int64_t most, bool is_padded) {
    if (most) several->limits[several->limit_count++] = (struct hr__limit){lengths, most, is_padded};
}

/* Returns the sum of the lengths that a limit is for, of all samples. */
static uint64_t sum_of(const struct hr__limit *limit, int64_t count) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (uint64_t)limit->lengths[i];
    return sum;
}

/* Moves the padded limit of which all samples need the largest part to the end: the samples of a window are sorted by
 * its length. */
static void find_main(struct hr__several *several, int64_t count) {
    struct hr__limit *limits = several->limits, *found = NULL;
    uint64_t most = 0;
    for (int i = 0; i < several->limit_count; i++) {
        uint64_t sum = limits[i].is_padded ? sum_of(&limits[i], count) : 0;
        bool is_larger =
            found && (hr__product)sum * (uint64_t)found->most > (hr__product)most * (uint64_t)limits[i].most;
        if (!limits[i].is_padded || (found && !is_larger)) continue;
        found = &limits[i];
        most = sum;
    }
    if (!found) return;
    struct hr__limit *last = &limits[several->limit_count - 1], moved = *found;
    *found = *last;
    *last = moved;
    several->main = last;
}

/* Notes the limits. Samples are compared by those of them that do not hold by the order in which they come; if there is
 * none, by one that is never reached. */
static void note_limits(const struct hr__planner *planner, struct hr__several *several) {
    for (int64_t i = 0; i < planner->name_count; i++) {
        const struct hr_plan_length *length = &planner->names[i];
        add_limit(several, length->values, length->pack, false);
        add_limit(several, length->values, length->max_sum, false);
        add_limit(several, length->values, length->max_padded, true);
        several->has_rows = several->has_rows || length->pack;
    }
    find_main(several, planner->count);
    several->compared = several->limit_count - !!several->main;
    several->is_sorted = several->main || several->limit_count == 0;
    if (several->compared) return;
    several->limits[1] = several->limits[0];
    several->limits[0] = (struct hr__limit){planner->names[0].values, INT64_MAX, false};
    if (several->main) several->main = &several->limits[1];
    several->limit_count++;
    several->compared = 1;
}

/* Prepares what the plan needs to know of the samples. The caller frees it, also after an error. */
static int prepare(struct hr__planner *planner, struct hr__several *several) {
    planner->several = several;
    note_limits(planner, several);
    several->costs = hr__plan_array(planner->count, sizeof *several->costs);
    several->sorted_by = hr__plan_array(planner->count, sizeof *several->sorted_by);
    if (!several->costs || !several->sorted_by || hr__batches_new(planner->count, &several->batches) < 0)
        return -ENOMEM;
    note_costs(planner, several->costs);
    if (several->main)
        memcpy(several->sorted_by, several->main->lengths, (size_t)planner->count * sizeof *several->sorted_by);
    else
        note_sorted_by(planner, several->costs, several->sorted_by);
    return 0;
}

int hr__several_plan(struct hr__planner *planner) {
    struct hr__batches *batches = &planner->several->batches;
    int r = hr__pool_fill(planner, batches);
    if (r == 0) r = hr__steps_make(planner, batches);
    return r < 0 ? r : hr__tail_make(planner, batches);
}

/* Plans samples with one length and its own cost, as hr_plan_new does. */
static int plan_one(const struct hr_plan_length *length, int64_t count, const struct hr_plan_settings *settings,
                    struct hr_plan **ret_plan) {
    struct hr_plan_settings own = *settings;
    own.max_sum = length->max_sum;
    own.max_padded = length->max_padded;
    own.pack = length->pack;
    own.cost_linear = length->cost_linear;
    own.cost_quadratic = length->cost_quadratic;
    return hr_plan_new(length->values, count, &own, ret_plan);
}

int hr_plan_new_several(const struct hr_plan_length *lengths, int64_t length_count, const uint32_t *costs,
                        int64_t count, const struct hr_plan_settings *settings, struct hr_plan **ret_plan) {
    int r = check(lengths, length_count, costs, count, settings);
    if (r < 0) return r;
    if (length_count == 1 && !costs) return plan_one(lengths, count, settings, ret_plan);
    struct hr__several several = {.limit_count = 0};
    struct hr__planner planner = {
        .names = lengths, .name_count = length_count, .measured = costs, .count = count, .settings = settings};
    r = prepare(&planner, &several);
    r = hr__plan_make(&planner, r, ret_plan);
    hr__free(several.costs);
    hr__free(several.sorted_by);
    hr__batches_free(&several.batches);
    return r;
}
