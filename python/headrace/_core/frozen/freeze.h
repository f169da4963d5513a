/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_FROZEN_FREEZE_H
#define HEADRACE_CORE_FROZEN_FREEZE_H

#include "exchange/arrays.h"
#include "frozen/frozen.h"

/*
 * Objects into frozen data.
 *
 *     freeze.c         the work list, and ordinary containers
 *     freeze_path.c    the path of the object that is being written, and how many bytes each path takes
 *     freeze_scan.c    lists and dicts that can be packed
 *     freeze_leaf.c    texts, numbers, arrays and tensors       freeze_stride.c  arrays whose elements share memory
 *     freeze_class.c   instances, typed values and pickles      freeze_inline.c  attributes without a __dict__
 *     freeze_whole.c   _core.freeze and _core.Builder
 */

enum frame_kind { FRAME_LIST, FRAME_ROWS, FRAME_DICT, FRAME_RECORD, FRAME_FIELDS, FRAME_SET };

/* A container that is being written. */
struct freeze_frame {
    enum frame_kind kind;
    bool is_hidden;   /* it is not a step of a path: the parts of a deque */
    bool is_object;   /* the fields of the record are attributes */
    bool has_key;     /* the key of a dict has been put, and `extra` is its value */
    PyObject *object; /* owned: list, tuple, dict, or a tuple of an instance's values */
    PyObject *names;  /* owned: of a record */
    PyObject *extra;  /* owned: a set's iterator, the next value of a dict, the class of rows that are instances */
    PyObject *key;    /* owned: of a dict, for the path */
    hr_value value;
    uint64_t next, count;
    Py_ssize_t at; /* the position of PyDict_Next */
    uint64_t mark; /* the size of the frozen data when this frame's bytes were last added to its path */
    uint32_t shape;
};

struct freezer {
    hr_builder *builder;
    struct freeze_frame *frames;
    size_t frame_count, frame_room;
    struct map memo;    /* address -> value; holds a reference to each object */
    PyObject *shapes;   /* dict: (class or None, names) -> number */
    PyObject *classes;  /* dict: class -> the answer of headrace.frozen.types.hooks.classify */
    PyObject *fields;   /* dict: class -> the field names of an instance that was met recently */
    PyObject *dtypes;   /* dict: dtype -> text */
    PyObject *strided;  /* dict: once_key -> (value, array that owns the memory), or NULL: none yet */
    PyObject *progress; /* callable or NULL */
    PyObject *pickles;  /* list of paths that are stored as pickles */
    PyObject *paths;    /* dict: path -> bytes, or NULL: not wanted */
    struct inputs inputs;
    unsigned char *scratch;
    size_t scratch_bytes;
    uint64_t done_count, dict_shape_count;
    uint64_t ahead_bytes;    /* bytes of the frozen data that are allocated and not written yet */
    uint64_t reported_bytes; /* as passed to `progress` last */
    uint64_t counts[HR_KIND_COUNT];
    uint64_t bytes[HR_KIND_COUNT];
    bool keeps_pickles;
};

/* ---- freeze.c ---- */

/* Opens frozen data in memory (None) or in file `path` (bytes). -1 with an exception. Call freezer_close in either
 * case.
 */
int freezer_open(struct freezer *freezer, PyObject *path, PyObject *progress, bool keeps_pickles);
/* Writes an object and all that it refers to. */
int freezer_run(struct freezer *freezer, PyObject *object, hr_value *ret_root);
/* Forgets the objects that were written: later ones share nothing with them. */
void freezer_forget(struct freezer *freezer);
/* Drops frozen data that is not finished. May be called twice. */
void freezer_close(struct freezer *freezer);

/* Writes an object, or starts to: pushes a frame. `is_shared`: others may refer to it. -1: exception. */
int freeze_object(struct freezer *freezer, PyObject *object, bool is_shared, hr_value *ret_value);
/* Pushes a frame, and takes new references to what it contains. -1: exception. */
int freeze_push(struct freezer *freezer, struct freeze_frame frame);
int freeze_memo(struct freezer *freezer, PyObject *object, hr_value value);
/* Handles signals and calls `progress`, once in so many items or bytes. */
int freeze_tick(struct freezer *freezer, uint64_t items);
void freeze_count(struct freezer *freezer, enum hr_kind kind, uint64_t bytes_before);
int freeze_changed(struct freezer *freezer);

/* ---- freeze_path.c ---- */

PyObject *freeze_path(struct freezer *freezer);
/* Adds the bytes that were written since the last call to the path of frame `top`. -1: exception. */
int freeze_account(struct freezer *freezer, size_t top);

/* ---- freeze_leaf.c ---- */

/* 1: written; 0: not of this kind; -1: exception. */
int freeze_scalar(struct freezer *freezer, PyObject *object, hr_value *ret_value);
int freeze_bytes(struct freezer *freezer, PyObject *object, hr_value *ret_value);
int freeze_array(struct freezer *freezer, PyObject *object, hr_value *ret_value);
int freeze_text(struct freezer *freezer, PyObject *text, hr_value *ret_value);
/* The bytes of a text: those in the str if it is ASCII, else a copy in the scratch. NULL: MemoryError. */
const void *freeze_utf8(struct freezer *freezer, PyObject *text, size_t *ret_bytes);

/* ---- freeze_stride.c ---- */

/* An array in which several places are one element of memory. */
struct once {
    struct hr_frozen_array layout; /* for hr_builder_strided: all but its kind */
    Py_buffer elements;            /* what is to be written, not held: each element once */
    Py_ssize_t shape[HR_FROZEN_MAX_DIMENSIONS], steps[HR_FROZEN_MAX_DIMENSIONS]; /* shape and steps of `elements` */
};
/* Returns false if every place is an element of its own. The view has at most HR_FROZEN_MAX_DIMENSIONS. */
bool once_of(const Py_buffer *view, struct once *ret_once);
/* A key that is equal for arrays that write the same elements. New reference. */
PyObject *once_key(const struct once *once);

/* ---- freeze_scan.c ---- */

/* A list or tuple that can be packed: 1 if it was written or started. */
int freeze_packed(struct freezer *freezer, PyObject *sequence, hr_value *ret_value);
/* Returns true if a dict has these keys in this order. */
bool has_names(PyObject *dict, PyObject *names);
/* The keys of a dict if they can be the field names of a shape: new reference; else NULL without an exception. */
PyObject *names_of(PyObject *dict);
/* 1: the number of the shape; 0: there is no room for more shapes. */
int freeze_shape(struct freezer *freezer, PyObject *type, PyObject *type_name, enum hr_shape_kind kind, PyObject *names,
                 uint32_t *ret_number);

/* ---- freeze_class.c ---- */

int freeze_other(struct freezer *freezer, PyObject *object, bool is_shared, hr_value *ret_value);
/* Returns the description of a class, borrowed. NULL with an exception. */
PyObject *freeze_class(struct freezer *freezer, PyTypeObject *type);
/* An instance's field names and values, new tuples. 1; 0: it contains something that is not a field; -1: exception. */
int freeze_fields(PyObject *known, PyObject *object, PyObject **ret_names, PyObject **ret_values);
/* The values of an instance that has exactly these fields, in this order, unless `ret_values` is NULL. 1; 0: it has
 * other fields; -1: exception. */
int freeze_match(PyObject *known, PyObject *object, PyObject *names, PyObject **ret_values);
/* Returns true if an object has attributes of its own, apart from slots. */
bool has_attributes(PyObject *object);

/* ---- freeze_inline.c ---- */

/* Returns true if an instance has its attributes in itself, and no dict. */
bool has_inline(PyObject *object);
/* Such an attribute by its number, in the order in which they were set, borrowed. Returns false if there are fewer. */
bool inline_at(PyObject *object, Py_ssize_t index, PyObject **ret_name, PyObject **ret_value);
/* The dict of an object that is not so: new reference; NULL without an exception: it has no dict. */
PyObject *held_dict(PyObject *object);

/* ---- freeze_whole.c ---- */

extern PyTypeObject BuilderType; /* _core.Builder */
PyObject *core_freeze(PyObject *module, PyObject *arguments, PyObject *keywords);

#endif
