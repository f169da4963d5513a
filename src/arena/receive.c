/* SPDX-License-Identifier: Apache-2.0 */
/* Receives completions, checks them against the ledger, and handles the memory limit. */
#include <assert.h>
#include <errno.h>

#include "arena.h"
#include "base/error.h"
#include "ledger.h"
#include "os/os.h"

/* The worker or workers whose completions the trainer waits for. */
struct wanted {
    hr_arena *arena;
    uint32_t first;
    uint32_t count;
};

static struct wanted wanted_of(hr_arena *arena, uint32_t worker) {
    if (worker == HR_ANY_WORKER) return (struct wanted){arena, arena->next_peer, arena->layout.worker_count};
    return (struct wanted){arena, worker, 1};
}

static struct hr__peer *nth(const struct wanted *wanted, uint32_t i) {
    uint32_t worker = wanted->first + i, count = wanted->arena->layout.worker_count;
    return &wanted->arena->peers[worker < count ? worker : worker - count];
}

static bool has_work(void *context) {
    const struct wanted *wanted = context;
    hr_arena *arena = wanted->arena;
    for (uint32_t i = 0; i < wanted->count; i++)
        if (hr__ring_has_record(&nth(wanted, i)->completions)) return true;
    return atomic_load(&arena->layout.header->asks) != arena->seen_asks;
}

/* ---- taking a completion ---- */

/* The trainer does not trust a worker's record: it checks each completion against the ledger. */
static int check_completion(hr_arena *arena, uint32_t worker, const struct hr__record *record) {
    if (record->slot >= arena->layout.slot_count)
        return hr__fail(HR_E_CORRUPT, "arena: worker %u published slot %u of %u", worker, record->slot,
                        arena->layout.slot_count);
    struct hr__entry *entry = &arena->entries[record->slot];
    if (entry->state != HR__GRANTED || entry->worker != worker || entry->generation != record->generation)
        return hr__fail(HR_E_CORRUPT, "arena: worker %u published slot %u, which was not granted to it", worker,
                        record->slot);
    uint64_t committed = atomic_load(&hr__layout_slot(&arena->layout, record->slot)->committed_bytes);
    if (committed > hr__max(entry->allowance_bytes, entry->committed_bytes) || record->bytes > committed)
        return hr__fail(HR_E_CORRUPT, "arena: worker %u published %llu bytes in slot %u, which allows %llu", worker,
                        (unsigned long long)record->bytes, record->slot, (unsigned long long)entry->allowance_bytes);
    entry->committed_bytes = hr__max(entry->committed_bytes, committed);
    return 0;
}

static void learn_size(hr_arena *arena, uint64_t bytes) {
    arena->recent_bytes -= arena->recent_bytes / 256;
    arena->recent_bytes = hr__max(arena->recent_bytes, bytes);
}

/* Pops a worker's next completion. Returns 1; 0: the worker has completed nothing more. */
static int pop(hr_arena *arena, uint32_t worker, struct hr__held **ret_hold) {
    struct hr__record record;
    struct hr__peer *peer = &arena->peers[worker];
    int r = hr__ring_pop(&peer->completions, &record);
    if (r <= 0) return r < 0 ? hr__fail_more(r, "arena: in the completions of worker %u", worker) : 0;
    r = check_completion(arena, worker, &record);
    if (r < 0) return r;
    arena->granted_count--;
    peer->granted_count--;
    hr__stop_at(HR__AT_RECEIVE_POPPED);
    learn_size(arena, record.bytes);
    *ret_hold = hr__held_new(arena, record.slot, &record);
    hr__stop_at(HR__AT_HOLD_SLOT);
    return 1;
}

static void keep_early(struct hr__peer *peer, struct hr__held *held) {
    held->next = NULL;
    if (peer->early_first)
        peer->early_last->next = held;
    else
        peer->early_first = held;
    peer->early_last = held;
    hr__stop_at(HR__AT_RECEIVE_EARLY);
}

/* Returns true if the batch has to be delivered as a private copy, so that the workers keep the slots that prefetching
 * needs. */
static bool must_copy(const hr_arena *arena, const struct hr__held *held) {
    if (held->slot == HR__NONE || held->public.bytes == 0) return false;
    /* A grant starts with one window, and is moved to a run of windows if the batch needs more. */
    uint64_t windows = hr__windows_for(arena, arena->recent_bytes);
    uint64_t for_workers = arena->reserved_count * (windows > 1 ? 2 * windows : 1);
    if (arena->held_windows + for_workers > arena->layout.slot_count) return true;
    uint64_t reserve = arena->reserved_count * arena->recent_bytes;
    return arena->counts.held_bytes + reserve > arena->limit_bytes;
}

/* -EBUSY: the batch would have to be copied, but copies to a device hold slots that are free in a moment. */
static int take(hr_arena *arena, uint32_t worker, struct hr__held **ret_hold) {
    struct hr__peer *peer = &arena->peers[worker];
    struct hr__held *held = peer->early_first;
    if (held) {
        peer->early_first = held->next;
        *ret_hold = held;
        return 1;
    }
    int r = pop(arena, worker, &held);
    if (r <= 0) return r;
    if (must_copy(arena, held)) {
        if (hr__must_settle(arena)) {
            keep_early(peer, held);
            return -EBUSY;
        }
        if (!arena->is_sending) hr__held_copy(&held); /* without memory for a copy, the slot is delivered */
    }
    *ret_hold = held;
    return 1;
}

static int take_wanted(const struct wanted *wanted, struct hr__held **ret_hold) {
    hr_arena *arena = wanted->arena;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < wanted->count; i++) {
        uint32_t worker = (uint32_t)(nth(wanted, i) - arena->peers);
        r = take(arena, worker, ret_hold);
        if (r > 0) arena->next_peer = (worker + 1) % arena->layout.worker_count;
    }
    return r;
}

/* ---- making room ---- */

void hr__receive_published(hr_arena *arena, uint32_t worker) {
    struct hr__held *held;
    while (pop(arena, worker, &held) > 0) keep_early(&arena->peers[worker], held);
}

/* Batches of a dead worker that are received early stay in their slots; others are copied to private memory. */
static int move_early(struct hr__peer *peer) {
    int moved = 0;
    for (struct hr__held **held = &peer->early_first; *held; held = &(*held)->next) {
        struct hr__held *next = (*held)->next;
        if ((*held)->slot != HR__NONE) moved += hr__held_copy(held) == 0;
        (*held)->next = next;
        peer->early_last = *held;
    }
    return moved;
}

/* Moves batches that were published but are not wanted yet into private memory. Returns how many. */
static int receive_early(hr_arena *arena) {
    int moved = 0;
    for (uint32_t worker = 0; worker < arena->layout.worker_count; worker++) {
        hr__receive_published(arena, worker);
        moved += move_early(&arena->peers[worker]);
    }
    return moved;
}

/* Returns true if any worker can publish something without more memory. */
static bool any_worker_works(const hr_arena *arena) {
    for (uint32_t worker = 0; worker < arena->layout.worker_count; worker++)
        if (arena->peers[worker].granted_count && !arena->peers[worker].pending_bytes) return true;
    return false;
}

/* Returns true if the wanted worker asks for memory that is not available. */
static bool is_starved(const hr_arena *arena, uint32_t worker) {
    return worker == HR_ANY_WORKER ? arena->pending_count > 0 : arena->peers[worker].pending_bytes > 0;
}

/* Handles a wanted worker that asks for memory that is not available. Frees what can be freed. If nothing is left that
 * could ever make room, the ask is refused. Returns 0; -ENOBUFS: the caller has to settle its copies to a device, and
 * to unregister what it can, and calls again. */
static int relieve(hr_arena *arena, uint32_t worker) {
    while (is_starved(arena, worker)) {
        if (hr__must_settle(arena)) return -ENOBUFS;
        bool has_freed = receive_early(arena) > 0;
        if (!has_freed && any_worker_works(arena)) return 0;
        if (has_freed || hr__cut_queues(arena))
            hr__answer_asks(arena);
        else
            hr__refuse_ask(arena, worker);
    }
    return 0;
}

/* ---- waiting ---- */

static void set_sleep(const struct wanted *wanted, bool is_asleep) {
    hr_arena *arena = wanted->arena;
    for (uint32_t i = 0; i < arena->layout.worker_count; i++)
        hr__ring_sleep(&arena->peers[i].completions, is_asleep ? HR__SLEEPS_UNLESS_URGENT : HR__AWAKE);
    for (uint32_t i = 0; is_asleep && i < wanted->count; i++) hr__ring_sleep(&nth(wanted, i)->completions, HR__SLEEPS);
}

/* Sleeps once, without the lock. Returns HR_E_WORKER_DIED without a message, because the caller checks for completions
 * first. */
static int sleep_once(hr_arena *arena, int64_t deadline_ns) {
    size_t count = arena->layout.worker_count + 1;
    arena->counts.slept_count++;
    pthread_mutex_unlock(&arena->lock);
    int r = hr__poll(arena->wait_fds, arena->wait_ready, count, deadline_ns);
    pthread_mutex_lock(&arena->lock);
    if (r < 0) return r;
    hr__stop_at(HR__AT_RECEIVE_WOKEN);
    if (arena->wait_ready[0]) hr__eventfd_drain(arena->bell_fd);
    for (size_t i = 1; i < count; i++) {
        if (!arena->wait_ready[i]) continue;
        arena->dead_worker = (uint32_t)(i - 1);
        hr__stop_at(HR__AT_RECEIVE_DIED);
        return HR_E_WORKER_DIED;
    }
    return 0;
}

/* While the wanted worker lacks memory, the batches of all workers matter: receiving one early may make room. */
static int wait_once(hr_arena *arena, uint32_t worker, int64_t deadline_ns) {
    struct wanted all_or_one = wanted_of(arena, is_starved(arena, worker) ? HR_ANY_WORKER : worker);
    struct wanted *wanted = &all_or_one;
    pthread_mutex_unlock(&arena->lock);
    bool ready = hr__spin_until(&arena->spin, has_work, wanted);
    pthread_mutex_lock(&arena->lock);
    if (ready) return 0;
    set_sleep(wanted, true);
    int r = has_work(wanted) ? 0 : sleep_once(arena, deadline_ns);
    set_sleep(wanted, false);
    return r;
}

static int died(hr_arena *arena) {
    return hr__fail(HR_E_WORKER_DIED, "arena: worker %u (pid %u) died", arena->dead_worker,
                    atomic_load_explicit(&arena->peers[arena->dead_worker].record->pid, memory_order_relaxed));
}

/* Fails for a wait that ended without a batch. */
static int fail_wait(hr_arena *arena, int r) {
    return r == HR_E_WORKER_DIED ? died(arena) : hr__fail(r, "arena: no batch arrived: %s", hr__wait_error_text(r));
}

/* Shows observers since when the trainer waits; 0: it does not. */
static void show_wait(const hr_arena *arena, int64_t since_ns) {
    struct hr__shown *shown = hr__shown_of(arena->layout.header);
    atomic_store_explicit(&shown->wait_since_ns, (uint64_t)since_ns, memory_order_relaxed);
    hr__stop_at(HR__AT_ARENA_WAITS);
}

/* Checks, waits, and checks again. A batch that was published before a death is delivered before the death is reported.
 */
static int receive(hr_arena *arena, uint32_t worker, int64_t deadline_ns, struct hr__held **ret_hold) {
    struct wanted wanted = wanted_of(arena, worker);
    int64_t start_ns = 0;
    int r = 0, waited = 0;
    for (;;) {
        hr__ledger_collect(arena);
        hr__answer_asks(arena);
        r = take_wanted(&wanted, ret_hold);
        if (r == 0 && arena->is_stopped) r = hr__arena_check(arena, 0);
        if (r != 0 || waited < 0) break;
        if (is_starved(arena, worker)) r = relieve(arena, worker);
        if (r < 0) break;
        if (!start_ns) {
            start_ns = hr__now_ns();
            arena->counts.waited_count++;
            show_wait(arena, start_ns);
        }
        waited = wait_once(arena, worker, deadline_ns);
    }
    if (start_ns) {
        arena->counts.waited_ns += (uint64_t)(hr__now_ns() - start_ns);
        show_wait(arena, 0);
        hr__spin_learn(&arena->spin, start_ns);
    }
    if (r == 0) r = fail_wait(arena, waited);
    return r;
}

void hr__show_counts(const hr_arena *arena) {
    struct hr__header *header = arena->layout.header;
    const struct hr_arena_report *counts = &arena->counts;
    atomic_store_explicit(&header->delivered_count, counts->delivered_count, memory_order_relaxed);
    atomic_store_explicit(&header->delivered_bytes, counts->delivered_bytes, memory_order_relaxed);
    atomic_store_explicit(&header->copied_count, counts->copied_count, memory_order_relaxed);
    atomic_store_explicit(&header->waited_count, counts->waited_count, memory_order_relaxed);
    atomic_store_explicit(&header->waited_ns, counts->waited_ns, memory_order_relaxed);
    atomic_store_explicit(&header->slept_count, counts->slept_count, memory_order_relaxed);
    atomic_store_explicit(&header->asked_count, counts->asked_count, memory_order_relaxed);
    atomic_store_explicit(&header->trimmed_count, counts->trimmed_count, memory_order_relaxed);
    atomic_store_explicit(&header->used_bytes, counts->used_bytes, memory_order_relaxed);
    atomic_store_explicit(&header->held_bytes, counts->held_bytes, memory_order_relaxed);
    atomic_store_explicit(&header->held_count, counts->held_count, memory_order_relaxed);
    atomic_store_explicit(&header->restart_count, counts->restart_count, memory_order_relaxed);
    atomic_store_explicit(&header->skipped_count, counts->skipped_count, memory_order_relaxed);
    hr__stop_at(HR__AT_ARENA_SHOWN);
}

int hr__arena_receive(hr_arena *arena, uint32_t worker, int64_t deadline_ns, struct hr_delivery **ret_delivery) {
    struct hr__held *held = NULL;
    pthread_mutex_lock(&arena->lock);
    int r = hr__arena_check(arena, worker == HR_ANY_WORKER ? 0 : worker);
    if (r == 0) {
        r = receive(arena, worker, deadline_ns, &held);
        if (r > 0) {
            assert(held);
            arena->counts.delivered_count++;
            arena->counts.delivered_bytes += held->public.bytes;
            arena->was_settled = false;
        }
        hr__show_counts(arena); /* also after a wait without a result */
    }
    if (r > 0) {
        if (arena->counts.delivered_count % hr__max(16, arena->prefetch_count) == 0) hr__ledger_sweep(arena);
        hr__stop_at(HR__AT_RECEIVE_DELIVERED);
        *ret_delivery = &held->public;
    }
    pthread_mutex_unlock(&arena->lock);
    return r > 0 ? 0 : r;
}
