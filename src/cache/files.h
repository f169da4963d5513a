/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_CACHE_FILES_H
#define HR_CACHE_FILES_H

#include <headrace/face/cache_files.h>

#include <stdbool.h>
#include <stdint.h>

#include "base/npy.h"

/*
 * An object of array files:
 *
 *     arrays    each at a multiple of 64
 *     entries   struct hr__files_entry each, sorted by stem, then by member
 *     shapes    8 bytes for each dimension
 *     texts     stems, members and dtypes
 *     tail      struct hr__files_tail; the last bytes of the object
 */

enum { FILES_ALIGN = 64 };
#define HR__FILES_MAGIC UINT64_C(0x31454c4946435248) /* "HRCFILE1" */

struct hr__files_entry {
    uint64_t data_at, bytes;
    uint64_t shape_at;                     /* number of the first dimension among the shapes */
    uint64_t stem_at, member_at, dtype_at; /* within the texts */
    uint32_t stem_bytes, member_bytes, dtype_bytes;
    uint16_t dimension_count;
    uint8_t is_member, is_fortran;
};

struct hr__files_tail {
    uint64_t magic, count, entries_at, shapes_at, shape_count, texts_at, text_bytes;
};

/* ---- zip.c: the members of a .npz file ---- */

struct hr__zip_member {
    char *name;                            /* owned by the list, without ".npy" */
    uint64_t data_at, packed_bytes, bytes; /* bytes: unpacked */
    uint32_t crc;
    bool is_deflated;
};
struct hr__zip_list {
    struct hr__zip_member *members;
    size_t count;
};
int hr__zip_read(int fd, uint64_t file_bytes, const char *path, struct hr__zip_list *ret_list); /* -EINVAL, -ENOMEM */
void hr__zip_free(struct hr__zip_list *list);

/* ---- inflate.c ---- */

/* Unpacks a deflated range of a file, and calls `write` with the bytes in order, until it returns something else than
 * 0. Returns that; 0 at the end; -EINVAL: the data is damaged; -ENOMEM. */
int hr__inflate(int fd, uint64_t at, uint64_t packed_bytes,
                int (*write)(void *context, const unsigned char *bytes, uint64_t count), void *context);

/* ---- plan.c ---- */

struct hr__plan_file {
    char *path, *stem;
    uint64_t bytes, inode;
    int64_t changed_ns;
    bool is_npz;
    struct hr__zip_list members;
    uint64_t first_array, array_count;
};

struct hr__plan_array {
    uint32_t file;
    const struct hr__zip_member *member; /* NULL: of a .npy */
    uint64_t source_at; /* offset of the data in the file, or in the unpacked bytes of a deflated member */
    uint64_t at;        /* offset in the object */
    struct hr__npy npy;
};

struct hr_files_plan {
    struct hr__plan_file *files;
    size_t file_count, file_room;
    struct hr__plan_array *arrays;
    size_t array_count;
    unsigned char *index; /* entries, shapes, texts and tail */
    uint64_t index_at, index_bytes;
    char stamp[64];
};

/* ---- paths.c ---- */

/* Collects the array files that the paths name into plan->files: path and stem only. */
int hr__files_collect(hr_files_plan *plan, const char *const *paths, size_t path_count);

/* ---- index.c ---- */

int hr__files_make_index(hr_files_plan *plan); /* gives each array its place, and makes the index. -ENOMEM */

#endif
