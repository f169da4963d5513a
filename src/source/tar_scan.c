/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the index of a tar file: reads the headers of all members once. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "tar_header.h"

/* The hash of a key, of which 0 is not one, and the offset of its first header. */
struct slot {
    uint64_t hash, at;
};

/* The keys that came before. */
struct seen {
    struct slot *slots;
    uint64_t count, room; /* room: a power of two */
};

struct scan {
    struct hr__window *window;
    struct hr__draft *draft;
    struct seen seen;
    uint64_t at;                   /* the next header */
    uint64_t step;                 /* from the header before it */
    size_t key_bytes;              /* of the sample that goes on */
    char key[HR__TAR_HEAD_MOST];   /* the key */
    char field[HR__TAR_HEAD_MOST]; /* of a member, in lower case */
    bool is_in_sample, is_repeat;  /* the sample that goes on has a key that came before */
};

/* ---- keys that came before ---- */

static struct slot *find_slot(struct slot *slots, uint64_t room, uint64_t hash) {
    uint64_t i = hash & (room - 1);
    while (slots[i].hash && slots[i].hash != hash) i = (i + 1) & (room - 1);
    return &slots[i];
}

static int grow_seen(struct seen *seen) {
    enum { FIRST = 1024 };
    uint64_t room = seen->room ? 2 * seen->room : FIRST;
    struct slot *slots = hr__realloc(NULL, room * sizeof *slots);
    if (!slots) return hr__fail(-ENOMEM, "source: no memory for the keys of a tar file");
    memset(slots, 0, room * sizeof *slots);
    for (uint64_t i = 0; i < seen->room; i++)
        if (seen->slots[i].hash) *find_slot(slots, room, seen->slots[i].hash) = seen->slots[i];
    hr__free(seen->slots);
    seen->slots = slots;
    seen->room = room;
    return 0;
}

/* Adds a key at an offset. Returns 1 if it was there, and where. */
static int add_key(struct seen *seen, const char *key, size_t bytes, uint64_t at, uint64_t *ret_before) {
    uint64_t hash = hr__tar_key_hash(key, bytes);
    int r = 2 * seen->count >= seen->room ? grow_seen(seen) : 0;
    if (r < 0) return r;
    struct slot *slot = find_slot(seen->slots, seen->room, hash);
    if (slot->hash) {
        *ret_before = slot->at;
        return 1;
    }
    *slot = (struct slot){hash, at};
    seen->count++;
    return 0;
}

/* ---- members ---- */

static bool is_same_key(const struct scan *scan, const char *name, size_t key_bytes) {
    return scan->is_in_sample && key_bytes == scan->key_bytes && memcmp(name, scan->key, key_bytes) == 0;
}

static int begin_sample(struct scan *scan, const char *name, size_t key_bytes) {
    uint64_t *counts = scan->draft->file.counts, before = 0;
    int r = add_key(&scan->seen, name, key_bytes, scan->at, &before);
    if (r < 0) return r;
    scan->is_repeat = r > 0;
    if (scan->is_repeat && counts[HR_TAR_REPEATS]++ == 0) {
        counts[HR_TAR_FIRST] = before;
        counts[HR_TAR_AGAIN] = scan->at;
    }
    memcpy(scan->key, name, key_bytes);
    scan->key_bytes = key_bytes;
    scan->is_in_sample = true;
    return hr__draft_start(scan->draft);
}

static uint32_t lower_field(struct scan *scan, const char *field, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) scan->field[i] = hr__tar_lower(field[i]);
    return (uint32_t)bytes;
}

/* Adds a member that belongs to a sample. Returns 1 if there are too many names of fields. */
static int add_member(struct scan *scan, const struct hr__tar_member *member, const unsigned char *head,
                      size_t key_bytes) {
    struct hr__draft *draft = scan->draft;
    struct hr__tar_entry entry = {.head_at = scan->at, .data_bytes = member->data_bytes};
    size_t field_bytes = lower_field(scan, member->name + key_bytes + 1, member->name_bytes - key_bytes - 1);
    int r = hr__draft_name(draft, scan->field, field_bytes, &entry.field);
    if (r == -E2BIG) return 1;
    if (r == 0 && !is_same_key(scan, member->name, key_bytes)) r = begin_sample(scan, member->name, key_bytes);
    if (r < 0) return r;
    entry.head_bytes = (uint32_t)member->head_bytes;
    entry.hash = hr__tar_hash(head, member->head_bytes);
    draft->file.data_bytes += member->data_bytes;
    return hr__draft_add(draft, hr__tar_pack(entry));
}

static int take_member(struct scan *scan, const struct hr__tar_member *member, const unsigned char *head) {
    static const enum hr_tar_count skipped[] = {
        [HR__TAR_FOLDER] = HR_TAR_FOLDERS, [HR__TAR_LINK] = HR_TAR_LINKS, [HR__TAR_OTHER] = HR_TAR_OTHERS};
    uint64_t *counts = scan->draft->file.counts;
    size_t key_bytes;
    if (member->type == HR__TAR_GLOBAL) return 0;
    if (member->type != HR__TAR_FILE)
        counts[skipped[member->type]]++;
    else if (hr__tar_is_metadata(member->name, member->name_bytes))
        counts[HR_TAR_METADATA]++;
    else if (!hr__tar_split(member->name, member->name_bytes, &key_bytes))
        counts[HR_TAR_NAMELESS]++;
    else
        return add_member(scan, member, head, key_bytes);
    return 0;
}

/* ---- the end ---- */

static int end_good(struct scan *scan) {
    scan->draft->file.good_bytes = scan->window->file_bytes;
    return 1;
}

/* Ends at a damaged place. A sample that may have had more members is left out: `is_apart` says that it had not. */
static int end_damaged(struct scan *scan, enum hr_damage damage, bool is_apart) {
    struct hr__draft *draft = scan->draft;
    draft->file.damage = damage;
    draft->file.good_bytes = scan->at;
    if (!scan->is_in_sample || is_apart) return 1;
    draft->file.counts[HR_TAR_REPEATS] -= scan->is_repeat;
    uint64_t begin = draft->starts[--draft->start_count];
    while (draft->file.entry_count > begin)
        draft->file.data_bytes -= hr__tar_unpack(draft->entries[--draft->file.entry_count]).data_bytes;
    return 1;
}

static uint64_t count_zeros(const unsigned char *data, uint64_t bytes) {
    uint64_t i = 0;
    while (i < bytes && !data[i]) i++;
    return i;
}

/* Looks for anything but zeros behind the end: archives that were joined come at the next multiple of 10 KiB. */
static int look_behind(struct scan *scan) {
    enum { LOOK_BYTES = 1 << 20 };
    uint64_t at = scan->at, end = hr__min(scan->window->file_bytes, at + LOOK_BYTES);
    while (at < end) {
        const unsigned char *data;
        uint64_t bytes = hr__min(end - at, HR__TAR_BLOCK);
        int r = hr__window_get(scan->window, at, (size_t)bytes, HR__WINDOW_BYTES, &data);
        if (r < 0) return r;
        uint64_t zeros = count_zeros(data, bytes);
        at += zeros;
        if (zeros == bytes) continue;
        scan->draft->file.counts[HR_TAR_BEHIND] = scan->window->file_bytes - at;
        break;
    }
    return end_good(scan);
}

static bool is_compressed(const unsigned char *data, uint64_t bytes) {
    static const struct {
        const char *magic;
        size_t bytes;
    } known[] = {{"\x1f\x8b", 2},
                 {"BZh", 3},
                 {"\xfd"
                  "7zXZ",
                  5},
                 {"\x28\xb5\x2f\xfd", 4},
                 {"\x04\x22\x4d\x18", 4},
                 {"PK\x03\x04", 4}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (bytes >= known[i].bytes && memcmp(data, known[i].magic, known[i].bytes) == 0) return true;
    return false;
}

/* The file ends where a header would be, or within it. */
static int end_short(struct scan *scan, uint64_t left) {
    const unsigned char *data;
    if (scan->at == 0 && left == 0) return end_damaged(scan, HR_DAMAGE_EMPTY, true);
    int r = left ? hr__window_get(scan->window, scan->at, (size_t)left, 0, &data) : 0;
    if (r < 0) return r;
    if (scan->at == 0 && is_compressed(data, left)) return end_damaged(scan, HR_DAMAGE_COMPRESSED, true);
    if (left && count_zeros(data, left) < left)
        return end_damaged(scan, scan->at ? HR_DAMAGE_TRUNCATED : HR_DAMAGE_HEADER, false);
    scan->draft->file.counts[HR_TAR_ENDLESS] = 1;
    return end_good(scan);
}

/* ---- the way through the file ---- */

/* Reads all headers of the next member. Returns 0, or 1 with the damage. */
static int read_head(struct scan *scan, struct hr__tar_member *member, const unsigned char **ret_head,
                     enum hr_damage *ret_damage) {
    enum { NEAR_BYTES = 32 << 10, HEAD_BYTES = 4096 }; /* of large members only the headers are read */
    size_t needed = HR__TAR_BLOCK, ahead = scan->step < NEAR_BYTES ? HR__WINDOW_BYTES : HEAD_BYTES;
    for (;;) {
        if (needed > scan->window->file_bytes - scan->at) {
            *ret_damage = HR_DAMAGE_TRUNCATED;
            return 1;
        }
        int r = hr__window_get(scan->window, scan->at, needed, ahead, ret_head);
        if (r < 0) return r;
        r = hr__tar_parse(*ret_head, needed, member, &needed, ret_damage);
        if (r == HR__TAR_BAD && scan->at == 0 && is_compressed(*ret_head, needed)) *ret_damage = HR_DAMAGE_COMPRESSED;
        if (r != HR__TAR_MORE) return r == HR__TAR_BAD;
    }
}

/* Returns true if the sample that goes on has all its members before one with this name. */
static bool ends_sample(const struct scan *scan, const struct hr__tar_member *member) {
    size_t key_bytes;
    if (member->type != HR__TAR_FILE || !hr__tar_split(member->name, member->name_bytes, &key_bytes)) return false;
    return !is_same_key(scan, member->name, key_bytes);
}

/* Takes the member at scan->at. Returns 1 if it was the last one. */
static int step(struct scan *scan) {
    struct hr__tar_member member;
    const unsigned char *head;
    enum hr_damage damage = HR_DAMAGE_NONE;
    uint64_t left = scan->window->file_bytes - scan->at;
    if (left < HR__TAR_BLOCK) return end_short(scan, left);
    if (scan->at > HR__TAR_AT_MOST) return end_damaged(scan, HR_DAMAGE_REFUSED, false);
    int r = read_head(scan, &member, &head, &damage);
    if (r < 0) return r;
    if (r > 0) return end_damaged(scan, damage, false);
    if (member.type == HR__TAR_END) return look_behind(scan);
    if (member.data_bytes > left - member.head_bytes)
        return end_damaged(scan, HR_DAMAGE_TRUNCATED, ends_sample(scan, &member));
    r = take_member(scan, &member, head);
    if (r < 0) return r;
    if (r > 0) return end_damaged(scan, HR_DAMAGE_FIELDS, false);
    scan->step = hr__min(left, member.head_bytes + hr__tar_padded(member.data_bytes));
    scan->at += scan->step;
    if (scan->at % HR__TAR_BLOCK == 0) return 0;
    scan->at -= scan->step; /* the file ends within the zeros behind a member */
    return end_damaged(scan, HR_DAMAGE_TRUNCATED, false);
}

int hr__tar_scan(struct hr__window *window, struct hr__draft *draft) {
    struct scan *scan = hr__realloc(NULL, sizeof *scan);
    int r = 0;
    if (!scan) return hr__fail(-ENOMEM, "source: no memory to read a tar file");
    memset(scan, 0, sizeof *scan);
    scan->window = window;
    scan->draft = draft;
    while (r == 0) r = step(scan);
    hr__free(scan->seen.slots);
    hr__free(scan);
    return r < 0 ? r : 0;
}
