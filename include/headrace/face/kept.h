/* SPDX-License-Identifier: Apache-2.0 */
/* Lists, checks, removes and fills what is kept of remote objects. For the program and the extension. */
#ifndef HEADRACE_FACE_KEPT_H
#define HEADRACE_FACE_KEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <headrace/remote.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * An object has a file in the folder of remote objects (headrace/remote.h), whose name is a digest of its address, size
 * and version. To list and to check files, they are only read. A file is removed by the fetcher of the folder while one
 * runs; else by the caller, which holds the lock of the fetcher meanwhile. What is in use stays: a process has the file
 * open, or a connected process has asked for the object. A process that has a file open reads it on after a removal.
 */

enum { HR_KEPT_NAME_BYTES = 33, HR_KEPT_SHOWN_BYTES = 1024 };

/* An object of which something is kept. */
struct hr_kept {
    char name[HR_KEPT_NAME_BYTES];
    char shown[HR_KEPT_SHOWN_BYTES]; /* its address without its query; "": is_damaged */
    uint64_t bytes;                  /* of the object */
    uint64_t kept_bytes;             /* of these, what can be read without a server */
    uint64_t disk_bytes;             /* that the file takes */
    int64_t used_ns;                 /* when a process opened it last, or a part came; since 1970 */
    bool is_damaged;                 /* its head is damaged or of another version: the file is not used */
};

/* Writes the folder of remote objects as hr_remote_folder does, but makes none. -ENOENT without a message: there is
 * none. Others with a message. */
HR_API int hr_kept_folder(char *ret_path, size_t room);

/* Calls `visit` for each object, in no order, until it returns something else than 0. Returns that, or a negative errno
 * with a message. */
HR_API int hr_kept_list(const char *folder, int (*visit)(void *context, const struct hr_kept *kept), void *context);
/* Returns true if an address names an object that is shown so: with or without its query. One of the hub without a
 * commit names the file in all commits, and without a path all files of the repository. */
HR_API bool hr_kept_is_of(const struct hr_kept *kept, const char *url);
/* Returns true if a process has its file open now. */
HR_API bool hr_kept_is_open(const char *folder, const char *name);

struct hr_kept_check {
    uint64_t bytes;         /* that were read */
    uint64_t damaged_bytes; /* of these: of units that differ from their checksum */
    uint64_t first;         /* the offset of the first one */
};
/* Reads all units that are kept of an object, and compares them with their checksums. HR_E_CORRUPT with a message: some
 * differ, or its head is damaged; `ret_check` is written. -EINTR: `is_stopped` (NULL is fine) returned true. -ENOENT
 * and others, with a message. */
HR_API int hr_kept_verify(const char *folder, const char *name, bool (*is_stopped)(void),
                          struct hr_kept_check *ret_check);

/* Removes the file of an object. -EBUSY with a message: it is in use; `force` removes its name all the same. -ENOENT
 * and others with a message. */
HR_API int hr_kept_remove(const char *folder, const char *name, bool force);

struct hr_kept_limits {
    int64_t older_ns;     /* objects that were not used for so long are removed; negative: age alone removes none */
    uint64_t quota_bytes; /* the longest unused are removed until the rest takes no more; UINT64_MAX: no limit */
    bool is_dry;          /* nothing is removed */
};
struct hr_kept_collected {
    uint64_t objects, bytes, bytes_left;
};
/* Removes objects that are not in use, by the limits, the longest unused first, and files that are damaged. Calls
 * `visit` for each one that was removed, or would be. Negative errno with a message. */
HR_API int hr_kept_collect(const char *folder, const struct hr_kept_limits *limits,
                           void (*visit)(void *context, const struct hr_kept *kept), void *context,
                           struct hr_kept_collected *ret_collected);

/* ---- filling ---- */

/* Threads that have whole objects fetched and kept. */
typedef struct hr_filling hr_filling;

struct hr_filling_info {
    uint64_t total_bytes, done_bytes;
    uint64_t kept_bytes; /* of total_bytes, those that were kept when it began */
};

/* Starts threads that fetch all that is missing of objects, which are known (hr_remote_look). The fetcher divides it
 * into requests. -ENOENT: an object is not known. Others, with a message. Owned by the caller. */
HR_API int hr_filling_start(const char *const *paths, size_t count, hr_filling **ret_filling);
/* Waits for the end. Returns 1; 0: the deadline (CLOCK_MONOTONIC, ns) has come first. -ENOSPC: the disk or the quota
 * has no room for all. -EINTR: a signal has come. Others are those of reads; with a message. */
HR_API int hr_filling_wait(hr_filling *filling, int64_t deadline_ns);
HR_API void hr_filling_look(hr_filling *filling, struct hr_filling_info *ret_info);
/* Stops the threads, within the time of a look for a stop. NULL is fine; returns NULL. */
HR_API hr_filling *hr_filling_free(hr_filling *filling);

#ifdef __cplusplus
}
#endif
#endif
