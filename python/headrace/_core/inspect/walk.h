/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_WALK_H
#define HEADRACE_CORE_WALK_H

#include "inspect/inspect.h"

/* The state of a _core.Walker (walk.c), and how it continues (walk_frames.c). */

/* STEP_PART: from an object to a part of its reduction, which is the step's key. */
enum step_kind { STEP_INDEX, STEP_VALUE, STEP_KEY, STEP_ELEMENT, STEP_ATTRIBUTE, STEP_PART };

/* The parts of a reduction: the answer of __reduce_ex__. */
enum reduction_part { PART_FUNCTION, PART_ARGUMENTS, PART_STATE, PART_ITEMS, PART_PAIRS, PART_SETTER, MOST_PARTS };

struct walk_frame {
    PyObject *container; /* owned: a list, tuple, dict, set, frozenset, instance, or a reduction's iterator */
    PyObject *content;   /* owned: what is gone through: the container; an iterator; an instance's dict, or NULL, or
                            its reduction */
    PyObject *slots;     /* borrowed from Walker.classes: names of an instance's slots, or NULL */
    PyObject *key;       /* owned: the key of the child that is being looked at, or NULL */
    PyObject *value;     /* owned: the value of a dict whose key was looked at just now, or NULL */
    Py_ssize_t at;       /* where PyDict_Next or a list goes on */
    Py_ssize_t slot;     /* the next slot */
    Py_ssize_t position; /* position of the child, counted from 0 */
    enum step_kind kind; /* kind of the step to the child */
    bool is_reduced;     /* `content` is a reduction */
};

struct walker {
    PyObject_HEAD PyObject *classes; /* dict: class -> True: leave instances out; None: Python's; tuple: plain, names of
                                        its slots; else a callable that reduces instances */
    PyObject *classify;              /* callable: class -> the value in `classes` */
    PyObject *newobj;                /* copyreg.__newobj__ */
    PyObject *deep;                  /* list of (steps, objects) of what is nested `depth_limit` levels deep */
    PyObject *kept;                  /* list: noted objects that may be a reduction's own */
    Py_ssize_t depth_limit;
    size_t reduced;    /* how many objects */
    const void **seen; /* a hash set */
    size_t seen_count, seen_room;
};

/* An iterator over the results for one object. */
struct expansion {
    PyObject_HEAD struct walker *walker; /* owned */
    PyObject *root;                      /* owned, NULL once it was entered */
    struct walk_frame *frames;
    Py_ssize_t depth, room;
    Py_ssize_t base;       /* how deep the object itself is nested */
    Py_ssize_t reductions; /* how many of the frames are */
    PyTypeObject *last;    /* borrowed from Walker.classes: a class, and how its instances are treated */
    PyObject *last_class;
};

/* Returns true for a type that pickle writes directly and whose instances refer to no other objects. */
static inline bool is_atom(PyTypeObject *type) {
    return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type || type == &PyBytes_Type ||
           type == &PyBool_Type || type == Py_TYPE(Py_None) || type == &PyComplex_Type || type == &PyByteArray_Type;
}

static inline bool is_container(PyTypeObject *type) {
    return type == &PyList_Type || type == &PyTuple_Type || type == &PyDict_Type || type == &PySet_Type ||
           type == &PyFrozenSet_Type;
}

/* ---- walk_frames.c ---- */

bool walk_was_met(const struct walker *self, const void *address);
/* 1: it was met before. 0: it counts as met from now on. -1: exception. */
int walk_meet(struct walker *self, const void *address);

/* An instance's own dict, new reference, or NULL without an exception. */
PyObject *walk_instance_dict(PyObject *instance);

/* Goes into a container or instance; `slots`: names of an instance's slots. 0, or -1 with an exception. */
int walk_push(struct expansion *self, PyObject *container, PyObject *slots);
/* Goes through an iterator of a reduction. */
int walk_push_iterator(struct expansion *self, PyObject *iterator);
/* Goes into a reduction, which it takes over. */
int walk_push_reduction(struct expansion *self, PyObject *object, PyObject *reduction);
void walk_pop(struct expansion *self);

/* The next child of a frame to look at: a new reference, NULL at the end or with an exception. */
PyObject *walk_next_child(const struct walker *self, struct walk_frame *frame);

#endif
