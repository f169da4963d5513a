/* SPDX-License-Identifier: Apache-2.0 */
/* Error codes, and the message of the last failure in a thread. */
#ifndef HEADRACE_ERROR_H
#define HEADRACE_ERROR_H

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Errors. A function that can fail returns 0 or more on success, and on failure a negative errno or one of the codes
 * below, which are outside the range of errno. The message of the last failure is kept per thread. It says what failed,
 * with which values, and what to do, with one line for each layer that adds something. The library never prints it. A
 * function that fails does not change its outputs (`*ret_...`), unless its header says otherwise.
 *
 * The table has for each code its text, and the Python exception that the package raises for it.
 */
#define HR_ERROR_TABLE(X)                                                                                              \
    X(HR_E_CLOSED, -5001, "the loader was closed", "RuntimeError")                                                     \
    X(HR_E_END, -5002, "no more batches", "StopIteration")                                                             \
    X(HR_E_TOO_BIG, -5003, "a batch does not fit the memory limit", "MemoryError")                                     \
    X(HR_E_CORRUPT, -5004, "shared memory contains something that headrace did not write", "RuntimeError")             \
    X(HR_E_VERSION, -5005, "made by another version of headrace", "RuntimeError")                                      \
    X(HR_E_WORKER_DIED, -5006, "a worker process died", "RuntimeError")                                                \
    X(HR_E_STATE, -5007, "called in a state that does not allow it", "RuntimeError")                                   \
    X(HR_E_BUILD_FAILED, -5008, "the process that built it failed", "RuntimeError")                                    \
    X(HR_E_BUILDERS_DIED, -5009, "the processes that built it died", "RuntimeError")

/* The codes of the table. */
enum hr_error_code {
#define HR_ERROR_ENUM_(name, code, text, exception) name = code,
    HR_ERROR_TABLE(HR_ERROR_ENUM_)
#undef HR_ERROR_ENUM_
};

/* The message of this thread's last failure, or "" before the first. Valid until the next failure in this thread. */
HR_API const char *hr_error_message(void);

/* The text of a code: from the table above, or from strerror for an errno. Never NULL; static or thread-local. */
HR_API const char *hr_error_text(int code);

#ifdef __cplusplus
}
#endif
#endif
