/* SPDX-License-Identifier: Apache-2.0 */
/* Sets the error message of this thread. */
#ifndef HR_BASE_ERROR_H
#define HR_BASE_ERROR_H

#include <headrace/face/error.h>

/* Sets this thread's message, replacing the last one, and returns `code`, so that a failure is one line:
 *     return hr__fail(-EINVAL, "arena: worker_count is 0; give at least 1");
 * It is a macro, so that compilers and analysers see which value is returned. */
#define hr__fail(code, ...)                                                                                            \
    __extension__({                                                                                                    \
        __attribute__((unused)) const int failed_ = (code);                                                            \
        hr__message_set(__VA_ARGS__);                                                                                  \
        failed_;                                                                                                       \
    })

/* Adds a line to the message (context of a higher layer) and returns `code`. */
#define hr__fail_more(code, ...)                                                                                       \
    __extension__({                                                                                                    \
        __attribute__((unused)) const int failed_ = (code);                                                            \
        hr__message_add(__VA_ARGS__);                                                                                  \
        failed_;                                                                                                       \
    })

/* Says why a wait for a descriptor ended without a result. */
const char *hr__wait_error_text(int code);

__attribute__((format(printf, 1, 2), cold)) void hr__message_set(const char *format, ...);
__attribute__((format(printf, 1, 2), cold)) void hr__message_add(const char *format, ...);

#endif
