/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of samples with several lengths while they are made. Called by the other files that several.h names. */
#include "several.h"

#include "base/alloc.h"
#include "base/base.h"

#include <errno.h>
#include <string.h>

enum { FULL_PARTS = 200 /* a batch is full if less than one of so many parts of a limit is left */ };

int hr__batches_new(int64_t entries, struct hr__batches *ret_batches) {
    *ret_batches = (struct hr__batches){.next = hr__plan_array(entries, sizeof *ret_batches->next)};
    return ret_batches->next ? 0 : -ENOMEM;
}

void hr__batches_free(struct hr__batches *batches) {
    hr__free(batches->at);
    hr__free(batches->next);
    *batches = (struct hr__batches){0};
}

void hr__batch_note_rooms(const struct hr__planner *planner, struct hr__batch *batch) {
    const struct hr__several *several = planner->several;
    for (int i = 0; i < several->limit_count; i++) {
        const struct hr__limit *limit = &several->limits[i];
        int64_t room = limit->is_padded ? limit->most / (batch->count + 1) : limit->most - batch->used[i];
        bool is_closed = room < 0 || (limit->is_padded && batch->used[i] > room);
        batch->rooms[i] = is_closed ? -1 : hr__share_of(room, limit->most);
    }
}

void hr__batch_clear(const struct hr__planner *planner, struct hr__batch *batch) {
    *batch = (struct hr__batch){.first = -1, .repeat = -1};
    hr__batch_note_rooms(planner, batch);
}

int hr__batches_resize(const struct hr__planner *planner, struct hr__batches *batches, int64_t count) {
    void *at = batches->at;
    int r = hr__plan_grow(&at, &batches->room, count, sizeof *batches->at);
    batches->at = at;
    if (r < 0) return r;
    for (int64_t i = batches->count; i < count; i++) hr__batch_clear(planner, &batches->at[i]);
    batches->count = count;
    return 0;
}

bool hr__batch_allows(const struct hr__planner *planner, const struct hr__batch *batch, int64_t entry) {
    const struct hr__several *several = planner->several;
    int64_t count = batch->count + 1, max_batch = planner->settings->max_batch;
    if (count == 1) return true;
    if (max_batch && count > max_batch) return false;
    for (int i = 0; i < several->limit_count; i++) {
        const struct hr__limit *limit = &several->limits[i];
        int64_t length = limit->lengths[entry], used = batch->used[i];
        if (!limit->is_padded && length > limit->most - used) return false;
        if (limit->is_padded && (length > used ? length : used) > limit->most / count) return false;
    }
    return true;
}

bool hr__batch_is_full(const struct hr__planner *planner, const struct hr__batch *batch) {
    const struct hr__several *several = planner->several;
    if (batch->count == planner->settings->max_batch) return true;
    for (int i = 0; i < several->limit_count; i++) {
        const struct hr__limit *limit = &several->limits[i];
        if (batch->rooms[i] < 0) return true;
        if (!limit->is_padded && batch->used[i] >= limit->most - limit->most / FULL_PARTS) return true;
    }
    return false;
}

/* Counts an entry that a batch gets. */
static void count_in(const struct hr__planner *planner, struct hr__batch *batch, int64_t entry) {
    const struct hr__several *several = planner->several;
    batch->cost += several->costs[entry];
    batch->count++;
    for (int i = 0; i < several->limit_count; i++) {
        int64_t length = several->limits[i].lengths[entry];
        if (!several->limits[i].is_padded)
            batch->used[i] += length;
        else if (length > batch->used[i])
            batch->used[i] = length;
    }
    hr__batch_note_rooms(planner, batch);
}

void hr__batch_put(const struct hr__planner *planner, struct hr__batches *batches, int64_t batch, int64_t entry) {
    struct hr__batch *at = &batches->at[batch];
    count_in(planner, at, entry);
    batches->next[entry] = at->first;
    at->first = (int32_t)entry;
}

void hr__batch_repeat(const struct hr__planner *planner, struct hr__batches *batches, int64_t batch, int64_t entry) {
    count_in(planner, &batches->at[batch], entry);
    batches->at[batch].repeat = (int32_t)entry;
}

/* A batch of a higher cost comes first. Those of equal cost are told apart by their entries. */
static int compare(const void *one, const void *other) {
    const struct hr__batch *a = one, *b = other;
    if (a->cost != b->cost) return a->cost < b->cost ? 1 : -1;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    return (a->repeat > b->repeat) - (a->repeat < b->repeat);
}

void hr__batches_sort(struct hr__batches *batches, int64_t first, int64_t count) {
    qsort(batches->at + first, (size_t)count, sizeof *batches->at, compare);
}

int hr__batches_append(struct hr__planner *planner, const struct hr__batches *batches) {
    struct hr_plan *plan = planner->plan;
    int r = hr__plan_reserve(planner, batches->count);
    if (r < 0) return r;
    for (int64_t i = 0; i < batches->count; i++) {
        const struct hr__batch *batch = &batches->at[i];
        for (int32_t entry = batch->first; entry >= 0; entry = batches->next[entry])
            plan->entries[plan->entry_count++] = entry;
        if (batch->repeat >= 0) {
            plan->entries[plan->entry_count++] = -1 - batch->repeat;
            plan->repeat_count++;
        }
        hr__plan_end_batch(planner);
    }
    return 0;
}
