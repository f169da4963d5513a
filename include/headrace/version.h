/* SPDX-License-Identifier: Apache-2.0 */
/* The version of the library. */
#ifndef HEADRACE_VERSION_H
#define HEADRACE_VERSION_H

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, such as "0.1.0". Static. */
HR_API const char *hr_version(void);

#ifdef __cplusplus
}
#endif
#endif
