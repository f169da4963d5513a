/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_FROZEN_THAW_STEP_H
#define HEADRACE_CORE_FROZEN_THAW_STEP_H

#include "frozen/thaw.h"

/* What thaw.c and thaw_begin.c share: the work list by which objects are made out of an image. */

enum how {
    HOW_LIST,
    HOW_TUPLE, /* a named one too */
    HOW_SET,
    HOW_FROZEN_SET,
    HOW_DICT,
    HOW_INSTANCE,
    HOW_TYPED,     /* made of its part, at the end */
    HOW_APPEND,    /* a deque */
    HOW_ENTRIES,   /* a Counter and its like: entries are set */
    HOW_NAMESPACE, /* entries are attributes */
    HOW_ELEMENTS,  /* an array of objects; `parts` is the flat array */
};

struct step {
    struct hr_item item;
    enum how how;
    bool has_name;             /* a record: its shape has the keys */
    const struct shape *shape; /* the image's */
    PyObject *object;          /* owned; NULL: made at the end, of `parts` */
    PyObject *parts, *key;     /* owned */
    hr_value value;
    uint64_t next;
    uint32_t weight, nesting; /* what hashing it costs: how many items, and how deep */
    bool is_early;            /* its hash may depend on what was not whole yet */
};

enum { FIRST_STEPS = 4, MOST_WEIGHT = 1 << 24, MOST_NESTING = 5000, NESTING_BITS = 32 };
#define WEIGHT_EARLY (UINT64_C(1) << 63) /* a bit of a weight: step.is_early */

struct thaw {
    struct image *image;
    enum depth depth;
    struct step *steps;
    size_t count, room;
    struct map memo;    /* value -> object, owned; 1: not made yet */
    struct map weights; /* value of what may be hashed and is done -> its weight, its nesting above it */
    uint64_t done;      /* items, for signals */
    PyObject *hashed;   /* owned, or NULL: list of (key or set's item, its hash), where that was early */
    bool is_kept;       /* other objects are built after this one: the memo is theirs too */
    struct step first[FIRST_STEPS];
};

static inline bool is_immutable(const struct step *step) {
    return step->how == HOW_TUPLE || step->how == HOW_FROZEN_SET || step->how == HOW_TYPED;
}

/* Does hashing it hash what it holds? */
static inline bool is_weighed(const struct step *step) {
    return step->how == HOW_TUPLE || step->how == HOW_FROZEN_SET || step->how == HOW_INSTANCE;
}

/* Does it hash by something else than where it is? */
static inline bool hashes_by_value(PyObject *object) {
    hashfunc hash = Py_TYPE(object)->tp_hash;
    return hash != PyBaseObject_Type.tp_hash && hash != PyObject_HashNotImplemented;
}

/* Raises StoreError; -1. */
int thaw_refuse(const char *what);
/* An item of a container: 0, or -1 with an exception. */
int thaw_at(struct image *image, const struct hr_item *container, uint64_t index, struct hr_item *ret_item);
/* A new reference; NULL: a step was begun, or an exception. */
PyObject *thaw_begin(struct thaw *thaw, const struct hr_item *item, uint64_t *ret_weight);
void thaw_drop(struct step *step);

#endif
