/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_ARENA_LAYOUT_H
#define HR_ARENA_LAYOUT_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <headrace/face/arena.h>

#include "base/base.h"
#include "shown.h"

/*
 * The layout of the arena's file.
 *
 *     0              header, one page, in which SHOWN_AT has a part        writer: the trainer, `asks` apart
 *                    for observers: see shown.h
 *     workers_at     worker records, 256 bytes: lines of the worker's,     writer: that worker
 *                    and a line of the trainer's replies                   writer: the trainer
 *     slots_at       slot words, a line each                               writer: owner of the slot
 *     rings_at       per worker a grant ring (trainer -> worker)
 *                    and a completion ring (worker -> trainer)             writers: see ring.h
 *     sights_at      per worker what observers see of it, apart from   writer: that worker; `earlier` the trainer
 *                    its record: see shown.h
 *     windows_at     slot windows, window_bytes each, 2 MiB-aligned if     writer: owner of the slot
 *                    that is their size
 *
 * A process that attaches finds a file that is shorter than a header, not ready, of another version, or ready. `ready`
 * is stored last. Positions are offsets. The trainer never trusts a number that it reads from here: it acts on its
 * private ledger (ledger.h), and compares each completion with it.
 */

#define HR__MAGIC UINT64_C(0x6563617264616568) /* "headrace" */
enum {
    HR__ABI_VERSION = 5,
    HR__HEADER_ROOM = 4096,
    HR__BATCH_KIND = 0, /* tasks of this kind make batches (HR_TASK_MAKE): their times are shown */
};

struct hr__header {
    uint64_t magic;
    uint32_t abi_version;
    uint32_t header_bytes;
    uint32_t worker_count;
    uint32_t slot_count;
    uint32_t ring_capacity; /* a power of two */
    uint32_t trainer_pid;
    uint64_t total_bytes;
    uint64_t limit_bytes;
    uint64_t window_bytes;
    _Atomic uint32_t ready;   /* stored last, with release; loaded with acquire by hr__layout_check */
    _Atomic uint32_t stopped; /* 1: no more tasks. If the trainer dies, the kernel kills the workers instead. */

    /* Writers: the workers, by addition. Counts how often workers asked for memory, so that the trainer reads one line
     * instead of one per worker. A worker that dies between its ask and the addition has its grants taken back. */
    _Alignas(HR_CACHE_LINE) _Atomic uint64_t asks;
    uint64_t reserved[7];

    /* Writer: the trainer, whenever it has received, counted or made a report. The counts of struct hr_arena_report,
     * for tools in other processes. If the trainer dies, they stay unchanged. */
    _Atomic uint64_t delivered_count;
    _Atomic uint64_t delivered_bytes;
    _Atomic uint64_t copied_count;
    _Atomic uint64_t waited_count;
    _Atomic uint64_t waited_ns;
    _Atomic uint64_t slept_count;
    _Atomic uint64_t asked_count;
    _Atomic uint64_t trimmed_count;
    _Atomic uint64_t used_bytes;
    _Atomic uint64_t held_bytes;
    _Atomic uint32_t held_count;
    _Atomic uint32_t restart_count;
    _Atomic uint64_t skipped_count;
};

struct hr__worker {
    /* The worker's line. If it dies, the values stay unchanged: they are for reports, and `ask` is ignored. */
    _Atomic uint64_t sample;
    _Atomic uint64_t done_count;
    _Atomic uint32_t pid;       /* stored with release after the status of a predecessor is cleared */
    _Atomic uint32_t ask_slot;  /* the slot for which it asks: earlier grants may be published and not received */
    _Atomic uint64_t ask;       /* counts this worker's asks; stored last, with release */
    _Atomic uint64_t ask_bytes; /* the size that the current grant's slot should have */

    /* The worker's second line, its status: for reports only. */
    _Alignas(HR_CACHE_LINE) _Atomic uint32_t phase; /* enum hr_phase */
    _Atomic uint32_t starts;                        /* processes that opened this worker's port so far */
    _Atomic uint64_t task;                          /* the current task of the worker, or its last one */
    _Atomic uint64_t phase_since_ns;
    _Atomic uint64_t phase_ns[HR_PHASE_COUNT]; /* the sum over these processes */
    _Atomic uint64_t rss_bytes;                /* measured at most a second before the end of the last task */

    /* The worker's third line: of which samples its threads make parts, plus 1; 0: of none. For reports only. If the
     * worker dies, they tell at which samples it was. */
    _Alignas(HR_CACHE_LINE) _Atomic uint32_t making[HR_MAKING_THREADS];

    /* The trainer's line: its reply to the ask of the same number. */
    _Alignas(HR_CACHE_LINE) _Atomic uint64_t reply; /* stored last, seq_cst: see ring.h */
    _Atomic uint64_t reply_bytes;                   /* the allowance after the reply */
    _Atomic uint32_t reply_slot; /* the slot after the reply: another one if one window is too small */
    _Atomic uint32_t reply_windows;
    _Atomic uint64_t reply_generation;
    _Atomic uint32_t reply_refused;
};

struct hr__slot {
    _Atomic uint64_t committed_bytes; /* writer: the worker that has the grant; checked by the trainer at publish */
    _Atomic uint64_t generation;      /* writer: the trainer, at grant */
    _Atomic uint32_t owner;           /* writer: the trainer, at grant: the worker's number */
    uint32_t reserved[11];
};

static_assert(sizeof(struct hr__header) <= HR__SHOWN_AT, "shared layout");
static_assert(HR__SHOWN_AT + sizeof(struct hr__shown) <= HR__HEADER_ROOM, "shared layout");
static_assert(offsetof(struct hr__header, delivered_count) == 2 * HR_CACHE_LINE, "shared layout");
static_assert(sizeof(struct hr__header) == 4 * HR_CACHE_LINE, "shared layout");
static_assert(sizeof(struct hr__worker) == 4 * HR_CACHE_LINE, "shared layout");
static_assert(sizeof(struct hr__slot) == HR_CACHE_LINE, "shared layout");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
              "a process that dies would leave a lock in shared memory");

/* Worker descriptors of which none is open. */
static inline struct hr_worker_fds hr__no_worker_fds(uint32_t worker) {
    return (struct hr_worker_fds){worker, -1, -1, -1, -1, -1};
}

#define HR__ARENA_FILE "headrace-arena" /* the name of the memory in /proc/PID/fd */

/* One process's view of the mapped file. The mapping is borrowed. */
struct hr__arena_layout {
    struct hr__header *header;
    uint64_t workers_at;
    uint64_t slots_at;
    uint64_t rings_at;
    uint64_t sights_at;
    uint64_t head_end; /* of all that is not a window */
    uint64_t windows_at;
    uint64_t window_bytes;
    uint64_t total_bytes;
    uint32_t worker_count;
    uint32_t slot_count;
    uint32_t ring_capacity;
};

/* Computes the layout of an arena: fills `layout` except `header`. -EOVERFLOW. */
int hr__layout_plan(uint32_t worker_count, uint32_t slot_count, uint32_t ring_capacity, uint64_t window_bytes,
                    struct hr__arena_layout *ret_layout);

/* Writes the header of a new mapping and marks it as ready. */
void hr__layout_write(struct hr__arena_layout *layout, void *mapping, uint64_t limit_bytes, uint32_t trainer_pid);

/* Checks a mapping of `bytes` bytes that another process wrote. HR_E_CORRUPT, HR_E_VERSION, with a message. */
int hr__layout_check(void *mapping, uint64_t bytes, struct hr__arena_layout *ret_layout);

struct hr__worker *hr__layout_worker(const struct hr__arena_layout *layout, uint32_t worker);
struct hr__slot *hr__layout_slot(const struct hr__arena_layout *layout, uint32_t slot);
/* Reads a record that another process may write. */
void hr__layout_read_status(const struct hr__worker *record, struct hr_worker_status *ret_status);
struct hr__sight *hr__layout_sight(const struct hr__arena_layout *layout, uint32_t worker);
void *hr__layout_grant_ring(const struct hr__arena_layout *layout, uint32_t worker);
void *hr__layout_completion_ring(const struct hr__arena_layout *layout, uint32_t worker);
static inline uint64_t hr__layout_window_at(const struct hr__arena_layout *layout, uint32_t slot) {
    return layout->windows_at + (uint64_t)slot * layout->window_bytes;
}
static inline void *hr__layout_window(const struct hr__arena_layout *layout, uint32_t slot) {
    return (unsigned char *)layout->header + hr__layout_window_at(layout, slot);
}

#endif
