/* SPDX-License-Identifier: Apache-2.0 */
/* Strided bytes: their description, and their copy. */
#ifndef HR_BATCH_COPY_H
#define HR_BATCH_COPY_H

#include <stddef.h>
#include <stdint.h>

/* A source of bytes: runs of run_bytes at data, repeated over dim_count dimensions, the first one the slowest. */
struct hr__dim {
    int64_t size; /* more than 1 */
    int64_t stride_bytes;
};

struct hr__source {
    const unsigned char *data;
    uint64_t run_bytes;
    uint64_t dim_first; /* index of its dimensions among those of all sources */
    uint64_t bytes;     /* of all runs */
    uint32_t dim_count;
};

/* Merges the dimensions of an array into as few as possible, and the innermost one into a run if its elements are
 * contiguous. The array has elements, and its span has been checked. Fills `dims` (room for ndim) and `source`, except
 * dim_first and bytes. */
void hr__collapse(uint32_t ndim, const int64_t *shape, const int64_t *strides, uint64_t item_bytes,
                  struct hr__dim *dims, struct hr__source *source);

/* Copies bytes like memcpy. */
typedef void *hr__copy_bytes(void *restrict to, const void *restrict from, size_t bytes);

/* Copies bytes like memcpy, faster if they do not fit the caches of the core. */
hr__copy_bytes hr__copy_in_pieces;

/* Copies bytes past the caches if the processor can do this. This core does not read them soon, and in the caches they
 * would replace memory that it does read. The thread that copied must call hr__copies_land before other threads may
 * read the bytes. */
hr__copy_bytes hr__copy_past_caches;
void hr__copies_land(void);

/* Returns one of the two, for a batch of so many bytes. */
hr__copy_bytes *hr__choose_copy(uint64_t bytes);

/* Copies a source to `to` without gaps, each run by `copy_bytes`. `dims` has the dimensions of all sources. */
void hr__copy(unsigned char *restrict to, const struct hr__source *source, const struct hr__dim *dims,
              hr__copy_bytes *copy_bytes);

#endif
