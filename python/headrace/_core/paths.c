/* SPDX-License-Identifier: Apache-2.0 */
/* Tuples of paths for functions of C that take several. */
#include "core.h"

const char **core_paths(PyObject *tuple) {
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    const char **paths = PyMem_Calloc((size_t)count + 1, sizeof *paths);
    if (!paths) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        paths[i] = PyBytes_AsString(PyTuple_GET_ITEM(tuple, i));
        if (paths[i]) continue;
        PyMem_Free(paths);
        return NULL;
    }
    return paths;
}
