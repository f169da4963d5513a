/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_CACHE_CACHE_H
#define HR_CACHE_CACHE_H

#include <headrace/face/cache.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "cache/record.h"
#include "os/os.h"

/*
 * The folder of a cache. A key is the readable part of a name and a hash of name and version.
 *
 *     ROOT/v1/objects/KEY/{data,sums,info}        an object: its bytes, the checksum of each chunk, its record
 *             partial/KEY.GENERATION/{...}        the same, while it is built
 *             trash/KEY~ID/{...}                  removed or replaced, until no process has it
 *             locks/KEY.{lock,state,wait,failed}  the builder's lock, what it says, those that wait, its traceback
 *             claims/ID.PID.NUMBER                one for each process that has an object: who and since when
 *
 *                 first caller takes the lock           data, sums, info; rename
 *      ABSENT ------------------------------> BUILDING ------------------------------> READY
 *        ^                                    |      | the process dies                  |
 *        |  those that wait get the text      |      v                                   |
 *        +------------------------------- FAILED   ORPHAN --next caller: BUILDING        |
 *        +-------------------------- rename to trash: removed, replaced, collected ------+
 *
 * There may be a second folder on a disk, with objects, partial and trash only. An object is in one of the two.
 *
 * Locks, and what they die with:
 *   KEY.lock   fcntl: its process, also if forked children live. It makes a process the builder. Closing any descriptor
 *              of the file ends it, and it does not exclude threads, so lock.c keeps a table of the process's locks.
 *   data       flock, shared: the last process that inherited it. It is the claim. An exclusive one proves that no
 *              process has the object; only then is it deleted.
 *   KEY.wait   flock, shared: one for each process that waits.
 *   locks/quota.lock  fcntl: the process that collects.
 */

enum { KEY_BYTES = 64, STORES = 2, POLL_NS = 20000000, RETRIES = 1000, RETRY_NS = 1000000 };

/* One of the folders that hold data. */
struct hr__store {
    char path[HR__PATH_BYTES]; /* ROOT/v1 */
    bool is_memory;
};

struct hr_cache {
    _Atomic uint32_t owners; /* the caller, tickets, builds and cached objects */
    char root[HR__PATH_BYTES];
    uint64_t root_device, root_inode;
    struct hr__store stores[STORES]; /* the first also has the locks and claims */
    uint32_t store_count;
    bool is_given; /* the caller chose the root, so all data is there */
};

/* ---- root.c ---- */

hr_cache *hr__cache_ref(hr_cache *cache);
/* Makes the second folder if the cache has one that does not exist yet. */
int hr__cache_make_disk(hr_cache *cache);
/* Returns true if the folder of the root is still the one that was opened. */
bool hr__cache_is_rooted(const hr_cache *cache);

/* ---- key.c ---- */

void hr__cache_key(const char *name, const char *version, char ret_key[KEY_BYTES]);
void hr__cache_draw_id(char ret_id[HR_CACHE_ID_CHARACTERS]);

/* ---- place.c ---- */

/* Chooses the folder for `bytes` bytes, and says why in `ret_why`, which has HR__WHY_BYTES. -ENOSPC. */
enum { HR__WHY_BYTES = 512 };
int hr__cache_choose(hr_cache *cache, const char *name, uint64_t bytes, uint32_t keep, uint32_t *ret_store,
                     char *ret_why);
/* Commits a file's bytes. In memory it first looks at the limits of the cgroups, because the kernel kills a process
 * that passes them. */
int hr__cache_commit(int fd, bool is_memory, uint64_t bytes);
int hr__cache_commit_more(int fd, bool is_memory, uint64_t offset, uint64_t bytes);
/* Commits a part of a file that is mapped as a whole at `address`, with huge pages while `*wants_huge`. */
int hr__cache_commit_mapped(int fd, void *address, bool is_memory, uint64_t offset, uint64_t bytes, bool *wants_huge);
/* How many bytes of data the first folder has room for: of the limits in hr__cache_choose, the smallest. */
int hr__cache_memory_left(const hr_cache *cache, uint64_t *ret_bytes);

/* ---- lock.c ---- */

/* The state of a build, in KEY.state. The builder is the one writer; if it dies, `phase` stays BUILDING, which is how
 * the next builder knows of the death. */
enum { PHASE_IDLE = 0, PHASE_BUILDING = 1 };
struct hr__build_state {
    uint64_t magic;
    uint32_t version, phase;
    uint64_t generation;        /* number of the newest build */
    uint64_t failed_generation; /* number of the newest build that failed; its text is in KEY.failed */
    uint32_t deaths, pid;
    uint64_t pid_namespace;
    int64_t since_ns;
    uint64_t done, total;
    char waits_for[KEY_BYTES]; /* the key of the object that the builder waits for; "": none */
    char command[HR_CACHE_COMMAND_BYTES];
};

struct hr__held_lock {
    struct hr__held_lock *next;
    uint64_t device, inode;
    pthread_t thread;
    uint32_t pid;
    int fd, state_fd;
    int *data_fd; /* the data of the build, which forked children close, too; NULL: the build has no data yet */
    struct hr__build_state state;
    char key[KEY_BYTES];
};

/* Takes a builder's lock. -EAGAIN: another process or thread has it. -EDEADLK: this thread has it. */
int hr__lock_take(hr_cache *cache, const char *key, struct hr__held_lock **ret_lock);
/* Ends it. NULL is fine. */
void hr__lock_release(struct hr__held_lock *lock);
int hr__lock_write_state(struct hr__held_lock *lock);
/* Returns true if this process or another one has the lock. */
bool hr__lock_is_taken(hr_cache *cache, const char *key);
void hr__state_read(const hr_cache *cache, const char *key, struct hr__build_state *ret_state);
/* Notes in the state of each lock of this thread that it waits for `key` ("": for none any more). */
void hr__lock_note_wait(const char *key);
/* Returns the key of a lock of this thread that a chain of builders, from that of `key` on, waits for; else NULL. */
const char *hr__lock_find_cycle(const hr_cache *cache, const char *key);
void hr__builder_describe(const struct hr__build_state *state, bool is_building, struct hr_cache_builder *ret_builder);

/* ---- attach.c ---- */

struct hr_cached {
    hr_cache *cache;
    struct hr__cache_record record;
    char key[KEY_BYTES];
    char path[HR__PATH_BYTES]; /* path of the data when it was attached */
    char claim[HR__PATH_BYTES];
    void *data, *claim_page; /* the page keeps the lock of the claim; NULL: of arrays that are only read */
    int fd, claim_fd;
    uint32_t pid; /* the process that attached it: a forked child removes nothing */
    uint32_t store;
    bool is_private;
};

int hr__attach(hr_cache *cache, const char *name, const char *version, const char *id, hr_cached **ret_cached);
/* Makes a cached object of data that this process has just published. `fd` and `record` are taken over on success. */
int hr__attach_own(hr_cache *cache, const char *key, uint32_t store, int fd, struct hr__cache_record *record,
                   bool is_private, hr_cached **ret_cached);
/* Deletes an object or a part of one in `folder` if no process has it, through the trash of its store. 1: deleted.
 * 0: a process has it. `trash` is its path there; may be `folder` itself. */
int hr__delete_unclaimed(const char *folder, const char *trash);
/* Moves an object in `folder` into the trash of its store, where it is deleted with its last claim. 0 also if there is
 * none. `ret_is_deleted` may be NULL. */
int hr__retire(hr_cache *cache, uint32_t store, const char *key, const char *folder, bool *ret_is_deleted);

/* ---- list.c ---- */

/* Removes what processes that have ended left in the folder of claims. */
void hr__claims_sweep(hr_cache *cache);

/* ---- build.c, reserve.c ---- */

struct hr_cache_build {
    hr_cache *cache;
    struct hr__held_lock *lock;
    struct hr__cache_record record;
    char key[KEY_BYTES];
    char folder[HR__PATH_BYTES]; /* "": not chosen yet */
    char data_path[HR__PATH_BYTES];
    uint32_t store, pid;
    int fd, sums_fd; /* -1: hr_cache_build_file, or not reserved */
    uint64_t *sums;  /* the checksum of each chunk; 0: the chunk is not complete */
    uint64_t chunk_count;
};

int hr__build_new(hr_cache *cache, const char *key, struct hr__held_lock *lock, const struct hr__cache_record *plan,
                  hr_cache_build **ret_build);
/* Computes the checksum of a part of a file, never 0. -EIO: the file is shorter. */
int hr__sum(int fd, uint64_t offset, uint64_t bytes, uint64_t *ret_sum);
uint64_t hr__chunk_end(const struct hr__cache_record *record, uint64_t chunk);
uint64_t hr__count_chunks(uint64_t bytes, uint64_t chunk_bytes);
/* Moves the unfinished builds of a key to the trash, where each is deleted if no process has it; the caller has the
 * builder's lock. */
void hr__partials_delete(hr_cache *cache, const char *key);
/* Finds the newest unfinished build of a key. -ENOENT. */
int hr__partial_find(hr_cache *cache, const char *key, uint32_t *ret_store, char *ret_folder);

#endif
