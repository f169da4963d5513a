/* SPDX-License-Identifier: Apache-2.0 */
/* Text for the terminal of `headrace top`: what it can show, its width, and numbers with units. */
#include "options.h"
#include "top.h"

#include <inttypes.h>
#include <string.h>

/* Returns the length of the character of UTF-8 at `at` that a terminal can show, or 0. */
static size_t visible_character(const unsigned char *at) {
    if (*at >= 0x20 && *at < 0x7F) return 1;
    size_t length = *at >= 0xF0 && *at < 0xF5 ? 4 : *at >= 0xE0 && *at < 0xF0 ? 3 : *at >= 0xC3 && *at < 0xE0 ? 2 : 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xC0) != 0x80) return 0;
    return length; /* those from U+0080 to U+00BF are left out: most are control characters */
}

void top_clean(const char *text, char *ret_text, size_t bytes) {
    size_t at = 0;
    for (const unsigned char *from = (const unsigned char *)text; *from;) {
        size_t length = visible_character(from);
        if (at + (length ? length : 1) >= bytes) break;
        if (length)
            memcpy(ret_text + at, from, length);
        else
            ret_text[at] = '?';
        at += length ? length : 1;
        from += length ? length : 1;
    }
    ret_text[at] = '\0';
}

size_t top_columns_of(const char *text) {
    size_t columns = 0;
    for (; *text; text++) columns += ((unsigned char)*text & 0xC0) != 0x80;
    return columns;
}

void top_cut(char *text, size_t columns) {
    for (; *text; text++) {
        if (((unsigned char)*text & 0xC0) == 0x80) continue;
        if (!columns--) break;
    }
    *text = '\0';
}

const char *top_in_count(uint64_t count, char *text) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, count), at = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

const char *top_in_size(double bytes, char *text) {
    static const char units[] = " KMGTP";
    int unit = 0;
    while (bytes >= 1000 && unit < 5) bytes /= 1024, unit++;
    snprintf(text, UNITS_BYTES, unit && bytes < 10 ? "%.1f %c" : "%.0f %c", bytes, unit ? units[unit] : 'B');
    return text;
}

const char *top_in_short(double s, char *text) {
    if (s < 1)
        snprintf(text, UNITS_BYTES, "%.0fms", s * 1e3);
    else if (s < 100)
        snprintf(text, UNITS_BYTES, "%.1fs", s);
    else
        snprintf(text, UNITS_BYTES, "%.0fs", s);
    return text;
}

const char *top_in_hours(double s, char *text) {
    if (s >= 3600)
        snprintf(text, UNITS_BYTES, "%d h %d min", (int)(s / 3600), (int)((int64_t)s % 3600 / 60));
    else if (s >= 60)
        snprintf(text, UNITS_BYTES, "%.0f min", s / 60);
    else
        snprintf(text, UNITS_BYTES, "%.0f s", s);
    return text;
}
