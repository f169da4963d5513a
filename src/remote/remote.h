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
/* An address without user, password, query and fragment. */
void hr__shown_url(const char *url, char *ret_shown, size_t room);

/* ---- folder.c ---- */

/* Does what hr_remote_folder does. */
int hr__remote_folder(char ret_path[HR__PATH_BYTES]);

/* ---- connect.c: the connection of a thread, and the start of a fetcher ---- */

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

/* Gets a range of an object. If the fetcher sends bytes, they are written to the places, in order, and 1 is returned;
 * 0: they are in the file of the object. Changes `places`. With a message. */
int hr__remote_get(const struct hr__known *known, uint64_t at, uint64_t bytes, bool is_direct,
                   struct hr__read_part *places, size_t count);
/* Says that a range is read soon. Best effort. */
void hr__remote_ask(const struct hr__known *known, uint64_t at, uint64_t bytes);

#endif
