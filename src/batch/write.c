/* SPDX-License-Identifier: Apache-2.0 */
/* Measures a batch, and writes it into its slot. */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include <headrace/batch.h>

#include "base/base.h"
#include "base/error.h"
#include "batch/packed.h"
#include "batch/writer.h"
#include "os/os.h"

static int check_whole(const hr_batch *batch) {
    if (!batch->node_count) return hr__fail(-EINVAL, "batch: nothing was added; add at least one node");
    if (!batch->depth) return 0;
    return hr__fail(-EINVAL,
                    "batch: %" PRIu32 " containers are open, the innermost lacks %" PRIu64 " children; add "
                    "them",
                    batch->depth, batch->missing[batch->depth - 1]);
}

static bool lay_leaf(struct hr__leaf *leaf, uint64_t align, uint64_t *end) {
    uint64_t padded;
    if (!hr__add(*end, align - 1, &padded)) return false;
    leaf->offset = padded & ~(align - 1);
    return hr__add(leaf->offset, leaf->bytes, end) && *end <= INT64_MAX;
}

enum size_class { SMALL, LARGE, HUGE };

static enum size_class class_of(const struct hr__leaf *leaf) {
    return leaf->bytes < HR_BATCH_LARGE_BYTES ? SMALL : leaf->bytes < HR_BATCH_HUGE_BYTES ? LARGE : HUGE;
}

/* Places the leaves of one size class after `*end`, so that a device can copy those of a class together. */
static bool lay_leaves(hr_batch *batch, enum size_class size_class, uint64_t *end) {
    uint64_t align = size_class == SMALL ? HR_BATCH_SMALL_ALIGN : HR_BATCH_LARGE_ALIGN;
    for (uint64_t i = 0; i < batch->leaf_count; i++) {
        struct hr__leaf *leaf = hr__leaf_at(batch, i);
        if (class_of(leaf) == size_class && !lay_leaf(leaf, align, end)) return false;
    }
    return true;
}

/* Writes the offsets of the leaves into the array records. */
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
        if (!lay_leaves(batch, SMALL, &end) || !lay_leaves(batch, LARGE, &end) || !lay_leaves(batch, HUGE, &end))
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

int hr_batch_place(hr_batch *batch, uint64_t place, uint64_t *ret_offset) {
    uint64_t bytes;
    int r = hr_batch_measure(batch, &bytes);
    if (r < 0) return r;
    if (place >= batch->leaf_count || !hr__leaf_at(batch, place)->is_reserved)
        return hr__fail(-EINVAL,
                        "batch: no reserved array %" PRIu64 "; give what hr_batch_add_reserved returned since the last "
                        "reset",
                        place);
    *ret_offset = hr__leaf_at(batch, place)->offset;
    return 0;
}

/* ---- the copy ---- */

/* Batches of this size and above may use a second thread, which saves half of the copy time. In a stream of batches the
 * thread is awake. From LARGE_BYTES on it is used even if it has to be started, which takes about 30 us. */
enum { SHARED_BYTES = 1 << 20, LARGE_BYTES = 8 << 20, SHARED_PARTS = 16 };

/* A batch that is being written. Each thread takes the next part_bytes of it until none are left. */
struct writing {
    const hr_batch *batch;
    unsigned char *to;
    uint64_t part_bytes;
    hr__copy_bytes *copy_bytes;
    _Atomic uint64_t next; /* bytes from the head to the first byte that no thread has taken */
};

/* The range of a part, in bytes from the batch's head. */
struct part {
    uint64_t begin, end;
};

/* Copies the bytes of a run that are in the part. `at` is the offset of the run in the batch. */
static void write_run(const struct writing *writing, struct part part, uint64_t at, const unsigned char *data,
                      uint64_t bytes) {
    uint64_t begin = hr__max(at, part.begin), end = hr__min(at + bytes, part.end);
    if (begin < end) writing->copy_bytes(writing->to + begin, data + (begin - at), end - begin);
}

/* A source of several runs is not divided: it belongs to the part in which it begins. */
static void write_source(const struct writing *writing, struct part part, uint64_t at,
                         const struct hr__source *source) {
    const struct hr__dim *dims = (const struct hr__dim *)(const void *)writing->batch->dims.data;
    if (!source->dim_count)
        write_run(writing, part, at, source->data, source->run_bytes);
    else if (at >= part.begin && at < part.end)
        hr__copy(writing->to + at, source, dims, writing->copy_bytes);
}

/* Writes sources that may be of different sizes. */
static void write_joined(const struct writing *writing, struct part part, const struct hr__leaf *leaf,
                         const struct hr__source *sources) {
    uint64_t at = leaf->offset;
    for (uint64_t i = 0; i < leaf->source_count && at < part.end; at += sources[i++].bytes)
        if (sources[i].bytes && at + sources[i].bytes > part.begin) write_source(writing, part, at, &sources[i]);
}

static void write_leaf(const struct writing *writing, struct part part, const struct hr__leaf *leaf) {
    uint64_t at = leaf->offset;
    if (leaf->documents) { /* it is not divided: it belongs to the part in which it begins */
        if (at >= part.begin && at < part.end)
            hr__packed_write(leaf->part, leaf->documents, leaf->source_count, writing->to + at);
        return;
    }
    if (leaf->is_filled) {
        write_run(writing, part, at, writing->batch->filled.data + leaf->first, leaf->bytes);
        return;
    }
    const struct hr__source *sources = (const struct hr__source *)(const void *)writing->batch->sources.data;
    if (leaf->is_joined) {
        write_joined(writing, part, leaf, sources + leaf->first);
        return;
    }
    uint64_t source_bytes = leaf->bytes / leaf->source_count;
    uint64_t skipped = part.begin > at ? (part.begin - at) / source_bytes : 0;
    at += skipped * source_bytes;
    for (uint64_t i = skipped; i < leaf->source_count && at < part.end; i++, at += source_bytes)
        write_source(writing, part, at, &sources[leaf->first + i]);
}

static bool ends_before(const struct hr__leaf *leaf, uint64_t at) {
    return leaf->offset + leaf->bytes <= at;
}

/* `*first`: the first leaf that may be in this part or in a later one. The parts of a thread have rising offsets. */
static void write_part(const struct writing *writing, struct part part, uint64_t *first) {
    uint64_t count = writing->batch->leaf_count;
    while (*first < count && ends_before(hr__leaf_at(writing->batch, *first), part.begin)) ++*first;
    for (uint64_t i = *first; i < count; i++) {
        const struct hr__leaf *leaf = hr__leaf_at(writing->batch, i);
        if (!leaf->bytes || leaf->is_reserved || leaf->offset >= part.end || ends_before(leaf, part.begin)) continue;
        write_leaf(writing, part, leaf);
        hr__stop_at(HR__AT_BATCH_LEAF);
    }
}

static void write_parts(void *context) {
    struct writing *writing = context;
    uint64_t begin, end = writing->batch->total_bytes, first = 0;
    while ((begin = atomic_fetch_add(&writing->next, writing->part_bytes)) < end)
        write_part(writing, (struct part){begin, hr__min(begin + writing->part_bytes, end)}, &first);
    if (writing->copy_bytes == hr__copy_past_caches) hr__copies_land();
}

static void write_leaves(hr_batch *batch, void *to) {
    uint64_t bytes = batch->total_bytes;
    bool is_shared = batch->thread_count > 1 && bytes >= SHARED_BYTES;
    struct writing writing = {
        .batch = batch,
        .to = to,
        .part_bytes = is_shared ? bytes / SHARED_PARTS : bytes,
        .copy_bytes = hr__choose_copy(bytes),
    };
    if (is_shared)
        hr__copy_thread_run(&batch->copy_thread, bytes >= LARGE_BYTES, write_parts, &writing);
    else
        write_parts(&writing);
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
    write_leaves(batch, to);
    batch->is_written = true;
    return 0;
}
