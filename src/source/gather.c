/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers rows of numbers into one array. */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include <headrace/source.h>

#include "base/base.h"
#include "base/error.h"
#include "batch/copy.h"
#include "os/os.h"
#include "source/convert.h"

/* ---- the column ---- */

static uint64_t item_bytes(struct hr_dtype dtype) {
    return (uint64_t)dtype.bits * dtype.lanes / 8;
}

static bool is_same_dtype(struct hr_dtype a, struct hr_dtype b) {
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

static int count_elements(const struct hr_column *column, uint64_t *ret_count) {
    uint64_t count = 1;
    for (uint32_t d = 0; d < column->ndim; d++) {
        if (column->shape[d] < 0)
            return hr__fail(-EINVAL, "source: dimension %" PRIu32 " of a row is %" PRId64 "; give 0 or more", d,
                            column->shape[d]);
        if (!hr__mul(count, (uint64_t)column->shape[d], &count))
            return hr__fail(-EINVAL, "source: a row has more elements than fit 64 bits");
    }
    *ret_count = count;
    return 0;
}

static int check_piece(const struct hr_column *column, const struct hr_piece *piece, uint64_t first_row) {
    if (piece->first_row != first_row)
        return hr__fail(-EINVAL, "source: a piece begins at row %" PRIu64 ", but those before it have %" PRIu64 " rows",
                        piece->first_row, first_row);
    if (piece->strides && !is_same_dtype(column->dtype, column->to))
        return hr__fail(-EINVAL, "source: rows with strides cannot be converted; give rows in C order");
    bool is_list = piece->offsets != NULL;
    if (is_list && (column->ndim != 1 || (piece->offset_bytes != 4 && piece->offset_bytes != 8)))
        return hr__fail(
            -EINVAL, "source: lists have %" PRIu32 " dimensions and offsets of %" PRIu32 " bytes; give 1, and 4 or 8",
            column->ndim, piece->offset_bytes);
    return 0;
}

static int check_pieces(const struct hr_column *column) {
    uint64_t row_count = 0;
    for (uint32_t i = 0; i < column->piece_count; i++) {
        int r = check_piece(column, &column->pieces[i], row_count);
        if (r < 0) return r;
        row_count += column->pieces[i].row_count;
    }
    if (row_count == column->row_count) return 0;
    return hr__fail(-EINVAL, "source: the pieces have %" PRIu64 " rows, not %" PRIu64, row_count, column->row_count);
}

int hr_column_check(const struct hr_column *column, uint64_t *ret_row_bytes) {
    uint64_t elements, bytes;
    struct hr_dtype from = column->dtype, to = column->to;
    if (!item_bytes(from) || from.bits % 8 || column->ndim > HR_BATCH_MAX_NDIM)
        return hr__fail(-EINVAL, "source: rows of %" PRIu32 " dimensions with elements of %d bits cannot be gathered",
                        column->ndim, from.bits);
    if (!is_same_dtype(from, to) && !hr__find_conversion(from, to))
        return hr__fail(-EINVAL, "source: no conversion from dtype (%d, %d bits) to (%d, %d bits)", from.code,
                        from.bits, to.code, to.bits);
    int r = count_elements(column, &elements);
    if (r == 0) r = check_pieces(column);
    if (r < 0) return r;
    if (!hr__mul(elements, hr__max(item_bytes(to), item_bytes(from)), &bytes) || bytes > INT64_MAX)
        return hr__fail(-EINVAL, "source: a row has more bytes than fit 63 bits");
    *ret_row_bytes = elements * item_bytes(to);
    return 0;
}

/* ---- the address of a row ---- */

/* A gather while it runs: what is the same for all rows. */
struct gather {
    const struct hr_column *column;
    const int64_t *indices;
    unsigned char *target;
    uint64_t elements, row_bytes, from_bytes; /* of a row: in the target, and in memory */
    hr__convert *convert;                     /* NULL: the dtype stays */
    hr__copy_bytes *copy_bytes;
};

static const struct hr_piece *find_piece(const struct hr_column *column, uint64_t row) {
    uint32_t low = 0, high = column->piece_count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (column->pieces[middle].first_row <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return &column->pieces[low];
}

static int64_t offset_at(const struct hr_piece *piece, uint64_t i) {
    int32_t narrow;
    int64_t wide;
    if (piece->offset_bytes == sizeof narrow) {
        memcpy(&narrow, (const char *)piece->offsets + i * sizeof narrow, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, (const char *)piece->offsets + i * sizeof wide, sizeof wide);
    return wide;
}

/* Finds the elements of a list: from `*ret_begin` on in the piece, so many. */
static int find_list(const struct hr_piece *piece, uint64_t row, int64_t *ret_begin, int64_t *ret_length) {
    int64_t begin = offset_at(piece, row), end = offset_at(piece, row + 1);
    if (begin < 0 || end < begin || (uint64_t)end > piece->element_count)
        return hr__fail(HR_E_CORRUPT,
                        "source: the list of row %" PRIu64 " goes from element %" PRId64 " to %" PRId64 " of %" PRIu64
                        "; the file or table is damaged, so make it again",
                        piece->first_row + row, begin, end, piece->element_count);
    *ret_begin = begin;
    *ret_length = end - begin;
    return 0;
}

static int check_index(const struct hr_column *column, int64_t index) {
    if (index >= 0 && (uint64_t)index < column->row_count) return 0;
    return hr__fail(-ERANGE, "source: index %" PRId64 " is out of range; there are %" PRIu64 " rows", index,
                    column->row_count);
}

int hr_list_length(const struct hr_column *column, int64_t index, int64_t *ret_length) {
    int64_t begin;
    int r = check_index(column, index);
    if (r < 0) return r;
    const struct hr_piece *piece = find_piece(column, (uint64_t)index);
    if (!piece->offsets) return hr__fail(-EINVAL, "source: the column has no lists");
    return find_list(piece, (uint64_t)index - piece->first_row, &begin, ret_length);
}

static int find_row(const struct gather *gather, int64_t index, const unsigned char **ret_row,
                    const struct hr_piece **ret_piece) {
    int64_t begin, length;
    int r = check_index(gather->column, index);
    if (r < 0) return r;
    const struct hr_piece *piece = *ret_piece = find_piece(gather->column, (uint64_t)index);
    uint64_t row = (uint64_t)index - piece->first_row;
    *ret_row = (const unsigned char *)piece->data + (int64_t)row * piece->stride_bytes;
    if (!piece->offsets) return 0;
    r = find_list(piece, row, &begin, &length);
    if (r < 0) return r;
    if ((uint64_t)length != gather->elements)
        return hr__fail(-EINVAL, "source: the list of row %" PRId64 " has %" PRId64 " elements, not %" PRIu64, index,
                        length, gather->elements);
    *ret_row = (const unsigned char *)piece->data + (uint64_t)begin * item_bytes(gather->column->dtype);
    return 0;
}

/* ---- the copy ---- */

/* Rows are looked up a block ahead of the copy, and their beginnings are fetched into the cache meanwhile. The
 * processor itself fetches what follows in a row. */
enum { BLOCK = 16, FETCHED_LINES = 4 };

struct block {
    const unsigned char *rows[BLOCK];
    const struct hr_piece *pieces[BLOCK];
    uint32_t count;
};

static void fetch(const unsigned char *row, uint64_t bytes) {
    for (uint64_t i = 0; i < hr__min(bytes, FETCHED_LINES * HR_CACHE_LINE); i += HR_CACHE_LINE)
        __builtin_prefetch(row + i);
}

/* Finds the rows of indices[begin] and of those after it, as many as fit the block. */
static int find_block(const struct gather *gather, uint64_t begin, uint64_t end, struct block *block) {
    block->count = 0;
    for (uint64_t i = begin; i < end && block->count < BLOCK; i++) {
        int r = find_row(gather, gather->indices[i], &block->rows[block->count], &block->pieces[block->count]);
        if (r < 0) return r;
        fetch(block->rows[block->count++], gather->from_bytes);
    }
    return 0;
}

static void copy_strided(const struct gather *gather, unsigned char *to, const unsigned char *row,
                         const int64_t *strides) {
    struct hr__dim dims[HR_BATCH_MAX_NDIM];
    struct hr__source source = {.data = row};
    const struct hr_column *column = gather->column;
    hr__collapse(column->ndim, column->shape, strides, item_bytes(column->dtype), dims, &source);
    hr__copy(to, &source, dims, gather->copy_bytes);
}

static void copy_row(const struct gather *gather, unsigned char *to, const unsigned char *row,
                     const struct hr_piece *piece) {
    if (!gather->elements) return;
    if (gather->convert)
        gather->convert(to, row, gather->elements);
    else if (piece->strides)
        copy_strided(gather, to, row, piece->strides);
    else if (gather->row_bytes == sizeof(uint64_t))
        memcpy(to, row, sizeof(uint64_t));
    else if (gather->row_bytes == sizeof(uint32_t))
        memcpy(to, row, sizeof(uint32_t));
    else
        gather->copy_bytes(to, row, gather->row_bytes);
}

/* Copies the rows of indices[begin] to indices[end - 1]. */
static int copy_rows(const struct gather *gather, uint64_t begin, uint64_t end) {
    struct block blocks[2];
    int r = find_block(gather, begin, end, &blocks[0]);
    for (uint64_t i = begin, number = 0; r == 0 && i < end; i += BLOCK, number++) {
        const struct block *block = &blocks[number % 2];
        r = find_block(gather, i + BLOCK, end, &blocks[(number + 1) % 2]);
        for (uint32_t k = 0; r == 0 && k < block->count; k++)
            copy_row(gather, gather->target + (i + k) * gather->row_bytes, block->rows[k], block->pieces[k]);
    }
    if (gather->copy_bytes == hr__copy_past_caches) hr__copies_land();
    return r;
}

/* ---- several threads ---- */

/* From SHARED_BYTES on, a thread saves more than its start takes. */
enum { SHARED_BYTES = 8 << 20, MOST_THREADS = 16 };

struct share {
    const struct gather *gather;
    uint64_t begin, end;
    int result;
    struct hr__thread thread;
};

static void copy_share(void *context) {
    struct share *share = context;
    share->result = copy_rows(share->gather, share->begin, share->end);
}

/* A failure is looked for again in this thread, because the message of an error belongs to a thread. */
static int copy_shared(const struct gather *gather, uint64_t count, uint32_t threads) {
    struct share shares[MOST_THREADS];
    uint32_t started = 0;
    int r = 0;
    for (uint32_t i = 0; i < threads; i++)
        shares[i] = (struct share){.gather = gather, .begin = count * i / threads, .end = count * (i + 1) / threads};
    while (started + 1 < threads &&
           hr__thread_start(&shares[started + 1].thread, copy_share, &shares[started + 1]) == 0)
        started++;
    copy_share(&shares[0]);
    for (uint32_t i = started + 1; i < threads; i++) copy_share(&shares[i]);
    for (uint32_t i = 1; i <= started; i++) hr__thread_join(&shares[i].thread);
    for (uint32_t i = 0; i < threads && r == 0; i++)
        if (shares[i].result < 0) r = copy_rows(gather, shares[i].begin, shares[i].end);
    return r;
}

int hr_gather(const struct hr_column *column, const int64_t *indices, uint64_t count, uint32_t threads, void *target) {
    struct gather gather = {.column = column, .indices = indices, .target = target};
    uint64_t bytes;
    int r = count_elements(column, &gather.elements);
    if (r < 0) return r;
    gather.row_bytes = gather.elements * item_bytes(column->to);
    gather.from_bytes = gather.elements * item_bytes(column->dtype);
    if (!hr__mul(count, gather.row_bytes, &bytes))
        return hr__fail(-EINVAL, "source: %" PRIu64 " rows of %" PRIu64 " bytes are too many", count, gather.row_bytes);
    gather.convert = is_same_dtype(column->dtype, column->to) ? NULL : hr__find_conversion(column->dtype, column->to);
    gather.copy_bytes = hr__choose_copy(bytes);
    uint32_t useful = (uint32_t)hr__min(hr__min(threads, MOST_THREADS), count);
    return useful > 1 && bytes >= SHARED_BYTES ? copy_shared(&gather, count, useful) : copy_rows(&gather, 0, count);
}
