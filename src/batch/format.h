/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_BATCH_FORMAT_H
#define HR_BATCH_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/batch.h>

/*
 * The layout of a batch in memory. All fields have one writer: the process that writes the batch, before it publishes
 * it. If that process dies earlier, the batch is never read.
 *
 *     0     head
 *     64    record [payload] record [payload] ...   tree_bytes in all, each record 8-aligned
 *           small leaves, 64-aligned
 *           large leaves, 4096-aligned
 *           huge leaves, 4096-aligned
 *     total_bytes
 *
 * The payload depends on the kind of the record: `value` bytes of text, bytes or pickle, padded with zeros to a
 * multiple of 8; for an array the rest of hr__array_record, then ndim sizes and ndim strides (both int64_t).
 */

#define HR__BATCH_MAGIC UINT64_C(0x3168637461627268) /* "hrbatch1" on a little-endian machine */

enum { HR__BATCH_VERSION = 1, HR__RECORD_SHARED = 1 };

struct hr__batch_head {
    uint64_t magic;
    uint32_t version;
    uint32_t head_bytes;
    uint64_t total_bytes; /* head, tree and leaves */
    uint64_t tree_bytes;
    uint64_t node_count;
    uint64_t reserved[3];
};
_Static_assert(sizeof(struct hr__batch_head) == 64, "shared layout");
_Static_assert(offsetof(struct hr__batch_head, node_count) == 32, "shared layout");

struct hr__tree_record {
    uint8_t kind;
    uint8_t flavor;
    uint8_t flags; /* HR__RECORD_SHARED */
    uint8_t reserved;
    uint32_t count; /* entries of a container; dimensions of an array */
    uint64_t value; /* integer, bits of a real, bytes of the payload, or offset of an array's first element */
};
_Static_assert(sizeof(struct hr__tree_record) == 16, "shared layout");
_Static_assert(offsetof(struct hr__tree_record, value) == 8, "shared layout");

struct hr__array_record {
    struct hr__tree_record record;
    uint64_t storage_offset;
    uint64_t storage_bytes;
    struct hr_dtype dtype;
    uint32_t reserved;
};
_Static_assert(sizeof(struct hr_dtype) == 4, "shared layout");
_Static_assert(sizeof(struct hr__array_record) == 40, "shared layout");
_Static_assert(offsetof(struct hr__array_record, dtype) == 32, "shared layout");

/* Returns how many nodes follow a node as its children. */
static inline uint64_t hr__children(uint32_t kind, uint32_t count) {
    switch (kind) {
    case HR_NODE_TUPLE:
    case HR_NODE_LIST:
    case HR_NODE_PICKLE:
        return count;
    case HR_NODE_DICT:
        return 2 * (uint64_t)count;
    case HR_NODE_NAMED:
        return 1 + (uint64_t)count;
    default:
        return 0;
    }
}

#endif
