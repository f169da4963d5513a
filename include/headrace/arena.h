/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_ARENA_H
#define HEADRACE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The arena: how a batch crosses from a worker process to the trainer without a copy.
 *
 * One anonymous file of shared memory, mapped once by each process. The trainer grants a piece of it, a slot, together
 * with a task to a worker; the worker writes the batch into the slot and publishes it; the trainer hands out leases on
 * it, and when the last lease is released the slot is granted again.
 *
 *     trainer                                    worker
 *     hr_arena_grant(task, indices)  ------->    hr_port_take
 *                                                hr_port_reserve(bytes), write into the slot
 *     hr_arena_receive               <-------    hr_port_publish
 *     hr_delivery_lease ... hr_lease_release
 *     hr_delivery_done
 *
 * Threads: an arena's functions may be called from one thread at a time (they lock, so that a mistake is not a crash);
 * hr_lease_release from any thread at any time. A port belongs to one thread.
 * Fork: a child may read what its parent held leases on at the fork, as long as it likes; every other use of the
 * parent's arena in the child fails with HR_E_STATE. A worker opens its own port.
 * Errors: negative codes as in headrace/error.h, with a message in hr_error_message().
 */

typedef struct hr_arena hr_arena; /* the trainer's end */
typedef struct hr_port hr_port;   /* a worker's end */
typedef struct hr_lease hr_lease; /* a hold on a part of a delivered batch */

enum { HR_ARENA_MAX_WORKERS = 1024, HR_ARENA_MAX_SLOTS = 1 << 16 };
#define HR_ANY_WORKER UINT32_MAX
#define HR_NO_DEADLINE INT64_MAX

/* ---- the trainer's end ---- */

struct hr_arena_options {
    uint32_t worker_count;   /* 1 to HR_ARENA_MAX_WORKERS */
    uint32_t prefetch_count; /* most grants outstanding at a time: the slots that are kept for workers. 1 to
                                HR_ARENA_MAX_SLOTS / 2 */
    uint64_t limit_bytes;    /* most bytes of shared memory; 0: half of what the machine and the cgroup have to spare */
};

/* Creates an arena, owned by the caller. -EINVAL, -ENOMEM, -EMFILE; another errno when neither memfd_create nor an
 * unlinked file in /dev/shm or $TMPDIR is to be had. */
HR_API int hr_arena_open(const struct hr_arena_options *options, hr_arena **ret_arena);

/* Ends the arena for the trainer: workers are told (hr_port_take gives HR_E_CLOSED), descriptors are closed, memory
 * that no lease holds is freed now, the rest as leases are released. A worker that still runs then is killed, as when
 * the trainer dies: hr_arena_stop, wait for the workers, close. NULL is fine; returns NULL. */
HR_API hr_arena *hr_arena_close(hr_arena *arena);

/* What a worker does at the moment. */
enum hr_phase {
    HR_PHASE_WAIT = 0,    /* for a task, or not started yet */
    HR_PHASE_FETCH = 1,   /* it reads samples: from hr_port_take on */
    HR_PHASE_COLLATE = 2, /* it lays the batch out and writes it: from hr_port_reserve or hr_port_enter on */
    HR_PHASE_COUNT = 3
};

#define HR_NO_SAMPLE UINT64_MAX

/* A worker as its record shows it, alive or dead. A snapshot: its numbers may be of different moments. */
struct hr_worker_status {
    uint32_t pid; /* as it sees itself; 0: it never opened its port */
    uint32_t starts;
    enum hr_phase phase;
    int64_t phase_since_ns; /* CLOCK_MONOTONIC, to a tick of the kernel's: 1 to 10 ms */
    uint64_t task;          /* the one that it has or had last */
    uint64_t sample;        /* hr_port_note's; HR_NO_SAMPLE: none was noted since it took its task */
    uint64_t done_count;
    uint64_t phase_ns[HR_PHASE_COUNT]; /* time in each phase, over all processes that were this worker */
    uint64_t rss_bytes;                /* resident memory when last looked at; 0: never */
};

/* What a worker needs to open its port: descriptors, close-on-exec. They may travel by fork, by SCM_RIGHTS, or under
 * other numbers after an exec. */
struct hr_worker_fds {
    uint32_t worker;
    int memory_fd;
    int trainer_bell_fd;
    int worker_bell_fd;
    int life_fd;        /* reads end-of-file when the trainer is gone */
    int diagnostics_fd; /* a file for the worker's last words (headrace/crew.h), or -1 */
};

/* Duplicates for worker `worker`, owned by the caller (hr_worker_fds_close closes them). -EINVAL, -EMFILE. */
HR_API int hr_arena_open_worker_fds(hr_arena *arena, uint32_t worker, struct hr_worker_fds *ret_fds);
HR_API void hr_worker_fds_close(struct hr_worker_fds *fds);

/* For a process that was given the pass and will take long to open its port, as it imports first: it is killed when the
 * trainer dies (at once if it has died), as hr_port_open arranges for itself. The trainer calls it, or the process.
 * -ESRCH; another negative errno where the system refuses. */
HR_API int hr_worker_fds_guard(const struct hr_worker_fds *fds, int pid);

/* A descriptor (a pidfd, a sentinel pipe) that becomes readable when worker `worker` ends: borrowed until the worker is
 * watched by another or -1 (not watched). While the trainer waits, a watched worker's end is HR_E_WORKER_DIED. */
HR_API int hr_arena_watch(hr_arena *arena, uint32_t worker, int fd);

/* A pidfd of a process, owned by the caller; -ENOSYS or -EPERM where the kernel has or allows none. */
HR_API int hr_open_pidfd(int pid, int *ret_fd);

/* Takes a free slot, copies the task's payload into it (any bytes; NULL with 0) and grants both to the worker. `kind`
 * and `task` are the caller's. -EAGAIN: as many grants outstanding as prefetch_count allows; HR_E_TOO_BIG: the payload
 * alone does not fit the limit. */
HR_API int hr_arena_grant(hr_arena *arena, uint32_t worker, uint32_t kind, uint64_t task, const void *payload,
                          size_t payload_bytes);

/* What a worker published. `data` is valid until hr_delivery_done and the release of every lease on it; the slot's
 * memory may be read and written. */
struct hr_delivery {
    uint64_t task;
    uint32_t worker;
    uint32_t kind;    /* as granted */
    uint32_t status;  /* as published */
    uint32_t is_copy; /* private memory: the arena was at its limit */
    void *data;
    uint64_t bytes;
};

/* Waits for the next batch that `worker` (or any: HR_ANY_WORKER) publishes; in the order in which that worker
 * published. 0 and a delivery, owned by the caller until hr_delivery_done. -ETIMEDOUT; -EINTR: serve your signals and
 * call again; HR_E_WORKER_DIED (hr_arena_dead_worker tells which); HR_E_CORRUPT. What was published before a death is
 * delivered first. Deadlines are CLOCK_MONOTONIC nanoseconds; one that has passed means a look without a wait. */
HR_API int hr_arena_receive(hr_arena *arena, uint32_t worker, int64_t deadline_ns, struct hr_delivery **ret_delivery);

/* The worker that the last HR_E_WORKER_DIED was about. */
HR_API uint32_t hr_arena_dead_worker(const hr_arena *arena);

/* Reads the record of worker `worker`. -EINVAL. */
HR_API int hr_arena_worker_status(const hr_arena *arena, uint32_t worker, struct hr_worker_status *ret_status);

/* Takes back whatever worker `worker` was granted and has not published: it is dead, and seen to be. Its published
 * batches can still be received. Returns the number of grants taken back. */
HR_API int hr_arena_take_back(hr_arena *arena, uint32_t worker);

/* Tells all workers to stop taking tasks; idle ones are woken, and a thread that waits in hr_arena_receive, which gets
 * HR_E_CLOSED. Any thread. Idempotent. */
HR_API void hr_arena_stop(hr_arena *arena);

/* Ends the receiver's own hold; leases keep what they cover. NULL is fine. */
HR_API void hr_delivery_done(struct hr_delivery *delivery);

/* A hold on `bytes` bytes of a delivery from `offset`, beyond hr_delivery_done. -ENOMEM, -EINVAL. */
HR_API int hr_delivery_lease(struct hr_delivery *delivery, uint64_t offset, uint64_t bytes, hr_lease **ret_lease);

/* Releases a lease: any thread, any order, also after hr_arena_close. Takes no lock. NULL is fine. */
HR_API void hr_lease_release(hr_lease *lease);

enum hr_memory_kind { HR_MEMORY_MEMFD, HR_MEMORY_SHM, HR_MEMORY_TMP };

struct hr_arena_report {
    enum hr_memory_kind memory;
    uint32_t worker_count;
    uint32_t slot_count;
    uint64_t limit_bytes;
    uint64_t window_bytes;    /* address space of a slot */
    uint64_t used_bytes;      /* committed or promised to workers, now */
    uint64_t held_bytes;      /* committed in slots that leases hold, now */
    uint32_t held_count;      /* such slots */
    uint64_t delivered_count; /* since the arena was opened: */
    uint64_t delivered_bytes;
    uint64_t copied_count; /* deliveries as private copies */
    uint64_t asked_count;  /* a worker asked for more memory than its grant allowed */
    uint64_t trimmed_count;
    uint64_t waited_count;  /* receives that found nothing ready */
    uint64_t waited_ns;     /* and how long they waited in all */
    uint64_t slept_count;   /* of these, how often the trainer went to sleep */
    uint32_t restart_count; /* as hr_arena_count was told: dead workers that were replaced */
    uint64_t skipped_count; /* bad samples that were left out or replaced */
};

/* The counts stand in the shared memory too, for tools that look from outside: as they were when the trainer last
 * received, counted or made a report. */
HR_API void hr_arena_report(hr_arena *arena, struct hr_arena_report *ret_report);

/* Adds to the counts of what the arena does not see itself. The crew counts restarts (hr_crew_adopt, hr_crew_fork);
 * bad samples are counted by who hears of them. HR_E_STATE in a forked child. */
HR_API int hr_arena_count(hr_arena *arena, uint32_t restart_count, uint64_t skipped_count);

/* ---- a worker's end ---- */

/* Opens the port: maps the arena, and arranges that this process is killed when the trainer dies. On success takes the
 * descriptors over and empties `pass`; on failure they stay the caller's. HR_E_VERSION, HR_E_CORRUPT, -ENOMEM. */
HR_API int hr_port_open(struct hr_worker_fds *fds, hr_port **ret_port);
HR_API hr_port *hr_port_close(hr_port *port); /* NULL is fine; returns NULL */

struct hr_task {
    uint64_t task;
    uint32_t kind;
    const void *payload; /* in the slot: borrowed until hr_port_reserve or hr_port_publish */
    uint64_t payload_bytes;
};

/* Waits for the next grant. It is current until it is published. HR_E_CLOSED: the trainer stopped the arena;
 * -ETIMEDOUT, -EINTR, HR_E_CORRUPT; HR_E_STATE: the current grant is not published yet. */
HR_API int hr_port_take(hr_port *port, int64_t deadline_ns, struct hr_task *ret_task);

/* Commits memory for `bytes` bytes of the current grant's slot and gives its address, 2 MiB-aligned; bytes already
 * written stay only where the address stays, and a failure, too, may lose what was reserved before. Waits for the
 * trainer's consent when the grant does not allow as much. HR_E_TOO_BIG: over the limit (the message has the numbers);
 * -ENOMEM, -ENOSPC: the kernel has no more memory; HR_E_CLOSED. */
HR_API int hr_port_reserve(hr_port *port, uint64_t bytes, void **ret_data);

/* Publishes the first `bytes` bytes of the slot (at most what is reserved) with a status of the caller's. -EINVAL, and
 * HR_E_STATE: no task was taken. */
HR_API int hr_port_publish(hr_port *port, uint32_t status, uint64_t bytes);

/* Notes which sample the worker is at, for reports. Costs a store. HR_NO_SAMPLE when a task is taken. */
HR_API void hr_port_note(hr_port *port, uint64_t sample);

/* Notes that the worker enters a phase. hr_port_take, hr_port_reserve and hr_port_publish do so by themselves. */
HR_API void hr_port_enter(hr_port *port, enum hr_phase phase);

/* The pass's diagnostics_fd, borrowed; -1: none. */
HR_API int hr_port_diagnostics_fd(const hr_port *port);

/* Cores that each worker could have to itself, were there `trainer_count` such trainers with as many workers on this
 * machine: by this process's affinity and its cgroups' quota, rounded down. 0: they share. */
HR_API uint32_t hr_port_core_share(const hr_port *port, uint32_t trainer_count);

/* Has this process's malloc keep what is freed, for the samples of the next batch. By itself glibc returns a batch's
 * worth of them to the kernel as soon as the batch is written, and each page is faulted in anew for the next one. An
 * eighth of the memory to spare is shared by the workers of `trainer_count` such trainers; blocks above 32 MiB are
 * returned as before, see hr_port_keep_blocks. Gives the bytes that the main heap keeps at most (another malloc, by
 * LD_PRELOAD, does as it likes); 0: malloc is as it was, since MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_ or
 * GLIBC_TUNABLES say how it should be, since the share is less than the 64 MiB that glibc may keep anyway, or since
 * this is not built for glibc. Source: mallopt(3). */
HR_API uint64_t hr_port_keep_heap(hr_port *port, uint32_t trainer_count);

/* Says that a batch of this worker has come from blocks of malloc's of `block_bytes` bytes. From 32 MiB to half of what
 * hr_port_keep_heap gave, they are no longer mapped one by one from here on, but kept with the others; should more than
 * hr_port_keep_heap gave lie free in holes between smaller blocks, it is returned at such a call. Does nothing where
 * hr_port_keep_heap gave 0, where MALLOC_MMAP_MAX_ or its GLIBC_TUNABLES are given, and with glibc before 2.33. */
HR_API void hr_port_keep_blocks(const hr_port *port, uint64_t block_bytes);

/* 1 until the trainer stopped the arena. */
HR_API int hr_port_is_open(const hr_port *port);

#ifdef __cplusplus
}
#endif
#endif
