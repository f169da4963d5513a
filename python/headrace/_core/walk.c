/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#include <string.h>

/*
 * _core.Walker: goes through builtin containers and through instances of plain classes, and gives back what is neither,
 * with the steps that lead to it. It follows what pickle would follow of them, without recursion and without running
 * Python code, except `classify` once per class. What it gives back is for Python to judge.
 *
 * A step is a tuple (kind, key, position). Objects that were met before are not met again. An expansion goes through
 * one object as far as it is asked to: what it is in the middle of may change meanwhile, and is looked up anew each
 * time.
 */

enum step_kind { STEP_INDEX, STEP_VALUE, STEP_KEY, STEP_ELEMENT, STEP_ATTRIBUTE };

struct frame {
    PyObject *container; /* owned: a list, tuple, dict, set, frozenset or instance */
    PyObject *content;   /* owned: what is gone through: the container; an iterator; an instance's dict or NULL */
    PyObject *slots;     /* borrowed from Walker.classes: names of an instance's slots, or NULL */
    PyObject *key;       /* owned: of the child that is being looked at, or NULL */
    PyObject *value;     /* owned: the value of a dict whose key was looked at just now, or NULL */
    Py_ssize_t at;       /* where PyDict_Next or a list goes on */
    Py_ssize_t slot;     /* the next slot */
    Py_ssize_t position; /* of the child: counted from 0 */
    enum step_kind kind; /* of the child */
};

struct walker {
    PyObject_HEAD PyObject
        *classes;       /* dict: class -> True: leave instances out; None: Python's; tuple: plain, names of its slots */
    PyObject *classify; /* callable: class -> the value in `classes` */
    PyObject *deep;     /* list of (steps, objects) of what is nested `depth_limit` levels deep */
    Py_ssize_t depth_limit;
    const void **seen; /* a hash set */
    size_t seen_count, seen_room;
};

/* An iterator over what is found in one object. */
struct expansion {
    PyObject_HEAD struct walker *walker; /* owned */
    PyObject *root;                      /* owned, NULL once it was entered */
    struct frame *frames;
    Py_ssize_t depth, room;
    Py_ssize_t base; /* how deep the object itself is nested */
};

enum { MOST_DEEP = 8 };

/* ---- what was met ---- */

static size_t slot_of(const void *address, size_t room) {
    uint64_t mixed = (uint64_t)(uintptr_t)address * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(mixed >> 20) & (room - 1);
}

static void insert(const void **table, size_t room, const void *address) {
    size_t slot = slot_of(address, room);
    while (table[slot]) slot = (slot + 1) & (room - 1);
    table[slot] = address;
}

static int grow_seen(struct walker *self) {
    size_t room = self->seen_room ? 2 * self->seen_room : 1024;
    const void **table = PyMem_RawCalloc(room, sizeof *table);
    if (!table) return PyErr_NoMemory(), -1;
    for (size_t i = 0; i < self->seen_room; i++)
        if (self->seen[i]) insert(table, room, self->seen[i]);
    PyMem_RawFree(self->seen);
    self->seen = table;
    self->seen_room = room;
    return 0;
}

/* 1: it was met before. 0: it counts as met from now on. */
static int meet(struct walker *self, const void *address) {
    if (4 * self->seen_count >= 3 * self->seen_room && grow_seen(self) < 0) return -1;
    size_t slot = slot_of(address, self->seen_room);
    for (; self->seen[slot]; slot = (slot + 1) & (self->seen_room - 1))
        if (self->seen[slot] == address) return 1;
    self->seen[slot] = address;
    self->seen_count++;
    return 0;
}

/* ---- kinds of objects ---- */

/* What pickle writes as it is, and what holds nothing. */
static int is_atom(PyTypeObject *type) {
    return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type || type == &PyBytes_Type ||
           type == &PyBool_Type || type == Py_TYPE(Py_None) || type == &PyComplex_Type || type == &PyByteArray_Type;
}

static int is_container(PyTypeObject *type) {
    return type == &PyList_Type || type == &PyTuple_Type || type == &PyDict_Type || type == &PySet_Type ||
           type == &PyFrozenSet_Type;
}

/* How instances of a class are treated; borrowed. */
static PyObject *class_of(struct walker *self, PyTypeObject *type) {
    PyObject *known = PyDict_GetItemWithError(self->classes, (PyObject *)type);
    if (known || PyErr_Occurred()) return known;
    known = PyObject_CallOneArg(self->classify, (PyObject *)type);
    if (!known) return NULL;
    int stored = PyDict_SetItem(self->classes, (PyObject *)type, known);
    Py_DECREF(known); /* the dict keeps it */
    return stored < 0 ? NULL : known;
}

/* ---- frames ---- */

static void pop(struct expansion *self) {
    struct frame *frame = &self->frames[--self->depth];
    Py_CLEAR(frame->key);
    Py_CLEAR(frame->value);
    Py_CLEAR(frame->content);
    Py_CLEAR(frame->container);
}

static PyObject *instance_content(PyObject *instance) {
    PyObject *dict = PyObject_GenericGetDict(instance, NULL);
    if (!dict) PyErr_Clear(); /* slots only */
    return dict;
}

static PyObject *content_of(PyObject *container, PyObject *slots) {
    if (PyAnySet_CheckExact(container)) return PyObject_GetIter(container);
    return slots ? instance_content(container) : Py_NewRef(container);
}

static int push(struct expansion *self, PyObject *container, PyObject *slots) {
    if (self->depth == self->room) {
        Py_ssize_t room = self->room ? 2 * self->room : 64;
        struct frame *frames = PyMem_Realloc(self->frames, (size_t)room * sizeof *frames);
        if (!frames) return PyErr_NoMemory(), -1;
        self->frames = frames;
        self->room = room;
    }
    struct frame *frame = &self->frames[self->depth];
    *frame = (struct frame){.slots = slots};
    frame->content = content_of(container, slots);
    if (!frame->content && PyErr_Occurred()) return -1;
    frame->container = Py_NewRef(container);
    self->depth++;
    return 0;
}

/* ---- the next child that is no atom: a new reference, NULL at the end ---- */

static PyObject *next_in_sequence(struct frame *frame) {
    Py_ssize_t size = PySequence_Fast_GET_SIZE(frame->content);
    PyObject **items = PySequence_Fast_ITEMS(frame->content);
    while (frame->at < size && is_atom(Py_TYPE(items[frame->at]))) frame->at++;
    if (frame->at >= size) return NULL;
    frame->kind = STEP_INDEX;
    frame->position = frame->at++;
    return Py_NewRef(items[frame->position]);
}

static PyObject *next_in_dict(struct frame *frame) {
    PyObject *key, *value;
    if (frame->value) { /* its key's turn is over */
        PyObject *child = frame->value;
        frame->value = NULL;
        frame->kind = STEP_VALUE;
        return child;
    }
    do {
        if (!PyDict_Next(frame->content, &frame->at, &key, &value)) return NULL;
        frame->position++;
    } while (is_atom(Py_TYPE(value)) && is_atom(Py_TYPE(key)));
    Py_XSETREF(frame->key, Py_NewRef(key));
    if (is_atom(Py_TYPE(key))) {
        frame->kind = STEP_VALUE;
        return Py_NewRef(value);
    }
    frame->value = Py_NewRef(value);
    frame->kind = STEP_KEY;
    return Py_NewRef(key);
}

static PyObject *next_element(struct frame *frame) {
    frame->kind = STEP_ELEMENT;
    frame->position++;
    PyObject *child = PyIter_Next(frame->content);
    if (!child) PyErr_Clear(); /* a set that changes meanwhile */
    return child;
}

static PyObject *next_attribute(struct frame *frame) {
    PyObject *key, *value;
    frame->kind = STEP_ATTRIBUTE;
    while (frame->slot < PyTuple_GET_SIZE(frame->slots)) {
        PyObject *name = PyTuple_GET_ITEM(frame->slots, frame->slot++);
        value = PyObject_GenericGetAttr(frame->container, name); /* a member's descriptor: runs nothing of the user's */
        if (!value) {
            PyErr_Clear(); /* not set */
            continue;
        }
        Py_XSETREF(frame->key, Py_NewRef(name));
        return value;
    }
    do {
        if (!frame->content || !PyDict_Next(frame->content, &frame->at, &key, &value)) return NULL;
    } while (is_atom(Py_TYPE(value)));
    Py_XSETREF(frame->key, Py_NewRef(key));
    return Py_NewRef(value);
}

static PyObject *next_child(struct frame *frame) {
    if (frame->slots) return next_attribute(frame);
    if (PyDict_CheckExact(frame->content)) return next_in_dict(frame);
    if (PyList_CheckExact(frame->content) || PyTuple_CheckExact(frame->content)) return next_in_sequence(frame);
    return next_element(frame);
}

/* ---- what is found ---- */

static PyObject *steps_of(const struct expansion *self) {
    PyObject *steps = PyTuple_New(self->depth);
    for (Py_ssize_t i = 0; steps && i < self->depth; i++) {
        const struct frame *frame = &self->frames[i];
        Py_ssize_t position = frame->kind == STEP_VALUE || frame->kind == STEP_KEY || frame->kind == STEP_ELEMENT
                                  ? frame->position - 1
                                  : frame->position;
        PyObject *step = Py_BuildValue("iOn", (int)frame->kind, frame->key ? frame->key : Py_None, position);
        if (step) {
            PyTuple_SET_ITEM(steps, i, step);
        } else {
            Py_CLEAR(steps);
        }
    }
    return steps;
}

/* (steps, object) */
static PyObject *with_steps(const struct expansion *self, PyObject *object) {
    PyObject *steps = steps_of(self);
    PyObject *pair = steps ? PyTuple_Pack(2, steps, object) : NULL;
    Py_XDECREF(steps);
    return pair;
}

static int note_depth(struct expansion *self) {
    struct walker *walker = self->walker;
    if (self->base + self->depth != walker->depth_limit || PyList_GET_SIZE(walker->deep) >= MOST_DEEP) return 0;
    PyObject *objects = PyTuple_New(self->depth);
    for (Py_ssize_t i = 0; objects && i < self->depth; i++)
        PyTuple_SET_ITEM(objects, i, Py_NewRef(self->frames[i].container));
    PyObject *pair = objects ? with_steps(self, objects) : NULL;
    int added = pair ? PyList_Append(walker->deep, pair) : -1;
    Py_XDECREF(pair);
    Py_XDECREF(objects);
    return added;
}

/* Goes into the object or leaves it out: FOUND_NOT. FOUND: it is to be given back. */
static enum found enter(struct expansion *self, PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject *slots = NULL;
    if (is_atom(type)) return FOUND_NOT;
    if (!is_container(type)) {
        slots = class_of(self->walker, type);
        if (!slots) return FOUND_ERROR;
        if (slots == Py_True) return FOUND_NOT;
    }
    int is_old = meet(self->walker, object);
    if (is_old) return is_old < 0 ? FOUND_ERROR : FOUND_NOT;
    if (slots == Py_None) return FOUND;
    return push(self, object, slots) < 0 || note_depth(self) < 0 ? FOUND_ERROR : FOUND_NOT;
}

/* The next object to enter: a new reference, NULL at the end. */
static PyObject *next_object(struct expansion *self) {
    PyObject *child = self->root;
    self->root = NULL;
    while (!child && self->depth) {
        child = next_child(&self->frames[self->depth - 1]);
        if (!child) pop(self);
    }
    return child;
}

static PyObject *expansion_next(PyObject *object) {
    struct expansion *self = (struct expansion *)object;
    PyObject *child, *pair = NULL;
    enum found found = FOUND_NOT;
    while (found == FOUND_NOT && (child = next_object(self))) {
        found = enter(self, child);
        if (found == FOUND) pair = with_steps(self, child);
        Py_DECREF(child);
    }
    return pair;
}

static PyObject *walker_expand(PyObject *object, PyObject *arguments) {
    PyObject *root;
    Py_ssize_t base;
    if (!PyArg_ParseTuple(arguments, "On:expand", &root, &base)) return NULL;
    struct expansion *self = PyObject_GC_New(struct expansion, &ExpansionType);
    if (!self) return NULL;
    self->walker = (struct walker *)Py_NewRef(object);
    self->root = Py_NewRef(root);
    self->frames = NULL;
    self->depth = self->room = 0;
    self->base = base;
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

static int expansion_clear(PyObject *object) {
    struct expansion *self = (struct expansion *)object;
    while (self->depth) pop(self);
    Py_CLEAR(self->root);
    Py_CLEAR(self->walker);
    return 0;
}

static int expansion_traverse(PyObject *object, visitproc visit, void *arg) {
    struct expansion *self = (struct expansion *)object;
    Py_VISIT(self->walker);
    Py_VISIT(self->root);
    for (Py_ssize_t i = 0; i < self->depth; i++) {
        Py_VISIT(self->frames[i].container);
        Py_VISIT(self->frames[i].content);
        Py_VISIT(self->frames[i].key);
        Py_VISIT(self->frames[i].value);
    }
    return 0;
}

static void expansion_dealloc(PyObject *object) {
    PyObject_GC_UnTrack(object);
    expansion_clear(object);
    PyMem_Free(((struct expansion *)object)->frames);
    PyObject_GC_Del(object);
}

static PyObject *walker_meet(PyObject *object, PyObject *value) {
    int is_old = meet((struct walker *)object, value);
    return is_old < 0 ? NULL : PyBool_FromLong(is_old);
}

static PyObject *walker_attributes(PyObject *module, PyObject *object) {
    (void)module;
    PyObject *dict = instance_content(object);
    return dict ? dict : Py_NewRef(Py_None);
}

/* ---- the type ---- */

static PyObject *walker_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *classify;
    Py_ssize_t depth_limit;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "On:Walker", &classify, &depth_limit)) return NULL;
    struct walker *self = (struct walker *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->classify = Py_NewRef(classify);
    self->depth_limit = depth_limit;
    self->classes = PyDict_New();
    self->deep = PyList_New(0);
    if (!self->classes || !self->deep) Py_CLEAR(self);
    return (PyObject *)self;
}

static int walker_clear(PyObject *object) {
    struct walker *self = (struct walker *)object;
    Py_CLEAR(self->classify);
    Py_CLEAR(self->classes);
    Py_CLEAR(self->deep);
    return 0;
}

static int walker_traverse(PyObject *object, visitproc visit, void *arg) {
    struct walker *self = (struct walker *)object;
    Py_VISIT(self->classify);
    Py_VISIT(self->classes);
    Py_VISIT(self->deep);
    return 0;
}

static void walker_dealloc(PyObject *object) {
    struct walker *self = (struct walker *)object;
    PyObject_GC_UnTrack(object);
    walker_clear(object);
    PyMem_RawFree(self->seen);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *walker_deep(PyObject *object, void *ignored) {
    (void)ignored;
    return Py_NewRef(((struct walker *)object)->deep);
}

static PyMethodDef methods[] = {
    {"expand", walker_expand, METH_VARARGS,
     "expand(object, depth) -> iterator of (steps, object)\n\nWhat is to be judged of an object that is nested `depth` "
     "deep."},
    {"meet", walker_meet, METH_O, "meet(object) -> bool\n\nWas the object met before? It is from now on."},
    {"attributes", walker_attributes, METH_O | METH_STATIC,
     "attributes(object) -> dict | None\n\nAn instance's own dict, without asking its class."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"deep", walker_deep, NULL, "[(steps, objects)]: the first that are nested as deep as the limit.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject ExpansionType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Expansion",
    .tp_basicsize = sizeof(struct expansion),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = expansion_next,
    .tp_dealloc = expansion_dealloc,
    .tp_traverse = expansion_traverse,
    .tp_clear = expansion_clear,
};

PyTypeObject WalkerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Walker",
    .tp_doc =
        "Walker(classify, depth_limit): see walk.c. classify(class) -> True: instances are left out; None: they are "
        "given back; a tuple: they are gone through, by the names of their slots and their dict.",
    .tp_basicsize = sizeof(struct walker),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = walker_new,
    .tp_dealloc = walker_dealloc,
    .tp_traverse = walker_traverse,
    .tp_clear = walker_clear,
    .tp_methods = methods,
    .tp_getset = properties,
};
