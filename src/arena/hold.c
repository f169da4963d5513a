/* SPDX-License-Identifier: Apache-2.0 */
/* Delivered batches: leases on their bytes, and their return. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ledger.h"
#include "os/os.h"

enum { COPY_ALIGN = 4096 }; /* a private copy keeps the alignment of a batch's arrays */

struct hr__hold *hr__hold_slot(hr_arena *arena, uint32_t slot, const struct hr__record *record) {
    struct hr__entry *entry = &arena->entries[slot];
    struct hr__hold *hold = &entry->hold;
    hold->public = (struct hr_delivery){.task = entry->task,
                                        .worker = entry->worker,
                                        .kind = entry->kind,
                                        .status = record->kind,
                                        .data = hr__layout_window(&arena->layout, slot),
                                        .bytes = record->bytes};
    hold->arena = arena;
    hold->slot = slot;
    hold->leases = NULL;
    hold->next = NULL;
    atomic_store_explicit(&hold->is_done, false, memory_order_relaxed);
    atomic_store_explicit(&hold->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&arena->refs, 1, memory_order_relaxed);

    entry->state = HR__HELD;
    entry->swept_count = 0;
    entry->received_at = arena->counts.delivered_count;
    hr__ledger_charge(arena, entry, entry->committed_bytes);
    arena->counts.held_count++;
    arena->held_windows += entry->windows;
    arena->counts.held_bytes += entry->charged_bytes;
    return hold;
}

int hr__hold_privately(struct hr__hold **hold) {
    struct hr__hold *shared = *hold, *copy = malloc(sizeof *copy);
    void *data = aligned_alloc(COPY_ALIGN, hr__round_up(hr__max(shared->public.bytes, 1), COPY_ALIGN));
    if (!copy || !data) {
        free(copy);
        free(data);
        return -ENOMEM;
    }
    memcpy(data, shared->public.data, shared->public.bytes);
    *copy = (struct hr__hold){.public = shared->public, .arena = shared->arena, .slot = HR__NONE};
    copy->public.data = data;
    copy->public.is_copy = 1;
    atomic_init(&copy->refs, 1);
    atomic_fetch_add_explicit(&copy->arena->refs, 1, memory_order_relaxed);
    copy->arena->counts.copied_count++;
    hr__stop_at(HR__AT_HOLD_COPIED);
    hr_delivery_done(&shared->public);
    hr__ledger_collect(copy->arena);
    *hold = copy;
    return 0;
}

static void free_private(struct hr__hold *hold) {
    for (struct hr_lease *lease = hold->leases, *next; lease; lease = next) {
        next = lease->next;
        free(lease);
    }
    free(hold->public.data);
    free(hold);
}

/* Hands a slot back to the trainer. After the arena is closed there is no trainer, so the last one of the two collects:
 * either the close sees what was pushed here, or this function sees that the arena is closed. */
static void return_slot(hr_arena *arena, struct hr__hold *hold) {
    struct hr__hold *first = atomic_load_explicit(&arena->returned, memory_order_relaxed);
    do hold->next = first;
    while (!atomic_compare_exchange_weak(&arena->returned, &first, hold));
    hr__stop_at(HR__AT_HOLD_RETURNED);
    if (!atomic_load(&arena->is_closed)) return;
    pthread_mutex_lock(&arena->lock);
    hr__ledger_collect(arena);
    pthread_mutex_unlock(&arena->lock);
}

static void unref(struct hr__hold *hold) {
    if (atomic_fetch_sub_explicit(&hold->refs, 1, memory_order_acq_rel) != 1) return;
    hr_arena *arena = hold->arena;
    if (hold->slot == HR__NONE)
        free_private(hold);
    else
        return_slot(arena, hold);
    hr__arena_unref(arena);
}

void hr_delivery_done(struct hr_delivery *delivery) {
    if (!delivery) return;
    struct hr__hold *hold = (struct hr__hold *)delivery;
    atomic_store_explicit(&hold->is_done, true, memory_order_release); /* pairs with hr__ledger_sweep */
    hr__stop_at(HR__AT_HOLD_DONE);
    unref(hold);
}

int hr_delivery_lease(struct hr_delivery *delivery, uint64_t offset, uint64_t bytes, hr_lease **ret_lease) {
    struct hr__hold *hold = (struct hr__hold *)delivery;
    if (offset > delivery->bytes || bytes > delivery->bytes - offset)
        return hr__fail(-EINVAL, "arena: cannot lease %llu + %llu of a batch of %llu bytes", (unsigned long long)offset,
                        (unsigned long long)bytes, (unsigned long long)delivery->bytes);
    hr_lease *lease = malloc(sizeof *lease);
    if (!lease) return hr__fail(-ENOMEM, "arena: no memory for a lease");
    *lease = (hr_lease){.hold = hold, .next = hold->leases, .offset = offset, .bytes = bytes};
    hold->leases = lease;
    atomic_fetch_add_explicit(&hold->refs, 1, memory_order_relaxed);
    hr__stop_at(HR__AT_LEASE_TAKEN);
    *ret_lease = lease;
    return 0;
}

void hr_lease_release(hr_lease *lease) {
    if (!lease) return;
    struct hr__hold *hold = lease->hold;
    atomic_store_explicit(&lease->is_released, true, memory_order_release); /* pairs with hr__ledger_sweep */
    hr__stop_at(HR__AT_LEASE_RELEASED);
    unref(hold);
}

/* ---- the end of an arena ---- */

/* The header stays mapped and unchanged, because workers may still read there that the arena was stopped. */
static void unmap_range(hr_arena *arena, uint64_t from, uint64_t to, bool punches) {
    unsigned char *base = (unsigned char *)arena->layout.header;
    uint64_t punch_from = hr__max(from, arena->layout.windows_at);
    if (punches && punch_from < to) hr__punch(base + punch_from, to - punch_from);
    hr__unmap(base + from, to - from);
}

uint64_t hr__hold_bytes(const struct hr__hold *hold) {
    return hr__round_up(hold->public.bytes, hr__page_bytes());
}

/* Slots that were released and not collected yet count as held, because collecting a slot unmaps it. */
static bool is_mapped_for_itself(const struct hr__entry *entry) {
    return entry->state == HR__HELD || entry->state == HR__LENT;
}

void hr__unmap_unheld(hr_arena *arena, bool punches) {
    uint64_t from = 0;
    for (uint32_t slot = 0; slot < arena->layout.slot_count; slot++) {
        struct hr__entry *entry = &arena->entries[slot];
        if (!is_mapped_for_itself(entry)) continue;
        uint64_t at = hr__layout_window_at(&arena->layout, slot);
        unmap_range(arena, from, at, punches);
        from = at + hr__hold_bytes(&entry->hold);
    }
    unmap_range(arena, from, arena->layout.total_bytes, punches);
}

void hr__hold_retire(hr_arena *arena, uint32_t slot) {
    struct hr__entry *entry = &arena->entries[slot];
    uint64_t bytes = hr__hold_bytes(&entry->hold);
    if (!arena->is_orphan) hr__punch(entry->hold.public.data, bytes);
    hr__unmap(entry->hold.public.data, bytes);
    hr__stop_at(HR__AT_HOLD_RETIRED);
    entry->state = HR__FREE;
}

void hr__arena_unref(hr_arena *arena) {
    if (atomic_fetch_sub_explicit(&arena->refs, 1, memory_order_acq_rel) != 1) return;
    hr__fork_forget(arena);
    hr__ticket_unref(arena->ticket);
    for (uint32_t slot = 0; arena->entries && slot < arena->layout.slot_count; slot++) {
        struct hr__entry *entry = &arena->entries[slot];
        if (is_mapped_for_itself(entry)) hr__unmap(entry->hold.public.data, hr__hold_bytes(&entry->hold));
        hr__ticket_unref(entry->ticket);
    }
    pthread_mutex_destroy(&arena->lock);
    free(arena->entries);
    free(arena->free_slots);
    free(arena->peers);
    free(arena->wait_fds);
    free(arena->wait_ready);
    free(arena);
}
