/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_BOARD_BOARD_H
#define HR_BOARD_BOARD_H

#include <pthread.h>

#include "layout.h"
#include "os/os.h"

/* A board as this process has it; the files of this folder share it. */

enum { HR__WHERE_BYTES = 64 };

/* Another process's `end` for the epoch that this process is in, to be read at each step. */
struct hr__board_rival {
    const struct hr__shared_entry *shared;
    uint64_t tag; /* the bits that the number of the epoch has there */
};

/* A page as it was when this process published its epoch. A rank that finds a disagreement may end before the others
 * have looked at its facts, so facts count if their process ran then, or if they were published later. */
struct hr__board_start {
    bool was_live;
    uint64_t newest; /* number of an epoch */
};

struct hr_board_entry {
    hr_board *board;
    struct hr__shared_entry *shared; /* the entry in the own page */
    bool is_used;
    char where[HR__WHERE_BYTES]; /* shortened, for reports */
    uint64_t key;
    uint64_t number; /* number of the epoch, from 1; 0: no epoch has begun */
    int64_t epoch;
    uint64_t left_count;      /* the `left_count` of the board when the last loader left the entry */
    uint64_t reported_number; /* number of the last epoch that was reported */
    uint64_t allowed;         /* so many more batches than another rank are not reported */
    struct hr__board_rival *rivals;
    uint32_t rival_count;
    struct hr__board_start *starts; /* the start of each page */
};

struct hr_board {
    void *memory;
    uint64_t bytes;
    uint32_t page_count;
    uint32_t own_page;
    int fd;        /* holds the lock on the own page, so it stays open */
    int listen_fd; /* -1: this process does not serve; guarded by `lock` */
    int bell_fd;   /* wakes the thread after a change of `is_closing` or `is_complete` */
    void (*report)(const char *text);
    bool has_thread;
    struct hr__thread thread;
    atomic_bool is_closing;
    atomic_bool is_complete; /* all processes of the job have joined, so that no other one may join */
    atomic_bool is_orphan;   /* this is a forked child: `memory` is not mapped */
    pthread_mutex_t lock;    /* excludes the thread of the board; held during forks */
    uint64_t left_count;     /* number of entries that were given back so far */
    struct hr_board_entry entries[HR_BOARD_MAX_ENTRIES];
};

static inline struct hr__shared_page *hr__board_page_at(const hr_board *board, uint32_t page) {
    return (struct hr__shared_page *)((unsigned char *)board->memory + (page + UINT64_C(1)) * HR__BOARD_PAGE_BYTES);
}

/* Returns true if the page belongs to a running process other than this one. */
bool hr__board_is_live(const hr_board *board, uint32_t page);

/* ---- join.c ---- */

/* Makes the memory of a board, for processes that inherit its descriptor. The caller owns the descriptor. */
int hr__board_create(const struct hr_board_options *options, int *ret_fd);

/* Finds the memory of the job's board, or makes it; then `listen_fd` is set if this process made it. Sets fd, memory,
 * bytes and page_count. On failure the caller releases what is set. */
int hr__board_join(hr_board *board, const struct hr_board_options *options, int64_t deadline_ns);
/* Sends the memory to a process that is waiting for it. */
void hr__board_serve(const hr_board *board);

/* ---- watch.c ---- */

int hr__board_start_watch(hr_board *board);
void hr__board_end_watch(hr_board *board);
/* Gives up the name of the socket if all processes of the job have joined. */
void hr__board_note_complete(hr_board *board);

/* ---- compare.c ---- */

/* A process whose facts belong to the same epoch as those of an entry. */
struct hr__board_sight {
    const struct hr__shared_entry *shared;
    uint64_t tag;
    struct hr_board_facts facts;
};
/* Returns true if the page has such facts. Whether its process still runs is another question. */
bool hr__board_see(const hr_board_entry *entry, uint32_t page, struct hr__board_sight *ret_sight);

/* Returns the number of the newest epoch of this loader in the page, 0 if it has begun none. */
uint64_t hr__board_newest(const hr_board_entry *entry, uint32_t page);

/* Returns true if the process of a page runs, or ran in this epoch (see hr__board_start). */
bool hr__board_counts(const hr_board_entry *entry, uint32_t page);

/* Returns true if a process that counts is at its END with fewer batches than `steps`. */
bool hr__board_find_end(const hr_board_entry *entry, uint64_t steps, struct hr_board_ended *ret_ended);
/* Returns true if a process that counts has taken more batches than `steps`. */
bool hr__board_find_progress(const hr_board_entry *entry, uint64_t steps, struct hr_board_ended *ret_ended);

#endif
