/* SPDX-License-Identifier: Apache-2.0 */
/* The headers of a member of a tar file, and what its name means. */
#ifndef HR_SOURCE_TAR_HEADER_H
#define HR_SOURCE_TAR_HEADER_H

#include <headrace/index.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "index.h"

enum { HR__TAR_BLOCK = 512, HR__TAR_HEAD_MOST = 127 * HR__TAR_BLOCK, HR__TAR_NAME_BYTES = 100 + 155 + 1 };

enum hr__tar_type {
    HR__TAR_FILE,
    HR__TAR_FOLDER,
    HR__TAR_LINK,
    HR__TAR_OTHER,
    HR__TAR_GLOBAL, /* a global pax header, which changes nothing that is read here */
    HR__TAR_END     /* a block of zeros */
};

/* A member, with all headers that it has: of a long name, of pax, and its own. */
struct hr__tar_member {
    enum hr__tar_type type;
    size_t head_bytes;   /* from the first of its headers to its data */
    uint64_t data_bytes; /* behind the headers; 0 for links and folders, whatever their headers say */
    const char *name;    /* in the headers, or in `joined`; not ended by 0 */
    size_t name_bytes;
    char joined[HR__TAR_NAME_BYTES];
};

/* Reads the headers of a member, of which `bytes` bytes are at `data`. Returns 0; HR__TAR_MORE if *ret_needed bytes
 * are needed to go on, at most HR__TAR_HEAD_MOST; or HR__TAR_BAD and the kind of damage. */
enum { HR__TAR_MORE = 1, HR__TAR_BAD = 2 };
int hr__tar_parse(const unsigned char *data, size_t bytes, struct hr__tar_member *ret_member, size_t *ret_needed,
                  enum hr_damage *ret_damage);

/* Bytes of data with the zeros behind it. */
static inline uint64_t hr__tar_padded(uint64_t bytes) {
    return (bytes + HR__TAR_BLOCK - 1) / HR__TAR_BLOCK * HR__TAR_BLOCK;
}

/* ---- names, as WebDataset reads them ---- */

bool hr__tar_is_metadata(const char *name, size_t bytes);
/* Splits a name into key and field, as the pattern of WebDataset does. In the last part of the name, the key ends
 * before the first dot, and the field is all behind that dot: "a.b/0001.seg.png" has the key "a.b/0001" and the field
 * "seg.png". Returns false if it has no field. */
bool hr__tar_split(const char *name, size_t bytes, size_t *ret_key_bytes);

static inline char hr__tar_lower(char c) {
    return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}

uint64_t hr__tar_key_hash(const char *key, size_t bytes); /* never 0 */

/* ---- entries: 16 bytes for a member ---- */

/* The fields, from the lowest bit on: low has the block of the first header (36 bits) and a part of the hash (28);
 * high has the size (40 bits), the number of the field (12), and the blocks of all headers (7). */
struct hr__tar_entry {
    uint64_t head_at, data_bytes;
    uint32_t field, head_bytes, hash;
};
enum { HR__TAR_FIELD_BITS = 12 };
static const uint64_t HR__TAR_AT_MOST = ((UINT64_C(1) << 36) - 1) * HR__TAR_BLOCK;
static const uint64_t HR__TAR_DATA_MOST = (UINT64_C(1) << 40) - 1;

struct hr__entry hr__tar_pack(struct hr__tar_entry entry);
struct hr__tar_entry hr__tar_unpack(struct hr__entry packed);
uint32_t hr__tar_hash(const unsigned char *head, size_t bytes); /* of all headers of a member; 28 bits */

#endif
