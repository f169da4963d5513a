/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_ERROR_H
#define HEADRACE_ERROR_H

#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Errors. A function that can fail returns 0 or more on success, and on failure a negative errno or one of the codes
 * below, which lie beyond errno's range. The text of the last failure is kept per thread: it says what happened, to
 * what, and what to do, one line per layer that had something to add. The library never prints it. What a function
 * that fails would have given (`*ret_...`) is left as it was, unless its header says otherwise.
 *
 * One table: code, the code's own text, and the Python exception that the package raises for it.
 */
#define HR_ERROR_TABLE(X)                                                                                              \
    X(HR_E_CLOSED, -5001, "the loader was closed", "RuntimeError")                                                     \
    X(HR_E_END, -5002, "no more batches", "StopIteration")                                                             \
    X(HR_E_TOO_BIG, -5003, "a batch does not fit the memory limit", "MemoryError")                                     \
    X(HR_E_CORRUPT, -5004, "shared memory holds something that headrace did not write", "RuntimeError")                \
    X(HR_E_VERSION, -5005, "made by another version of headrace", "RuntimeError")                                      \
    X(HR_E_WORKER_DIED, -5006, "a worker process died", "RuntimeError")                                                \
    X(HR_E_STATE, -5007, "called in a state that does not allow it", "RuntimeError")

enum hr_error_code {
#define HR_ERROR_ENUM_(name, code, text, exception) name = code,
    HR_ERROR_TABLE(HR_ERROR_ENUM_)
#undef HR_ERROR_ENUM_
};

/* The message of this thread's last failure, or "" before the first. Valid until the next failure in this thread. */
HR_API const char *hr_error_message(void);

/* The code's own text: of the table above, or strerror's for an errno. Never NULL; static or thread-local. */
HR_API const char *hr_error_text(int code);

/* The name of the Python exception for a code ("OSError" for an errno). Static. */
HR_API const char *hr_error_exception(int code);

#ifdef __cplusplus
}
#endif
#endif
