/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CACHE_H
#define HEADRACE_CACHE_H

#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Named data that is built once per machine and mapped by all jobs of a user.
 *
 * The cache is a folder. An object in it has a name and a version; its contents are one file. Of the processes that ask
 * for an object that does not exist, one becomes the builder, and the others wait. A builder that dies hands over to
 * one of those that wait. What was published is never changed: a process that has mapped it keeps it, whatever is
 * removed or replaced.
 *
 *     hr_cache_open(NULL, &cache);
 *     hr_cache_ask(cache, &request, &ticket);
 *     while ((r = hr_cache_wait(ticket, deadline_ns, &cached, &build)) == -ETIMEDOUT) ...;
 *     if (r == HR_CACHE_BUILD) {                      this process has to build it
 *         hr_cache_build_reserve(build, ...), hr_cache_build_write(build, ...), hr_cache_build_finish(build, ...)
 *     }
 *     hr_cached_look(cached, &info);                  info.data, info.bytes
 *
 * Threads: a cache and its functions can be used by several threads; a ticket, a build and a cached object each by one
 * thread at a time. Forks: a child keeps what is mapped, and the claims of its parent count until the child ends, too.
 * A build belongs to the process that began it; in a forked child its functions return HR_E_STATE.
 */

typedef struct hr_cache hr_cache;
typedef struct hr_cache_ticket hr_cache_ticket; /* of a process that has asked for an object */
typedef struct hr_cache_build hr_cache_build;   /* of the process that builds one */
typedef struct hr_cached hr_cached;             /* an object that is attached */

enum {
    HR_CACHE_NAME_BYTES = 200,    /* the maximum of a name */
    HR_CACHE_VERSION_BYTES = 200, /* the maximum of a version */
    HR_CACHE_ID_CHARACTERS = 17,  /* an id, with the 0 at its end */
    HR_CACHE_MAX_DEATHS = 3,      /* after so many dead builders in a row, those that wait get an error */
    HR_CACHE_COMMAND_BYTES = 256,
    HR_CACHE_CHUNK_BYTES = 32 << 20, /* chunk size of objects that are written without chunks of their own */
};

/* How long an object stays. */
enum hr_cache_keep {
    HR_CACHE_KEEP_JOB = 0,  /* the object stays until the last process that has it ends or detaches */
    HR_CACHE_KEEP_BOOT = 1, /* it stays until the machine is started again, or it is removed */
    HR_CACHE_KEEP_DISK = 2  /* it stays on a disk until it is removed */
};

/* ---- the cache ---- */

/* Opens the cache in folder `root` (copied), and makes the folder if it does not exist. All data is then in this
 * folder. NULL or "": $HEADRACE_CACHE if it is set, else /dev/shm/headrace-UID, else headrace-UID in $TMPDIR or /tmp;
 * data that does not fit into memory is then in $XDG_CACHE_HOME/headrace or ~/.cache/headrace. The path of such a
 * folder is the same as NULL. Owned by the caller.
 * -ENOTDIR: it is a file. -EPERM: it belongs to another user, or others may write to it. -EOPNOTSUPP: the file system
 * is a network file system or FUSE. Other errno. */
HR_API int hr_cache_open(const char *root, hr_cache **ret_cache);

/* Returns 1 if the cache that hr_cache_open would open exists, else 0. It makes nothing: for programs that only look.
 */
HR_API int hr_cache_exists(const char *root);

/* Closes a cache. Its tickets, builds and cached objects remain valid. NULL is fine; returns NULL. */
HR_API hr_cache *hr_cache_close(hr_cache *cache);

/* The folder of names and locks. Borrowed. */
HR_API const char *hr_cache_root(const hr_cache *cache);

/* ---- objects that exist ---- */

/* Attaches an object: maps it, and claims it, so that nothing removes it. It reads the record of the object, not its
 * data. -ENOENT: it does not exist. HR_E_CORRUPT: it is truncated or its record is damaged. HR_E_VERSION. -EMFILE and
 * other errno. */
HR_API int hr_cache_attach(hr_cache *cache, const char *name, const char *version, hr_cached **ret_cached);

/* Attaches exactly the object that has this id, also if its name has been removed or replaced while another process has
 * it. This is how a handle in a message is opened. Errors as hr_cache_attach. */
HR_API int hr_cache_attach_id(hr_cache *cache, const char *name, const char *version, const char *id,
                              hr_cached **ret_cached);

/* Unmaps it and ends the claim. An object with HR_CACHE_KEEP_JOB, or one that was removed, is deleted with its last
 * claim. NULL is fine; returns NULL. */
HR_API hr_cached *hr_cached_detach(hr_cached *cached);

struct hr_cached_info {
    const char *name, *version;
    const char *id;      /* 16 hexadecimal digits, another one for each object that was ever built */
    const char *format;  /* how the contents are to be read: a word that the builder gave */
    const char *stamp;   /* the stamp of the request with which it was built; "": it had no stamp */
    const char *meta;    /* text of the builder */
    const char *path;    /* path of its file when it was attached */
    const char *place;   /* why it is where it is */
    const char *command; /* command line of the builder */
    uint32_t keep;       /* enum hr_cache_keep */
    uint32_t pid;        /* the builder's process */
    int64_t built_ns;    /* when it was finished: CLOCK_REALTIME */
    uint64_t bytes, chunk_bytes;
    const void *data; /* mapped copy on write: a write changes only this process's copy. NULL if it is empty */
    int fd;           /* borrowed, to read */
    int is_private;   /* 1: the folder of the cache was removed while it was built; only this process has it */
};
/* All pointers are borrowed from `cached`. */
HR_API void hr_cached_look(const hr_cached *cached, struct hr_cached_info *ret_info);

/* Reads all of the data and compares each chunk with its checksum. HR_E_CORRUPT names the first that differs. */
HR_API int hr_cached_verify(const hr_cached *cached);

/* ---- asking for an object, and waiting for its builder ---- */

struct hr_cache_request {
    const char *name, *version; /* see hr_cache_check_name */
    const char *stamp;  /* NULL: what is published is taken. Otherwise an object with another stamp is built again */
    const char *format; /* "" or a word */
    uint32_t keep;      /* enum hr_cache_keep */
    uint32_t only_try;  /* 1: hr_cache_wait returns -EBUSY instead of waiting for another builder */
};

/* Asks for an object. The request is copied. -EINVAL: the name, version, format or keep is invalid. An errno. Owned by
 * the caller. */
HR_API int hr_cache_ask(hr_cache *cache, const struct hr_cache_request *request, hr_cache_ticket **ret_ticket);
HR_API hr_cache_ticket *hr_cache_ticket_free(hr_cache_ticket *ticket); /* NULL is fine; returns NULL */

/* The ends of a wait. */
enum { HR_CACHE_ATTACHED = 0, HR_CACHE_BUILD = 1 };
/* Waits until the object exists, or until this process has to build it. Returns HR_CACHE_ATTACHED with `*ret_cached`,
 * or HR_CACHE_BUILD with `*ret_build`; both are owned by the caller. -ETIMEDOUT: neither yet; call again. -EBUSY: see
 * only_try. HR_E_BUILD_FAILED: the builder that this ticket has waited for failed; hr_cache_ticket_failure has its
 * text. HR_E_BUILDERS_DIED: as many builders in a row as HR_CACHE_MAX_DEATHS died. -EDEADLK: the builder waits for an
 * object that this thread builds. Other errors as hr_cache_attach. */
HR_API int hr_cache_wait(hr_cache_ticket *ticket, int64_t deadline_ns, hr_cached **ret_cached,
                         hr_cache_build **ret_build);

/* The text that the failed builder gave, `*ret_count` bytes. Borrowed from the ticket. NULL: it gave no text. */
HR_API const void *hr_cache_ticket_failure(const hr_cache_ticket *ticket, uint64_t *ret_count);

/* The builder that a ticket waits for. */
struct hr_cache_builder {
    uint32_t is_building; /* 0: no process builds it; the other fields are of the last builder */
    uint32_t pid;
    uint32_t is_visible; /* 1: this process sees the same pids, so that `pid` means something here */
    uint32_t is_stopped; /* 1: it is stopped (SIGSTOP, or a debugger) */
    uint32_t deaths;     /* builders that have died in a row */
    int64_t since_ns;    /* CLOCK_MONOTONIC */
    uint64_t generation;
    uint64_t done, total; /* what the builder reports; total 0: it has not reported yet */
    char command[HR_CACHE_COMMAND_BYTES];
};
HR_API void hr_cache_ticket_look(hr_cache_ticket *ticket, struct hr_cache_builder *ret_builder);

/* ---- building ---- */

/* Decides where the data will be, and reserves `bytes` bytes of it: memory is committed here, so that no later write
 * can fail or kill the process. Chunks that an earlier builder of the same stamp, size and meta had finished are kept
 * if their checksums match. `meta` is copied; `chunk_bytes` is the size of all chunks except the last one, 0 means
 * HR_CACHE_CHUNK_BYTES. -ENOSPC and -ENOMEM say what is missing where. */
HR_API int hr_cache_build_reserve(hr_cache_build *build, uint64_t bytes, uint64_t chunk_bytes, const char *meta);

/* The other way: decides where the data will be, `bytes_hint` bytes or fewer (0: not known), and returns the path of
 * the file that the caller makes and fills. Borrowed from the build. Errors as hr_cache_build_reserve. */
HR_API int hr_cache_build_file(hr_cache_build *build, uint64_t bytes_hint, const char **ret_path);

/* After hr_cache_build_reserve: writes to the data. Any number of threads may write at the same time. -ERANGE. */
HR_API int hr_cache_build_write(hr_cache_build *build, uint64_t offset, const void *data, uint64_t bytes);
/* Notes that a chunk is complete: a later builder keeps it if this process dies. -ERANGE. */
HR_API int hr_cache_build_mark(hr_cache_build *build, uint64_t chunk);
HR_API uint64_t hr_cache_build_chunk_count(const hr_cache_build *build);
HR_API int hr_cache_build_has(const hr_cache_build *build, uint64_t chunk); /* 1: it is complete; 0 */

/* Says how far the build is, for those that wait. The unit is the caller's. */
HR_API void hr_cache_build_progress(hr_cache_build *build, uint64_t done, uint64_t total);

/* Publishes the data, and attaches it. `meta` replaces that of hr_cache_build_reserve if it is not NULL. The build is
 * freed, but not after a failure: then the caller still has to end it. */
HR_API int hr_cache_build_finish(hr_cache_build *build, const char *meta, hr_cached **ret_cached);

/* Ends a build that failed. Those that wait for it get `text` (`count` bytes, copied); a later call builds again, and
 * keeps the finished chunks if `keeps_chunks` is 1. Returns NULL. */
HR_API hr_cache_build *hr_cache_build_fail(hr_cache_build *build, const void *text, uint64_t count, int keeps_chunks);

/* Ends a build as the death of this process would: another process builds it, and keeps the finished chunks. NULL is
 * fine; returns NULL. */
HR_API hr_cache_build *hr_cache_build_abandon(hr_cache_build *build);

/* ---- what is there ---- */

enum hr_cache_state {
    HR_CACHE_READY = 1,
    HR_CACHE_BUILDING = 2,
    HR_CACHE_ORPHAN = 3,  /* the builder died; the next call continues the build */
    HR_CACHE_REMOVED = 4, /* it was removed or replaced, and some processes still have it */
    HR_CACHE_DAMAGED = 5  /* the record cannot be read, or the file is truncated */
};
struct hr_cache_entry {
    enum hr_cache_state state;
    struct hr_cached_info info; /* data NULL, fd -1. A build has name, version, keep, bytes and path, and "" else */
    uint32_t claim_count;       /* number of processes that have it; forked children count with their parent */
    int64_t attached_ns;        /* when it was last attached: CLOCK_REALTIME */
    struct hr_cache_builder builder; /* the builder of an object that is being built */
};
/* Calls `visit` for each object and each build, until it returns something else than 0. The entry is borrowed. Returns
 * that, or a negative errno. */
HR_API int hr_cache_list(hr_cache *cache, int (*visit)(void *context, const struct hr_cache_entry *entry),
                         void *context);

struct hr_cache_claim {
    uint32_t pid, is_visible; /* as in struct hr_cache_builder */
    int64_t since_ns;         /* CLOCK_REALTIME */
    char command[HR_CACHE_COMMAND_BYTES];
};
/* Calls `visit` for each process that has the object with this id. Returns as hr_cache_list. */
HR_API int hr_cache_claims(hr_cache *cache, const char *id,
                           int (*visit)(void *context, const struct hr_cache_claim *claim), void *context);

/* Removes an object and its unfinished builds, and clears the count of dead builders. -ENOENT: it does not exist.
 * -EBUSY: processes have it, or one builds it. `force` 1: the name becomes free all the same; processes that have it
 * keep it, and it is deleted with the last of them. */
HR_API int hr_cache_remove(hr_cache *cache, const char *name, const char *version, int force);

struct hr_cache_collected {
    uint64_t objects, bytes; /* deleted */
    uint64_t bytes_left;     /* bytes of all objects that remain */
};
/* Deletes what no process has or builds: removed objects, unfinished builds, objects with HR_CACHE_KEEP_JOB; also
 * objects that were not attached for `older_ns` (negative: regardless of their age), and then the objects that were
 * attached longest ago until at most `quota_bytes` (UINT64_MAX: no quota) remain. What a process has stays. `visit`
 * (may be NULL) is called with each object before it is deleted; a result other than 0 keeps it. */
HR_API int hr_cache_collect(hr_cache *cache, int64_t older_ns, uint64_t quota_bytes,
                            int (*visit)(void *context, const struct hr_cache_entry *entry), void *context,
                            struct hr_cache_collected *ret_collected);

/* Checks a name and a version. -EINVAL with the reason: empty, too long, a control character, a slash, a dot at the
 * start. */
HR_API int hr_cache_check_name(const char *name, const char *version);

#ifdef __cplusplus
}
#endif
#endif
