/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_FROZEN_VIEW_H
#define HEADRACE_CORE_FROZEN_VIEW_H

#include "frozen/opened.h"

/* Views: the lists, tuples, dicts and sets of frozen data, which look like ordinary ones and copy nothing. */

/* ---- view.c: what all views share ---- */

struct view {
    PyObject_HEAD struct frozen *frozen;
    struct hr_item item;
    hr_value typed; /* the typed value that names the type of a deque, Counter...; 0: an ordinary list, tuple... */
    Py_ssize_t count, first, stride; /* a slice of a list or tuple: items first, first + stride...; else 0 and 1 */
};
extern PyTypeObject FrozenListType, FrozenTupleType, FrozenDictType, FrozenSetType;
extern PyTypeObject FrozenKeysType, FrozenValuesType, FrozenItemsType, FrozenIteratorType;

bool is_view(PyObject *object);
/* `item` is a list, tuple, set or dict, or a record of HR_SHAPE_DICT. New reference. */
PyObject *view_new(struct frozen *frozen, const struct hr_item *item, hr_value typed);
void view_dealloc(PyObject *self);
/* The name of the Python type that the view is for: list, Counter... New reference. */
PyObject *view_name(const struct view *view);
/* An ordinary container of the view's items, which stay views. New reference. */
PyObject *view_shallow(PyObject *self);
PyObject *view_repr(PyObject *self);
PyObject *view_compare(PyObject *self, PyObject *other, int operation);
PyObject *view_hash_object(PyObject *self);
PyObject *view_refuse(PyObject *self, PyObject *arguments, PyObject *keywords);
int view_refuse_item(PyObject *self, PyObject *key, PyObject *value);
PyObject *view_reduce(PyObject *self, PyObject *protocol);
PyObject *view_copy(PyObject *self, PyObject *ignored);
PyObject *view_deepcopy(PyObject *self, PyObject *memo);
/* Operators: they return what the operator returns for ordinary copies. */
extern PyNumberMethods sequence_numbers, set_numbers, dict_numbers;
/* A row of a method table for a method that would change the container: it raises. */
#define REFUSE(name)                                                                                                   \
    { name, (PyCFunction)(void (*)(void))view_refuse, METH_VARARGS | METH_KEYWORDS, NULL }
/* The methods that all views have. */
#define VIEW_METHODS                                                                                                   \
    {"__reduce_ex__", view_reduce, METH_O, NULL},                                                                      \
        {"__copy__", view_copy, METH_NOARGS,                                                                           \
         "Returns an ordinary container of the same items; nested containers stay views."},                            \
        {"__deepcopy__", view_deepcopy, METH_O, "Returns headrace.thaw(self)."}, {                                     \
        "copy", view_copy, METH_NOARGS,                                                                                \
            "copy()\n\nReturns an ordinary container of the same items; nested containers stay views."                 \
    }

/* _core.thaw, thaw_together and where. */
PyObject *core_thaw(PyObject *module, PyObject *view);
PyObject *core_thaw_together(PyObject *module, PyObject *views);
PyObject *core_where(PyObject *module, PyObject *view);

/* ---- view_iterator.c ---- */

/* The part of each entry that an iterator returns: an item of a list or set; the key, the value or both of a dict's
 * entry. */
enum entry_part { PART_ITEM, PART_KEY, PART_VALUE, PART_PAIR };
PyObject *iterator_new(struct view *view, enum entry_part part, bool is_reversed);
/* One part of a view at an index within its count. New reference. */
PyObject *view_part(struct view *view, enum entry_part part, uint64_t index);

/* ---- view_many.c ---- */

PyObject *list_get_many(PyObject *self, PyObject *indices);
PyObject *dict_get_many(PyObject *self, PyObject *keys);
PyObject *list_column(PyObject *self, PyObject *name);

/* ---- view_dict.c ---- */

/* The place of a key in a dict or set, or the number of a record's field. 1: found; 0: not found; -1: exception. */
int view_find(struct view *view, PyObject *key, uint64_t *ret_place);
/* Reads the value at a place that view_find returned. */
int view_value(struct view *view, uint64_t place, struct hr_item *ret_value);
/* Reads the value of a dict's entry, or of a record's field, by its number. */
int view_entry(struct view *view, uint64_t index, struct hr_item *ret_value);
/* Thaws the keys, values or items of a dict. NULL without an exception: the object is not one of these. */
PyObject *part_thaw(PyObject *object);

/* ---- key.c ---- */

enum { KEY_SMALL_BYTES = 256, KEY_MAX_ITEMS = 32, KEY_MAX_DEPTH = 4, KEY_MAX_KEPT = 4 };
/* Memory that a key borrows from. */
struct key_room {
    unsigned char bytes[KEY_SMALL_BYTES];
    size_t used;
    struct hr_key keys[KEY_MAX_ITEMS];
    uint32_t key_count;
    PyObject *kept[KEY_MAX_KEPT]; /* owned: bytes of a long text, the parts of a date... */
    uint32_t kept_count;
};
/* FOUND: `*ret_key` is the key, which borrows from `room` and the object. FOUND_NOT: the library cannot look it up. If
 * `*ret_never`, it is equal to no key that the library can look up; else Python has to look. */
enum found key_of(PyObject *object, struct key_room *room, struct hr_key *ret_key, bool *ret_never);
void key_done(struct key_room *room);

#endif
