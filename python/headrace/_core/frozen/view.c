/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/view.h"
#include "frozen/thaw.h"

/*
 * A view is frozen data and an item of it. It copies nothing, and reading it writes to no page of the frozen data. Rare
 * operations (repr, comparisons, operators) are done by Python on the thawed view.
 */

enum { MOST_FREE = 64 };

bool is_view(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    return type == &FrozenListType || type == &FrozenDictType || type == &FrozenTupleType || type == &FrozenSetType;
}

static bool is_slice(const struct view *view) {
    return view->first != 0 || view->stride != 1 || (uint64_t)view->count != view->item.count;
}

/* ---- allocation ---- */

#ifndef Py_GIL_DISABLED
static struct view *free_views[MOST_FREE]; /* views are often made and dropped one after the other */
static int free_count;
#endif

static struct view *new_view(PyTypeObject *type) {
#ifndef Py_GIL_DISABLED
    if (free_count) return (struct view *)PyObject_Init((PyObject *)free_views[--free_count], type);
#endif
    return PyObject_New(struct view, type);
}

void view_dealloc(PyObject *self) {
    struct view *view = (struct view *)self;
    Py_DECREF((PyObject *)view->frozen);
#ifndef Py_GIL_DISABLED
    if (free_count < MOST_FREE) {
        free_views[free_count++] = view;
        return;
    }
#endif
    PyObject_Free(self);
}

static PyTypeObject *type_of(const struct hr_item *item) {
    switch (item->kind) {
    case HR_KIND_LIST:
        return &FrozenListType;
    case HR_KIND_TUPLE:
        return &FrozenTupleType;
    case HR_KIND_DICT:
    case HR_KIND_RECORD:
        return &FrozenDictType;
    default:
        return &FrozenSetType;
    }
}

PyObject *view_new(struct frozen *frozen, const struct hr_item *item, hr_value typed) {
    if (item->count > frozen->bytes)
        return PyErr_Format(
            FrozenError, "headrace: a container of this frozen data has more items than the frozen data has bytes; it "
                         "is damaged, freeze the data again");
    struct view *view = new_view(type_of(item));
    if (!view) return NULL;
    view->frozen = (struct frozen *)Py_NewRef((PyObject *)frozen);
    view->item = *item;
    view->typed = typed;
    view->count = (Py_ssize_t)item->count;
    view->first = 0;
    view->stride = 1;
    return (PyObject *)view;
}

/* ---- thawing ---- */

/* The source of thaw_many: the items of a slice, or the item of each view of a list. */
struct view_source {
    struct view *view;
    PyObject *views;
    Py_ssize_t at;
};

static int next_of_slice(void *state, struct hr_item *ret_item) {
    struct view_source *source = state;
    const struct view *view = source->view;
    if (source->at == view->count) return 0;
    uint64_t index = (uint64_t)(view->first + source->at++ * view->stride);
    int r = hr_frozen_at(view->frozen->data, &view->item, index, ret_item);
    if (r < 0) frozen_raise(r);
    return r < 0 ? -1 : 1;
}

static PyObject *thaw_slice(struct view *view, enum depth depth) {
    struct view_source source = {.view = view};
    PyObject *list = thaw_many(view->frozen, next_of_slice, &source, depth);
    if (list && view->item.kind == HR_KIND_TUPLE) Py_SETREF(list, PyList_AsTuple(list));
    return list;
}

/* Reads the item of a view that is not a slice. */
static int whole_item(const struct view *view, struct hr_item *ret_item) {
    *ret_item = view->item;
    int r = view->typed ? hr_frozen_read(view->frozen->data, view->typed, ret_item) : 0;
    if (r < 0) frozen_raise(r);
    return r < 0 ? -1 : 1;
}

static PyObject *thaw_view(struct view *view, enum depth depth) {
    struct hr_item item;
    if (is_slice(view)) return thaw_slice(view, depth);
    return whole_item(view, &item) < 0 ? NULL : thaw_item(view->frozen, &item, depth);
}

static int next_of_views(void *state, struct hr_item *ret_item) {
    struct view_source *source = state;
    if (source->at >= PyTuple_GET_SIZE(source->views)) return 0;
    return whole_item((struct view *)PyTuple_GET_ITEM(source->views, source->at++), ret_item);
}

PyObject *core_thaw_together(PyObject *module, PyObject *views) {
    struct view_source source = {.views = views};
    (void)module;
    if (!PyTuple_CheckExact(views) || PyTuple_GET_SIZE(views) == 0)
        return PyErr_Format(PyExc_TypeError, "headrace: a tuple of views is needed");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(views); i++) {
        PyObject *object = PyTuple_GET_ITEM(views, i);
        const struct view *view = (const struct view *)object, *first = (const struct view *)PyTuple_GET_ITEM(views, 0);
        if (!is_view(object) || is_slice(view) || view->frozen != first->frozen)
            return PyErr_Format(PyExc_TypeError, "headrace: these are not whole views of the same frozen data");
    }
    return thaw_many(((struct view *)PyTuple_GET_ITEM(views, 0))->frozen, next_of_views, &source, THAW_ALL);
}

/* Returns an ordinary copy of a view, or of its keys, values or items; any other object unchanged. New reference. */
static PyObject *ordinary(PyObject *object) {
    if (is_view(object)) return thaw_view((struct view *)object, THAW_ALL);
    PyObject *part = part_thaw(object);
    return part || PyErr_Occurred() ? part : Py_NewRef(object);
}

PyObject *core_thaw(PyObject *module, PyObject *view) {
    (void)module;
    return ordinary(view);
}

PyObject *view_shallow(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    struct view *view = (struct view *)self;
    if (view->typed) return frozen_hook("shallow", "O", self);
    PyObject *made_of = view->item.kind == HR_KIND_FROZEN_SET ? (PyObject *)&PyFrozenSet_Type
                        : type == &FrozenSetType              ? (PyObject *)&PySet_Type
                        : type == &FrozenDictType             ? (PyObject *)&PyDict_Type
                        : type == &FrozenTupleType            ? (PyObject *)&PyTuple_Type
                                                              : (PyObject *)&PyList_Type;
    return PyObject_CallOneArg(made_of, self);
}

PyObject *view_copy(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return view_shallow(self);
}

PyObject *view_deepcopy(PyObject *self, PyObject *memo) {
    (void)memo;
    return thaw_view((struct view *)self, THAW_ALL);
}

/* ---- operations on ordinary copies ---- */

PyObject *view_repr(PyObject *self) {
    PyObject *object = ordinary(self), *text = object ? PyObject_Repr(object) : NULL;
    Py_XDECREF(object);
    return text;
}

PyObject *view_hash_object(PyObject *self) {
    PyObject *object = thaw_view((struct view *)self, THAW_KEY);
    Py_hash_t hash = object ? PyObject_Hash(object) : -1;
    Py_XDECREF(object);
    return hash == -1 ? NULL : PyLong_FromSsize_t(hash);
}

static bool is_same(PyObject *left, PyObject *right) {
    if (!is_view(left) || !is_view(right)) return left == right;
    const struct view *a = (const struct view *)left, *b = (const struct view *)right;
    return a->frozen == b->frozen && a->item.value == b->item.value && a->typed == b->typed && a->first == b->first &&
           a->stride == b->stride && a->count == b->count;
}

/* Returns 1 if the objects differ because their lengths differ, 0 if the lengths are equal, -1, with the exception
 * cleared, if this is not known. */
static bool differ_in_length(PyObject *left, PyObject *right, int operation) {
    if (operation != Py_EQ && operation != Py_NE) return false;
    if (!PyObject_HasAttrString(right, "__len__")) return false;
    Py_ssize_t here = PyObject_Size(left), there = PyObject_Size(right);
    if (PyErr_Occurred()) PyErr_Clear();
    bool is_container = is_view(right) || PyList_CheckExact(right) || PyTuple_CheckExact(right) ||
                        PyDict_CheckExact(right) || PyAnySet_CheckExact(right);
    return is_container && here >= 0 && there >= 0 && here != there;
}

PyObject *view_compare(PyObject *self, PyObject *other, int operation) {
    if ((operation == Py_EQ || operation == Py_NE) && is_same(self, other)) return PyBool_FromLong(operation == Py_EQ);
    if (is_view(self) && !((struct view *)self)->typed && differ_in_length(self, other, operation) &&
        !(is_view(other) && ((struct view *)other)->typed))
        return PyBool_FromLong(operation == Py_NE);
    PyObject *left = ordinary(self), *right = left ? ordinary(other) : NULL;
    PyObject *result = right ? PyObject_RichCompare(left, right, operation) : NULL;
    Py_XDECREF(left);
    Py_XDECREF(right);
    return result;
}

static PyObject *apply(PyObject *left, PyObject *right, binaryfunc function) {
    PyObject *a = ordinary(left), *b = a ? ordinary(right) : NULL;
    PyObject *result = b ? function(a, b) : NULL;
    Py_XDECREF(a);
    Py_XDECREF(b);
    return result;
}

static PyObject *add(PyObject *left, PyObject *right) {
    return apply(left, right, PyNumber_Add);
}
static PyObject *multiply(PyObject *left, PyObject *right) {
    return apply(left, right, PyNumber_Multiply);
}
static PyObject *or_both(PyObject *left, PyObject *right) {
    return apply(left, right, PyNumber_Or);
}
static PyObject *and_both(PyObject *left, PyObject *right) {
    return apply(left, right, PyNumber_And);
}
static PyObject *subtract(PyObject *left, PyObject *right) {
    return apply(left, right, PyNumber_Subtract);
}
static PyObject *xor_both(PyObject *left, PyObject *right) {
    return apply(left, right, PyNumber_Xor);
}

static PyObject *apply_to_one(PyObject *self, unaryfunc function) {
    PyObject *object = ordinary(self), *result = object ? function(object) : NULL;
    Py_XDECREF(object);
    return result;
}

static PyObject *positive(PyObject *self) {
    return apply_to_one(self, PyNumber_Positive);
}
static PyObject *negative(PyObject *self) {
    return apply_to_one(self, PyNumber_Negative);
}

PyNumberMethods sequence_numbers = {.nb_add = add, .nb_multiply = multiply};
/* A Counter has all of these operators except the first; a dict raises that it has no such operator. */
PyNumberMethods dict_numbers = {.nb_or = or_both,
                                .nb_and = and_both,
                                .nb_add = add,
                                .nb_subtract = subtract,
                                .nb_positive = positive,
                                .nb_negative = negative};
PyNumberMethods set_numbers = {.nb_or = or_both, .nb_and = and_both, .nb_subtract = subtract, .nb_xor = xor_both};

/* ---- writes ---- */

PyObject *view_name(const struct view *view) {
    static const char *const names[HR_KIND_COUNT] = {
        [HR_KIND_LIST] = "list",   [HR_KIND_TUPLE] = "tuple", [HR_KIND_DICT] = "dict",
        [HR_KIND_RECORD] = "dict", [HR_KIND_SET] = "set",     [HR_KIND_FROZEN_SET] = "frozenset",
    };
    struct hr_item typed, name;
    int r = view->typed ? hr_frozen_read(view->frozen->data, view->typed, &typed) : -1;
    if (r >= 0) r = hr_frozen_at(view->frozen->data, &typed, 0, &name);
    if (r >= 0 && name.kind == HR_KIND_TEXT) return read_text(view->frozen, &name);
    return PyUnicode_FromString(names[view->item.kind]);
}

static void say_frozen(PyObject *self) {
    PyObject *name = view_name((struct view *)self);
    if (name)
        PyErr_Format(
            PyExc_TypeError,
            "headrace: this %U is frozen and shared; headrace.thaw(...) gives an ordinary one that can be changed",
            name);
    Py_XDECREF(name);
}

PyObject *view_refuse(PyObject *self, PyObject *arguments, PyObject *keywords) {
    (void)arguments, (void)keywords;
    say_frozen(self);
    return NULL;
}

int view_refuse_item(PyObject *self, PyObject *key, PyObject *value) {
    (void)key, (void)value;
    say_frozen(self);
    return -1;
}

/* ---- pickling, and _core.where ---- */

PyObject *view_reduce(PyObject *self, PyObject *protocol) {
    (void)protocol;
    return frozen_hook("reduce_view", "O", self);
}

/* Returns the slice of its list that the view is; None: the whole list. New reference. */
static PyObject *part_of(const struct view *view) {
    if (!is_slice(view)) return Py_NewRef(Py_None);
    Py_ssize_t end = view->first + view->count * view->stride;
    PyObject *start = PyLong_FromSsize_t(view->first), *step = PyLong_FromSsize_t(view->stride);
    PyObject *stop = end < 0 ? Py_NewRef(Py_None) : PyLong_FromSsize_t(end);
    PyObject *slice = start && stop && step ? PySlice_New(start, stop, step) : NULL;
    Py_XDECREF(start);
    Py_XDECREF(stop);
    Py_XDECREF(step);
    return slice;
}

/* _core.where(view): returns its frozen data, its value, and its slice or None. */
PyObject *core_where(PyObject *module, PyObject *object) {
    (void)module;
    if (!is_view(object))
        return PyErr_Format(PyExc_TypeError, "headrace: a %s is not a view", Py_TYPE(object)->tp_name);
    const struct view *view = (const struct view *)object;
    unsigned long long value = view->typed ? view->typed : view->item.value;
    PyObject *part = part_of(view);
    return part ? Py_BuildValue("OKN", view->frozen, value, part) : NULL;
}
