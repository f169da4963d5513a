/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a batch, and checks everything that it reads. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <headrace/batch.h>

#include "base/base.h"
#include "base/error.h"
#include "batch/format.h"
#include "batch/shape.h"

/*
 * The memory may be shared with a process that is broken. Each word that decides what is read next is loaded once, and
 * the loaded copy is checked and used.
 */
static void load(const unsigned char *from, void *to, size_t bytes) {
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = __atomic_load_n((const uint64_t *)(const void *)(from + i), __ATOMIC_RELAXED);
        memcpy((unsigned char *)to + i, &word, sizeof word);
    }
}

static int check_head(const struct hr__batch_head *head, uint64_t bytes) {
    if (head->magic != HR__BATCH_MAGIC)
        return hr__fail(HR_E_CORRUPT,
                        "batch: the first 8 bytes are %#" PRIx64 ", so this is not a batch; was one written here?",
                        head->magic);
    if (head->version != HR__BATCH_VERSION)
        return hr__fail(HR_E_VERSION,
                        "batch: format version %" PRIu32 ", this headrace reads %d; use the same version "
                        "in all processes",
                        head->version, HR__BATCH_VERSION);
    if (head->head_bytes != sizeof *head || head->total_bytes > bytes || head->total_bytes < sizeof *head)
        return hr__fail(HR_E_CORRUPT,
                        "batch: its head says %" PRIu64 " bytes, but there are %" PRIu64 "; other code wrote into it",
                        head->total_bytes, bytes);
    if (head->tree_bytes > head->total_bytes - sizeof *head || head->tree_bytes % 8 || !head->node_count)
        return hr__fail(HR_E_CORRUPT,
                        "batch: a tree of %" PRIu64 " bytes and %" PRIu64 " nodes in a batch of %" PRIu64
                        " bytes; something else wrote into it",
                        head->tree_bytes, head->node_count, head->total_bytes);
    return 0;
}

int hr_batch_read(struct hr_batch_reader *reader, const void *data, uint64_t bytes) {
    if ((uintptr_t)data % HR_BATCH_SMALL_ALIGN)
        return hr__fail(-EINVAL, "batch: address %p is not %d-aligned; give one that is", data, HR_BATCH_SMALL_ALIGN);
    struct hr__batch_head head;
    if (bytes < sizeof head)
        return hr__fail(HR_E_CORRUPT,
                        "batch: %" PRIu64 " bytes are shorter than its head of %zu; was one written "
                        "here?",
                        bytes, sizeof head);
    load(data, &head, sizeof head);
    int r = check_head(&head, bytes);
    if (r < 0) return r;
    *reader = (struct hr_batch_reader){
        .base = data,
        .bytes = head.total_bytes,
        .at = sizeof head,
        .end = sizeof head + head.tree_bytes,
        .nodes = head.node_count,
        .promised = 1,
    };
    return 0;
}

__attribute__((cold)) static int corrupt(const struct hr_batch_reader *reader, const char *what) {
    return hr__fail(HR_E_CORRUPT,
                    "batch: the node at byte %" PRIu64 " of %" PRIu64 " %s; something else wrote into "
                    "the batch",
                    reader->at, reader->bytes, what);
}

/* Takes `bytes` bytes of the tree at `*at`. Returns false if there are fewer. */
static bool take(const struct hr_batch_reader *reader, uint64_t bytes, uint64_t *at) {
    if (bytes > reader->end - *at) return false;
    *at += bytes;
    return true;
}

static int read_run(const struct hr_batch_reader *reader, const struct hr__tree_record *record, uint64_t *at,
                    struct hr_node *node) {
    node->bytes = reader->base + *at;
    node->length = record->value;
    if (record->value > INT64_MAX || !take(reader, hr__round_up(record->value, 8), at))
        return corrupt(reader, "has more bytes than the tree");
    return 0;
}

/* Checks that the storage is after the tree and inside the batch, and that the array is inside its storage. */
static int check_array(const struct hr_batch_reader *reader, const struct hr_node *node) {
    struct hr__size size;
    struct hr__span span;
    uint64_t storage_end;
    if (node->storage_offset < reader->end || !hr__add(node->storage_offset, node->storage_bytes, &storage_end) ||
        storage_end > reader->bytes || node->data_offset < node->storage_offset)
        return corrupt(reader, "is an array outside the batch");
    if (hr__array_size(node->dtype, node->ndim, node->shape, &size) < 0 ||
        hr__array_span(node->ndim, node->shape, node->strides, &size, &span) < 0)
        return corrupt(reader, "is an array of impossible dtype or shape");
    if (!hr__span_fits(&span, node->data_offset - node->storage_offset, node->storage_bytes))
        return corrupt(reader, "is an array that leaves its storage");
    return 0;
}

static int read_array(const struct hr_batch_reader *reader, const struct hr__tree_record *record, uint64_t *at,
                      struct hr_node *node) {
    struct hr__array_record array;
    const unsigned char *rest = reader->base + *at;
    if (record->count > HR_BATCH_MAX_NDIM || record->flavor > HR_FLAVOR_BUFFER || record->flags > HR__RECORD_SHARED)
        return corrupt(reader, "is not an array that headrace writes");
    uint64_t numbers_bytes = sizeof(int64_t) * (uint64_t)record->count;
    if (!take(reader, sizeof array - sizeof *record + 2 * numbers_bytes, at))
        return corrupt(reader, "has more dimensions than the tree has room for");
    load(rest, (unsigned char *)&array + sizeof *record, sizeof array - sizeof *record);

    rest += sizeof array - sizeof *record;
    node->flavor = (enum hr_flavor)record->flavor;
    node->dtype = array.dtype;
    node->ndim = record->count;
    node->shape = record->count ? (const int64_t *)(const void *)rest : NULL;
    node->strides = record->count ? (const int64_t *)(const void *)(rest + numbers_bytes) : NULL;
    node->storage_offset = array.storage_offset;
    node->storage_bytes = array.storage_bytes;
    node->data_offset = record->value;
    node->is_shared = record->flags & HR__RECORD_SHARED;
    return check_array(reader, node);
}

static int read_payload(const struct hr_batch_reader *reader, const struct hr__tree_record *record, uint64_t *at,
                        struct hr_node *node) {
    switch (record->kind) {
    case HR_NODE_BOOL:
        if (record->value > 1) return corrupt(reader, "is neither true nor false");
        node->integer = (int64_t)record->value;
        return 0;
    case HR_NODE_INT:
        node->integer = (int64_t)record->value;
        return 0;
    case HR_NODE_FLOAT:
        memcpy(&node->real, &record->value, sizeof node->real);
        return 0;
    case HR_NODE_TEXT:
    case HR_NODE_BYTES:
        return read_run(reader, record, at, node);
    case HR_NODE_PICKLE:
        node->count = record->count;
        return read_run(reader, record, at, node);
    case HR_NODE_TUPLE:
    case HR_NODE_LIST:
    case HR_NODE_DICT:
    case HR_NODE_NAMED:
        node->count = record->count;
        return 0;
    case HR_NODE_ARRAY:
        return read_array(reader, record, at, node);
    case HR_NODE_NONE:
        return 0;
    default:
        return corrupt(reader, "has an unknown kind");
    }
}

/* Counts the children of this node. Each one takes a record, so a caller can safely allocate memory for `count` of
 * them. */
static int promise(const struct hr_batch_reader *reader, const struct hr__tree_record *record, uint64_t at,
                   uint64_t *promised) {
    *promised += hr__children(record->kind, record->count);
    bool is_last = *promised == 0;
    if (*promised > (reader->end - at) / sizeof *record || is_last != (reader->nodes == 1))
        return corrupt(reader, "has more or fewer children than the tree");
    if (is_last && at != reader->end) return corrupt(reader, "is the last one, but the tree has more bytes");
    return 0;
}

int hr_batch_read_node(struct hr_batch_reader *reader, struct hr_node *ret_node) {
    if (!reader->promised) return 0;
    struct hr__tree_record record;
    uint64_t at = reader->at;
    if (!take(reader, sizeof record, &at)) return corrupt(reader, "is missing");
    load(reader->base + reader->at, &record, sizeof record);

    struct hr_node node = {.kind = (enum hr_node_kind)record.kind};
    int r = read_payload(reader, &record, &at, &node);
    if (r < 0) return r;
    uint64_t promised = reader->promised - 1;
    r = promise(reader, &record, at, &promised);
    if (r < 0) return r;

    reader->at = at;
    reader->nodes--;
    reader->promised = promised;
    *ret_node = node;
    return 1;
}
