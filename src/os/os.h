/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_OS_OS_H
#define HR_OS_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The platform contract: every raw system call is behind one of these functions, which return a negative errno and
 * set no message (the caller knows what it was doing). Descriptors are close-on-exec from birth. -EINTR is dealt with
 * here, except in hr__poll, whose callers have signals to serve.
 */

/* ---- clock.c ---- */

int64_t hr__now_ns(void); /* CLOCK_MONOTONIC */
void hr__pause(void);     /* one turn of a spin loop, without a system call */
void hr__yield(void);     /* lets another runnable process have the core */

/* ---- memory.c ---- */

/* Anonymous shared memory of `bytes` bytes, sparse but for the first `head_bytes`, which are committed: memfd_create,
 * else an unlinked file in /dev/shm, else in $TMPDIR. */
enum hr__memory_kind { HR__MEMORY_MEMFD, HR__MEMORY_SHM, HR__MEMORY_TMP };
int hr__memory_create(uint64_t bytes, uint64_t head_bytes, int *ret_fd, enum hr__memory_kind *ret_kind);
int hr__memory_bytes(int fd, uint64_t *ret_bytes);

int hr__map(int fd, uint64_t bytes, void **ret_address);    /* shared, read and write, 2 MiB-aligned */
void hr__unmap(void *address, uint64_t bytes);              /* NULL is fine */
void hr__keep_from_children(void *address, uint64_t bytes); /* a later fork's child does not have the mapping */

/* Makes the pages of [offset, offset + bytes) exist, so that touching them cannot raise SIGBUS. */
int hr__commit(int fd, uint64_t offset, uint64_t bytes);
/* Enters existing pages into this process's page table. Best effort: what is left faults in later. */
void hr__populate(void *address, uint64_t bytes);
/* Gives the pages behind a shared mapping back, for all processes; they read as zeros afterwards. */
int hr__punch(void *address, uint64_t bytes);

/* Replaces shared pages by private ones with the same contents, at the same address. Async-signal-safe. */
int hr__make_private(void *address, uint64_t bytes);

/* ---- event.c ---- */

int hr__eventfd(int *ret_fd);
int hr__eventfd_ring(int fd);
void hr__eventfd_drain(int fd);
int hr__pipe(int *ret_read_fd, int *ret_write_fd); /* non-blocking */
int hr__dup(int fd, int *ret_fd);
void hr__close(int *fd); /* -1 is fine; leaves -1 */

/* Is it readable or at its end, now? */
bool hr__is_readable(int fd);

/* Waits until one of `count` descriptors (-1: ignored) is readable or at its end, and marks those in `ret_ready`.
 * Returns their number, -ETIMEDOUT, -EINTR or another negative errno. */
int hr__poll(const int *fds, bool *ret_ready, size_t count, int64_t deadline_ns);

int hr__pidfd(int pid, int *ret_fd);

/* Asks the kernel to kill this process (SIGKILL) when the other end of the pipe is closed for good: when the process
 * that holds its write end has died, however. Takes a descriptor of its own. */
int hr__die_with(int read_fd, int *ret_own_fd);

/* ---- limits.c ---- */

uint64_t hr__memory_to_spare(void);    /* bytes: the least of MemAvailable and the cgroups' headroom */
uint64_t hr__address_space_left(void); /* bytes that can be mapped in one piece, of 16 TiB at most */
uint32_t hr__core_count(void);         /* cores that this process may run on; at least 1 */
uint32_t hr__pid(void);

/* ---- fail.c: failpoints, compiled in with -DHR_FAILPOINTS only ---- */

#ifdef HR_FAILPOINTS
/* The negative errno that $HEADRACE_FAIL ("memfd_create:EPERM,pidfd_open:EPERM") asks for at `point`, or 0. */
int hr__fail_at(const char *point);
/* Raises the signal that $HEADRACE_STOP ("ring.tail:9:3": point, number, passage) asks for when `point` is passed for
 * the nth time. There is a point before and after each store to shared memory. */
void hr__stop_at(const char *point);
#else
static inline int hr__fail_at(const char *point) {
    (void)point;
    return 0;
}
static inline void hr__stop_at(const char *point) {
    (void)point;
}
#endif

#endif
