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
 * The arena is one anonymous file of shared memory, which each process maps once. The trainer grants a piece of it, a
 * slot, together with a task to a worker. The worker writes the batch into the slot and publishes it. The trainer hands
 * out leases on the batch. When the last lease is released, the slot can be granted again.
 *
 *     trainer                                    worker
 *     hr_loader_submit(indices)      ------->    hr_port_take
 *                                                hr_port_reserve(bytes), write into the slot
 *     hr_loader_next                 <-------    hr_port_publish
 *     hr_delivery_lease ... hr_lease_release
 *     hr_delivery_done
 *
 * Threads: the functions of an arena may be called from one thread at a time (they lock, so that a mistake is not a
 * crash). hr_lease_release may be called from any thread at any time. A port belongs to one thread.
 * Fork: a child may read the memory on which its parent held leases at the fork, for as long as it likes. Every other
 * use of the parent's arena in the child fails with HR_E_STATE. A worker opens its own port.
 * Errors: negative codes as in headrace/error.h, with a message in hr_error_message().
 */

typedef struct hr_arena hr_arena; /* the trainer's side */
typedef struct hr_port hr_port;   /* a worker's side */
typedef struct hr_lease hr_lease; /* keeps a part of a delivered batch valid */

/* Limits, and values that mean any worker and no deadline. */
enum { HR_ARENA_MAX_WORKERS = 1024, HR_ARENA_MAX_SLOTS = 1 << 16 };
#define HR_ANY_WORKER UINT32_MAX
#define HR_NO_DEADLINE INT64_MAX

/* ---- the trainer's side ---- */

/* Ends the arena for the trainer: hr_port_take returns HR_E_CLOSED in the workers, descriptors are closed, and memory
 * that no lease covers is freed now, the rest when its leases are released. A worker that still runs then is killed, as
 * if the trainer had died. So call hr_arena_stop first, wait for the workers, then close. NULL is fine; returns NULL.
 */
HR_API hr_arena *hr_arena_close(hr_arena *arena);

/* The current activity of a worker. */
enum hr_phase {
    HR_PHASE_WAIT = 0,    /* it waits for a task, or has not started yet */
    HR_PHASE_FETCH = 1,   /* it reads samples, after hr_port_take */
    HR_PHASE_COLLATE = 2, /* it writes the batch, after hr_port_reserve */
    HR_PHASE_COUNT = 3
};

#define HR_NO_SAMPLE UINT64_MAX
enum { HR_MAKING_THREADS = 16 }; /* the samples of so many threads of a worker are recorded */

/* The status of a worker, alive or dead, from its record in shared memory. The numbers may be of slightly different
 * times. */
struct hr_worker_status {
    uint32_t pid; /* the pid that the worker sees; 0: it never opened its port */
    uint32_t starts;
    enum hr_phase phase;
    int64_t phase_since_ns; /* CLOCK_MONOTONIC, rounded to a kernel tick: 1 to 10 ms */
    uint64_t task;          /* the current task of the worker, or its last one */
    uint64_t sample;        /* the last one of hr_port_note; HR_NO_SAMPLE: none since it took its task */
    uint64_t done_count;
    uint64_t phase_ns[HR_PHASE_COUNT]; /* time in each phase, over all processes that were this worker */
    uint64_t rss_bytes;                /* resident memory when it was last measured; 0: never */
    /* The samples of which a thread makes a part; HR_NO_SAMPLE: none. Some may be equal. */
    uint64_t making[HR_MAKING_THREADS];
};

/* The worker descriptors: what a process needs to open the port of worker `worker`. They are close-on-exec. They may be
 * inherited by fork, sent with SCM_RIGHTS, or have other numbers after an exec. */
struct hr_worker_fds {
    uint32_t worker;
    int memory_fd;
    int trainer_bell_fd;
    int worker_bell_fd;
    int life_fd;        /* gives end-of-file when the trainer has ended */
    int diagnostics_fd; /* the worker's diagnostics file (headrace/crew.h), or -1 */
};

/* Closes those that are open, and sets them to -1. */
HR_API void hr_worker_fds_close(struct hr_worker_fds *fds);

/* A batch that a worker published. `data` is valid until hr_delivery_done was called and every lease on it is released.
 * Its memory may be read and written. */
struct hr_delivery {
    uint64_t task;
    uint32_t worker;
    uint32_t kind;    /* the kind that was granted */
    uint32_t status;  /* the status that was published */
    uint32_t is_copy; /* it is in private memory, because the arena was at its limit */
    void *data;
    uint64_t bytes;
};

/* The worker that the last HR_E_WORKER_DIED was about. */
HR_API uint32_t hr_arena_dead_worker(const hr_arena *arena);

/* Makes all workers stop taking tasks. Idle workers are woken, and so is a thread that waits for a batch: it gets
 * HR_E_CLOSED. Any thread; may be called several times. */
HR_API void hr_arena_stop(hr_arena *arena);

/* Ends the receiver's use of a delivery; leases keep the memory that they cover. NULL is fine. */
HR_API void hr_delivery_done(struct hr_delivery *delivery);

/* Creates a lease, which keeps `bytes` bytes of a delivery from `offset` on valid after hr_delivery_done. -ENOMEM,
 * -EINVAL. */
HR_API int hr_delivery_lease(struct hr_delivery *delivery, uint64_t offset, uint64_t bytes, hr_lease **ret_lease);

/* Releases a lease: any thread, any order, also after hr_arena_close. Takes no lock. NULL is fine. */
HR_API void hr_lease_release(hr_lease *lease);

/* The kind of the shared memory: memfd_create, or an unlinked file in /dev/shm or $TMPDIR. */
enum hr_memory_kind { HR_MEMORY_MEMFD, HR_MEMORY_SHM, HR_MEMORY_TMP };

struct hr_arena_report {
    enum hr_memory_kind memory;
    uint32_t worker_count;
    uint32_t slot_count;
    uint64_t limit_bytes;
    uint64_t window_bytes;    /* address space of a slot */
    uint64_t used_bytes;      /* now: committed, or granted to workers */
    uint64_t held_bytes;      /* now: committed in slots that have leases */
    uint32_t held_count;      /* such slots */
    uint64_t delivered_count; /* since the arena was opened: */
    uint64_t delivered_bytes;
    uint64_t copied_count; /* deliveries as private copies */
    uint64_t asked_count;  /* a worker asked for more memory than its grant allowed */
    uint64_t trimmed_count;
    uint64_t waited_count;  /* receives that found nothing ready */
    uint64_t waited_ns;     /* and their total waiting time */
    uint64_t slept_count;   /* of these, how often the trainer went to sleep */
    uint32_t restart_count; /* dead workers that were replaced */
    uint64_t skipped_count; /* bad samples that were left out or replaced */
};

/* Returns the counts. They are also in the shared memory, for tools in other processes, as they were when the trainer
 * last received a batch, counted, or made a report. */
HR_API void hr_arena_report(hr_arena *arena, struct hr_arena_report *ret_report);

/* ---- a worker's side ---- */

/* Opens the port: maps the arena, and arranges that this process is killed when the trainer dies. On success it takes
 * ownership of the descriptors and sets them to -1 in `fds`; on failure the caller keeps them. HR_E_VERSION,
 * HR_E_CORRUPT, -ENOMEM. */
HR_API int hr_port_open(struct hr_worker_fds *fds, hr_port **ret_port);
HR_API hr_port *hr_port_close(hr_port *port); /* NULL is fine; returns NULL */

struct hr_task {
    uint64_t task;
    uint32_t kind;
    const void *payload; /* a part of the slot, borrowed until hr_port_reserve or hr_port_publish */
    uint64_t payload_bytes;
};

/* Waits for the next grant, which is the current one until it is published. HR_E_CLOSED: the trainer stopped the arena;
 * -ETIMEDOUT, -EINTR, HR_E_CORRUPT; HR_E_STATE: the current grant is not published yet. */
HR_API int hr_port_take(hr_port *port, int64_t deadline_ns, struct hr_task *ret_task);

/* Commits memory for `bytes` bytes of the slot of the current grant and returns its address, 2 MiB-aligned. Bytes
 * already written are kept only if the address is the same as before, and a failure may lose what was reserved before.
 * If the grant allows less, it asks the trainer and waits for the reply. HR_E_TOO_BIG: over the limit (the message has
 * the numbers); -ENOMEM, -ENOSPC: the kernel has no more memory; HR_E_CLOSED. */
HR_API int hr_port_reserve(hr_port *port, uint64_t bytes, void **ret_data);

/* Publishes the first `bytes` bytes of the slot (at most what is reserved) with a status that the caller chooses.
 * -EINVAL, and HR_E_STATE: no task was taken. */
HR_API int hr_port_publish(hr_port *port, uint32_t status, uint64_t bytes);

/* Records which sample the worker is reading, for reports. It costs one store to memory. hr_port_take sets
 * HR_NO_SAMPLE. */
HR_API void hr_port_note(hr_port *port, uint64_t sample);

#ifdef __cplusplus
}
#endif
#endif
