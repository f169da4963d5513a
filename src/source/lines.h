/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of text files: shared by the files of src/source. */
#ifndef HR_SOURCE_LINES_H
#define HR_SOURCE_LINES_H

#include <headrace/lines.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "index.h"

/*
 * A line ends before "\n" or "\r\n", or with its file. A line of white space only is *blank*, and no sample. The mark
 * of UTF-8 at the begin of a file (EF BB BF) belongs to no line.
 *
 * An entry of the index has the offset of a line (48 bits), its length without the end (40 bits) and 40 bits of the
 * hash of its bytes. low: the offset, and 16 bits of the hash; high: the length, and 24 bits of the hash.
 */

enum {
    HR__LINE_AT_BITS = 48,
    HR__LINE_BYTES_BITS = 40,
    HR__LINE_CHECK_BITS = 40,
    HR__LINE_LOW_CHECK_BITS = 64 - HR__LINE_AT_BITS,
    HR__LINE_PIECE_BYTES = 1 << 16, /* the hash is that of pieces, so that a line need not be in memory as a whole */
    HR__LINES_HEAD_BYTES = 64,      /* of a file, which show what it is */
    HR__LINES_MARK_BYTES = 3,       /* of UTF-8 */
};

static inline uint64_t hr__low_bits(uint64_t word, int count) {
    return word & ((UINT64_C(1) << count) - 1);
}

static inline struct hr__entry hr__line_entry(uint64_t at, uint64_t bytes, uint64_t hash) {
    hash = hr__low_bits(hash, HR__LINE_CHECK_BITS);
    return (struct hr__entry){at | hash << HR__LINE_AT_BITS,
                              bytes | hash >> HR__LINE_LOW_CHECK_BITS << HR__LINE_BYTES_BITS};
}

static inline uint64_t hr__line_at(struct hr__entry entry) {
    return hr__low_bits(entry.low, HR__LINE_AT_BITS);
}

static inline uint64_t hr__line_bytes(struct hr__entry entry) {
    return hr__low_bits(entry.high, HR__LINE_BYTES_BITS);
}

static inline bool hr__line_has_hash(struct hr__entry entry, uint64_t hash) {
    uint64_t check = entry.low >> HR__LINE_AT_BITS | entry.high >> HR__LINE_BYTES_BITS << HR__LINE_LOW_CHECK_BITS;
    return check == hr__low_bits(hash, HR__LINE_CHECK_BITS);
}

/* ---- line_scan.c ---- */

/* Finds all lines of a file: see hr__scanner. */
int hr__lines_scan(struct hr__window *window, struct hr__draft *draft);

uint64_t hr__line_hash(const unsigned char *bytes, uint64_t count);

/* ---- line_head.c ---- */

/* Says whether the lines of a file can be read, by its first bytes: up to HR__LINES_HEAD_BYTES of them. */
enum hr_damage hr__lines_check_head(const unsigned char *head, uint64_t count);
/* Sets the message for a file that cannot. Returns -EINVAL. */
int hr__lines_refuse(const char *path, const unsigned char *head, uint64_t count);
/* Says as what a file cannot be read, such as "compressed by gzip", or returns NULL. Token files ask it, too. */
const char *hr__lines_format(const unsigned char *head, uint64_t count);
/* Returns true for a pointer of Git LFS. hr__refuse_pointer sets the message, and returns -EINVAL. */
bool hr__is_pointer(const unsigned char *head, uint64_t count);
int hr__refuse_pointer(const char *path);
/* The bytes of a mark, which are before the first line. */
uint64_t hr__lines_mark_bytes(const unsigned char *head, uint64_t count);

#endif
