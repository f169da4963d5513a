/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Texts and memory of a command line: all live as long as the struct run. */

struct run_block {
    struct run_block *next;
    _Alignas(16) unsigned char bytes[];
};

void *run_keep(struct run *run, size_t bytes) {
    struct run_block *block = calloc(1, sizeof *block + bytes);
    if (!block) {
        fputs("headrace: not enough memory to read the command line\n", stderr);
        exit(HR_LAUNCH_ERROR);
    }
    block->next = run->kept;
    run->kept = block;
    return block->bytes;
}

void run_done(struct run *run) {
    while (run->kept) {
        struct run_block *next = run->kept->next;
        free(run->kept);
        run->kept = next;
    }
}

__attribute__((format(printf, 2, 0))) static const char *print(struct run *run, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (length < 0) length = 0;
    char *text = run_keep(run, (size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, arguments);
    return text;
}

const char *run_print(struct run *run, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const char *text = print(run, format, arguments);
    va_end(arguments);
    return text;
}

void run_refuse(struct run *run, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    run->error = print(run, format, arguments);
    va_end(arguments);
}

void run_say(struct run *run, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    struct run_note *note = run_keep(run, sizeof *note);
    note->text = print(run, format, arguments);
    va_end(arguments);
    struct run_note **last = &run->notes;
    while (*last) last = &(*last)->next;
    *last = note;
}

const char *run_variable(const struct run *run, const char *name) {
    size_t length = strlen(name);
    for (const char *const *entry = run->environment; *entry; entry++)
        if (!strncmp(*entry, name, length) && (*entry)[length] == '=') return *entry + length + 1;
    return NULL;
}
