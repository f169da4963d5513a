/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_ARENA_SHOWN_H
#define HR_ARENA_SHOWN_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <headrace/look.h>

#include "base/base.h"

/*
 * What a loader shows to observers, which are processes that only read: `headrace top`, and hr_arena_look.
 *
 *     HR__SHOWN_AT   struct hr__shown: what the trainer shows          writer: the trainer
 *     sights_at      struct hr__sight for each worker                  writer: that worker; `earlier` the trainer
 *
 * It has its own version, and only grows: an observer reads what it knows of a newer one. So it says itself where the
 * records, the rings and the sights are. A loader without workers has a file of one page with this part alone.
 *
 * All numbers are for reports. No process acts on them, so a writer that dies in the middle harms nothing: they stay as
 * they are. Stores are relaxed; observers compare two reads (look.c).
 */

#define HR__SHOWN_MAGIC UINT64_C(0x6e776f68732d7268) /* "hr-shown" */
enum {
    HR__SHOWN_AT = 1024,
    HR__SHOWN_VERSION = 1,
    HR__SIGHT_BATCHES = 256, /* the last batches of a worker that are kept */
};

/* The counts of a loader, since it was made. */
enum hr__count {
    HR__COUNT_BATCHES,
    HR__COUNT_SAMPLES,
    HR__COUNT_BYTES,
    HR__COUNT_ERRORS,
    HR__COUNT_INSIDE_NS, /* time inside next(), first batches of epochs apart */
    HR__COUNT_START_NS,  /* time until the first batch of an epoch, with the start of workers */
    HR__COUNT_STARTS,
    HR__COUNT_WAIT_NS, /* parts of INSIDE_NS: for workers, */
    HR__COUNT_PIN_NS,  /* for the pinning thread, */
    HR__COUNT_DRAW_NS, /* for the sampler and sending its indices, */
    HR__COUNT_REBUILD_NS,
    HR__COUNT_RESTARTS,
    HR__COUNT_BAD,
    HR__COUNT_COUNT
};

/* Counts of what a process waits for remote objects: written by network.c. */
struct hr__shown_network {
    _Alignas(HR_CACHE_LINE) _Atomic uint64_t since_ns; /* a read waits for the fetcher since then; 0: none does */
    _Atomic uint64_t wait_ns;                          /* for how long one did */
    _Atomic uint64_t wait_count;                       /* reads that waited */
    _Atomic uint64_t hit_count;                        /* reads of remote objects that did not */
};

struct hr__shown {
    /* Written before the arena is ready. */
    uint64_t magic;
    uint32_t version;
    uint32_t bytes; /* of this struct */
    uint32_t worker_count;
    uint32_t trainer_pid;
    uint64_t records_at; /* struct hr__worker */
    uint64_t rings_at;   /* the grant and the completion ring of each worker */
    uint64_t sights_at;
    uint32_t record_bytes;
    uint32_t ring_bytes;
    uint32_t sight_bytes;

    /* The identity of the loader, by hr_show_attach. */
    _Atomic uint32_t is_named; /* stored last, with release */
    uint32_t loader;           /* its number in the process: the same for all its epochs */
    int32_t rank;              /* -1: not known */
    int32_t world_size;
    _Atomic uint32_t queue_room; /* changes with used_count */
    _Atomic uint32_t used_count; /* workers that get tasks: the first ones. 0: all, in a loader that is older */
    int64_t opened_ns;
    char name[HR_LOOK_NAME_BYTES]; /* the line that made it */

    _Alignas(HR_CACHE_LINE) _Atomic uint64_t epoch;
    _Atomic uint64_t step;            /* batches of this epoch that the loop has */
    _Atomic uint64_t wait_since_ns;   /* the loop waits for a worker or for pinning; 0: it does not */
    _Atomic uint64_t inside_since_ns; /* it is inside next(); 0: it is not, or this call is not timed */
    _Atomic uint64_t ahead_count;     /* batches that are pinned and that the loop does not have yet */
    _Atomic uint64_t used_bytes;
    uint64_t recording; /* which recorder takes it, by hr_show_open; 0: none was asked for */
    _Alignas(HR_CACHE_LINE) _Atomic uint64_t counts[HR__COUNT_COUNT];
    _Alignas(HR_CACHE_LINE) _Atomic uint32_t step_us[HR_LOOK_STEPS]; /* of step n at n % HR_LOOK_STEPS: see look.h */
    _Atomic uint32_t step_end_us[HR_LOOK_STEPS];
    /* Added later: a loader that is older does not have it. */
    struct hr__shown_network network; /* of a loader without workers */
};

struct hr__shown_times {
    _Atomic uint64_t buckets[HR_LOOK_BUCKETS];
    _Atomic uint64_t sum_ns;
    _Atomic uint64_t worst_ns;
    _Atomic uint64_t worst_index;
};

/* A batch whose phases were timed. */
struct hr__shown_batch {
    _Atomic uint64_t task;
    _Atomic uint64_t began_ns;
    _Atomic uint64_t fetch_ns;
    _Atomic uint64_t collate_ns;
    _Atomic uint64_t bytes;
    _Atomic uint64_t slowest_index;
    _Atomic uint64_t slowest_ns; /* 0: its samples were not timed */
    _Atomic uint64_t number;     /* 1 for the first one of this worker; stored last, with release, and 0 before */
};

struct hr__sight {
    _Alignas(HR_CACHE_LINE) _Atomic uint64_t index; /* of the sample that is read, plus 1; 0: not known */
    _Atomic uint64_t batch_count;                   /* batches that were timed */
    _Atomic uint64_t earlier_done;                  /* of earlier arenas of this loader: written by the trainer */
    _Atomic uint64_t earlier_starts;
    _Atomic uint64_t earlier_phase_ns[3];
    _Alignas(HR_CACHE_LINE) struct hr__shown_times samples;
    struct hr__shown_times collates;
    _Alignas(HR_CACHE_LINE) struct hr__shown_batch batches[HR__SIGHT_BATCHES];
    /* Added later. */
    struct hr__shown_network network;
};

static_assert(sizeof(struct hr__shown_batch) == HR_CACHE_LINE, "shared layout");
static_assert(sizeof(struct hr__sight) % HR_CACHE_LINE == 0, "shared layout");

struct hr__arena_layout;
struct hr__header;

/* Writes the part of a new arena that says where things are. */
void hr__shown_write(const struct hr__arena_layout *layout);
static inline struct hr__shown *hr__shown_of(struct hr__header *header) {
    return (struct hr__shown *)((unsigned char *)header + HR__SHOWN_AT);
}

/* ---- show.c ---- */

struct hr_arena;
struct hr_show;

/* Used when the arena is closed or orphaned: keeps what it has shown, for the next arena. */
void hr__show_leave(struct hr_show *show);

#endif
