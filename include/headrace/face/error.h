/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of errors, for our own faces: the Python exceptions of the codes, and the pages about messages. */
#ifndef HEADRACE_FACE_ERROR_H
#define HEADRACE_FACE_ERROR_H

#include <headrace/error.h>

/* The end of a message that has a page, which `headrace help KEY` prints (python/headrace/_help). */
#define HR_HELP(key) " (headrace help " key ")"

#ifdef __cplusplus
extern "C" {
#endif

/* The name of the Python exception for a code ("OSError" for an errno). Static. */
HR_API const char *hr_error_exception(int code);

#ifdef __cplusplus
}
#endif
#endif
