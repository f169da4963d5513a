/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/view.h"

#include <string.h>

/* Views of dicts and of records of HR_SHAPE_DICT; also of a defaultdict, a Counter, an OrderedDict. */

int view_entry(struct view *view, uint64_t index, struct hr_item *ret_value) {
    int r = view->item.kind == HR_KIND_RECORD ? hr_frozen_at(view->frozen->data, &view->item, index, ret_value)
                                              : hr_frozen_entry(view->frozen->data, &view->item, index, ret_value);
    if (r < 0) frozen_raise(r);
    return r < 0 ? -1 : 0;
}

int view_value(struct view *view, uint64_t place, struct hr_item *ret_value) {
    int r = view->item.kind == HR_KIND_RECORD ? hr_frozen_at(view->frozen->data, &view->item, place, ret_value)
                                              : hr_frozen_value(view->frozen->data, &view->item, place, ret_value);
    if (r < 0) frozen_raise(r);
    return r < 0 ? -1 : 0;
}

/* ---- looking up ---- */

/*
 * The library cannot look up some keys, because only Python knows which are equal (Decimals, dates, instances). For
 * these, a table of the hashes of all keys is made once per process. A slot is 0, or has the upper bits of a hash and
 * below them 1 + the number of its key. The keys themselves stay in the frozen data; a key is made again when it has to
 * be compared.
 */
enum { LOOKUP_INDEX_BITS = 40, LOOKUP_FIRST_ROOM = 8 };

static uint64_t lookup_slot(Py_hash_t hash, uint64_t index) {
    uint64_t mixed = (uint64_t)hash * UINT64_C(0x9e3779b97f4a7c15);
    return mixed >> LOOKUP_INDEX_BITS << LOOKUP_INDEX_BITS | (index + 1);
}

static int enter_key(struct view *view, uint64_t index, uint64_t *slots, uint64_t mask) {
    PyObject *key = view_part(view, PART_KEY, index);
    Py_hash_t hash = key ? PyObject_Hash(key) : -1;
    Py_XDECREF(key);
    if (hash == -1) return -1;
    uint64_t at = (uint64_t)hash & mask;
    while (slots[at]) at = (at + 1) & mask; /* the first one of equal keys is found first */
    slots[at] = lookup_slot(hash, index);
    return 0;
}

static PyObject *make_lookup(struct view *view) {
    uint64_t room = LOOKUP_FIRST_ROOM, count = (uint64_t)view->count;
    if (count >> LOOKUP_INDEX_BITS) return PyErr_NoMemory();
    while (room < count + count / 2) room *= 2;
    PyObject *lookup = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(room * sizeof(uint64_t)));
    uint64_t *slots = lookup ? (uint64_t *)(void *)PyBytes_AS_STRING(lookup) : NULL;
    if (slots) memset(slots, 0, room * sizeof *slots);
    for (uint64_t i = 0; lookup && i < count; i++)
        if (enter_key(view, i, slots, room - 1) < 0) Py_CLEAR(lookup);
    return lookup;
}

/* New reference, because hashing keys runs code, and another thread that made a table too may replace it. */
static PyObject *lookup_of(struct view *view) {
    PyObject *name = PyLong_FromUnsignedLongLong(view->item.value);
    PyObject *lookup = name ? Py_XNewRef(PyDict_GetItemWithError(view->frozen->lookups, name)) : NULL;
    if (name && !lookup && !PyErr_Occurred()) {
        lookup = make_lookup(view);
        if (lookup && PyDict_SetItem(view->frozen->lookups, name, lookup) < 0) Py_CLEAR(lookup);
    }
    Py_XDECREF(name);
    return lookup;
}

/* Returns true if the key at an index is the wanted one. It compares like a dict: first the hashes, then the stored key
 * with the wanted one. */
static int is_key_at(struct view *view, uint64_t index, PyObject *key, Py_hash_t hash) {
    PyObject *here = view_part(view, PART_KEY, index);
    Py_hash_t other = here ? PyObject_Hash(here) : -1;
    int r = other == -1 ? -1 : other == hash ? PyObject_RichCompareBool(here, key, Py_EQ) : 0;
    Py_XDECREF(here);
    return r;
}

/* Returns 1 and the number of the key; 0: not found; -1: exception. */
static int find_in_lookup(struct view *view, PyObject *lookup, PyObject *key, Py_hash_t hash, uint64_t *ret_index) {
    const uint64_t *slots = (const uint64_t *)(const void *)PyBytes_AS_STRING(lookup);
    uint64_t mask = (uint64_t)PyBytes_GET_SIZE(lookup) / sizeof *slots - 1;
    uint64_t mark = lookup_slot(hash, 0) >> LOOKUP_INDEX_BITS;
    for (uint64_t at = (uint64_t)hash & mask; slots[at]; at = (at + 1) & mask) {
        if (slots[at] >> LOOKUP_INDEX_BITS != mark) continue;
        uint64_t index = (slots[at] & ((UINT64_C(1) << LOOKUP_INDEX_BITS) - 1)) - 1;
        int r = is_key_at(view, index, key, hash);
        if (r > 0) *ret_index = index;
        if (r) return r;
    }
    return 0;
}

static int find_slowly(struct view *view, PyObject *key, uint64_t *ret_place) {
    uint64_t index = 0;
    Py_hash_t hash = PyObject_Hash(key);
    PyObject *lookup = hash == -1 ? NULL : lookup_of(view);
    int r = lookup ? find_in_lookup(view, lookup, key, hash, &index) : -1;
    Py_XDECREF(lookup);
    if (r <= 0) return r;
    r = hr_frozen_place(view->frozen->data, &view->item, index, ret_place);
    if (r < 0) frozen_raise(r);
    return r < 0 ? -1 : 1;
}

static int find_field(struct view *view, PyObject *key, uint64_t *ret_place) {
    const struct shape *shape = frozen_shape(view->frozen, view->item.shape);
    Py_ssize_t index = shape ? shape_find(shape, key) : -2;
    if (index >= 0) *ret_place = (uint64_t)index;
    return index >= 0 ? 1 : index == -1 ? 0 : -1;
}

/* Looks up a key of any type. */
static int find_any(struct view *view, PyObject *key, uint64_t *ret_place) {
    struct key_room room;
    struct hr_key wanted;
    bool never;
    if (view->item.kind == HR_KIND_RECORD) return find_field(view, key, ret_place);
    if (!view->item.is_native) return find_slowly(view, key, ret_place);
    enum found found = key_of(key, &room, &wanted, &never);
    int r = -1;
    if (found == FOUND) {
        r = hr_frozen_find(view->frozen->data, &view->item, &wanted, ret_place);
        if (r < 0) frozen_raise(r);
    } else if (found == FOUND_NOT) { /* a dict raises TypeError for a key that has no hash */
        r = !never ? find_slowly(view, key, ret_place) : PyObject_Hash(key) == -1 ? -1 : 0;
    }
    key_done(&room);
    return r < 0 ? -1 : r;
}

int view_find(struct view *view, PyObject *key, uint64_t *ret_place) {
    bool is_ascii = PyUnicode_CheckExact(key) && PyUnicode_IS_COMPACT_ASCII(key);
    if (!is_ascii || !view->item.is_native) return find_any(view, key, ret_place);
    struct hr_key text = {.kind = HR_KIND_TEXT, .count = (uint64_t)PyUnicode_GET_LENGTH(key)};
    text.bytes = (PyASCIIObject *)key + 1;
    int r = hr_frozen_find(view->frozen->data, &view->item, &text, ret_place);
    if (r < 0) frozen_raise(r);
    return r < 0 ? -1 : r;
}

static PyObject *value_at(struct view *view, uint64_t place) {
    struct hr_item item;
    return view_value(view, place, &item) < 0 ? NULL : read_item(view->frozen, &item);
}

/* A Counter returns 0 for a missing key. */
static PyObject *miss(struct view *view, PyObject *key) {
    if (view->typed) {
        PyObject *name = view_name(view);
        bool counts = name && PyUnicode_CompareWithASCIIString(name, "Counter") == 0;
        Py_XDECREF(name);
        if (counts) return PyLong_FromLong(0);
    }
    if (PyErr_Occurred()) return NULL;
    PyObject *arguments =
        PyTuple_Pack(1, key); /* otherwise a tuple would be taken for the arguments, and None for no arguments */
    if (arguments) PyErr_SetObject(PyExc_KeyError, arguments);
    Py_XDECREF(arguments);
    return NULL;
}

static PyObject *dict_subscript(PyObject *self, PyObject *key) {
    uint64_t place;
    int r = view_find((struct view *)self, key, &place);
    if (r > 0) return value_at((struct view *)self, place);
    return r < 0 ? NULL : miss((struct view *)self, key);
}

static PyObject *dict_get(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    uint64_t place;
    if (count < 1 || count > 2) return PyErr_Format(PyExc_TypeError, "get expected 1 or 2 arguments, got %zd", count);
    int r = view_find((struct view *)self, arguments[0], &place);
    if (r > 0) return value_at((struct view *)self, place);
    return r < 0 ? NULL : Py_NewRef(count == 2 ? arguments[1] : Py_None);
}

static int dict_contains(PyObject *self, PyObject *key) {
    uint64_t place;
    return view_find((struct view *)self, key, &place);
}

static Py_ssize_t dict_length(PyObject *self) {
    return ((struct view *)self)->count;
}

static PyObject *dict_iterate(PyObject *self) {
    return iterator_new((struct view *)self, PART_KEY, false);
}

static PyObject *dict_reversed(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return iterator_new((struct view *)self, PART_KEY, true);
}

/* ---- keys, values, items ---- */

struct part_view {
    PyObject_HEAD struct view *view;
};

static PyObject *part_new(PyTypeObject *type, PyObject *view) {
    struct part_view *part = PyObject_New(struct part_view, type);
    if (part) part->view = (struct view *)Py_NewRef(view);
    return (PyObject *)part;
}

static PyObject *dict_keys(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return part_new(&FrozenKeysType, self);
}
static PyObject *dict_values(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return part_new(&FrozenValuesType, self);
}
static PyObject *dict_items(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return part_new(&FrozenItemsType, self);
}

static struct view *view_of(PyObject *self) {
    return ((struct part_view *)self)->view;
}

static enum entry_part part_of(PyObject *self) {
    return Py_TYPE(self) == &FrozenKeysType ? PART_KEY : Py_TYPE(self) == &FrozenValuesType ? PART_VALUE : PART_PAIR;
}

PyObject *part_thaw(PyObject *object) {
    static const char *const names[] = {[PART_KEY] = "keys", [PART_VALUE] = "values", [PART_PAIR] = "items"};
    PyTypeObject *type = Py_TYPE(object);
    if (type != &FrozenKeysType && type != &FrozenValuesType && type != &FrozenItemsType) return NULL;
    PyObject *dict = core_thaw(NULL, (PyObject *)view_of(object));
    PyObject *part = dict ? PyObject_CallMethod(dict, names[part_of(object)], NULL) : NULL;
    Py_XDECREF(dict);
    return part;
}

static void part_dealloc(PyObject *self) {
    Py_DECREF((PyObject *)view_of(self));
    PyObject_Free(self);
}

static Py_ssize_t part_length(PyObject *self) {
    return view_of(self)->count;
}

static PyObject *part_iterate(PyObject *self) {
    return iterator_new(view_of(self), part_of(self), false);
}

static PyObject *part_reversed(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return iterator_new(view_of(self), part_of(self), true);
}

static int has_key_and_value(struct view *view, PyObject *key, PyObject *wanted) {
    uint64_t place;
    int r = view_find(view, key, &place);
    if (r <= 0) return r;
    PyObject *value = value_at(view, place);
    r = value ? PyObject_RichCompareBool(value, wanted, Py_EQ) : -1;
    Py_XDECREF(value);
    return r;
}

static int has_pair(struct view *view, PyObject *pair) {
    PyObject *tuple = Py_TYPE(pair) == &FrozenTupleType ? PySequence_Tuple(pair) : Py_NewRef(pair);
    if (!tuple) return -1;
    bool is_pair = PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) == 2;
    int r = is_pair ? has_key_and_value(view, PyTuple_GET_ITEM(tuple, 0), PyTuple_GET_ITEM(tuple, 1)) : 0;
    Py_DECREF(tuple);
    return r;
}

static int has_value(struct view *view, PyObject *value) {
    int r = 0;
    for (Py_ssize_t i = 0; r == 0 && i < view->count; i++) {
        PyObject *here = view_part(view, PART_VALUE, (uint64_t)i);
        r = here ? PyObject_RichCompareBool(here, value, Py_EQ) : -1;
        Py_XDECREF(here);
    }
    return r;
}

static int part_contains(PyObject *self, PyObject *object) {
    switch (part_of(self)) {
    case PART_KEY:
        return dict_contains((PyObject *)view_of(self), object);
    case PART_VALUE:
        return has_value(view_of(self), object);
    default:
        return has_pair(view_of(self), object);
    }
}

static PyObject *part_disjoint(PyObject *self, PyObject *other) {
    PyObject *part = part_thaw(self);
    PyObject *answer = part ? PyObject_CallMethod(part, "isdisjoint", "(O)", other) : NULL;
    Py_XDECREF(part);
    return answer;
}

static PyObject *values_compare(PyObject *self, PyObject *other, int operation) {
    if (operation == Py_EQ) return PyBool_FromLong(self == other);
    if (operation == Py_NE) return PyBool_FromLong(self != other);
    Py_RETURN_NOTIMPLEMENTED;
}

/* ---- types ---- */

static PyMappingMethods dict_mapping = {
    .mp_length = dict_length, .mp_subscript = dict_subscript, .mp_ass_subscript = view_refuse_item};
static PySequenceMethods dict_sequence = {.sq_contains = dict_contains};

static PyMethodDef dict_methods[] = {
    VIEW_METHODS,
    {"get", (PyCFunction)(void (*)(void))dict_get, METH_FASTCALL, "get(key[, default]) -> object"},
    {"keys", dict_keys, METH_NOARGS, "keys() -> KeysView"},
    {"values", dict_values, METH_NOARGS, "values() -> ValuesView"},
    {"items", dict_items, METH_NOARGS, "items() -> ItemsView"},
    {"get_many", dict_get_many, METH_VARARGS,
     "get_many(keys[, default]) -> list\n\nReturns the values of many keys, faster than one by one. KeyError without a "
     "default."},
    {"__reversed__", dict_reversed, METH_NOARGS, NULL},
    REFUSE("update"),
    REFUSE("pop"),
    REFUSE("popitem"),
    REFUSE("clear"),
    REFUSE("setdefault"),
    REFUSE("move_to_end"),
    REFUSE("subtract"),
    {NULL, NULL, 0, NULL},
};

PyTypeObject FrozenDictType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.FrozenDict",
    .tp_basicsize = sizeof(struct view),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_MAPPING,
    .tp_doc = "A frozen dict: a Mapping over frozen data.",
    .tp_dealloc = view_dealloc,
    .tp_repr = view_repr,
    .tp_hash = PyObject_HashNotImplemented,
    .tp_richcompare = view_compare,
    .tp_iter = dict_iterate,
    .tp_as_number = &dict_numbers,
    .tp_as_sequence = &dict_sequence,
    .tp_as_mapping = &dict_mapping,
    .tp_methods = dict_methods,
};

static PySequenceMethods part_sequence = {.sq_length = part_length, .sq_contains = part_contains};

static PyMethodDef set_like_methods[] = {
    {"__reversed__", part_reversed, METH_NOARGS, NULL},
    {"isdisjoint", part_disjoint, METH_O, "isdisjoint(other) -> bool"},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef values_methods[] = {
    {"__reversed__", part_reversed, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

#define PART_TYPE(name_, doc_, compare_, numbers_, methods_)                                                           \
    {                                                                                                                  \
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core." name_, .tp_basicsize = sizeof(struct part_view),    \
                                    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,                \
                                    .tp_doc = doc_, .tp_dealloc = part_dealloc, .tp_repr = view_repr,                  \
                                    .tp_hash = PyObject_HashNotImplemented, .tp_richcompare = compare_,                \
                                    .tp_iter = part_iterate, .tp_as_number = numbers_,                                 \
                                    .tp_as_sequence = &part_sequence, .tp_methods = methods_,                          \
    }

PyTypeObject FrozenKeysType =
    PART_TYPE("FrozenKeys", "The keys of a frozen dict.", view_compare, &set_numbers, set_like_methods);
PyTypeObject FrozenItemsType =
    PART_TYPE("FrozenItems", "The items of a frozen dict.", view_compare, &set_numbers, set_like_methods);
PyTypeObject FrozenValuesType =
    PART_TYPE("FrozenValues", "The values of a frozen dict.", values_compare, NULL, values_methods);
