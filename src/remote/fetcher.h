/* SPDX-License-Identifier: Apache-2.0 */
/* The fetcher: shared by fetcher.c, which talks to readers, and jobs.c, which decides what is fetched. */
#ifndef HR_REMOTE_FETCHER_H
#define HR_REMOTE_FETCHER_H

#include <headrace/face/fetcher.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "blocks.h"
#include "os/os.h"
#include "protocol.h"

/* A reader that is connected. Requests refer to it, also after its end. */
struct hr__reader {
    int fd;
    uint32_t references;
    bool is_gone;
    struct hr__reader *next;
    /* Its announced ranges in their order: those that were begun, and from next_to_begin on the others. */
    struct hr__announced *first_announced, *last_announced, *next_to_begin;
    uint64_t begun_bytes;
    uint64_t given; /* what it has announced below this position is being read */
};

/* A range that a reader has announced. */
struct hr__announced {
    struct hr__object *object; /* NULL: it was begun, and its bytes are kept */
    struct hr__range range;
    uint64_t position;
    uint64_t begun_bytes; /* that were fetched for it, to be kept */
    struct hr__announced *next;
};

/* An object that requests named. It is forgotten when it has no jobs and others need its descriptor. */
struct hr__object {
    char name[HR__NAME_BYTES + 1];
    char *version, *url, *storage; /* of the newest request, which may have newer credentials; owned */
    uint64_t bytes;
    struct hr__blocks *blocks; /* NULL: it is not kept */
    struct hr__job *jobs;      /* parts that are fetched to be kept */
    unsigned char *in_flight;  /* a bit for each unit that is in one of them */
    uint32_t job_count;        /* all that refer to it, and parcels */
    uint32_t announced_count;  /* announced ranges that refer to it */
    struct hr__parcel *parcels;
    uint64_t wanted_units; /* that requests were for */
    uint64_t fill_at;      /* all before it is kept or in flight */
    bool is_filling;       /* it is in the list of the objects that are fetched as a whole */
    struct hr__object *next_to_fill;
    int64_t used_ns;
    bool is_saving;
    struct hr__object *next; /* in its list of the table */
};

/* A range that was announced and is not kept: it is fetched into memory, until it is read. */
struct hr__parcel {
    struct hr__object *object;
    uint64_t at, bytes, taken; /* taken: bytes that were sent */
    char *data;                /* NULL: they are on their way */
    uint32_t references;       /* the list, and jobs */
    bool is_listed;
    int64_t made_ns;
    struct hr__job *filling; /* the job that brings the bytes; NULL: they are here, or will not come */
    struct hr__job *waiting; /* jobs that send a part of it when it has come */
    struct hr__parcel *next_of_object;
    struct hr__parcel *previous, *next; /* by age */
};

/* A READ or CALL that waits for jobs. */
struct hr__request {
    struct hr__reader *reader;
    struct hr__object *object; /* NULL: a call */
    char *url, *storage;       /* its own, with its credentials; NULL: a call; owned */
    uint64_t id, at, bytes;
    uint32_t open_jobs;
    bool is_answered;
    bool needs_direct; /* a job brought nothing that is kept: the bytes are fetched once more, and sent */
    int code;          /* of the first job that failed, with the text; 0: none did */
    char *text;
};

enum hr__job_state { HR__JOB_QUEUED, HR__JOB_RUNNING };

struct hr__job {
    uint64_t id;
    enum hr_fetcher_kind kind;
    enum hr__job_state state;
    struct hr__object *object;
    uint64_t at, bytes;
    bool is_direct;            /* sent to its request, and not kept */
    struct hr__parcel *parcel; /* has the bytes; or, of a job without a request, gets them */
    struct hr__job *next_waiting;
    bool is_soon; /* no request waits for it yet */
    char *text;   /* of a call; owned */
    size_t text_bytes;
    char *url, *version, *storage; /* copies for the thread that has it */
    struct hr__request **requests;
    uint32_t request_count, request_room;
    struct hr__job *next_of_object;
    struct hr__job *previous, *next; /* in its queue, or among those that run */
};

struct hr__job_list {
    struct hr__job *first, *last;
    uint64_t count;
};

enum { HR__OBJECT_LISTS = 4096 };

struct hr_fetcher {
    char folder[HR__PATH_BYTES];
    int folder_fd, lock_fd, listen_fd, wake_fd;
    struct hr_fetcher_options options;
    struct hr__thread thread;
    bool is_started;
    uint64_t socket_inode;

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t has_jobs;
    bool is_ending;
    struct hr__reader *readers;
    uint64_t reader_count;
    struct hr__object *objects[HR__OBJECT_LISTS];
    uint64_t object_count, open_files;
    struct hr__object *fill_first, *fill_last;
    struct hr__job_list now, soon, running;
    uint64_t running_soon, last_job, open_requests;
    uint64_t kept_bytes, quota_bytes, fetched_bytes, sent_bytes;
    struct hr__parcel *oldest, *newest;
    uint64_t parcel_bytes;                                      /* also of those on their way */
    uint64_t announced_objects, announced_count, waiting_count; /* announced ranges, and those that were not begun */
    uint64_t begun_bytes;                                       /* of all readers */
    int64_t full_until_ns;                                      /* the disk refused bytes: nothing is kept until then */
    int64_t free_checked_ns;                                    /* when the free space was looked at */
    int64_t evicted_ns;
    bool has_free_space;
};

/* ---- jobs.c: with the lock, if not said otherwise ---- */

void hr__jobs_read(hr_fetcher *fetcher, struct hr__reader *reader, const struct hr__range_request *range,
                   const char *version, const char *url, const char *storage);
void hr__jobs_call(hr_fetcher *fetcher, struct hr__reader *reader, uint64_t id, const char *text, size_t bytes);
void hr__jobs_free(hr_fetcher *fetcher); /* no thread has a job */
/* Finds the object of a request, or adds it. NULL: no memory. Does not open its file. */
struct hr__object *hr__jobs_object(hr_fetcher *fetcher, const struct hr__range_request *range, const char *version,
                                   const char *url, const char *storage);
uint64_t hr__jobs_open_most(void); /* files that are open at the same time */
enum hr__soon { HR__SOON_NO_ROOM, HR__SOON_KEPT, HR__SOON_IN_MEMORY };
/* Has a range fetched that no request waits for yet. kept_most: bytes that may be fetched to be kept. memory_most:
 * bytes of all ranges that may wait in memory. Says where they will be, if they are not there already. ret_bytes:
 * fetched to be kept. */
enum hr__soon hr__jobs_fetch_soon(hr_fetcher *fetcher, struct hr__object *object, struct hr__range range,
                                  uint64_t kept_most, uint64_t memory_most, uint64_t *ret_bytes);
/* Drops a range that waits in memory, or will, if it was not read. */
void hr__jobs_drop_soon(hr_fetcher *fetcher, const struct hr__object *object, struct hr__range range);
/* Returns the block of 1 MiB around a range that is smaller than a unit, if it can be kept; else the range. */
struct hr__range hr__jobs_widen(hr_fetcher *fetcher, struct hr__object *object, struct hr__range range);
/* Adds up what is kept. Without the lock. */
void hr__jobs_count_kept(hr_fetcher *fetcher);

/* ---- announced.c: with the lock ---- */

/* Takes ranges that a reader announces: that of the request, and others of the same object, which are within it. */
void hr__announced_add(hr_fetcher *fetcher, struct hr__reader *reader, const struct hr__range_request *request,
                       const char *version, const char *url, const char *storage, const char *more, size_t more_count);
/* Forgets what a reader has announced at positions below `read`; see struct hr__withdrawal. What is being fetched is
 * fetched. */
void hr__announced_withdraw(hr_fetcher *fetcher, struct hr__reader *reader, uint64_t read, uint64_t given);
/* Has ranges fetched that were announced, until there is a job, or no room. */
void hr__announced_begin(hr_fetcher *fetcher);

/* ---- fetcher.c ---- */

/* Sends DONE or FAILED, for which there is room, because a reader has one request at a time. With the lock. */
void hr__answer(struct hr__reader *reader, uint64_t id, int code, const char *text);
/* Sends bytes and DONE, and waits for room. Without the lock. Negative errno: the reader does not take them. */
int hr__answer_bytes(struct hr__reader *reader, uint64_t id, const void *data, uint64_t bytes);
void hr__reader_unref(struct hr__reader *reader); /* with the lock */
/* Takes a message of a reader, whatever it is. With the lock. */
void hr__fetcher_take_message(hr_fetcher *fetcher, struct hr__reader *reader, const char *message, size_t bytes);

#endif
