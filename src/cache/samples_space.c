/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "base/error.h"
#include "cache/samples.h"

/* Divides the budget of a table of samples into extents, each of which one handle fills. */

enum {
    COMMIT_STEP = 2 << 20
}; /* the size of a huge page; at most so much of a handle's extent is committed and unused */

bool hr__samples_maker_lives(const hr_samples *samples, uint64_t maker) {
    return maker == atomic_load(&samples->maker) || hr__byte_is_locked(samples->fd, HR__MAKERS_AT + maker);
}

static uint64_t begin_of(const hr_samples *samples, uint64_t extent) {
    return samples->head->data_at + extent * samples->head->extent_bytes;
}

void hr__samples_release_extent(hr_samples *samples) {
    if (!samples->filling.is_taken) return;
    atomic_store(&samples->extents[samples->filling.extent].owner, 0);
    samples->filling.is_taken = false;
}

/* Commits a part of the data, from whole pages on. A part that is committed already stays as it is. */
static int commit(hr_samples *samples, uint64_t extent, uint64_t from, uint64_t to) {
    uint64_t page = hr__page_bytes(), begin = begin_of(samples, extent);
    uint64_t offset = (begin + from) / page * page, bytes = begin + to - offset;
    bool wants_huge = samples->wants_huge && offset % COMMIT_STEP == 0;
    bool *wants = wants_huge ? &samples->wants_huge : &wants_huge;
    int r = hr__fail_at("samples_commit");
    if (r == 0) r = hr__cache_commit_mapped(samples->fd, samples->file, samples->is_memory, offset, bytes, wants);
    if (r < 0) return -ENOMEM;
    if (samples->is_memory) hr__populate(samples->file + offset, bytes); /* cheaper than a fault for each page */
    return 0;
}

static bool take(hr_samples *samples, uint64_t extent, uint64_t from) {
    return atomic_compare_exchange_strong(&samples->extents[extent].owner, &from, atomic_load(&samples->maker));
}

/* Takes `count` extents in a row that no handle has had, and makes the last one the one that this handle fills. */
static int take_fresh(hr_samples *samples, uint64_t count, uint64_t *ret_first) {
    struct hr__samples_head *head = samples->head;
    uint64_t first = atomic_load(&head->next_extent);
    do
        if (first > head->extent_count || count > head->extent_count - first) return -ENOSPC;
    while (!atomic_compare_exchange_weak(&head->next_extent, &first, first + count));
    hr__stop_at(HR__AT_SAMPLES_EXTENT);
    for (uint64_t i = 0; i < count; i++)
        if (!take(samples, first + i, 0)) return -EAGAIN; /* a handle that found it without an owner was quicker */
    *ret_first = first;
    return 0;
}

/* Returns true if a handle that lives does not have this extent, and it has room; then this handle has it. */
static bool adopt(hr_samples *samples, uint64_t extent, uint64_t bytes) {
    struct hr__samples_extent *one = &samples->extents[extent];
    uint64_t owner = atomic_load(&one->owner), room = samples->head->extent_bytes;
    if (atomic_load(&one->used) > room - bytes) return false;
    if (owner && hr__samples_maker_lives(samples, owner)) return false;
    if (!take(samples, extent, owner)) return false;
    uint64_t used = atomic_load(&one->used); /* its last owner may have gone on until it ended */
    if (used <= room - bytes) return true;
    atomic_store(&one->owner, 0);
    return false;
}

static int find_abandoned(hr_samples *samples, uint64_t bytes, uint64_t *ret_extent) {
    uint64_t count = hr__min(atomic_load(&samples->head->next_extent), samples->head->extent_count);
    for (uint64_t i = 0; i < count; i++)
        if (adopt(samples, i, bytes)) {
            *ret_extent = i;
            return 0;
        }
    return -ENOSPC;
}

/* For a sample of `bytes` bytes, not more than an extent has. */
static int change_extent(hr_samples *samples, uint64_t bytes) {
    uint64_t extent;
    int r = -EAGAIN;
    while (r == -EAGAIN) r = take_fresh(samples, 1, &extent);
    if (r == -ENOSPC) r = find_abandoned(samples, bytes, &extent);
    if (r < 0) return r;
    uint64_t used = atomic_load(&samples->extents[extent].used);
    hr__samples_release_extent(samples);
    samples->filling =
        (struct hr__samples_filling){.extent = extent, .used = used, .committed = used, .is_taken = true};
    return 0;
}

/* For a sample that needs several extents. The rest of the last one stays unused until its owner is gone. */
static int place_large(hr_samples *samples, uint64_t bytes, uint64_t *ret_place) {
    uint64_t first, size = samples->head->extent_bytes, count = bytes / size + (bytes % size != 0);
    int r = -EAGAIN;
    while (r == -EAGAIN) r = take_fresh(samples, count, &first);
    if (r < 0) return r;
    r = commit(samples, first, 0, bytes);
    uint64_t left = r < 0 ? 0 : bytes; /* after a failure other handles may use the extents */
    for (uint64_t i = 0; i < count; i++) {
        uint64_t used = hr__min(left, size);
        atomic_store(&samples->extents[first + i].used, used);
        atomic_store(&samples->extents[first + i].owner, 0);
        left -= used;
    }
    *ret_place = begin_of(samples, first);
    return r;
}

int hr__samples_place(hr_samples *samples, uint64_t bytes, uint64_t *ret_place) {
    uint64_t size = samples->head->extent_bytes;
    if (bytes > size) return place_large(samples, bytes, ret_place);
    struct hr__samples_filling *filling = &samples->filling;
    int r = filling->is_taken && filling->used <= size - bytes ? 0 : change_extent(samples, bytes);
    uint64_t end = filling->used + bytes;
    if (r == 0 && end > filling->committed) {
        uint64_t to = hr__min(hr__round_up(end, COMMIT_STEP), size);
        r = commit(samples, filling->extent, filling->committed, to);
        if (r == 0) filling->committed = to;
    }
    if (r < 0) return r;
    *ret_place = begin_of(samples, filling->extent) + filling->used;
    filling->used = end;
    atomic_store(&samples->extents[filling->extent].used, end);
    return 0;
}
