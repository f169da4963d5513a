/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_ARENA_ARENA_H
#define HR_ARENA_ARENA_H

#include <headrace/face/arena.h>

/* The trainer's side of an arena, for the loader and the crew: programs use it through them. One thread at a time. */

struct hr__arena_options {
    uint32_t worker_count;   /* 1 to HR_ARENA_MAX_WORKERS */
    uint32_t prefetch_count; /* maximum of outstanding grants: the slots that are reserved for workers. 1 to
                                HR_ARENA_MAX_SLOTS / 2 */
    uint64_t
        limit_bytes; /* maximum shared memory in bytes; 0: half of the available memory of the machine and the cgroup */
};

/* Creates an arena, owned by the caller. -EINVAL, -ENOMEM, -EMFILE; another errno if neither memfd_create nor an
 * unlinked file in /dev/shm or $TMPDIR is available. */
int hr__arena_open(const struct hr__arena_options *options, hr_arena **ret_arena);

/* Makes an arena that was stopped usable for other workers, with the same options. Call it only when all of its workers
 * have ended: what they have published is dropped. Counts start at 0. HR_E_STATE: the options are others, or this is a
 * forked child. */
int hr__arena_restart(hr_arena *arena, const struct hr__arena_options *options);

/* Opens the descriptors of worker `worker`, owned by the caller (hr_worker_fds_close). -EINVAL, -EMFILE. */
int hr__arena_open_worker_fds(hr_arena *arena, uint32_t worker, struct hr_worker_fds *ret_fds);

/* Watches worker `worker` with a descriptor (a pidfd, a sentinel pipe) that becomes readable when it ends. The
 * descriptor is borrowed until the next call for this worker; -1: it is not watched. If a watched worker ends while the
 * trainer waits, the wait returns HR_E_WORKER_DIED. */
int hr__arena_watch(hr_arena *arena, uint32_t worker, int fd);

/* Takes a free slot, copies the task's payload into it (any bytes; NULL with 0) and grants both to the worker. The
 * caller chooses `kind` and `task`. -EAGAIN: as many grants are outstanding as prefetch_count allows; HR_E_TOO_BIG: the
 * payload alone does not fit the limit. */
int hr__arena_grant(hr_arena *arena, uint32_t worker, uint32_t kind, uint64_t task, const void *payload,
                    size_t payload_bytes);

/* Waits for the next batch of `worker` (or of any: HR_ANY_WORKER). The batches of one worker arrive in the order in
 * which it published them. Returns 0 and a delivery, owned by the caller until hr_delivery_done. -ETIMEDOUT; -EINTR:
 * handle your signals and call again; HR_E_WORKER_DIED (hr_arena_dead_worker returns which one); HR_E_CORRUPT. Batches
 * that were published before a death are delivered first. Deadlines are CLOCK_MONOTONIC nanoseconds; with a deadline
 * that has passed, the call does not wait. */
int hr__arena_receive(hr_arena *arena, uint32_t worker, int64_t deadline_ns, struct hr_delivery **ret_delivery);

/* Reads the record of worker `worker`. -EINVAL. */
int hr__arena_worker_status(const hr_arena *arena, uint32_t worker, struct hr_worker_status *ret_status);

/* Takes back all grants that worker `worker` has not published. Call it only for a worker whose death has been
 * observed. Its published batches can still be received. Returns the number of grants taken back. */
int hr__arena_take_back(hr_arena *arena, uint32_t worker);

#endif
