/* SPDX-License-Identifier: Apache-2.0 */
/* Grants slots to workers, takes them back, and answers asks for more memory. */
#include <errno.h>
#include <string.h>

#include "arena.h"
#include "base/error.h"
#include "ledger.h"
#include "os/os.h"

enum {
    ALLOWANCE_FLOOR = 16 << 20, /* a worker may commit this much without asking, if the limit is generous */
    GENEROUS = 4,               /* it is generous if all allowances together are at most a fourth of it */
};

/* Returns how many bytes a worker may commit for a new batch without asking. */
static uint64_t usual_allowance(const hr_arena *arena) {
    uint64_t usual = hr__max(ALLOWANCE_FLOOR, 2 * hr__round_up(arena->recent_bytes, HR_COMMIT_STEP));
    usual = hr__min(usual, arena->layout.window_bytes);
    return usual <= arena->limit_bytes / GENEROUS / arena->reserved_count ? usual : 0;
}

static uint64_t committed_for(uint64_t bytes) {
    return hr__round_up(hr__max(bytes, 1), HR_COMMIT_STEP);
}

/* Commits the first `bytes` of a slot that the trainer has just taken. A task is not refused because other slots use
 * the memory at the moment: its payload may exceed the limit. */
static int commit_payload(hr_arena *arena, uint32_t slot, uint64_t bytes) {
    struct hr__entry *entry = &arena->entries[slot];
    uint64_t target = committed_for(bytes), has = entry->committed_bytes;
    if (target <= has) return 0;
    if (target > hr__min((uint64_t)entry->windows * arena->layout.window_bytes, arena->limit_bytes))
        return hr__fail(HR_E_TOO_BIG,
                        "arena: a task of %llu bytes takes %llu and does not fit the limit of %llu bytes; raise "
                        "arena_limit or make batches of fewer samples" HR_HELP("memory-limit"),
                        (unsigned long long)bytes, (unsigned long long)target, (unsigned long long)arena->limit_bytes);
    hr__ledger_make_room(arena, target - has);
    int r = hr__commit(arena->memory_fd, hr__layout_window_at(&arena->layout, slot) + has, target - has);
    if (r < 0)
        return hr__fail(r, "arena: no memory for a task of %llu bytes: %s", (unsigned long long)bytes,
                        hr_error_text(r));
    hr__stop_at(HR__AT_GRANT_COMMITTED);
    entry->committed_bytes = target;
    hr__ledger_charge(arena, entry, target);
    return 0;
}

uint32_t hr__windows_for(const hr_arena *arena, uint64_t bytes) {
    uint64_t window = arena->layout.window_bytes;
    return bytes <= window ? 1 : (uint32_t)hr__min(bytes / window + (bytes % window != 0), UINT32_MAX);
}

static void promise(hr_arena *arena, struct hr__entry *entry) {
    uint64_t usual = usual_allowance(arena), has = entry->committed_bytes;
    entry->allowance_bytes = has;
    if (usual > has && hr__ledger_make_room(arena, usual - has)) entry->allowance_bytes = usual;
    hr__ledger_charge(arena, entry, entry->allowance_bytes);
}

static void wake(struct hr__peer *peer, bool urgent) {
    if (hr__ring_must_wake(&peer->grants, urgent)) hr__eventfd_ring(peer->bell_fd);
}

static int push_grant(hr_arena *arena, uint32_t worker, uint32_t slot, uint64_t payload_bytes) {
    struct hr__entry *entry = &arena->entries[slot];
    struct hr__slot *shared = hr__layout_slot(&arena->layout, slot);
    atomic_store_explicit(&shared->generation, entry->generation, memory_order_relaxed);
    atomic_store_explicit(&shared->owner, worker, memory_order_relaxed);
    atomic_store_explicit(&shared->committed_bytes, entry->committed_bytes, memory_order_relaxed);
    hr__stop_at(HR__AT_GRANT_SLOT);
    struct hr__record record = {.task = entry->task,
                                .generation = entry->generation,
                                .bytes = payload_bytes,
                                .allowance = entry->allowance_bytes,
                                .slot = slot,
                                .windows = entry->windows,
                                .kind = entry->kind,
                                .trims = entry->trims};
    entry->payload_bytes = payload_bytes;
    entry->ring_at = arena->peers[worker].grants.at;
    return hr__ring_push(&arena->peers[worker].grants, &record);
}

static int grant(hr_arena *arena, uint32_t worker, uint32_t kind, uint64_t task, const void *payload, size_t bytes) {
    uint32_t slot;
    if (arena->granted_count >= arena->prefetch_count) return -EAGAIN;
    int r = hr__ledger_take(arena, worker, hr__windows_for(arena, bytes), &slot);
    if (r < 0) return r;
    struct hr__entry *entry = &arena->entries[slot];
    hr__stop_at(HR__AT_GRANT_TAKEN);
    entry->task = task;
    entry->kind = kind;
    r = commit_payload(arena, slot, bytes);
    if (r == 0) {
        if (bytes) memcpy(hr__layout_window(&arena->layout, slot), payload, bytes);
        hr__stop_at(HR__AT_GRANT_PAYLOAD);
        promise(arena, entry);
        r = push_grant(arena, worker, slot, bytes);
    }
    if (r < 0) {
        hr__ledger_give(arena, slot);
        return r;
    }
    arena->granted_count++;
    arena->peers[worker].granted_count++;
    hr__stop_at(HR__AT_GRANT_GRANTED);
    wake(&arena->peers[worker], false);
    return 0;
}

void hr__arena_reserve(hr_arena *arena, uint32_t count) {
    pthread_mutex_lock(&arena->lock);
    arena->reserved_count = (uint32_t)hr__max(1, hr__min(count, arena->prefetch_count));
    pthread_mutex_unlock(&arena->lock);
}

int hr__arena_grant(hr_arena *arena, uint32_t worker, uint32_t kind, uint64_t task, const void *payload,
                    size_t payload_bytes) {
    pthread_mutex_lock(&arena->lock);
    int r = hr__arena_check(arena, worker);
    if (r == 0) {
        hr__ledger_collect(arena);
        r = grant(arena, worker, kind, task, payload, payload_bytes);
    }
    pthread_mutex_unlock(&arena->lock);
    if (r == -EAGAIN) hr__fail(r, "arena: %u batches are in flight already", arena->prefetch_count);
    return r;
}

/* ---- taking back ---- */

/* A worker announces the size before it commits memory, so the announced size is never less than the committed size. If
 * it is more than the ledger has, it may be more than was really committed, and the pages of the slot are released. */
static void take_back(hr_arena *arena, uint32_t slot) {
    struct hr__entry *entry = &arena->entries[slot];
    uint64_t announced = atomic_load(&hr__layout_slot(&arena->layout, slot)->committed_bytes);
    announced = hr__min(announced, entry->allowance_bytes);
    if (announced > entry->committed_bytes) {
        entry->committed_bytes = announced;
        entry->has_holes = true;
    }
    hr__ledger_give(arena, slot);
}

/* Empties the grant ring and the ask of the dead worker, so that its successor does not get them. */
static void forget_worker(hr_arena *arena, struct hr__peer *peer) {
    atomic_store_explicit(&peer->grants.shared->head, peer->grants.at, memory_order_release);
    hr__stop_at(HR__AT_TAKE_BACK_HEAD);
    peer->answered_asks = atomic_load_explicit(&peer->record->ask, memory_order_relaxed);
    arena->granted_count -= peer->granted_count;
    peer->granted_count = 0;
    if (peer->pending_bytes) arena->pending_count--;
    peer->pending_bytes = 0;
}

int hr__arena_take_back(hr_arena *arena, uint32_t worker) {
    pthread_mutex_lock(&arena->lock);
    int r = hr__arena_check(arena, worker), count = 0;
    if (r == 0) hr__receive_published(arena, worker);
    hr__stop_at(HR__AT_TAKE_BACK_PUBLISHED);
    for (uint32_t slot = 0; r == 0 && slot < arena->layout.slot_count; slot++) {
        if (arena->entries[slot].state != HR__GRANTED || arena->entries[slot].worker != worker) continue;
        take_back(arena, slot);
        hr__stop_at(HR__AT_TAKE_BACK_SLOT);
        count++;
    }
    if (r == 0) forget_worker(arena, &arena->peers[worker]);
    pthread_mutex_unlock(&arena->lock);
    return r < 0 ? r : count;
}

/* ---- asks ---- */

/* Returns the grant for which a worker asks, or NULL if it does not have this grant: its record is damaged, or its
 * grants were taken back. */
static struct hr__entry *asking_grant(hr_arena *arena, uint32_t worker) {
    uint32_t slot = arena->peers[worker].pending_slot;
    if (slot >= arena->layout.slot_count) return NULL;
    struct hr__entry *entry = &arena->entries[slot];
    return entry->state == HR__GRANTED && entry->worker == worker ? entry : NULL;
}

static void reply(hr_arena *arena, uint32_t worker, bool is_refused) {
    struct hr__peer *peer = &arena->peers[worker];
    struct hr__worker *record = peer->record;
    struct hr__entry *entry = &arena->entries[peer->pending_slot];
    atomic_store_explicit(&record->reply_slot, peer->pending_slot, memory_order_relaxed);
    atomic_store_explicit(&record->reply_windows, entry->windows, memory_order_relaxed);
    atomic_store_explicit(&record->reply_generation, entry->generation, memory_order_relaxed);
    atomic_store_explicit(&record->reply_bytes, entry->allowance_bytes, memory_order_relaxed);
    atomic_store_explicit(&record->reply_refused, is_refused, memory_order_relaxed);
    hr__stop_at(HR__AT_REPLY_FIELDS);
    atomic_store(&record->reply, peer->answered_asks); /* the partner is the load in port.c; then as in ring.h */
    if (peer->pending_bytes) arena->pending_count--;
    peer->pending_bytes = 0;
    hr__stop_at(HR__AT_REPLY_STORED);
    wake(peer, true);
}

/* Moves a grant whose slot of one window is too small to a run of windows. It keeps its generation. */
static bool move_grant(hr_arena *arena, uint32_t worker, uint32_t windows) {
    uint32_t larger, *slot = &arena->peers[worker].pending_slot;
    if (hr__ledger_take(arena, worker, windows, &larger) < 0) return false;
    struct hr__entry *from = &arena->entries[*slot], *to = &arena->entries[larger];
    struct hr__slot *shared = hr__layout_slot(&arena->layout, larger);
    to->task = from->task;
    to->kind = from->kind;
    to->generation = from->generation;
    to->allowance_bytes = to->committed_bytes;
    from->committed_bytes =
        hr__max(from->committed_bytes,
                hr__min(atomic_load(&hr__layout_slot(&arena->layout, *slot)->committed_bytes), from->allowance_bytes));
    atomic_store_explicit(&shared->generation, to->generation, memory_order_relaxed);
    atomic_store_explicit(&shared->owner, worker, memory_order_relaxed);
    atomic_store_explicit(&shared->committed_bytes, to->committed_bytes, memory_order_relaxed);
    hr__stop_at(HR__AT_GRANT_MOVED);
    hr__ledger_give(arena, *slot);
    *slot = larger;
    return true;
}

/* Allows a grant to commit `bytes` bytes in total, if there is room. */
static bool allow(hr_arena *arena, struct hr__entry *entry, uint64_t bytes) {
    if (bytes > entry->allowance_bytes) {
        if (!hr__ledger_make_room(arena, bytes - entry->allowance_bytes)) return false;
        entry->allowance_bytes = bytes;
        hr__ledger_charge(arena, entry, bytes);
    }
    return true;
}

/* Gives worker `worker` the memory that it asked for if there is room. A batch over the limit is refused at once. */
static void answer(hr_arena *arena, uint32_t worker) {
    struct hr__peer *peer = &arena->peers[worker];
    struct hr__entry *entry = asking_grant(arena, worker);
    if (!entry) return;
    if (peer->pending_bytes > arena->limit_bytes) {
        reply(arena, worker, true);
        return;
    }
    uint64_t bytes = hr__min(committed_for(peer->pending_bytes), arena->limit_bytes);
    uint32_t windows = hr__windows_for(arena, bytes);
    if (windows > entry->windows) {
        if (!move_grant(arena, worker, windows)) return;
        entry = asking_grant(arena, worker);
    }
    uint64_t more = hr__min(bytes + committed_for(bytes / 8), arena->limit_bytes); /* so that it asks less often */
    more = hr__min(more, (uint64_t)entry->windows * arena->layout.window_bytes);
    if (allow(arena, entry, more) || allow(arena, entry, bytes)) reply(arena, worker, false);
}

static void note_new_asks(hr_arena *arena) {
    uint64_t asks = atomic_load_explicit(&arena->layout.header->asks, memory_order_acquire);
    if (asks == arena->seen_asks) return;
    arena->seen_asks = asks;
    for (uint32_t worker = 0; worker < arena->layout.worker_count; worker++) {
        struct hr__peer *peer = &arena->peers[worker];
        uint64_t ask = atomic_load_explicit(&peer->record->ask, memory_order_acquire); /* pairs with ask() in port.c */
        if (ask == peer->answered_asks) continue;
        peer->answered_asks = ask;
        if (!peer->pending_bytes) arena->pending_count++;
        peer->pending_bytes = hr__max(1, atomic_load_explicit(&peer->record->ask_bytes, memory_order_relaxed));
        peer->pending_slot = atomic_load_explicit(&peer->record->ask_slot, memory_order_relaxed);
        arena->counts.asked_count++;
        hr__stop_at(HR__AT_ASK_NOTED);
    }
}

void hr__answer_asks(hr_arena *arena) {
    note_new_asks(arena);
    for (uint32_t worker = 0; arena->pending_count && worker < arena->layout.worker_count; worker++)
        if (arena->peers[worker].pending_bytes) answer(arena, worker);
}

void hr__refuse_ask(hr_arena *arena, uint32_t worker) {
    for (uint32_t i = 0; i < arena->layout.worker_count; i++) {
        struct hr__peer *peer = &arena->peers[i];
        if ((worker != HR_ANY_WORKER && i != worker) || !peer->pending_bytes) continue;
        if (asking_grant(arena, i)) {
            hr__stop_at(HR__AT_ASK_REFUSED);
            reply(arena, i, true);
        } else { /* the record is damaged: this is not an ask */
            peer->pending_bytes = 0;
            arena->pending_count--;
        }
        return;
    }
}

/* ---- grants in the queue ---- */

/* The record is still in the ring, and the worker does not read it now: it waits for a reply, and the store of the
 * reply releases what is written here. */
static bool cut(hr_arena *arena, struct hr__peer *peer, uint32_t slot) {
    struct hr__entry *entry = &arena->entries[slot];
    hr__ledger_trim(arena, slot, committed_for(entry->payload_bytes));
    if (entry->committed_bytes >= entry->charged_bytes) return false;
    entry->allowance_bytes = entry->committed_bytes;
    hr__ledger_charge(arena, entry, entry->allowance_bytes);
    struct hr__record *record = &peer->grants.shared->records[entry->ring_at & (peer->grants.capacity - 1)];
    record->allowance = entry->allowance_bytes;
    record->trims = entry->trims;
    hr__stop_at(HR__AT_GRANT_CUT);
    return true;
}

bool hr__cut_queues(hr_arena *arena) {
    bool any = false;
    for (uint32_t slot = 0; slot < arena->layout.slot_count; slot++) {
        struct hr__entry *entry = &arena->entries[slot];
        if (entry->state != HR__GRANTED) continue;
        struct hr__peer *peer = &arena->peers[entry->worker];
        if (peer->pending_bytes && asking_grant(arena, entry->worker) && slot != peer->pending_slot)
            any = cut(arena, peer, slot) || any;
    }
    return any;
}
