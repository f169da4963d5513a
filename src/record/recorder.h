/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_RECORD_RECORDER_H
#define HR_RECORD_RECORDER_H

#include <headrace/face/fetcher.h>
#include <headrace/face/recorder.h>

#include "arena/look.h"
#include "os/os.h"
#include "writer.h"

/*
 * The recorder of a process or of several. It keeps of each loader what it has seen last, so that it can write what has
 * been added since.
 *
 *     recorder.c   the loaders, and the order of things in a look
 *     find.c       the memory of loaders that processes have open
 *     thread.c     a thread that records this process
 *     rows.c       seconds and minutes
 *     slowest.c    histograms by hour, and the slowest samples
 *     writer.c     their file
 */

/* A place of an arena's memory, as all descriptors of it show it. */
struct hr__memory_place {
    uint64_t device, inode;
};

/* The sums since the loader was made. They never fall, also where a look shows a smaller one because the work that goes
 * on was estimated. */
struct hr__totals {
    struct hr_record_row row;         /* cores_busy: CPU time of the machine in ns */
    struct hr_record_worker *workers; /* of all workers of the file */
};

/* A second or a minute that goes on. */
struct hr__interval {
    int64_t length_ns; /* that it should have */
    int64_t began_ns;  /* 0: it has not begun */
    struct hr__totals before;
};

/* The sample that a worker reads, as glances have shown it. */
struct hr__reading {
    uint64_t task, sample, index;
    int64_t first_ns, last_ns; /* 0: it reads none */
};

/* How long a worker has waited, with the time in which it was parked. */
struct hr__waiting {
    uint64_t ns;
    bool is_new; /* it was parked, and has had no task: it does not show since when it waits */
};

struct hr__slow {
    struct hr_record_sample sample;
    bool is_measured; /* by the worker */
};

struct hr__recorded {
    int pid; /* of the trainer, as this process sees it */
    bool is_same_namespace;
    bool is_whole; /* it was made after the recording began, so all that it has done is recorded */
    int fd;        /* the memory; -1: the loader has none, between two epochs */
    struct hr__memory_place place;
    bool is_noted; /* since the last look */
    bool has_changed;
    char path[HR__PATH_BYTES];
    struct hr__record_writer writer; /* fd -1: the file is complete */

    struct hr_arena_look look;
    struct hr_worker_look *workers; /* these have places for all workers of the file */
    uint64_t *batches_seen;
    struct hr__waiting *waiting;
    uint64_t *cpu_ns; /* of the process that is this worker now */
    uint64_t *delay_ns;
    uint32_t *cpu_pids;
    struct hr_fetcher_figures fetcher; /* of remote objects, as it was last */
    struct hr__reading *readings;

    struct hr__totals totals;
    struct hr__interval second, minute;
    uint64_t epoch, step; /* the last one that is in the file, */
    uint64_t done;        /* and how many there were until then, in all epochs */
    struct hr_record_hour hour, hour_before;
    struct hr__slow slowest[HR_RECORD_SLOWEST];
    uint32_t slow_count;
};

/* ---- recorder.c ---- */

/* Notes that a process has this memory open. Returns whether the recorder knows it: it records it, or has seen that it
 * is not to be recorded. Memory that was not noted since the last hr_recorder_look is no longer there for the next. */
bool hr__recorder_note(hr_recorder *recorder, uint64_t device, uint64_t inode);

/* Looks at memory that process `pid` has open and that the recorder does not know. `fd`: open for reading; the recorder
 * owns it from now on. Returns 0, or a negative errno with a message: a file cannot be written. */
int hr__recorder_add(hr_recorder *recorder, int pid, int fd);

/* Returns true if the recorder itself has opened this descriptor. */
bool hr__recorder_has_fd(const hr_recorder *recorder, int fd);
int hr__recorder_failed(const hr_recorder *recorder); /* the code with which a file could not be written, or 0 */
/* Closes all descriptors, in a forked child, which does not use the recorder any more. */
void hr__recorder_abandon(hr_recorder *recorder);

/* ---- find.c ---- */

/* Memory of a loader, and the descriptor by which it was found. */
struct hr__found {
    int pid, fd;
    struct hr__memory_place place;
};

struct hr__finder {
    struct hr__found *found;
    uint32_t count, room;
    int64_t walk_ns; /* when the descriptors of processes are walked again */
};

struct hr__finder *hr__recorder_finder(hr_recorder *recorder);

/* ---- rows.c ---- */

/* Room for `count` things, which may be none, with zeros. hr__free frees it. NULL: no memory. */
void *hr__zeros(size_t count, size_t bytes);

int hr__rows_make(struct hr__recorded *loader); /* -ENOMEM */
void hr__rows_free(struct hr__recorded *loader);
/* The loader has memory again, or for the first time: a second begins. A minute goes on over the time between two
 * epochs, so that short epochs do not fill the ring of minutes. */
int hr__rows_begin(struct hr__recorded *loader, int64_t now_ns);
/* Adds what the last look shows, and writes the second and the minute if they are over; `is_last`: the memory goes
 * away, and the second ends with it. */
int hr__rows_add(struct hr__recorded *loader, int64_t now_ns, bool is_last);
/* Writes the minute as far as it is. */
int hr__rows_end(struct hr__recorded *loader);

/* ---- slowest.c ---- */

void hr__slowest_offer_batch(struct hr__recorded *loader, const struct hr_record_batch *batch);
/* Notes what a worker reads now; NULL: nothing. */
void hr__slowest_glance(struct hr__recorded *loader, uint32_t worker, const struct hr__glance *glance, int64_t now_ns);
/* Writes the hour, if it is over, and what goes on. */
int hr__slowest_write(struct hr__recorded *loader, int64_t now_ns);

#endif
