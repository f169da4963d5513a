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
 * The crew: the worker processes of an arena. It starts them (hr_crew_fork) or takes over those that somebody else
 * started (hr_crew_open_worker_fds, hr_crew_adopt), watches them without polling, says how one ended, and ends all by a
 * deadline.
 *
 * A worker that died is replaced by starting or adopting another process under the same number, after
 * hr_loader_replace or hr_arena_take_back.
 *
 * Threads: one at a time. Fork: a child that inherits a crew may close it, which leaves the workers alone; all else
 * fails there with HR_E_STATE.
 */

typedef struct hr_crew hr_crew;

/* Opens the crew of an arena, which is borrowed: close the crew first. Owned by the caller. -ENOMEM. */
HR_API int hr_crew_open(hr_arena *arena, uint32_t worker_count, hr_crew **ret_crew);

/* Forgets the workers; what still runs is left running (hr_crew_stop ends it). NULL is fine; returns NULL. */
HR_API hr_crew *hr_crew_close(hr_crew *crew);

/* What a process needs to be worker `worker`: hr_arena_open_worker_fds's descriptors and a fresh box for its last
 * words. Owned by the caller (hr_worker_fds_close). Errors as hr_arena_open_worker_fds. */
HR_API int hr_crew_open_worker_fds(hr_crew *crew, uint32_t worker, struct hr_worker_fds *ret_fds);

/* Makes process `pid`, which somebody else started with that fds, worker `worker`. `sentinel_fd` becomes readable when
 * it ends; a copy of it is used where the kernel has no pidfd. -1: none. Where another process was that worker before,
 * this is a restart, and counted (hr_arena_count). -ESRCH, -EMFILE; -EINVAL, also for the caller's own pid; HR_E_STATE:
 * that one still runs. */
HR_API int hr_crew_adopt(hr_crew *crew, uint32_t worker, int pid, int sentinel_fd);

/* What a forked worker does; its result is the process's exit code. The port is closed after it. */
typedef int hr_work(hr_port *port, void *context);

/* Forks worker `worker`. `work` runs in the child, which then ends by _exit, without writing out what stdio has
 * buffered; where it cannot open its port, with code 127, and hr_crew_stderr has why. Errors as
 * hr_crew_open_worker_fds, and fork's; -EPERM, -ENOSYS: the kernel gives no pidfd; HR_E_STATE: that worker still runs.
 */
HR_API int hr_crew_fork(hr_crew *crew, uint32_t worker, hr_work *work, void *context);

/* No longer watches worker `worker`: its end is expected. */
HR_API int hr_crew_expect_end(hr_crew *crew, uint32_t worker);

/* A worker process, alive or dead. */
struct hr_worker_report {
    uint32_t worker;
    int pid; /* 0: never started */
    int is_alive;
    int is_end_known; /* how it ended; only a child of this process that nobody else waited for tells */
    int signal;       /* 0: it exited */
    int exit_code;
    uint64_t oom_kills;             /* in this cgroup since the worker was started */
    uint64_t rss_bytes;             /* resident when last looked at; 0: never */
    struct hr_worker_status status; /* of this process or the one before it, where it never opened its port */
    char state;                     /* of a live one, as in ps: R, S, D, T (stopped), t (traced) */
    uint32_t thread_count;          /* of a live one */
    uint32_t tracer_pid;            /* 0: not traced */
    uint64_t caught_signals;        /* of a live one; bit n - 1: it has a handler for signal n */
    char kernel_function[64];       /* that a live one sleeps in, or "" */
    char system_call[128];          /* its line of /proc/PID/syscall, or "" */
    int is_deadlocked; /* the only thread of a live one waits, without a limit, for another of its threads */
};

/* Looks at worker `worker`. -EINVAL. */
HR_API int hr_crew_look(hr_crew *crew, uint32_t worker, struct hr_worker_report *ret_report);

/* Waits until worker `worker` has ended, and reaps it if hr_crew_fork started it. -ETIMEDOUT, -EINTR. */
HR_API int hr_crew_wait(hr_crew *crew, uint32_t worker, int64_t deadline_ns);

/* Sends a signal to worker `worker`. -ESRCH: it has ended. */
HR_API int hr_crew_signal(hr_crew *crew, uint32_t worker, int signal);

/* Ends all workers within `timeout_ns`: stops the arena; who has not ended when four fifths of the time are over is
 * sent SIGTERM, and SIGKILL at nine tenths. Reaps those that hr_crew_fork started. Returns how many still run.
 * HR_E_STATE in a forked child. */
HR_API int hr_crew_stop(hr_crew *crew, int64_t timeout_ns);

/* One or two sentences on how a worker ended or what it is doing, for people, into `text` of `bytes` bytes. Returns the
 * length that it has without the limit, as snprintf. */
HR_API int hr_crew_describe(const struct hr_worker_report *report, char *text, size_t bytes);

/* ---- the box: what a worker leaves behind ---- */

enum {
    HR_DIAGNOSTICS_STDERR_BYTES = 16 << 10, /* the end of what it said (hr_diagnostics_log_stderr) */
    HR_DIAGNOSTICS_STATUS_BYTES = 3840,     /* the most that it tells at once (hr_diagnostics_post_status) */
    HR_DIAGNOSTICS_STACK_BYTES =
        64 << 10, /* written by whoever dumps stacks, from file offset HR_DIAGNOSTICS_STACK_AT on */
    HR_DIAGNOSTICS_STACK_AT = HR_DIAGNOSTICS_STDERR_BYTES + 2 * 4096,
    HR_DIAGNOSTICS_BYTES = HR_DIAGNOSTICS_STACK_AT + HR_DIAGNOSTICS_STACK_BYTES,
};

/* In the worker: adds to what is kept of its words. `fd` is hr_port_diagnostics_fd's. -EBADF. */
HR_API int hr_diagnostics_log_stderr(int fd, const void *text, size_t bytes);

/* In the worker: replaces what it told before, which stays until all of this is there. -EBADF; -EMSGSIZE: more than
 * HR_DIAGNOSTICS_STATUS_BYTES. */
HR_API int hr_diagnostics_post_status(int fd, const void *text, size_t bytes);

/* In the trainer: the stack dump and the last words of worker `worker`, of its newest pass. Borrowed until the next
 * pass or hr_crew_close; not terminated. The bytes are whatever the worker wrote: text is not assured. */
HR_API int hr_crew_stack(hr_crew *crew, uint32_t worker, const char **ret_text, size_t *ret_bytes);
HR_API int hr_crew_stderr(hr_crew *crew, uint32_t worker, const char **ret_text, size_t *ret_bytes);
/* Likewise what it told last; 0 bytes: nothing. */
HR_API int hr_crew_posted_status(hr_crew *crew, uint32_t worker, const char **ret_text, size_t *ret_bytes);

#ifdef __cplusplus
}
#endif
#endif
