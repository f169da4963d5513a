/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_TESTS_BATCH_TOUCH_H
#define HR_TESTS_BATCH_TOUCH_H

#include <stddef.h>
#include <stdint.h>

#include <headrace/batch.h>

/* Reads what nodes point to, so that AddressSanitizer sees whatever lies outside the batch. */

static inline unsigned touch(const void *from, uint64_t bytes) {
    const volatile unsigned char *at = from;
    unsigned sum = 0;
    for (uint64_t i = 0; i < bytes; i++) sum += at[i];
    return sum;
}

/* The first and the last byte of an array, in the order of memory. */
static inline unsigned touch_array(const unsigned char *base, const struct hr_node *node) {
    int64_t item_bytes = node->dtype.bits * node->dtype.lanes / 8, low = 0, high = 0;
    for (uint32_t d = 0; d < node->ndim; d++) {
        if (!node->shape[d]) return 0;
        int64_t reach = (node->shape[d] - 1) * node->strides[d];
        *(reach < 0 ? &low : &high) += reach;
    }
    const unsigned char *first = base + node->data_offset;
    return touch(first + low * item_bytes, 1) + touch(first + high * item_bytes + item_bytes - 1, 1);
}

static inline unsigned touch_node(const unsigned char *base, const struct hr_node *node) {
    unsigned sum = touch(node->bytes, node->length);
    if (node->kind != HR_NODE_ARRAY) return sum;
    sum += touch(node->shape, node->ndim * sizeof *node->shape) + touch(node->strides, node->ndim * sizeof(int64_t));
    sum += touch(base + node->storage_offset, node->storage_bytes);
    return sum + touch_array(base, node);
}

/* Reads a whole batch of whatever bytes. Returns the last call's result: 0, or why it was refused. */
static inline int touch_batch(const void *data, uint64_t bytes) {
    struct hr_batch_reader reader;
    struct hr_node node;
    int r = hr_batch_read(&reader, data, bytes);
    if (r < 0) return r;
    while ((r = hr_batch_read_node(&reader, &node)) > 0) touch_node(data, &node);
    return r;
}

/* Adds a tree with a node of each kind. 0 on success. */
static inline int add_each_kind(hr_batch *batch) {
    static const int64_t shape[] = {2, 3}, strides[] = {0, -1};
    static const struct hr_dtype byte = {1, 8, 1};
    const struct hr_array array = {"abcdef", byte, 2, shape, NULL}, view = {NULL, byte, 2, shape, strides};
    uint32_t storage = 0;
    int failed = hr_batch_open(batch, HR_NODE_DICT, 2);
    failed |= hr_batch_add_text(batch, "key", 3);
    failed |= hr_batch_open(batch, HR_NODE_NAMED, 4);
    failed |= hr_batch_add_bytes(batch, "Name", 4);
    failed |= hr_batch_add_none(batch);
    failed |= hr_batch_add_bool(batch, 1);
    failed |= hr_batch_add_int(batch, 1);
    failed |= hr_batch_add_float(batch, 1);
    failed |= hr_batch_open(batch, HR_NODE_TUPLE, 0);
    failed |= hr_batch_open_pickle(batch, "pickled", 7, 2);
    failed |= hr_batch_add_array(batch, HR_FLAVOR_NUMPY, &array);
    failed |= hr_batch_add_storage(batch, "ghijkl", 6, &storage);
    return failed | hr_batch_add_view(batch, HR_FLAVOR_TENSOR, storage, 2, &view);
}

#endif
