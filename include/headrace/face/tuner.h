/* SPDX-License-Identifier: Apache-2.0 */
/* Decides how many workers of a loader get tasks, by trying. */
#ifndef HEADRACE_FACE_TUNER_H
#define HEADRACE_FACE_TUNER_H

#include <stdbool.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A tuner belongs to a loader as long as that exists, over all epochs. It makes no system call and reads no clock: it
 * is told of each batch, with the clock values that the show has read anyway. It answers with the number of workers
 * that it wants. The caller lets so many get tasks, when it can, and says so with hr_tuner_use. The others are parked.
 *
 *     FIRST     the rate with the number of now
 *     MORE      the loop waits: more workers are tried, as many as would keep up with the loop without waiting
 *     AGAIN     they were faster: a second look at the old number, because a page cache may have become warm meanwhile
 *     FEWER     the fewest whose rate is within 3 % of the best one, by halves
 *     REST      for a pause that doubles from 1 to 10 minutes; then again if the loop waited over 10 % of a minute. If
 *               nothing has changed since the last search, only after 10 minutes.
 *
 * A rate is the median over whole rounds (as many batches as workers), of 1 s and 7 rounds at least, on the way of a
 * change not counted. It is better if it is higher by 3 % and by twice the noise of the two medians.
 *
 * Times are nanoseconds of one clock. Threads: one at a time.
 */
typedef struct hr_tuner hr_tuner;

struct hr_tuner_options {
    uint32_t first; /* the number to begin with: 1 to `most` */
    uint32_t most;
    uint32_t prefetch_factor; /* tasks outstanding per worker */
    uint32_t turn;            /* of the loaders of this machine's ranks, which begin their searches in turns: */
    uint32_t turns;           /* `turn` of `turns`; 1: there is no other */
};

/* Returns NULL without memory. Owned by the caller. */
HR_API hr_tuner *hr_tuner_open(const struct hr_tuner_options *options);
HR_API hr_tuner *hr_tuner_close(hr_tuner *tuner); /* NULL is fine; returns NULL */

/* An epoch begins, and ends. waited_ns: how long the loop has waited for workers so far, in all epochs. */
HR_API void hr_tuner_begin(hr_tuner *tuner, int64_t now_ns, uint64_t waited_ns);
HR_API void hr_tuner_end(hr_tuner *tuner, int64_t now_ns, uint64_t waited_ns);

/* The loop has got a batch. now_ns: 0 if no clock was read. Returns the number of workers that is wanted. */
HR_API uint32_t hr_tuner_step(hr_tuner *tuner, int64_t now_ns, uint64_t waited_ns);
HR_API uint32_t hr_tuner_wanted(const hr_tuner *tuner);

/* So many workers get tasks from now on, which may be others than those that are wanted. */
HR_API void hr_tuner_use(hr_tuner *tuner, uint32_t workers, uint64_t waited_ns);

/* More than `most` workers are not possible at the moment, for example because memory is short. The next search may
 * want them again. */
HR_API void hr_tuner_limit(hr_tuner *tuner, uint32_t most);

/* The search begins again, with this number. */
HR_API void hr_tuner_restart(hr_tuner *tuner, uint32_t workers);

/* Nothing is tried any more. */
HR_API void hr_tuner_hold(hr_tuner *tuner);

enum hr_tuner_state { HR_TUNER_FIRST, HR_TUNER_MORE, HR_TUNER_AGAIN, HR_TUNER_FEWER, HR_TUNER_REST };

/* A rate that was measured. */
struct hr_tuner_try {
    uint32_t workers;
    enum hr_tuner_state why; /* never HR_TUNER_REST */
    bool is_kept;            /* this number stayed, at least until the next try */
    double batches_per_s;
    double noise; /* the standard error of that, as a share of it */
    double wait;  /* the share of the time that the loop waited for workers */
    double seconds;
};

enum { HR_TUNER_TRIES = 64 };

struct hr_tuner_report {
    uint32_t workers; /* that get tasks now */
    uint32_t most;
    enum hr_tuner_state state;
    uint32_t changes;   /* of the number of workers, so far */
    uint32_t try_count; /* so far; the last HR_TUNER_TRIES are in `tries`, oldest first */
    struct hr_tuner_try tries[HR_TUNER_TRIES];
};
HR_API void hr_tuner_read(const hr_tuner *tuner, struct hr_tuner_report *ret_report);

#ifdef __cplusplus
}
#endif
#endif
