/* SPDX-License-Identifier: Apache-2.0 */
/* Remote objects: shared by the files of src/remote, and what the sources use. */
#ifndef HR_REMOTE_REMOTE_H
#define HR_REMOTE_REMOTE_H

#include <headrace/remote.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/os.h"
#include "protocol.h"

/* ---- known.c: the objects that this process knows ---- */

/* Never changed and never freed, so that threads and forked children can use it without locks. */
struct hr__known {
    struct hr_remote_object object;
    int64_t stamp; /* of the version, not negative: takes the place of the time of a file */
};

/* Says whether a path is a URL of the kinds in <headrace/remote.h>. */
bool hr__remote_is(const char *path);
/* Finds the newest version of an object that is known; NULL: it is not known. */
const struct hr__known *hr__known_find(const char *path);
/* The same; asks the fetcher if it is not known. With a message. */
int hr__known_look(const char *path, const struct hr__known **ret_known);
/* Takes the answer to a call "look" for some URLs, a line for each, which it changes. With a message. */
int hr__known_take(char *answer, const char *const *urls, size_t count, const char *storage);
/* An address without user, password, query and fragment. */
void hr__shown_url(const char *url, char *ret_shown, size_t room);

/* ---- hub.c: addresses of the Hugging Face hub ---- */

/* The parts of an address. kind: with a slash behind it; path: "" for a repository. */
struct hr__hub_url {
    const char *kind, *path;     /* which end with a NUL; equal kinds are equal pointers */
    const char *repo, *revision; /* which do not */
    size_t repo_bytes, revision_bytes;
};
/* Returns false if it is no address of the hub. */
bool hr__hub_split(const char *url, struct hr__hub_url *ret_parts);
bool hr__hub_has_commit(const struct hr__hub_url *parts);
/* Says whether an address names a file, whose address has a commit: without a commit it names the file in all of them,
 * and without a path all files of the repository. */
bool hr__hub_names(const char *url, const char *file);
/* -EINVAL with a message: an address of the hub that has no commit. */
int hr__hub_check(const char *url);

/* ---- folder.c ---- */

/* Does what hr_remote_folder does. */
int hr__remote_folder(char ret_path[HR__PATH_BYTES]);

/* ---- connect.c: connections, and the start of a fetcher ---- */

/* A connection. A forked child sees another pid or count of forks, and makes its own. The program may have closed the
 * descriptor, whose number is then another file's. */
struct hr__link {
    int fd; /* -1: not connected */
    uint32_t pid, fork_count;
    uint64_t device, inode;
};

bool hr__link_is_open(const struct hr__link *link);
/* Connects, if a process is the fetcher; starts none. Negative errno; its message may be left out. */
int hr__link_open(struct hr__link *link);
void hr__link_drop(struct hr__link *link);

/* The connection of this thread. Each has its own, so that no lock is held at a fork and answers need not be sorted. */

/* Sends a message, and starts a fetcher if no process is one. With a message. -EINTR, -ECANCELED. */
int hr__link_send(const struct hr__read_part *parts, size_t count);
/* The same, if this thread is connected and there is room. Best effort. */
void hr__link_try_send(const struct hr__read_part *parts, size_t count);
/* Waits for a message. Returns its size; 0: the fetcher has ended. -EINTR: the check of signals ends the wait.
 * -ECANCELED. */
int hr__link_receive(void *message, size_t room);
/* Waits of this thread end with -ECANCELED when `stop` becomes true. NULL: they do not. Borrowed. */
void hr__link_stop_with(const _Atomic bool *stop);
void hr__link_close(void); /* drops the connection of this thread */

/* ---- reader.c ---- */

/* Takes the bytes of an answer. A negative errno ends the request. */
typedef int (*hr__taker)(void *context, const char *bytes, size_t count);
/* Takes a message of the fetcher, whatever it is. Returns 1: it was the last of the answer to the request with this
 * number; 0: there is more. Negative errno: the request has failed. With a message. */
int hr__answer_take(const char *message, size_t bytes, uint64_t id, hr__taker take, void *context);
/* The places that bytes are written to, one after the other: the context of hr__target_take. */
struct hr__target {
    const struct hr__read_part *places;
    size_t count, place, used; /* used: bytes of places[place] */
    uint64_t taken, wanted;
};
int hr__target_take(void *context, const char *bytes, size_t count);

/* Gets a range of an object. If the fetcher sends bytes, they are written to the places, in order, and 1 is returned;
 * 0: they are in the file of the object. Changes `places`. With a message. */
int hr__remote_get(const struct hr__known *known, uint64_t at, uint64_t bytes, bool is_direct,
                   struct hr__read_part *places, size_t count);
/* Says that a range is read soon. Best effort. */
void hr__remote_ask(const struct hr__known *known, uint64_t at, uint64_t bytes);
/* A request for a range, and its parts as they are sent. */
enum { HR__RANGE_PARTS = 4 };
struct hr__range_request hr__range_request(const struct hr__known *known, enum hr__message_type type, uint64_t id,
                                           struct hr__range range);
void hr__range_parts(struct hr__read_part parts[HR__RANGE_PARTS], struct hr__range_request *request,
                     const struct hr__known *known);

/* ---- announce.c ---- */

/* Adds a range to what the next hr_announcer_send announces. Best effort. */
void hr__announcer_add(hr_announcer *announcer, const struct hr__known *known, uint64_t at, uint64_t bytes);

#endif
