/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/view.h"

/* Views of lists and tuples. A deque, and an array of objects in one dimension, is viewed as a list. */

static PyObject *text_at(struct view *view, uint64_t index) {
    const void *bytes;
    uint64_t count;
    int r = hr_frozen_text(view->frozen->data, &view->item, index, &bytes, &count);
    return r < 0 ? frozen_raise(r) : read_ascii(view->frozen, bytes, count);
}

static PyObject *item_at(struct view *view, Py_ssize_t index) {
    struct hr_item item;
    if (index < 0 || index >= view->count) {
        PyErr_SetString(PyExc_IndexError,
                        view->item.kind == HR_KIND_TUPLE ? "tuple index out of range" : "list index out of range");
        return NULL;
    }
    uint64_t at = (uint64_t)(view->first + index * view->stride);
    if (view->item.is_ascii) return text_at(view, at);
    int r = hr_frozen_at(view->frozen->data, &view->item, at, &item);
    return r < 0 ? frozen_raise(r) : read_item(view->frozen, &item);
}

static PyObject *sequence_item(PyObject *self, Py_ssize_t index) {
    return item_at((struct view *)self, index);
}

static Py_ssize_t sequence_length(PyObject *self) {
    return ((struct view *)self)->count;
}

/* A slice is a view of the same frozen data, or an ordinary list or tuple if small containers of the frozen data are.
 */
static PyObject *slice_of(struct view *view, PyObject *slice) {
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(slice, &start, &stop, &step) < 0) return NULL;
    Py_ssize_t count = PySlice_AdjustIndices(view->count, &start, &stop, step);
    struct view *part = (struct view *)view_new(view->frozen, &view->item, view->typed);
    if (!part) return NULL;
    part->count = count;
    part->first = count ? view->first + start * view->stride : 0;
    part->stride =
        count > 1 ? view->stride * step : 1; /* with one item the stride is not used, and a huge step could overflow */
    if (!view->frozen->small_items || count > view->frozen->small_items) return (PyObject *)part;
    PyObject *copy = view_shallow((PyObject *)part);
    Py_DECREF(part);
    return copy;
}

static PyObject *sequence_subscript(PyObject *self, PyObject *key) {
    struct view *view = (struct view *)self;
    bool is_int = PyLong_CheckExact(key);
    if (!is_int && !PyIndex_Check(key)) {
        if (PySlice_Check(key)) return slice_of(view, key);
        return PyErr_Format(PyExc_TypeError, "%s indices must be integers or slices, not %s",
                            view->item.kind == HR_KIND_TUPLE ? "tuple" : "list", Py_TYPE(key)->tp_name);
    }
    Py_ssize_t index = is_int ? PyLong_AsSsize_t(key) : PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (index == -1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return NULL;
        PyErr_Clear();
        index = view->count;
    } else if (index < 0) {
        index += view->count;
    }
    return item_at(view, index);
}

static PyObject *view_iterate(PyObject *self) {
    return iterator_new((struct view *)self, PART_ITEM, false);
}

static PyObject *sequence_reversed(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return iterator_new((struct view *)self, PART_ITEM, true);
}

/* Returns how many items from `start` on are equal to a value, or with `is_first` the index of the first one (-1: no
 * item is equal). -2: exception. */
static Py_ssize_t search(struct view *view, PyObject *value, Py_ssize_t start, Py_ssize_t stop, bool is_first) {
    Py_ssize_t found = 0;
    for (Py_ssize_t i = start; i < stop; i++) {
        PyObject *item = item_at(view, i);
        int r = item ? PyObject_RichCompareBool(item, value, Py_EQ) : -1;
        Py_XDECREF(item);
        if (r < 0) return -2;
        if (r && is_first) return i;
        found += r;
    }
    return is_first ? -1 : found;
}

static int sequence_contains(PyObject *self, PyObject *value) {
    Py_ssize_t at = search((struct view *)self, value, 0, ((struct view *)self)->count, true);
    return at == -2 ? -1 : at >= 0;
}

static PyObject *sequence_count(PyObject *self, PyObject *value) {
    Py_ssize_t count = search((struct view *)self, value, 0, ((struct view *)self)->count, false);
    return count == -2 ? NULL : PyLong_FromSsize_t(count);
}

static Py_ssize_t clamp(Py_ssize_t index, Py_ssize_t count) {
    if (index < 0) index += count;
    return index < 0 ? 0 : index > count ? count : index;
}

/* A converter for the arguments of index(): any integer, however large. */
static int bound(PyObject *object, void *ret_index) {
    if (!PyIndex_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "slice indices must be integers or have an __index__ method");
        return 0;
    }
    *(Py_ssize_t *)ret_index = PyNumber_AsSsize_t(object, NULL);
    return !PyErr_Occurred();
}

static PyObject *sequence_index(PyObject *self, PyObject *arguments) {
    struct view *view = (struct view *)self;
    PyObject *value;
    Py_ssize_t start = 0, stop = PY_SSIZE_T_MAX;
    if (!PyArg_ParseTuple(arguments, "O|O&O&:index", &value, bound, &start, bound, &stop)) return NULL;
    Py_ssize_t at = search(view, value, clamp(start, view->count), clamp(stop, view->count), true);
    if (at >= 0) return PyLong_FromSsize_t(at);
    return at == -2 ? NULL
                    : PyErr_Format(PyExc_ValueError, "%R is not in %s", value,
                                   view->item.kind == HR_KIND_TUPLE ? "tuple" : "list");
}

static Py_hash_t tuple_hash(PyObject *self) {
    PyObject *hash = view_hash_object(self);
    Py_hash_t result = hash ? PyLong_AsSsize_t(hash) : -1;
    Py_XDECREF(hash);
    return result;
}

static PyMappingMethods sequence_mapping = {
    .mp_length = sequence_length, .mp_subscript = sequence_subscript, .mp_ass_subscript = view_refuse_item};
static PySequenceMethods sequence_methods = {
    .sq_length = sequence_length, .sq_item = sequence_item, .sq_contains = sequence_contains};

#define SEQUENCE_METHODS                                                                                               \
    {"index", sequence_index, METH_VARARGS, "index(value[, start[, stop]]) -> int"},                                   \
        {"count", sequence_count, METH_O, "count(value) -> int"},                                                      \
        {"__reversed__", sequence_reversed, METH_NOARGS, NULL},                                                        \
        {"get_many", list_get_many, METH_O,                                                                            \
         "get_many(indices) -> list\n\nReturns the items at many indices (a list, array or tensor), faster than one "  \
         "by one."},                                                                                                   \
    {                                                                                                                  \
        "column", list_column, METH_O,                                                                                 \
            "column(name) -> array or view\n\nReturns one field of all records: numbers as an array, texts as a "      \
            "frozen list."                                                                                             \
    }

static PyMethodDef list_methods[] = {
    VIEW_METHODS,         SEQUENCE_METHODS,  REFUSE("append"),     REFUSE("extend"), REFUSE("insert"),
    REFUSE("remove"),     REFUSE("pop"),     REFUSE("clear"),      REFUSE("sort"),   REFUSE("reverse"),
    REFUSE("appendleft"), REFUSE("popleft"), REFUSE("extendleft"), REFUSE("rotate"), {NULL, NULL, 0, NULL},
};

static PyMethodDef tuple_methods[] = {
    VIEW_METHODS,
    SEQUENCE_METHODS,
    {NULL, NULL, 0, NULL},
};

#define FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_SEQUENCE)

PyTypeObject FrozenListType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.FrozenList",
    .tp_basicsize = sizeof(struct view),
    .tp_flags = FLAGS,
    .tp_doc = "A frozen list: a Sequence over frozen data.",
    .tp_dealloc = view_dealloc,
    .tp_repr = view_repr,
    .tp_hash = PyObject_HashNotImplemented,
    .tp_richcompare = view_compare,
    .tp_iter = view_iterate,
    .tp_as_number = &sequence_numbers,
    .tp_as_sequence = &sequence_methods,
    .tp_as_mapping = &sequence_mapping,
    .tp_methods = list_methods,
};

PyTypeObject FrozenTupleType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.FrozenTuple",
    .tp_basicsize = sizeof(struct view),
    .tp_flags = FLAGS,
    .tp_doc = "A frozen tuple: a Sequence over frozen data, with the tuple's hash.",
    .tp_dealloc = view_dealloc,
    .tp_repr = view_repr,
    .tp_hash = tuple_hash,
    .tp_richcompare = view_compare,
    .tp_iter = view_iterate,
    .tp_as_number = &sequence_numbers,
    .tp_as_sequence = &sequence_methods,
    .tp_as_mapping = &sequence_mapping,
    .tp_methods = tuple_methods,
};
