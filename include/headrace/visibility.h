/* SPDX-License-Identifier: Apache-2.0 */
/* HR_API, which exports the public functions from a shared library. */
#ifndef HEADRACE_VISIBILITY_H
#define HEADRACE_VISIBILITY_H

/* Everything is compiled with hidden visibility; what a header here declares is the public API. The library is static,
 * so HR_API exports a symbol only where a build of a shared library asks for it. */
#if defined(HR_SHARED) && defined(__GNUC__)
#define HR_API __attribute__((visibility("default")))
#else
#define HR_API
#endif

#endif
