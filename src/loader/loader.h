/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_LOADER_LOADER_H
#define HR_LOADER_LOADER_H

#include <stdbool.h>

#include <headrace/loader.h>

/* Declarations that the files of the loader share: its state, the queues of outstanding tasks (outstanding.c), and the
 * replacement of a dead worker (replace.c). */

/* A task that is outstanding, with the payload that a successor of its worker would need. Its memory is used
 * again. */
struct hr__outstanding {
    struct hr__outstanding *next; /* the next one in the queue of a worker, or in the list of free ones */
    uint64_t task;
    void *payload;
    size_t payload_bytes;
    size_t payload_room;
};

/* A worker as the loader sees it. It answers the tasks of its queue one after the other. */
struct hr__loader_peer {
    bool is_at_end;      /* it has no more data in this epoch */
    bool is_dismissed;   /* the worker is to end after it has answered everything */
    bool has_last_task;  /* HR_TASK_STOP was granted; it is never answered */
    uint32_t lost_count; /* tasks at the end of the queue that were taken back from a dead worker and not granted again
                            yet */
    uint32_t undelivered_count; /* outstanding tasks of this epoch: the length of the queue */
    uint32_t unanswered_count;  /* all that it has to answer, including the announcement of the epoch */
    uint64_t delivered_count;   /* batches that were delivered in this epoch */
    struct hr__outstanding *first, *last;
};

/* The tasks [answered, submitted) are outstanding. In order, `owners` has the worker of each task, at its number modulo
 * owner_count, a power of two. Out of order only the number of these tasks matters. */
struct hr_loader {
    hr_arena *arena;
    hr_crew *crew;
    uint32_t worker_count;
    uint32_t used_count;     /* workers that get tasks: the first ones */
    uint32_t expected_count; /* workers that are told of epochs: the first ones */
    uint32_t prefetch_factor;
    uint32_t most_outstanding; /* of all workers */
    bool out_of_order;
    bool is_draining;         /* hr_loader_begin was called and has not returned 0 yet */
    uint32_t announced_count; /* workers to which it has announced the epoch */
    uint32_t epoch;
    uint64_t submitted;
    uint64_t answered;
    uint32_t next_worker; /* round robin */
    struct hr__loader_peer *peers;
    uint32_t *owners;
    uint32_t owner_count;
    struct hr__outstanding *outstanding_tasks; /* most_outstanding */
    struct hr__outstanding *free_outstanding;
};

/* In order: where the worker of an outstanding task is stored. */
static inline uint32_t *hr__loader_owner(const hr_loader *loader, uint64_t task) {
    return &loader->owners[task & (loader->owner_count - 1)];
}

/* ---- loader.c ---- */

/* Grants a worker its last task, HR_TASK_STOP, and marks it as dismissed. */
int hr__loader_grant_last(hr_loader *loader, uint32_t worker);

/* ---- outstanding.c ---- */

/* Adds a task with a copy of its payload to the end of its worker's queue. -ENOMEM. */
int hr__outstanding_keep(hr_loader *loader, struct hr__loader_peer *peer, const void *payload, size_t bytes);
/* Removes the oldest task of the queue: the worker has answered it. */
void hr__outstanding_drop_first(hr_loader *loader, struct hr__loader_peer *peer);
/* Removes the newest task of the queue: it could not be granted. */
void hr__outstanding_drop_last(hr_loader *loader, struct hr__loader_peer *peer);
void hr__outstanding_release(hr_loader *loader, struct hr__outstanding *outstanding);

/* ---- replace.c ---- */

/* Takes back what the arena granted to a dead worker, and counts it as lost. */
int hr__loader_take_back(hr_loader *loader, uint32_t worker);
/* Fails with HR_E_END. */
int hr__loader_nothing_outstanding(void);

#endif
