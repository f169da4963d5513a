/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_FROZEN_THAW_H
#define HEADRACE_CORE_FROZEN_THAW_H

#include "frozen/opened.h"

/* Instances and ordinary containers from frozen data. Called by read.c and view.c. */

enum depth {
    THAW_RECORD, /* instances; their containers and arrays are views */
    THAW_ALL,    /* ordinary Python objects at every level */
    THAW_SMALL,  /* ordinary Python objects at every level, if there are few; large arrays stay over the frozen data */
    THAW_KEY     /* ordinary Python objects at every level, of a size that can be hashed */
};
/* Returns true for containers, records and typed values. */
static inline bool has_items(const struct hr_item *item) {
    return item->kind >= HR_KIND_LIST && item->kind <= HR_KIND_TYPED && item->kind != HR_KIND_ARRAY;
}
PyObject *thaw_item(struct frozen *frozen, const struct hr_item *item, enum depth depth);
/* Thaws a container if it has up to `most` items in all, counting long texts, pickles and arrays as several. NULL
 * without an exception: it has more. */
PyObject *thaw_small(struct frozen *frozen, const struct hr_item *item, uint32_t most);
/* Returns a list of many items, which share the objects that they refer to. `next` gives one item per call. It returns
 * 1; 0 at the end; -1 with an exception. */
typedef int thaw_next(void *state, struct hr_item *ret_item);
PyObject *thaw_many(struct frozen *frozen, thaw_next *next, void *state, enum depth depth);
/* Reads the two parts of a deque, Counter... 1; 0: it is of another type; -1: exception. */
int typed_parts(struct frozen *frozen, const struct hr_item *typed, struct hr_item *ret_extra,
                struct hr_item *ret_items);

#endif
