/* SPDX-License-Identifier: Apache-2.0 */
/* Iterators over views. */
#include "frozen/view.h"

struct iterator {
    PyObject_HEAD struct view *view;
    Py_ssize_t next, step, left;
    enum entry_part part;
};

static PyObject *read_part(struct view *view, uint64_t index, bool is_value) {
    struct hr_item item;
    if (is_value) return view_entry(view, index, &item) < 0 ? NULL : read_item(view->frozen, &item);
    if (view->item.kind == HR_KIND_RECORD) {
        const struct shape *shape = frozen_shape(view->frozen, view->item.shape);
        return shape ? Py_XNewRef(PyTuple_GetItem(shape->names, (Py_ssize_t)index)) : NULL;
    }
    int r = hr_frozen_at(view->frozen->data, &view->item, index, &item);
    return r < 0 ? frozen_raise(r) : read_key(view->frozen, &item);
}

PyObject *view_part(struct view *view, enum entry_part part, uint64_t index) {
    struct hr_item item;
    if (part == PART_KEY || part == PART_VALUE) return read_part(view, index, part == PART_VALUE);
    if (part == PART_ITEM) {
        index = (uint64_t)(view->first + (Py_ssize_t)index * view->stride);
        int r = hr_frozen_at(view->frozen->data, &view->item, index, &item);
        return r < 0 ? frozen_raise(r) : read_item(view->frozen, &item);
    }
    PyObject *key = read_part(view, index, false), *value = key ? read_part(view, index, true) : NULL;
    PyObject *pair = value ? PyTuple_Pack(2, key, value) : NULL;
    Py_XDECREF(key);
    Py_XDECREF(value);
    return pair;
}

PyObject *iterator_new(struct view *view, enum entry_part part, bool is_reversed) {
    struct iterator *iterator = PyObject_New(struct iterator, &FrozenIteratorType);
    if (!iterator) return NULL;
    iterator->view = (struct view *)Py_NewRef((PyObject *)view);
    iterator->next = is_reversed ? view->count - 1 : 0;
    iterator->step = is_reversed ? -1 : 1;
    iterator->left = view->count;
    iterator->part = part;
    return (PyObject *)iterator;
}

static PyObject *iterator_next(PyObject *self) {
    struct iterator *iterator = (struct iterator *)self;
    if (iterator->left == 0) return NULL;
    iterator->left--;
    uint64_t index = (uint64_t)iterator->next;
    iterator->next += iterator->step;
    return view_part(iterator->view, iterator->part, index);
}

static PyObject *iterator_length(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromSsize_t(((struct iterator *)self)->left);
}

static void iterator_dealloc(PyObject *self) {
    Py_DECREF((PyObject *)((struct iterator *)self)->view);
    PyObject_Free(self);
}

static PyMethodDef iterator_methods[] = {
    {"__length_hint__", iterator_length, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject FrozenIteratorType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.FrozenIterator",
    .tp_basicsize = sizeof(struct iterator),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = iterator_next,
    .tp_methods = iterator_methods,
    .tp_dealloc = iterator_dealloc,
};
