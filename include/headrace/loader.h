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
 * The loader decides which worker makes which batch, and in which order batches are delivered, and keeps the
 * outstanding tasks.
 *
 * Tasks are numbered from 0 in the order in which they are submitted, and are given round robin to the workers that
 * still have data. In order: task k is delivered after task k - 1. Out of order: tasks are delivered as they arrive,
 * and a worker gets a task only while it has fewer than its share outstanding. These are the rules of
 * torch.utils.data.DataLoader.
 *
 * A worker takes tasks until HR_TASK_STOP:
 *
 *     while (hr_port_take(port, HR_NO_DEADLINE, &task) == 0) {
 *         if (task.kind == HR_TASK_STOP) break;
 *         if (task.kind == HR_TASK_EPOCH)
 *             hr_port_publish(port, HR_STATUS_SKIPPED, 0);
 *         else
 *             ... read task.payload, hr_port_reserve, write the batch, hr_port_publish(port, HR_STATUS_BATCH, bytes)
 *     }
 *
 * Threads and fork: the rules of the arena apply. Deadlines are CLOCK_MONOTONIC nanoseconds; with a deadline that has
 * passed, a call does not wait. If a watched worker dies, hr_loader_begin or hr_loader_next returns HR_E_WORKER_DIED.
 * The crew watches its workers. The loader waits for a worker that was never started. After a death, either close the
 * loader, or replace the worker and go on:
 *
 *     hr_loader_replace(loader, hr_arena_dead_worker(arena), &succession);
 *     hr_crew_fork(hr_loader_crew(loader), worker, ...);
 */

typedef struct hr_loader hr_loader; /* the trainer's side */

struct hr_loader_options {
    uint32_t worker_count;
    uint32_t prefetch_factor; /* tasks outstanding per worker, on average; 1 or more */
    int out_of_order;
    uint64_t limit_bytes; /* limit of the arena; 0: the library chooses it */
};

/* The status with which a worker publishes a task. Values from HR_STATUS_USER on are free for the caller. */
enum hr_status {
    HR_STATUS_BATCH = 0, /* the slot contains a batch */
    HR_STATUS_ERROR = 1, /* the slot contains an error, in a form that the caller chooses */
    HR_STATUS_END = 2,   /* this worker has no more data; it skips its later tasks of this epoch */
    HR_STATUS_SKIPPED =
        3, /* the task has no batch; hr_loader_next returns 1, or ignores it if the worker had no more data */
    HR_STATUS_TOO_BIG = 4, /* the batch does not fit the limit; the slot starts with the uint64_t bytes it needs */
    HR_STATUS_USER = 16
};

/* The kinds of tasks. Values from HR_TASK_USER on are free for the caller. */
enum hr_task_kind {
    HR_TASK_MAKE = 0,  /* make a batch of what the payload describes */
    HR_TASK_EPOCH = 1, /* a new epoch begins; the worker answers with HR_STATUS_SKIPPED */
    HR_TASK_STOP = 2,  /* the last task; the worker does not answer it */
    HR_TASK_USER = 16
};

/* Opens a loader and its arena, owned by the caller; no epoch has begun. -EINVAL, -ENOMEM, -EMFILE;
 * another errno if neither memfd_create nor an unlinked file in /dev/shm or $TMPDIR is available. */
HR_API int hr_loader_open(const struct hr_loader_options *options, hr_loader **ret_loader);

/* Closes the loader, its crew and its arena. End the workers first (hr_crew_stop): workers that still run are killed
 * when the arena ends, and this function does not wait for them. NULL is fine; returns NULL. */
HR_API hr_loader *hr_loader_close(hr_loader *loader);

/* The loader's arena, borrowed: for hr_arena_report, hr_arena_dead_worker and hr_arena_stop. */
HR_API hr_arena *hr_loader_arena(hr_loader *loader);

/* The loader's crew, borrowed: its worker processes. */
HR_API hr_crew *hr_loader_crew(hr_loader *loader);

/* Begins an epoch: task numbers start at 0 again and every worker has data again. If the last epoch was stopped early,
 * its outstanding answers are waited for and dropped. From the second epoch on each worker gets an HR_TASK_EPOCH first,
 * with the payload (any bytes; NULL with 0). Errors as hr_loader_next; call again after -EINTR. */
HR_API int hr_loader_begin(hr_loader *loader, const void *payload, size_t payload_bytes, int64_t deadline_ns);

/* Gives the first task of an epoch to worker `worker` instead of worker 0, for an epoch that is continued. Call it
 * between hr_loader_begin and the first hr_loader_submit. -EINVAL, HR_E_STATE. */
HR_API int hr_loader_start_at(hr_loader *loader, uint32_t worker);

/* Gives tasks to workers 0 to `count` - 1 only, from the next task on; all get them until the first call. The others
 * are parked: they make what they have, and wait. The order of the batches stays. In order, the tasks that are
 * outstanding should then become prefetch_factor x count. -EINVAL. */
HR_API int hr_loader_use(hr_loader *loader, uint32_t count);

/* Says that workers 0 to `count` - 1 were started, or will be before the loader waits for them. Others are not told of
 * epochs, and have to be parked. All are expected until the first call. -EINVAL. */
HR_API int hr_loader_expect(hr_loader *loader, uint32_t count);

/* Submits the next task. The caller submits prefetch_factor x worker_count of them after hr_loader_begin, and one after
 * each hr_loader_next that returned 0 or 1. Every task is answered once, in the order of its worker's tasks.
 * Returns 1: a worker has it; 0: no worker has data any more, and the task was dropped. -EAGAIN when more are submitted
 * than that; HR_E_STATE: no epoch has begun; HR_E_TOO_BIG: the payload alone does not fit the limit. */
HR_API int hr_loader_submit(hr_loader *loader, const void *payload, size_t payload_bytes);

/* The next batch or error in the loader's order, owned by the caller until hr_delivery_done.
 * Returns 0: it is `*ret_delivery`;
 *         1: no batch, because a worker has no more data (HR_STATUS_END) or skipped the task (HR_STATUS_SKIPPED);
 *         submit the next task, and call again;
 *         HR_E_END: nothing is outstanding; HR_E_STATE: no epoch has begun; -ETIMEDOUT; -EINTR: handle your signals
 *         and call again; HR_E_WORKER_DIED (hr_arena_dead_worker returns which one), after all that was published
 *         before; HR_E_CLOSED: hr_arena_stop was called; HR_E_CORRUPT. Deadlines are CLOCK_MONOTONIC nanoseconds;
 *         with one that has passed, the call does not wait. */
HR_API int hr_loader_next(hr_loader *loader, int64_t deadline_ns, struct hr_delivery **ret_delivery);

/* The place where the successor of a dead worker has to start. All 0 if this happens during hr_loader_begin: the
 * successor starts with the new epoch. */
struct hr_succession {
    uint64_t delivered_count; /* answers of the worker that were delivered in this epoch */
    uint64_t published_count; /* answers that it published, and that will be delivered */
    uint64_t granted_count;   /* other tasks of the dead worker, which were granted to its successor in their order */
};

/* Grants the tasks that dead worker `worker` has not published to its successor, the process that is started next under
 * its number. No batch is lost, and none is delivered twice. Call it only for a worker whose death was observed, and
 * before the successor opens its port. Errors as hr_loader_submit; call again after an error. */
HR_API int hr_loader_replace(hr_loader *loader, uint32_t worker, struct hr_succession *ret_succession);

/* The worker whose answer hr_loader_next waits for: HR_ANY_WORKER out of order. HR_E_END: nothing is outstanding.
 * During hr_loader_begin: HR_ANY_WORKER. */
HR_API int hr_loader_awaited(const hr_loader *loader, uint32_t *ret_worker);

/* The outstanding task number `nth` (0: the oldest) of worker `worker`; the payload is borrowed until the next call.
 * HR_E_END: it has fewer. */
HR_API int hr_loader_outstanding(const hr_loader *loader, uint32_t worker, uint32_t nth, uint64_t *ret_task,
                                 const void **ret_payload, size_t *ret_payload_bytes);

/* Returns 1 while worker `worker` has data in this epoch, as far as is known, and is not dismissed. */
HR_API int hr_loader_has_data(const hr_loader *loader, uint32_t worker);

/* Sends worker `worker` its last task. It ends after the tasks that were granted before, and once it has answered them
 * all its end does not count as a death. It gets no other task, in this epoch or a later one. The same is true of its
 * successor, unless hr_loader_replace is called during hr_loader_begin. */
HR_API int hr_loader_dismiss(hr_loader *loader, uint32_t worker);

#ifdef __cplusplus
}
#endif
#endif
