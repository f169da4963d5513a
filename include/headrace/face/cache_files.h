/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of array files in the cache, for our own faces: which scenes lack keys. */
#ifndef HEADRACE_FACE_CACHE_FILES_H
#define HEADRACE_FACE_CACHE_FILES_H

#include <headrace/cache_files.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Checks that each scene has all keys, a list with commas. A .npz file is a scene, and its members are its keys. A file
 * SCENE_KEY.npy is one key of a scene; of two keys that fit a name, the longest counts. A .npy file whose name ends
 * with no key is a scene without that file's key. Calls `visit` for each scene that lacks keys, with the names of these
 * keys with commas. Returns the number of such scenes, -EINVAL, -ENOMEM. */
HR_API int hr_files_check_keys(const hr_files_plan *plan, const char *keys,
                               void (*visit)(void *context, const char *scene, const char *missing), void *context);

#ifdef __cplusplus
}
#endif
#endif
