/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_OBJECTS_H
#define HEADRACE_OBJECTS_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/remote.h>
#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Whole files, or objects of a bucket (headrace/remote.h), as samples. Each read compares the file with the one that
 * was there at hr_objects_open: -ESTALE if it was changed or replaced. Of all files of a process about 64 are open at a
 * time.
 *
 * Threads: all functions that take a const pointer may run in several threads at the same time. A child that was forked
 * can go on with the hr_objects of its parent.
 */

typedef struct hr_objects hr_objects; /* files that are read as a whole */

/* Looks at files, which are opened when they are read. -ENOENT and others: one does not exist, or is no file. Owned by
 * the caller. */
HR_API int hr_objects_open(const char *const *paths, size_t path_count, hr_objects **ret_objects);
HR_API hr_objects *hr_objects_close(hr_objects *objects); /* NULL is fine; returns NULL */

/* A number that changes with the size and the time, or the version, of each file. */
HR_API uint64_t hr_objects_stamp(const hr_objects *objects);
/* Returns the path of a file, borrowed, and its size. NULL: there is no such file. */
HR_API const char *hr_objects_look(const hr_objects *objects, uint64_t number, uint64_t *ret_bytes);
/* Reads a file to memory that has room for all of its bytes. -ERANGE: there is no such file. -ESTALE, -EIO and others:
 * it cannot be read. */
HR_API int hr_objects_read(const hr_objects *objects, uint64_t number, void *memory);
/* Reads a part of a file that is needed once: of a remote object, what is not kept already is not kept. -ERANGE: there
 * is no such file, or the part is not within it. -ECANCELED: see hr_objects_stop. Others as hr_objects_read. */
HR_API int hr_objects_read_part(const hr_objects *objects, uint64_t number, uint64_t at, uint64_t bytes, void *memory);
/* Ends the waits for a server of all calls of hr_objects_read_part, in any thread, now and later: within 0.2 s they
 * return -ECANCELED. */
HR_API void hr_objects_stop(hr_objects *objects);
/* Asks for files that are read soon. Best effort; numbers that are out of range are ignored. announcer: see
 * headrace/remote.h; NULL: they are read now. */
HR_API void hr_objects_ask(const hr_objects *objects, const int64_t *numbers, size_t count, hr_announcer *announcer);

#ifdef __cplusplus
}
#endif
#endif
