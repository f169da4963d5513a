/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the arguments of the methods `ask` of sources. */
#include "remote/remote.h"
#include "source/source.h"

/* Indices that are no ints are left out: they become -1, which no source has. */
static int64_t *read_list(PyObject *list, size_t *ret_count) {
    Py_ssize_t count = PyList_GET_SIZE(list);
    int64_t *indices = PyMem_Calloc((size_t)count + 1, sizeof *indices);
    if (!indices) return (int64_t *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count && i < PyList_GET_SIZE(list); i++) {
        PyObject *index = PyList_GET_ITEM(list, i);
        int is_large = 0;
        indices[i] = PyLong_CheckExact(index) ? PyLong_AsLongLongAndOverflow(index, &is_large) : -1;
    }
    *ret_count = (size_t)count;
    return indices;
}

int source_read_asked(PyObject *arguments, struct source_asked *ret_asked) {
    PyObject *list, *announcer = Py_None;
    if (!PyArg_ParseTuple(arguments, "O!|O:ask", &PyList_Type, &list, &announcer)) return -1;
    *ret_asked = (struct source_asked){0};
    if (announcer != Py_None && !Py_IS_TYPE(announcer, &AnnouncerType)) {
        PyErr_SetString(PyExc_TypeError, "headrace: expected a _core.Announcer");
        return -1;
    }
    if (announcer != Py_None) ret_asked->announcer = announcer_of(announcer);
    ret_asked->indices = read_list(list, &ret_asked->count);
    return ret_asked->indices ? 0 : -1;
}
