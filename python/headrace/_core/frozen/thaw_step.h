/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_FROZEN_THAW_STEP_H
#define HEADRACE_CORE_FROZEN_THAW_STEP_H

#include "frozen/thaw.h"

/* The work list by which objects are made from frozen data. Shared by thaw.c and thaw_begin.c. */

enum how {
    HOW_LIST,
    HOW_TUPLE, /* also a named tuple */
    HOW_SET,
    HOW_FROZEN_SET,
    HOW_DICT,
    HOW_INSTANCE,
    HOW_TYPED,     /* made from its part, at the end */
    HOW_APPEND,    /* a deque */
    HOW_ENTRIES,   /* a Counter, OrderedDict or defaultdict: its entries are set */
    HOW_NAMESPACE, /* a namespace: its entries are attributes */
    HOW_ELEMENTS,  /* an array of objects; `parts` is the flat array */
};

struct step {
    struct hr_item item;
    enum how how;
    bool has_name;             /* a record: the keys are in its shape */
    const struct shape *shape; /* borrowed from the frozen data */
    PyObject *object;          /* owned; NULL: it is made at the end, from `parts` */
    PyObject *parts, *key;     /* owned */
    hr_value value;
    uint64_t next;
    uint32_t weight, nesting; /* the cost of hashing it: the number of items and the depth */
    bool is_early;            /* the hash of it may depend on objects that were not complete yet */
};

enum { FIRST_STEPS = 4, MOST_WEIGHT = 1 << 24, MOST_NESTING = 5000, NESTING_BITS = 32 };
#define WEIGHT_EARLY (UINT64_C(1) << 63) /* a bit of a weight: step.is_early */

struct thaw {
    struct frozen *frozen;
    enum depth depth;
    struct step *steps;
    size_t count, room;
    struct map memo;    /* value -> object, owned; 1: not made yet */
    struct map weights; /* value of a complete object that may be hashed -> its nesting and its weight */
    uint64_t done;      /* items, for signals */
    uint64_t left;      /* for THAW_SMALL: how many items may follow */
    bool is_large;      /* for THAW_SMALL: there are more; the exception is to be cleared */
    PyObject *hashed;   /* owned, or NULL: list of (key or set's item, its hash) for those that were hashed early */
    bool is_kept;       /* more objects are built after this one, and use the same memo */
    struct step first[FIRST_STEPS];
};

static inline bool is_immutable(const struct step *step) {
    return step->how == HOW_TUPLE || step->how == HOW_FROZEN_SET || step->how == HOW_TYPED;
}

/* Returns true if hashing it hashes its items. */
static inline bool is_weighed(const struct step *step) {
    return step->how == HOW_TUPLE || step->how == HOW_FROZEN_SET || step->how == HOW_INSTANCE;
}

/* Returns true if it does not hash by its identity. */
static inline bool hashes_by_value(PyObject *object) {
    hashfunc hash = Py_TYPE(object)->tp_hash;
    return hash != PyBaseObject_Type.tp_hash && hash != PyObject_HashNotImplemented;
}

/* Raises FrozenError and returns -1. */
int thaw_refuse(const char *what);
/* Reads an item of a container. Returns 0, or -1 with an exception. */
int thaw_at(struct frozen *frozen, const struct hr_item *container, uint64_t index, struct hr_item *ret_item);
/* Starts a value. Returns a new reference; NULL: a step was pushed, or an exception. */
PyObject *thaw_begin(struct thaw *thaw, const struct hr_item *item, uint64_t *ret_weight);
void thaw_drop(struct step *step);

#endif
