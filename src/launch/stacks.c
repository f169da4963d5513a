/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <string.h>

#include "launch.h"

/*
 * Reads what Python's faulthandler writes:
 *
 *     Thread 0x00007f0a (most recent call first):
 *       File "/usr/lib/python3.11/threading.py", line 320 in wait
 *
 *     Current thread 0x00007f0b (most recent call first):
 *       File "train.py", line 3 in step
 *
 * The current thread is the one that took the signal, which is the main thread unless that blocks the signal.
 */

struct span {
    const char *at, *end;
};

static bool next_line(struct span *rest, struct span *ret_line) {
    if (rest->at >= rest->end) return false;
    const char *end = memchr(rest->at, '\n', (size_t)(rest->end - rest->at));
    *ret_line = (struct span){rest->at, end ? end : rest->end};
    rest->at = end ? end + 1 : rest->end;
    return true;
}

static bool begins(const struct span *line, const char *text) {
    size_t length = strlen(text);
    return (size_t)(line->end - line->at) >= length && memcmp(line->at, text, length) == 0;
}

static bool has(const struct span *line, const char *text) {
    return memmem(line->at, (size_t)(line->end - line->at), text, strlen(text)) != NULL;
}

/* Returns the frames of the newest dump's main thread. */
static struct span find_main_thread(const struct hr__text *stacks) {
    const char *text = hr__text_string(stacks);
    struct span rest = {text, text + stacks->length}, line, frames = rest;
    bool is_current = false;
    frames.end = frames.at;
    while (stacks->length && next_line(&rest, &line)) {
        bool is_head = begins(&line, "Thread 0x") || begins(&line, "Current thread 0x") || begins(&line, "Stack (");
        if (is_head && (begins(&line, "Current") || !is_current)) {
            is_current = begins(&line, "Current");
            frames = (struct span){rest.at, rest.at};
        } else if (begins(&line, "  File ") && frames.end == line.at) {
            frames.end = rest.at;
        }
    }
    return frames;
}

/* Returns true if a frame is in a file of a library. */
static bool is_library(const struct span *line) {
    return has(line, "/site-packages/") || has(line, "/lib/python3") || has(line, "/dist-packages/") ||
           has(line, "\"<frozen ") || has(line, "/sitecustomize.py\"");
}

static void read_frame(const struct span *line, bool is_first, struct hr__where *where) {
    static const char before_name[] = " in ";
    if (is_first) {
        const char *name = line->at;
        for (const char *at = line->at; at + sizeof before_name - 1 < line->end; at++)
            if (!memcmp(at, before_name, sizeof before_name - 1)) name = at + sizeof before_name - 1;
        where->function = name;
        where->function_bytes = (size_t)(line->end - name);
    }
    if (!where->user_line && !is_library(line)) {
        where->user_line = line->at + 2;
        where->user_bytes = (size_t)(line->end - line->at) - 2;
    }
}

bool hr__stack_where(const struct hr__text *stacks, struct hr__where *ret_where) {
    struct span frames = find_main_thread(stacks), line;
    struct hr__where where = {0};
    while (next_line(&frames, &line)) read_frame(&line, !where.function, &where);
    if (!where.function) return false;
    *ret_where = where;
    return true;
}

void hr__stack_describe(const struct hr__text *stacks, struct hr__text *to) {
    struct hr__where where;
    if (!hr__stack_where(stacks, &where)) {
        hr__text_adds(to, "at a place that is not known");
        return;
    }
    bool is_in_user = where.user_line && where.user_line + where.user_bytes == where.function + where.function_bytes;
    if (is_in_user) {
        hr__text_addf(to, "at %.*s", (int)where.user_bytes, where.user_line);
        return;
    }
    hr__text_addf(to, "in %.*s", (int)where.function_bytes, where.function);
    if (where.user_line) hr__text_addf(to, ", called at %.*s", (int)where.user_bytes, where.user_line);
}

void hr__stack_write(const struct hr__text *stacks, const char *indent, uint32_t line_count, struct hr__text *to) {
    struct span frames = find_main_thread(stacks), line;
    for (uint32_t i = 0; i < line_count && next_line(&frames, &line); i++)
        hr__text_addf(to, "%s%.*s\n", indent, (int)(line.end - line.at), line.at);
}
