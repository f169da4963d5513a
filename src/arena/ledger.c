/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: the trainer's private record of slots and bytes. */
#include "ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "os/os.h"

enum {
    AFFINITY_DEPTH = 8,   /* how many free slots to search for one that this worker has mapped already */
    TRIM_FACTOR = 4,      /* a free slot that is this many times larger than recent batches is trimmed */
    TRIM_FLOOR = 1 << 20, /* but never a slot as small as this */
};

void hr__ledger_charge(hr_arena *arena, struct hr__entry *entry, uint64_t bytes) {
    arena->counts.used_bytes += bytes - entry->charged_bytes;
    entry->charged_bytes = bytes;
}

static void remove_free(hr_arena *arena, uint32_t position) {
    arena->free_count--;
    memmove(&arena->free_slots[position], &arena->free_slots[position + 1],
            (arena->free_count - position) * sizeof *arena->free_slots);
}

static uint32_t take_lowest(hr_arena *arena) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < arena->free_count; i++)
        if (arena->free_slots[i] < arena->free_slots[best]) best = i;
    uint32_t slot = arena->free_slots[best];
    remove_free(arena, best);
    return slot;
}

static uint32_t take_one(hr_arena *arena, uint32_t worker) {
    if (arena->has_few_slots) return take_lowest(arena);
    uint32_t top = arena->free_count - 1;
    for (uint32_t i = 0; i < AFFINITY_DEPTH && i <= top; i++) {
        uint32_t slot = arena->free_slots[top - i];
        if (arena->entries[slot].worker != worker) continue;
        remove_free(arena, top - i);
        return slot;
    }
    arena->free_count--;
    return arena->free_slots[top];
}

static bool find_run(const hr_arena *arena, uint32_t windows, uint32_t *ret_first) {
    uint32_t length = 0, count = arena->layout.slot_count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = arena->has_few_slots ? count - 1 - i : i;
        bool is_usable = arena->entries[slot].state == HR__FREE && !hr__registered_bytes(&arena->entries[slot]);
        length = is_usable ? length + 1 : 0;
        if (length < windows) continue;
        *ret_first = arena->has_few_slots ? slot : slot + 1 - windows;
        return true;
    }
    return false;
}

static void take_run(hr_arena *arena, uint32_t first, uint32_t windows) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < arena->free_count; i++) {
        uint32_t slot = arena->free_slots[i];
        if (slot < first || slot >= first + windows) arena->free_slots[kept++] = slot;
    }
    arena->free_count = kept;
}

void hr__ledger_trim(hr_arena *arena, uint32_t slot, uint64_t keep_bytes) {
    struct hr__entry *entry = &arena->entries[slot];
    keep_bytes = hr__max(keep_bytes, hr__registered_bytes(entry));
    if (entry->committed_bytes <= keep_bytes) return;
    unsigned char *window = hr__layout_window(&arena->layout, slot);
    if (hr__punch(window + keep_bytes, entry->committed_bytes - keep_bytes) < 0) return;
    hr__stop_at(HR__AT_LEDGER_PUNCHED);
    entry->committed_bytes = keep_bytes;
    atomic_store_explicit(&hr__layout_slot(&arena->layout, slot)->committed_bytes, keep_bytes, memory_order_relaxed);
    hr__stop_at(HR__AT_LEDGER_TRIMMED);
    entry->trims++;
    arena->counts.trimmed_count++;
    if (entry->state == HR__FREE) hr__ledger_charge(arena, entry, keep_bytes);
}

int hr__ledger_take(hr_arena *arena, uint32_t worker, uint32_t windows, uint32_t *ret_slot) {
    uint32_t slot;
    if (arena->free_count < windows) return -EAGAIN;
    if (windows == 1) {
        slot = take_one(arena, worker);
    } else {
        if (!find_run(arena, windows, &slot)) return -EAGAIN;
        take_run(arena, slot, windows);
        /* A run counts as committed from its first window on. Memory that its later windows had committed as separate
         * slots would not be counted, so it is released. */
        for (uint32_t i = 1; i < windows; i++) {
            hr__ledger_trim(arena, slot + i, 0);
            arena->entries[slot + i].state = HR__SPANNED;
        }
    }
    struct hr__entry *entry = &arena->entries[slot];
    entry->state = HR__GRANTED;
    entry->worker = worker;
    entry->windows = windows;
    entry->generation = ++arena->generation;
    *ret_slot = slot;
    return 0;
}

void hr__ledger_give(hr_arena *arena, uint32_t slot) {
    struct hr__entry *entry = &arena->entries[slot];
    if (entry->has_holes) hr__ledger_trim(arena, slot, 0);
    if (entry->windows > 1) hr__ledger_trim(arena, slot, hr__min(entry->committed_bytes, arena->layout.window_bytes));
    uint64_t enough = hr__max(TRIM_FLOOR, hr__round_up(arena->recent_bytes, HR_COMMIT_STEP));
    if (entry->committed_bytes / TRIM_FACTOR > enough) hr__ledger_trim(arena, slot, enough);

    for (uint32_t i = entry->windows; i-- > 1;) {
        arena->entries[slot + i].state = HR__FREE;
        arena->free_slots[arena->free_count++] = slot + i;
    }
    entry->has_holes = false;
    entry->windows = 1;
    entry->state = HR__FREE;
    hr__ledger_charge(arena, entry, entry->committed_bytes);
    arena->free_slots[arena->free_count++] = slot;
}

bool hr__ledger_make_room(hr_arena *arena, uint64_t bytes) {
    for (uint32_t i = 0;; i++) {
        uint64_t needed;
        if (!hr__add(arena->counts.used_bytes, bytes, &needed)) return false;
        if (needed <= arena->limit_bytes) return true;
        if (i == arena->free_count) return false;
        hr__ledger_trim(arena, arena->free_slots[i], 0);
    }
}

static void end_held(hr_arena *arena, struct hr__held *held) {
    struct hr__entry *entry = &arena->entries[held->slot];
    for (struct hr_lease *lease = held->leases, *next; lease; lease = next) {
        next = lease->next;
        free(lease);
    }
    held->leases = NULL;
    arena->sent_count -= held->is_sent;
    held->is_sent = false;
    entry->state = HR__LENT;
}

/* Frees the slot behind a held batch, unless a forked child may still be copying from it. */
static bool free_if_not_lent(hr_arena *arena, struct hr__held *held) {
    struct hr__entry *entry = &arena->entries[held->slot];
    if (entry->fork_pipe) {
        if (!hr__fork_pipe_is_over(entry->fork_pipe)) return false;
        hr__fork_pipe_unref(entry->fork_pipe);
        entry->fork_pipe = NULL;
    }
    arena->counts.held_count--;
    arena->counts.held_bytes -= entry->charged_bytes;
    arena->held_windows -= entry->windows;
    if (atomic_load(&arena->is_closed))
        hr__held_retire(arena, held->slot);
    else
        hr__ledger_give(arena, held->slot);
    hr__stop_at(HR__AT_LEDGER_FREED);
    return true;
}

void hr__ledger_collect(hr_arena *arena) {
    struct hr__held *held, *next, *lent = NULL;
    for (held = arena->lent; held; held = next) {
        next = held->next;
        if (free_if_not_lent(arena, held)) continue;
        held->next = lent;
        lent = held;
    }
    held = NULL;
    /* seq_cst: at a close it comes after the store of is_closed, as return_slot (held.c) relies on. */
    if (atomic_load(&arena->returned)) held = atomic_exchange(&arena->returned, NULL);
    if (held) hr__stop_at(HR__AT_LEDGER_COLLECTED);
    for (; held; held = next) {
        next = held->next;
        end_held(arena, held);
        if (free_if_not_lent(arena, held)) continue;
        held->next = lent;
        lent = held;
    }
    arena->lent = lent;
}

/* ---- slots of which only some leases are left ---- */

/* Finds the lease that covers the first page at or after `from`, as whole pages. */
static bool next_live(const struct hr__entry *entry, uint64_t from, uint64_t *ret_from, uint64_t *ret_to) {
    bool found = false;
    uint64_t page = hr__page_bytes();
    for (const struct hr_lease *lease = entry->held.leases; lease; lease = lease->next) {
        uint64_t at = lease->offset & ~(page - 1);
        uint64_t to = hr__round_up(lease->offset + lease->bytes, page);
        if (atomic_load_explicit(&lease->is_released, memory_order_acquire) || to <= from) continue;
        if (found && at >= *ret_from) continue;
        *ret_from = at;
        *ret_to = to;
        found = true;
    }
    return found;
}

static uint64_t punch_between(struct hr__entry *entry, uint64_t from, uint64_t to) {
    if (to <= from || hr__punch((unsigned char *)entry->held.public.data + from, to - from) < 0) return 0;
    entry->has_holes = true;
    return to - from;
}

/* Releases the pages that no lease covers. */
static void punch_unleased(hr_arena *arena, struct hr__entry *entry) {
    uint64_t from = 0, live_from = 0, live_to = 0, freed = 0;
    while (next_live(entry, from, &live_from, &live_to)) {
        freed += punch_between(entry, from, live_from);
        from = live_to;
    }
    freed += punch_between(entry, from, entry->committed_bytes);
    uint64_t left = entry->committed_bytes - freed;
    arena->counts.held_bytes += left - entry->charged_bytes;
    hr__ledger_charge(arena, entry, left);
}

static uint32_t count_released(const struct hr__entry *entry) {
    uint32_t count = 0;
    for (const struct hr_lease *lease = entry->held.leases; lease; lease = lease->next)
        count += atomic_load_explicit(&lease->is_released, memory_order_relaxed);
    return count;
}

void hr__ledger_sweep(hr_arena *arena) {
    uint64_t old = arena->prefetch_count + 2;
    for (uint32_t slot = 0; slot < arena->layout.slot_count; slot++) {
        struct hr__entry *entry = &arena->entries[slot];
        if (entry->state != HR__HELD || arena->counts.delivered_count - entry->received_at < old) continue;
        if (!atomic_load_explicit(&entry->held.is_done, memory_order_acquire)) continue;
        if (hr__registered_bytes(entry)) continue;
        if (entry->fork_pipe && !hr__fork_pipe_is_over(entry->fork_pipe))
            continue; /* a forked child may still be copying */
        uint32_t released = count_released(entry);
        if (released == entry->swept_count) continue;
        entry->swept_count = released;
        punch_unleased(arena, entry);
        hr__stop_at(HR__AT_LEDGER_SWEPT);
    }
}
