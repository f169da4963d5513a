/* SPDX-License-Identifier: Apache-2.0 */
/* The files of kept objects: shared by kept.c, remove.c and the fetcher. */
#ifndef HR_REMOTE_KEPT_H
#define HR_REMOTE_KEPT_H

#include <headrace/face/kept.h>

#include "os/os.h"

/* A file, and its name. */
struct hr__kept_file {
    const char *name, *path; /* borrowed */
    struct hr__file_info info;
};

/* Calls `visit` for each file that has the name of an object, until it returns something else than 0. Returns that, or
 * a negative errno without a message. */
int hr__kept_visit(const char *folder, int (*visit)(void *context, const struct hr__kept_file *file), void *context);

/* Looks at one object. -ENOENT without a message. */
int hr__kept_look(const char *folder, const char *name, struct hr_kept *ret_kept);

struct hr__kept_row {
    char name[HR_KEPT_NAME_BYTES];
    uint64_t disk_bytes;
    int64_t used_ns;
};
/* Lists all files, the longest unused first. The caller frees `ret_rows` by hr__free. -ENOMEM and others, without a
 * message. */
int hr__kept_by_age(const char *folder, struct hr__kept_row **ret_rows, size_t *ret_count, uint64_t *ret_disk_bytes);

/* Removes the file of a name. The caller is the fetcher of the folder, or holds its lock. -EBUSY: a process has it
 * open, and `force` is false. -ENOENT. Without a message. */
int hr__kept_remove_file(const char *folder, const char *name, bool force, uint64_t *ret_disk_bytes);

#endif
