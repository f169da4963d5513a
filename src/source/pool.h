/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the user that are read with pread: closed when there are too many, and opened again. */
#ifndef HR_SOURCE_POOL_H
#define HR_SOURCE_POOL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "os/os.h"
#include "remote/remote.h"

/*
 * A file is one of the file system, or a remote object (headrace/remote.h), whose kept part is a file. A read of that
 * takes what is kept, or asks the fetcher.
 *
 * A pool has the files of one source. There are no locks, so that a child that is forked at any moment can go on:
 * a file's descriptor and the number of threads that read it are one word, which changes by compare and exchange. What
 * a thread of the parent had in use at the fork stays in use in the child, which only keeps that descriptor open.
 */

struct hr__pool_file {
    char *path;                 /* absolute, or the address of a remote object without its query; owned */
    struct hr__file_info first; /* as it was opened first; of a remote object: size and stamp, see hr__place_look */
    _Atomic uint64_t state;     /* low half: readers; high half: descriptor + 1, or 0 if it is closed */

    /* A remote object; NULL: the file is not one. The file with its kept part may be another one when it is opened
     * again.
     */
    const struct hr__known *remote;
    _Atomic uint64_t kept_device, kept_inode;
    _Atomic uint64_t whole_inode; /* the file with this inode, which is open, has all of the object; 0: not known */
    _Atomic uint32_t read_count;
};

struct hr__pool {
    struct hr__pool_file *files;
    uint32_t count, room;
    _Atomic uint32_t hand; /* where the search for a file to close goes on */
    char *folder;          /* of remote objects; owned; NULL: the pool has no such file */
};

/* Looks at what a path names, through symbolic links. A remote object has its size, and as its time a stamp of its
 * version; its inode and device are 0. The fetcher is asked for one that is not known. With a message. */
int hr__place_look(const char *path, struct hr__file_info *ret_info);
/* Says whether a path names something that is no folder. A remote object exists if the fetcher finds it. */
bool hr__place_exists(const char *path);

int hr__pool_new(struct hr__pool **ret_pool);          /* -ENOMEM */
struct hr__pool *hr__pool_free(struct hr__pool *pool); /* closes all files; NULL is fine; returns NULL */

/* Opens a file and adds it. A relative path is taken from the working directory of now. Negative errno with a message.
 */
int hr__pool_add(struct hr__pool *pool, const char *path, uint32_t *ret_number);

/* Adds a file that is not opened before it is read, as hr__file_look_through has seen it. The path is absolute, or is
 * taken from the working directory of now. It may be a remote object, as hr__place_look has seen it. */
int hr__pool_add_known(struct hr__pool *pool, const char *path, const struct hr__file_info *info, uint32_t *ret_number);

/* Reads all of `bytes` bytes. -ESTALE: the file was changed or replaced since it was added. Other negative errnos. With
 * a message that names file, offset, and what to do. */
int hr__pool_read(struct hr__pool *pool, uint32_t number, uint64_t at, void *data, size_t bytes);

/* The same of what is needed once: of a remote object, what is not kept already is not kept. */
int hr__pool_read_once(struct hr__pool *pool, uint32_t number, uint64_t at, void *data, size_t bytes);

/* The same, to several places: see hr__read_parts. */
int hr__pool_read_parts(struct hr__pool *pool, uint32_t number, uint64_t at, struct hr__read_part *places,
                        size_t count);

/* The same, if no disk is needed for it. -EAGAIN: it is, or the file cannot be read now for another reason; there is no
 * message. */
int hr__pool_read_now(struct hr__pool *pool, uint32_t number, uint64_t at, void *data, size_t bytes);

/* Asks the kernel, or the fetcher, to read a part of a file ahead. Best effort. announcer: it will only be read later:
 * what is not kept of a remote object is added to what it announces; NULL: it is read now. */
void hr__pool_ask(struct hr__pool *pool, uint32_t number, uint64_t at, uint64_t bytes, hr_announcer *announcer);

static inline const struct hr__pool_file *hr__pool_file(const struct hr__pool *pool, uint32_t number) {
    return &pool->files[number];
}

#endif
