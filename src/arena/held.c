/* SPDX-License-Identifier: Apache-2.0 */
/* Delivered batches: leases on their bytes, and their return. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ledger.h"
#include "os/os.h"

enum { COPY_ALIGN = 4096 }; /* a private copy keeps the alignment of a batch's arrays */

struct hr__held *hr__held_new(hr_arena *arena, uint32_t slot, const struct hr__record *record) {
    struct hr__entry *entry = &arena->entries[slot];
    struct hr__held *held = &entry->held;
    held->public = (struct hr_delivery){.task = entry->task,
                                        .worker = entry->worker,
                                        .kind = entry->kind,
                                        .status = record->kind,
                                        .data = hr__layout_window(&arena->layout, slot),
                                        .bytes = record->bytes};
    held->arena = arena;
    held->slot = slot;
    held->leases = NULL;
    held->next = NULL;
    held->is_sent = false;
    atomic_store_explicit(&held->is_done, false, memory_order_relaxed);
    atomic_store_explicit(&held->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&arena->refs, 1, memory_order_relaxed);

    entry->state = HR__HELD;
    entry->swept_count = 0;
    entry->received_at = arena->counts.delivered_count;
    entry->received_count++;
    hr__ledger_charge(arena, entry, entry->committed_bytes);
    arena->counts.held_count++;
    arena->held_windows += entry->windows;
    arena->counts.held_bytes += entry->charged_bytes;
    return held;
}

int hr__held_copy(struct hr__held **held) {
    struct hr__held *shared = *held, *copy = malloc(sizeof *copy);
    void *data = aligned_alloc(COPY_ALIGN, hr__round_up(hr__max(shared->public.bytes, 1), COPY_ALIGN));
    if (!copy || !data) {
        free(copy);
        free(data);
        return -ENOMEM;
    }
    memcpy(data, shared->public.data, shared->public.bytes);
    *copy = (struct hr__held){.public = shared->public, .arena = shared->arena, .slot = HR__NONE};
    copy->public.data = data;
    copy->public.is_copy = 1;
    atomic_init(&copy->refs, 1);
    atomic_fetch_add_explicit(&copy->arena->refs, 1, memory_order_relaxed);
    copy->arena->counts.copied_count++;
    hr__stop_at(HR__AT_HOLD_COPIED);
    hr_delivery_done(&shared->public);
    hr__ledger_collect(copy->arena);
    *held = copy;
    return 0;
}

static void free_private(struct hr__held *held) {
    for (struct hr_lease *lease = held->leases, *next; lease; lease = next) {
        next = lease->next;
        free(lease);
    }
    free(held->public.data);
    free(held);
}

/* Hands a slot back to the trainer. After the arena is closed there is no trainer, so the last one of the two collects:
 * either the close sees what was pushed here, or this function sees that the arena is closed. */
static void return_slot(hr_arena *arena, struct hr__held *held) {
    struct hr__held *first = atomic_load_explicit(&arena->returned, memory_order_relaxed);
    do held->next = first;
    while (!atomic_compare_exchange_weak(&arena->returned, &first, held));
    hr__stop_at(HR__AT_HOLD_RETURNED);
    if (!atomic_load(&arena->is_closed)) return;
    pthread_mutex_lock(&arena->lock);
    hr__ledger_collect(arena);
    pthread_mutex_unlock(&arena->lock);
}

static void unref(struct hr__held *held) {
    if (atomic_fetch_sub_explicit(&held->refs, 1, memory_order_acq_rel) != 1) return;
    hr_arena *arena = held->arena;
    if (held->slot == HR__NONE)
        free_private(held);
    else
        return_slot(arena, held);
    hr__arena_unref(arena);
}

void hr_delivery_done(struct hr_delivery *delivery) {
    if (!delivery) return;
    struct hr__held *held = (struct hr__held *)delivery;
    atomic_store_explicit(&held->is_done, true, memory_order_release); /* pairs with hr__ledger_sweep */
    hr__stop_at(HR__AT_HOLD_DONE);
    unref(held);
}

int hr_delivery_lease(struct hr_delivery *delivery, uint64_t offset, uint64_t bytes, hr_lease **ret_lease) {
    struct hr__held *held = (struct hr__held *)delivery;
    if (offset > delivery->bytes || bytes > delivery->bytes - offset)
        return hr__fail(-EINVAL, "arena: cannot lease %llu + %llu of a batch of %llu bytes", (unsigned long long)offset,
                        (unsigned long long)bytes, (unsigned long long)delivery->bytes);
    hr_lease *lease = malloc(sizeof *lease);
    if (!lease) return hr__fail(-ENOMEM, "arena: no memory for a lease");
    *lease = (hr_lease){.held = held, .next = held->leases, .offset = offset, .bytes = bytes};
    held->leases = lease;
    atomic_fetch_add_explicit(&held->refs, 1, memory_order_relaxed);
    hr__stop_at(HR__AT_LEASE_TAKEN);
    *ret_lease = lease;
    return 0;
}

void hr_lease_release(hr_lease *lease) {
    if (!lease) return;
    struct hr__held *held = lease->held;
    atomic_store_explicit(&lease->is_released, true, memory_order_release); /* pairs with hr__ledger_sweep */
    hr__stop_at(HR__AT_LEASE_RELEASED);
    unref(held);
}

/* ---- the end of an arena ---- */

/* The header stays mapped and unchanged, because workers may still read there that the arena was stopped. */
static void unmap_range(hr_arena *arena, uint64_t from, uint64_t to, bool punches) {
    unsigned char *base = (unsigned char *)arena->layout.header;
    uint64_t punch_from = hr__max(from, arena->layout.windows_at);
    if (punches && punch_from < to) hr__punch(base + punch_from, to - punch_from);
    hr__unmap(base + from, to - from);
}

uint64_t hr__held_bytes(const struct hr__held *held) {
    return hr__round_up(held->public.bytes, hr__page_bytes());
}

/* Slots that were released and not collected yet count as held, because collecting a slot unmaps it. */
static bool is_mapped_for_itself(const struct hr__entry *entry) {
    return entry->state == HR__HELD || entry->state == HR__LENT;
}

/* The bytes of a slot that stay mapped when the arena is closed. */
static uint64_t mapped_bytes(const struct hr__entry *entry) {
    uint64_t held = is_mapped_for_itself(entry) ? hr__held_bytes(&entry->held) : 0;
    return hr__max(held, hr__registered_bytes(entry));
}

void hr__unmap_unheld(hr_arena *arena, bool punches) {
    uint64_t from = 0;
    for (uint32_t slot = 0; slot < arena->layout.slot_count; slot++) {
        struct hr__entry *entry = &arena->entries[slot];
        uint64_t bytes = mapped_bytes(entry);
        if (!is_mapped_for_itself(entry) && !bytes) continue;
        uint64_t at = hr__layout_window_at(&arena->layout, slot);
        unmap_range(arena, from, at, punches);
        from = at + bytes;
    }
    unmap_range(arena, from, arena->layout.total_bytes, punches);
}

void hr__held_retire(hr_arena *arena, uint32_t slot) {
    struct hr__entry *entry = &arena->entries[slot];
    uint64_t bytes = hr__held_bytes(&entry->held);
    if (!hr__registered_bytes(entry)) {
        if (!arena->is_orphan) hr__punch(entry->held.public.data, bytes);
        hr__unmap(entry->held.public.data, bytes);
    }
    hr__stop_at(HR__AT_HOLD_RETIRED);
    entry->state = HR__FREE;
}

void hr__arena_unref(hr_arena *arena) {
    if (atomic_fetch_sub_explicit(&arena->refs, 1, memory_order_acq_rel) != 1) return;
    hr__fork_forget(arena);
    hr__fork_pipe_unref(arena->fork_pipe);
    for (uint32_t slot = 0; arena->entries && slot < arena->layout.slot_count; slot++) {
        struct hr__entry *entry = &arena->entries[slot];
        bool is_kept = hr__registered_bytes(entry) > 0;
        if (is_mapped_for_itself(entry) && !is_kept) hr__unmap(entry->held.public.data, hr__held_bytes(&entry->held));
        hr__fork_pipe_unref(entry->fork_pipe);
    }
    pthread_mutex_destroy(&arena->lock);
    free(arena->entries);
    free(arena->free_slots);
    free(arena->peers);
    free(arena->wait_fds);
    free(arena->wait_ready);
    free(arena);
}
