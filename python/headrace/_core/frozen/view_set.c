/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/view.h"

/* Views of sets and frozensets. Their items are ordinary objects, because a program that puts them into another set
 * hashes them. */

/* A set has no hash, so it is looked up as a frozenset, as an ordinary set does. */
static int set_contains(PyObject *self, PyObject *item) {
    uint64_t index;
    int r = view_find((struct view *)self, item, &index);
    bool is_set = PySet_Check(item) || Py_TYPE(item) == &FrozenSetType;
    if (r >= 0 || !is_set || !PyErr_ExceptionMatches(PyExc_TypeError)) return r;
    PyErr_Clear();
    PyObject *frozen = PyFrozenSet_New(item);
    r = frozen ? view_find((struct view *)self, frozen, &index) : -1;
    Py_XDECREF(frozen);
    return r;
}

static Py_ssize_t set_length(PyObject *self) {
    return ((struct view *)self)->count;
}

static PyObject *set_iterate(PyObject *self) {
    return iterator_new((struct view *)self, PART_KEY, false);
}

static Py_hash_t set_hash(PyObject *self) {
    if (((struct view *)self)->item.kind == HR_KIND_SET) return PyObject_HashNotImplemented(self);
    PyObject *hash = view_hash_object(self);
    Py_hash_t result = hash ? PyLong_AsSsize_t(hash) : -1;
    Py_XDECREF(hash);
    return result;
}

static PyObject *call(PyObject *self, const char *name, PyObject *arguments) {
    PyObject *set = core_thaw(NULL, self), *method = set ? PyObject_GetAttrString(set, name) : NULL;
    PyObject *answer = method ? PyObject_CallObject(method, arguments) : NULL;
    Py_XDECREF(set);
    Py_XDECREF(method);
    return answer;
}

#define FORWARD(name)                                                                                                  \
    static PyObject *set_##name(PyObject *self, PyObject *arguments) {                                                 \
        return call(self, #name, arguments);                                                                           \
    }
FORWARD(union)
FORWARD(intersection)
FORWARD(difference)
FORWARD(symmetric_difference)
FORWARD(issubset)
FORWARD(issuperset)
FORWARD(isdisjoint)

static PySequenceMethods set_sequence = {.sq_length = set_length, .sq_contains = set_contains};

static PyMethodDef set_methods[] = {
    VIEW_METHODS,
    {"union", set_union, METH_VARARGS, "union(*others) -> set\n\nReturns an ordinary set."},
    {"intersection", set_intersection, METH_VARARGS, "intersection(*others) -> set\n\nReturns an ordinary set."},
    {"difference", set_difference, METH_VARARGS, "difference(*others) -> set\n\nReturns an ordinary set."},
    {"symmetric_difference", set_symmetric_difference, METH_VARARGS,
     "symmetric_difference(other) -> set\n\nReturns an ordinary set."},
    {"issubset", set_issubset, METH_VARARGS, "issubset(other) -> bool"},
    {"issuperset", set_issuperset, METH_VARARGS, "issuperset(other) -> bool"},
    {"isdisjoint", set_isdisjoint, METH_VARARGS, "isdisjoint(other) -> bool"},
    REFUSE("add"),
    REFUSE("remove"),
    REFUSE("discard"),
    REFUSE("pop"),
    REFUSE("clear"),
    REFUSE("update"),
    REFUSE("difference_update"),
    REFUSE("intersection_update"),
    REFUSE("symmetric_difference_update"),
    {NULL, NULL, 0, NULL},
};

PyTypeObject FrozenSetType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.FrozenSet",
    .tp_basicsize = sizeof(struct view),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "A frozen set or frozenset: a Set over frozen data. A frozen frozenset has the hash of the frozenset.",
    .tp_dealloc = view_dealloc,
    .tp_repr = view_repr,
    .tp_hash = set_hash,
    .tp_richcompare = view_compare,
    .tp_iter = set_iterate,
    .tp_as_number = &set_numbers,
    .tp_as_sequence = &set_sequence,
    .tp_methods = set_methods,
};
