/* SPDX-License-Identifier: Apache-2.0 */
/* The error message of each thread, and the texts of the codes. */
#include "error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 2048, FIRST_OWN_CODE = -5000 };

static _Thread_local char message[MESSAGE_BYTES];

static void append(size_t used, const char *format, va_list arguments) {
    if (used >= sizeof message - 1) return;
    vsnprintf(message + used, sizeof message - used, format, arguments);
}

void hr__message_set(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append(0, format, arguments);
    va_end(arguments);
}

void hr__message_add(const char *format, ...) {
    size_t used = strlen(message);
    if (used && used < sizeof message - 1) message[used++] = '\n';
    va_list arguments;
    va_start(arguments, format);
    append(used, format, arguments);
    va_end(arguments);
}

const char *hr_error_message(void) {
    return message;
}

struct entry {
    int code;
    const char *text;
    const char *exception;
};

static const struct entry *find(int code) {
#define ENTRY(name, number, text, exception) {number, text, exception},
    static const struct entry table[] = {HR_ERROR_TABLE(ENTRY)};
#undef ENTRY
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].code == code) return &table[i];
    return NULL;
}

const char *hr_error_text(int code) {
    const struct entry *entry = find(code);
    if (entry) return entry->text;
    return code <= FIRST_OWN_CODE ? "unknown error" : strerror(code < 0 ? -code : code);
}

const char *hr__wait_error_text(int code) {
    return code == -ETIMEDOUT ? "the deadline has passed" : code == -EINTR ? "a signal came" : hr_error_text(code);
}

const char *hr_error_exception(int code) {
    const struct entry *entry = find(code);
    return entry ? entry->exception : "OSError";
}
