/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of the loader, for our own faces: memory that outlives a loader. */
#ifndef HEADRACE_FACE_LOADER_H
#define HEADRACE_FACE_LOADER_H

#include <headrace/loader.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Closes the loader like hr_loader_close, except for its arena, which is returned, owned by the caller. Only when all
 * workers have ended. */
HR_API hr_arena *hr_loader_detach(hr_loader *loader);

/* Opens a loader in an arena that hr_loader_detach has returned, of a loader with the same options; NULL: a new one.
 * The loader owns it, and closes it if it cannot be opened. Errors as hr_loader_open; HR_E_STATE: the options are
 * others. */
HR_API int hr_loader_open_in(const struct hr_loader_options *options, hr_arena *arena, hr_loader **ret_loader);

#ifdef __cplusplus
}
#endif
#endif
