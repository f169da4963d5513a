/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes keys, and finds them in dicts and sets of frozen data. */
#include <string.h>

#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"
#include "frozen/format.h"

enum { TEXT_SALT = 1, BYTES_SALT, TUPLE_SALT, NUMBER_SALT, REAL_SALT, NONE_SALT, TYPED_SALT };

/* ---- numbers: 1 == 1.0 == True ---- */

/* Converts a float that is equal to an integer of 64 bits to this integer. */
static struct hr_key as_number(const struct hr_key *key) {
    struct hr_key number = *key;
    number.kind = HR_KIND_INT;
    switch (key->kind) {
    case HR_KIND_FALSE:
        number.integer = 0;
        return number;
    case HR_KIND_TRUE:
        number.integer = 1;
        return number;
    case HR_KIND_FLOAT:
        if (key->real >= -0x1p63 && key->real < 0x1p63 && (double)(int64_t)key->real == key->real) {
            number.integer = (int64_t)key->real;
            return number;
        }
        return *key;
    default:
        return *key;
    }
}

static bool is_number(unsigned kind) {
    return kind == HR_KIND_INT || kind == HR_KIND_FLOAT || kind == HR_KIND_TRUE || kind == HR_KIND_FALSE;
}

static bool equal_numbers(const struct hr_key *a, const struct hr_key *b) {
    struct hr_key x = as_number(a), y = as_number(b);
    if (x.kind != y.kind) return false;
    return x.kind == HR_KIND_INT ? x.integer == y.integer : x.real == y.real;
}

static uint64_t hash_number(const struct hr_key *key, uint64_t seed) {
    struct hr_key number = as_number(key);
    uint64_t bits;
    memcpy(&bits, number.kind == HR_KIND_INT ? (const void *)&number.integer : (const void *)&number.real, sizeof bits);
    return hr__hash_word(bits, seed + (number.kind == HR_KIND_INT ? NUMBER_SALT : REAL_SALT));
}

/* ---- hashing ---- */

static uint64_t hash_other(const struct hr_key *key, uint64_t seed) {
    uint64_t hash = key->count;
    switch (key->kind) {
    case HR_KIND_BYTES:
        return hr__hash(key->bytes, key->count, seed + BYTES_SALT);
    case HR_KIND_TUPLE:
    case HR_KIND_TYPED:
        for (uint64_t i = 0; i < key->count; i++)
            hash = hr__hash_word(hash ^ hr__key_hash(&key->keys[i], seed),
                                 seed + (key->kind == HR_KIND_TUPLE ? TUPLE_SALT : TYPED_SALT));
        return hash;
    case HR_KIND_NONE:
        return hr__hash_word(0, seed + NONE_SALT);
    default:
        return hash_number(key, seed);
    }
}

uint64_t hr__key_hash(const struct hr_key *key, uint64_t seed) {
    if (key->kind == HR_KIND_TEXT) return hr__hash(key->bytes, key->count, seed + TEXT_SALT);
    return hash_other(key, seed);
}

/* ---- an item as a key ---- */

static int parts_of(const struct hr__contents *contents, const struct hr_item *tuple, struct hr__key_room *room,
                    struct hr_key *ret_key) {
    if (tuple->count > HR__KEY_PARTS - room->used) return 0;
    struct hr_key *parts = room->parts + room->used;
    struct hr_item *items = room->items + room->used;
    room->used += (unsigned)tuple->count;
    for (uint64_t i = 0; i < tuple->count; i++) {
        int r = hr__contents_at(contents, tuple, i, &items[i]);
        if (r == 0) r = hr__key_of(contents, &items[i], room, &parts[i]);
        if (r <= 0) return r;
    }
    *ret_key = (struct hr_key){.kind = tuple->kind, .count = tuple->count, .keys = parts};
    return 1;
}

static bool is_named(const struct hr_key *key, const char *text) {
    return key->kind == HR_KIND_TEXT && key->count == strlen(text) && !memcmp(key->bytes, text, key->count);
}

/* Returns true if the last two of a tuple's `count` parts, a time zone and a fold, are None and 0. */
static bool is_without_zone(const struct hr_key *key, uint64_t count) {
    return key->kind == HR_KIND_TUPLE && key->count == count && key->keys[count - 2].kind == HR_KIND_NONE &&
           key->keys[count - 1].kind == HR_KIND_INT && key->keys[count - 1].integer == 0;
}

/* Returns true if values that are equal to a typed value always have the same parts. This is false with a time zone,
 * because times in different zones may be equal, and for a decimal, which may be equal to a number of any type. */
static bool is_like_no_other(const struct hr_key *name, const struct hr_key *value) {
    if (is_named(name, "datetime")) return is_without_zone(value, 9);
    if (is_named(name, "time")) return is_without_zone(value, 6);
    if (is_named(name, "Path"))
        return value->kind == HR_KIND_TUPLE && value->count == 2 && is_named(&value->keys[0], "PosixPath");
    return is_named(name, "date") || is_named(name, "timedelta") || is_named(name, "UUID");
}

static int typed_of(const struct hr__contents *contents, const struct hr_item *typed, struct hr__key_room *room,
                    struct hr_key *ret_key) {
    struct hr_key key;
    int r = parts_of(contents, typed, room, &key);
    if (r <= 0) return r;
    if (!is_like_no_other(&key.keys[0], &key.keys[1])) return 0;
    *ret_key = key;
    return 1;
}

int hr__key_of(const struct hr__contents *contents, const struct hr_item *item, struct hr__key_room *room,
               struct hr_key *ret_key) {
    struct hr_key key = {.kind = item->kind, .count = item->count};
    switch (item->kind) {
    case HR_KIND_NONE:
    case HR_KIND_FALSE:
    case HR_KIND_TRUE:
        break;
    case HR_KIND_INT:
        key.integer = item->integer;
        break;
    case HR_KIND_FLOAT:
        if (!(item->real > -0x1p63 && item->real < 0x1p63)) return 0; /* NaN, or equal to a big integer */
        key.real = item->real;
        break;
    case HR_KIND_TEXT:
    case HR_KIND_BYTES:
        key.bytes = hr_item_bytes(item);
        break;
    case HR_KIND_TUPLE:
        return parts_of(contents, item, room, ret_key);
    case HR_KIND_TYPED:
        return typed_of(contents, item, room, ret_key);
    default:
        return 0;
    }
    *ret_key = key;
    return 1;
}

/* ---- an item against a key ---- */

static bool same_bytes(const struct hr_key *key, const struct hr_item *item) {
    return key->count == item->count && (!key->count || !memcmp(key->bytes, hr_item_bytes(item), key->count));
}

static bool same_number(const struct hr_key *key, const struct hr_item *item) {
    if (!is_number(item->kind)) return false;
    struct hr_key other = {.kind = item->kind};
    memcpy(&other.integer, &item->integer, sizeof other.integer);
    return equal_numbers(key, &other);
}

/* Returns 1 if the item is equal to the key, 0 if not, or HR_E_CORRUPT. */
static int is_key(const struct hr__contents *contents, const struct hr_key *key, const struct hr_item *item) {
    if (is_number(key->kind)) return same_number(key, item);
    if (key->kind != item->kind) return 0;
    if (key->kind == HR_KIND_NONE) return 1;
    if (key->kind != HR_KIND_TUPLE && key->kind != HR_KIND_TYPED) return same_bytes(key, item);
    if (key->count != item->count) return 0;
    for (uint64_t i = 0; i < key->count; i++) {
        struct hr_item part;
        int r = hr__contents_at(contents, item, i, &part);
        if (r == 0) r = is_key(contents, &key->keys[i], &part);
        if (r <= 0) return r;
    }
    return 1;
}

/* Compares a text, unless it is a short one, without making an item of it: the usual case. Returns 1, 0, or -1: use the
 * general comparison. */
static int is_text(const struct hr__contents *contents, const struct hr_key *key, hr_value word) {
    unsigned tag = hr__word_tag(word);
    uint64_t offset = hr__word_offset(word);
    if ((tag != TAG_ASCII && tag != TAG_TEXT) || hr__word_count(word) == COUNT_BEFORE_ITEMS) return -1;
    if (key->count != hr__word_count(word)) return 0;
    if (offset > contents->heap_end || key->count > contents->heap_end - offset) return -1;
    return memcmp(key->bytes, contents->base + offset, key->count) == 0;
}

__attribute__((noinline)) static int is_item(const struct hr__contents *contents, const struct hr_key *key,
                                             hr_value word) {
    struct hr_item item;
    int r = hr__contents_read(contents, word, &item);
    return r < 0 ? r : is_key(contents, key, &item);
}

static int is_key_at(const struct hr__contents *contents, const struct hr_item *dict, const struct hr_key *key,
                     uint64_t place) {
    hr_value word, value;
    int r = hr__contents_words(contents, dict, place, &word, &value);
    return r < 0 ? r : is_item(contents, key, word);
}

/* The usual case: a text in a dict. Its bytes are before the entry, and are prefetched together with it. */
static inline int is_text_at(const struct hr__contents *contents, const struct hr_item *dict, const struct hr_key *key,
                             uint64_t place) {
    const unsigned char *at = hr__words_at(contents, dict, place);
    if (!at) return is_key_at(contents, dict, key, place); /* fails with the message */
    __builtin_prefetch(at - HR_CACHE_LINE); /* this address is inside the frozen data, because the header is longer */
    hr_value word = hr__load8(at);
    int r = is_text(contents, key, word);
    return r >= 0 ? r : is_item(contents, key, word);
}

/* ---- slots ---- */

static unsigned place_bits(unsigned slot_bytes) {
    return slot_bytes == 4 ? SLOT4_INDEX_BITS : SLOT8_INDEX_BITS;
}

static uint64_t load_slot(const unsigned char *slots, unsigned slot_bytes, uint64_t number) {
    uint64_t slot = 0;
    if (slot_bytes == 4)
        memcpy(&slot, slots + number * 4, 4);
    else
        memcpy(&slot, slots + number * 8, 8);
    return slot;
}

uint64_t hr__slot_of(unsigned slot_bytes, uint64_t hash, uint64_t place) {
    unsigned bits = place_bits(slot_bytes);
    uint64_t mark = hash >> (64 - (slot_bytes * 8 - bits));
    return mark << bits | (place + 1);
}

static uint64_t place_in(uint64_t slot, unsigned slot_bytes) {
    return (slot & ((UINT64_C(1) << place_bits(slot_bytes)) - 1)) - 1;
}

uint64_t hr__first_place(const struct hr__contents *contents, const struct hr_item *dict) {
    return dict->kind == HR_KIND_DICT ? (uint64_t)(dict->data - contents->base) / 8 : 0;
}

uint64_t hr__slot_place(const struct hr__contents *contents, const struct hr_item *dict, const unsigned char *slot) {
    return hr__first_place(contents, dict) + place_in(load_slot(slot, dict->shape, 0), dict->shape);
}

/* Called with constant `slot_bytes` and `is_equal`, so that the compiler makes a loop for each. */
static inline __attribute__((always_inline)) int
find_slot(const struct hr__contents *contents, const struct hr_item *dict, const struct hr_key *key, uint64_t hash,
          unsigned slot_bytes,
          int (*is_equal)(const struct hr__contents *, const struct hr_item *, const struct hr_key *, uint64_t),
          uint64_t *ret_place) {
    uint64_t mask = (UINT64_C(1) << dict->layout) - 1, number = hash & mask;
    uint64_t mark = hr__slot_of(slot_bytes, hash, 0) >> place_bits(slot_bytes), first = hr__first_place(contents, dict);
    for (uint64_t left = mask + 1; left > 0; left--, number = (number + 1) & mask) {
        uint64_t slot = load_slot(dict->keyed.slots, slot_bytes, number);
        if (slot == 0) {
            *ret_place = number;
            return 0;
        }
        if (slot >> place_bits(slot_bytes) != mark) continue;
        uint64_t place = first + place_in(slot, slot_bytes);
        int r = is_equal(contents, dict, key, place);
        if (r) {
            *ret_place = place;
            return r;
        }
    }
    return 0;
}

__attribute__((noinline)) static int find_text(const struct hr__contents *contents, const struct hr_item *dict,
                                               const struct hr_key *key, uint64_t hash, uint64_t *ret_place) {
    return dict->shape == 4 ? find_slot(contents, dict, key, hash, 4, is_text_at, ret_place)
                            : find_slot(contents, dict, key, hash, 8, is_text_at, ret_place);
}

__attribute__((noinline)) static int find_other(const struct hr__contents *contents, const struct hr_item *dict,
                                                const struct hr_key *key, uint64_t hash, uint64_t *ret_place) {
    return dict->shape == 4 ? find_slot(contents, dict, key, hash, 4, is_key_at, ret_place)
                            : find_slot(contents, dict, key, hash, 8, is_key_at, ret_place);
}

static int find_among_few(const struct hr__contents *contents, const struct hr_item *dict, const struct hr_key *key,
                          uint64_t *ret_place) {
    for (uint64_t i = 0; i < dict->count; i++) {
        uint64_t place;
        int r = hr__contents_place(contents, dict, i, &place);
        if (r == 0) r = is_key_at(contents, dict, key, place);
        if (r) {
            *ret_place = place;
            return r;
        }
    }
    return 0;
}

int hr__key_find(const struct hr__contents *contents, const struct hr_item *dict, const struct hr_key *key,
                 uint64_t hash, uint64_t *ret_place) {
    if (!dict->shape) return find_among_few(contents, dict, key, ret_place);
    if (key->kind == HR_KIND_TEXT) return find_text(contents, dict, key, hash, ret_place);
    return find_other(contents, dict, key, hash, ret_place);
}
