/* SPDX-License-Identifier: Apache-2.0 */
/* The index of one file, while it is made. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "index.h"

void hr__draft_init(struct hr__draft *draft) {
    *draft = (struct hr__draft){0};
}

void hr__draft_done(struct hr__draft *draft) {
    hr__free(draft->entries);
    hr__free(draft->starts);
    hr__free(draft->names);
    hr__free(draft->name_ends);
    hr__draft_init(draft);
}

/* Makes room for `count` elements of `size` bytes. */
static int make_room(void **array, uint64_t *room, uint64_t count, size_t size) {
    enum { FIRST = 64 };
    if (count <= *room) return 0;
    uint64_t more = hr__max(count, *room + *room / 2 + FIRST);
    void *grown = hr__realloc(*array, more * size);
    if (!grown) return hr__fail(-ENOMEM, "source: no memory for an index of %" PRIu64 " entries", count);
    *array = grown;
    *room = more;
    return 0;
}

int hr__draft_add(struct hr__draft *draft, struct hr__entry entry) {
    uint64_t count = draft->file.entry_count;
    if (count == UINT32_MAX) return hr__fail(-EOVERFLOW, "source: a file has more than %u entries", UINT32_MAX);
    int r = make_room((void **)&draft->entries, &draft->entry_room, count + 1, sizeof entry);
    if (r < 0) return r;
    draft->entries[count] = entry;
    draft->file.entry_count++;
    return 0;
}

int hr__draft_start(struct hr__draft *draft) {
    int r = make_room((void **)&draft->starts, &draft->start_room, draft->start_count + 1, sizeof *draft->starts);
    if (r < 0) return r;
    draft->starts[draft->start_count++] = (uint32_t)draft->file.entry_count;
    draft->has_starts = true;
    return 0;
}

static bool is_name(const struct hr__draft *draft, uint64_t number, const char *name, size_t bytes) {
    uint32_t begin = number ? draft->name_ends[number - 1] : 0;
    return draft->name_ends[number] - begin == bytes && memcmp(draft->names + begin, name, bytes) == 0;
}

static int add_name(struct hr__draft *draft, const char *name, size_t bytes) {
    if (draft->name_count == HR_FIELDS_MOST || bytes > UINT32_MAX / HR_FIELDS_MOST) return -E2BIG;
    int r = make_room((void **)&draft->names, &draft->name_room, draft->name_bytes + bytes + 1, 1);
    if (r == 0)
        r = make_room((void **)&draft->name_ends, &draft->ends_room, draft->name_count + 1, sizeof *draft->name_ends);
    if (r < 0) return r;
    memcpy(draft->names + draft->name_bytes, name, bytes);
    draft->name_bytes += bytes;
    draft->name_ends[draft->name_count++] = (uint32_t)draft->name_bytes;
    return 0;
}

int hr__draft_name(struct hr__draft *draft, const char *name, size_t bytes, uint32_t *ret_number) {
    uint64_t number = draft->next_name < draft->name_count ? draft->next_name : 0; /* names come in the same order */
    if (number == draft->name_count || !is_name(draft, number, name, bytes))
        for (number = 0; number < draft->name_count && !is_name(draft, number, name, bytes);) number++;
    int r = number < draft->name_count ? 0 : add_name(draft, name, bytes);
    if (r < 0) return r;
    draft->next_name = number + 1;
    *ret_number = (uint32_t)number;
    return 0;
}
