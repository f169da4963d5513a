/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that grows, and is kept from batch to batch. */
#ifndef HR_BATCH_BUFFER_H
#define HR_BATCH_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory that grows, and is kept from batch to batch. Bytes that are written into the room become part of the buffer
 * when `used` is advanced. */
struct hr__buffer {
    unsigned char *data;
    size_t used;
    size_t most; /* maximum of `used` for this batch, up to the last time it was emptied */
    size_t capacity;
};

bool hr__buffer_grow(struct hr__buffer *buffer, uint64_t bytes);
void hr__buffer_done(struct hr__buffer *buffer);

/* Empties the buffer, to start the same batch again or, if that one `is_done`, for the next one. In the second case a
 * large memory of which little was used is freed. */
void hr__buffer_empty(struct hr__buffer *buffer, bool is_done);

/* Makes room for `bytes` more bytes and returns its address, which is valid until the buffer grows again. NULL, with a
 * message: -ENOMEM. */
static inline void *hr__buffer_room(struct hr__buffer *buffer, uint64_t bytes) {
    bool has_room = buffer->data && bytes <= buffer->capacity - buffer->used;
    return has_room || hr__buffer_grow(buffer, bytes) ? buffer->data + buffer->used : NULL;
}

#endif
