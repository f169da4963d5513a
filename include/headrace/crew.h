/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CREW_H
#define HEADRACE_CREW_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/arena.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The crew: the worker processes of a loader (hr_loader_crew). It starts them (hr_crew_fork) or takes over processes
 * that the caller started (hr_crew_open_worker_fds, hr_crew_adopt), watches them without polling, reports how one
 * ended, and ends all of them by a deadline.
 *
 * A worker that died is replaced by starting or adopting another process under the same number, after
 * hr_loader_replace.
 *
 * Threads: one at a time. Fork: a child that inherits a crew may close it, which does not affect the workers. All other
 * functions fail in the child with HR_E_STATE.
 */

typedef struct hr_crew hr_crew; /* the trainer's side */

/* Opens the descriptors that the process of worker `worker` needs, and a new diagnostics file. Owned by the caller
 * (hr_worker_fds_close). -EINVAL, -EMFILE. */
HR_API int hr_crew_open_worker_fds(hr_crew *crew, uint32_t worker, struct hr_worker_fds *ret_fds);

/* Makes process `pid`, which the caller started with these descriptors, worker `worker`. `sentinel_fd` becomes readable
 * when the process ends; a copy of it is used if the kernel has no pidfd. -1: the caller has no sentinel. If another
 * process was this worker before, this is a restart, and is counted (struct hr_arena_report). -ESRCH, -EMFILE; -EINVAL,
 * also for the pid of the caller; HR_E_STATE: the other process still runs. */
HR_API int hr_crew_adopt(hr_crew *crew, uint32_t worker, int pid, int sentinel_fd);

/* The function that a forked worker runs. Its result is the exit code of the process. The port is closed after it. */
typedef int hr_work(hr_port *port, void *context);

/* Forks worker `worker`. `work` runs in the child, which then ends by _exit, so that buffers of stdio are not flushed.
 * If the child cannot open its port, it ends with code 127, and hr_crew_stderr has the reason. Errors as
 * hr_crew_open_worker_fds and fork; -EPERM, -ENOSYS: the kernel gives no pidfd; HR_E_STATE: that worker still runs.
 *  */
HR_API int hr_crew_fork(hr_crew *crew, uint32_t worker, hr_work *work, void *context);

/* A worker process, alive or dead. */
struct hr_worker_report {
    uint32_t worker;
    int pid; /* 0: never started */
    int is_alive;
    int is_end_known; /* signal and exit_code are known: it is a child of this process, and no other code has waited for
                         it */
    int signal;       /* 0: it exited */
    int exit_code;
    uint64_t oom_kills; /* processes that the OOM killer ended in this cgroup since the worker was started */
    uint64_t rss_bytes; /* resident memory when it was last measured; 0: never */
    struct hr_worker_status status; /* status of this process, or of the one before it if it never opened its port */
    char state;                     /* state of a live worker, as in ps: R, S, D, T (stopped), t (traced) */
    uint32_t thread_count;          /* threads of a live worker */
    uint32_t tracer_pid;            /* 0: not traced */
    uint64_t caught_signals;        /* handlers of a live worker; bit n - 1: it has one for signal n */
    char kernel_function[64];       /* the function of the kernel in which a live worker sleeps, or "" */
    char system_call[128];          /* the line of /proc/PID/syscall of a live worker, or "" */
    int is_deadlocked; /* the only thread of a live worker waits, without a timeout, for another of its threads */
};

/* Looks at worker `worker`. -EINVAL. */
HR_API int hr_crew_look(hr_crew *crew, uint32_t worker, struct hr_worker_report *ret_report);

/* Sends a signal to worker `worker`. -ESRCH: it has ended. */
HR_API int hr_crew_signal(hr_crew *crew, uint32_t worker, int signal);

/* Ends all workers within `timeout_ns`. It stops the arena, sends SIGTERM to workers that still run after four fifths
 * of the time, and SIGKILL after nine tenths. It reaps those that hr_crew_fork started. Returns how many still run.
 * HR_E_STATE in a forked child. */
HR_API int hr_crew_stop(hr_crew *crew, int64_t timeout_ns);

/* Describes in one or two sentences how a worker ended or what it is doing. The sentences are for people and are
 * written to `text`, which has `bytes` bytes. Returns the length that they have without this limit, as snprintf does.
 */
HR_API int hr_crew_describe(const struct hr_worker_report *report, char *text, size_t bytes);

/* In the trainer: the end of the stderr of worker `worker`, from its newest diagnostics file, which is still there
 * after its death. Borrowed until hr_crew_open_worker_fds makes another file for it, or hr_loader_close; not
 * terminated. The worker may have written any bytes, so they may not be text. */
HR_API int hr_crew_stderr(hr_crew *crew, uint32_t worker, const char **ret_text, size_t *ret_bytes);

#ifdef __cplusplus
}
#endif
#endif
