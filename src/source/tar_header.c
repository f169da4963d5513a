/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the headers of members of tar files: old tar, ustar, GNU's, and pax. */
#include "tar_header.h"

#include <string.h>

#include "base/base.h"
#include "base/hash.h"

/* A header of 512 bytes. Numbers are octal digits, or in base 256 if the first bit is set. */
enum {
    NAME_BYTES = 100,
    SIZE_AT = 124,
    SIZE_BYTES = 12,
    SUM_AT = 148,
    SUM_BYTES = 8,
    TYPE_AT = 156,
    MAGIC_AT = 257,
    PREFIX_AT = 345,
    PREFIX_BYTES = 155
};

/* ---- numbers ---- */

static bool read_base256(const unsigned char *at, size_t bytes, uint64_t *ret_value) {
    uint64_t value = at[0] & 0x7f;
    if (at[0] & 0x40) return false; /* negative */
    for (size_t i = 1; i < bytes; i++) {
        if (value >> 56) return false;
        value = value << 8 | at[i];
    }
    *ret_value = value;
    return true;
}

static bool read_octal(const unsigned char *at, size_t bytes, uint64_t *ret_value) {
    uint64_t value = 0;
    size_t i = 0;
    while (i < bytes && at[i] == ' ') i++;
    for (; i < bytes && at[i] >= '0' && at[i] <= '7'; i++) value = value << 3 | (uint64_t)(at[i] - '0');
    for (; i < bytes && at[i] != '\0'; i++)
        if (at[i] != ' ') return false;
    *ret_value = value;
    return true;
}

static bool read_number(const unsigned char *at, size_t bytes, uint64_t *ret_value) {
    return at[0] & 0x80 ? read_base256(at, bytes, ret_value) : read_octal(at, bytes, ret_value);
}

/* The digits of a decimal number of `bytes` bytes. */
static bool read_decimal(const char *at, size_t bytes, uint64_t *ret_value) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] < '0' || at[i] > '9' || value > UINT64_MAX / 16) return false;
        value = 10 * value + (uint64_t)(at[i] - '0');
    }
    if (bytes) *ret_value = value;
    return bytes > 0;
}

/* ---- one header ---- */

static bool is_zero(const unsigned char *block) {
    return block[0] == 0 && memcmp(block, block + 1, HR__TAR_BLOCK - 1) == 0;
}

/* The checksum counts its own bytes as spaces. Some programs of old add up signed bytes. */
static bool has_right_sum(const unsigned char *block) {
    uint32_t sum = 0, high = 0;
    uint64_t wanted;
    for (int i = 0; i < HR__TAR_BLOCK; i++) {
        sum += block[i];
        high += block[i] >> 7;
    }
    for (int i = 0; i < SUM_BYTES; i++) {
        sum -= block[SUM_AT + i];
        high -= block[SUM_AT + i] >> 7;
    }
    sum += ' ' * SUM_BYTES;
    if (!read_number(block + SUM_AT, SUM_BYTES, &wanted)) return false;
    return wanted == sum || (uint32_t)wanted == sum - (high << 8);
}

static size_t text_bytes(const unsigned char *at, size_t most) {
    const unsigned char *end = memchr(at, '\0', most);
    return end ? (size_t)(end - at) : most;
}

/* The name in a header itself: GNU's headers have other things where ustar's have a prefix. */
static void read_name(const unsigned char *block, struct hr__tar_member *member) {
    size_t bytes = text_bytes(block, NAME_BYTES);
    size_t prefix = memcmp(block + MAGIC_AT, "ustar", 6) == 0 ? text_bytes(block + PREFIX_AT, PREFIX_BYTES) : 0;
    if (prefix) {
        memcpy(member->joined, block + PREFIX_AT, prefix);
        member->joined[prefix++] = '/';
    }
    memcpy(member->joined + prefix, block, bytes);
    member->name = member->joined;
    member->name_bytes = prefix + bytes;
}

/* Says what a member is, and whether data is behind its header. Unknown types have data, as tarfile has it. */
static enum hr__tar_type type_of(const unsigned char *block, const struct hr__tar_member *member, bool *ret_has_data) {
    bool is_old_folder = member->name_bytes && member->name[member->name_bytes - 1] == '/';
    *ret_has_data = false;
    switch (block[TYPE_AT]) {
    case '1':
    case '2':
        return HR__TAR_LINK;
    case '3':
    case '4':
    case '6':
        return HR__TAR_OTHER;
    case '5':
        return HR__TAR_FOLDER;
    case '\0':
        if (is_old_folder) return HR__TAR_FOLDER;
        *ret_has_data = true;
        return HR__TAR_FILE;
    case '0':
    case '7':
        *ret_has_data = true;
        return HR__TAR_FILE;
    default:
        *ret_has_data = true;
        return HR__TAR_OTHER;
    }
}

/* ---- headers before that of the member ---- */

/* Values that they give the member. */
struct said {
    const char *name;
    size_t name_bytes;
    uint64_t bytes;
    bool has_bytes;
};

static bool is_text(const char *at, size_t bytes, const char *text) {
    return bytes == strlen(text) && memcmp(at, text, bytes) == 0;
}

static bool begins_with(const char *at, size_t bytes, const char *text) {
    return bytes >= strlen(text) && memcmp(at, text, strlen(text)) == 0;
}

/* One value of pax. In a global header, a path or a size would be that of all members. */
static enum hr_damage read_value(const char *key, size_t key_bytes, const char *value, size_t bytes, bool is_global,
                                 struct said *said) {
    bool is_path = is_text(key, key_bytes, "path"), is_size = is_text(key, key_bytes, "size");
    if (begins_with(key, key_bytes, "GNU.sparse.") || is_text(key, key_bytes, "SCHILY.realsize"))
        return HR_DAMAGE_SPARSE;
    if (is_global && (is_path || is_size)) return HR_DAMAGE_REFUSED;
    if (is_path && bytes) {
        while (bytes && value[bytes - 1] == '/') bytes--;
        said->name = value;
        said->name_bytes = bytes;
    }
    if (is_size && !read_decimal(value, bytes, &said->bytes)) return HR_DAMAGE_HEADER;
    if (is_size) said->has_bytes = true;
    return HR_DAMAGE_NONE;
}

/* Records of pax: "LENGTH KEY=VALUE\n", where LENGTH is that of the whole record. */
static enum hr_damage read_pax(const char *at, size_t bytes, bool is_global, struct said *said) {
    while (bytes && *at) { /* some programs fill the rest with zeros */
        const char *space = memchr(at, ' ', hr__min(bytes, 20));
        uint64_t length;
        if (!space || !read_decimal(at, (size_t)(space - at), &length)) return HR_DAMAGE_HEADER;
        size_t before = (size_t)(space - at) + 1;
        if (length <= before || length > bytes || at[length - 1] != '\n') return HR_DAMAGE_HEADER;
        const char *key = space + 1, *end = at + length - 1, *equals = memchr(key, '=', (size_t)(end - key));
        if (!equals) return HR_DAMAGE_HEADER;
        enum hr_damage damage =
            read_value(key, (size_t)(equals - key), equals + 1, (size_t)(end - equals) - 1, is_global, said);
        if (damage) return damage;
        at += length;
        bytes -= length;
    }
    return HR_DAMAGE_NONE;
}

/* Adds what a header says to what those before it have said, which counts more, as with tarfile. */
static void add_said(struct said *said, const struct said *one) {
    if (!said->name) {
        said->name = one->name;
        said->name_bytes = one->name_bytes;
    }
    if (!said->has_bytes) said->bytes = one->bytes;
    said->has_bytes |= one->has_bytes;
}

/* A header whose data is about the member that follows. */
static enum hr_damage read_extra(char type, const unsigned char *data, size_t bytes, struct said *said) {
    struct said one = {0};
    enum hr_damage damage = HR_DAMAGE_NONE;
    if (type == 'L') one = (struct said){.name = (const char *)data, .name_bytes = text_bytes(data, bytes)};
    if (type == 'x' || type == 'X' || type == 'g') damage = read_pax((const char *)data, bytes, type == 'g', &one);
    add_said(said, &one);
    return damage; /* 'K' is the long name of what a link refers to */
}

static bool is_extra(unsigned char type) {
    return type == 'x' || type == 'X' || type == 'g' || type == 'L' || type == 'K';
}

/* ---- all headers ---- */

static enum hr_damage finish(const unsigned char *block, uint64_t bytes, const struct said *said,
                             struct hr__tar_member *member) {
    bool has_data;
    read_name(block, member);
    member->type = type_of(block, member, &has_data);
    if (block[TYPE_AT] == 'S') return HR_DAMAGE_SPARSE;
    if (said->name) {
        member->name = said->name;
        member->name_bytes = said->name_bytes;
    }
    member->data_bytes = !has_data ? 0 : said->has_bytes ? said->bytes : bytes;
    return member->data_bytes > HR__TAR_DATA_MOST ? HR_DAMAGE_REFUSED : HR_DAMAGE_NONE;
}

static int bad(enum hr_damage damage, enum hr_damage *ret_damage) {
    *ret_damage = damage;
    return HR__TAR_BAD;
}

static int more(size_t needed, size_t *ret_needed, enum hr_damage *ret_damage) {
    if (needed > HR__TAR_HEAD_MOST) return bad(HR_DAMAGE_REFUSED, ret_damage);
    *ret_needed = needed;
    return HR__TAR_MORE;
}

int hr__tar_parse(const unsigned char *data, size_t bytes, struct hr__tar_member *ret_member, size_t *ret_needed,
                  enum hr_damage *ret_damage) {
    struct said said = {0};
    size_t at = 0;
    for (;;) {
        const unsigned char *block = data + at;
        uint64_t size;
        if (at + HR__TAR_BLOCK > bytes) return more(at + HR__TAR_BLOCK, ret_needed, ret_damage);
        if (at == 0 && is_zero(block)) {
            ret_member->type = HR__TAR_END;
            return 0;
        }
        if (!has_right_sum(block) || !read_number(block + SIZE_AT, SIZE_BYTES, &size))
            return bad(HR_DAMAGE_HEADER, ret_damage);
        bool is_last = !is_extra(block[TYPE_AT]), is_global = at == 0 && block[TYPE_AT] == 'g';
        at += HR__TAR_BLOCK;
        ret_member->head_bytes = at;
        enum hr_damage damage = HR_DAMAGE_NONE;
        if (is_last) {
            damage = finish(block, size, &said, ret_member);
        } else {
            if (size > HR__TAR_HEAD_MOST) return bad(HR_DAMAGE_REFUSED, ret_damage);
            uint64_t end = at + hr__tar_padded(size);
            if (end > bytes) return more((size_t)end + (is_global ? 0 : HR__TAR_BLOCK), ret_needed, ret_damage);
            damage = read_extra((char)block[TYPE_AT], data + at, (size_t)size, &said);
            at = (size_t)end;
        }
        if (damage) return bad(damage, ret_damage);
        if (is_global) {
            ret_member->type = HR__TAR_GLOBAL;
            ret_member->head_bytes = at;
            ret_member->data_bytes = 0;
        }
        if (is_last || is_global) return 0;
    }
}

/* ---- names ---- */

static bool is_marked(const char *name, size_t bytes, size_t least) {
    return bytes >= least && memcmp(name, "__", 2) == 0 && memcmp(name + bytes - 2, "__", 2) == 0;
}

bool hr__tar_is_metadata(const char *name, size_t bytes) {
    const char *slash = memchr(name, '/', bytes);
    return slash ? is_marked(name, (size_t)(slash - name), 4) : is_marked(name, bytes, 2);
}

/* Returns the place behind the last slash before `end`, or 0. */
static size_t behind_slash(const char *name, size_t end) {
    while (end && name[end - 1] != '/') end--;
    return end;
}

bool hr__tar_split(const char *name, size_t bytes, size_t *ret_key_bytes) {
    size_t base = behind_slash(name, bytes), from = base;
    if (base < bytes && name[base] == '.') { /* then the key ends with the slash, if its folder has no dot */
        if (base == 0) return false;
        from = behind_slash(name, base - 1);
    }
    const char *dot = memchr(name + from, '.', bytes - from);
    if (!dot || (size_t)(dot - name) < base) return false;
    *ret_key_bytes = (size_t)(dot - name);
    return true;
}

uint64_t hr__tar_key_hash(const char *key, size_t bytes) {
    return hr__hash(key, bytes, 1) | 1;
}

/* ---- entries ---- */

struct hr__entry hr__tar_pack(struct hr__tar_entry entry) {
    return (struct hr__entry){entry.head_at / HR__TAR_BLOCK | (uint64_t)entry.hash << 36,
                              entry.data_bytes | (uint64_t)entry.field << 40 |
                                  (uint64_t)(entry.head_bytes / HR__TAR_BLOCK) << 52};
}

struct hr__tar_entry hr__tar_unpack(struct hr__entry packed) {
    return (struct hr__tar_entry){.head_at = (packed.low & ((UINT64_C(1) << 36) - 1)) * HR__TAR_BLOCK,
                                  .hash = (uint32_t)(packed.low >> 36),
                                  .data_bytes = packed.high & HR__TAR_DATA_MOST,
                                  .field = (uint32_t)(packed.high >> 40) & (HR_FIELDS_MOST - 1),
                                  .head_bytes = ((uint32_t)(packed.high >> 52) & 127) * HR__TAR_BLOCK};
}

uint32_t hr__tar_hash(const unsigned char *head, size_t bytes) {
    return (uint32_t)(hr__hash(head, bytes, 0) >> 36);
}
