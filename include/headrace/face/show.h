/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's side of a loader that observers see. See headrace/look.h. */
#ifndef HEADRACE_FACE_SHOW_H
#define HEADRACE_FACE_SHOW_H

#include <stdbool.h>
#include <stdint.h>

#include <headrace/arena.h>
#include <headrace/look.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A show belongs to a loader as long as that exists. It counts in private memory, and shows the counts in the arena
 * that the loader has at the moment, or, without workers, in a page of its own. So counts go on when a loader gets a
 * new arena in its next epoch. Nothing fails because a show cannot be made or seen: then the counts are private only.
 *
 * Clocks: a call of next() that takes 100 us or more is timed. Of shorter ones one in n is, for at most 0.5 % of the
 * time, and counts n times. Counts, and waiting for workers, are exact.
 *
 * Threads: one at a time, except for hr_show_enter and hr_show_leave, of which each thread has its own visit. A forked
 * child shows nothing.
 */
typedef struct hr_show hr_show;

/* Returns a quantile of a histogram of times, in nanoseconds: the middle of its bucket by the logarithm, right within
 * 41 %, because buckets grow by two. `share`: 0 to 1. 0: it has no times. */
HR_API double hr_times_quantile_ns(const uint64_t buckets[HR_LOOK_BUCKETS], double share);

struct hr_show_who {
    const char *name; /* copied, and cut if it is long */
    int32_t rank;     /* -1: not known */
    int32_t world_size;
    uint64_t recording; /* see hr_recorder_open; 0: no recorder was asked for */
};

/* Returns NULL without memory. Owned by the caller. */
HR_API hr_show *hr_show_open(const struct hr_show_who *who);
HR_API hr_show *hr_show_close(hr_show *show); /* NULL is fine; returns NULL */

/* Shows the counts in an arena, before its workers start, until it is closed; `arena` keeps the pointer. queue_room:
 * the batches that may be in flight. */
HR_API void hr_show_attach(hr_show *show, hr_arena *arena, uint32_t queue_room);

/* Shows the counts in a page of their own. It stays until the show is closed. A process shows at most
 * HR_SHOW_MAX_PAGES in this way, because each takes two descriptors. */
enum { HR_SHOW_MAX_PAGES = 32 };
HR_API void hr_show_attach_page(hr_show *show);

/* An epoch begins. since_ns: when its iterator began to be made; 0: unknown. */
HR_API void hr_show_begin(hr_show *show, uint64_t epoch, int64_t since_ns);

/* The epoch has ended. Returns true the first time, if it had a batch. */
HR_API bool hr_show_end(hr_show *show);

/* A call of next(). */
struct hr_show_visit {
    int64_t began_ns;   /* 0: it is not timed */
    uint64_t waited_ns; /* the time that all calls before have waited, */
    uint64_t pinned_ns; /* and the part for the pinning thread */
    uint32_t weight;
};
HR_API void hr_show_enter(hr_show *show, struct hr_show_visit *ret_visit);

enum hr_show_result { HR_SHOW_BATCH, HR_SHOW_ERROR, HR_SHOW_NOTHING /* the end, or an interruption */ };
HR_API void hr_show_leave(hr_show *show, const struct hr_show_visit *visit, enum hr_show_result result,
                          uint64_t sample_count, uint64_t ahead_count);

/* Returns true ten times per second at most: then other ranks are told how long this one has waited. */
HR_API bool hr_show_is_due(hr_show *show);

/* Parts of a call of next(). hr_show_part_begin returns 0 if the call is not timed. */
enum hr_show_part { HR_SHOW_DRAW, HR_SHOW_REBUILD };
HR_API int64_t hr_show_part_begin(const hr_show *show);
HR_API void hr_show_part_end(hr_show *show, enum hr_show_part part, int64_t began_ns);
/* The loop waits for the pinning thread. It is always timed. */
HR_API void hr_show_pin_begin(hr_show *show);
HR_API void hr_show_pin_end(hr_show *show);

/* So many workers get tasks, and so many batches may be in flight, from now on. */
HR_API void hr_show_use(hr_show *show, uint32_t workers, uint32_t queue_room);

/* How long the loop has waited for workers, since the loader was made. */
HR_API uint64_t hr_show_waited_ns(const hr_show *show);
/* When the last call of next() that was timed has ended. */
HR_API int64_t hr_show_timed_ns(const hr_show *show);

/* How long the loop has waited for the pinning thread since the show was attached. */
HR_API uint64_t hr_show_pinned_ns(const hr_show *show);

/* Reads what the show has counted, and its workers; see hr_arena_look. Returns the number of workers. */
HR_API uint32_t hr_show_read(const hr_show *show, struct hr_arena_look *ret_look, struct hr_worker_look *ret_workers,
                             uint32_t room);

/* The counts since the epoch began, without those of workers. */
HR_API void hr_show_read_epoch(const hr_show *show, struct hr_arena_look *ret_look);
/* The time from the first batch of the epoch on, until now or its end. */
HR_API int64_t hr_show_elapsed_ns(const hr_show *show);

#ifdef __cplusplus
}
#endif
#endif
