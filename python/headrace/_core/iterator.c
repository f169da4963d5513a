/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#include <structmember.h>

/*
 * _core.Iterator: the base of the loaders' iterators. It sees to it that an exception which is raised anywhere in next()
 * (by a signal's handler, say) loses no batch.
 *
 *     next()  ->  _prepare(), in Python: makes the next value and returns it, but leaves it with `_source`. It can be
 *                 interrupted anywhere, and begins again in the next next().
 *             ->  here, where no Python code runs any more: the source lets go of the value, and the value is returned.
 */
struct iterator {
    PyObject_HEAD PyObject *source;     /* a Loader, Tasks, or a dict: number of an answer -> value */
    unsigned long long answered_count;  /* values and failures that were handed on, in all epochs */
    unsigned long long yielded_count;   /* values of this epoch */
    bool is_busy;                       /* a thread is in next() */
};

/* _core.Failure: what _prepare returns for an exception that is to be raised. */
struct failure {
    PyObject_HEAD PyObject *exception;
};

static int failure_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    PyObject *exception;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O:Failure", &exception)) return -1;
    if (!PyExceptionInstance_Check(exception)) {
        PyErr_SetString(PyExc_TypeError, "headrace: a Failure is of an exception");
        return -1;
    }
    Py_XSETREF(((struct failure *)self)->exception, Py_NewRef(exception));
    return 0;
}

static int failure_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((struct failure *)self)->exception);
    return 0;
}

static int failure_clear(PyObject *self) {
    Py_CLEAR(((struct failure *)self)->exception);
    return 0;
}

static void failure_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    failure_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef failure_members[] = {
    {"exception", T_OBJECT_EX, offsetof(struct failure, exception), READONLY, "The exception."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject FailureType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Failure",
    .tp_basicsize = sizeof(struct failure),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "An exception that is to be raised in the place of a batch: Failure(exception).",
    .tp_new = PyType_GenericNew,
    .tp_init = failure_init,
    .tp_dealloc = failure_dealloc,
    .tp_traverse = failure_traverse,
    .tp_clear = failure_clear,
    .tp_members = failure_members,
};

static void delete_answer(PyObject *answers, unsigned long long number) {
    PyObject *key = PyLong_FromUnsignedLongLong(number);
    if (!key || PyDict_DelItem(answers, key) < 0) PyErr_Clear(); /* a failure was not there */
    Py_XDECREF(key);
}

static void hand_on(struct iterator *iterator) {
    PyObject *source = iterator->source;
    if (source && Py_IS_TYPE(source, &LoaderType)) loader_drop(source);
    if (source && Py_IS_TYPE(source, &TasksType)) tasks_handed_on(source);
    if (source && PyDict_CheckExact(source)) delete_answer(source, iterator->answered_count);
    iterator->answered_count++;
}

static PyObject *raise_failure(PyObject *failure) {
    PyObject *exception = Py_XNewRef(((struct failure *)failure)->exception);
    Py_DECREF(failure);
    if (!exception) return PyErr_Format(PyExc_RuntimeError, "headrace: a failure without an exception");
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_DECREF(exception);
    return NULL;
}

static PyObject *iterator_next(PyObject *self) {
    struct iterator *iterator = (struct iterator *)self;
    bool is_shared = iterator->source && Py_IS_TYPE(iterator->source, &TasksType); /* each thread has a task of its own */
    if (iterator->is_busy && !is_shared) {
        PyErr_SetString(PyExc_RuntimeError, "headrace: another thread is waiting for this loader's next batch; give "
                                            "each thread an iterator of its own, or a lock");
        return NULL;
    }
    iterator->is_busy = true;
    PyObject *value = PyObject_CallMethodNoArgs(self, core.names.prepare);
    iterator->is_busy = false;
    if (!value) return NULL;
    hand_on(iterator);
    if (Py_IS_TYPE(value, &FailureType)) return raise_failure(value);
    iterator->yielded_count++;
    return value;
}

static int iterator_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((struct iterator *)self)->source);
    return 0;
}

static int iterator_clear(PyObject *self) {
    Py_CLEAR(((struct iterator *)self)->source);
    return 0;
}

static void iterator_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    iterator_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef iterator_members[] = {
    {"_source", T_OBJECT, offsetof(struct iterator, source), 0, "What keeps the next value until it is handed on."},
    {"_answered", T_ULONGLONG, offsetof(struct iterator, answered_count), 0, "Values and failures handed on."},
    {"_num_yielded", T_ULONGLONG, offsetof(struct iterator, yielded_count), 0, "Values of this epoch."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject IteratorType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Iterator",
    .tp_basicsize = sizeof(struct iterator),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_doc = "The base of a loader's iterator: next() returns what its method _prepare() returns, or raises it where "
              "it is a Failure. An exception out of _prepare() loses nothing: it is called again.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = iterator_dealloc,
    .tp_traverse = iterator_traverse,
    .tp_clear = iterator_clear,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = iterator_next,
    .tp_members = iterator_members,
};
