/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Tuner: how many workers of a loader get tasks. */
#include "exchange/exchange.h"

struct tuner {
    PyObject_HEAD hr_tuner *tuner;
};

hr_tuner *tuner_of(PyObject *tuner) {
    return tuner && Py_IS_TYPE(tuner, &TunerType) ? ((struct tuner *)tuner)->tuner : NULL;
}

static int tuner_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"first", "most", "prefetch_factor", "turn", "turns", NULL};
    struct tuner *tuner = (struct tuner *)self;
    struct hr_tuner_options options;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "IIIII:Tuner", names, &options.first, &options.most,
                                     &options.prefetch_factor, &options.turn, &options.turns))
        return -1;
    if (options.first < 1 || options.first > options.most) {
        PyErr_Format(PyExc_ValueError, "headrace: a tuner begins with 1 to %u workers, but got %u", options.most,
                     options.first);
        return -1;
    }
    if (tuner->tuner) {
        PyErr_SetString(PyExc_RuntimeError, "headrace: the tuner is open already");
        return -1;
    }
    tuner->tuner = hr_tuner_open(&options);
    if (!tuner->tuner) PyErr_NoMemory();
    return tuner->tuner ? 0 : -1;
}

static void tuner_dealloc(PyObject *self) {
    hr_tuner_close(((struct tuner *)self)->tuner);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *describe_try(const struct hr_tuner_try *one) {
    static const char *const why[] = {"first", "more", "again", "fewer"};
    return Py_BuildValue("{s:I,s:s,s:O,s:d,s:d,s:d,s:d}", "workers", one->workers, "why", why[one->why], "kept",
                         one->is_kept ? Py_True : Py_False, "batches_per_s", one->batches_per_s, "noise", one->noise,
                         "wait", one->wait, "seconds", one->seconds);
}

static PyObject *tuner_report(PyObject *self, PyObject *ignored) {
    static const char *const states[] = {"first", "more", "again", "fewer", "rest"};
    struct hr_tuner_report report;
    (void)ignored;
    hr_tuner_read(((struct tuner *)self)->tuner, &report);
    PyObject *tries = PyList_New(0);
    uint32_t kept = report.try_count < HR_TUNER_TRIES ? report.try_count : HR_TUNER_TRIES;
    for (uint32_t i = 0; tries && i < kept; i++) {
        PyObject *one = describe_try(&report.tries[i]);
        if (!one || PyList_Append(tries, one) < 0) Py_CLEAR(tries);
        Py_XDECREF(one);
    }
    if (!tries) return NULL;
    return Py_BuildValue("{s:I,s:I,s:s,s:I,s:N}", "workers", report.workers, "most", report.most, "state",
                         states[report.state], "changes", report.changes, "tries", tries);
}

static PyObject *tuner_hold(PyObject *self, PyObject *ignored) {
    (void)ignored;
    hr_tuner_hold(((struct tuner *)self)->tuner);
    Py_RETURN_NONE;
}

static PyObject *tuner_restart(PyObject *self, PyObject *argument) {
    unsigned long workers = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred()) return NULL;
    if (workers < 1 || workers > HR_ARENA_MAX_WORKERS)
        return PyErr_Format(PyExc_ValueError, "headrace: %R workers", argument);
    hr_tuner_restart(((struct tuner *)self)->tuner, (uint32_t)workers);
    Py_RETURN_NONE;
}

static PyObject *tuner_wanted(PyObject *self, void *ignored) {
    (void)ignored;
    return PyLong_FromUnsignedLong(hr_tuner_wanted(((struct tuner *)self)->tuner));
}

static PyMethodDef tuner_methods[] = {
    {"report", tuner_report, METH_NOARGS,
     "report() -> dict\n\nReturns the fields of struct hr_tuner_report by their names."},
    {"hold", tuner_hold, METH_NOARGS, "hold()\n\nNothing is tried any more."},
    {"restart", tuner_restart, METH_O, "restart(workers)\n\nThe search begins again, with this number."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tuner_properties[] = {
    {"wanted", tuner_wanted, NULL, "How many workers it wants.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject TunerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Tuner",
    .tp_basicsize = sizeof(struct tuner),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc =
        "Says how many workers get tasks: Tuner(first, most, prefetch_factor, turn, turns). See headrace/face/tuner.h.",
    .tp_new = PyType_GenericNew,
    .tp_init = tuner_init,
    .tp_dealloc = tuner_dealloc,
    .tp_methods = tuner_methods,
    .tp_getset = tuner_properties,
};
