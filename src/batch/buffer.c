/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that grows, and is kept from batch to batch. */
#include "batch/buffer.h"

#include <errno.h>
#include <inttypes.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/error.h"

enum { FIRST_BYTES = 1024 };

static bool no_memory(const struct hr__buffer *buffer, uint64_t bytes) {
    hr__fail(-ENOMEM,
             "batch: no memory for %" PRIu64 " more bytes in addition to %zu; make batches smaller or free memory",
             bytes, buffer->used);
    return false;
}

bool hr__buffer_grow(struct hr__buffer *buffer, uint64_t bytes) {
    uint64_t needed;
    if (!hr__add(buffer->used, bytes, &needed) || needed > PTRDIFF_MAX) return no_memory(buffer, bytes);

    uint64_t doubled = hr__min(2 * (uint64_t)buffer->capacity, PTRDIFF_MAX);
    uint64_t capacity = hr__max(hr__max(doubled, needed), FIRST_BYTES);
    void *data = hr__realloc(buffer->data, capacity);
    if (!data) return no_memory(buffer, bytes);
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

void hr__buffer_empty(struct hr__buffer *buffer, bool is_done) {
    enum { MUCH = 4 << 20, LITTLE = 8 /* an eighth */ };
    buffer->most = hr__max(buffer->most, buffer->used);
    buffer->used = 0;
    if (!is_done) return;
    if (buffer->capacity > MUCH && buffer->most < buffer->capacity / LITTLE) hr__buffer_done(buffer);
    buffer->most = 0;
}

void hr__buffer_done(struct hr__buffer *buffer) {
    hr__free(buffer->data);
    *buffer = (struct hr__buffer){0};
}
