/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_FROZEN_FORMAT_H
#define HR_FROZEN_FORMAT_H

#include <headrace/error.h>
#include <headrace/face/frozen.h>

#include <string.h>

#include "base/base.h"

/*
 * The layout of frozen data. It is little-endian. Offsets are bytes from its start, and nodes are 8-byte-aligned.
 *
 *     0          struct hr__frozen_header, 256 B; written last
 *     256        heap: nodes, in the order in which they were made
 *     heap_end   shapes: the offset of each shape's node, 8 B each
 *                sums: the checksum of each chunk of [256, sums_at), 8 B each
 *
 * A value is a word:
 *
 *      63                          24 23      8 7    0
 *     +------------------------------+---------+------+
 *     | offset of its node / 8       | count   | tag  |     a value with a node; count 0xFFFF: before the items
 *     | a signed integer of 56 bits            | INT  |
 *     | the upper 56 bits of a double          | REAL |     whose lower 8 are 0
 *     | 7 characters                           | SHORT + n |
 *     +----------------------------------------+------+
 *
 * Nodes, by tag:
 *
 *     INT64, REAL64, COMPLEX     8, 8, 16 bytes
 *     BIG_INT, TEXT, ASCII, ...  [count] bytes
 *     LIST + layout, TUPLE + layout
 *        WORDS                   [count] a word each
 *        INT32, INT64, REAL      [count] 4, 8, 8 bytes each
 *        TEXTS                   struct hr__texts_node, count + 1 offsets of `width` bytes, padding to 8,
 *                                the guide, padding to 8, the bytes
 *        ROWS                    struct hr__rows_node, a row for each: a word for each field
 *     DICT                       struct hr__dict_node, a word for each entry
 *     ENTRY                      a word for the key and one for the value; a key that is a text is right before it
 *     SET, FROZEN_SET            struct hr__dict_node, a word for each item
 *     RECORD                     its row; the word's count is the shape's number
 *     ARRAY                      struct hr__array_node, the dimensions, and if it is strided as many strides and the
 *                                number of its first element, 8 B each; the elements are elsewhere
 *     TYPED                      two words
 *
 * The guide of a list of at least GUIDED_MIN texts contains every GUIDE_STEP-th of its offsets, and the last one. It
 * stays in the cache when the offsets do not, and gives the approximate address of a text: this memory can be
 * prefetched while the offset is being loaded.
 *
 * A slot is 0, or contains 1 + a place in its lower 24 (of 4 bytes) or 40 (of 8) bits, and the upper bits of the key's
 * hash above it. The place of a set's item is its number. The place of a dict's entry is its offset in units of 8
 * bytes; slots count it from the dict. So key and value are found in one piece of memory, without loading a number
 * first. The first slot for a key is its hash modulo the number of slots; the following slots come next. Slots are made
 * after all entries, as narrow as their places allow.
 */

enum hr__tag {
    TAG_NONE = 1,
    TAG_FALSE = 2,
    TAG_TRUE = 3,
    TAG_INT = 4,
    TAG_INT64 = 5,
    TAG_BIG_INT = 6,
    TAG_REAL = 7,
    TAG_REAL64 = 8,
    TAG_COMPLEX = 9,
    TAG_TEXT = 10,
    TAG_ASCII = 11,
    TAG_BYTES = 12,
    TAG_BYTE_ARRAY = 13,
    TAG_PICKLE = 14,
    TAG_SHORT = 16, /* + length, 0 to 7 */
    TAG_LIST = 32,  /* + layout */
    TAG_TUPLE = 40, /* + layout */
    TAG_DICT = 48,
    TAG_SET = 49,
    TAG_FROZEN_SET = 50,
    TAG_RECORD = 51,
    TAG_ARRAY = 52,
    TAG_TYPED = 53,
    TAG_ENTRY = 54, /* an entry of a dict */
};

enum hr__item_layout {
    LAYOUT_WORDS = 0,
    LAYOUT_INT32 = 1,
    LAYOUT_INT64 = 2,
    LAYOUT_REAL = 3,
    LAYOUT_TEXTS = 4,
    LAYOUT_ROWS = 5,
    LAYOUT_COUNT,
    LAYOUT_WIDE_TEXTS =
        LAYOUT_COUNT /* not in frozen data: the layout of a read item of TEXTS with offsets of 5 bytes */
};

enum {
    SHORT_MAX = 7,
    COUNT_BEFORE_ITEMS = 0xFFFF,
    CHUNK_BYTES = 1 << 20,
    ARRAY_ALIGN = 64,
    SLOT4_INDEX_BITS = 24,
    SLOT8_INDEX_BITS = 40,
    SCAN_MAX = 8, /* a dict with at most this many entries has no slots */
    GUIDE_STEP = 32,
    GUIDED_MIN = 256,
};

#define HR__MOST_ITEMS (UINT64_C(1) << 40) /* maximum of a dict or a list of texts; also of the bytes of the texts */

#define HR__FROZEN_MAGIC UINT64_C(0x0a45524f54535248) /* "HRSTORE\n" */

struct hr__frozen_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint64_t total_bytes;
    uint64_t heap_end;
    uint64_t root; /* a word */
    uint64_t seed; /* seed of the hashes of keys */
    uint64_t shapes_at, shape_count;
    uint64_t sums_at, sum_count;
    uint64_t chunk_bytes;
    unsigned char id[16], digest[16];
    uint64_t reserved[16];
    uint64_t checksum; /* checksum of all bytes before it */
};
_Static_assert(sizeof(struct hr__frozen_header) == HR_FROZEN_HEADER_BYTES, "frozen data layout");

struct hr__texts_node {
    uint64_t count, bytes;
    uint32_t width; /* 4 or 5 */
    uint32_t tag;   /* tag of the items: TEXT, ASCII or BYTES */
};
_Static_assert(sizeof(struct hr__texts_node) == 24, "frozen data layout");

/* The sizes in bytes of the offsets and of the guide of a list of texts, with padding. */
static inline uint64_t hr__offsets_bytes(uint64_t count, unsigned width) {
    return hr__round_up((count + 1) * width, 8);
}
static inline uint64_t hr__guide_bytes(uint64_t count, unsigned width) {
    return count < GUIDED_MIN ? 0 : hr__round_up((count / GUIDE_STEP + 2) * width, 8);
}

struct hr__rows_node {
    uint64_t count;
    uint32_t shape, reserved;
};
_Static_assert(sizeof(struct hr__rows_node) == 16, "frozen data layout");

struct hr__dict_node {
    uint64_t count;
    hr_value slots; /* the offset of the slots. Its tag: 1: native. Its count: slot_bytes << 8 | slot_bits, for 1 <<
                       slot_bits slots of `slot_bytes`; 0: there are no slots */
};
_Static_assert(sizeof(struct hr__dict_node) == 16, "frozen data layout");

struct hr__array_node {
    uint64_t dtype; /* a word */
    uint32_t kind, item_bytes, dimension_count;
    uint32_t is_strided; /* since version 3; 0 before */
    uint64_t data_at, data_bytes;
};
_Static_assert(sizeof(struct hr__array_node) == 40, "frozen data layout");

struct hr__shape_node {
    uint32_t kind, field_count;
    uint64_t type; /* a word; then one for each field's name */
};
_Static_assert(sizeof(struct hr__shape_node) == 16, "frozen data layout");

static inline unsigned hr__word_tag(hr_value word) {
    return word & 0xFF;
}
static inline unsigned hr__word_count(hr_value word) {
    return word >> 8 & 0xFFFF;
}
static inline uint64_t hr__word_offset(hr_value word) {
    return word >> 24 << 3;
}
static inline hr_value hr__word(unsigned tag, unsigned count, uint64_t offset) {
    return offset >> 3 << 24 | (uint64_t)count << 8 | tag;
}

/* The part of frozen data that is needed to read it. It may be the frozen data of frozen data, or the unfinished one of
 * a builder.
 */
struct hr__contents {
    const unsigned char *base;
    uint64_t heap_end; /* nodes are before this offset */
    const uint64_t *shapes;
    uint64_t shape_count;
    uint64_t seed;
};

static inline uint64_t hr__load8(const void *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

/* Returns the address of `bytes` bytes at an offset of the heap; NULL: they are not all inside it. */
static inline const unsigned char *hr__span(const struct hr__contents *contents, uint64_t offset, uint64_t bytes) {
    if (offset < sizeof(struct hr__frozen_header) || offset > contents->heap_end || bytes > contents->heap_end - offset)
        return NULL;
    return contents->base + offset;
}

/* Returns the address of the words of a place: in a dict those of the key and the value, in a set that of the item;
 * NULL: the place is invalid. */
static inline const unsigned char *hr__words_at(const struct hr__contents *contents, const struct hr_item *dict,
                                                uint64_t place) {
    if (dict->kind == HR_KIND_DICT) return hr__span(contents, place * 8, 16);
    return place < dict->count ? dict->data + place * 8 : NULL;
}

/* read.c */
int hr__contents_read(const struct hr__contents *contents, hr_value value, struct hr_item *ret_item);
int hr__contents_at(const struct hr__contents *contents, const struct hr_item *container, uint64_t index,
                    struct hr_item *ret_item);
/* hr_frozen_text */
int hr__contents_text(const struct hr__contents *contents, const struct hr_item *texts, uint64_t index,
                      const void **ret_bytes, uint64_t *ret_count);
/* Return the place of item `index` < count of a dict or set, and the words of a place: that of the key, and in a dict
 * that of the value. */
int hr__contents_place(const struct hr__contents *contents, const struct hr_item *dict, uint64_t index,
                       uint64_t *ret_place);
int hr__contents_words(const struct hr__contents *contents, const struct hr_item *dict, uint64_t place,
                       hr_value *ret_key, hr_value *ret_value);
/* Reads a shape and checks that all of it is inside the frozen data. `ret_names` (or NULL): a word for each field's
 * name. */
int hr__contents_shape(const struct hr__contents *contents, uint64_t number, struct hr__shape_node *ret_shape,
                       const unsigned char **ret_names);

/* Sets the message of HR_E_CORRUPT. */
__attribute__((cold)) void hr__contents_set_corrupt(const char *what, uint64_t offset);
/* Fails with HR_E_CORRUPT. It is inline, so that compilers and analysers see which value is returned. */
static inline int hr__contents_corrupt(const char *what, uint64_t offset) {
    hr__contents_set_corrupt(what, offset);
    return HR_E_CORRUPT;
}

/* read_shape.c */
int hr__item_must_be_text(const struct hr_item *item, const char *what);

/* read_array.c: returns true if every place of a strided array is one of its stored elements. */
bool hr__is_within(const struct hr_frozen_array *array);

/* key.c */
enum { HR__KEY_PARTS = 64 };
struct hr__key_room {
    struct hr_key parts[HR__KEY_PARTS];
    struct hr_item items[HR__KEY_PARTS];
    unsigned used;
};
/* Makes a key of a dict's or set's item. Returns 1; 0: it is of a kind that cannot be looked up, NaN, or too large;
 * HR_E_CORRUPT. The key borrows from item, frozen data and room. */
int hr__key_of(const struct hr__contents *contents, const struct hr_item *item, struct hr__key_room *room,
               struct hr_key *ret_key);
uint64_t hr__key_hash(const struct hr_key *key, uint64_t seed);
/* The contents of a slot: a place, and the upper bits of a hash. */
uint64_t hr__slot_of(unsigned slot_bytes, uint64_t hash, uint64_t place);
/* The place from which the slots of a dict or set count. */
uint64_t hr__first_place(const struct hr__contents *contents, const struct hr_item *dict);
/* The place in a slot; undefined if the slot is empty. */
uint64_t hr__slot_place(const struct hr__contents *contents, const struct hr_item *dict, const unsigned char *slot);
/* Returns 1 and the place of the key; 0 and, if the dict has slots, in `*ret_place` the empty slot at which the search
 * ended; HR_E_CORRUPT. */
int hr__key_find(const struct hr__contents *contents, const struct hr_item *dict, const struct hr_key *key,
                 uint64_t hash, uint64_t *ret_place);

#endif
