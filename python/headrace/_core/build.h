/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_BUILD_H
#define HEADRACE_CORE_BUILD_H

#include "store.h"

/* What build.c and build_begin.c share: the work list by which objects are made out of an image. */

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
    uint64_t next, weight;
};

enum { FIRST_STEPS = 4, MOST_WEIGHT = 1 << 24 };

struct build {
    struct image *image;
    enum depth depth;
    struct step *steps;
    size_t count, room;
    struct map memo;    /* value -> object, owned; 1: not made yet */
    struct map weights; /* value of a tuple or frozenset that is done -> how many items it unfolds to */
    uint64_t done;      /* items, for signals */
    struct step first[FIRST_STEPS];
};

static inline bool is_immutable(const struct step *step) {
    return step->how == HOW_TUPLE || step->how == HOW_FROZEN_SET || step->how == HOW_TYPED;
}

/* Raises StoreError; -1. */
int build_refuse(const char *what);
/* An item of a container: 0, or -1 with an exception. */
int build_at(struct image *image, const struct hr_item *container, uint64_t index, struct hr_item *ret_item);
/* A new reference; NULL: a step was begun, or an exception. */
PyObject *build_begin(struct build *build, const struct hr_item *item, uint64_t *ret_weight);
void build_drop(struct step *step);

#endif
