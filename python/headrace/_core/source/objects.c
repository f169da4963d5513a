/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Objects: whole files, or objects of a bucket. */
#include "source/source.h"

struct core_objects {
    PyObject_HEAD hr_objects *objects;
};

static hr_objects *objects_of(PyObject *self) {
    return ((struct core_objects *)self)->objects;
}

static PyObject *objects_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"paths", NULL};
    PyObject *paths;
    int r = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!:Objects", names, &PyTuple_Type, &paths)) return NULL;
    const char **texts = core_paths(paths);
    struct core_objects *self = texts ? (struct core_objects *)type->tp_alloc(type, 0) : NULL;
    if (self) {
        Py_BEGIN_ALLOW_THREADS;
        r = hr_objects_open(texts, (size_t)PyTuple_GET_SIZE(paths), &self->objects);
        Py_END_ALLOW_THREADS;
    }
    PyMem_Free(texts);
    return core_new_or_raise(self, r);
}

static void objects_dealloc(PyObject *self) {
    hr_objects_close(objects_of(self));
    Py_TYPE(self)->tp_free(self);
}

/* Returns false with an exception if there is no such file. */
static bool look(PyObject *self, PyObject *argument, unsigned long long *ret_number, uint64_t *ret_bytes) {
    *ret_number = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return false;
    if (hr_objects_look(objects_of(self), *ret_number, ret_bytes)) return true;
    PyErr_Format(PyExc_IndexError, "headrace: there is no file %llu", *ret_number);
    return false;
}

static PyObject *objects_size(PyObject *self, PyObject *argument) {
    unsigned long long number;
    uint64_t bytes;
    return look(self, argument, &number, &bytes) ? PyLong_FromUnsignedLongLong(bytes) : NULL;
}

static PyObject *objects_read(PyObject *self, PyObject *argument) {
    unsigned long long number;
    uint64_t bytes;
    int r;
    if (!look(self, argument, &number, &bytes)) return NULL;
    if (bytes > PY_SSIZE_T_MAX) return PyErr_NoMemory();
    PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (!data) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_objects_read(objects_of(self), number, PyBytes_AS_STRING(data));
    Py_END_ALLOW_THREADS;
    if (r == 0) return data;
    Py_DECREF(data);
    return core_raise(r);
}

static PyObject *objects_read_part(PyObject *self, PyObject *arguments) {
    unsigned long long number, at;
    Py_ssize_t bytes;
    int r;
    if (!PyArg_ParseTuple(arguments, "KKn:read_part", &number, &at, &bytes)) return NULL;
    PyObject *data = PyBytes_FromStringAndSize(NULL, bytes < 0 ? 0 : bytes);
    if (!data) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_objects_read_part(objects_of(self), number, at, (uint64_t)PyBytes_GET_SIZE(data), PyBytes_AS_STRING(data));
    Py_END_ALLOW_THREADS;
    if (r == 0) return data;
    Py_DECREF(data);
    return core_raise(r);
}

static PyObject *objects_stop(PyObject *self, PyObject *ignored) {
    (void)ignored;
    hr_objects_stop(objects_of(self));
    Py_RETURN_NONE;
}

static PyObject *objects_ask(PyObject *self, PyObject *arguments) {
    struct source_asked asked;
    if (source_read_asked(arguments, &asked) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    hr_objects_ask(objects_of(self), asked.indices, asked.count, asked.announcer);
    Py_END_ALLOW_THREADS;
    PyMem_Free(asked.indices);
    Py_RETURN_NONE;
}

static PyObject *objects_stamp(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromUnsignedLongLong(hr_objects_stamp(objects_of(self)));
}

static PyMethodDef methods[] = {
    {"size", objects_size, METH_O, "size(number) -> int\n\nReturns the bytes of a file. Raises IndexError."},
    {"read", objects_read, METH_O, "read(number) -> bytes\n\nReads a file. Raises IndexError and OSError."},
    {"read_part", objects_read_part, METH_VARARGS,
     "read_part(number, at, bytes) -> bytes\n\nReads a part of a file. Raises OSError."},
    {"stop", objects_stop, METH_NOARGS, "stop()\n\nEnds the waits of read_part in all threads, which raises OSError."},
    {"ask", objects_ask, METH_VARARGS, SOURCE_ASK_DOC},
    {"stamp", objects_stamp, METH_NOARGS, "stamp() -> int\n\nReturns a number that changes with each file."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject ObjectsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Objects",
    .tp_basicsize = sizeof(struct core_objects),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc =
        "Objects(paths)\n\nWhole files (headrace/objects.h). paths: a tuple of bytes. Raises OSError and ValueError.",
    .tp_new = objects_new,
    .tp_dealloc = objects_dealloc,
    .tp_methods = methods,
};
