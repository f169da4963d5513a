/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CACHE_SHARED_H
#define HEADRACE_CACHE_SHARED_H

#include <stdint.h>

#include <headrace/cache.h>
#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * An array that several processes write: an object of the cache whose file is mapped shared, with locks in it that do
 * not stay taken when their holder dies.
 *
 *     hr_cache_ask, hr_cache_wait                    with the format HR_SHARED_FORMAT and the stamp NULL
 *     HR_CACHE_BUILD: hr_shared_build(build, &plan, NULL), hr_cache_build_finish(build, NULL, &cached)
 *     hr_shared_open(cached, &shared), hr_shared_look(shared, &info)      info.data: read and write
 *     hr_shared_lock(shared, 0, HR_SHARED_ALL, &wait, &hold)              hold.dead_count: see below
 *     hr_shared_unlock(shared, &hold)
 *
 * The rows (the first dimension) are divided into at most HR_SHARED_STRIPES stripes, in order, and a lock has all
 * stripes that its rows touch. It excludes other processes and other threads. A thread has at most one lock of an array
 * at a time, so that no two threads can wait for each other.
 *
 * If the holder of a lock dies, the next one that wants it gets it, usually less than a millisecond after the kernel
 * has ended the process, and hold.dead_count says so, because the data may be half changed. This does not use pids: a
 * holder is a byte that its process has locked in the file, as long as it lives. So it works between containers that
 * see different pids, after any signal, after the out-of-memory killer, and after a stop of the machine. A holder that
 * is stopped keeps the lock. So does a thread that ends without unlocking it, until its process ends.
 *
 * Threads: all functions may be called by several threads; a hold belongs to one caller. Forks: a child has the array,
 * and none of the locks of its parent.
 */

#define HR_SHARED_FORMAT "shared" /* the format of such an object, in a request and in struct hr_cached_info */
#define HR_SHARED_ALL UINT64_MAX  /* a number of rows: all of them */

enum {
    HR_SHARED_MAX_DIMENSIONS = 32,
    HR_SHARED_DTYPE_BYTES = 16, /* the text of a dtype, with the 0 at its end */
    HR_SHARED_STRIPES = 64,
    HR_SHARED_MEMBERS = 1024, /* processes that can take part in locking one array at the same time */
    HR_SHARED_DEAD = 8        /* dead holders that one hold names */
};

typedef struct hr_shared hr_shared; /* an array that this process has open */

/* The type and shape of an array. The dtype is numpy's text: "|b1", "<i4", "<u8", "<f4", "<c16", ... in the byte order
 * of this machine, with 1 to 16 bytes. No dimension is 0. dimension_count 0: one element. */
struct hr_shared_plan {
    char dtype[HR_SHARED_DTYPE_BYTES];
    uint32_t dimension_count;
    uint64_t dimensions[HR_SHARED_MAX_DIMENSIONS];
};

/* Makes the data of a build an array whose elements are `*fill` (NULL: zeros), and sets the meta of the build;
 * hr_cache_build_finish with meta NULL publishes it. All pages are committed here, so that no later write can fail or
 * raise SIGBUS. -EINVAL: a dtype or dimension that is not allowed, or no machine has so much memory. -ENOSPC: no room
 * in memory, which says what is missing; HR_CACHE_KEEP_DISK puts it on a disk. -EOPNOTSUPP: the file system of the disk
 * cannot commit pages. HR_E_CORRUPT: the name has an array that is damaged, which is not replaced without a word. Other
 * errors as hr_cache_build_reserve. */
HR_API int hr_shared_build(hr_cache_build *build, const struct hr_shared_plan *plan, const void *fill);

/* Opens the array of an attached object, which has to stay attached. Owned by the caller. HR_E_CORRUPT: it is damaged.
 * HR_E_VERSION: it was made by another version of headrace. -EINVAL: it is an object of another format. -EPERM: its
 * file belongs to another user. -EACCES, -EROFS: it cannot be written. Other errno. */
HR_API int hr_shared_open(const hr_cached *cached, hr_shared **ret_shared);
/* Unmaps it. A lock that is still held is left as that of a holder that died. NULL is fine; returns NULL. */
HR_API hr_shared *hr_shared_close(hr_shared *shared);

struct hr_shared_info {
    struct hr_shared_plan plan;
    void *data; /* read and write, 64 KiB-aligned in the file; forked children have the same memory */
    uint64_t bytes, element_bytes, row_count;
    uint32_t stripe_count; /* row r is in stripe r * stripe_count / row_count */
};
HR_API void hr_shared_look(const hr_shared *shared, struct hr_shared_info *ret_info);

/* Writes what was changed to the disk, and returns when it is there. In memory there is nothing to do. An errno. */
HR_API int hr_shared_flush(hr_shared *shared);

/* ---- locks ---- */

struct hr_shared_wait {
    int64_t deadline_ns;        /* CLOCK_MONOTONIC; HR_NO_DEADLINE */
    int (*look)(void *context); /* NULL, or called every 50 ms or so; a result other than 0 ends the wait */
    void *context;
};

struct hr_shared_hold {
    uint32_t dead_count; /* how many holders of the lock died while they had it, at most HR_SHARED_DEAD */
    struct hr_shared_dead {
        uint32_t pid;        /* 0: not known */
        uint32_t is_visible; /* 1: this process sees the same pids */
    } dead[HR_SHARED_DEAD];
    uint32_t first, count, own; /* these and what follows are the library's */
    uint64_t number;
};

/* Takes the lock of `row_count` rows from `first_row` on; HR_SHARED_ALL: of all rows. `wait` NULL: -EAGAIN without a
 * message if a living process has it. -ETIMEDOUT: not free in time; the message has the pid and the state of its
 * holder. -EDEADLK: this thread has a lock of the array already. -EINTR: `look` has ended the wait. -ERANGE: there are
 * no such rows. -EUSERS: HR_SHARED_MEMBERS processes take part. After an error nothing is held. Other errno. */
HR_API int hr_shared_lock(hr_shared *shared, uint64_t first_row, uint64_t row_count, const struct hr_shared_wait *wait,
                          struct hr_shared_hold *ret_hold);
/* Ends it; any thread of the process may. HR_E_STATE: it was ended already, or this process is a forked child of the
 * holder; nothing was done. */
HR_API int hr_shared_unlock(hr_shared *shared, const struct hr_shared_hold *hold);
/* Ends it, for a holder that has not repaired what dead ones have left: the next one is told of them, too. */
HR_API int hr_shared_give_back(hr_shared *shared, const struct hr_shared_hold *hold);

/* ---- without a lock: each element is changed by one atomic step ---- */

/* Adds a value to each of `count` elements, which are numbers in C order; an element may come several times. `values`
 * has one value for each, or, with `is_one`, one for all, of the array's type. Integers wrap around. `ret_before`
 * (NULL, or `count` elements) gets the values that were there. Only int32, int64, float32 and float64: else -EINVAL.
 * -ERANGE: there is no such element, and none was changed. */
HR_API int hr_shared_add(hr_shared *shared, const uint64_t *elements, uint64_t count, const void *values, int is_one,
                         void *ret_before);
/* Makes each element the larger one of itself and the value; NaN if one of the two is. Otherwise the same. */
HR_API int hr_shared_maximum(hr_shared *shared, const uint64_t *elements, uint64_t count, const void *values,
                             int is_one, void *ret_before);

#ifdef __cplusplus
}
#endif
#endif
