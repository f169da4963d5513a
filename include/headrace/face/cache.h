/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of the cache, for our own faces: looks for an object or for room without taking it, and sweeps. */
#ifndef HEADRACE_FACE_CACHE_H
#define HEADRACE_FACE_CACHE_H

#include <headrace/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads which object has a name now, without attaching it: its id, and its stamp, which the caller frees with
 * hr_cache_free_text. Errors as hr_cache_attach. */
HR_API int hr_cache_peek(hr_cache *cache, const char *name, const char *version, char ret_id[HR_CACHE_ID_CHARACTERS],
                         char **ret_stamp);
HR_API void hr_cache_free_text(char *text); /* NULL is fine */

/* Ends the claim, as at the end of the process, but leaves it mapped. Nothing else may follow but hr_cached_look and
 * hr_cached_detach. */
HR_API void hr_cached_unclaim(hr_cached *cached);

/* Checks that `bytes` bytes would find a place now, before they are made. Errors as hr_cache_build_reserve. */
HR_API int hr_cache_build_check_room(hr_cache_build *build, uint64_t bytes);

/* After hr_cache_build_file, instead of making the file: appends to the data, whose space is committed first. Errors as
 * hr_cache_build_reserve. */
HR_API int hr_cache_build_append(hr_cache_build *build, const void *data, uint64_t bytes);

/* The place where data would go now. */
struct hr_cache_room {
    char folder[4096];
    char why[512];
};

/* Says where `bytes` bytes would go, as hr_cache_build_reserve decides it. -ENOSPC says what is missing where. */
HR_API int hr_cache_look_for_room(hr_cache *cache, const char *name, uint64_t bytes, uint32_t keep,
                                  struct hr_cache_room *ret_room);

/* Deletes what jobs that have ended left: removed objects, and objects with HR_CACHE_KEEP_JOB, which no process has.
 * -EBUSY: another process is collecting. */
HR_API int hr_cache_sweep(hr_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
