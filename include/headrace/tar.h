/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_TAR_H
#define HEADRACE_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <headrace/index.h>
#include <headrace/remote.h>
#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Samples of tar files, as WebDataset writes them. A sample is a run of neighbouring members of one file whose names
 * have the same key: "a/0001.jpg" and "a/0001.cls" are the fields "jpg" and "cls" of the sample "a/0001". Members that
 * are no files, or have no field, are skipped, and do not end a sample.
 *
 * An index (headrace/index.h) says where the members are. Each read takes the headers of the members along, and
 * compares them with the index: hash, name and size. Files are read with pread, so a file that shrinks is an error; one
 * that was changed or replaced since it was opened is -ESTALE. Of all files of a process about 64 are open at a time,
 * fewer under a low limit of descriptors.
 *
 * Threads: all functions that take a const pointer may run in several threads at the same time. A child that was forked
 * can go on with the hr_tar of its parent.
 */

typedef struct hr_tar hr_tar; /* tar files, and their samples */

struct hr_tar_options {
    const char *const *fields; /* of each sample, in this order; "jpg;png": the first of these that it has. In lower
                                  case. With field_count 0, a sample has all its members. */
    size_t field_count;
    bool skips_missing;  /* samples that lack a field are left out; otherwise they are an error */
    bool skips_repeated; /* samples that have a field twice are left out; otherwise they are an error */
};

/* Opens tar files with their index, which is borrowed and stays until hr_tar_close. -EINVAL: the index is of another
 * number of files, samples lack a field or have one twice (the message says how many, and names the first three),
 * there are too many fields, or without fields a key comes again with other samples between. -ESTALE: a file is not
 * that of the index. Other negative errnos: a file cannot be found. Owned by the caller. */
HR_API int hr_tar_open(const char *const *paths, size_t path_count, const hr_index *index,
                       const struct hr_tar_options *options, hr_tar **ret_tar);
HR_API hr_tar *hr_tar_close(hr_tar *tar); /* NULL is fine; returns NULL */

struct hr_tar_info {
    uint64_t sample_count;
    uint64_t missing_count, repeated_count; /* samples that are left out */
};
HR_API void hr_tar_look(const hr_tar *tar, struct hr_tar_info *ret_info);

/* A member of a sample. */
struct hr_tar_member {
    uint64_t name;    /* of its field: hr_index_name */
    uint64_t head_at; /* offset of its first header */
    uint64_t data_at, bytes;
    uint64_t entry;
};

/* Finds a sample: writes its file, and the first `room` of its members to ret_members. Returns the number of all its
 * members. -ERANGE: there is no such sample. -EINVAL: the index is damaged. */
HR_API int hr_tar_find(const hr_tar *tar, uint64_t sample, struct hr_tar_member *ret_members, size_t room,
                       uint64_t *ret_file);

/* Reads members that hr_tar_find has found in a file, those that are neighbours in one go. The content of member i is
 * written to targets[i], which has room for its bytes; targets NULL: only the headers are read. With ret_key, the key
 * of the sample is written there, as much of it as key_room allows, and its whole length to ret_key_bytes. -ESTALE: the
 * file has changed, or the index is not that of the file. Others: it cannot be read. After a failure the contents of
 * the targets are undefined. */
HR_API int hr_tar_read(const hr_tar *tar, uint64_t file, const struct hr_tar_member *members, size_t count,
                       void *const *targets, char *ret_key, size_t key_room, size_t *ret_key_bytes);

/* Asks the kernel to read these samples, so that a disk can read several at a time. Best effort; numbers that are out
 * of range are ignored. announcer: see headrace/remote.h; NULL: they are read now. */
HR_API void hr_tar_ask(const hr_tar *tar, const int64_t *samples, size_t count, hr_announcer *announcer);

#ifdef __cplusplus
}
#endif
#endif
