/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_LAUNCH_LINES_H
#define HR_LAUNCH_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/*
 * Cuts what a rank writes into lines, so that lines of several ranks are not mixed. Of a line that a progress bar
 * writes again and again (with a carriage return), only the last state is kept.
 */

enum { HR__LINE_MOST_BYTES = 1 << 20 }; /* a longer line is cut into pieces of this size */

struct hr__lines {
    struct hr__text rest; /* the unfinished line */
    int64_t since_ns;     /* when its newest byte came */
    bool is_bar;          /* it had a carriage return */
    size_t shown_bytes;   /* bytes of the unfinished line that were shown already */
};

/* Takes output at a time. Calls `show` for each finished line, with its line feed, if it has one. */
typedef void hr__show_line(void *context, const char *line, size_t bytes);
void hr__lines_feed(struct hr__lines *lines, const char *data, size_t bytes, int64_t now_ns, hr__show_line *show,
                    void *context);

/* The part of the unfinished line that can be shown: without a character of UTF-8 that has only begun. Returns its
 * bytes from `rest` on. */
size_t hr__lines_pending(const struct hr__lines *lines);

void hr__lines_free(struct hr__lines *lines);

#endif
