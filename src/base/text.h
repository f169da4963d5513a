/* SPDX-License-Identifier: Apache-2.0 */
/* A text that grows. */
#ifndef HR_BASE_TEXT_H
#define HR_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* A text that grows. Zeros are an empty one. If memory runs out, it keeps what it has, and `is_short` is set. */
struct hr__text {
    char *bytes; /* ends with a zero byte, which is not counted; NULL: it is empty */
    size_t length;
    size_t room;
    bool is_short;
};

void hr__text_add(struct hr__text *text, const void *bytes, size_t length);
void hr__text_adds(struct hr__text *text, const char *string);
__attribute__((format(printf, 2, 3))) void hr__text_addf(struct hr__text *text, const char *format, ...);
void hr__text_cut(struct hr__text *text, size_t length); /* keeps the first `length` bytes */
void hr__text_drop(struct hr__text *text, size_t count); /* removes the first `count` bytes */
void hr__text_free(struct hr__text *text);
const char *hr__text_string(const struct hr__text *text); /* "" if it is empty */

#endif
