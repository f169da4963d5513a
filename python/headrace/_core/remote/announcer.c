/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Announcer: tells the fetcher of remote objects what will be read. */
#include "remote/remote.h"

struct core_announcer {
    PyObject_HEAD hr_announcer *announcer;
};

hr_announcer *announcer_of(PyObject *self) {
    return ((struct core_announcer *)self)->announcer;
}

static PyObject *announcer_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, ":Announcer", names)) return NULL;
    struct core_announcer *self = (struct core_announcer *)type->tp_alloc(type, 0);
    int r = self ? hr_announcer_new(&self->announcer) : 0;
    return core_new_or_raise(self, r);
}

static void announcer_dealloc(PyObject *self) {
    hr_announcer_free(announcer_of(self));
    Py_TYPE(self)->tp_free(self);
}

static PyObject *announcer_begin(PyObject *self, PyObject *ignored) {
    (void)ignored;
    int r = hr_announcer_begin(announcer_of(self));
    if (r < 0) Py_RETURN_NONE;
    return PyBool_FromLong(r);
}

static PyObject *announcer_send(PyObject *self, PyObject *argument) {
    unsigned long long position = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return NULL;
    return PyLong_FromLong(hr_announcer_send(announcer_of(self), position));
}

static PyObject *announcer_withdraw(PyObject *self, PyObject *arguments) {
    unsigned long long read, given;
    if (!PyArg_ParseTuple(arguments, "KK:withdraw", &read, &given)) return NULL;
    return PyBool_FromLong(hr_announcer_withdraw(announcer_of(self), read, given) == 0);
}

static PyMethodDef methods[] = {
    {"begin", announcer_begin, METH_NOARGS,
     "begin() -> bool or None\n\nReturns True if nothing is announced, because the connection is a new one; False if "
     "it is that of before; None: no fetcher runs."},
    {"send", announcer_send, METH_O,
     "send(position) -> int\n\nAnnounces what sources have added, and returns how many ranges. Negative: not all of it "
     "was."},
    {"withdraw", announcer_withdraw, METH_VARARGS,
     "withdraw(read, given) -> bool\n\nWithdraws what has a position below `read`. What is below `given` is being "
     "read. 2**64 - 1: all. False: nothing was withdrawn."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject AnnouncerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Announcer",
    .tp_basicsize = sizeof(struct core_announcer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Announcer()\n\nTells the fetcher of remote objects what will be read (headrace/remote.h). Its end "
              "withdraws all.",
    .tp_new = announcer_new,
    .tp_dealloc = announcer_dealloc,
    .tp_methods = methods,
};
