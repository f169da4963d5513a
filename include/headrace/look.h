/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at loaders and ranks from another process. `headrace top` uses it. */
#ifndef HEADRACE_LOOK_H
#define HEADRACE_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include <headrace/arena.h>
#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * An observer opens the memory of a loader, the arena, through /proc/PID/fd, and reads it. It maps nothing and writes
 * nothing, so it costs the job nothing, and needs no more than read permission. In /proc the memory is called
 * "/memfd:headrace-arena (deleted)". A process that has a loader also has an abstract Unix socket of the name
 * headrace/UID/PID/FD, so /proc/net/unix lists the loaders of this network namespace.
 *
 * Each number is checked. Numbers that grow are read twice, and again if they are smaller the second time. They may be
 * of slightly different times.
 */

enum {
    HR_LOOK_BUCKETS = 44,    /* of a histogram: bucket n has times from 2^n ns, and shorter than twice that */
    HR_LOOK_STEPS = 256,     /* of the newest steps the time inside next() is kept */
    HR_LOOK_NAME_BYTES = 96, /* with the NUL at the end */
};
#define HR_LOOK_NO_STEP UINT32_MAX

/* The waits of a process for remote objects (headrace/remote.h). Zeros: a headrace that does not show it. */
struct hr_network_look {
    uint64_t since_ns;   /* a read waits for the fetcher since then; 0: none does */
    uint64_t wait_ns;    /* the time in which at least one read waited, without the wait that goes on */
    uint64_t wait_count; /* reads that waited */
    uint64_t hit_count;  /* reads of remote objects that did not have to */
};

/* A loader, from its memory. All sums and counts are since the loader was made, over all epochs and workers. Times are
 * nanoseconds of CLOCK_MONOTONIC. */
struct hr_arena_look {
    uint32_t version;      /* of the part for observers */
    uint32_t trainer_pid;  /* as the trainer sees it: the innermost NSpid */
    uint32_t worker_count; /* 0: it makes its batches in the training process */
    uint32_t used_count;   /* workers that get tasks: the first ones. The others are parked (num_workers="auto") */
    uint32_t loader;       /* its number in the process */
    int32_t rank;          /* -1: not known */
    int32_t world_size;
    uint32_t queue_room;           /* batches that may be in flight */
    uint32_t queue_count;          /* batches that are ready, and that the loop does not have yet */
    char name[HR_LOOK_NAME_BYTES]; /* the line that made it, such as train.py:88; any bytes */
    int64_t opened_ns;
    uint64_t epoch;
    uint64_t step;            /* batches of this epoch that the loop has */
    uint64_t wait_since_ns;   /* the loop waits since then for a worker or for pinning; 0: it does not */
    uint64_t inside_since_ns; /* the loop is inside next(); 0: it is not, or this call is not timed */
    uint64_t batches;
    uint64_t samples;
    uint64_t bytes;
    uint64_t errors;     /* batches that came as an exception */
    uint64_t inside_ns;  /* time of the loop inside next(), without first batches of epochs */
    uint64_t start_ns;   /* time until the first batches of epochs */
    uint64_t starts;     /* and how many of them there were */
    uint64_t wait_ns;    /* parts of inside_ns: waiting for a worker, */
    uint64_t pin_ns;     /* for the pinning thread, */
    uint64_t draw_ns;    /* asking the sampler and sending indices, */
    uint64_t rebuild_ns; /* making tensors of a batch */
    uint64_t restarts;
    uint64_t bad_samples;
    uint64_t used_bytes; /* shared memory now */
    bool has_stopped;    /* its workers are being ended */
    uint64_t recording;  /* which recording it belongs to, by record=; 0: to no one's */
    /* Microseconds inside next() of step n (from 1) at n % HR_LOOK_STEPS; HR_LOOK_NO_STEP: the first of an epoch. */
    uint32_t step_us[HR_LOOK_STEPS];
    /* When that call of next() ended: the low 32 bits of its time in microseconds, and 0 if it was not timed. */
    uint32_t step_end_us[HR_LOOK_STEPS];
    struct hr_network_look network; /* of a training process that makes its batches itself */
};

/* A histogram of times. Short samples and batches are timed one in n, and counted n times. */
struct hr_times {
    uint64_t buckets[HR_LOOK_BUCKETS];
    uint64_t sum_ns;
    uint64_t worst_ns;
    uint64_t worst_index; /* of the sample; HR_NO_SAMPLE: not known */
};

struct hr_worker_look {
    struct hr_worker_status status; /* with earlier workers of this number */
    uint64_t index;                 /* of the sample that it reads; HR_NO_SAMPLE: not known */
    uint64_t timed_batches;
    struct hr_times samples;
    struct hr_times collates;
    struct hr_network_look network;
};

/* Looks at the arena whose memory is `fd`, which needs to be readable only. Writes its first `room` workers; `workers`
 * may be NULL. HR_E_CORRUPT: it is no arena, or it was cut; HR_E_VERSION: it shows nothing to this version; HR_E_STATE:
 * it is not ready yet; -EAGAIN: its numbers do not fit each other. */
HR_API int hr_arena_look(int fd, struct hr_arena_look *ret_look, struct hr_worker_look *ret_workers, uint32_t room);

/* One of the last batches of a worker. */
struct hr_batch_look {
    uint64_t number; /* 1 for the first one of this worker */
    uint64_t task;
    uint64_t began_ns;
    uint64_t fetch_ns;
    uint64_t collate_ns;
    uint64_t bytes;
    uint64_t slowest_index; /* of its slowest sample */
    uint64_t slowest_ns;    /* 0: its samples were not timed */
};

#ifdef __cplusplus
}
#endif
#endif
