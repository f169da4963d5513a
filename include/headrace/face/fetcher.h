/* SPDX-License-Identifier: Apache-2.0 */
/* The fetcher of remote objects, without its network code, which the caller has. */
#ifndef HEADRACE_FACE_FETCHER_H
#define HEADRACE_FACE_FETCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <headrace/visibility.h>

/*
 * The fetcher takes requests of readers, and gives jobs to threads of the caller: parts of objects, each of them once
 * at a time, and calls, whose text it does not know. It writes what they bring to the files of the objects, or sends it
 * to the readers if it is not kept.
 *
 *     hr_fetcher_open(folder)        one process per folder; others get -EAGAIN
 *     (the process becomes a daemon)
 *     hr_fetcher_start               starts a thread that answers readers
 *     threads: hr_fetcher_take, then hr_fetcher_give or hr_fetcher_fail
 */

typedef struct hr_fetcher hr_fetcher;

/* Takes the lock of a folder, and listens. -EAGAIN: another process is the fetcher of this folder. Negative errno with
 * a message. Owned by the caller. */
HR_API int hr_fetcher_open(const char *folder, hr_fetcher **ret_fetcher);

struct hr_fetcher_options {
    uint64_t quota_bytes; /* of all kept objects; UINT64_MAX: half of the free space and the kept bytes */
    uint64_t free_bytes;  /* that stay free in the file system */
    uint32_t idle_ms;     /* it ends so long after its last connection */
    uint32_t threads;     /* that take jobs, at most, of which a host gets three quarters and at most 64; 0: 512 */
};
/* Starts the thread that answers. Negative errno with a message. */
HR_API int hr_fetcher_start(hr_fetcher *fetcher, const struct hr_fetcher_options *options);
/* Stops the thread, saves, and frees all. No thread may be in another function. NULL is fine; returns NULL. */
HR_API hr_fetcher *hr_fetcher_close(hr_fetcher *fetcher);

enum hr_fetcher_kind { HR_FETCHER_PART = 1, HR_FETCHER_CALL };

/* A task of a thread. The texts are borrowed until the job is given or failed. */
struct hr_fetcher_job {
    uint64_t id;
    enum hr_fetcher_kind kind;
    int64_t asked_ns; /* when it was asked for (CLOCK_MONOTONIC); tries end so long after that as the settings say */
    const char *url, *version, *storage; /* PART */
    uint64_t object_bytes, at, bytes;    /* PART: a range of the object, within it */
    const char *text;                    /* CALL */
    size_t text_bytes;
};

/* Takes a job; urgent ones come first. Returns 1; 0: the deadline (CLOCK_MONOTONIC, ns) has come first. HR_E_END: the
 * fetcher ends. */
HR_API int hr_fetcher_take(hr_fetcher *fetcher, int64_t deadline_ns, struct hr_fetcher_job *ret_job);
/* Brings the bytes of a job: all of the part, or the answer of a call. Negative errno: they were not what was wanted.
 */
HR_API int hr_fetcher_give(hr_fetcher *fetcher, uint64_t id, const void *data, size_t bytes);
/* Keeps the first unit (64 KiB, or all of a smaller object) of an object, which came with its size and version. The
 * texts are copied. Negative errno with a message: it is not kept. */
struct hr_fetcher_object {
    const char *name, *url, *version, *storage;
    uint64_t bytes;
};
HR_API int hr_fetcher_keep(hr_fetcher *fetcher, const struct hr_fetcher_object *object, const void *data, size_t bytes);
/* Ends a job with an error: a negative errno and a text for the user, without secrets. */
HR_API int hr_fetcher_fail(hr_fetcher *fetcher, uint64_t id, int code, const char *text);

/* Brings what was kept to the disk, so that it is kept after a stop of the machine. Called every minute or so. */
HR_API void hr_fetcher_save(hr_fetcher *fetcher);

/* Removes what is kept of an object. -EBUSY: it is in use, and `force` is false: a process has its file open, a
 * connected reader has asked for it, or it is being fetched. If hr_fetcher_save runs in another thread and is saving
 * it, waits for that. -ENOENT. Without a message. */
HR_API int hr_fetcher_remove(hr_fetcher *fetcher, const char *name, bool force);

/* Shows the figures to observers, in a file of the folder, with what the caller has counted since its start: requests
 * to servers, and those of them that were made again. Called twice a second or so. Best effort. */
HR_API void hr_fetcher_show(hr_fetcher *fetcher, uint64_t requests, uint64_t retries);

/* The figures of a fetcher. Counts are since it began. */
struct hr_fetcher_figures {
    int64_t began_ns; /* CLOCK_MONOTONIC; another fetcher has another one */
    int64_t at_ns;    /* when it has shown this */
    uint64_t pid;     /* as it sees itself */
    uint64_t fetched_bytes, sent_bytes;
    uint64_t requests, retries;
    uint64_t kept_bytes, quota_bytes;
    uint64_t connections, jobs;
};
/* Reads the figures of the fetcher of a folder. -ENOENT: none runs. Others: its file cannot be read. Without a message.
 */
HR_API int hr_fetcher_peek(const char *folder, struct hr_fetcher_figures *ret_figures);

struct hr_fetcher_info {
    uint64_t kept_bytes, quota_bytes;
    uint64_t fetched_bytes, sent_bytes;    /* sent: what was not kept */
    uint64_t connections, jobs, announced; /* announced: ranges that are not fetched yet */
    bool is_ending;                        /* hr_fetcher_take gives no more jobs */
};
HR_API void hr_fetcher_look(hr_fetcher *fetcher, struct hr_fetcher_info *ret_info);

#endif
