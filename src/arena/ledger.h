/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_ARENA_LEDGER_H
#define HR_ARENA_LEDGER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <headrace/face/arena.h>

#include "layout.h"
#include "ring.h"
#include "spin.h"

/*
 * The ledger: the trainer's private record of the state and owner of each slot, and of every byte that is committed or
 * granted. A worker owns only what was granted to it, so nothing in shared memory needs repair when it dies.
 *
 *     FREE --grant--> GRANTED --received--> HELD --last lease--> (returned list) --collect--> FREE
 *                        |                                             |
 *                        +--take back--> FREE                          +--forked children--> LENT --> FREE
 *     if a slot spans several windows, its other windows are in state SPANNED.
 *
 * A slot is charged with the bytes that its grant may commit while it is GRANTED, and with the committed bytes in all
 * other states. The sum of the charges stays within limit_bytes. The exception is the memory of a task's payload when
 * workers have all the rest.
 */

enum hr__slot_state { HR__FREE, HR__GRANTED, HR__HELD, HR__LENT, HR__SPANNED };
#define HR__NONE UINT32_MAX

/* A fork pipe: one fork of this process while it had leases. The child closes its end of the pipe when it has its own
 * copies, or when it dies. References are counted: from the arena to its newest fork pipe, from each slot, and from
 * each younger one. */
struct hr__fork_pipe {
    uint32_t refs;
    int read_fd;
    int write_fd; /* open only around the fork */
    struct hr__fork_pipe *older;
};

/* A held batch: a delivered batch that is still in use. Embedded in its slot's entry, or allocated with a private copy.
 */
struct hr__held {
    struct hr_delivery public;
    hr_arena *arena;
    uint32_t slot;         /* HR__NONE: a private copy */
    _Atomic uint32_t refs; /* the receiver's and one per lease */
    _Atomic bool is_done;  /* the receiver has called hr_delivery_done: only leases cover memory */
    bool is_sent;          /* all its leases belong to copies to a device: no forked child reads it */
    struct hr_lease *leases;
    struct hr__held *next; /* the next one in the returned list, or in a worker's early list */
};

struct hr_lease {
    struct hr__held *held;
    struct hr_lease *next;
    uint64_t offset;
    uint64_t bytes;
    _Atomic bool is_released; /* stored by any thread; then the pages that no other lease covers may be released */
};

struct hr__entry {
    enum hr__slot_state state;
    uint32_t worker;  /* the worker that has the slot, or had it last */
    uint32_t windows; /* windows that the slot spans */
    uint32_t kind;
    uint32_t trims;
    uint32_t swept_count; /* leases that were released at the last sweep */
    bool has_holes;
    uint64_t task;
    uint64_t generation;
    uint64_t committed_bytes;
    uint64_t allowance_bytes; /* bytes that the grant may commit */
    uint64_t payload_bytes;
    uint64_t ring_at; /* the position of its record in the worker's grant ring */
    uint64_t charged_bytes;
    uint64_t received_at;    /* the arena's delivered_count then */
    uint64_t received_count; /* batches that were received in this slot */
    uint64_t
        registered_bytes; /* from its start: a device has registered them, so they keep their pages and stay mapped */
    struct hr__fork_pipe *fork_pipe;
    struct hr__held held;
};

/* A worker as the trainer sees it. */
struct hr__peer {
    struct hr__worker *record;
    struct hr__ring grants;
    struct hr__ring completions;
    int bell_fd; /* the doorbell of the worker, an eventfd */
    uint64_t answered_asks;
    uint64_t pending_bytes; /* requested in an ask that did not fit yet; 0: no such ask */
    uint32_t pending_slot;
    uint32_t granted_count;
    struct hr__held *early_first; /* received ahead of time to make room, oldest first */
    struct hr__held *early_last;
};

struct hr_arena {
    pthread_mutex_t lock; /* all but `returned` and `refs`; not held while the trainer sleeps */
    struct hr__arena_layout layout;
    uint64_t limit_bytes;
    uint32_t prefetch_count;
    uint32_t reserved_count; /* grants that are to be expected: see hr__arena_reserve */
    bool has_few_slots;      /* a large batch takes most of them: see hr__ledger_take */
    enum hr_memory_kind memory;
    int memory_fd;
    int bell_fd; /* the doorbell of the trainer, an eventfd */
    int life_read_fd;
    int life_write_fd;
    bool is_stopped;
    bool is_orphan; /* in a forked child: only what was leased at the fork can be read */
    _Atomic bool is_closed;
    _Atomic uint32_t refs; /* the trainer's and one per held batch */

    struct hr__entry *entries; /* layout.slot_count */
    uint32_t *free_slots;      /* a stack: the last one in is the hottest */
    uint32_t free_count;
    struct hr__peer *peers; /* layout.worker_count */
    int *wait_fds;          /* the doorbell, then the descriptor that watches each worker */
    bool *wait_ready;
    struct hr__spin spin;
    uint32_t next_peer; /* the first worker to check for a completion when any worker is wanted */
    uint32_t dead_worker;
    uint64_t seen_asks;
    uint64_t generation;
    uint64_t recent_bytes; /* the size of recent batches: a slowly falling maximum */
    uint32_t granted_count;
    uint32_t held_windows;  /* windows of slots that are HELD or LENT */
    uint32_t pending_count; /* peers with pending_bytes */
    uint32_t sent_count;    /* held batches that are sent */
    bool is_sending;        /* batches are copied to a device, so that their slots are free in a moment */
    bool was_settled;       /* the caller was asked to settle its copies, and nothing was delivered since */
    uint64_t registered_bytes;
    _Atomic(struct hr__held *) returned;
    struct hr__held *lent; /* returned, but forked children may still be copying */
    struct hr__fork_pipe *fork_pipe;
    struct hr_arena_report counts;
    struct hr_show *show; /* what shows this arena to observers, borrowed; NULL: nothing */
    hr_arena *next;       /* the next arena in the registry of fork.c */
    hr_arena *previous;
};

/* ---- ledger.c: slots and bytes ---- */

/* Sets the charge of a slot. */
void hr__ledger_charge(hr_arena *arena, struct hr__entry *entry, uint64_t bytes);
/* Takes a free slot of `windows` windows, if possible one that `worker` used recently. With few slots, single windows
 * are taken from the low end and several from the high end, so that the free ones in between stay contiguous. -EAGAIN.
 */
int hr__ledger_take(hr_arena *arena, uint32_t worker, uint32_t windows, uint32_t *ret_slot);
/* Makes a slot free again and trims it if it is far larger than recent batches. */
void hr__ledger_give(hr_arena *arena, uint32_t slot);
/* Releases the pages of a slot from `keep_bytes` on, but not those that a device has registered. */
void hr__ledger_trim(hr_arena *arena, uint32_t slot, uint64_t keep_bytes);
/* Returns true if there is room for `bytes` more. Trims free slots to make room, those that were unused for the longest
 * time first. */
bool hr__ledger_make_room(hr_arena *arena, uint64_t bytes);
/* Collects the holds that were returned since the last call. The arena may be in any state. */
void hr__ledger_collect(hr_arena *arena);
/* Releases the pages of released leases in slots that other leases keep. */
void hr__ledger_sweep(hr_arena *arena);

/* ---- grant.c ---- */

/* Answers workers that ask for memory, if there is room. */
void hr__answer_asks(hr_arena *arena);
/* Reduces the waiting grants in the queues of workers that ask for memory to their payload, because these slots keep
 * memory while the batch before them has no room. Everything that was published has been received. Returns false if
 * there was nothing to reduce. */
bool hr__cut_queues(hr_arena *arena);
/* Says that at most `count` grants will be outstanding for now, of the prefetch_count that are possible: slots and
 * memory are kept free for so many. */
void hr__arena_reserve(hr_arena *arena, uint32_t count);
/* Answers worker `worker` (or the first that asks) that its batch does not fit. This is the last resort. */
void hr__refuse_ask(hr_arena *arena, uint32_t worker);
/* Returns how many windows a batch of `bytes` bytes needs. */
uint32_t hr__windows_for(const hr_arena *arena, uint64_t bytes);

/* ---- receive.c ---- */

/* Receives the batches that worker `worker` has published before they are wanted. */
void hr__receive_published(hr_arena *arena, uint32_t worker);
/* Writes the counts to the arena's header, for tools in other processes. */
void hr__show_counts(const hr_arena *arena);

/* ---- held.c ---- */

/* Makes the held batch of a slot from its published batch. */
struct hr__held *hr__held_new(hr_arena *arena, uint32_t slot, const struct hr__record *record);
/* Turns the held batch of a slot into a private copy and frees the slot. -ENOMEM: nothing has changed. */
int hr__held_copy(struct hr__held **held);
/* Drops a reference to the arena; the last one frees it. */
void hr__arena_unref(hr_arena *arena);
static inline bool hr__is_held(struct hr__entry *entry) {
    return entry->state == HR__HELD && atomic_load_explicit(&entry->held.refs, memory_order_acquire) > 0;
}
/* The size of its mapping, in whole pages. */
uint64_t hr__held_bytes(const struct hr__held *held);
/* Used when the arena is closed. Unmaps all of it except the batches that are held, and releases the pages for all
 * processes if `punches`. */
void hr__unmap_unheld(hr_arena *arena, bool punches);
/* Used after that. Unmaps a batch when its last reference is gone. */
void hr__held_retire(hr_arena *arena, uint32_t slot);

/* ---- device.c ---- */

/* Returns how many bytes of a slot keep their pages and stay mapped, because a device has registered them: it goes on
 * to read the pages that it found then, whatever is mapped there later. */
uint64_t hr__registered_bytes(const struct hr__entry *entry);
/* Returns true, once until something is delivered, if copies to a device hold batches, whose memory is free in a
 * moment.
 */
bool hr__must_settle(hr_arena *arena);

/* ---- fork.c ---- */

void hr__fork_register(hr_arena *arena);
void hr__fork_forget(hr_arena *arena);
bool hr__fork_pipe_is_over(struct hr__fork_pipe *pipe);
void hr__fork_pipe_unref(struct hr__fork_pipe *pipe);

/* ---- arena.c ---- */

/* Returns 0, or a code with a message if the arena cannot be used in this process or was stopped. */
int hr__arena_check(const hr_arena *arena, uint32_t worker);
void hr__arena_close_descriptors(hr_arena *arena);

#endif
