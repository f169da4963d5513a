/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CACHE_FILES_H
#define HEADRACE_CACHE_FILES_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/cache.h>
#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Arrays of .npy and .npz files as one object of a cache: one data file and one index, found by the name of the file
 * without its suffix (its stem), and for a .npz also by the name of the member.
 *
 * A plan reads the headers of all files, so that everything that is wrong is known before a byte is copied. Threads: a
 * plan is used by one thread at a time; hr_files_fill starts its own.
 */

typedef struct hr_files_plan hr_files_plan; /* what is to be copied */

/* Reads the headers of the files that `paths` name: files, folders (all .npy and .npz files in them and below), or
 * patterns (*, ?, [...]). -ENOENT: a path or pattern names no such file. -EINVAL: a file is not an array file, is
 * truncated, has objects or records, or is compressed in an unknown way; -EEXIST: two files have the same stem.
 * Messages name the file. Owned by the caller. */
HR_API int hr_files_plan_new(const char *const *paths, size_t path_count, hr_files_plan **ret_plan);
HR_API hr_files_plan *hr_files_plan_free(hr_files_plan *plan); /* NULL is fine; returns NULL */

struct hr_files_totals {
    uint64_t file_count, array_count;
    uint64_t bytes;       /* size of the object */
    uint64_t array_bytes; /* size of all arrays */
};
HR_API void hr_files_plan_look(const hr_files_plan *plan, struct hr_files_totals *ret_totals);

/* A text that changes if a file changes, is added or removed: for struct hr_cache_request. Borrowed from the plan. */
HR_API const char *hr_files_plan_stamp(const hr_files_plan *plan);

struct hr_files_progress {
    uint64_t done_bytes, total_bytes, kept_bytes; /* kept: those that an earlier process had finished */
};
/* Reserves the space of a build, and fills it from the files with `worker_count` threads (0: one for each core). The
 * caller then finishes the build with `meta` NULL. `report` (may be NULL) is called in the calling thread a few times a
 * second, and at the end; a result other than 0 stops the work: -ECANCELED. -ESTALE: a file changed meanwhile. Errors
 * as hr_cache_build_reserve. */
HR_API int hr_files_fill(const hr_files_plan *plan, hr_cache_build *build, uint32_t worker_count,
                         int (*report)(void *context, const struct hr_files_progress *progress), void *context);

/* ---- reading ---- */

enum { HR_FILES_MAX_DIMENSIONS = 32 }; /* of an array */

/* An array in such an object. Texts and data are borrowed from its memory, texts without a 0 at their end. */
struct hr_files_array {
    const char *stem, *member, *dtype; /* member: of a .npz; dtype: as in the file, such as "<f4" */
    uint32_t stem_bytes, member_bytes, dtype_bytes;
    uint32_t is_member;  /* 1: of a .npz */
    uint32_t is_fortran; /* 1: the first dimension varies fastest; 0: the last */
    uint32_t dimension_count;
    uint64_t dimensions[HR_FILES_MAX_DIMENSIONS];
    const void *data; /* 64-byte-aligned if the memory of the object is */
    uint64_t bytes;
};

/* Returns the number of arrays in the memory of such an object. HR_E_CORRUPT. They are sorted by stem, then by member.
 */
HR_API int hr_files_count(const void *memory, uint64_t bytes, uint64_t *ret_count);
/* Reads one. HR_E_CORRUPT, -ERANGE. */
HR_API int hr_files_read(const void *memory, uint64_t bytes, uint64_t number, struct hr_files_array *ret_array);
/* Finds the arrays of a file: the number of the first one, and how many there are (1 for a .npy; a .npz that is empty
 * has none). Returns 1 if it was found, 0 if not; HR_E_CORRUPT. */
HR_API int hr_files_find(const void *memory, uint64_t bytes, const char *stem, uint64_t stem_bytes, uint64_t *ret_first,
                         uint64_t *ret_count);

#ifdef __cplusplus
}
#endif
#endif
