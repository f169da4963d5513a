/* SPDX-License-Identifier: Apache-2.0 */
#include "sampler/sampler.h"

#include <string.h>

/* The iterator of _core.Order.iterate. It makes indices in groups, because one call for each would take longer. */

enum { GROUP = 256 };

struct order_iterator {
    PyObject_HEAD PyObject *order; /* owned: a _core.Order */
    int64_t position, step;        /* first position of the next group, and the step within it */
    int64_t left;                  /* indices that are in no group yet */
    int next, made;                /* the next index of the group, and how many it has */
    bool has_ended;                /* next() has raised StopIteration */
    int64_t group[GROUP];
};

PyObject *order_iterate(PyObject *order, int64_t first, int64_t step, int64_t count) {
    int64_t index;
    int r = hr_order_fill(order_of(order), first, step, count > 1 ? 1 : count, &index);
    if (r < 0) return core_raise(r);
    struct order_iterator *self = (struct order_iterator *)OrderIteratorType.tp_alloc(&OrderIteratorType, 0);
    if (!self) return NULL;
    self->order = Py_NewRef(order);
    self->position = first;
    self->step = step;
    self->left = count;
    return (PyObject *)self;
}

static void iterator_dealloc(PyObject *self) {
    Py_XDECREF(((struct order_iterator *)self)->order);
    Py_TYPE(self)->tp_free(self);
}

__extension__ typedef __int128 wide;

/* Returns the position after `count` more steps, modulo n. */
static int64_t position_after(const struct order_iterator *self, int64_t count) {
    int64_t n = order_of(self->order)->n;
    if (n == 0) return 0;
    wide position = (self->position + (wide)count * self->step) % n;
    return (int64_t)(position < 0 ? position + n : position);
}

static int make_group(struct order_iterator *self) {
    int count = self->left < GROUP ? (int)self->left : GROUP;
    int r = hr_order_fill(order_of(self->order), self->position, self->step, count, self->group);
    if (r < 0) {
        core_raise(r);
        return r;
    }
    self->position = position_after(self, count);
    self->left -= count;
    self->made = count;
    self->next = 0;
    return 0;
}

static PyObject *iterator_next(PyObject *object) {
    struct order_iterator *self = (struct order_iterator *)object;
    if (self->next >= self->made) {
        if (self->left == 0) {
            self->next = self->made = 0;
            self->has_ended = true;
            return NULL;
        }
        if (make_group(self) < 0) return NULL;
    }
    int next = self->next; /* a copy, so that without the GIL another thread cannot lead this one out of the group */
    self->next = next + 1;
    return PyLong_FromLongLong(self->group[next < GROUP ? next : GROUP - 1]);
}

static Py_ssize_t count_left(const struct order_iterator *self) {
    return (Py_ssize_t)self->left + self->made - self->next;
}

static PyObject *iterator_length_hint(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromSsize_t(count_left((struct order_iterator *)self));
}

static PyObject *iterator_has_ended(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(((struct order_iterator *)self)->has_ended);
}

/* Returns a list of the indices that are left, and does not take them. */
static PyObject *list_left(const struct order_iterator *self) {
    struct order_iterator copy = *self; /* copies the position; the order is borrowed */
    PyObject *list = PyList_New(count_left(self));
    for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list); i++) {
        PyObject *index = iterator_next((PyObject *)&copy);
        if (index)
            PyList_SET_ITEM(list, i, index);
        else
            Py_CLEAR(list);
    }
    return list;
}

/* Pickles the iterator like one over a list, which is what torch's sampler returns. */
static PyObject *iterator_reduce(PyObject *self, PyObject *ignored) {
    (void)ignored;
    PyObject *list = list_left((struct order_iterator *)self);
    return list ? Py_BuildValue("N(N)", PyMapping_GetItemString(PyEval_GetBuiltins(), "iter"), list) : NULL;
}

static PyObject *iterator_copy(PyObject *object, PyObject *ignored) {
    struct order_iterator *self = (struct order_iterator *)object;
    struct order_iterator *copy = (struct order_iterator *)OrderIteratorType.tp_alloc(&OrderIteratorType, 0);
    (void)ignored;
    if (!copy) return NULL;
    copy->order = Py_NewRef(self->order);
    copy->position = self->position;
    copy->step = self->step;
    copy->left = self->left;
    copy->next = self->next;
    copy->made = self->made;
    memcpy(copy->group, self->group, sizeof copy->group);
    return (PyObject *)copy;
}

static PyMethodDef methods[] = {
    {"__copy__", iterator_copy, METH_NOARGS, "Returns an iterator over the indices that are left."},
    {"__length_hint__", iterator_length_hint, METH_NOARGS, "Returns how many indices are left."},
    {"__reduce__", iterator_reduce, METH_NOARGS, "Pickles the iterator as one over a list of the indices left."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"has_ended", iterator_has_ended, NULL, "True if next() has raised StopIteration.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject OrderIteratorType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.OrderIterator",
    .tp_basicsize = sizeof(struct order_iterator),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "An iterator over indices of an order, as ints.",
    .tp_dealloc = iterator_dealloc,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = iterator_next,
    .tp_methods = methods,
    .tp_getset = attributes,
};
