/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Filling: threads that have whole remote objects fetched and kept. */
#include "remote/remote.h"

struct core_filling {
    PyObject_HEAD hr_filling *filling;
};

static hr_filling *filling_of(PyObject *self) {
    return ((struct core_filling *)self)->filling;
}

static PyObject *filling_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"paths", NULL};
    PyObject *paths;
    int r = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!:Filling", names, &PyTuple_Type, &paths)) return NULL;
    const char **texts = core_paths(paths);
    struct core_filling *self = texts ? (struct core_filling *)type->tp_alloc(type, 0) : NULL;
    if (self) {
        Py_BEGIN_ALLOW_THREADS;
        r = hr_filling_start(texts, (size_t)PyTuple_GET_SIZE(paths), &self->filling);
        Py_END_ALLOW_THREADS;
    }
    PyMem_Free(texts);
    return core_new_or_raise(self, r);
}

static void filling_dealloc(PyObject *self) {
    Py_BEGIN_ALLOW_THREADS;
    hr_filling_free(filling_of(self));
    Py_END_ALLOW_THREADS;
    Py_TYPE(self)->tp_free(self);
}

static PyObject *filling_wait(PyObject *self, PyObject *seconds) {
    int64_t deadline_ns;
    int r;
    if (core_deadline(seconds, &deadline_ns) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_filling_wait(filling_of(self), deadline_ns);
    Py_END_ALLOW_THREADS;
    return core_waited(r);
}

static PyObject *filling_look(PyObject *self, PyObject *ignored) {
    struct hr_filling_info info;
    (void)ignored;
    hr_filling_look(filling_of(self), &info);
    return Py_BuildValue("{sK sK sK}", "total_bytes", (unsigned long long)info.total_bytes, "done_bytes",
                         (unsigned long long)info.done_bytes, "kept_bytes", (unsigned long long)info.kept_bytes);
}

static PyMethodDef methods[] = {
    {"wait", filling_wait, METH_O,
     "wait(seconds) -> bool\n\nReturns True when all is kept; None: waits for it. Raises OSError and MemoryError."},
    {"look", filling_look, METH_NOARGS, "look() -> dict\n\nReturns the fields of struct hr_filling_info."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject FillingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Filling",
    .tp_basicsize = sizeof(struct core_filling),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Filling(paths)\n\nThreads that have remote objects, which are known, fetched and kept as a whole. It "
              "stops them when it is freed. Raises OSError.",
    .tp_new = filling_new,
    .tp_dealloc = filling_dealloc,
    .tp_methods = methods,
};
