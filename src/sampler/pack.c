/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#include "base/alloc.h"
#include "base/base.h"

#include <errno.h>
#include <string.h>

/* Plans rows of a capacity: how many there are, and which rows form a step. */

struct packing {
    struct hr__planner *planner;
    struct hr_plan_settings costs; /* the settings of the planner, or other costs: see costs_of */
    uint64_t *keys;                /* the window, sorted */
    uint64_t *other;
    int64_t count;
    struct hr__rows rows;
    int64_t *starts;  /* where each row starts in `ordered`; room for as many rows as there may be, and one more */
    int32_t *ordered; /* entries, row by row */
};

static int64_t divide_up(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

static int64_t need_of(const struct packing *packing, int64_t i) {
    int64_t length = hr__key_length(packing->keys[i]);
    return length < packing->rows.capacity ? length : packing->rows.capacity;
}

/* Returns how many steps there are at least: by the sum of the lengths, by the samples of which no two fit into a row,
 * and by max_batch. */
static int64_t count_steps_at_least(const struct packing *packing) {
    int64_t sum = 0, large = 0, capacity = packing->rows.capacity, width = packing->planner->settings->width;
    for (int64_t i = 0; i < packing->count; i++) {
        sum += need_of(packing, i);
        large += 2 * need_of(packing, i) > capacity;
    }
    int64_t rows = (int64_t)hr__max((uint64_t)divide_up(sum, capacity), (uint64_t)large);
    if (packing->rows.max_batch)
        rows = (int64_t)hr__max((uint64_t)rows, (uint64_t)divide_up(packing->count, packing->rows.max_batch));
    return divide_up(rows ? rows : 1, width);
}

/* Sorts the entries by their rows. Entries without a row are left out. */
static void order_by_row(struct packing *packing) {
    int64_t *starts = packing->starts, rows = packing->rows.count;
    const int32_t *row_of = packing->rows.row_of;
    memset(starts, 0, (size_t)(rows + 2) * sizeof *starts);
    for (int64_t i = 0; i < packing->count; i++)
        if (row_of[i] >= 0) starts[row_of[i] + 2]++;
    for (int64_t i = 2; i < rows + 2; i++) starts[i] += starts[i - 1];
    for (int64_t i = packing->count - 1; i >= 0; i--)
        if (row_of[i] >= 0) packing->ordered[starts[row_of[i] + 1]++] = hr__key_entry(packing->keys[i]);
}

/* Moves one sample to each row that has none, from a row with several. The shortest ones are moved. */
static void fill_empty_rows(struct packing *packing) {
    int32_t *row_of = packing->rows.row_of;
    int64_t *counts = packing->starts, next = 0; /* starts are not used yet */
    memset(counts, 0, (size_t)packing->rows.count * sizeof *counts);
    for (int64_t i = 0; i < packing->count; i++) counts[row_of[i]]++;
    for (int64_t row = 0; row < packing->rows.count; row++) {
        if (counts[row]) continue;
        while (next < packing->count && counts[row_of[next]] < 2) next++;
        if (next == packing->count) return;
        counts[row_of[next]]--;
        counts[row]++;
        row_of[next++] = (int32_t)row;
    }
}

/* Adds the rows as steps of rows of similar cost. */
static int add_rows(struct packing *packing) {
    struct hr__planner *planner = packing->planner;
    struct hr_plan *plan = planner->plan;
    int r = hr__plan_reserve(planner, packing->rows.count);
    if (r < 0) return r;
    order_by_row(packing);
    for (int64_t row = 0; row < packing->rows.count; row++) {
        uint64_t cost = 0;
        for (int64_t i = packing->starts[row]; i < packing->starts[row + 1]; i++)
            cost += hr__cost_of(&packing->costs, planner->lengths[packing->ordered[i]]);
        planner->costs[row] = (struct hr__batch_cost){cost, row};
    }
    hr__plan_sort_costs(planner, packing->rows.count);
    for (int64_t i = 0; i < packing->rows.count; i++) {
        int64_t row = planner->costs[i].batch, start = packing->starts[row], end = packing->starts[row + 1];
        memcpy(plan->entries + plan->entry_count, packing->ordered + start, (size_t)(end - start) * sizeof(int32_t));
        plan->entry_count += end - start;
        hr__plan_end_batch(planner);
    }
    return 0;
}

static int64_t fill_balanced(struct packing *packing, int64_t steps) {
    packing->rows.count = steps * packing->costs.width;
    return hr__fill_balanced(&packing->costs, packing->keys, packing->count, &packing->rows);
}

/* Fills the smallest number of steps that is found. */
static int fill_all(struct packing *packing) {
    int64_t width = packing->planner->settings->width, steps = count_steps_at_least(packing);
    int64_t missing = fill_balanced(packing, steps);
    if (missing <= 0) return (int)missing;
    int r = hr__fill_best_fit(packing->keys, packing->count, &packing->rows);
    if (r < 0) return r;
    int64_t enough = divide_up(packing->rows.count, width);
    if (enough > steps) {
        missing = fill_balanced(packing, enough);
        if (missing <= 0) return (int)missing;
        r = hr__fill_best_fit(packing->keys, packing->count, &packing->rows);
    }
    packing->rows.count = enough * width;
    if (r == 0) fill_empty_rows(packing);
    return r;
}

static int compare(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* Leaves out the last entries of the order, so that `kept` are left. */
static void drop_last(struct packing *packing, int64_t kept) {
    int64_t left = 0;
    for (int64_t i = 0; i < packing->count; i++) packing->other[i] = (uint32_t)packing->keys[i];
    qsort(packing->other, (size_t)packing->count, sizeof *packing->other, compare);
    uint64_t end = packing->other[kept];
    for (int64_t i = 0; i < packing->count; i++)
        if ((uint32_t)packing->keys[i] < end) packing->keys[left++] = packing->keys[i];
    packing->count = left;
}

/* If there are fewer samples than rows, a row would have to repeat one. With HR_PLAN_DROP, the samples at the end of
 * the order that do not suffice for a step are left out instead. */
static int pack_last(struct packing *packing) {
    const struct hr_plan_settings *settings = packing->planner->settings;
    int64_t width = settings->width;
    int r = fill_all(packing);
    if (r == 0 && settings->tail == HR_PLAN_DROP && packing->rows.count > packing->count) {
        drop_last(packing, packing->count - packing->count % width);
        r = packing->count ? fill_all(packing) : 0;
    }
    return r < 0 || packing->count == 0 ? r : add_rows(packing);
}

/* Fills as many steps as the sum of the lengths of a window suffices for. Samples that no row has room for are left for
 * the next window. */
static int pack_window(struct packing *packing) {
    int64_t sum = 0, step, left = 0, width = packing->planner->settings->width;
    for (int64_t i = 0; i < packing->count; i++) sum += need_of(packing, i);
    bool is_less = __builtin_mul_overflow(packing->rows.capacity, width, &step) || sum < step;
    if (is_less || packing->count < sum / step * width) return 0;
    int64_t missing = fill_balanced(packing, sum / step);
    if (missing < 0) return (int)missing;
    int r = add_rows(packing);
    for (int64_t i = 0; i < packing->count; i++)
        if (packing->rows.row_of[i] < 0) packing->keys[left++] = packing->keys[i];
    packing->count = left;
    return r;
}

static int pack_windows(struct packing *packing) {
    struct hr__planner *planner = packing->planner;
    int r = 0;
    for (int64_t next = 0; r == 0 && next < planner->count;) {
        int64_t count = hr__plan_window(planner, next, packing->count);
        for (int64_t i = 0; i < count; i++) packing->keys[packing->count++] = hr__key_of(planner, next + i);
        next += count;
        hr__sort_keys(packing->keys, packing->count, packing->other);
        r = next < planner->count ? pack_window(packing) : pack_last(packing);
    }
    return r;
}

/* If the cost is that of the sum of the lengths, full rows are equal anyway. Then the squares are balanced, which mixes
 * long and short samples in each row, so that the short ones are there to fill the gaps of all rows. */
static struct hr_plan_settings costs_of(const struct hr_plan_settings *settings) {
    struct hr_plan_settings costs = *settings;
    if (costs.cost_quadratic == 0) {
        costs.cost_linear = 0;
        costs.cost_quadratic = 1;
    }
    return costs;
}

int hr__plan_pack(struct hr__planner *planner) {
    const struct hr_plan_settings *settings = planner->settings;
    int64_t most = planner->count + settings->width; /* rows */
    struct packing packing = {
        .planner = planner,
        .costs = costs_of(settings),
        .keys = hr__plan_array(planner->count, sizeof *packing.keys),
        .other = hr__plan_array(planner->count, sizeof *packing.other),
        .rows = {.capacity = settings->pack,
                 .max_batch = settings->max_batch,
                 .row_of = hr__plan_array(planner->count, sizeof *packing.rows.row_of)},
        .starts = hr__plan_array(most + 2, sizeof *packing.starts),
        .ordered = hr__plan_array(planner->count, sizeof *packing.ordered),
    };
    bool is_ready = packing.keys && packing.other && packing.rows.row_of && packing.starts && packing.ordered;
    int r = is_ready ? pack_windows(&packing) : -ENOMEM;
    hr__free(packing.keys);
    hr__free(packing.other);
    hr__free(packing.rows.row_of);
    hr__free(packing.starts);
    hr__free(packing.ordered);
    return r;
}
