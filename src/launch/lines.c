/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the output of a rank into lines, and keeps the last state of a progress bar. */
#define _GNU_SOURCE
#include "lines.h"

#include <string.h>

/* Keeps the last state of a bar: what follows the last carriage return that is followed by anything. */
static void drop_old_states(struct hr__lines *lines) {
    struct hr__text *rest = &lines->rest;
    size_t end = rest->length;
    while (end && rest->bytes[end - 1] == '\r') end--;
    const char *last = end ? memrchr(rest->bytes, '\r', end) : NULL;
    if (end < rest->length || last) lines->is_bar = true;
    if (!last) return;
    hr__text_drop(rest, (size_t)(last + 1 - rest->bytes));
    lines->shown_bytes = 0;
}

/* A line that ends with "\r\n" is no bar. */
static void end_line(struct hr__lines *lines, hr__show_line *show, void *context) {
    struct hr__text *rest = &lines->rest;
    size_t end = rest->length - 1;
    while (end && rest->bytes[end - 1] == '\r') end--;
    rest->bytes[end] = '\n';
    hr__text_cut(rest, end + 1);
    drop_old_states(lines);
    show(context, rest->bytes, rest->length);
    hr__text_cut(rest, 0);
    lines->is_bar = false;
    lines->shown_bytes = 0;
}

static void show_piece(struct hr__lines *lines, hr__show_line *show, void *context) {
    show(context, lines->rest.bytes, lines->rest.length);
    hr__text_cut(&lines->rest, 0);
    lines->shown_bytes = 0;
}

void hr__lines_feed(struct hr__lines *lines, const char *data, size_t bytes, int64_t now_ns, hr__show_line *show,
                    void *context) {
    if (bytes) lines->since_ns = now_ns;
    while (bytes) {
        const char *end = memchr(data, '\n', bytes);
        size_t length = end ? (size_t)(end + 1 - data) : bytes;
        size_t room = HR__LINE_MOST_BYTES - lines->rest.length;
        bool is_whole = length <= room;
        length = is_whole ? length : room;
        hr__text_add(&lines->rest, data, length);
        data += length;
        bytes -= length;
        if (!lines->rest.length) continue; /* memory ran out */
        if (is_whole && end)
            end_line(lines, show, context);
        else if (lines->rest.length >= HR__LINE_MOST_BYTES)
            show_piece(lines, show, context);
    }
    if (lines->rest.length) drop_old_states(lines);
}

/* Returns the bytes of a character that begins with `first`. */
static size_t character_bytes(unsigned char first) {
    if (first >= 0xF0) return 4;
    if (first >= 0xE0) return 3;
    return first >= 0xC0 ? 2 : 1;
}

size_t hr__lines_pending(const struct hr__lines *lines) {
    const struct hr__text *rest = &lines->rest;
    size_t most = rest->length < 3 ? rest->length : 3;
    for (size_t back = 1; back <= most; back++) {
        unsigned char byte = (unsigned char)rest->bytes[rest->length - back];
        if ((byte & 0xC0) == 0x80) continue; /* inside a character */
        return character_bytes(byte) > back ? rest->length - back : rest->length;
    }
    return rest->length;
}

void hr__lines_free(struct hr__lines *lines) {
    hr__text_free(&lines->rest);
}
