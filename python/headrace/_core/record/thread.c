/* SPDX-License-Identifier: Apache-2.0 */
/* _core.RecordThread: records the loaders of this process, if the command headrace is missing. */
#include "record/record.h"

#include <stdio.h>

#include <headrace/face/recorder.h>

struct core_record_thread {
    PyObject_HEAD hr_record_thread *thread;
};

/* Called in the thread, without the GIL. */
static void print_report(const char *text) {
    fputs(text, stderr);
    fflush(stderr);
}

static void end_thread(PyObject *self) {
    struct core_record_thread *owner = (struct core_record_thread *)self;
    hr_record_thread *thread = owner->thread;
    owner->thread = NULL;
    Py_BEGIN_ALLOW_THREADS;
    hr_record_thread_end(thread);
    Py_END_ALLOW_THREADS;
}

static void thread_dealloc(PyObject *self) {
    end_thread(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *thread_start(PyObject *type, PyObject *arguments) {
    PyObject *folder;
    unsigned long long recording;
    (void)type;
    if (!PyArg_ParseTuple(arguments, "O&K:start", PyUnicode_FSConverter, &folder, &recording)) return NULL;
    struct core_record_thread *self = (struct core_record_thread *)RecordThreadType.tp_alloc(&RecordThreadType, 0);
    int r = self ? hr_record_thread_start(PyBytes_AS_STRING(folder), recording, print_report, &self->thread) : 0;
    Py_DECREF(folder);
    return core_new_or_raise(self, r);
}

static PyObject *thread_end(PyObject *self, PyObject *ignored) {
    (void)ignored;
    end_thread(self);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"start", thread_start, METH_VARARGS | METH_STATIC,
     "start(folder, recording) -> RecordThread\n\nRecords the loaders of this process that show this number."},
    {"end", thread_end, METH_NOARGS,
     "end()\n\nWrites what is left and ends the thread. A forked child has none, and it does nothing there."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject RecordThreadType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.RecordThread",
    .tp_basicsize = sizeof(struct core_record_thread),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "A thread that records the loaders of this process, for programs without the command headrace.",
    .tp_dealloc = thread_dealloc,
    .tp_methods = methods,
};
