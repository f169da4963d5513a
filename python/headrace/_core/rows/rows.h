/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of rows that are gathered in C. */
#ifndef HEADRACE_CORE_ROWS_ROWS_H
#define HEADRACE_CORE_ROWS_ROWS_H

#include "exchange/arrays.h"

/* columns.c: _core.Columns, columns of rows, and what they need to stay alive. */
struct columns {
    PyObject_HEAD struct inputs inputs;
    struct hr_column *items;
    uint32_t count;
    uint64_t row_count;
    PyObject *names;         /* of the columns: the batch is a dict; NULL: it is a list */
    const hr_tokens *tokens; /* the rows are its windows; NULL: they are in memory */
    bool is_alone;           /* the batch is the only column itself */
    bool has_tensors;
};
extern PyTypeObject ColumnsType;

/* rows.c: _core.Rows, the rows of a batch that have not been gathered yet. */
extern PyTypeObject RowsType;
/* Makes the rows of a list of indices. None: an index is no exact int, or out of range, or the lists differ. */
PyObject *rows_new(PyObject *columns, PyObject *indices);
bool is_rows(PyObject *object);

/* Adds the batch to be, with an array for each column. FOUND_NOT: the columns cannot be of this flavor. */
enum found rows_add(PyObject *rows, hr_batch *batch, enum hr_flavor flavor);
/* Gathers the rows into the batch, which was written to `data`. It needs no GIL. Returns 0, or 1 if that failed. */
int rows_run(PyObject *rows, hr_batch *batch, void *data, uint32_t threads);

#endif
