/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_LOADER_H
#define HEADRACE_LOADER_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/arena.h>
#include <headrace/crew.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The loader: which worker makes which batch, what is outstanding, and in which order it is delivered.
 *
 * Tasks are numbered from 0 in the order in which they are submitted and dealt round robin to the workers that still
 * have data. In order: task k is delivered after task k - 1. Out of order: as they come, and a worker gets a task only
 * while it has fewer than its share outstanding. These are the rules of torch.utils.data.DataLoader.
 *
 * A worker takes tasks until one says that it is the last:
 *
 *     while (hr_port_take(port, HR_NO_DEADLINE, &task) == 0) {
 *         if (task.kind == HR_TASK_STOP) break;
 *         if (task.kind == HR_TASK_EPOCH)
 *             hr_port_publish(port, HR_STATUS_SKIPPED, 0);
 *         else
 *             ... read task.payload, hr_port_reserve, write the batch, hr_port_publish(port, HR_STATUS_BATCH, bytes)
 *     }
 *
 * Threads and fork: as the arena's. Deadlines are CLOCK_MONOTONIC nanoseconds; one that has passed means a look without
 * a wait. The death of a worker is noticed if it is watched, as the crew's are (who was never started is waited for),
 * and is HR_E_WORKER_DIED of hr_loader_begin or hr_loader_next. Then either close the loader, or replace the worker and
 * go on:
 *
 *     hr_loader_replace(loader, hr_arena_dead_worker(arena), &succession);
 *     hr_crew_fork(hr_loader_crew(loader), worker, ...);
 */

typedef struct hr_loader hr_loader;

struct hr_loader_options {
    uint32_t worker_count;
    uint32_t prefetch_factor; /* tasks outstanding per worker, on average; 1 or more */
    int out_of_order;
    uint64_t limit_bytes; /* of the arena; 0: chosen */
};

/* What a worker says of a task when it publishes; values from HR_STATUS_USER on are the caller's. */
enum hr_status {
    HR_STATUS_BATCH = 0,   /* the slot holds a batch */
    HR_STATUS_ERROR = 1,   /* the slot holds what went wrong, in the caller's form */
    HR_STATUS_END = 2,     /* this worker has no more data; it skips its later tasks of this epoch */
    HR_STATUS_SKIPPED = 3, /* no batch of the task; hr_loader_next returns 1, or nothing of a worker at its end */
    HR_STATUS_TOO_BIG = 4, /* the batch does not fit the limit; the slot starts with the uint64_t bytes it needs */
    HR_STATUS_USER = 16
};

/* Kinds of task; values from HR_TASK_USER on are the caller's. */
enum hr_task_kind {
    HR_TASK_MAKE = 0,  /* make a batch; the payload says of what */
    HR_TASK_EPOCH = 1, /* a new epoch begins; answered by HR_STATUS_SKIPPED */
    HR_TASK_STOP = 2,  /* the last task: not answered */
    HR_TASK_USER = 16
};

/* Opens a loader and its arena, owned by the caller; no epoch has begun. Errors as hr_arena_open. */
HR_API int hr_loader_open(const struct hr_loader_options *options, hr_loader **ret_loader);

/* End the workers first (hr_crew_stop): those that still run are killed by the arena's end, and nobody waits for them.
 * NULL is fine; returns NULL. */
HR_API hr_loader *hr_loader_close(hr_loader *loader);

/* The loader's arena, borrowed: for hr_arena_open_worker_fds, hr_arena_watch, hr_arena_count and hr_arena_report. */
HR_API hr_arena *hr_loader_arena(hr_loader *loader);

/* The loader's crew, borrowed: its worker processes. */
HR_API hr_crew *hr_loader_crew(hr_loader *loader);

/* Begins an epoch: task numbers start at 0 again and every worker has data again. What is outstanding of an epoch that
 * was broken off is waited for and dropped. From the second epoch on each worker gets an HR_TASK_EPOCH first, with the
 * payload (any bytes; NULL with 0).
 * Errors as hr_arena_receive; call again after -EINTR. */
HR_API int hr_loader_begin(hr_loader *loader, const void *payload, size_t payload_bytes, int64_t deadline_ns);

/* Submits the next task. The caller submits prefetch_factor x worker_count of them after hr_loader_begin, and one after
 * each hr_loader_next that returned 0 or 1. Every task is answered once, in the order of its worker's tasks.
 * Returns 1: a worker has it; 0: no worker has data any more, and the task was dropped. -EAGAIN when more are submitted
 * than that; HR_E_STATE: no epoch has begun; errors as hr_arena_grant. */
HR_API int hr_loader_submit(hr_loader *loader, const void *payload, size_t payload_bytes);

/* The next batch or error in the loader's order, owned by the caller until hr_delivery_done.
 * Returns 0: `*ret_delivery` holds it;
 *         1: no batch, since a worker has come to its end (HR_STATUS_END) or skipped the task (HR_STATUS_SKIPPED);
 *         submit the next task, and call again;
 *         HR_E_END: nothing is outstanding; HR_E_STATE: no epoch has begun; errors as hr_arena_receive. */
HR_API int hr_loader_next(hr_loader *loader, int64_t deadline_ns, struct hr_delivery **ret_delivery);

/* Where the successor of a dead worker begins. All 0 in the middle of hr_loader_begin: at the new epoch's beginning. */
struct hr_succession {
    uint64_t delivered_count; /* answers of the worker that were delivered in this epoch */
    uint64_t published_count; /* further ones that it left, and that will be */
    uint64_t granted_count;   /* tasks that are its successor's now: granted anew, in their order */
};

/* Worker `worker` is dead, and seen to be: grants anew, to the process that is started next under its number, what it
 * was granted and has not published. No batch is lost, none is delivered twice. Call it before that process opens its
 * port. Errors as hr_arena_grant; call again after one. */
HR_API int hr_loader_replace(hr_loader *loader, uint32_t worker, struct hr_succession *ret_succession);

/* The worker whose answer hr_loader_next waits for: HR_ANY_WORKER out of order. HR_E_END: nothing is outstanding. In
 * the middle of hr_loader_begin, HR_ANY_WORKER. */
HR_API int hr_loader_awaited(const hr_loader *loader, uint32_t *ret_worker);

/* The outstanding task number `nth` (0: the oldest) of worker `worker`; the payload is borrowed until the next call.
 * HR_E_END: it has no more than that. */
HR_API int hr_loader_outstanding(const hr_loader *loader, uint32_t worker, uint32_t nth, uint64_t *ret_task,
                                 const void **ret_payload, size_t *ret_payload_bytes);

/* 1 while worker `worker` has data in this epoch, as far as is known, and is not dismissed. */
HR_API int hr_loader_has_data(const hr_loader *loader, uint32_t worker);

/* Sends worker `worker` its last task: it ends after what it was granted before, and its end is no death once it has
 * answered all that. It gets no other task, in this epoch or a later one; nor does its successor, unless
 * hr_loader_replace comes in the middle of hr_loader_begin. */
HR_API int hr_loader_dismiss(hr_loader *loader, uint32_t worker);

#ifdef __cplusplus
}
#endif
#endif
