/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_FROZEN_OPENED_H
#define HEADRACE_CORE_FROZEN_OPENED_H

#include "frozen/frozen.h"

/* _core.Frozen: open frozen data, what is remembered of it, and how its items are read. */

/* ---- opened.c ---- */

/* A shape, remembered after the first record of it was met. */
struct shape {
    enum hr_shape_kind kind;
    uint32_t field_count;
    PyObject *names;    /* tuple of interned str */
    PyObject *numbers;  /* dict: name -> number */
    PyTypeObject *type; /* type of an object or a named tuple */
    /* Owned, one for each field of an object. NULL: an ordinary attribute. A descriptor: a slot. None: the value goes
     * into __dict__ directly, because the class has a property of that name. */
    PyObject **places;
};

struct frozen {
    PyObject_HEAD hr_frozen *data;
    const char *start;
    uint64_t bytes;
    struct shape **shapes; /* each shape by its number; NULL until it is met */
    uint32_t shape_count;
    int trusted;          /* it may import classes and load pickles */
    uint32_t small_items; /* containers of up to so many items in all are read as ordinary objects; 0: none */
    bool is_sealed;       /* it is in memory that only this library wrote, so its flags for texts are reliable */
    PyObject *owner;      /* the object that has the memory of frozen data of frozen_over; else NULL */
    void *memory;         /* owned: contains frozen data that is in private memory; else NULL */
    PyObject *lookups;    /* dict: value of a dict or set -> bytes, a table of its keys, if C cannot look them up */
    PyObject *dtypes;     /* dict: text -> numpy.dtype */
    PyObject *attributes; /* the __dict__ of instances, which the Python side uses */
    PyObject *weakrefs;
};
extern PyTypeObject FrozenType;

/* Makes a _core.Frozen, which owns the frozen data from now on; the frozen data is closed if this fails. */
PyObject *frozen_new(hr_frozen *data, int trusted);
/* Borrowed; NULL with an exception. */
struct shape *frozen_shape(struct frozen *frozen, uint32_t number);
/* The number of a field; -1: there is no such field; -2: exception. */
Py_ssize_t shape_find(const struct shape *shape, PyObject *name);

/* ---- read.c ---- */

/* An item as an object: a new scalar, a view, an array over the frozen data, or an instance. New reference. */
PyObject *read_item(struct frozen *frozen, const struct hr_item *item);
/* An item as read_item reads it, but a container is always a view. */
PyObject *read_view(struct frozen *frozen, hr_value value);
/* An item that the caller hashes, so it is an ordinary object and not a view. */
PyObject *read_key(struct frozen *frozen, const struct hr_item *item);
/* A scalar; NULL without an exception if the item is not one. */
PyObject *read_scalar(struct frozen *frozen, const struct hr_item *item);
PyObject *read_text(struct frozen *frozen, const struct hr_item *item);
/* A text that is ASCII according to its frozen data. */
PyObject *read_ascii(struct frozen *frozen, const void *bytes, uint64_t count);
/* An array, a tensor or a numpy scalar over the frozen data. */
PyObject *read_array(struct frozen *frozen, const struct hr_item *item);
/* An ordinary array that can be written. `copies` maps what arrays share to the memory that their copies share; its
 * keys are numbers that are no hr_value. */
PyObject *read_private_array(struct frozen *frozen, const struct hr_item *item, struct map *copies);

#endif
