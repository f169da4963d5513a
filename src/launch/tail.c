/* SPDX-License-Identifier: Apache-2.0 */
/* The end of what a rank wrote. */
#include "tail.h"

#include <string.h>

void hr__tail_add(struct hr__tail *tail, const char *data, size_t bytes) {
    if (bytes > HR__TAIL_BYTES) {
        data += bytes - HR__TAIL_BYTES;
        bytes = HR__TAIL_BYTES;
    }
    hr__text_add(&tail->text, data, bytes);
    if (tail->text.length > (size_t)2 * HR__TAIL_BYTES) hr__text_drop(&tail->text, tail->text.length - HR__TAIL_BYTES);
}

/* Returns where the last `line_count` lines begin, within the last HR__TAIL_BYTES bytes. */
static size_t find_start(const struct hr__text *text, size_t line_count) {
    size_t least = text->length > HR__TAIL_BYTES ? text->length - HR__TAIL_BYTES : 0;
    size_t at = text->length;
    if (at > least && text->bytes[at - 1] == '\n') at--;
    for (; at > least; at--)
        if (text->bytes[at - 1] == '\n' && --line_count == 0) return at;
    return least;
}

void hr__tail_write(const struct hr__tail *tail, const char *indent, size_t line_count, struct hr__text *to) {
    const struct hr__text *text = &tail->text;
    for (size_t at = text->length ? find_start(text, line_count) : 0; at < text->length;) {
        const char *line = text->bytes + at, *end = memchr(line, '\n', text->length - at);
        size_t length = end ? (size_t)(end - line) : text->length - at;
        hr__text_adds(to, indent);
        hr__text_add(to, line, length);
        hr__text_add(to, "\n", 1);
        at += length + 1;
    }
}

void hr__tail_free(struct hr__tail *tail) {
    hr__text_free(&tail->text);
}
