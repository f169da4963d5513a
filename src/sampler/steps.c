/* SPDX-License-Identifier: Apache-2.0 */
#include "several.h"

#include "base/alloc.h"
#include "base/base.h"
#include "random.h"

#include <errno.h>
#include <string.h>

/*
 * Makes steps of batches that are filled. Batches of similar cost form a step. Three things are in the way:
 *
 * - Their number is no multiple of the width. Rows of a capacity are added: they get samples of the cheapest rows that
 *   have several, and these rows even out their costs. Of other batches, those that are too many are left for the tail.
 * - Some are much cheaper than all others, for example one that a long text without an image fills. In a step with
 *   others they make its mean small, and there are not enough of them for a step of their own. Each of them is put into
 *   another step, so that a step waits for one batch at most.
 * - A few batches of a step cost more than its other ones. They exchange samples with these.
 */

enum {
    MOST_STEPS = 32,     /* steps over which cheap rows are spread */
    SPREAD_FROM = 5,     /* a step may lack one of so many parts of what it would cost if all its rows cost the most */
    LONGER_PARTS = 1000, /* all steps may take one of so many parts longer for that */
    SOME_MORE = 8,       /* rows that even out their costs in addition to those that are missing */
};

/* ---- rows that are missing ---- */

static int64_t multiple_of(int64_t count, int64_t width) {
    return (count + width - 1) / width * width;
}

/* Leaves the entries from `end` on out of their rows, and rows without entries out too. */
static void leave_out(const struct hr__planner *planner, struct hr__batches *rows, int64_t end) {
    int64_t count = 0;
    for (int64_t i = 0; i < rows->count; i++) {
        int32_t entry = rows->at[i].first, next;
        hr__batch_clear(planner, &rows->at[count]);
        for (; entry >= 0; entry = next) {
            next = rows->next[entry];
            if (entry < end) hr__batch_put(planner, rows, count, entry);
        }
        count += rows->at[count].count > 0;
    }
    rows->count = count;
}

/* Moves up to `wanted` of the cheapest rows that have several samples to the end of the sorted rows. Returns where they
 * begin. */
static int64_t gather(struct hr__batches *rows, int64_t wanted) {
    int64_t place = rows->count;
    for (int64_t i = rows->count - 1; i >= 0 && rows->count - place < wanted; i--) {
        if (rows->at[i].count < 2) continue;
        struct hr__batch row = rows->at[i];
        memmove(&rows->at[i], &rows->at[i + 1], (size_t)(place - 1 - i) * sizeof row);
        rows->at[--place] = row;
    }
    return place;
}

/* Returns the most expensive of some rows that has several samples. */
static int64_t find_costliest(const struct hr__batches *rows, int64_t first, int64_t end) {
    int64_t found = -1;
    for (int64_t i = first; i < end; i++)
        if (rows->at[i].count > 1 && (found < 0 || rows->at[i].cost > rows->at[found].cost)) found = i;
    return found;
}

/* Adds the rows that are missing. If there are fewer samples than rows, some rows stay empty. */
static int add_missing(const struct hr__planner *planner, struct hr__batches *rows, int64_t missing) {
    int64_t begin = gather(rows, 2 * missing + SOME_MORE), empty = rows->count;
    int r = hr__batches_resize(planner, rows, empty + missing);
    if (r < 0) return r;
    for (int64_t i = empty; i < rows->count; i++) {
        int64_t from = find_costliest(rows, begin, i);
        if (from < 0) break;
        hr__exchange_fill(planner, rows, from, i);
    }
    hr__exchange(planner, rows, begin, rows->count - begin, true);
    hr__batches_sort(rows, 0, rows->count);
    return 0;
}

/* ---- cheap rows ---- */

/* Returns by how much a step may cost less than if all its rows cost as much as the most expensive one: by a part of
 * that, and by one row at least. */
static hr__product allowed_lack(uint64_t most, int64_t width) {
    hr__product part = (hr__product)most * (uint64_t)width / SPREAD_FROM, one = (hr__product)most + most / 16;
    return part > one ? part : one;
}

static hr__product lack_of(const struct hr__batch *step, int64_t width) {
    hr__product lack = 0;
    for (int64_t i = 1; i < width; i++) lack += step[0].cost - step[i].cost;
    return lack;
}

/* Makes a step of the rows that are left, sorted: the most expensive ones, and as many of the cheapest ones as it may
 * have. Returns how many cheap ones those are. */
static int64_t count_cheap(const struct hr__batch *rows, int64_t left, int64_t width) {
    hr__product allowed = allowed_lack(rows[0].cost, width), lack = lack_of(rows, width);
    int64_t cheap = 0;
    while (cheap < width - 1) {
        lack += rows[width - 1 - cheap].cost - rows[left - 1 - cheap].cost;
        if (lack > allowed) return cheap;
        cheap++;
    }
    return cheap;
}

/* Writes the rows of some steps in the order of other steps, each of which has some of the cheapest rows. Returns
 * whether no step costs less than it may. */
static bool spread(const struct hr__batch *rows, int64_t steps, int64_t width, struct hr__batch *ret_spread) {
    bool is_even = true;
    for (int64_t left = steps * width; left > 0; left -= width, ret_spread += width) {
        int64_t cheap = count_cheap(rows, left, width), costly = width - cheap;
        memcpy(ret_spread, rows, (size_t)costly * sizeof *rows);
        memcpy(ret_spread + costly, rows + left - cheap, (size_t)cheap * sizeof *rows);
        rows += costly;
        is_even = is_even && lack_of(ret_spread, width) <= allowed_lack(ret_spread[0].cost, width);
    }
    return is_even;
}

/* Returns what the most expensive rows of some steps cost together: the time that the steps take. */
static uint64_t time_of(const struct hr__batch *rows, int64_t steps, int64_t width) {
    uint64_t time = 0;
    for (int64_t i = 0; i < steps; i++) time += rows[i * width].cost;
    return time;
}

/* Spreads the cheap rows of each step that costs less than it may over it and the steps before it, as few as suffice.
 * The step `last` is the last one of these. The epoch may take a little longer by that, and no more. */
static void spread_cheap(struct hr__batches *rows, int64_t width, int64_t last, struct hr__batch *room) {
    uint64_t longer = time_of(rows->at, rows->count / width, width) / LONGER_PARTS;
    for (int64_t step = last; step > 0; step--) {
        const struct hr__batch *at = &rows->at[step * width];
        if (lack_of(at, width) <= allowed_lack(at->cost, width)) continue;
        for (int64_t steps = 2; steps <= MOST_STEPS && steps <= step + 1; steps++) {
            struct hr__batch *first = &rows->at[(step + 1 - steps) * width];
            if (!spread(first, steps, width, room)) continue;
            uint64_t before = time_of(first, steps, width), after = time_of(room, steps, width);
            if (after > before && after - before > longer) break;
            longer -= after > before ? after - before : 0;
            memcpy(first, room, (size_t)(steps * width) * sizeof *first);
            step -= steps - 1;
            break;
        }
    }
}

/* ---- steps ---- */

/* Makes steps of sorted rows, whose number is a multiple of the width. */
static int even_out(const struct hr__planner *planner, struct hr__batches *rows) {
    int64_t width = planner->settings->width, steps = rows->count / width;
    int64_t most = (int64_t)hr__min((uint64_t)steps, MOST_STEPS);
    bool has_empty = rows->at[rows->count - 1].count == 0; /* repeats have to be in the last step */
    struct hr__batch *room = hr__plan_array(most * width, sizeof *room);
    if (!room) return -ENOMEM;
    spread_cheap(rows, width, steps - 1 - has_empty, room);
    hr__free(room);
    for (int64_t i = 0; i < rows->count; i += width) {
        hr__exchange(planner, rows, i, width, false);
        hr__batches_sort(rows, i, width);
    }
    return 0;
}

/* Makes the number of rows a multiple of the width. */
static int complete(const struct hr__planner *planner, struct hr__batches *rows) {
    int64_t width = planner->settings->width;
    if (multiple_of(rows->count, width) > planner->count && planner->settings->tail == HR_PLAN_DROP)
        leave_out(planner, rows, planner->count / width * width);
    int64_t missing = multiple_of(rows->count, width) - rows->count;
    hr__batches_sort(rows, 0, rows->count);
    return missing ? add_missing(planner, rows, missing) : 0;
}

/* Moves `count` batches from a drawn place of the first `end` ones to their end. So it is drawn which samples are left
 * over, and none are left over in each epoch. */
static int move_some(struct hr__planner *planner, struct hr__batches *batches, int64_t end, int64_t count) {
    int64_t place = (int64_t)hr__scale(hr__random_next(&planner->random), (uint64_t)(end - count) + 1);
    struct hr__batch *at = batches->at + place, *moved = hr__plan_array(count, sizeof *moved);
    if (!moved) return -ENOMEM;
    memcpy(moved, at, (size_t)count * sizeof *at);
    memmove(at, at + count, (size_t)(end - count - place) * sizeof *at);
    memcpy(batches->at + end - count, moved, (size_t)count * sizeof *at);
    hr__free(moved);
    return 0;
}

/* Sorts the batches, apart from those that are left for the tail, which are the last ones: the last one that was
 * filled, if it is not full, and so many others that the rest can be divided by the width. If these have fewer samples
 * than a step has batches, they are a step more. Sets how many are not left. -ENOMEM. */
static int leave_some(struct hr__planner *planner, struct hr__batches *batches, int64_t *ret_count) {
    int64_t width = planner->settings->width, samples = 0;
    int64_t whole = batches->count - !hr__batch_is_full(planner, &batches->at[batches->count - 1]);
    int64_t count = whole - whole % width;
    hr__batches_sort(batches, 0, whole);
    int r = move_some(planner, batches, whole, whole - count);
    for (int64_t i = count; i < batches->count; i++) samples += batches->at[i].count;
    bool is_few = samples > 0 && samples < width && planner->settings->tail != HR_PLAN_DROP;
    *ret_count = is_few && count > 0 ? count - width : count;
    return r;
}

/* Makes steps of the first `count` batches, and leaves the others. */
static int make_steps(struct hr__planner *planner, struct hr__batches *batches, int64_t count) {
    int64_t left = batches->count - count;
    batches->count = count;
    int r = count ? even_out(planner, batches) : 0;
    if (r == 0) r = hr__batches_append(planner, batches);
    memmove(batches->at, batches->at + count, (size_t)left * sizeof *batches->at);
    batches->count = left;
    return r;
}

int hr__steps_make(struct hr__planner *planner, struct hr__batches *batches) {
    int64_t count;
    int r;
    if (planner->several->has_rows) {
        r = complete(planner, batches);
        count = batches->count;
    } else {
        r = leave_some(planner, batches, &count);
    }
    return r < 0 ? r : make_steps(planner, batches, count);
}
