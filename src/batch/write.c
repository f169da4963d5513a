/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <headrace/batch.h>

#include "base/base.h"
#include "base/error.h"
#include "batch/writer.h"
#include "os/os.h"

static int check_whole(const hr_batch *batch) {
    if (!batch->node_count) return hr__fail(-EINVAL, "batch: nothing was added; add one node at least");
    if (!batch->depth) return 0;
    return hr__fail(-EINVAL,
                    "batch: %" PRIu32 " containers are open, the innermost misses %" PRIu64 " children; add "
                    "them",
                    batch->depth, batch->missing[batch->depth - 1]);
}

static bool lay_leaf(struct hr__leaf *leaf, uint64_t align, uint64_t *end) {
    uint64_t padded;
    if (!hr__add(*end, align - 1, &padded)) return false;
    leaf->offset = padded & ~(align - 1);
    return hr__add(leaf->offset, leaf->bytes, end) && *end <= INT64_MAX;
}

/* Lays the leaves of one size class behind `*end`. */
static bool lay_leaves(hr_batch *batch, bool are_large, uint64_t *end) {
    uint64_t align = are_large ? HR_BATCH_LARGE_ALIGN : HR_BATCH_SMALL_ALIGN;
    for (uint64_t i = 0; i < batch->leaf_count; i++) {
        struct hr__leaf *leaf = hr__leaf_at(batch, i);
        if ((leaf->bytes >= HR_BATCH_LARGE_BYTES) == are_large && !lay_leaf(leaf, align, end)) return false;
    }
    return true;
}

/* Writes into the array records where their leaves lie. */
static void settle_places(hr_batch *batch) {
    const struct hr__place *places = (const struct hr__place *)(const void *)batch->places.data;
    for (size_t i = 0; i < batch->places.used / sizeof *places; i++) {
        struct hr__array_record *record = (struct hr__array_record *)(void *)(batch->tree.data + places[i].record_at);
        record->storage_offset = hr__leaf_at(batch, places[i].leaf)->offset;
        record->record.value = record->storage_offset + places[i].inside_bytes;
    }
}

int hr_batch_measure(hr_batch *batch, uint64_t *ret_bytes) {
    if (!batch->total_bytes) {
        int r = check_whole(batch);
        if (r < 0) return r;
        uint64_t end = sizeof(struct hr__batch_head) + batch->tree.used;
        if (!lay_leaves(batch, false, &end) || !lay_leaves(batch, true, &end))
            return hr__fail(-EOVERFLOW,
                            "batch: its %" PRIu64 " leaves together do not fit 63 bits; make batches "
                            "smaller",
                            batch->leaf_count);
        settle_places(batch);
        batch->total_bytes = end;
    }
    *ret_bytes = batch->total_bytes;
    return 0;
}

static void write_leaf(const hr_batch *batch, const struct hr__leaf *leaf, unsigned char *to) {
    if (!leaf->bytes) return;
    if (leaf->is_filled) {
        memcpy(to, batch->filled.data + leaf->first, leaf->bytes);
        return;
    }
    const struct hr__source *source = (const struct hr__source *)(const void *)batch->sources.data + leaf->first;
    const struct hr__dim *dims = (const struct hr__dim *)(const void *)batch->dims.data;
    uint64_t piece_bytes = leaf->bytes / leaf->source_count;
    for (uint32_t i = 0; i < leaf->source_count; i++, source++, to += piece_bytes) hr__copy(to, source, dims);
}

int hr_batch_write(hr_batch *batch, void *to, uint64_t capacity) {
    uint64_t bytes = 0;
    int r = hr_batch_measure(batch, &bytes);
    if (r < 0) return r;
    if (bytes > capacity)
        return hr__fail(-ENOSPC,
                        "batch: %" PRIu64 " bytes do not fit %" PRIu64 "; give as many as hr_batch_measure "
                        "says",
                        bytes, capacity);
    if ((uintptr_t)to % HR_BATCH_SMALL_ALIGN)
        return hr__fail(-EINVAL, "batch: address %p is not %d-aligned; give one that is", to, HR_BATCH_SMALL_ALIGN);

    struct hr__batch_head head = {
        .magic = HR__BATCH_MAGIC,
        .version = HR__BATCH_VERSION,
        .head_bytes = sizeof head,
        .total_bytes = bytes,
        .tree_bytes = batch->tree.used,
        .node_count = batch->node_count,
    };
    memcpy(to, &head, sizeof head);
    hr__stop_at(HR__AT_BATCH_HEAD);
    memcpy((unsigned char *)to + sizeof head, batch->tree.data, batch->tree.used);
    hr__stop_at(HR__AT_BATCH_TREE);
    for (uint64_t i = 0; i < batch->leaf_count; i++) {
        const struct hr__leaf *leaf = hr__leaf_at(batch, i);
        write_leaf(batch, leaf, (unsigned char *)to + leaf->offset);
        hr__stop_at(HR__AT_BATCH_LEAF);
    }
    return 0;
}
