/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_FACE_INDEX_H
#define HEADRACE_FACE_INDEX_H

#include <stdbool.h>

#include <headrace/index.h>
#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The kinds of files, and comparisons of indexes: for `headrace index`. */

/* Finds the kind of a file by its first bytes and its name. -EINVAL: it is neither a tar file nor text. Negative errno:
 * it cannot be read. With a message. */
HR_API int hr_index_guess(const char *path, enum hr_index_kind *ret_kind);

/* Returns true if two indexes have the same entries of files of the same size and time. */
HR_API bool hr_index_is_same(const hr_index *one, const hr_index *other);

#ifdef __cplusplus
}
#endif
#endif
