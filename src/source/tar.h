/* SPDX-License-Identifier: Apache-2.0 */
/* Tar files that are open: shared by the files of src/source. */
#ifndef HR_SOURCE_TAR_H
#define HR_SOURCE_TAR_H

#include <headrace/tar.h>

#include "pool.h"
#include "tar_header.h"

/* The place of a name among the fields that are wanted. */
struct hr__tar_want {
    uint32_t field; /* HR__TAR_UNWANTED: it is not wanted */
    uint32_t turn;  /* among the alternatives of that field: the lowest is taken */
};
#define HR__TAR_UNWANTED UINT32_MAX

struct hr_tar {
    const hr_index *index;
    struct hr__pool *pool;      /* file i of the index is number i */
    size_t field_count;         /* 0: all members */
    struct hr__tar_want *wants; /* for each name of the index; NULL: all are wanted */
    uint64_t *selected;         /* the samples that are there, by their numbers in the index; NULL: all */
    uint64_t sample_count, missing_count, repeated_count;
};

/* The name of an entry, by its number in the index. Returns false if the index is damaged. */
static inline bool hr__tar_name(const struct hr_index_file *file, uint32_t field, uint64_t *ret_name) {
    *ret_name = file->first_name + field;
    return field < file->name_count;
}

/* ---- tar.c ---- */

/* Reads an entry, which has to lie within its file. With a message. */
int hr__tar_entry(const hr_tar *tar, const struct hr_index_file *file, uint64_t number,
                  struct hr_tar_member *ret_member);

/* ---- tar_fields.c ---- */

/* Reads the wanted fields of the options, and finds the samples that have them. With a message. */
int hr__tar_select(hr_tar *tar, const struct hr_tar_options *options);

#endif
