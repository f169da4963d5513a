/* SPDX-License-Identifier: Apache-2.0 */
/* Turns codes of the library into results and exceptions of Python; deadlines. */
#include "core.h"

#include <errno.h>
#include <string.h>
#include <time.h>

/* Borrowed. */
static PyObject *exception_of(int code) {
    if (code == -ENOMEM) return PyExc_MemoryError;
    if (code == -EINVAL || code == -EOVERFLOW) return PyExc_ValueError;
    if (code == -ETIMEDOUT) return PyExc_TimeoutError;
    PyObject *exception = PyDict_GetItemString(PyEval_GetBuiltins(), hr_error_exception(code));
    return exception ? exception : PyExc_RuntimeError;
}

void *core_raise(int code) {
    if (code == -EINTR && PyErr_Occurred()) return NULL; /* of a signal's handler, which has ended a wait */
    const char *message = hr_error_message();
    PyObject *exception = exception_of(code);
    if (!*message) message = hr_error_text(code);
    /* A path may contain any bytes, and a long message may be cut inside a character. */
    PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "surrogateescape");
    if (text && exception == PyExc_OSError) {
        /* This makes PermissionError and similar subclasses. CPython 3.10 would look for handlers of OSError only if it
         * were made later, of the arguments. */
        PyObject *error = PyObject_CallFunction(exception, "iO", -code, text);
        if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_XDECREF(error);
    } else if (text)
        PyErr_SetObject(exception, text);
    Py_XDECREF(text);
    return NULL;
}

PyObject *core_none_or_raise(int code) {
    if (code < 0) return core_raise(code);
    Py_RETURN_NONE;
}

PyObject *core_new_or_raise(void *object, int code) {
    if (!object || code >= 0) return object;
    core_raise(code);
    Py_DECREF(object);
    return NULL;
}

PyObject *core_waited(int code) {
    if (code == -EINTR) return PyErr_CheckSignals() < 0 ? NULL : PyBool_FromLong(false);
    return code < 0 ? core_raise(code) : PyBool_FromLong(code);
}

int64_t core_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int64_t core_ns_of(double seconds) {
    if (seconds >= (double)INT64_MAX / 1e9) return INT64_MAX;
    return seconds > 0 ? (int64_t)(seconds * 1e9) : 0;
}

int core_deadline(PyObject *seconds, int64_t *ret_deadline_ns) {
    *ret_deadline_ns = HR_NO_DEADLINE;
    if (seconds == Py_None) return 0;
    double wait_s = PyFloat_AsDouble(seconds);
    if (wait_s == -1.0 && PyErr_Occurred()) return -1;
    if (wait_s < 1e9) *ret_deadline_ns = core_now_ns() + core_ns_of(wait_s);
    return 0;
}
