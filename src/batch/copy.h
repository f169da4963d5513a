/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_BATCH_COPY_H
#define HR_BATCH_COPY_H

#include <stddef.h>
#include <stdint.h>

/* Where bytes come from: runs of run_bytes at data, repeated over dim_count dimensions, the first the slowest. */
struct hr__dim {
    int64_t size; /* more than 1 */
    int64_t stride_bytes;
};

struct hr__source {
    const unsigned char *data;
    uint64_t run_bytes;
    uint64_t dim_first; /* index of its dimensions among those of all sources */
    uint32_t dim_count;
};

/* Merges an array's dimensions into as few as say the same, and the innermost into a run where it is one. The array
 * has elements, and its span has been checked. Fills `dims` (room for ndim) and `source`, except dim_first. */
void hr__collapse(uint32_t ndim, const int64_t *shape, const int64_t *strides, uint64_t item_bytes,
                  struct hr__dim *dims, struct hr__source *source);

/* Copies bytes as memcpy does. */
typedef void *hr__copy_bytes(void *restrict to, const void *restrict from, size_t bytes);

/* The same, and quicker where bytes are more than the processor's caches hold near the core. */
hr__copy_bytes hr__copy_in_pieces;

/* The same past the caches: what is written is not read soon by this core, and would push out what is. Where the
 * processor can. hr__copies_land, by the thread that copied, before others are told that the bytes are there. */
hr__copy_bytes hr__copy_past_caches;
void hr__copies_land(void);

/* Copies a source to `to`, compact, its runs by `copy_bytes`. `dims` are those of all sources. */
void hr__copy(unsigned char *restrict to, const struct hr__source *source, const struct hr__dim *dims,
              hr__copy_bytes *copy_bytes);

#endif
