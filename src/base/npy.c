/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the header of a .npy file: the magic, a version, and a Python dict as text. */
#include "npy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"

/* A part of the text that is being read. */
struct cursor {
    const char *at, *end;
};

static void skip_spaces(struct cursor *cursor) {
    while (cursor->at < cursor->end && (*cursor->at == ' ' || *cursor->at == '\n' || *cursor->at == '\t')) cursor->at++;
}

static bool take(struct cursor *cursor, char c) {
    skip_spaces(cursor);
    if (cursor->at == cursor->end || *cursor->at != c) return false;
    cursor->at++;
    return true;
}

/* A text in single or double quotes. */
static bool take_text(struct cursor *cursor, char *text, size_t room) {
    skip_spaces(cursor);
    if (cursor->at == cursor->end || (*cursor->at != '\'' && *cursor->at != '"')) return false;
    char quote = *cursor->at++;
    size_t length = 0;
    for (; cursor->at < cursor->end && *cursor->at != quote; cursor->at++) {
        if (length + 1 >= room) return false;
        text[length++] = *cursor->at;
    }
    text[length] = '\0';
    return take(cursor, quote);
}

static bool take_word(struct cursor *cursor, const char *word) {
    size_t length = strlen(word);
    skip_spaces(cursor);
    if ((size_t)(cursor->end - cursor->at) < length || memcmp(cursor->at, word, length) != 0) return false;
    cursor->at += length;
    return true;
}

static bool take_number(struct cursor *cursor, uint64_t *ret_number) {
    uint64_t number = 0;
    const char *begin;
    skip_spaces(cursor);
    for (begin = cursor->at; cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9'; cursor->at++)
        if (!hr__mul(number, 10, &number) || !hr__add(number, (uint64_t)(*cursor->at - '0'), &number)) return false;
    if (cursor->at == begin) return false;
    if (cursor->at < cursor->end && *cursor->at == 'L') cursor->at++; /* written by Python 2 */
    *ret_number = number;
    return true;
}

static bool take_shape(struct cursor *cursor, struct hr__npy *npy) {
    if (!take(cursor, '(')) return false;
    while (!take(cursor, ')')) {
        if (npy->dimension_count == HR__NPY_MAX_DIMENSIONS) return false;
        if (!take_number(cursor, &npy->dimensions[npy->dimension_count++])) return false;
        if (!take(cursor, ',')) return take(cursor, ')');
    }
    return true;
}

/* ---- dtypes ---- */

/* Returns the size of an element, or 0 for objects and records. */
static uint64_t item_bytes(const char *dtype) {
    const char *at = dtype;
    if (*at && strchr("<>|=", *at)) at++;
    char kind = *at;
    if (!kind || !strchr("biufcmMSU?", kind)) return 0;
    char *end;
    uint64_t size = strtoull(at + 1, &end, 10);
    if (kind == '?') return 1;
    if (*end && *end != '[') return 0;
    return size > UINT32_MAX ? 0 : kind == 'U' ? 4 * size : size;
}

static int take_dtype(struct cursor *cursor, struct hr__npy *npy, uint64_t *ret_item_bytes) {
    if (take(cursor, '[')) return -ENOTSUP; /* records: the dtype stays "" */
    if (!take_text(cursor, npy->dtype, sizeof npy->dtype)) return -EINVAL;
    *ret_item_bytes = item_bytes(npy->dtype);
    return *ret_item_bytes ? 0 : -ENOTSUP;
}

/* ---- the header ---- */

static int parse_dict(struct cursor *cursor, struct hr__npy *npy, uint64_t *ret_item_bytes) {
    char key[32];
    bool has_dtype = false, has_order = false, has_shape = false;
    if (!take(cursor, '{')) return -EINVAL;
    while (!take(cursor, '}')) {
        if (!take_text(cursor, key, sizeof key) || !take(cursor, ':')) return -EINVAL;
        if (strcmp(key, "descr") == 0) {
            int r = take_dtype(cursor, npy, ret_item_bytes);
            if (r < 0) return r;
            has_dtype = true;
        } else if (strcmp(key, "fortran_order") == 0) {
            npy->is_fortran = take_word(cursor, "True");
            if (!npy->is_fortran && !take_word(cursor, "False")) return -EINVAL;
            has_order = true;
        } else if (strcmp(key, "shape") == 0) {
            if (!take_shape(cursor, npy)) return -EINVAL;
            has_shape = true;
        } else
            return -EINVAL;
        if (!take(cursor, ',') && (cursor->at == cursor->end || *cursor->at != '}')) return -EINVAL;
    }
    return has_dtype && has_order && has_shape ? 0 : -EINVAL;
}

int hr__npy_parse(const unsigned char *head, uint64_t count, struct hr__npy *ret_npy) {
    static const unsigned char magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
    struct hr__npy npy = {.dimension_count = 0};
    uint64_t text_bytes, text_at, size = 0;
    if (count < 12 || memcmp(head, magic, sizeof magic) != 0 || head[6] < 1 || head[6] > 3) return -EINVAL;
    text_at = head[6] == 1 ? 10 : 12;
    text_bytes = head[6] == 1 ? head[8] | (uint64_t)head[9] << 8
                              : head[8] | (uint64_t)head[9] << 8 | (uint64_t)head[10] << 16 | (uint64_t)head[11] << 24;
    if (text_at + text_bytes > count) return -EINVAL;
    struct cursor cursor = {(const char *)head + text_at, (const char *)head + text_at + text_bytes};
    int r = parse_dict(&cursor, &npy, &size);
    if (r == -ENOTSUP) *ret_npy = npy;
    if (r < 0) return r;
    npy.bytes = size;
    for (uint32_t i = 0; i < npy.dimension_count; i++)
        if (!hr__mul(npy.bytes, npy.dimensions[i], &npy.bytes) || npy.bytes > INT64_MAX) return -EINVAL;
    npy.header_bytes = (uint32_t)(text_at + text_bytes);
    *ret_npy = npy;
    return 0;
}
