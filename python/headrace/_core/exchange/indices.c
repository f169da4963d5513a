/* SPDX-License-Identifier: Apache-2.0 */
/* Packs the indices of a task, and unpacks them in the worker. */
#include "exchange/exchange.h"

#include <string.h>

/* The payload of a task starts with an int64, its form, which says what follows. */
enum form { FORM_PICKLE = 0, FORM_INT_LIST = 1, FORM_INT = 2, FORM_NONE_LIST = 3 };

static PyObject *dumps, *loads;

static int need_pickle(void) {
    if (loads) return 0;
    PyObject *pickle = PyImport_ImportModule("pickle");
    if (!pickle) return -1;
    dumps = PyObject_GetAttrString(pickle, "dumps");
    loads = PyObject_GetAttrString(pickle, "loads");
    Py_DECREF(pickle);
    return dumps && loads ? 0 : -1;
}

static PyObject *new_payload(enum form form, Py_ssize_t bytes, void **ret_content) {
    PyObject *payload = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizeof(int64_t) + bytes);
    if (!payload) return NULL;
    int64_t head = form;
    memcpy(PyBytes_AS_STRING(payload), &head, sizeof head);
    *ret_content = PyBytes_AS_STRING(payload) + sizeof head;
    return payload;
}

/* Returns -1 without an exception if it is not an exact int of 64 bits. */
static int as_int64(PyObject *object, int64_t *ret_value) {
    int overflow;
    if (!PyLong_CheckExact(object)) return -1;
    *ret_value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow ? -1 : 0;
}

static PyObject *pack_list(PyObject *indices) {
    int64_t *values = NULL;
    Py_ssize_t count = PyList_GET_SIZE(indices);
    PyObject *payload = new_payload(FORM_INT_LIST, count * (Py_ssize_t)sizeof(int64_t), (void **)&values);
    for (Py_ssize_t i = 0; payload && i < count; i++) {
        if (as_int64(PyList_GET_ITEM(indices, i), &values[i]) == 0) continue;
        Py_CLEAR(payload);
    }
    return payload;
}

/* Returns true for [None, None, ...], which the sampler of an iterable dataset draws. */
static PyObject *pack_none_list(PyObject *indices) {
    int64_t *count = NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(indices); i++)
        if (PyList_GET_ITEM(indices, i) != Py_None) return NULL;
    PyObject *payload = new_payload(FORM_NONE_LIST, sizeof(int64_t), (void **)&count);
    if (payload) *count = PyList_GET_SIZE(indices);
    return payload;
}

static PyObject *pack_pickle(PyObject *indices) {
    void *content;
    if (need_pickle() < 0) return NULL;
    PyObject *pickle = PyObject_CallOneArg(
        dumps, indices); /* with the default protocol, as in torch, so that arrays arrive in the same form */
    if (!pickle) return NULL;
    PyObject *payload = new_payload(FORM_PICKLE, PyBytes_GET_SIZE(pickle), &content);
    if (payload) memcpy(content, PyBytes_AS_STRING(pickle), (size_t)PyBytes_GET_SIZE(pickle));
    Py_DECREF(pickle);
    return payload;
}

PyObject *core_pack_indices(PyObject *indices) {
    int64_t value, *content = NULL;
    PyObject *payload = NULL;
    if (PyList_CheckExact(indices)) {
        payload = pack_list(indices);
        if (!payload && !PyErr_Occurred()) payload = pack_none_list(indices);
    } else if (as_int64(indices, &value) == 0) {
        payload = new_payload(FORM_INT, sizeof value, (void **)&content);
        if (payload) *content = value;
    }
    if (payload || PyErr_Occurred()) return payload;
    return pack_pickle(indices);
}

static PyObject *unpack_list(const int64_t *values, uint64_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (uint64_t i = 0; list && i < count; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (!value) Py_CLEAR(list);
        if (list) PyList_SET_ITEM(list, (Py_ssize_t)i, value);
    }
    return list;
}

static PyObject *unpack_none_list(int64_t count) {
    PyObject *one = Py_BuildValue("[O]", Py_None);
    PyObject *list = one ? PySequence_Repeat(one, (Py_ssize_t)count) : NULL;
    Py_XDECREF(one);
    return list;
}

PyObject *core_unpack_indices(const void *bytes, uint64_t length) {
    const int64_t *words = bytes;
    if (length < sizeof *words)
        return PyErr_Format(PyExc_RuntimeError, "headrace: a task has no indices; the shared memory is damaged");
    uint64_t content = length - sizeof *words;
    if (words[0] == FORM_INT_LIST) return unpack_list(words + 1, content / sizeof *words);
    if (words[0] == FORM_INT && content == sizeof *words) return PyLong_FromLongLong(words[1]);
    if (words[0] == FORM_NONE_LIST && content == sizeof *words) return unpack_none_list(words[1]);
    if (words[0] != FORM_PICKLE || need_pickle() < 0)
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_RuntimeError, "headrace: the indices of a task are damaged");
    PyObject *view = PyBytes_FromStringAndSize((const char *)(words + 1), (Py_ssize_t)content);
    PyObject *indices = view ? PyObject_CallFunctionObjArgs(loads, view, NULL) : NULL;
    Py_XDECREF(view);
    return indices;
}
