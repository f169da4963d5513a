/* SPDX-License-Identifier: Apache-2.0 */
/* The serial form of an index: makes, checks and reads it. */
#include "index.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "base/hash.h"

static const char magic[8] = "HRINDEX";
static const uint64_t PART_ALIGN = 8;

_Static_assert(sizeof(struct hr__index_head) == 120, "the head is a part of the serial form");
_Static_assert(sizeof(struct hr_index_file) == 176, "the record of a file is a part of the serial form");

/* ---- the parts ---- */

/* The offsets of the parts. */
struct parts {
    uint64_t files, entries, starts, name_ends, names, end;
};

static bool add_part(uint64_t begin, uint64_t count, uint64_t size, uint64_t *ret_end) {
    uint64_t bytes, end;
    if (!hr__mul(count, size, &bytes) || !hr__add(begin, bytes, &end) || end > UINT64_MAX / 2) return false;
    *ret_end = hr__round_up(end, PART_ALIGN);
    return true;
}

/* Returns false if the sizes are impossible. */
static bool find_parts(const struct hr__index_head *head, struct parts *ret_parts) {
    ret_parts->files = sizeof *head;
    return add_part(ret_parts->files, head->file_count, sizeof(struct hr_index_file), &ret_parts->entries) &&
           add_part(ret_parts->entries, head->entry_count, sizeof(struct hr__entry), &ret_parts->starts) &&
           add_part(ret_parts->starts, head->start_count, sizeof(uint32_t), &ret_parts->name_ends) &&
           add_part(ret_parts->name_ends, head->name_count, sizeof(uint32_t), &ret_parts->names) &&
           add_part(ret_parts->names, head->name_bytes, 1, &ret_parts->end);
}

static void set_parts(hr_index *index, const unsigned char *block, const struct parts *parts) {
    index->head = (const void *)block;
    index->files = (const void *)(block + parts->files);
    index->entries = (const void *)(block + parts->entries);
    index->starts = index->head->start_count ? (const void *)(block + parts->starts) : NULL;
    index->name_ends = (const void *)(block + parts->name_ends);
    index->names = (const char *)block + parts->names;
}

static uint64_t sum_of(const struct hr__index_head *head) {
    struct hr__index_head copy = *head;
    copy.sum = 0;
    return hr__hash(head + 1, head->bytes - sizeof *head, hr__hash(&copy, sizeof copy, HR_INDEX_VERSION));
}

/* ---- making ---- */

int hr__index_new(const struct hr__index_head *sizes, hr_index **ret_index) {
    struct parts parts;
    if (!find_parts(sizes, &parts)) return hr__fail(-EOVERFLOW, "source: an index is too large");
    hr_index *index = hr__realloc(NULL, sizeof *index);
    unsigned char *block = index ? hr__realloc(NULL, parts.end) : NULL;
    if (!block) {
        hr__free(index);
        return hr__fail(-ENOMEM, "source: no memory for an index of %" PRIu64 " bytes", parts.end);
    }
    struct hr__index_head *head = (void *)block;
    /* The bytes between the parts are in the sum, too. */
    if (parts.end > parts.files) memset(block + parts.files, 0, parts.entries - parts.files);
    memset(block + parts.starts, 0, parts.end - parts.starts);
    *head = *sizes;
    memcpy(head->magic, magic, sizeof magic);
    head->version = HR_INDEX_VERSION;
    head->bytes = parts.end;
    *index = (hr_index){.owned = block};
    set_parts(index, block, &parts);
    *ret_index = index;
    return 0;
}

void hr__index_seal(hr_index *index) {
    struct hr__index_head *head = index->owned;
    head->sum = sum_of(head);
}

/* ---- checking ---- */

/* Each line is a sample; members of tar files are put together to samples. */
static bool has_right_samples(const struct hr__index_head *head) {
    return head->kind == HR_INDEX_LINES ? head->start_count == 0 : head->start_count > 0 || head->entry_count == 0;
}

static int damaged(const char *what) {
    return hr__fail(-EINVAL, "source: an index is damaged: %s. Delete it, and it is made again", what);
}

static int check_head(const struct hr__index_head *head, uint64_t bytes, enum hr_index_kind kind,
                      struct parts *ret_parts) {
    if (memcmp(head->magic, magic, sizeof magic) != 0) return hr__fail(-EINVAL, "source: this is no index of headrace");
    if (head->version != HR_INDEX_VERSION)
        return hr__fail(HR_E_VERSION, "source: an index has version %u, and this headrace reads version %d",
                        head->version, HR_INDEX_VERSION);
    if (head->kind != (uint32_t)kind)
        return hr__fail(-EINVAL, "source: an index is of kind %u, where one of kind %d is expected (1: tar, 2: lines)",
                        head->kind, (int)kind);
    if (!find_parts(head, ret_parts) || ret_parts->end != head->bytes || head->bytes != bytes)
        return damaged("its size is not that of its parts");
    if (!has_right_samples(head)) return damaged("its samples are not those of its kind");
    return 0;
}

static int check_files(const hr_index *index) {
    const struct hr__index_head *head = index->head;
    uint64_t entries = 0, samples = 0, names = 0;
    for (uint64_t i = 0; i < head->file_count; i++) {
        const struct hr_index_file *file = &index->files[i];
        if (file->first_entry != entries || file->first_sample != samples || file->first_name != names)
            return damaged("the counts of its files do not add up");
        if (!hr__add(entries, file->entry_count, &entries) || !hr__add(samples, file->sample_count, &samples) ||
            !hr__add(names, file->name_count, &names) || file->entry_count > UINT32_MAX ||
            file->damage >= HR_DAMAGE_COUNT || file->good_bytes > file->bytes)
            return damaged("the numbers of a file are impossible");
    }
    uint64_t start_count = index->starts ? head->start_count : head->entry_count;
    if (entries != head->entry_count || samples != start_count || names != head->name_count)
        return damaged("the counts of its files do not add up");
    return 0;
}

static int check_names(const hr_index *index) {
    uint64_t end = 0;
    for (uint64_t i = 0; i < index->head->name_count; i++) {
        if (index->name_ends[i] < end || index->name_ends[i] > index->head->name_bytes)
            return damaged("its names overlap");
        end = index->name_ends[i];
    }
    return 0;
}

int hr_index_open(const void *data, uint64_t bytes, enum hr_index_kind kind, bool checks_sum, hr_index **ret_index) {
    const struct hr__index_head *head = data;
    struct parts parts;
    hr_index found = {0};
    if (bytes < sizeof *head || (uintptr_t)data % PART_ALIGN) return damaged("it has less bytes than its head");
    int r = check_head(head, bytes, kind, &parts);
    if (r < 0) return r;
    set_parts(&found, data, &parts);
    r = check_files(&found);
    if (r == 0) r = check_names(&found);
    if (r == 0 && checks_sum && sum_of(head) != head->sum) r = damaged("its checksum is wrong");
    if (r < 0) return r;
    hr_index *index = hr__realloc(NULL, sizeof *index);
    if (!index) return hr__fail(-ENOMEM, "source: no memory to open an index");
    *index = found;
    *ret_index = index;
    return 0;
}

hr_index *hr_index_close(hr_index *index) {
    if (!index) return NULL;
    hr__free(index->owned);
    hr__free(index);
    return NULL;
}

/* ---- what there is ---- */

const void *hr_index_data(const hr_index *index, uint64_t *ret_bytes) {
    *ret_bytes = index->head->bytes;
    return index->head;
}

void hr_index_look(const hr_index *index, struct hr_index_info *ret_info) {
    const struct hr__index_head *head = index->head;
    *ret_info = (struct hr_index_info){.kind = (enum hr_index_kind)head->kind,
                                       .file_count = head->file_count,
                                       .entry_count = head->entry_count,
                                       .sample_count = index->starts ? head->start_count : head->entry_count,
                                       .bytes = head->bytes};
}

const struct hr_index_file *hr_index_look_file(const hr_index *index, uint64_t number) {
    return number < index->head->file_count ? &index->files[number] : NULL;
}

const char *hr_index_name(const hr_index *index, uint64_t number, uint64_t *ret_bytes) {
    if (number >= index->head->name_count) return NULL;
    uint64_t begin = number ? index->name_ends[number - 1] : 0;
    *ret_bytes = index->name_ends[number] - begin;
    return index->names + begin;
}

/* ---- samples ---- */

/* The last file that does not begin behind a sample, and is not empty. */
static uint64_t file_of(const hr_index *index, uint64_t number) {
    uint64_t low = 0, high = index->head->file_count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (index->files[middle].first_sample <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int hr__index_sample(const hr_index *index, uint64_t number, struct hr__sample *ret_sample) {
    uint64_t count = index->starts ? index->head->start_count : index->head->entry_count;
    if (number >= count) return hr__fail(-ERANGE, "source: there is no sample %" PRIu64 " of %" PRIu64, number, count);
    return hr__index_sample_of(index, file_of(index, number), number, ret_sample);
}

int hr__index_sample_of(const hr_index *index, uint64_t which, uint64_t number, struct hr__sample *ret_sample) {
    const struct hr_index_file *file = &index->files[which];
    uint64_t place = number - file->first_sample, first = place, end = place + 1;
    if (index->starts) {
        first = index->starts[number];
        end = place + 1 < file->sample_count ? index->starts[number + 1] : file->entry_count;
    }
    if (first >= end || end > file->entry_count) return damaged("a sample has no entries");
    *ret_sample = (struct hr__sample){.file = which, .first = file->first_entry + first, .count = end - first};
    return 0;
}
