/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of shared arrays, for our own faces: their type and shape, without opening them. */
#ifndef HEADRACE_FACE_CACHE_SHARED_H
#define HEADRACE_FACE_CACHE_SHARED_H

#include <headrace/cache_shared.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads what an array is from its file (struct hr_cached_info has the path), without opening the array. Errors as
 * hr_shared_open. */
HR_API int hr_shared_read_plan(const char *path, struct hr_shared_plan *ret_plan);

#ifdef __cplusplus
}
#endif
#endif
