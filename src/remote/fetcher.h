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
    uint32_t number;                         /* its bit of hr__object.users; no other reader that is connected has it */
    bool is_gone, has_claims, has_in_memory; /* has_in_memory: some of what it has announced may wait there */
    int64_t heard_ns;                        /* when its last message came */
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
    bool is_asked;        /* a reader has asked for it before it was begun */
    struct hr__announced *next;
};

/* Any number of bits: those behind the words are not set. */
struct hr__bits {
    uint64_t *words; /* owned */
    uint32_t count;
};

/* An object that requests named. It is forgotten when it has no jobs and others need its descriptor. */
struct hr__object {
    char name[HR__NAME_BYTES + 1];
    struct hr__host *host;         /* a reference */
    char *version, *url, *storage; /* of the newest request, which may have newer credentials; owned */
    uint64_t bytes;
    struct hr__blocks *blocks; /* NULL: it is not kept */
    struct hr__job *jobs;      /* parts that are fetched to be kept */
    unsigned char *in_flight;  /* a bit for each unit that is in one of them */
    uint32_t job_count;        /* all that refer to it, and parcels */
    uint32_t announced_count;  /* announced ranges that refer to it */
    struct hr__parcel *parcels;
    uint64_t wanted_units;           /* that requests were for */
    uint64_t fill_at;                /* all before it is kept or in flight */
    bool is_filling;                 /* it is in the list of the objects that are fetched as a whole */
    struct hr__object *next_to_fill; /* of its host */
    struct hr__bits users;           /* bit n: reader n, which is connected, has asked for it */
    bool is_saving;
    struct hr__object *next;          /* in its list of the table */
    struct hr__object *older, *newer; /* by their last use */
};

/* A range that was announced and is not kept: it is fetched into memory, until it is read. */
struct hr__parcel {
    struct hr__object *object;
    uint64_t at, bytes, taken; /* taken: bytes that were sent */
    char *data;                /* NULL: they are on their way */
    uint32_t references;       /* the list, and jobs */
    bool is_listed;
    bool is_announced; /* its reader withdraws it, or is paused; others are dropped when they are old */
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
    int64_t asked_ns;
    uint32_t open_jobs;
    bool is_answered;
    bool needs_direct; /* a job brought nothing that is kept: the bytes are fetched once more, and sent */
    bool asks_again;   /* a job gave up that had been tried before this request came */
    int code;          /* of the first job that failed, with the text; 0: none did */
    char *text;
};

enum hr__job_state { HR__JOB_QUEUED, HR__JOB_RUNNING };

struct hr__job {
    uint64_t id;
    enum hr_fetcher_kind kind;
    enum hr__job_state state;
    struct hr__object *object;
    struct hr__host *host; /* in whose queue it is; that of a call is a reference */
    uint64_t at, bytes;
    int64_t asked_ns;          /* by the newest request that it had when it was begun; 0: none, and it was not begun */
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

/* Says what a thread does next: a job of the first kind that has one. */
enum hr__turn {
    HR__NOW,  /* a request waits for it */
    HR__SOON, /* it was asked for, or announced */
    HR__FILL, /* the rest of an object */
    HR__TURNS
};

/* Hosts that have work of a kind. The first one is next. */
struct hr__turns {
    struct hr__host *first, *last;
};

/* A server, or a bucket, by its name in URLs. It is there as long as objects and calls refer to it. */
struct hr__host {
    char *name; /* without a zero byte; behind the struct */
    size_t length;
    uint64_t references;
    struct hr__job_list queues[HR__SOON + 1];
    uint64_t running, running_soon;
    struct hr__object *fill_first, *fill_last; /* that are fetched as a whole */
    struct {
        struct hr__host *previous, *next;
    } links[HR__TURNS];
    struct hr__host *next; /* in its list of the table */
};

enum { HR__OBJECT_LISTS = 4096, HR__HOST_LISTS = 256 };

struct hr_fetcher {
    char folder[HR__PATH_BYTES];
    int folder_fd, lock_fd, listen_fd, wake_fd;
    struct hr_fetcher_options options;
    struct hr__thread thread;
    bool is_started;
    uint64_t socket_inode;
    int figures_fd; /* -1: nothing is shown */
    int64_t began_ns;

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t has_jobs, has_saved;
    bool is_ending;
    struct hr__reader *readers;
    uint64_t reader_count;
    struct hr__bits reader_numbers; /* that are in use */
    struct hr__object *objects[HR__OBJECT_LISTS], *oldest_object, *newest_object;
    uint64_t object_count, open_files;
    struct hr__host *hosts[HR__HOST_LISTS];
    struct hr__host at_hand; /* of jobs that need no server */
    struct hr__turns turns[HR__TURNS];
    struct hr__job_list running;
    uint64_t queued_count, running_soon, last_job, open_requests;
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
/* Has a range fetched that no request waits for yet, because it was announced or asked for. kept_most: bytes that may
 * be fetched to be kept. memory_most: bytes of all ranges that may wait in memory. Says where they will be, if they are
 * not there already. ret_bytes: fetched to be kept. */
enum hr__soon hr__jobs_fetch_soon(hr_fetcher *fetcher, struct hr__object *object, struct hr__range range,
                                  bool is_announced, uint64_t kept_most, uint64_t memory_most, uint64_t *ret_bytes);
/* Drops a range that waits in memory, or will, if it was not read. */
void hr__jobs_drop_soon(hr_fetcher *fetcher, const struct hr__object *object, struct hr__range range);
/* Drops what was asked for long ago, waits in memory, and was not read. */
void hr__jobs_drop_old(hr_fetcher *fetcher);
/* Returns the block of 1 MiB around a range that is smaller than a unit, if it can be kept; else the range. */
struct hr__range hr__jobs_widen(hr_fetcher *fetcher, struct hr__object *object, struct hr__range range);
/* Adds up what is kept. Without the lock. */
void hr__jobs_count_kept(hr_fetcher *fetcher);

/* ---- hosts.c: with the lock ---- */

/* Finds the host of a URL, or adds it. NULL: no memory. */
struct hr__host *hr__host_ref(hr_fetcher *fetcher, const char *url);
void hr__host_unref(hr_fetcher *fetcher, struct hr__host *host);
void hr__host_enter(hr_fetcher *fetcher, struct hr__host *host, enum hr__turn turn); /* as the last one */
void hr__host_leave(hr_fetcher *fetcher, struct hr__host *host, enum hr__turn turn);
/* Returns the host whose turn it is, of those that have work of a kind and room for one more job. NULL: no host has.
 */
struct hr__host *hr__hosts_next(const hr_fetcher *fetcher, enum hr__turn turn);
bool hr__hosts_have_room_for_soon(const hr_fetcher *fetcher); /* the jobs of all hosts leave some threads */
/* Says whether a host has no job in its queue of HR__SOON, and room for one. */
bool hr__host_is_ready_for_soon(const hr_fetcher *fetcher, const struct hr__host *host);
void hr__job_queue(hr_fetcher *fetcher, struct hr__job *job); /* of its host */
void hr__job_unqueue(hr_fetcher *fetcher, struct hr__job *job);
void hr__job_run(hr_fetcher *fetcher,
                 struct hr__job *job); /* takes it out of its queue; its host is then the last one */
void hr__job_stop(hr_fetcher *fetcher, struct hr__job *job);
void hr__job_hurry(hr_fetcher *fetcher, struct hr__job *job); /* a request waits for it */

/* ---- claims.c: with the lock ---- */

bool hr__claims_enter(hr_fetcher *fetcher, struct hr__reader *reader); /* gives it a number; false: no memory */
void hr__claims_leave(hr_fetcher *fetcher, const struct hr__reader *reader);
bool hr__claim(struct hr__object *object, struct hr__reader *reader); /* false: no memory */
bool hr__is_claimed(const struct hr__object *object);
void hr__bits_free(struct hr__bits *bits);

/* ---- announced.c: with the lock ---- */

/* Takes ranges that a reader announces: that of the request, and others of the same object, which are within it. */
void hr__announced_add(hr_fetcher *fetcher, struct hr__reader *reader, const struct hr__range_request *request,
                       const char *version, const char *url, const char *storage, const char *more, size_t more_count);
/* Forgets what a reader has announced at positions below `read`; see struct hr__withdrawal. What is being fetched is
 * fetched. */
void hr__announced_withdraw(hr_fetcher *fetcher, struct hr__reader *reader, uint64_t read, uint64_t given);
/* Called when a reader asks for a range that is not kept and not being fetched: it is not fetched for an announcement,
 * too. */
void hr__announced_asked(hr_fetcher *fetcher, const struct hr__object *object, uint64_t at, uint64_t bytes);
/* Has ranges fetched that were announced, until there is a job, or no room. */
void hr__announced_begin(hr_fetcher *fetcher);
/* Drops from memory what was announced by readers that have said nothing for a while: their loops are paused. */
void hr__announced_give_back(hr_fetcher *fetcher);

/* ---- fetcher.c ---- */

/* Sends DONE or FAILED, for which there is room, because a reader has one request at a time. With the lock. */
void hr__answer(struct hr__reader *reader, uint64_t id, int code, const char *text);
/* Sends bytes and DONE, and waits for room. Without the lock. Negative errno: the reader does not take them. */
int hr__answer_bytes(struct hr__reader *reader, uint64_t id, const void *data, uint64_t bytes);
void hr__reader_unref(struct hr__reader *reader); /* with the lock */
/* Takes a message of a reader, whatever it is. With the lock. */
void hr__fetcher_take_message(hr_fetcher *fetcher, struct hr__reader *reader, const char *message, size_t bytes);

#endif
