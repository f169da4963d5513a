/* SPDX-License-Identifier: Apache-2.0 */
/* Slots whose memory a device has registered, and batches that only copies to a device hold. A loader with the option
 * `device` uses it. */
#include <errno.h>

#include "arena.h"
#include "base/error.h"
#include "ledger.h"
#include "os/os.h"

enum {
    REGISTERED_SHARE = 4, /* a device registers at most a fourth of the limit: such memory cannot be swapped or freed */
    SPARE_SHARE = 4,      /* a slot that grew is registered with a fourth of its size more */
};

/* With HEADRACE_FAIL=registered_pages:EIO, tests see what becomes of registered memory that is treated like other
 * memory. */
uint64_t hr__registered_bytes(const struct hr__entry *entry) {
    return entry->registered_bytes && hr__fail_at("registered_pages") == 0 ? entry->registered_bytes : 0;
}

bool hr__must_settle(hr_arena *arena) {
    if (arena->was_settled || (!arena->sent_count && !arena->registered_bytes)) return false;
    arena->was_settled = true;
    return true;
}

int hr_delivery_slot(const struct hr_delivery *delivery, struct hr_slot_status *ret_status) {
    const struct hr__held *held = (const struct hr__held *)delivery;
    if (held->slot == HR__NONE) return HR_E_END;
    const struct hr__entry *entry = &held->arena->entries[held->slot];
    *ret_status = (struct hr_slot_status){.slot = held->slot,
                                          .received_count = entry->received_count,
                                          .committed_bytes = entry->committed_bytes,
                                          .registered_bytes = entry->registered_bytes};
    return 0;
}

void hr_delivery_send(struct hr_delivery *delivery) {
    struct hr__held *held = (struct hr__held *)delivery;
    pthread_mutex_lock(&held->arena->lock);
    held->arena->is_sending = true;
    if (held->slot != HR__NONE && !held->is_sent) {
        held->is_sent = true;
        held->arena->sent_count++;
    }
    pthread_mutex_unlock(&held->arena->lock);
}

/* Commits more of a held slot, if there is room. */
static void extend(hr_arena *arena, uint32_t slot, uint64_t bytes) {
    struct hr__entry *entry = &arena->entries[slot];
    uint64_t has = entry->committed_bytes;
    if (bytes <= has || !hr__ledger_make_room(arena, bytes - has)) return;
    if (hr__commit(arena->memory_fd, hr__layout_window_at(&arena->layout, slot) + has, bytes - has) < 0) return;
    entry->committed_bytes = bytes;
    arena->counts.held_bytes += bytes - has;
    hr__ledger_charge(arena, entry, bytes);
}

static int mark_registered(hr_arena *arena, uint32_t slot, uint64_t bytes, uint64_t *ret_bytes) {
    struct hr__entry *entry = &arena->entries[slot];
    if (slot >= arena->layout.slot_count || entry->state != HR__HELD || entry->has_holes || entry->registered_bytes)
        return hr__fail(HR_E_STATE, "arena: slot %u cannot be registered now", slot);
    /* A slot of several windows is split when it is free, and others would punch the later ones. */
    if (entry->windows > 1) return -EMLINK;
    if (arena->registered_bytes + bytes > arena->limit_bytes / REGISTERED_SHARE) return -EDQUOT;
    extend(arena, slot, hr__min(hr__round_up(bytes, HR_COMMIT_STEP), arena->layout.window_bytes));
    entry->registered_bytes = hr__min(entry->committed_bytes, hr__round_up(bytes, HR_COMMIT_STEP));
    arena->registered_bytes += entry->registered_bytes;
    *ret_bytes = entry->registered_bytes;
    return 0;
}

int hr_arena_register(hr_arena *arena, uint32_t slot, uint64_t bytes, int has_grown, void **ret_address,
                      uint64_t *ret_bytes) {
    pthread_mutex_lock(&arena->lock);
    int r = hr__arena_check(arena, 0);
    if (r == 0) r = mark_registered(arena, slot, has_grown ? bytes + bytes / SPARE_SHARE : bytes, ret_bytes);
    pthread_mutex_unlock(&arena->lock);
    if (r < 0) return r;
    *ret_address = hr__layout_window(&arena->layout, slot);
    hr__make_huge(*ret_address, *ret_bytes);
    return 0;
}

void hr_arena_unregister(hr_arena *arena, uint32_t slot) {
    pthread_mutex_lock(&arena->lock);
    if (slot < arena->layout.slot_count) {
        arena->registered_bytes -= arena->entries[slot].registered_bytes;
        arena->entries[slot].registered_bytes = 0;
    }
    pthread_mutex_unlock(&arena->lock);
}

/* ---- an arena that outlives its workers ---- */

static void drop_early(struct hr__peer *peer) {
    for (struct hr__held *held = peer->early_first, *next; held; held = next) {
        next = held->next;
        hr_delivery_done(&held->public);
    }
    peer->early_first = peer->early_last = NULL;
}

/* Keeps what says how much is held or used now. Everything else is counted from a start. */
static void reset_counts(hr_arena *arena) {
    const struct hr_arena_report old = arena->counts;
    arena->counts = (struct hr_arena_report){
        .used_bytes = old.used_bytes, .held_bytes = old.held_bytes, .held_count = old.held_count};
}

int hr__arena_restart(hr_arena *arena, const struct hr__arena_options *options) {
    if (arena->is_orphan || options->worker_count != arena->layout.worker_count ||
        options->prefetch_count != arena->prefetch_count)
        return hr__fail(HR_E_STATE,
                        "arena: it was made by another process, or for other numbers of workers and batches");
    pthread_mutex_lock(&arena->lock);
    arena->is_stopped = false;
    atomic_store(&arena->layout.header->stopped, 0);
    arena->was_settled = false;
    hr__eventfd_drain(arena->bell_fd);
    pthread_mutex_unlock(&arena->lock);
    for (uint32_t worker = 0; worker < arena->layout.worker_count; worker++) {
        int r = hr__arena_take_back(arena, worker);
        if (r < 0) return r;
        drop_early(&arena->peers[worker]);
        hr__eventfd_drain(arena->peers[worker].bell_fd);
    }
    reset_counts(arena);
    return 0;
}
