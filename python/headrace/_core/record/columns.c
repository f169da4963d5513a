/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of many entries, as columns that Python reads without a copy. */
#include "record/record.h"

static void free_columns(struct core_columns *columns) {
    Py_CLEAR(columns->arrays);
    PyMem_Free(columns->at);
}

static int add_column(struct core_columns *columns, Py_ssize_t i, uint64_t length) {
    PyObject *array = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(length * sizeof(int64_t)));
    if (!array) return -1;
    columns->at[i] = (int64_t *)(void *)PyBytes_AS_STRING(array);
    int r = PyList_Append(columns->arrays, array);
    Py_DECREF(array); /* the list has it */
    return r;
}

int core_columns_make(struct core_columns *columns, const char *const *names, Py_ssize_t count, uint64_t length) {
    *columns = (struct core_columns){.arrays = PyList_New(0), .names = names, .count = count};
    columns->at = PyMem_Calloc((size_t)count, sizeof *columns->at);
    if (!columns->at) PyErr_NoMemory();
    int r = columns->arrays && columns->at ? 0 : -1;
    for (Py_ssize_t i = 0; r == 0 && i < count; i++) r = add_column(columns, i, length);
    if (r < 0) free_columns(columns);
    return r;
}

static PyObject *view_of(PyObject *array) {
    PyObject *bytes = PyMemoryView_FromObject(array);
    PyObject *numbers = bytes ? PyObject_CallMethod(bytes, "cast", "s", "q") : NULL;
    Py_XDECREF(bytes);
    return numbers;
}

PyObject *core_columns_take(struct core_columns *columns) {
    PyObject *dict = PyDict_New();
    for (Py_ssize_t i = 0; dict && i < columns->count; i++) {
        PyObject *view = view_of(PyList_GET_ITEM(columns->arrays, i));
        if (!view || PyDict_SetItemString(dict, columns->names[i], view) < 0) Py_CLEAR(dict);
        Py_XDECREF(view);
    }
    free_columns(columns);
    return dict;
}
