/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_REMOTE_H
#define HEADRACE_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Objects behind https and in buckets, which are read as files. Functions that take the path of a file of samples
 * (headrace/tokens.h, tar.h, lines.h, index.h) take a URL, too: "https://host/name", "s3://bucket/name",
 * "gs://bucket/name", "az://container/name", "hf://datasets/OWNER/NAME@COMMIT/name".
 *
 * This library has no network code. One process per folder and user, the fetcher, asks the servers, and keeps what it
 * got in files below that folder, where all processes of the machine read it: each byte is fetched once. The first
 * process that needs a byte starts it; it ends by itself, 10 seconds after its last reader. If it dies, a reader starts
 * the next one.
 *
 * The folder is $HEADRACE_REMOTE, else $HEADRACE_CACHE, else $XDG_CACHE_HOME/headrace or ~/.cache/headrace; if that is
 * on a network file system, headrace-UID in $TMPDIR or /tmp.
 *
 * An object is known by its size and its version (an ETag or a time). A server that gives bytes of another version is
 * -ESTALE. -ENOENT, -EACCES: the server says so. -ETIMEDOUT: it did not answer, or answered with errors, for 120 s.
 *
 * Threads: all functions may run in several threads at the same time. Forked children go on with what they inherit.
 */

/* Sets the command that runs the fetcher: words ended by NULL, which are copied; the folder is added as its last word.
 * Without it, $HEADRACE_FETCHER is the command, split at spaces: "/path/to/python -m headrace._remote". -ENOMEM. */
HR_API int hr_remote_use(const char *const *words);

/* Writes the folder of remote objects, which is made if it does not exist. -EOPNOTSUPP: it is on a network file system.
 * Other negative errnos with a message. */
HR_API int hr_remote_folder(char *ret_path, size_t room);

/* Waits for an answer call this every 0.2 s and after a signal. If it returns a negative number, the wait ends with
 * -EINTR. NULL: nothing is called. */
HR_API void hr_remote_check_signals(int (*check)(void));

/* An object. All texts are borrowed; those of an object that is known stay until the process ends. */
struct hr_remote_object {
    const char *path;    /* the URL without what may be secret: user, password, query. In messages. */
    const char *url;     /* the whole URL */
    const char *storage; /* settings and credentials, in JSON; "{}": none */
    const char *name;    /* of its file in the folder: 32 hexadecimal digits, of path, size and version */
    const char *version;
    uint64_t bytes;
};

/* Writes an address of the hub with the commit that its branch or its tag ("main", if it has none) has now. All files
 * of a dataset should have one commit. Other addresses are copied. storage: see hr_remote_object. -ENOENT, -EACCES: the
 * hub says so. -ENAMETOOLONG: `room` is too small. Others, with a message. */
HR_API int hr_remote_pin(const char *url, const char *storage, char *ret_url, size_t room);
/* Asks for size and version of objects, which are then known. -ENOENT, -EACCES and others, with a message: for the
 * first object that cannot be read. -EINVAL: an address of the hub has no commit; see hr_remote_pin. */
HR_API int hr_remote_look(const char *const *urls, size_t count, const char *storage);
/* Makes an object known, as another process has found it. The texts are copied. -EINVAL, -ENOMEM. */
HR_API int hr_remote_add(const struct hr_remote_object *object);
/* Finds an object that is known, by its path or its URL. -ENOENT without a message. */
HR_API int hr_remote_find(const char *path, struct hr_remote_object *ret_object);

/* Closes the connection of this thread to the fetcher, which is made again when it is needed. */
HR_API void hr_remote_close(void);

/* Tells the fetcher what will be read later, so that it is fetched before it is read. It has a connection of its own,
 * and never waits.
 *
 *     hr_announcer_begin(announcer)                      no fetcher runs: nothing can be announced now
 *     hr_tar_ask(tar, samples, count, announcer)         and the other sources: adds what the samples need
 *     hr_announcer_send(announcer, position)             announces that, in the order in which it will be read
 *     hr_announcer_withdraw(announcer, read, given)      what has a position below `read` was read, or will not be
 *
 * Positions are numbers of the caller's that only grow, such as those of samples, until all is withdrawn (UINT64_MAX).
 * Threads: a call that finds another thread in one does nothing. A forked child has announced nothing yet. */
typedef struct hr_announcer hr_announcer;
/* -ENOMEM. Owned by the caller. */
HR_API int hr_announcer_new(hr_announcer **ret_announcer);
/* Withdraws all. NULL is fine; returns NULL. */
HR_API hr_announcer *hr_announcer_free(hr_announcer *announcer);
/* Connects, if there is no connection. Returns 1: what was announced before is withdrawn, because the connection is a
 * new one; 0: it is the same as before. Negative errno: no fetcher runs, or it was looked for a
 * moment ago. */
HR_API int hr_announcer_begin(hr_announcer *announcer);
/* Announces what was added. Returns how many ranges: 0, if all of it is kept. Negative errno: not all of it was, and it
 * has to be added again; -EAGAIN: the fetcher is busy. */
HR_API int hr_announcer_send(hr_announcer *announcer, uint64_t position);
/* given: what is below it is being read, by readers that ask for it themselves; UINT64_MAX: nothing is. Negative errno:
 * nothing was withdrawn; -EAGAIN: the fetcher is busy. */
HR_API int hr_announcer_withdraw(hr_announcer *announcer, uint64_t read, uint64_t given);

/* Calls the fetcher with a text of at most 60 KiB, and returns its answer, which the caller frees by hr_remote_free.
 * Negative errno with a message. */
HR_API int hr_remote_call(const char *text, size_t bytes, char **ret_answer, size_t *ret_bytes);
HR_API void hr_remote_free(char *answer);

#ifdef __cplusplus
}
#endif
#endif
