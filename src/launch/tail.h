/* SPDX-License-Identifier: Apache-2.0 */
/* The end of what a rank wrote, for the summary. */
#ifndef HR_LAUNCH_TAIL_H
#define HR_LAUNCH_TAIL_H

#include <stddef.h>

#include "base/text.h"

/* The end of what a rank wrote, for the summary. Zeros are an empty one. */
enum { HR__TAIL_BYTES = 16 << 10, HR__TAIL_LINES = 20 };

struct hr__tail {
    struct hr__text text;
};

void hr__tail_add(struct hr__tail *tail, const char *data, size_t bytes);
/* Adds its last lines, each after `indent`. */
void hr__tail_write(const struct hr__tail *tail, const char *indent, size_t line_count, struct hr__text *to);
void hr__tail_free(struct hr__tail *tail);

#endif
