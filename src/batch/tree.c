/* SPDX-License-Identifier: Apache-2.0 */
/* Creates a batch that is being described, and adds the nodes of its tree. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <headrace/batch.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"
#include "batch/writer.h"

int hr_batch_new(hr_batch **ret_batch) {
    hr_batch *batch = hr__realloc(NULL, sizeof *batch);
    if (!batch) return hr__fail(-ENOMEM, "batch: no memory for a writer (%zu bytes); free memory", sizeof *batch);
    memset(batch, 0, offsetof(struct hr_batch, missing));
    batch->thread_count = 1;
    *ret_batch = batch;
    return 0;
}

hr_batch *hr_batch_free(hr_batch *batch) {
    if (!batch) return NULL;
    hr__copy_thread_end(&batch->copy_thread);
    hr__buffer_done(&batch->tree);
    hr__buffer_done(&batch->places);
    hr__buffer_done(&batch->leaves);
    hr__buffer_done(&batch->sources);
    hr__buffer_done(&batch->dims);
    hr__buffer_done(&batch->filled);
    hr__free(batch);
    return NULL;
}

void hr_batch_reset(hr_batch *batch) {
    hr__buffer_empty(&batch->tree, batch->is_written);
    hr__buffer_empty(&batch->places, batch->is_written);
    hr__buffer_empty(&batch->leaves, batch->is_written);
    hr__buffer_empty(&batch->sources, batch->is_written);
    hr__buffer_empty(&batch->dims, batch->is_written);
    hr__buffer_empty(&batch->filled, batch->is_written);
    batch->is_written = false;
    batch->leaf_count = batch->source_count = batch->dim_count = 0;
    batch->node_count = batch->total_bytes = 0;
    batch->depth = 0;
}

int hr_batch_set_threads(hr_batch *batch, uint32_t count) {
    if (count < 1 || count > HR_BATCH_MAX_THREADS)
        return hr__fail(-EINVAL, "batch: %" PRIu32 " threads; give 1 to %d", count, HR_BATCH_MAX_THREADS);
    batch->thread_count = count;
    return 0;
}

static int check_open(const hr_batch *batch) {
    if (!batch->node_count || batch->depth) return 0;
    return hr__fail(-EINVAL,
                    "batch: its tree is complete already (%" PRIu64
                    " nodes); reset the writer, or open a container around all nodes",
                    batch->node_count);
}

/* Adds the node that was written to the room. Its parent has one missing child less, and the node's own children are
 * missing now. */
static void node_claim(hr_batch *batch, uint64_t bytes, uint64_t children) {
    batch->tree.used += bytes;
    batch->total_bytes = 0;
    batch->node_count++;
    if (batch->depth) batch->missing[batch->depth - 1]--;
    if (children) batch->missing[batch->depth++] = children;
    while (batch->depth && !batch->missing[batch->depth - 1]) batch->depth--;
}

static int add_scalar(hr_batch *batch, enum hr_node_kind kind, uint64_t value) {
    int r = check_open(batch);
    if (r < 0) return r;
    struct hr__tree_record *record = hr__buffer_room(&batch->tree, sizeof *record);
    if (!record) return -ENOMEM;
    *record = (struct hr__tree_record){.kind = (uint8_t)kind, .value = value};
    node_claim(batch, sizeof *record, 0);
    return 0;
}

int hr_batch_add_none(hr_batch *batch) {
    return add_scalar(batch, HR_NODE_NONE, 0);
}
int hr_batch_add_bool(hr_batch *batch, int value) {
    return add_scalar(batch, HR_NODE_BOOL, value != 0);
}
int hr_batch_add_int(hr_batch *batch, int64_t value) {
    return add_scalar(batch, HR_NODE_INT, (uint64_t)value);
}

int hr_batch_add_float(hr_batch *batch, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return add_scalar(batch, HR_NODE_FLOAT, bits);
}

static int check_depth(const hr_batch *batch) {
    if (batch->depth < HR_BATCH_MAX_DEPTH) return 0;
    return hr__fail(-EINVAL,
                    "batch: containers are nested more than %d deep; flatten them, and look for one that "
                    "holds itself",
                    HR_BATCH_MAX_DEPTH);
}

static int add_run(hr_batch *batch, enum hr_node_kind kind, const void *bytes, size_t length, uint32_t count) {
    if (length > INT64_MAX - 64) return hr__fail(-EOVERFLOW, "batch: %zu bytes in one node; check the length", length);
    int r = check_open(batch);
    if (r < 0) return r;
    uint64_t padded = hr__round_up(length, 8);
    struct hr__tree_record *record = hr__buffer_room(&batch->tree, sizeof *record + padded);
    if (!record) return -ENOMEM;
    *record = (struct hr__tree_record){.kind = (uint8_t)kind, .count = count, .value = length};
    if (length) {
        unsigned char *payload = (unsigned char *)(record + 1);
        memset(payload + padded - 8, 0, 8);
        memcpy(payload, bytes, length);
    }
    node_claim(batch, sizeof *record + padded, hr__children(kind, count));
    return 0;
}

int hr_batch_add_text(hr_batch *batch, const char *utf8, size_t length) {
    return add_run(batch, HR_NODE_TEXT, utf8, length, 0);
}

int hr_batch_add_bytes(hr_batch *batch, const void *bytes, size_t length) {
    return add_run(batch, HR_NODE_BYTES, bytes, length, 0);
}

int hr_batch_open_pickle(hr_batch *batch, const void *bytes, size_t length, uint32_t count) {
    int r = check_depth(batch);
    return r < 0 ? r : add_run(batch, HR_NODE_PICKLE, bytes, length, count);
}

int hr_batch_open(hr_batch *batch, enum hr_node_kind kind, uint32_t count) {
    if (kind < HR_NODE_TUPLE || kind > HR_NODE_NAMED)
        return hr__fail(-EINVAL, "batch: node kind %d is not a container; give HR_NODE_TUPLE, LIST, DICT or NAMED",
                        (int)kind);
    int r = check_depth(batch);
    return r < 0 ? r : add_run(batch, kind, NULL, 0, count);
}

static void fill_array(struct hr__array_record *record, const struct hr__array_entry *entry) {
    *record = (struct hr__array_record){
        .record = {.kind = HR_NODE_ARRAY,
                   .flavor = (uint8_t)entry->flavor,
                   .flags = entry->is_shared ? HR__RECORD_SHARED : 0,
                   .count = entry->ndim},
        .storage_bytes = entry->leaf_bytes,
        .dtype = entry->dtype,
    };
    if (!entry->ndim) return;
    int64_t *numbers = (int64_t *)(record + 1);
    memcpy(numbers, entry->shape, entry->ndim * sizeof *numbers);
    memcpy(numbers + entry->ndim, entry->strides, entry->ndim * sizeof *numbers);
}

int hr__tree_add_array(hr_batch *batch, const struct hr__array_entry *entry) {
    if ((unsigned)entry->flavor > HR_FLAVOR_BUFFER)
        return hr__fail(-EINVAL, "batch: array flavor %d; give one of enum hr_flavor", (int)entry->flavor);

    int r = check_open(batch);
    if (r < 0) return r;
    uint64_t bytes = sizeof(struct hr__array_record) + 2 * sizeof(int64_t) * (uint64_t)entry->ndim;
    struct hr__array_record *record = hr__buffer_room(&batch->tree, bytes);
    struct hr__place *place = hr__buffer_room(&batch->places, sizeof *place);
    if (!record || !place) return -ENOMEM;

    fill_array(record, entry);
    *place = (struct hr__place){batch->tree.used, entry->leaf, entry->inside_bytes};
    batch->places.used += sizeof *place;
    node_claim(batch, bytes, 0);
    return 0;
}
