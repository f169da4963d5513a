/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a value when it is met: finds it in the memo, makes a scalar, or makes an empty container and its step. */
#include "frozen/thaw_step.h"

#include <string.h>

/* Bytes of a text, and of an array that is copied, that cost as much as an item. */
enum { LARGE_ARRAY_BYTES = 64 << 10, BYTES_PER_ITEM = 64, ARRAY_BYTES_PER_ITEM = 1024 };

/* Starts a value when it is met: finds it in the memo, makes a scalar, or makes an empty container and its step. */

int thaw_refuse(const char *what) {
    PyErr_Format(FrozenError, "headrace: %s; the frozen data is damaged, or cannot be thawed", what);
    return -1;
}

/* ---- steps ---- */

static int grow(struct thaw *thaw) {
    size_t room = 4 * thaw->room;
    struct step *old = thaw->steps == thaw->first ? NULL : thaw->steps;
    struct step *steps = PyMem_Realloc(old, room * sizeof *steps);
    if (!steps) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; !old && i < thaw->count; i++) steps[i] = thaw->first[i];
    thaw->steps = steps;
    thaw->room = room;
    return 0;
}

void thaw_drop(struct step *step) {
    Py_CLEAR(step->object);
    Py_CLEAR(step->parts);
    Py_CLEAR(step->key);
}

/* Takes ownership of the step's references, also if it fails. The first record needs no memo entry, because values are
 * compared with it directly. */
static int push(struct thaw *thaw, struct step step) {
    bool is_first = thaw->depth == THAW_RECORD && thaw->count == 0;
    int r = !step.object && !step.parts ? -1 : thaw->count == thaw->room ? grow(thaw) : 0;
    if (r == 0 && !is_first) r = map_add(&thaw->memo, step.value, step.object ? (uintptr_t)step.object : 1);
    if (r == 0 && !is_first) Py_XINCREF(step.object);
    if (r == 0)
        thaw->steps[thaw->count++] = step;
    else
        thaw_drop(&step);
    return r;
}

/* Finds an object that was met before: new reference; NULL: it was not met, or an exception. */
static PyObject *find_known(struct thaw *thaw, const struct hr_item *item, uint64_t *ret_weight) {
    PyObject *object = NULL;
    const uint64_t *known = map_find(&thaw->memo, item->value);
    if (known && *known == 1)
        thaw_refuse("a frozenset, or a typed value, contains itself");
    else if (known)
        object = (PyObject *)(uintptr_t)*known;
    else if (thaw->depth == THAW_RECORD && thaw->count && thaw->steps[0].value == item->value)
        object = thaw->steps[0].object;
    if (!object) return NULL;
    const uint64_t *weight = map_find(&thaw->weights, item->value);
    *ret_weight = weight ? *weight : hashes_by_value(object) ? WEIGHT_EARLY | 1 : 1;
    if (!weight && PyTuple_Check(object)) { /* it is not done */
        for (size_t i = thaw->count; i-- > 0 && is_immutable(&thaw->steps[i]);)
            if (thaw->steps[i].object == object) return thaw_refuse("a tuple contains itself"), NULL;
    }
    return Py_NewRef(object);
}

/* ---- empty containers ---- */

static PyObject *nones(uint64_t count) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (Py_ssize_t i = 0; tuple && i < (Py_ssize_t)count; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(Py_None));
    return tuple;
}

static PyObject *none_list(uint64_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (Py_ssize_t i = 0; list && i < (Py_ssize_t)count; i++) PyList_SET_ITEM(list, i, Py_NewRef(Py_None));
    return list;
}

/* Uses tuple.__new__ and object.__new__, and not those of the class, because the fields are set afterwards. */
static PyObject *new_named_tuple(const struct shape *shape) {
    PyObject *items = nones(shape->field_count), *arguments = items ? PyTuple_Pack(1, items) : NULL;
    PyObject *object = arguments ? PyTuple_Type.tp_new(shape->type, arguments, NULL) : NULL;
    Py_XDECREF(items);
    Py_XDECREF(arguments);
    return object;
}

static PyObject *new_instance(const struct shape *shape) {
    PyObject *none = PyTuple_New(0);
    PyObject *object = none ? PyBaseObject_Type.tp_new(shape->type, none, NULL) : NULL;
    Py_XDECREF(none);
    return object;
}

static int begin_record(struct thaw *thaw, const struct hr_item *item) {
    const struct shape *shape = frozen_shape(thaw->frozen, item->shape);
    struct step step = {.item = *item, .shape = shape, .value = item->value, .has_name = true};
    if (!shape) return -1;
    if (item->count != shape->field_count)
        return thaw_refuse("a record has other fields than its shape"); /* the file has changed */
    step.how = shape->kind == HR_SHAPE_OBJECT ? HOW_INSTANCE : shape->kind == HR_SHAPE_TUPLE ? HOW_TUPLE : HOW_DICT;
    step.object = step.how == HOW_INSTANCE ? new_instance(shape)
                  : step.how == HOW_TUPLE  ? new_named_tuple(shape)
                                           : PyDict_New();
    return push(thaw, step);
}

static int begin_container(struct thaw *thaw, const struct hr_item *item) {
    struct step step = {.item = *item, .value = item->value};
    if (item->count > thaw->frozen->bytes)
        return thaw_refuse("a container has more items than the frozen data has bytes");
    switch (item->kind) {
    case HR_KIND_LIST:
        step.how = HOW_LIST;
        step.object = none_list(item->count);
        break;
    case HR_KIND_TUPLE:
        step.how = HOW_TUPLE;
        step.object = nones(item->count);
        break;
    case HR_KIND_SET:
        step.how = HOW_SET;
        step.object = PySet_New(NULL);
        break;
    case HR_KIND_FROZEN_SET:
        step.how = HOW_FROZEN_SET;
        step.parts = PyList_New(0);
        break;
    default:
        step.how = HOW_DICT;
        step.object = PyDict_New();
    }
    return push(thaw, step);
}

/* ---- typed values ---- */

int thaw_at(struct frozen *frozen, const struct hr_item *container, uint64_t index, struct hr_item *ret_item) {
    int r = hr_frozen_at(frozen->data, container, index, ret_item);
    if (r < 0) frozen_raise(r);
    return r < 0 ? -1 : 0;
}

static bool is_text(const struct hr_item *item, const char *text) {
    size_t length = strlen(text);
    return item->kind == HR_KIND_TEXT && item->count == length && memcmp(hr_item_bytes(item), text, length) == 0;
}

/* Returns how the container of a typed value is filled; HOW_TYPED: it is not a container. */
static enum how how_of(const struct hr_item *name) {
    static const struct {
        const char *name;
        enum how how;
    } table[] = {{"deque", HOW_APPEND},        {"defaultdict", HOW_ENTRIES}, {"Counter", HOW_ENTRIES},
                 {"OrderedDict", HOW_ENTRIES}, {"objects", HOW_ELEMENTS},    {"namespace", HOW_NAMESPACE}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (is_text(name, table[i].name)) return table[i].how;
    return HOW_TYPED;
}

static bool is_dict(struct frozen *frozen, const struct hr_item *item) {
    if (item->kind == HR_KIND_DICT) return true;
    const struct shape *shape = item->kind == HR_KIND_RECORD ? frozen_shape(frozen, item->shape) : NULL;
    return shape && shape->kind == HR_SHAPE_DICT;
}

/* 1: reads the extra and the items of a container; 0: it is not a container; -1: exception. */
static int find_parts(struct frozen *frozen, const struct hr_item *typed, enum how *ret_how, struct hr_item *ret_extra,
                      struct hr_item *ret_items) {
    struct hr_item name, parts;
    if (thaw_at(frozen, typed, 0, &name) < 0) return -1;
    *ret_how = how_of(&name);
    if (*ret_how == HOW_TYPED) return 0;
    if (thaw_at(frozen, typed, 1, &parts) < 0) return -1;
    if (parts.kind != HR_KIND_TUPLE || parts.count != 2) return thaw_refuse("a container is made of other parts");
    if (thaw_at(frozen, &parts, 0, ret_extra) < 0 || thaw_at(frozen, &parts, 1, ret_items) < 0) return -1;
    bool is_list = *ret_how == HOW_APPEND || *ret_how == HOW_ELEMENTS;
    bool is_right = is_list ? ret_items->kind == HR_KIND_LIST : is_dict(frozen, ret_items);
    if (PyErr_Occurred()) return -1;
    return is_right ? 1 : thaw_refuse("a container is made of other parts");
}

/* Returns 1 if an array of objects has one dimension, because only then it reads as a list; 0; or -1: exception. */
static int is_row(struct frozen *frozen, const struct hr_item *extra) {
    struct hr_item shape;
    if (extra->kind != HR_KIND_TUPLE || extra->count != 2) return thaw_refuse("a container is made of other parts");
    if (thaw_at(frozen, extra, 1, &shape) < 0) return -1;
    return shape.kind == HR_KIND_TUPLE && shape.count == 1;
}

int typed_parts(struct frozen *frozen, const struct hr_item *typed, struct hr_item *ret_extra,
                struct hr_item *ret_items) {
    enum how how;
    int r = find_parts(frozen, typed, &how, ret_extra, ret_items);
    if (r > 0 && how == HOW_ELEMENTS) return is_row(frozen, ret_extra);
    return r > 0 && how == HOW_NAMESPACE ? 0 : r;
}

static PyObject *new_shell(struct frozen *frozen, const struct hr_item *typed, const struct hr_item *extra,
                           uint64_t count) {
    struct hr_item name;
    if (thaw_at(frozen, typed, 0, &name) < 0) return NULL;
    PyObject *text = read_text(frozen, &name), *more = text ? thaw_item(frozen, extra, THAW_ALL) : NULL;
    PyObject *shell =
        more ? frozen_hook("shell", "OOKO", text, more, (unsigned long long)count, frozen->trusted ? Py_True : Py_False)
             : NULL;
    Py_XDECREF(text);
    Py_XDECREF(more);
    return shell;
}

static int begin_typed(struct thaw *thaw, const struct hr_item *item) {
    struct hr_item extra, items;
    struct step step = {.item = *item, .value = item->value, .next = 1};
    int r = find_parts(thaw->frozen, item, &step.how, &extra, &items);
    if (r < 0) return -1;
    if (r == 0) {
        step.how = HOW_TYPED;
        step.parts = PyList_New(0);
        return push(thaw, step);
    }
    step.item = items;
    step.next = 0;
    step.has_name = items.kind == HR_KIND_RECORD;
    step.shape = step.has_name ? frozen_shape(thaw->frozen, items.shape) : NULL;
    if (items.count > thaw->frozen->bytes || (step.shape && items.count != step.shape->field_count))
        return thaw_refuse("a container has more items than the array of its items");
    step.object = new_shell(thaw->frozen, item, &extra, items.count);
    if (step.object && step.how == HOW_ELEMENTS) {
        step.parts = PyObject_CallMethod(step.object, "reshape", "i", -1);
        if (!step.parts) Py_CLEAR(step.object);
    }
    return push(thaw, step);
}

/* ---- items ---- */

/* 0 if the array is damaged: reading it raises the exception. */
static uint64_t array_bytes(struct thaw *thaw, const struct hr_item *item) {
    struct hr_frozen_array array;
    return hr_frozen_array(thaw->frozen->data, item, &array) < 0 ? 0 : array.bytes;
}

/* For THAW_SMALL: copying a large array takes longer than what the caller does with it. */
static bool is_large_array(struct thaw *thaw, const struct hr_item *item) {
    return thaw->depth == THAW_SMALL && array_bytes(thaw, item) > LARGE_ARRAY_BYTES;
}

static PyObject *read_single(struct thaw *thaw, const struct hr_item *item) {
    PyObject *object = item->kind != HR_KIND_ARRAY  ? read_scalar(thaw->frozen, item)
                       : is_large_array(thaw, item) ? read_array(thaw->frozen, item)
                                                    : read_private_array(thaw->frozen, item, &thaw->memo);
    if (!object || map_add(&thaw->memo, item->value, (uintptr_t)object) < 0) {
        Py_XDECREF(object);
        return NULL;
    }
    return Py_NewRef(object); /* the memo has one too */
}

/* For THAW_RECORD: a value that is not an instance becomes the object that read_item returns. */
static bool is_left_to_views(struct thaw *thaw, const struct hr_item *item) {
    if (thaw->depth != THAW_RECORD) return false;
    if (item->kind != HR_KIND_RECORD) return true;
    const struct shape *shape = frozen_shape(thaw->frozen, item->shape);
    if (!shape) PyErr_Clear(); /* read_item raises it again */
    return !shape || shape->kind == HR_SHAPE_DICT;
}

/* Returns true for a value that is made at once, but must be the same object wherever it occurs. */
static bool is_single(const struct hr_item *item) {
    return item->kind == HR_KIND_ARRAY || item->kind == HR_KIND_BYTE_ARRAY || item->kind == HR_KIND_PICKLE;
}

static uint64_t cost_of(struct thaw *thaw, const struct hr_item *item) {
    uint64_t bytes;
    switch (item->kind) {
    case HR_KIND_TEXT:
    case HR_KIND_BYTES:
    case HR_KIND_BYTE_ARRAY:
    case HR_KIND_BIG_INT:
    case HR_KIND_PICKLE:
        return 1 + item->count / BYTES_PER_ITEM;
    case HR_KIND_ARRAY:
        bytes = array_bytes(thaw, item);
        return 1 + (bytes > LARGE_ARRAY_BYTES ? 0 : bytes / ARRAY_BYTES_PER_ITEM);
    default:
        return 1;
    }
}

/* For THAW_SMALL: counts an item. -1 with an exception if there are too many; a container is refused before it is
 * begun. */
static int spend(struct thaw *thaw, const struct hr_item *item) {
    uint64_t cost = cost_of(thaw, item), needed = cost + (has_items(item) ? item->count : 0);
    if (needed <= thaw->left) {
        thaw->left -= cost;
        return 0;
    }
    thaw->is_large = true;
    return thaw_refuse("a container is large");
}

PyObject *thaw_begin(struct thaw *thaw, const struct hr_item *item, uint64_t *ret_weight) {
    *ret_weight = 1;
    if (thaw->depth == THAW_SMALL && spend(thaw, item) < 0) return NULL;
    PyObject *object = is_single(item) ? NULL : read_scalar(thaw->frozen, item);
    if (object || PyErr_Occurred()) return object;
    if (is_left_to_views(thaw, item)) return read_item(thaw->frozen, item);
    object = find_known(thaw, item, ret_weight);
    if (object || PyErr_Occurred()) return object;
    if (is_single(item)) return read_single(thaw, item);
    switch (item->kind) {
    case HR_KIND_INVALID:
        thaw_refuse("a value has an unknown kind");
        return NULL;
    case HR_KIND_RECORD:
        begin_record(thaw, item);
        return NULL;
    case HR_KIND_TYPED:
        begin_typed(thaw, item);
        return NULL;
    default:
        begin_container(thaw, item);
        return NULL;
    }
}
