/* SPDX-License-Identifier: Apache-2.0 */
/* Computes, writes and checks the layout of the shared file. */
#include "layout.h"

#include <errno.h>

#include <headrace/arena.h>

#include "base/error.h"
#include "os/os.h"
#include "ring.h"

static uint64_t window_align(uint64_t window_bytes) {
    return window_bytes < HR_WINDOW_STEP ? HR_COMMIT_STEP : HR_WINDOW_STEP;
}

/* Computes all offsets; no other code does. The counts are in range. */
int hr__layout_plan(uint32_t worker_count, uint32_t slot_count, uint32_t ring_capacity, uint64_t window_bytes,
                    struct hr__arena_layout *ret_layout) {
    struct hr__arena_layout plan = {.workers_at = HR__HEADER_ROOM,
                                    .window_bytes = window_bytes,
                                    .worker_count = worker_count,
                                    .slot_count = slot_count,
                                    .ring_capacity = ring_capacity};
    uint64_t windows_bytes;
    plan.slots_at = plan.workers_at + (uint64_t)worker_count * sizeof(struct hr__worker);
    plan.rings_at = plan.slots_at + (uint64_t)slot_count * sizeof(struct hr__slot);
    plan.sights_at = plan.rings_at + 2 * worker_count * hr__ring_bytes(ring_capacity);
    plan.head_end = plan.sights_at + (uint64_t)worker_count * sizeof(struct hr__sight);
    plan.windows_at = hr__round_up(plan.head_end, window_align(window_bytes));
    if (!hr__mul(slot_count, window_bytes, &windows_bytes)) return -EOVERFLOW;
    if (!hr__add(plan.windows_at, windows_bytes, &plan.total_bytes) || plan.total_bytes > INT64_MAX) return -EOVERFLOW;
    *ret_layout = plan;
    return 0;
}

void hr__shown_write(const struct hr__arena_layout *layout) {
    struct hr__shown *shown = hr__shown_of(layout->header);
    shown->magic = HR__SHOWN_MAGIC;
    shown->version = HR__SHOWN_VERSION;
    shown->bytes = sizeof *shown;
    shown->worker_count = layout->worker_count;
    shown->trainer_pid = layout->header->trainer_pid;
    shown->records_at = layout->workers_at;
    shown->rings_at = layout->rings_at;
    shown->sights_at = layout->sights_at;
    shown->record_bytes = sizeof(struct hr__worker);
    shown->ring_bytes = (uint32_t)hr__ring_bytes(layout->ring_capacity);
    shown->sight_bytes = sizeof(struct hr__sight);
}

void hr__layout_write(struct hr__arena_layout *layout, void *mapping, uint64_t limit_bytes, uint32_t trainer_pid) {
    struct hr__header *header = layout->header = mapping;
    header->magic = HR__MAGIC;
    header->abi_version = HR__ABI_VERSION;
    header->header_bytes = sizeof *header;
    header->worker_count = layout->worker_count;
    header->slot_count = layout->slot_count;
    header->ring_capacity = layout->ring_capacity;
    header->trainer_pid = trainer_pid;
    header->total_bytes = layout->total_bytes;
    header->limit_bytes = limit_bytes;
    header->window_bytes = layout->window_bytes;
    hr__shown_write(layout);
    hr__stop_at(HR__AT_ARENA_WRITTEN);
    atomic_store_explicit(&header->ready, 1, memory_order_release); /* pairs with the load in hr__layout_check */
    hr__stop_at(HR__AT_ARENA_READY);
}

static bool is_sane(const struct hr__header *header) {
    uint32_t capacity = header->ring_capacity;
    return header->worker_count >= 1 && header->worker_count <= HR_ARENA_MAX_WORKERS && header->slot_count >= 1 &&
           header->slot_count <= HR_ARENA_MAX_SLOTS && capacity >= 2 && capacity <= 2 * HR_ARENA_MAX_SLOTS &&
           (capacity & (capacity - 1)) == 0 && header->window_bytes > 0 &&
           header->window_bytes % window_align(header->window_bytes) == 0;
}

int hr__layout_check(void *mapping, uint64_t bytes, struct hr__arena_layout *ret_layout) {
    struct hr__header *header = mapping;
    if (bytes < HR__HEADER_ROOM)
        return hr__fail(HR_E_CORRUPT, "arena: a file of %llu bytes is too small to be an arena",
                        (unsigned long long)bytes);
    if (!atomic_load_explicit(&header->ready, memory_order_acquire) || header->magic != HR__MAGIC)
        return hr__fail(HR_E_CORRUPT, "arena: the descriptor is not that of a headrace arena");
    if (header->abi_version != HR__ABI_VERSION || header->header_bytes != sizeof *header)
        return hr__fail(HR_E_VERSION,
                        "arena: made by headrace with shared-memory layout %u, this one has layout %d; use the same "
                        "installation in the trainer and in its workers",
                        header->abi_version, HR__ABI_VERSION);

    struct hr__arena_layout layout;
    if (!is_sane(header) ||
        hr__layout_plan(header->worker_count, header->slot_count, header->ring_capacity, header->window_bytes,
                        &layout) < 0 ||
        layout.total_bytes != header->total_bytes || layout.total_bytes != bytes)
        return hr__fail(HR_E_CORRUPT, "arena: the sizes in the header do not fit each other or the file of %llu bytes",
                        (unsigned long long)bytes);
    layout.header = header;
    *ret_layout = layout;
    return 0;
}

static unsigned char *at(const struct hr__arena_layout *layout, uint64_t offset) {
    return (unsigned char *)layout->header + offset;
}

struct hr__worker *hr__layout_worker(const struct hr__arena_layout *layout, uint32_t worker) {
    return (struct hr__worker *)at(layout, layout->workers_at) + worker;
}

struct hr__slot *hr__layout_slot(const struct hr__arena_layout *layout, uint32_t slot) {
    return (struct hr__slot *)at(layout, layout->slots_at) + slot;
}

struct hr__sight *hr__layout_sight(const struct hr__arena_layout *layout, uint32_t worker) {
    return (struct hr__sight *)at(layout, layout->sights_at) + worker;
}

void *hr__layout_grant_ring(const struct hr__arena_layout *layout, uint32_t worker) {
    return at(layout, layout->rings_at + 2 * (uint64_t)worker * hr__ring_bytes(layout->ring_capacity));
}

void *hr__layout_completion_ring(const struct hr__arena_layout *layout, uint32_t worker) {
    return at(layout, layout->rings_at + (2 * (uint64_t)worker + 1) * hr__ring_bytes(layout->ring_capacity));
}

void hr__layout_read_status(const struct hr__worker *record, struct hr_worker_status *ret_status) {
    uint32_t pid = atomic_load_explicit(
        &record->pid, memory_order_acquire); /* load the pid first, so that the other fields belong to this process */
    uint32_t phase = atomic_load_explicit(&record->phase, memory_order_acquire);
    struct hr_worker_status status = {
        .phase = (enum hr_phase)(phase % HR_PHASE_COUNT),
        .pid = pid,
        .starts = atomic_load_explicit(&record->starts, memory_order_relaxed),
        .phase_since_ns = (int64_t)atomic_load_explicit(&record->phase_since_ns, memory_order_relaxed),
        .task = atomic_load_explicit(&record->task, memory_order_relaxed),
        .sample = atomic_load_explicit(&record->sample, memory_order_relaxed),
        .done_count = atomic_load_explicit(&record->done_count, memory_order_relaxed),
        .rss_bytes = atomic_load_explicit(&record->rss_bytes, memory_order_relaxed),
    };
    for (int i = 0; i < HR_MAKING_THREADS; i++) {
        uint32_t value = atomic_load_explicit(&record->making[i], memory_order_relaxed);
        status.making[i] = value ? value - 1 : HR_NO_SAMPLE;
    }
    for (int i = 0; i < HR_PHASE_COUNT; i++)
        status.phase_ns[i] = atomic_load_explicit(&record->phase_ns[i], memory_order_relaxed);
    *ret_status = status;
}
