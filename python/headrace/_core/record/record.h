/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_RECORD_RECORD_H
#define HEADRACE_CORE_RECORD_RECORD_H

#include "core.h"

/*
 * Recordings of what loaders did: what module.c adds to the module.
 *
 *     recording.c   _core.Recording, the file of a loader
 *     columns.c     numbers of many entries, as columns
 *     judge.c       the verdict on a loop that waits, and quantiles
 *     thread.c      _core.RecordThread, which records this process
 */

extern PyTypeObject RecordingType, RecordThreadType;

enum { CORE_NO_STEP = -1 }; /* inside_us of the first step of an epoch, in Python */

PyObject *record_judge(PyObject *self, PyObject *arguments, PyObject *keywords);
PyObject *record_quantile_ns(PyObject *self, PyObject *arguments);

/* The 64-bit numbers of many entries by column. `names`: `count` of them. Python sees a dict of memoryviews. */
struct core_columns {
    PyObject *arrays; /* a list of bytes; owned */
    int64_t **at;     /* of each column; owned */
    const char *const *names;
    Py_ssize_t count;
};

/* Makes columns of `length` numbers, which the caller writes. Returns -1 with an exception, and nothing is to be freed.
 */
int core_columns_make(struct core_columns *columns, const char *const *names, Py_ssize_t count, uint64_t length);
/* Returns the dict of the columns, a new reference, and frees the columns. NULL: exception. */
PyObject *core_columns_take(struct core_columns *columns);

#endif
