/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#include "base/alloc.h"
#include "base/base.h"

#include <errno.h>
#include <string.h>

/*
 * Deals the batches of each step to the ranks, so that each rank's batches of a step cost about the same together. The
 * most expensive batch goes first, to the rank that has the least cost so far and not all of its batches yet (Graham's
 * longest processing time, with a number of batches for each rank). The step keeps its samples. Called by plan.c.
 */

/* The ranks while a step is dealt, and the result. */
struct arrangement {
    int64_t ranks, micro; /* batches of a rank in a step */
    uint64_t *costs;      /* of each rank */
    int64_t *counts;      /* batches that each rank has */
    int64_t *order;       /* which batch comes at a place, for all places of the plan */
};

/* Returns whether the samples of a batch are padded to the longest one, for one of the lengths. */
static bool is_padded(const struct hr__planner *planner, const struct hr_plan_length *length) {
    const struct hr_plan_settings *settings = planner->settings;
    if (planner->several) return length->max_padded;
    return !settings->pack && (!settings->max_sum || settings->max_padded);
}

static int64_t position_of(const struct hr_plan *plan, int64_t i) {
    return plan->entries[i] < 0 ? -1 - plan->entries[i] : plan->entries[i];
}

static uint64_t cost_of_length(const struct hr__planner *planner, const struct hr_plan_length *length, int64_t batch) {
    const struct hr_plan *plan = planner->plan;
    int64_t start = plan->starts[batch], end = plan->starts[batch + 1], longest = 0;
    uint64_t cost = 0;
    for (int64_t i = start; i < end; i++) {
        int64_t value = length->values[position_of(plan, i)];
        cost += length->cost_linear * (uint64_t)value + length->cost_quadratic * (uint64_t)value * (uint64_t)value;
        if (value > longest) longest = value;
    }
    if (!is_padded(planner, length)) return cost;
    uint64_t most = (uint64_t)longest;
    return (length->cost_linear * most + length->cost_quadratic * most * most) * (uint64_t)(end - start);
}

static uint64_t cost_of(const struct hr__planner *planner, int64_t batch) {
    const struct hr_plan *plan = planner->plan;
    uint64_t cost = 0;
    for (int64_t i = 0; i < planner->name_count; i++) cost += cost_of_length(planner, &planner->names[i], batch);
    for (int64_t i = plan->starts[batch]; planner->measured && i < plan->starts[batch + 1]; i++)
        cost += planner->measured[position_of(plan, i)];
    return cost;
}

/* Returns the rank that gets the next batch. */
static int64_t find_rank(const struct arrangement *own) {
    int64_t found = -1;
    for (int64_t rank = 0; rank < own->ranks; rank++)
        if (own->counts[rank] < own->micro && (found < 0 || own->costs[rank] < own->costs[found])) found = rank;
    return found;
}

/* Deals the batches of the step that begins with batch `first`. */
static void deal_step(struct hr__planner *planner, struct arrangement *own, int64_t first) {
    int64_t width = planner->settings->width;
    for (int64_t i = first; i < first + width; i++)
        planner->costs[i - first] = (struct hr__batch_cost){cost_of(planner, i), i};
    hr__plan_sort_costs(planner, width);
    memset(own->costs, 0, (size_t)own->ranks * sizeof *own->costs);
    memset(own->counts, 0, (size_t)own->ranks * sizeof *own->counts);
    for (int64_t i = 0; i < width; i++) {
        int64_t rank = find_rank(own), place = own->counts[rank]++ * own->ranks + rank;
        own->order[first + place] = planner->costs[i].batch;
        own->costs[rank] += planner->costs[i].cost;
    }
}

static void copy_batches(const struct hr_plan *plan, const int64_t *order, int32_t *entries, int64_t *starts) {
    int64_t count = 0;
    for (int64_t i = 0; i < plan->batch_count; i++) {
        int64_t start = plan->starts[order[i]], size = plan->starts[order[i] + 1] - start;
        starts[i] = count;
        memcpy(entries + count, plan->entries + start, (size_t)size * sizeof *entries);
        count += size;
    }
    starts[plan->batch_count] = count;
}

/* Deals all steps. Returns false if there is no memory. */
static bool deal_steps(struct hr__planner *planner, struct arrangement *own) {
    struct hr_plan *plan = planner->plan;
    int32_t *entries = hr__plan_array(plan->entry_count, sizeof *entries);
    int64_t *starts = hr__plan_array(plan->batch_count, sizeof *starts);
    if (!entries || !starts) {
        hr__free(entries);
        hr__free(starts);
        return false;
    }
    for (int64_t i = 0; i < plan->batch_count; i += planner->settings->width) deal_step(planner, own, i);
    copy_batches(plan, own->order, entries, starts);
    hr__free(plan->entries);
    hr__free(plan->starts);
    plan->entries = entries;
    plan->starts = starts;
    return true;
}

int hr__plan_arrange(struct hr__planner *planner) {
    int64_t ranks = planner->settings->ranks;
    struct arrangement own = {.ranks = ranks,
                              .micro = planner->settings->width / ranks,
                              .costs = hr__plan_array(ranks, sizeof *own.costs),
                              .counts = hr__plan_array(ranks, sizeof *own.counts),
                              .order = hr__plan_array(planner->plan->batch_count, sizeof *own.order)};
    bool is_ready = own.costs && own.counts && own.order && hr__plan_reserve(planner, planner->settings->width) == 0;
    is_ready = is_ready && deal_steps(planner, &own);
    hr__free(own.costs);
    hr__free(own.counts);
    hr__free(own.order);
    return is_ready ? 0 : -ENOMEM;
}
