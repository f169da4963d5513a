/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_ARENA_LEDGER_H
#define HR_ARENA_LEDGER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <headrace/arena.h>

#include "layout.h"
#include "ring.h"
#include "spin.h"

/*
 * The ledger: the trainer's private record of who has which slot, and of every byte that is committed or promised.
 * A worker owns nothing that it was not granted, so when it dies nothing shared needs repair.
 *
 *     FREE --grant--> GRANTED --received--> HELD --last lease--> (returned list) --collect--> FREE
 *                        |                                             |
 *                        +--take back--> FREE                          +--forked children--> LENT --> FREE
 *     a slot that spans several windows has its further windows in state SPANNED.
 *
 * A slot is charged: what its grant may commit while it is GRANTED, what is committed in all other states. The sum of
 * the charges stays within limit_bytes, but for the step that a task's payload takes when workers have all the rest.
 */

enum hr__slot_state { HR__FREE, HR__GRANTED, HR__HELD, HR__LENT, HR__SPANNED };
#define HR__NONE UINT32_MAX

/* One fork of this process while leases were held: the child closes its end of the pipe once it has copies of its own,
 * or by dying. Counted references: the arena's newest, each slot's, each younger ticket's. */
struct hr__ticket {
    uint32_t refs;
    int read_fd;
    int write_fd; /* open only around the fork */
    struct hr__ticket *older;
};

/* A delivered batch while somebody holds it. Embedded in its slot's entry, or allocated with a private copy. */
struct hr__hold {
    struct hr_delivery public;
    hr_arena *arena;
    uint32_t slot;         /* HR__NONE: a private copy */
    _Atomic uint32_t refs; /* the receiver's and one per lease */
    _Atomic bool is_done;  /* the receiver's own hold has ended: only leases cover anything */
    struct hr_lease *leases;
    struct hr__hold *next; /* in the returned list, or in a worker's early list */
};

struct hr_lease {
    struct hr__hold *hold;
    struct hr_lease *next;
    uint64_t offset;
    uint64_t bytes;
    _Atomic bool is_released; /* stored by any thread; pages of no other lease may then be given back */
};

struct hr__entry {
    enum hr__slot_state state;
    uint32_t worker;  /* that has or last had it */
    uint32_t windows; /* that it spans */
    uint32_t kind;
    uint32_t trims;
    uint32_t swept_count; /* leases that were released when the last sweep gave pages back */
    bool has_holes;
    uint64_t task;
    uint64_t generation;
    uint64_t committed_bytes;
    uint64_t allowance_bytes; /* of the grant */
    uint64_t payload_bytes;
    uint64_t ring_at; /* where its record stands in the worker's grant ring */
    uint64_t charged_bytes;
    uint64_t received_at; /* the arena's delivered_count then */
    struct hr__ticket *ticket;
    struct hr__hold hold;
};

/* What the trainer knows of a worker. */
struct hr__peer {
    struct hr__worker *record;
    struct hr__ring grants;
    struct hr__ring completions;
    int bell_fd;
    uint64_t answered_asks;
    uint64_t pending_bytes; /* of an ask that did not fit yet; 0: none */
    uint32_t pending_slot;
    uint32_t granted_count;
    struct hr__hold *early_first; /* received ahead of time to make room, oldest first */
    struct hr__hold *early_last;
};

struct hr_arena {
    pthread_mutex_t lock; /* all but `returned` and `refs`; not held while the trainer sleeps */
    struct hr__arena_layout layout;
    uint64_t limit_bytes;
    uint32_t prefetch_count;
    bool has_few_slots; /* a large batch takes most of them: see hr__ledger_take */
    enum hr_memory_kind memory;
    int memory_fd;
    int bell_fd;
    int life_read_fd;
    int life_write_fd;
    bool is_stopped;
    bool is_orphan; /* in a forked child: only what was leased at the fork can be read */
    _Atomic bool is_closed;
    _Atomic uint32_t refs; /* the trainer's and one per hold */

    struct hr__entry *entries; /* layout.slot_count */
    uint32_t *free_slots;      /* a stack: the last one in is the hottest */
    uint32_t free_count;
    struct hr__peer *peers; /* layout.worker_count */
    int *wait_fds;          /* the bell, then what each worker is watched by */
    bool *wait_ready;
    struct hr__spin spin;
    uint32_t next_peer; /* where to look first for any worker's completion */
    uint32_t dead_worker;
    uint64_t seen_asks;
    uint64_t generation;
    uint64_t recent_bytes; /* what batches need lately: a slowly falling maximum */
    uint32_t granted_count;
    uint32_t held_windows;  /* in slots that are HELD or LENT */
    uint32_t pending_count; /* peers with pending_bytes */
    _Atomic(struct hr__hold *) returned;
    struct hr__hold *lent; /* returned, but forked children may still be copying */
    struct hr__ticket *ticket;
    struct hr_arena_report counts;
    hr_arena *next; /* in the registry of fork.c */
    hr_arena *previous;
};

/* ---- ledger.c: slots and bytes ---- */

/* Sets what a slot is charged. */
void hr__ledger_charge(hr_arena *arena, struct hr__entry *entry, uint64_t bytes);
/* A free slot spanning `windows` windows, hot and last used by `worker` if possible. With few slots, single windows are
 * taken from the low end and several from the high end, so that those in between stay in one piece. -EAGAIN. */
int hr__ledger_take(hr_arena *arena, uint32_t worker, uint32_t windows, uint32_t *ret_slot);
/* Makes a slot free again and trims it if it is far larger than what batches need lately. */
void hr__ledger_give(hr_arena *arena, uint32_t slot);
/* Gives the pages of a slot from `keep_bytes` on back. */
void hr__ledger_trim(hr_arena *arena, uint32_t slot, uint64_t keep_bytes);
/* Is there room for `bytes` more? Trims free slots, coldest first, to make it. */
bool hr__ledger_make_room(hr_arena *arena, uint64_t bytes);
/* Collects what was returned since. Any state of the arena. */
void hr__ledger_collect(hr_arena *arena);
/* Gives back the pages of released leases in slots that others keep alive. */
void hr__ledger_sweep(hr_arena *arena);

/* ---- grant.c ---- */

/* Answers workers that ask for memory, as far as there is room. */
void hr__answer_asks(hr_arena *arena);
/* Cuts the grants that stand in the queues of asking workers down to their payload: hot slots behind a batch that has
 * no room. All that was published has been received. False when there was nothing to cut. */
bool hr__cut_queues(hr_arena *arena);
/* As a last resort: answers worker `worker` (or the first that asks) that its batch does not fit. */
void hr__refuse_ask(hr_arena *arena, uint32_t worker);
/* How many windows a batch of `bytes` bytes needs. */
uint32_t hr__windows_for(const hr_arena *arena, uint64_t bytes);

/* ---- receive.c ---- */

/* Receives what worker `worker` has published ahead of time. */
void hr__receive_published(hr_arena *arena, uint32_t worker);
/* Shows the counts to whoever looks at the arena from outside. */
void hr__show_counts(const hr_arena *arena);

/* ---- hold.c ---- */

/* Wraps a slot's published batch as a hold. */
struct hr__hold *hr__hold_slot(hr_arena *arena, uint32_t slot, const struct hr__record *record);
/* Turns a slot's hold into a private copy and frees the slot. -ENOMEM: nothing has changed. */
int hr__hold_privately(struct hr__hold **hold);
/* Ends a reference to the arena; the last one frees it. */
void hr__arena_unref(hr_arena *arena);
static inline bool hr__is_held(struct hr__entry *entry) {
    return entry->state == HR__HELD && atomic_load_explicit(&entry->hold.refs, memory_order_acquire) > 0;
}
/* How far its mapping goes: whole pages. */
uint64_t hr__hold_bytes(const struct hr__hold *hold);
/* When the arena is closed: unmaps all of it but the batches that are held, each as far as it goes, and gives the pages
 * back for all processes if `punches`... */
void hr__unmap_unheld(hr_arena *arena, bool punches);
/* ...and then each of these when nobody holds it any more. */
void hr__hold_retire(hr_arena *arena, uint32_t slot);

/* ---- fork.c ---- */

void hr__fork_register(hr_arena *arena);
void hr__fork_forget(hr_arena *arena);
bool hr__ticket_is_over(struct hr__ticket *ticket);
void hr__ticket_unref(struct hr__ticket *ticket);

/* ---- arena.c ---- */

/* 0, or why the arena cannot be used here and now, with a message. */
int hr__arena_check(const hr_arena *arena, uint32_t worker);
void hr__arena_close_descriptors(hr_arena *arena);

#endif
