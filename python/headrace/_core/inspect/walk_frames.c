/* SPDX-License-Identifier: Apache-2.0 */
/* The stack of the walker, and the set of addresses that it has met. */
#include "inspect/walk.h"

enum { SMALL = 8 };

/* ---- the objects that were met ---- */

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

bool walk_was_met(const struct walker *self, const void *address) {
    if (!self->seen_room) return false;
    size_t slot = slot_of(address, self->seen_room);
    while (self->seen[slot] && self->seen[slot] != address) slot = (slot + 1) & (self->seen_room - 1);
    return self->seen[slot] != NULL;
}

int walk_meet(struct walker *self, const void *address) {
    if (4 * self->seen_count >= 3 * self->seen_room && grow_seen(self) < 0) return -1;
    size_t slot = slot_of(address, self->seen_room);
    for (; self->seen[slot]; slot = (slot + 1) & (self->seen_room - 1))
        if (self->seen[slot] == address) return 1;
    self->seen[slot] = address;
    self->seen_count++;
    return 0;
}

/* ---- frames ---- */

void walk_pop(struct expansion *self) {
    struct walk_frame *frame = &self->frames[--self->depth];
    self->reductions -= frame->is_reduced;
    Py_CLEAR(frame->key);
    Py_CLEAR(frame->value);
    Py_CLEAR(frame->content);
    Py_CLEAR(frame->container);
}

PyObject *walk_instance_dict(PyObject *instance) {
    PyObject *dict = PyObject_GenericGetDict(instance, NULL);
    if (!dict) PyErr_Clear(); /* slots only */
    return dict;
}

static PyObject *content_of(PyObject *container, PyObject *slots) {
    if (PyAnySet_CheckExact(container)) return PyObject_GetIter(container);
    return slots ? walk_instance_dict(container) : Py_NewRef(container);
}

static int make_room(struct expansion *self) {
    if (self->depth < self->room) return 0;
    Py_ssize_t room = self->room ? 2 * self->room : 64;
    struct walk_frame *frames = PyMem_Realloc(self->frames, (size_t)room * sizeof *frames);
    if (!frames) return PyErr_NoMemory(), -1;
    self->frames = frames;
    self->room = room;
    return 0;
}

/* Takes ownership of `content`. */
static int push_content(struct expansion *self, PyObject *container, PyObject *content, PyObject *slots) {
    if (make_room(self) < 0) {
        Py_XDECREF(content);
        return -1;
    }
    self->frames[self->depth++] =
        (struct walk_frame){.container = Py_NewRef(container), .content = content, .slots = slots};
    return 0;
}

int walk_push(struct expansion *self, PyObject *container, PyObject *slots) {
    PyObject *content = content_of(container, slots);
    return !content && PyErr_Occurred() ? -1 : push_content(self, container, content, slots);
}

int walk_push_reduction(struct expansion *self, PyObject *object, PyObject *reduction) {
    if (push_content(self, object, reduction, NULL) < 0) return -1;
    self->frames[self->depth - 1].is_reduced = true;
    self->reductions++;
    return 0;
}

int walk_push_iterator(struct expansion *self, PyObject *iterator) {
    return push_content(self, iterator, Py_NewRef(iterator), NULL);
}

/* ---- the next child to look at ---- */

static bool has_only_atoms(PyObject *tuple) {
    Py_ssize_t size = PyTuple_GET_SIZE(tuple);
    for (Py_ssize_t i = 0; i < size && size <= SMALL; i++)
        if (!is_atom(Py_TYPE(PyTuple_GET_ITEM(tuple, i)))) return false;
    return size <= SMALL;
}

/* Is there nothing to look at in what a container holds? Enough to be quick with the most frequent ones. */
static bool is_idle(const struct walker *self, PyObject *item) {
    PyTypeObject *type = Py_TYPE(item);
    if (is_atom(type) || (type == &PyTuple_Type && has_only_atoms(item))) return true;
    return !is_lone(item, 1) && walk_was_met(self, item);
}

static PyObject *next_in_sequence(const struct walker *self, struct walk_frame *frame) {
    Py_ssize_t size = PySequence_Fast_GET_SIZE(frame->content);
    PyObject **items = PySequence_Fast_ITEMS(frame->content);
    while (frame->at < size && is_idle(self, items[frame->at])) frame->at++;
    if (frame->at >= size) return NULL;
    frame->kind = STEP_INDEX;
    frame->position = frame->at++;
    return Py_NewRef(items[frame->position]);
}

static PyObject *next_in_dict(struct walk_frame *frame) {
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
    Py_INCREF(key);
    Py_INCREF(value);
    Py_XSETREF(frame->key, key);
    if (is_atom(Py_TYPE(key))) {
        frame->kind = STEP_VALUE;
        return value;
    }
    frame->value = value;
    frame->kind = STEP_KEY;
    return Py_NewRef(key);
}

/* NULL with an exception if the iterator raises. */
static PyObject *next_element(const struct walker *self, struct walk_frame *frame) {
    frame->kind = STEP_ELEMENT;
    frame->position++;
    PyObject *child;
    while ((child = PyIter_Next(frame->content)) && is_idle(self, child)) {
        Py_DECREF(child);
        frame->position++;
    }
    if (!child && PyAnySet_CheckExact(frame->container)) PyErr_Clear(); /* the set has changed in between */
    return child;
}

static PyObject *next_attribute(struct walk_frame *frame) {
    PyObject *key, *value;
    frame->kind = STEP_ATTRIBUTE;
    while (frame->slot < PyTuple_GET_SIZE(frame->slots)) {
        PyObject *name = PyTuple_GET_ITEM(frame->slots, frame->slot++);
        value =
            PyObject_GenericGetAttr(frame->container, name); /* the descriptor of a slot: it runs no code of the user */
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
    Py_INCREF(key);
    Py_INCREF(value);
    Py_XSETREF(frame->key, key);
    return value;
}

PyObject *walk_next_child(const struct walker *self, struct walk_frame *frame) {
    if (frame->slots) return next_attribute(frame);
    if (PyDict_CheckExact(frame->content)) return next_in_dict(frame);
    if (!PyList_CheckExact(frame->content) && !PyTuple_CheckExact(frame->content)) return next_element(self, frame);
    PyObject *child = next_in_sequence(self, frame);
    if (frame->is_reduced) frame->kind = STEP_PART;
    return child;
}
