/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_CACHE_SHARED_H
#define HR_CACHE_SHARED_H

#include <headrace/face/cache_shared.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cache/cache.h"

/*
 * The file of a shared array.
 *
 *     head      struct hr__shared_head, 4 KiB
 *     locks     64 bytes each: HR_SHARED_STRIPES stripes, and the lock of the whole array
 *     members   64 bytes each: who has which byte
 *     data      the elements in C order
 *
 * The word of a lock is 0, or names its holder: the slot of a member, the generation of the slot, and a bit that says
 * that another one waits (on the word, as a futex).
 *
 * A member is an open handle of a process. It has a byte lock on the file, at BYTES_AT + slot, for an open file
 * description that only a mapping of its process keeps alive: children do not have the mapping, a program that closes
 * all its descriptors does not end it, and the kernel ends it with the process, however it ends. A waiter that finds
 * the byte of a holder unlocked takes the lock over by compare-and-swap from the word that it has judged. The
 * generation goes up with each member that gets a slot, and a slot that a word names is not given out, so the word of a
 * dead holder never becomes that of a living one.
 *
 * Until rows are locked for the first time, the lock of the whole array is one word, WHOLE. Who locks rows first takes
 * WHOLE, sets all stripes and then is_striped, and from then on the whole array is all stripes. Who has taken WHOLE
 * looks at is_striped again. If WHOLE was that of a dead holder, each stripe becomes one of the same dead holder, so
 * that each next holder of rows is told.
 *
 * What the death of a process means: in front of the word's change, nothing; behind it, a dead holder; between the
 * release of a word and the wake-up, a wait that is HOLDER_POLL_NS longer.
 */

enum {
    SHARED_VERSION = 1,
    SHARED_HEAD = 4096,
    SHARED_ALIGN = 64 << 10,
    SLOT_BITS = 10,
    GENERATION_BITS = 20,
    WHOLE = HR_SHARED_STRIPES,
    LOCK_COUNT = WHOLE + 1
};
#define HR__SHARED_MAGIC UINT64_C(0x3152414853524448) /* "HDRSHAR1" */
#define HR__SHARED_BYTES_AT (UINT64_C(1) << 62)       /* behind the end of any file */
#define HR__SHARED_MAX_BYTES (UINT64_C(1) << 56)
#define SHARED_WAITERS (UINT32_C(1) << 31)

struct hr__shared_lock {
    _Atomic uint32_t word;
    uint32_t spare[15]; /* a cache line for each */
};

/* Written by the process that has the slot, before any word names it. */
struct hr__shared_member {
    _Atomic uint32_t generation, pid;
    _Atomic uint64_t pid_namespace;
    char command[48];
};

struct hr__shared_head {
    uint64_t magic;
    uint32_t version, head_bytes;
    struct hr_shared_plan plan;
    uint32_t stripe_count;
    uint64_t locks_at, members_at, data_at, bytes;
    _Atomic uint32_t next_slot;  /* where the next member looks for a free slot */
    _Atomic uint32_t is_striped; /* rows were locked once; the holder of WHOLE sets it */
};

enum hr__shared_kind { SHARED_INT32, SHARED_INT64, SHARED_FLOAT32, SHARED_FLOAT64, SHARED_OTHER };

struct hr_shared {
    hr_shared *next; /* the next one in the table of open handles */
    const hr_cached *cached;
    unsigned char *file; /* the mapped file */
    uint64_t file_bytes;
    struct hr__shared_head *head;
    struct hr__shared_lock *locks;
    struct hr__shared_member *members;
    enum hr__shared_kind kind;
    struct hr_shared_info info; /* copied, because other processes can write to the head */
    uint64_t device, inode;
    int fd;                               /* to look at the byte locks of members; never locked itself */
    pthread_mutex_t lock;                 /* excludes other threads while this process becomes a member */
    _Atomic uint32_t own;                 /* the word of this process; 0: not a member yet, or a forked child */
    void *byte_page;                      /* the mapping that keeps the member's byte lock */
    _Atomic uint32_t held;                /* locks of stripes that this process has */
    _Atomic uint64_t threads[LOCK_COUNT]; /* the threads of this process that have these locks */
    _Atomic uint64_t holds[LOCK_COUNT];   /* how many holds that begin with this lock have ended */
    _Atomic uint32_t dead[LOCK_COUNT];    /* 0, or the word of the dead holder that this process has it from */
};

/* ---- shared.c ---- */

/* Reads what an array is from an open file. Errors as hr_shared_open. */
int hr__shared_read_head(int fd, const char *path, struct hr_shared_info *ret_info);

/* ---- shared_members.c ---- */

static inline uint32_t hr__shared_owner(uint32_t word) {
    return word & ~SHARED_WAITERS;
}

/* Enters an open handle into the table of those that a fork concerns, and takes it out; that ends its membership. */
void hr__shared_enter(hr_shared *shared);
void hr__shared_leave(hr_shared *shared);
/* Makes this process a member if it is not one yet. -EUSERS and other errno. */
int hr__shared_join(hr_shared *shared);
/* Returns true if the process that a word names has ended for certain. */
bool hr__shared_has_ended(const hr_shared *shared, uint32_t word);

struct hr__shared_holder {
    uint32_t pid; /* 0: not known */
    bool is_visible;
    char command[sizeof((struct hr__shared_member *)NULL)->command];
};
void hr__shared_describe(const hr_shared *shared, uint32_t word, struct hr__shared_holder *ret_holder);

/* ---- shared_values.c ---- */

enum hr__shared_kind hr__shared_kind(const char *dtype);

#endif
