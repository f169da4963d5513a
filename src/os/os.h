/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_OS_OS_H
#define HR_OS_OS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "failpoints.h"

/*
 * The platform contract: every raw system call is behind one of these functions, which return a negative errno and
 * set no message (the caller knows what it was doing). Descriptors are close-on-exec from birth. -EINTR is dealt with
 * here, except in hr__poll, whose callers have signals to serve.
 */

/* ---- clock.c ---- */

int64_t hr__now_ns(void);        /* CLOCK_MONOTONIC */
int64_t hr__coarse_now_ns(void); /* likewise, of the last tick: up to 10 ms old, at a quarter of the cost */
void hr__pause(void);            /* one turn of a spin loop, without a system call */
void hr__yield(void);            /* lets another runnable process have the core */

/* ---- memory.c ---- */

/* The kernel's page: 4 KiB, and on some arm64 16 or 64. Only whole ones are given back, unmapped and moved: a range has
 * to begin with one, and ends with the last one that it touches. */
uint64_t hr__page_bytes(void);

/* Anonymous shared memory of `bytes` bytes, sparse but for the first `head_bytes`, which are committed: memfd_create,
 * else an unlinked file in /dev/shm, else in $TMPDIR. */
enum hr__memory_kind { HR__MEMORY_MEMFD, HR__MEMORY_SHM, HR__MEMORY_TMP };
int hr__memory_create(uint64_t bytes, uint64_t head_bytes, int *ret_fd, enum hr__memory_kind *ret_kind);
int hr__memory_bytes(int fd, uint64_t *ret_bytes);

int hr__map(int fd, uint64_t bytes, void **ret_address);    /* shared, read and write, 2 MiB-aligned */
void hr__unmap(void *address, uint64_t bytes);              /* whole pages of hr__map's; NULL is fine */
void hr__keep_from_children(void *address, uint64_t bytes); /* a later fork's child does not have the mapping */

/* Makes the pages of [offset, offset + bytes) exist, so that touching them cannot raise SIGBUS. */
int hr__commit(int fd, uint64_t offset, uint64_t bytes);
/* Enters existing pages into this process's page table. Best effort: what is left faults in later. */
void hr__populate(void *address, uint64_t bytes);
/* Gives the pages behind a shared mapping back, for all processes; they read as zeros afterwards, to the end of the
 * last one. -EINVAL: `address` is in the middle of one. */
int hr__punch(void *address, uint64_t bytes);

/* Keeps the size of memory of hr__memory_create as it is: writing beyond fails. Best effort. */
void hr__keep_size(int fd);
/* All of `bytes` bytes at an offset. -EIO: the file is shorter. */
int hr__read_at(int fd, uint64_t offset, void *data, size_t bytes);
int hr__write_at(int fd, uint64_t offset, const void *data, size_t bytes); /* -EFBIG as hr__file_cut */

/* Replaces shared pages by private ones with the same contents, at the same address, which begins a page.
 * Async-signal-safe. */
int hr__make_private(void *address, uint64_t bytes);

/* Maps what is only read. Who writes to it all the same, which torch does with read-only arrays, gets pages of his own
 * instead of SIGSEGV. */
int hr__map_to_read(int fd, uint64_t bytes, const void **ret_address);
/* As hr__commit, of memory that is mapped at `address`: in pages of 2 MiB where the kernel can, for they are found by
 * one look into the page table instead of four. Both `offset` and `bytes` are multiples of 2 MiB. */
int hr__commit_huge(int fd, void *address, uint64_t offset, uint64_t bytes);
/* The physical pages behind a shared mapping of a file may go; what they hold stays. */
void hr__forget_pages(void *address, uint64_t bytes);

/* ---- file.c ---- */

/* Opens regular file `path` to read. -EINVAL: it is no regular file. */
int hr__file_open(const char *path, int *ret_fd);
/* A new file in the folder of `path`, without a name or with one of its own (`temporary`, owned by the caller, else
 * NULL), to read and write. */
int hr__file_create(const char *path, int *ret_fd, char **ret_temporary);
/* Gives that file its name, in the place of any file that has it. */
int hr__file_publish(int fd, const char *temporary, const char *path);
void hr__file_remove(const char *path);   /* NULL is fine */
int hr__file_cut(int fd, uint64_t bytes); /* -EFBIG over hr__file_limit, instead of SIGXFSZ */
int hr__file_sync(int fd);
/* A descriptor of the same file that cannot write, or, where that is not to be had, one that can. */
int hr__file_reopen(int fd, int *ret_fd);
/* Nobody can write, shrink or extend memory of hr__memory_create any more. Best effort; no writable mapping may be. */
void hr__seal(int fd);
void hr__random(void *bytes, size_t count);

/* ---- event.c ---- */

int hr__eventfd(int *ret_fd);
int hr__eventfd_ring(int fd);
void hr__eventfd_drain(int fd);
int hr__pipe(int *ret_read_fd, int *ret_write_fd); /* non-blocking */
int hr__dup(int fd, int *ret_fd);
/* What open(2) and the like return, -1 and errno included, under a number that is none of stdin's, stdout's and
 * stderr's: a process that was started without them has those free, and what writes to them would write to ours. Owns
 * `fd`; on failure it is closed. */
int hr__own(int fd, int *ret_fd);
void hr__close(int *fd); /* -1 is fine; leaves -1 */

/* Is it readable or at its end, now? */
bool hr__is_readable(int fd);

/* Waits until one of `count` descriptors (-1: ignored) is readable or at its end, and marks those in `ret_ready`.
 * Returns their number, -ETIMEDOUT, -EINTR or another negative errno. */
int hr__poll(const int *fds, bool *ret_ready, size_t count, int64_t deadline_ns);

/* Another descriptor of the pipe's read end, with an open file description of its own, by way of /proc. */
int hr__open_anew(int read_fd, int *ret_fd);
/* Does the kernel signal the end of a pipe, and nothing else? Before Linux 5.6 each close of one of a pipe's
 * descriptors did the same. 0; -EOPNOTSUPP: no; another negative errno. */
int hr__ends_are_signalled(void);
/* Asks the kernel to kill process `pid` (SIGKILL) when the other end of the pipe is closed for good: when the process
 * that holds its write end dies, however; at once if it has died. For as long as anybody has this open file
 * description. -EOPNOTSUPP and others: see hr__ends_are_signalled. */
int hr__kill_with(int read_fd, int pid);
/* The same for this process, with a description of its own. */
int hr__die_with(int read_fd, int *ret_own_fd);

/* ---- process.c ---- */

int hr__pidfd(int pid, int *ret_fd);
int hr__fork(int *ret_pid);        /* 0 in the child */
_Noreturn void hr__exit(int code); /* without atexit handlers */
/* The signals that end a process; others go by number. */
enum { HR__TERM = 15, HR__KILL = 9 };
int hr__send_signal(int pidfd, int pid, int signal); /* pidfd -1: by number */

const char *hr__signal_name(int signal); /* "Killed", ...; NULL: none */

/* How a child of this process ended. */
struct hr__end {
    bool is_known;
    int signal; /* 0: it exited */
    int exit_code;
};
/* -EAGAIN while it runs, -ECHILD when it is no child of this process or somebody else has reaped it. */
int hr__process_end(int pid, bool reaps, struct hr__end *ret_end);

uint64_t hr__resident_bytes(int pid); /* 0: not known */

/* A process as /proc shows it. */
struct hr__process {
    char state; /* as in ps: R, S, D, T (stopped), t (traced), Z */
    uint32_t thread_count;
    uint32_t tracer_pid; /* 0: not traced */
    uint64_t rss_bytes;
    uint64_t caught_signals;  /* bit n - 1: it has a handler for signal n */
    char kernel_function[64]; /* that it sleeps in; "" where that is not told */
    char system_call[128];    /* the line of /proc/PID/syscall: its number and arguments, "running", or "" */
    bool is_deadlocked;       /* its only thread waits, without a limit, for another thread of its own */
};
int hr__process_look(int pid, struct hr__process *ret_process); /* -ESRCH */

/* ---- thread.c ---- */

/* A thread with all signals blocked, so that handlers run in those that the program knows. Stays in place until it is
 * joined. */
struct hr__thread {
    pthread_t id;
    void (*run)(void *);
    void *context;
};
int hr__thread_start(struct hr__thread *thread, void (*run)(void *), void *context);
void hr__thread_join(struct hr__thread *thread);

/* ---- cgroup.c ---- */

/* The first number in a file; UINT64_MAX for "max" and for a file that is not there. */
uint64_t hr__read_number(const char *path);
/* The number after `key` in the line that starts with it; UINT64_MAX if there is none. */
uint64_t hr__read_field(const char *path, const char *key);

/* The least that this process's cgroups, and those above them, allow; UINT64_MAX: no limit. */
uint64_t hr__cgroup_headroom(void);     /* bytes that may still be used */
uint64_t hr__cgroup_limit(void);        /* bytes in all */
uint64_t hr__cgroup_millicores(void);   /* thousandths of a core, by the quota of time */
uint64_t hr__cgroup_process_room(void); /* processes and threads that may still be started */

/* How many processes the kernel has killed for want of memory in this process's cgroup, on the machine where there is
 * none. UINT64_MAX: not known. */
uint64_t hr__oom_kill_count(void);

/* ---- heap.c ---- */

/* See hr_port_keep_heap. Gives the bytes that are kept at most; 0: malloc is as it was. */
uint64_t hr__keep_heap(uint64_t bytes);

/* See hr_port_keep_blocks; `kept` is what hr__keep_heap gave. */
void hr__keep_blocks(uint64_t block_bytes, uint64_t kept);

/* ---- limits.c ---- */

/* Bytes that a file, and shared memory, may have (ulimit -f). What makes one longer is refused before the kernel is
 * asked, which would send SIGXFSZ: that kills a program that does not ignore it, as Python does. */
uint64_t hr__file_limit(void);
uint64_t hr__memory_to_spare(void);    /* bytes: the least of MemAvailable and the cgroups' headroom */
uint64_t hr__address_space_left(void); /* bytes that can be mapped in one piece, of 16 TiB at most */
uint32_t hr__core_count(void);         /* cores that this process may run on; at least 1 */
uint32_t hr__usable_core_count(void);  /* of these, as many as the cgroups' quota of time pays for; at least 1 */
uint32_t hr__pid(void);

/* ---- fail.c: failpoints, compiled in with -DHR_FAILPOINTS only ---- */

#ifdef HR_FAILPOINTS
/* The negative errno that $HEADRACE_FAIL ("memfd_create:EPERM,pidfd_open:EPERM") asks for at `point`, or 0. */
int hr__fail_at(const char *point);
/* Raises the signal that $HEADRACE_STOP ("ring.tail:9:3": point, number, passage) asks for when this process passes the
 * point for the nth time. Async-signal-safe but for the environment, which nobody may change meanwhile. */
void hr__stop_at(enum hr__point point);
extern const struct hr__failpoint hr__failpoints[HR__POINT_COUNT];
/* $HEADRACE_ROOT: a folder that stands for / when cgroups and limits are looked up. */
const char *hr__root(void);
/* $HEADRACE_PAGE: bytes of a page larger than the kernel's, which hr__punch and hr__unmap hold to as a kernel that has
 * them does; or 0. */
uint64_t hr__assumed_page(void);
#else
static inline uint64_t hr__assumed_page(void) {
    return 0;
}
static inline const char *hr__root(void) {
    return "";
}
static inline int hr__fail_at(const char *point) {
    (void)point;
    return 0;
}
static inline void hr__stop_at(enum hr__point point) {
    (void)point;
}
#endif

#endif
