/* SPDX-License-Identifier: Apache-2.0 */
/* State and functions that the files that write a batch share. */
#ifndef HR_BATCH_WRITER_H
#define HR_BATCH_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include <headrace/batch.h>

#include "batch/buffer.h"
#include "batch/copy.h"
#include "batch/copy_thread.h"
#include "batch/format.h"

/* A leaf, a run of bytes in the batch: one or more sources, or a part of the writer's `filled`, or a part
 * of a packed batch, or room that the caller fills. */
struct hr__leaf {
    uint64_t bytes;
    uint64_t offset; /* bytes from the head to the leaf; set when the batch is measured */
    uint64_t first;  /* number of the leaf's first source; or the offset of the leaf in `filled` */
    uint32_t source_count;
    bool is_joined; /* the sources may be of different sizes */
    bool is_filled;
    bool is_reserved; /* the caller writes it: no source */
    bool is_storage;
    enum hr_packed_part part;         /* the part of `documents` that the leaf has */
    const struct hr_array *documents; /* source_count of them; NULL: the leaf is no part of a packed batch */
};

/* An array record whose offsets are known only when the whole tree is known. */
struct hr__place {
    uint64_t record_at;
    uint64_t leaf;
    uint64_t inside_bytes; /* bytes from the leaf to the array's first element */
};

struct hr_batch {
    struct hr__buffer tree; /* the bytes of the tree as in the batch */
    struct hr__buffer places, leaves, sources, dims, filled;
    uint64_t leaf_count, source_count, dim_count;
    uint64_t node_count;
    uint64_t total_bytes; /* when measured, else 0 */
    uint32_t thread_count;
    bool is_written; /* since the last reset */
    struct hr__copy_thread copy_thread;
    uint32_t depth;
    uint64_t missing[HR_BATCH_MAX_DEPTH]; /* children that each open container still lacks */
};

/* The contents of an array's record, except its offsets. */
struct hr__array_entry {
    enum hr_flavor flavor;
    struct hr_dtype dtype;
    uint32_t ndim;
    const int64_t *shape;
    const int64_t *strides;
    uint64_t leaf;
    uint64_t leaf_bytes;
    uint64_t inside_bytes;
    bool is_shared;
};

/* Adds an array's node. Its leaf may still be in room that is not taken yet: nothing is added if this fails. */
int hr__tree_add_array(struct hr_batch *batch, const struct hr__array_entry *entry);

/* The leaf with number `index`, and so on. */
static inline struct hr__leaf *hr__leaf_at(const struct hr_batch *batch, uint64_t index) {
    return (struct hr__leaf *)(void *)batch->leaves.data + index;
}

#endif
