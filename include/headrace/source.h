/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_SOURCE_H
#define HEADRACE_SOURCE_H

#include <stdint.h>

#include <headrace/batch.h>
#include <headrace/visibility.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Rows of numbers, gathered. A column is many rows of one dtype and one shape in memory, in one piece or in several
 * that follow each other. A gather writes the rows with given indices to one
 * new array in C order, one after the other: the array has the shape (number of indices, *shape of a row).
 *
 * Nothing is allocated, and nothing is kept between two calls. A column and all that it refers to belong to the caller.
 * Several threads may gather from the same column.
 */

/* Rows in memory that follow each other at a fixed distance, or lists of one length. */
struct hr_piece {
    const void *data;   /* the first element of row 0, aligned in any way */
    uint64_t first_row; /* how many rows the pieces before this one have */
    uint64_t row_count;
    int64_t stride_bytes;   /* from a row to the next one; may be 0 or negative */
    const int64_t *strides; /* of a row, in elements; NULL: C order */

    /* For lists, as Arrow stores them: row i has the elements offsets[i] to offsets[i + 1] - 1 of `data`. Then the
     * shape of the column has one dimension, and the strides above are not used. Each offset is checked when it is
     * used. */
    const void *offsets;    /* row_count + 1 of them; NULL: the rows have a fixed distance */
    uint32_t offset_bytes;  /* 4: they are int32; 8: int64 */
    uint64_t element_count; /* of `data` */
};

/* A column. */
struct hr_column {
    struct hr_dtype dtype; /* of the rows in memory */
    struct hr_dtype to;    /* of the new array: see hr_column_check */
    uint32_t ndim;         /* of a row */
    const int64_t *shape;  /* of a row */
    const struct hr_piece *pieces;
    uint32_t piece_count;
    uint64_t row_count; /* of all pieces together */
};

/*
 * Checks a column before its first gather. `to` is the same as `dtype`, or a wider form of it: int64 for the other
 * signed integers and for unsigned ones of at most 32 bits; float32 for float64, rounded to the nearest. A row that is
 * converted must be in C order. `*ret_row_bytes` is the size of a row of the new array. -EINVAL.
 */
HR_API int hr_column_check(const struct hr_column *column, uint64_t *ret_row_bytes);

/* Tells how many elements the list of a row has, for a column of lists. -ERANGE; HR_E_CORRUPT as hr_gather; -EINVAL: it
 * is no column of lists. */
HR_API int hr_list_length(const struct hr_column *column, int64_t index, int64_t *ret_length);

/*
 * Gathers the rows with these indices, each from 0 to row_count - 1, in any order, also repeatedly. `target` has room
 * for `count` rows. From 8 MiB on, as many as `threads` threads share the work.
 *
 * -ERANGE: an index is out of range; -EINVAL: a list has another length than the shape; HR_E_CORRUPT: offsets of a list
 * point outside of its data. The content of `target` is undefined after a failure.
 */
HR_API int hr_gather(const struct hr_column *column, const int64_t *indices, uint64_t count, uint32_t threads,
                     void *target);

#ifdef __cplusplus
}
#endif
#endif
