/* SPDX-License-Identifier: Apache-2.0 */
/* Copies strided bytes, and bypasses the caches if there are many. */
#include "batch/copy.h"

#include <stdbool.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <headrace/batch.h>

#include "base/base.h"

/* Returns true if one step of `outer` is as long as the whole next inner dimension. */
static bool continues(const struct hr__dim *outer, int64_t size, int64_t stride_bytes) {
    int64_t whole;
    return !__builtin_mul_overflow(size, stride_bytes, &whole) && outer->stride_bytes == whole;
}

void hr__collapse(uint32_t ndim, const int64_t *shape, const int64_t *strides, uint64_t item_bytes,
                  struct hr__dim *dims, struct hr__source *source) {
    uint32_t n = 0;
    for (uint32_t d = 0; d < ndim; d++) {
        if (shape[d] == 1) continue; /* its stride is never used and may be anything */
        int64_t size = shape[d], stride_bytes = strides[d] * (int64_t)item_bytes;
        if (n && continues(&dims[n - 1], size, stride_bytes)) size *= dims[--n].size;
        dims[n++] = (struct hr__dim){.size = size, .stride_bytes = stride_bytes};
    }
    source->run_bytes = item_bytes;
    if (n && dims[n - 1].stride_bytes == (int64_t)item_bytes) source->run_bytes *= (uint64_t)dims[--n].size;
    source->dim_count = n;
}

/* For more bytes than the cache of a core, glibc copies by a loop that also reads the memory that it overwrites. For
 * fewer bytes it uses an instruction of the processor that does not. */
void *hr__copy_in_pieces(void *restrict to, const void *restrict from, size_t bytes) {
    enum { PIECE = 256 << 10 };
    for (size_t i = 0; i < bytes; i += PIECE) memcpy((char *)to + i, (const char *)from + i, hr__min(bytes - i, PIECE));
    return to;
}

#ifdef __SSE2__
/* Writes a cache line to memory past the caches. The source AHEAD is prefetched past the caches too; a prefetch of an
 * address beyond its end causes no fault. */
static inline void stream_line(unsigned char *to, const unsigned char *from) {
    enum { AHEAD = 1024 };
    const __m128i *source = (const __m128i *)(const void *)from;
    __m128i *line = (__m128i *)(void *)to;
    _mm_prefetch((const char *)from + AHEAD, _MM_HINT_NTA);
    __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
}
_Static_assert(HR_CACHE_LINE == 4 * sizeof(__m128i), "stream_line");

/* For a run of less than half a page, this costs more at its two ends than it saves. */
void *hr__copy_past_caches(void *restrict to, const void *restrict from, size_t bytes) {
    enum { SHORT = 2048 };
    if (bytes < SHORT) return memcpy(to, from, bytes);
    unsigned char *at = to;
    const unsigned char *source = from;
    size_t head = -(uintptr_t)at % HR_CACHE_LINE, body = (bytes - head) / HR_CACHE_LINE * HR_CACHE_LINE;
    memcpy(at, source, head);
    at += head;
    source += head;
    for (size_t i = 0; i < body; i += HR_CACHE_LINE) stream_line(at + i, source + i);
    memcpy(at + body, source + body, bytes - head - body);
    return to;
}

void hr__copies_land(void) {
    _mm_sfence();
}
#else
void *hr__copy_past_caches(void *restrict to, const void *restrict from, size_t bytes) {
    return memcpy(to, from, bytes);
}

void hr__copies_land(void) {}
#endif

/* Batches of this size and above are written past the caches. In the caches they would replace memory that the worker
 * reads next, and the trainer, which reads them much later, would find them in memory anyway. Measured:
 * bench/results.md. */
enum { PAST_CACHES_BYTES = 14 << 20 };

hr__copy_bytes *hr__choose_copy(uint64_t bytes) {
    return bytes >= PAST_CACHES_BYTES ? hr__copy_past_caches : hr__copy_in_pieces;
}

/* Runs of a size known to the compiler become single loads and stores. */
#define COPY_ROW(name, run)                                                                                            \
    static void name(unsigned char *restrict to, const unsigned char *restrict from, int64_t size, int64_t stride) {   \
        for (int64_t i = 0; i < size; i++) memcpy(to + i * (run), from + i * stride, (run));                           \
    }
COPY_ROW(copy_row_1, 1)
COPY_ROW(copy_row_2, 2)
COPY_ROW(copy_row_4, 4)
COPY_ROW(copy_row_8, 8)
COPY_ROW(copy_row_16, 16)
#undef COPY_ROW

static void copy_row(unsigned char *restrict to, const unsigned char *restrict from, const struct hr__dim *dim,
                     int64_t run, hr__copy_bytes *copy_bytes) {
    int64_t size = dim->size, stride = dim->stride_bytes;
    switch (run) {
    case 1:
        copy_row_1(to, from, size, stride);
        break;
    case 2:
        copy_row_2(to, from, size, stride);
        break;
    case 4:
        copy_row_4(to, from, size, stride);
        break;
    case 8:
        copy_row_8(to, from, size, stride);
        break;
    case 16:
        copy_row_16(to, from, size, stride);
        break;
    default:
        for (int64_t i = 0; i < size; i++) copy_bytes(to + i * run, from + i * stride, (size_t)run);
    }
}

/* Moves to the next row. `offset` stays within what the array touches, so that it cannot overflow. */
static bool next_row(int64_t *index, int64_t *offset, const struct hr__dim *dims, uint32_t outer_count) {
    for (uint32_t d = outer_count; d-- > 0;) {
        if (++index[d] < dims[d].size) {
            *offset += dims[d].stride_bytes;
            return true;
        }
        *offset -= dims[d].stride_bytes * (dims[d].size - 1);
        index[d] = 0;
    }
    return false;
}

void hr__copy(unsigned char *restrict to, const struct hr__source *source, const struct hr__dim *dims,
              hr__copy_bytes *copy_bytes) {
    if (!source->dim_count) {
        copy_bytes(to, source->data, source->run_bytes);
        return;
    }
    dims += source->dim_first;
    uint32_t outer_count = source->dim_count - 1;
    const struct hr__dim *inner = &dims[outer_count];
    int64_t run = (int64_t)source->run_bytes, row_bytes = inner->size * run, offset = 0;
    int64_t index[HR_BATCH_MAX_NDIM];
    memset(index, 0, outer_count * sizeof *index);
    do {
        copy_row(to, source->data + offset, inner, run, copy_bytes);
        to += row_bytes;
    } while (next_row(index, &offset, dims, outer_count));
}
