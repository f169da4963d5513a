/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of tar files: finds and reads them, and compares each header with the index. */
#include "tar.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"

/* ---- opening ---- */

static int add_file(hr_tar *tar, const char *path, const struct hr_index_file *known) {
    struct hr__file_info now;
    uint32_t number;
    int r = hr__place_look(path, &now);
    if (r < 0) return r;
    if (!now.is_regular) return hr__fail(-EINVAL, "source: %s is not a regular file", path);
    if (now.bytes != known->bytes || now.changed_ns != known->changed_ns)
        return hr__fail(-ESTALE,
                        "source: %s was changed since its index was made. Open the source again, and do not write to "
                        "files that are in use" HR_HELP("source-changed"),
                        path);
    return hr__pool_add_known(tar->pool, path, &now, &number);
}

static int fill(hr_tar *tar, const char *const *paths, size_t path_count, const struct hr_tar_options *options) {
    const struct hr__index_head *head = tar->index->head;
    if (head->kind != HR_INDEX_TAR || head->file_count != path_count)
        return hr__fail(-EINVAL, "source: the index is of %" PRIu64 " tar files, and not of these %zu",
                        head->file_count, path_count);
    if (head->entry_count && !tar->index->starts) return hr__fail(-EINVAL, "source: an index of tar has no samples");
    int r = hr__pool_new(&tar->pool);
    for (size_t i = 0; r == 0 && i < path_count; i++) r = add_file(tar, paths[i], &tar->index->files[i]);
    return r < 0 ? r : hr__tar_select(tar, options);
}

int hr_tar_open(const char *const *paths, size_t path_count, const hr_index *index,
                const struct hr_tar_options *options, hr_tar **ret_tar) {
    if (path_count >= UINT32_MAX / 4 || options->field_count > HR_FIELDS_MOST)
        return hr__fail(-EINVAL, "source: %zu paths or %zu fields are too many", path_count, options->field_count);
    hr_tar *tar = hr__realloc(NULL, sizeof *tar);
    if (!tar) return hr__fail(-ENOMEM, "source: no memory to open tar files");
    *tar = (hr_tar){.index = index};
    int r = fill(tar, paths, path_count, options);
    if (r == 0)
        *ret_tar = tar;
    else
        hr_tar_close(tar);
    return r == -ENOMEM ? hr__fail(r, "source: no memory to open %zu tar files", path_count) : r;
}

hr_tar *hr_tar_close(hr_tar *tar) {
    if (!tar) return NULL;
    hr__pool_free(tar->pool);
    hr__free(tar->wants);
    hr__free(tar->selected);
    hr__free(tar);
    return NULL;
}

void hr_tar_look(const hr_tar *tar, struct hr_tar_info *ret_info) {
    *ret_info = (struct hr_tar_info){tar->sample_count, tar->missing_count, tar->repeated_count};
}

/* ---- finding ---- */

int hr__tar_entry(const hr_tar *tar, const struct hr_index_file *file, uint64_t number,
                  struct hr_tar_member *ret_member) {
    struct hr__tar_entry entry = hr__tar_unpack(tar->index->entries[number]);
    uint64_t data_at = entry.head_at + entry.head_bytes, name;
    if (!hr__tar_name(file, entry.field, &name) || entry.head_bytes == 0 || data_at > file->bytes ||
        entry.data_bytes > file->bytes - data_at)
        return hr__fail(-EINVAL, "source: an index is damaged: a member is outside of its file. Delete it, and it is "
                                 "made again");
    *ret_member = (struct hr_tar_member){name, entry.head_at, data_at, entry.data_bytes, number};
    return 0;
}

static int find_all(const hr_tar *tar, const struct hr__sample *sample, struct hr_tar_member *ret_members,
                    size_t room) {
    const struct hr_index_file *file = &tar->index->files[sample->file];
    for (uint64_t i = 0; i < hr__min(sample->count, room); i++) {
        int r = hr__tar_entry(tar, file, sample->first + i, &ret_members[i]);
        if (r < 0) return r;
    }
    return (int)hr__min(sample->count, INT32_MAX);
}

/* Finds the members that are wanted; of alternatives the one that was asked for first. */
static int find_wanted(const hr_tar *tar, const struct hr__sample *sample, struct hr_tar_member *ret_members,
                       size_t room) {
    const struct hr_index_file *file = &tar->index->files[sample->file];
    size_t found = 0;
    for (size_t i = 0; i < room && i < tar->field_count; i++) ret_members[i].head_at = UINT64_MAX;
    for (uint64_t i = sample->first; i < sample->first + sample->count; i++) {
        struct hr_tar_member member;
        int r = hr__tar_entry(tar, file, i, &member);
        if (r < 0) return r;
        struct hr__tar_want want = tar->wants[member.name];
        if (want.field >= room) continue; /* HR__TAR_UNWANTED, too */
        struct hr_tar_member *place = &ret_members[want.field];
        bool is_first = place->head_at == UINT64_MAX;
        if (is_first || want.turn < tar->wants[place->name].turn) *place = member;
        found += is_first;
    }
    if (found == hr__min(room, tar->field_count)) return (int)tar->field_count;
    return hr__fail(-EINVAL, "source: an index was changed while it was used: a sample lacks a field");
}

int hr_tar_find(const hr_tar *tar, uint64_t number, struct hr_tar_member *ret_members, size_t room,
                uint64_t *ret_file) {
    struct hr__sample sample;
    if (number >= tar->sample_count)
        return hr__fail(-ERANGE, "source: there is no sample %" PRIu64 " of %" PRIu64, number, tar->sample_count);
    int r = hr__index_sample(tar->index, tar->selected ? tar->selected[number] : number, &sample);
    if (r < 0) return r;
    *ret_file = sample.file;
    return tar->wants ? find_wanted(tar, &sample, ret_members, room) : find_all(tar, &sample, ret_members, room);
}

/* ---- reading ---- */

enum { HEADS_BYTES = 8 << 10, GAP_BYTES = 8 << 10, RUN_MOST = 16 };

/* Members that are read in one go: their headers, their data, and what is between them. */
struct run {
    const hr_tar *tar;
    uint64_t file;
    const struct hr_tar_member *members;
    void *const *targets;
    unsigned char *heads; /* the headers, one after the other */
    unsigned char *gap;   /* GAP_BYTES, for what is not needed */
};

static size_t head_bytes(const struct hr_tar_member *member) {
    return (size_t)(member->data_at - member->head_at);
}

/* Compares the header of a member, as it is in the file, with the index. Returns the length of its key in *ret_key. */
static bool is_right(const hr_tar *tar, const struct hr_tar_member *member, const unsigned char *head,
                     struct hr__tar_member *ret_found, size_t *ret_key) {
    struct hr__tar_entry entry = hr__tar_unpack(tar->index->entries[member->entry]);
    size_t needed = head_bytes(member), key, i = 0;
    enum hr_damage damage;
    uint64_t name_bytes;
    if (hr__tar_hash(head, needed) != entry.hash) return false;
    if (hr__tar_parse(head, needed, ret_found, &needed, &damage) != 0 || ret_found->type != HR__TAR_FILE) return false;
    if (ret_found->head_bytes != head_bytes(member) || ret_found->data_bytes != member->bytes) return false;
    if (!hr__tar_split(ret_found->name, ret_found->name_bytes, &key)) return false;
    const char *field = ret_found->name + key + 1, *name = hr_index_name(tar->index, member->name, &name_bytes);
    if (!name || name_bytes != ret_found->name_bytes - key - 1) return false;
    while (i < name_bytes && hr__tar_lower(field[i]) == name[i]) i++;
    *ret_key = key;
    return i == name_bytes;
}

static int wrong_head(const hr_tar *tar, uint64_t file, const struct hr_tar_member *member) {
    return hr__fail(-ESTALE,
                    "source: the member at offset %" PRIu64 " of %s is not the one that its index was made of: the "
                    "file was changed, or the index is that of another file. Delete the .hri file if there is one, and "
                    "open the source again",
                    member->head_at, hr__pool_file(tar->pool, (uint32_t)file)->path);
}

/* The key of the sample, which all its members have. */
struct key {
    char *text; /* NULL: it is not wanted */
    size_t room, bytes;
    uint64_t hash;
    bool is_known;
};

/* Takes the key of a member. Returns false if it is not that of the members before it. */
static bool take_key(struct key *key, const char *name, size_t bytes) {
    uint64_t hash = hr__tar_key_hash(name, bytes);
    if (key->is_known) return key->bytes == bytes && key->hash == hash;
    key->is_known = true;
    key->bytes = bytes;
    key->hash = hash;
    if (key->text) memcpy(key->text, name, hr__min(bytes, key->room));
    return true;
}

static int check_heads(const struct run *run, size_t count, struct key *key) {
    const unsigned char *head = run->heads;
    for (size_t i = 0; i < count; i++) {
        struct hr__tar_member found;
        size_t key_bytes = 0;
        if (!is_right(run->tar, &run->members[i], head, &found, &key_bytes) || !take_key(key, found.name, key_bytes))
            return wrong_head(run->tar, run->file, &run->members[i]);
        head += head_bytes(&run->members[i]);
    }
    return 0;
}

/* Reads `count` members in one go, and checks them. */
static int read_run(const struct run *run, size_t count, struct key *key) {
    struct hr__read_part places[3 * RUN_MOST];
    size_t used = 0;
    unsigned char *head = run->heads;
    uint64_t at = run->members[0].head_at;
    for (size_t i = 0; i < count; i++) {
        const struct hr_tar_member *member = &run->members[i];
        if (member->head_at > at) places[used++] = (struct hr__read_part){run->gap, (size_t)(member->head_at - at)};
        places[used++] = (struct hr__read_part){head, head_bytes(member)};
        head += head_bytes(member);
        at = member->data_at;
        if (!run->targets) continue;
        places[used++] = (struct hr__read_part){run->targets[i], (size_t)member->bytes};
        at += member->bytes;
    }
    int r = hr__pool_read_parts(run->tar->pool, (uint32_t)run->file, run->members[0].head_at, places, used);
    return r < 0 ? r : check_heads(run, count, key);
}

/* Counts the members that can be read in one go: neighbours, whose headers have room. */
static size_t count_run(const struct hr_tar_member *members, size_t count, bool reads_data) {
    size_t heads = head_bytes(&members[0]), i = 1;
    for (; i < count && i < RUN_MOST; i++) {
        uint64_t end = members[i - 1].data_at + (reads_data ? members[i - 1].bytes : 0);
        heads += head_bytes(&members[i]);
        if (heads > HEADS_BYTES || members[i].head_at < end || members[i].head_at - end > GAP_BYTES) break;
    }
    return i;
}

/* Reads members that are in the order of the file. */
static int read_ordered(struct run run, size_t count, struct key *key) {
    unsigned char heads[HEADS_BYTES], gap[GAP_BYTES], *large = NULL;
    int r = 0;
    run.gap = gap;
    while (r == 0 && count) {
        size_t some = count_run(run.members, count, run.targets != NULL);
        run.heads = heads;
        if (head_bytes(&run.members[0]) > HEADS_BYTES) {
            large = large ? large : hr__realloc(NULL, HR__TAR_HEAD_MOST);
            if (!large) return hr__fail(-ENOMEM, "source: no memory for the headers of a member");
            run.heads = large;
        }
        r = read_run(&run, some, key);
        run.members += some;
        if (run.targets) run.targets += some;
        count -= some;
    }
    hr__free(large);
    return r;
}

/* Sorts the members by their place in the file, and the targets with them. Few, and mostly in order. */
static void sort(struct hr_tar_member *members, void **targets, size_t count) {
    for (size_t i = 1; i < count; i++)
        for (size_t k = i; k > 0 && members[k - 1].head_at > members[k].head_at; k--) {
            struct hr_tar_member member = members[k];
            void *target = targets[k];
            members[k] = members[k - 1];
            targets[k] = targets[k - 1];
            members[k - 1] = member;
            targets[k - 1] = target;
        }
}

/* Reads members in any order, a block of them at a time. */
static int read_sorted(struct run run, size_t count, struct key *key) {
    enum { BLOCK = 32 };
    struct hr_tar_member members[BLOCK];
    void *targets[BLOCK];
    for (size_t done = 0; done < count;) {
        size_t some = (size_t)hr__min(BLOCK, count - done);
        memcpy(members, run.members + done, some * sizeof *members);
        memcpy(targets, run.targets + done, some * sizeof *targets);
        sort(members, targets, some);
        struct run part = {.tar = run.tar, .file = run.file, .members = members, .targets = targets};
        int r = read_ordered(part, some, key);
        if (r < 0) return r;
        done += some;
    }
    return 0;
}

int hr_tar_read(const hr_tar *tar, uint64_t file, const struct hr_tar_member *members, size_t count,
                void *const *targets, char *ret_key, size_t key_room, size_t *ret_key_bytes) {
    struct run run = {.tar = tar, .file = file, .members = members, .targets = targets};
    struct key key = {.room = key_room};
    key.text = ret_key;
    if (file >= tar->index->head->file_count) return hr__fail(-ERANGE, "source: there is no file %" PRIu64, file);
    int r = targets ? read_sorted(run, count, &key) : read_ordered(run, count, &key);
    if (r == 0 && ret_key) *ret_key_bytes = key.bytes;
    return r;
}

/* ---- asking ahead ---- */

static void ask_sample(const hr_tar *tar, uint64_t number, hr_announcer *announcer) {
    enum { SOME = 64 };
    struct hr_tar_member members[SOME];
    uint64_t file;
    int found = hr_tar_find(tar, number, members, SOME, &file);
    if (found <= 0) return;
    uint64_t begin = UINT64_MAX, end = 0, bytes = 0;
    size_t count = (size_t)hr__min((uint64_t)found, SOME);
    for (size_t i = 0; i < count; i++) {
        begin = hr__min(begin, members[i].head_at);
        end = hr__max(end, members[i].data_at + members[i].bytes);
        bytes += members[i].data_at + members[i].bytes - members[i].head_at;
    }
    if (end - begin <= bytes + count * GAP_BYTES) {
        hr__pool_ask(tar->pool, (uint32_t)file, begin, end - begin, announcer);
        return;
    }
    for (size_t i = 0; i < count; i++)
        hr__pool_ask(tar->pool, (uint32_t)file, members[i].head_at,
                     members[i].data_at + members[i].bytes - members[i].head_at, announcer);
}

void hr_tar_ask(const hr_tar *tar, const int64_t *samples, size_t count, hr_announcer *announcer) {
    for (size_t i = 0; i < count; i++)
        if (samples[i] >= 0 && (uint64_t)samples[i] < tar->sample_count)
            ask_sample(tar, (uint64_t)samples[i], announcer);
}
