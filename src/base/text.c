/* SPDX-License-Identifier: Apache-2.0 */
/* A text that grows. */
#include "text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"

static bool make_room(struct hr__text *text, size_t count) {
    enum { LEAST = 128 };
    if (count >= SIZE_MAX / 4 - text->length) return false;
    size_t wanted = text->length + count + 1;
    if (wanted <= text->room) return true;
    size_t room = wanted + wanted / 2 + LEAST;
    char *bytes = hr__realloc(text->bytes, room);
    if (!bytes) return false;
    text->bytes = bytes;
    text->room = room;
    return true;
}

void hr__text_add(struct hr__text *text, const void *bytes, size_t length) {
    if (length == 0) return;
    if (!make_room(text, length)) {
        text->is_short = true;
        return;
    }
    memcpy(text->bytes + text->length, bytes, length);
    hr__text_cut(text, text->length + length);
}

void hr__text_adds(struct hr__text *text, const char *string) {
    hr__text_add(text, string, strlen(string));
}

void hr__text_addf(struct hr__text *text, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    if (length > 0 && make_room(text, (size_t)length)) {
        vsnprintf(text->bytes + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    } else if (length > 0) {
        text->is_short = true;
    }
    va_end(again);
    va_end(arguments);
}

void hr__text_cut(struct hr__text *text, size_t length) {
    text->length = length;
    if (text->bytes) text->bytes[length] = '\0';
}

void hr__text_drop(struct hr__text *text, size_t count) {
    if (count == 0) return;
    memmove(text->bytes, text->bytes + count, text->length - count);
    hr__text_cut(text, text->length - count);
}

void hr__text_free(struct hr__text *text) {
    hr__free(text->bytes);
    *text = (struct hr__text){0};
}

const char *hr__text_string(const struct hr__text *text) {
    return text->bytes ? text->bytes : "";
}
