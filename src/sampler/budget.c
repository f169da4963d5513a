/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#include "base/alloc.h"
#include "base/base.h"
#include "random.h"

#include <errno.h>
#include <string.h>

/* Plans by max_sum, max_padded and max_batch. A step takes rows of `width` neighbours of the sorted lengths, so that
 * each batch gets one entry of each row. The sum of the longest entries of all rows is what a batch can have at most.
 */

/* A sorted window, and what is left of it. */
struct window {
    const uint64_t *keys;
    int64_t low, high; /* keys[low..high-1] are left */
};

/* Returns how many rows a step has that begins with the shortest entries from window->low on, or 0 if the entries up to
 * `end` do not suffice for as many rows as the limits allow. */
static int64_t count_rows_up(const struct hr__planner *planner, const struct window *window, int64_t end) {
    int64_t width = planner->settings->width, sum = 0;
    for (int64_t rows = 1; window->low + rows * width <= end; rows++) {
        int64_t longest = hr__key_length(window->keys[window->low + rows * width - 1]);
        sum += longest;
        if (!hr__plan_allows(planner->settings, rows, longest, sum)) return rows - 1;
    }
    return 0;
}

/* Does the same for a step that begins with the longest entries and goes down to `end`. */
static int64_t count_rows_down(const struct hr__planner *planner, const struct window *window, int64_t end) {
    int64_t width = planner->settings->width, sum = 0;
    if (window->high - end < width) return 0;
    int64_t longest = hr__key_length(window->keys[window->high - 1]);
    for (int64_t rows = 1; window->high - rows * width >= end; rows++) {
        sum += hr__key_length(window->keys[window->high - 1 - (rows - 1) * width]);
        if (!hr__plan_allows(planner->settings, rows, longest, sum)) return rows - 1;
    }
    return 0;
}

static int take_up(struct hr__planner *planner, struct window *window, int64_t rows) {
    int64_t width = planner->settings->width, count = rows * width;
    int r = hr__plan_deal(planner, window->keys + window->low, count, width);
    window->low += count;
    return r;
}

static int take_down(struct hr__planner *planner, struct window *window, int64_t rows) {
    int64_t width = planner->settings->width, count = rows * width;
    window->high -= count;
    return hr__plan_deal(planner, window->keys + window->high, count, width);
}

/* Returns whether the last steps can be made of what is left after a step without repeating entries. */
static bool leaves_enough(const struct hr__planner *planner, const struct window *window, int64_t rows) {
    int64_t width = planner->settings->width, left = window->high - window->low - rows * width;
    return planner->settings->tail == HR_PLAN_DROP || left == 0 || left >= width;
}

/* Takes full steps from both ends up to a drawn place, and then from what is left around it. So it is drawn which
 * lengths are left over: if they were always the longest ones, these would come last in each epoch, or never. */
static int take_steps(struct hr__planner *planner, struct window *window, bool is_last) {
    int64_t rows, place = window->low;
    place += (int64_t)hr__scale(hr__random_next(&planner->random), (uint64_t)(window->high - window->low) + 1);
    int r = 0;
    while (r == 0 && (rows = count_rows_up(planner, window, place))) r = take_up(planner, window, rows);
    while (r == 0 && (rows = count_rows_down(planner, window, place))) r = take_down(planner, window, rows);
    while (r == 0 && (rows = count_rows_up(planner, window, window->high))) {
        if (is_last && !leaves_enough(planner, window, rows)) break;
        r = take_up(planner, window, rows);
    }
    return r;
}

static int plan_windows(struct hr__planner *planner, uint64_t *keys, uint64_t *other) {
    int64_t left_over = 0;
    int r = 0;
    for (int64_t next = 0; r == 0 && next < planner->count;) {
        int64_t count = hr__plan_window(planner, next, left_over);
        for (int64_t i = 0; i < count; i++) keys[left_over + i] = hr__key_of(planner, next + i);
        next += count;
        struct window window = {keys, 0, left_over + count};
        hr__sort_keys(keys, window.high, other);
        r = take_steps(planner, &window, next == planner->count);
        left_over = window.high - window.low;
        memmove(keys, keys + window.low, (size_t)left_over * sizeof *keys);
    }
    return r < 0 ? r : hr__plan_tail(planner, keys, left_over);
}

int hr__plan_budget(struct hr__planner *planner) {
    uint64_t *keys = hr__plan_array(planner->count, sizeof *keys);
    uint64_t *other = hr__plan_array(planner->count, sizeof *other);
    int r = keys && other ? plan_windows(planner, keys, other) : -ENOMEM;
    hr__free(keys);
    hr__free(other);
    return r;
}
