/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/freeze.h"

/* The path of the object that is being written, for messages, and for the report of the bytes that each path takes. */

static PyObject *quote(PyObject *key) {
    enum { MOST = 60 };
    PyObject *text = PyObject_Repr(key);
    if (!text || PyUnicode_GET_LENGTH(text) <= MOST) return text;
    PyObject *head = PyUnicode_Substring(text, 0, MOST);
    Py_DECREF(text);
    text = head ? PyUnicode_FromFormat("%U...", head) : NULL;
    Py_XDECREF(head);
    return text;
}

static PyObject *step_of(const struct freeze_frame *frame) {
    Py_ssize_t index = frame->next ? (Py_ssize_t)frame->next - 1 : 0;
    if (frame->kind == FRAME_LIST || frame->kind == FRAME_ROWS) return PyUnicode_FromFormat("[%zd]", index);
    if (frame->kind == FRAME_SET) return PyUnicode_FromString("{an item}");
    PyObject *key = frame->kind == FRAME_DICT ? frame->key : PyTuple_GetItem(frame->names, index);
    if (!key) {
        PyErr_Clear();
        return PyUnicode_FromString("");
    }
    if (frame->is_object) return PyUnicode_FromFormat(".%U", key);
    PyObject *quoted = quote(key);
    PyObject *step = quoted ? PyUnicode_FromFormat("[%U]", quoted) : NULL;
    Py_XDECREF(quoted);
    return step;
}

PyObject *freeze_path(struct freezer *freezer) {
    enum { HEAD = 8, TAIL = 8 };
    PyObject *path = PyUnicode_FromString("obj");
    for (size_t i = 0; path && i < freezer->frame_count; i++) {
        const struct freeze_frame *frame = &freezer->frames[i];
        if (frame->is_hidden) continue;
        bool is_left_out = i >= HEAD && i + TAIL < freezer->frame_count;
        PyObject *step = !is_left_out ? step_of(frame) : PyUnicode_FromString(i == HEAD ? "..." : "");
        PyUnicode_Append(&path, step);
        Py_XDECREF(step);
    }
    return path;
}

/* ---- bytes by path ---- */

enum { DEPTH = 3 /* the number of steps of a path in the report */ };

/* All items of a list have the same step, `[*]`. */
static PyObject *kind_of_step(const struct freeze_frame *frame) {
    if (frame->is_hidden) return PyUnicode_FromString("");
    bool has_name = frame->kind == FRAME_RECORD || frame->kind == FRAME_FIELDS;
    return has_name ? step_of(frame) : PyUnicode_FromString("[*]");
}

static PyObject *kind_of_path(const struct freezer *freezer, size_t top) {
    PyObject *path = PyUnicode_FromString("obj");
    for (size_t i = 0; path && i <= top; i++) {
        PyObject *step = kind_of_step(&freezer->frames[i]);
        PyUnicode_Append(&path, step);
        Py_XDECREF(step);
    }
    return path;
}

int freeze_account(struct freezer *freezer, size_t top) {
    struct freeze_frame *frame = &freezer->frames[top];
    uint64_t now = hr_builder_bytes(freezer->builder), added = now - frame->mark;
    if (top >= DEPTH || added == 0) return 0;
    frame->mark = now;
    PyObject *path = kind_of_path(freezer, top);
    PyObject *known = path ? PyDict_GetItemWithError(freezer->paths, path) : NULL;
    PyObject *sum = NULL;
    if (path && !PyErr_Occurred())
        sum = PyLong_FromUnsignedLongLong(added + (known ? PyLong_AsUnsignedLongLong(known) : 0));
    int r = sum ? PyDict_SetItem(freezer->paths, path, sum) : -1;
    Py_XDECREF(path);
    Py_XDECREF(sum);
    return r;
}
