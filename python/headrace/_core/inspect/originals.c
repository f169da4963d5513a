/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Originals: are functions that a program may replace still what they were? It is asked for each batch. */
#include "inspect/inspect.h"

/* A key, and the object that was found under it. */
struct row {
    PyObject *holder;   /* a dict, a class, or a function */
    PyObject *key;      /* of the dict; a name that the class or its bases have; None: the size of the dict, or the code
                           of the function */
    PyObject *expected; /* NULL: nothing */
    Py_ssize_t size;
};

struct originals {
    PyObject_VAR_HEAD struct row rows[];
};

static int take_row(struct row *row, PyObject *given) {
    PyObject *holder, *key, *expected;
    if (!PyArg_ParseTuple(given, "OOO:Originals", &holder, &key, &expected)) return -1;
    if (!PyDict_Check(holder) && !PyType_Check(holder) && !PyFunction_Check(holder)) {
        PyErr_Format(PyExc_TypeError, "headrace: %.200s is no dict, class or function", Py_TYPE(holder)->tp_name);
        return -1;
    }
    row->holder = Py_NewRef(holder);
    row->key = Py_NewRef(key);
    row->expected = expected == Py_Ellipsis ? NULL : Py_NewRef(expected);
    row->size = PyDict_Check(holder) && key == Py_None ? PyLong_AsSsize_t(expected) : 0;
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *originals_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"rows", NULL};
    PyObject *given;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!:Originals", names, &PyTuple_Type, &given)) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    struct originals *self = (struct originals *)type->tp_alloc(type, count);
    for (Py_ssize_t i = 0; self && i < count; i++)
        if (take_row(&self->rows[i], PyTuple_GET_ITEM(given, i)) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static void originals_dealloc(PyObject *object) {
    struct originals *self = (struct originals *)object;
    PyObject_GC_UnTrack(object);
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        Py_XDECREF(self->rows[i].holder);
        Py_XDECREF(self->rows[i].key);
        Py_XDECREF(self->rows[i].expected);
    }
    Py_TYPE(object)->tp_free(object);
}

static int originals_traverse(PyObject *object, visitproc visit, void *arg) {
    struct originals *self = (struct originals *)object;
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        Py_VISIT(self->rows[i].holder);
        Py_VISIT(self->rows[i].expected);
    }
    return 0;
}

/* Returns what a class or its bases have under a name, borrowed, or NULL. Those of `object` do not count: no
 * program can replace them. */
static PyObject *find_in_class(PyTypeObject *type, PyObject *name) {
    PyObject *bases = type->tp_mro;
    for (Py_ssize_t i = 0; bases && i < PyTuple_GET_SIZE(bases); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(bases, i);
        if (!(base->tp_flags & Py_TPFLAGS_HEAPTYPE) || !base->tp_dict) continue;
        PyObject *found = PyDict_GetItemWithError(base->tp_dict, name);
        if (found || PyErr_Occurred()) return found;
    }
    return NULL;
}

static bool row_holds(const struct row *row) {
    if (PyFunction_Check(row->holder)) return PyFunction_GetCode(row->holder) == row->expected;
    if (PyType_Check(row->holder)) return find_in_class((PyTypeObject *)row->holder, row->key) == row->expected;
    if (row->key == Py_None) return PyDict_Size(row->holder) == row->size;
    return PyDict_GetItemWithError(row->holder, row->key) == row->expected;
}

static PyObject *originals_hold(PyObject *object, PyObject *ignored) {
    const struct originals *self = (const struct originals *)object;
    bool hold = true;
    (void)ignored;
    for (Py_ssize_t i = 0; hold && i < Py_SIZE(self); i++) hold = row_holds(&self->rows[i]);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(hold);
}

static PyMethodDef methods[] = {
    {"hold", originals_hold, METH_NOARGS, "hold() -> bool\n\nReturns True if all of them are what they were."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject OriginalsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Originals",
    .tp_basicsize = sizeof(struct originals),
    .tp_itemsize = sizeof(struct row),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Functions and tables that a program may replace: Originals(rows), a tuple of tuples (holder, key, "
              "expected). holder: a dict, and a key of it, or None for its size; a class, and a name that it or a base "
              "has; a function, and None for its code. expected: ... if it has no such name.",
    .tp_new = originals_new,
    .tp_dealloc = originals_dealloc,
    .tp_traverse = originals_traverse,
    .tp_methods = methods,
};
