/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the samples of tar files that have all fields, and each once. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "tar.h"

enum { SHOWN = 3, KEY_BYTES = 200, LIST_BYTES = 256 };

/* Samples of one fault: how many, and the first ones. */
struct fault {
    uint64_t count;
    uint64_t samples[SHOWN];
};

struct selection {
    hr_tar *tar;
    const struct hr_tar_options *options;
    struct fault missing, repeated;
    uint64_t *seen;  /* for each number of a field in a file: the last sample that has it, + 1 */
    uint64_t *found; /* the same for each wanted field */
};

/* ---- the fields that are wanted ---- */

/* Finds a name among the alternatives of a field. */
static bool find_turn(const char *field, const char *name, uint64_t bytes, uint32_t *ret_turn) {
    for (uint32_t turn = 0; *field; turn++) {
        size_t length = strcspn(field, ";");
        if (length == bytes && memcmp(field, name, length) == 0) {
            *ret_turn = turn;
            return true;
        }
        field += length + (field[length] == ';');
    }
    return false;
}

static struct hr__tar_want want_of(const struct hr_tar_options *options, const char *name, uint64_t bytes) {
    struct hr__tar_want want = {HR__TAR_UNWANTED, 0};
    for (uint32_t i = 0; i < options->field_count; i++)
        if (find_turn(options->fields[i], name, bytes, &want.turn)) want.field = i;
    return want;
}

static int read_wants(hr_tar *tar, const struct hr_tar_options *options) {
    uint64_t count = tar->index->head->name_count, bytes;
    if (!options->field_count) return 0;
    tar->wants = hr__mul(count + 1, sizeof *tar->wants, &bytes) ? hr__realloc(NULL, bytes) : NULL;
    if (!tar->wants) return hr__fail(-ENOMEM, "source: no memory for %" PRIu64 " names of fields", count);
    for (uint64_t i = 0; i < count; i++) {
        const char *name = hr_index_name(tar->index, i, &bytes);
        tar->wants[i] = want_of(options, name, bytes);
    }
    return 0;
}

/* ---- samples ---- */

static void note(struct fault *fault, uint64_t sample) {
    if (fault->count < SHOWN) fault->samples[fault->count] = sample;
    fault->count++;
}

/* Looks at the entries of a sample. Returns true if it can be used; negative errno: the index is damaged. */
static int judge(struct selection *selection, uint64_t file, uint64_t number) {
    hr_tar *tar = selection->tar;
    struct hr__sample sample;
    bool is_repeated = false;
    size_t found = 0;
    int r = hr__index_sample_of(tar->index, file, number, &sample);
    if (r < 0) return r;
    for (uint64_t i = sample.first; i < sample.first + sample.count; i++) {
        struct hr__tar_entry entry = hr__tar_unpack(tar->index->entries[i]);
        uint64_t name;
        if (!hr__tar_name(&tar->index->files[sample.file], entry.field, &name))
            return hr__fail(-EINVAL, "source: an index is damaged: a member has no field");
        is_repeated |= selection->seen[entry.field] == number + 1;
        selection->seen[entry.field] = number + 1;
        uint32_t field = tar->wants ? tar->wants[name].field : HR__TAR_UNWANTED;
        if (field == HR__TAR_UNWANTED || selection->found[field] == number + 1) continue;
        selection->found[field] = number + 1;
        found++;
    }
    if (is_repeated) note(&selection->repeated, number);
    if (found < tar->field_count) note(&selection->missing, number);
    return !is_repeated && found == tar->field_count;
}

/* Adds a sample to those that are there. The first one that is left out makes a list of the ones before it. */
static int leave_out(hr_tar *tar, uint64_t number, uint64_t total) {
    uint64_t bytes;
    if (tar->selected) return 0;
    tar->selected = hr__mul(total, sizeof *tar->selected, &bytes) ? hr__realloc(NULL, bytes) : NULL;
    if (!tar->selected) return hr__fail(-ENOMEM, "source: no memory for the numbers of %" PRIu64 " samples", total);
    for (uint64_t i = 0; i < number; i++) tar->selected[i] = i;
    return 0;
}

static int judge_file(struct selection *selection, uint64_t which, uint64_t total) {
    hr_tar *tar = selection->tar;
    const struct hr_index_file *file = &tar->index->files[which];
    for (uint64_t i = file->first_sample; i < file->first_sample + file->sample_count; i++) {
        int r = judge(selection, which, i);
        if (r == 0) r = leave_out(tar, i, total);
        if (r < 0) return r;
        if (r == 0) continue;
        if (tar->selected) tar->selected[tar->sample_count] = i;
        tar->sample_count++;
    }
    return 0;
}

static int judge_all(struct selection *selection) {
    struct hr_index_info info;
    hr_index_look(selection->tar->index, &info);
    int r = 0;
    for (uint64_t i = 0; r == 0 && i < info.file_count; i++) r = judge_file(selection, i, info.sample_count);
    return r;
}

/* ---- what is wrong with them ---- */

/* Reads the key of a sample; "" if that fails. Keeps the message, because a failed read has its own. */
static void read_key(const hr_tar *tar, const struct hr__sample *sample, char *key) {
    enum { MESSAGE_BYTES = 1024 };
    size_t key_bytes = 0;
    struct hr_tar_member member;
    char message[MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", hr_error_message());
    *key = '\0';
    if (hr__tar_entry(tar, &tar->index->files[sample->file], sample->first, &member) == 0 &&
        hr_tar_read(tar, sample->file, &member, 1, NULL, key, KEY_BYTES, &key_bytes) == 0)
        key[hr__min(key_bytes, KEY_BYTES)] = '\0';
    hr__message_set("%s", message);
}

/* Adds a word to a list. */
static void list(char *words, const char *word, uint64_t bytes) {
    size_t length = strlen(words);
    snprintf(words + length, LIST_BYTES - length, "%s'%.*s'", length ? ", " : "", (int)hr__min(bytes, LIST_BYTES),
             word);
}

/* Lists the fields that a sample has, and those that are wanted and are not there. */
static void list_fields(const hr_tar *tar, const struct hr_tar_options *options, const struct hr__sample *sample,
                        char *has, char *lacks) {
    *has = *lacks = '\0';
    for (uint32_t wanted = 0; wanted < options->field_count; wanted++) {
        bool is_there = false;
        for (uint64_t i = sample->first; i < sample->first + sample->count; i++) {
            uint64_t name;
            uint32_t field = hr__tar_unpack(tar->index->entries[i]).field;
            if (hr__tar_name(&tar->index->files[sample->file], field, &name))
                is_there |= tar->wants[name].field == wanted;
        }
        if (!is_there) list(lacks, options->fields[wanted], strlen(options->fields[wanted]));
    }
    for (uint64_t i = sample->first; i < sample->first + sample->count; i++) {
        uint64_t name, bytes;
        uint32_t field = hr__tar_unpack(tar->index->entries[i]).field;
        if (!hr__tar_name(&tar->index->files[sample->file], field, &name)) continue;
        const char *text = hr_index_name(tar->index, name, &bytes);
        if (text) list(has, text, bytes);
    }
}

/* Adds a line about a sample to the message. */
static void tell_sample(const struct selection *selection, uint64_t number) {
    const hr_tar *tar = selection->tar;
    struct hr__sample sample;
    char key[KEY_BYTES + 1], has[LIST_BYTES], lacks[LIST_BYTES];
    if (hr__index_sample(tar->index, number, &sample) < 0) return;
    read_key(tar, &sample, key);
    list_fields(tar, selection->options, &sample, has, lacks);
    hr__message_add(
        "  %s, offset %" PRIu64 ": key '%s' has %s%s%s", hr__pool_file(tar->pool, (uint32_t)sample.file)->path,
        hr__tar_unpack(tar->index->entries[sample.first]).head_at, key, has, *lacks ? ", and lacks " : "", lacks);
}

static int refuse(const struct selection *selection, const struct fault *fault, const char *what, const char *advice) {
    struct hr_index_info info;
    hr_index_look(selection->tar->index, &info);
    hr__message_set("source: %" PRIu64 " of %" PRIu64 " samples %s. %s. The first of them:", fault->count,
                    info.sample_count, what, advice);
    for (uint64_t i = 0; i < hr__min(fault->count, SHOWN); i++) tell_sample(selection, fault->samples[i]);
    return -EINVAL;
}

/* ---- keys that come again ---- */

/* Reads the key of the sample that begins at an offset. */
static void read_key_at(const hr_tar *tar, uint64_t file, uint64_t at, char *key) {
    const struct hr_index_file *found = &tar->index->files[file];
    struct hr__sample sample;
    *key = '\0';
    for (uint64_t i = 0; i < found->sample_count; i++)
        if (hr__index_sample(tar->index, found->first_sample + i, &sample) == 0 &&
            hr__tar_unpack(tar->index->entries[sample.first]).head_at == at) {
            read_key(tar, &sample, key);
            return;
        }
}

/* Without fields, nothing else would show that the members of a sample are not neighbours: each part is a sample. */
static int check_keys(const hr_tar *tar) {
    char key[KEY_BYTES + 1];
    for (uint64_t i = 0; i < tar->index->head->file_count; i++) {
        const uint64_t *counts = tar->index->files[i].counts;
        if (!counts[HR_TAR_REPEATS]) continue;
        read_key_at(tar, i, counts[HR_TAR_AGAIN], key);
        return hr__fail(-EINVAL,
                        "source: %s has the key '%s' at offset %" PRIu64 " and again at offset %" PRIu64
                        ", with other samples between them (%" PRIu64
                        " such samples in this file), so each would be only a part. Pack the file again with the "
                        "members of a sample side by "
                        "side (tar --sort=name), or give fields, if each part has all of them",
                        hr__pool_file(tar->pool, (uint32_t)i)->path, key, counts[HR_TAR_FIRST], counts[HR_TAR_AGAIN],
                        counts[HR_TAR_REPEATS]);
    }
    return 0;
}

static int check(const struct selection *selection) {
    const struct hr_tar_options *options = selection->options;
    if (selection->repeated.count && !options->skips_repeated)
        return refuse(selection, &selection->repeated, "have a field twice",
                      "Give them different names, or damaged=\"skip\" leaves them out");
    if (selection->missing.count && !options->skips_missing)
        return refuse(selection, &selection->missing, "lack a field",
                      "Ask for other fields, or missing=\"skip\" leaves them out; members of a sample have to be side "
                      "by side (tar --sort=name)");
    return options->field_count ? 0 : check_keys(selection->tar);
}

int hr__tar_select(hr_tar *tar, const struct hr_tar_options *options) {
    struct selection selection = {.tar = tar, .options = options};
    uint64_t bytes = (HR_FIELDS_MOST + options->field_count) * sizeof *selection.seen;
    tar->field_count = options->field_count;
    int r = read_wants(tar, options);
    if (r < 0) return r;
    selection.seen = hr__realloc(NULL, bytes);
    if (!selection.seen) return hr__fail(-ENOMEM, "source: no memory to look for fields");
    memset(selection.seen, 0, bytes);
    selection.found = selection.seen + HR_FIELDS_MOST;
    r = judge_all(&selection);
    tar->missing_count = selection.missing.count;
    tar->repeated_count = selection.repeated.count;
    if (r == 0) r = check(&selection);
    hr__free(selection.seen);
    return r;
}
