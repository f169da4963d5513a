/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "cache/files.h"

/* Makes the index of an object of array files, and reads it. All that is read is checked: the file is the user's. */

/* ---- making ---- */

/* The places of the next parts of the index. */
struct maker {
    struct hr__files_entry *entries;
    uint64_t *shapes;
    char *texts;
    uint64_t shape_count, text_bytes;
};

static uint64_t put_text(struct maker *maker, const char *text, uint32_t *ret_bytes) {
    uint64_t at = maker->text_bytes;
    size_t length = strlen(text);
    memcpy(maker->texts + at, text, length);
    maker->text_bytes += length;
    *ret_bytes = (uint32_t)length;
    return at;
}

static void put_entry(struct maker *maker, const hr_files_plan *plan, size_t number) {
    const struct hr__plan_array *array = &plan->arrays[number];
    const struct hr__npy *npy = &array->npy;
    struct hr__files_entry *entry = &maker->entries[number];
    *entry = (struct hr__files_entry){.data_at = array->at,
                                      .bytes = npy->bytes,
                                      .shape_at = maker->shape_count,
                                      .dimension_count = (uint16_t)npy->dimension_count,
                                      .is_member = array->member != NULL,
                                      .is_fortran = npy->is_fortran};
    memcpy(maker->shapes + maker->shape_count, npy->dimensions, npy->dimension_count * sizeof(uint64_t));
    maker->shape_count += npy->dimension_count;
    entry->stem_at = put_text(maker, plan->files[array->file].stem, &entry->stem_bytes);
    entry->member_at = put_text(maker, array->member ? array->member->name : "", &entry->member_bytes);
    entry->dtype_at = put_text(maker, npy->dtype, &entry->dtype_bytes);
}

static void place_arrays(hr_files_plan *plan) {
    uint64_t at = 0;
    for (size_t i = 0; i < plan->array_count; i++) {
        plan->arrays[i].at = at;
        at = hr__round_up(at + plan->arrays[i].npy.bytes, FILES_ALIGN);
    }
    plan->index_at = at;
}

int hr__files_make_index(hr_files_plan *plan) {
    uint64_t shapes = 0, texts = 0, count = plan->array_count;
    place_arrays(plan);
    for (size_t i = 0; i < count; i++) {
        const struct hr__plan_array *array = &plan->arrays[i];
        shapes += array->npy.dimension_count;
        texts += strlen(plan->files[array->file].stem) + (array->member ? strlen(array->member->name) : 0) +
                 strlen(array->npy.dtype);
    }
    uint64_t shapes_at = count * sizeof(struct hr__files_entry), texts_at = shapes_at + shapes * sizeof(uint64_t);
    uint64_t tail_at = hr__round_up(texts_at + texts, 8);
    plan->index_bytes = tail_at + sizeof(struct hr__files_tail);
    plan->index = hr__realloc(NULL, plan->index_bytes);
    if (!plan->index) return -ENOMEM;
    memset(plan->index, 0, plan->index_bytes);
    struct maker maker = {.entries = (void *)plan->index,
                          .shapes = (void *)(plan->index + shapes_at),
                          .texts = (char *)plan->index + texts_at};
    for (size_t i = 0; i < count; i++) put_entry(&maker, plan, i);
    struct hr__files_tail tail = {.magic = HR__FILES_MAGIC,
                                  .count = count,
                                  .entries_at = plan->index_at,
                                  .shapes_at = plan->index_at + shapes_at,
                                  .shape_count = shapes,
                                  .texts_at = plan->index_at + texts_at,
                                  .text_bytes = texts};
    memcpy(plan->index + tail_at, &tail, sizeof tail);
    return 0;
}

/* ---- reading ---- */

static int damaged(void) {
    return hr__fail(HR_E_CORRUPT,
                    "cache: the index of the cached files is damaged; remove the object and warm it again");
}

static bool is_within(uint64_t at, uint64_t count, uint64_t size, uint64_t end) {
    uint64_t bytes, last;
    return hr__mul(count, size, &bytes) && hr__add(at, bytes, &last) && last <= end;
}

static int read_tail(const unsigned char *memory, uint64_t bytes, struct hr__files_tail *ret_tail) {
    struct hr__files_tail tail;
    if (bytes < sizeof tail) return damaged();
    memcpy(&tail, memory + bytes - sizeof tail, sizeof tail);
    uint64_t end = bytes - sizeof tail;
    if (tail.magic != HR__FILES_MAGIC || !is_within(tail.entries_at, tail.count, sizeof(struct hr__files_entry), end) ||
        !is_within(tail.shapes_at, tail.shape_count, 8, end) || !is_within(tail.texts_at, tail.text_bytes, 1, end))
        return damaged();
    *ret_tail = tail;
    return 0;
}

int hr_files_count(const void *memory, uint64_t bytes, uint64_t *ret_count) {
    struct hr__files_tail tail;
    int r = read_tail(memory, bytes, &tail);
    if (r == 0) *ret_count = tail.count;
    return r;
}

static int read_entry(const unsigned char *memory, const struct hr__files_tail *tail, uint64_t number,
                      struct hr__files_entry *ret_entry) {
    struct hr__files_entry entry;
    memcpy(&entry, memory + tail->entries_at + number * sizeof entry, sizeof entry);
    if (!is_within(entry.stem_at, entry.stem_bytes, 1, tail->text_bytes) ||
        !is_within(entry.member_at, entry.member_bytes, 1, tail->text_bytes) ||
        !is_within(entry.dtype_at, entry.dtype_bytes, 1, tail->text_bytes) ||
        !is_within(entry.shape_at, entry.dimension_count, 1, tail->shape_count) ||
        !is_within(entry.data_at, entry.bytes, 1, tail->entries_at) || entry.dimension_count > HR_FILES_MAX_DIMENSIONS)
        return damaged();
    *ret_entry = entry;
    return 0;
}

int hr_files_read(const void *memory, uint64_t bytes, uint64_t number, struct hr_files_array *ret_array) {
    const unsigned char *base = memory;
    struct hr__files_tail tail;
    struct hr__files_entry entry;
    int r = read_tail(memory, bytes, &tail);
    if (r == 0 && number >= tail.count) return hr__fail(-ERANGE, "cache: there are fewer arrays");
    if (r == 0) r = read_entry(memory, &tail, number, &entry);
    if (r < 0) return r;
    const char *texts = (const char *)base + tail.texts_at;
    *ret_array = (struct hr_files_array){.stem = texts + entry.stem_at,
                                         .member = texts + entry.member_at,
                                         .dtype = texts + entry.dtype_at,
                                         .stem_bytes = entry.stem_bytes,
                                         .member_bytes = entry.member_bytes,
                                         .dtype_bytes = entry.dtype_bytes,
                                         .is_member = entry.is_member,
                                         .is_fortran = entry.is_fortran,
                                         .dimension_count = entry.dimension_count,
                                         .data = base + entry.data_at,
                                         .bytes = entry.bytes};
    memcpy(ret_array->dimensions, base + tail.shapes_at + entry.shape_at * 8, (size_t)entry.dimension_count * 8);
    return 0;
}

/* Compares the stem of an entry with a text, as strcmp does. */
static int compare_stem(const unsigned char *memory, const struct hr__files_tail *tail,
                        const struct hr__files_entry *entry, const char *stem, uint64_t stem_bytes) {
    uint64_t common = hr__min(entry->stem_bytes, stem_bytes);
    int order = memcmp(memory + tail->texts_at + entry->stem_at, stem, common);
    return order ? order : (entry->stem_bytes > stem_bytes) - (entry->stem_bytes < stem_bytes);
}

int hr_files_find(const void *memory, uint64_t bytes, const char *stem, uint64_t stem_bytes, uint64_t *ret_first,
                  uint64_t *ret_count) {
    struct hr__files_tail tail;
    struct hr__files_entry entry;
    int r = read_tail(memory, bytes, &tail);
    if (r < 0) return r;
    uint64_t low = 0, high = tail.count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if ((r = read_entry(memory, &tail, middle, &entry)) < 0) return r;
        if (compare_stem(memory, &tail, &entry, stem, stem_bytes) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    uint64_t count = 0;
    for (; low + count < tail.count; count++) {
        if ((r = read_entry(memory, &tail, low + count, &entry)) < 0) return r;
        if (compare_stem(memory, &tail, &entry, stem, stem_bytes) != 0) break;
    }
    *ret_first = low;
    *ret_count = count;
    return count > 0;
}
