/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/view.h"

/* Reads many items at once: the memory of all of them is prefetched before the first one is read. */

enum { LIST_BLOCK = 256, DICT_BLOCK = 32, STAGES = 3 };

/* Makes a list or tuple of the indices or keys; arrays of numpy and torch are converted to Python numbers. New
 * reference. */
static PyObject *as_sequence(PyObject *many) {
    if (PyList_CheckExact(many) || PyTuple_CheckExact(many)) return Py_NewRef(many);
    bool has_tolist =
        PyObject_HasAttrString((PyObject *)Py_TYPE(many), "tolist"); /* a proxy object seems to have every attribute */
    PyObject *list = has_tolist ? PyObject_CallMethod(many, "tolist", NULL) : Py_NewRef(many);
    PyObject *sequence = list ? PySequence_Fast(list, "headrace: get_many takes a list, an array or a tensor") : NULL;
    Py_XDECREF(list);
    return sequence;
}

static Py_ssize_t index_of(struct view *view, PyObject *object) {
    if (PyBool_Check(object)) {
        PyErr_SetString(PyExc_TypeError,
                        "headrace: get_many takes indices, not a mask; numpy.flatnonzero(mask) has its indices");
        return -1;
    }
    Py_ssize_t index = PyNumber_AsSsize_t(object, PyExc_IndexError);
    if (index == -1 && PyErr_Occurred()) return -1;
    if (index < 0) index += view->count;
    if (index < 0 || index >= view->count) {
        PyErr_Format(PyExc_IndexError, "list index out of range: %R of %zd", object, view->count);
        return -1;
    }
    return view->first + index * view->stride;
}

static int read_block(struct view *view, PyObject *indices, Py_ssize_t from, Py_ssize_t count, PyObject *list) {
    uint64_t at[LIST_BLOCK];
    const hr_frozen *data = view->frozen->data;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (from + i >= PySequence_Fast_GET_SIZE(indices)) return frozen_result(HR_E_STATE);
        PyObject *object =
            Py_NewRef(PySequence_Fast_GET_ITEM(indices, from + i)); /* its __index__ may empty the list */
        Py_ssize_t index = index_of(view, object);
        Py_DECREF(object);
        if (index < 0) return -1;
        at[i] = (uint64_t)index;
        hr_frozen_prefetch(data, &view->item, at[i], 0);
    }
    for (Py_ssize_t i = 0; i < count; i++) hr_frozen_prefetch(data, &view->item, at[i], 1);
    for (Py_ssize_t i = 0; i < count; i++) {
        struct hr_item item;
        int r = hr_frozen_at(data, &view->item, at[i], &item);
        PyObject *object = r < 0 ? frozen_raise(r) : read_item(view->frozen, &item);
        if (!object) return -1;
        PyList_SET_ITEM(list, from + i, object);
    }
    return 0;
}

PyObject *list_get_many(PyObject *self, PyObject *many) {
    PyObject *indices = as_sequence(many);
    Py_ssize_t count = indices ? PySequence_Fast_GET_SIZE(indices) : 0;
    PyObject *list = indices ? PyList_New(count) : NULL;
    for (Py_ssize_t from = 0; list && from < count; from += LIST_BLOCK) {
        Py_ssize_t block = count - from < LIST_BLOCK ? count - from : LIST_BLOCK;
        if (read_block((struct view *)self, indices, from, block, list) < 0) Py_CLEAR(list);
    }
    Py_XDECREF(indices);
    return list;
}

/* ---- keys ---- */

struct block {
    struct key_room rooms[DICT_BLOCK];
    struct hr_key keys[DICT_BLOCK];
    uint64_t hashes[DICT_BLOCK];
    bool is_known[DICT_BLOCK];
};

/* Makes the keys that the library can look up, and prefetches their memory. */
static int prepare(struct view *view, PyObject **keys, Py_ssize_t count, struct block *block) {
    const hr_frozen *data = view->frozen->data;
    bool is_native = view->item.kind == HR_KIND_DICT && view->item.is_native, never;
    for (Py_ssize_t i = 0; i < count; i++)
        block->rooms[i].kept_count = 0; /* for all of them, because a key below may fail */
    for (Py_ssize_t i = 0; i < count; i++) {
        enum found found = is_native ? key_of(keys[i], &block->rooms[i], &block->keys[i], &never) : FOUND_NOT;
        if (found == FOUND_ERROR) return -1;
        block->is_known[i] = found == FOUND;
        if (found != FOUND) continue;
        block->hashes[i] = hr_frozen_hash(data, &block->keys[i]);
        hr_frozen_prefetch_hash(data, &view->item, block->hashes[i], 0);
    }
    for (int stage = 1; stage < STAGES; stage++)
        for (Py_ssize_t i = 0; i < count; i++)
            if (block->is_known[i]) hr_frozen_prefetch_hash(data, &view->item, block->hashes[i], stage);
    return 0;
}

static PyObject *look_up(struct view *view, PyObject *key, const struct block *block, Py_ssize_t i,
                         PyObject *otherwise) {
    uint64_t place;
    struct hr_item item;
    int r = block->is_known[i]
                ? hr_frozen_find_hashed(view->frozen->data, &view->item, &block->keys[i], block->hashes[i], &place)
                : view_find(view, key, &place);
    if (r < 0) return PyErr_Occurred() ? NULL : frozen_raise(r);
    if (r > 0) return view_value(view, place, &item) < 0 ? NULL : read_item(view->frozen, &item);
    return otherwise ? Py_NewRef(otherwise)
                     : PyObject_GetItem((PyObject *)view, key); /* 0 for a Counter, or KeyError */
}

static int look_up_block(struct view *view, PyObject **keys, Py_ssize_t count, PyObject *otherwise, PyObject *list,
                         Py_ssize_t from) {
    struct block block;
    int r = prepare(view, keys, count, &block);
    for (Py_ssize_t i = 0; r == 0 && i < count; i++) {
        PyObject *object = look_up(view, keys[i], &block, i, otherwise);
        if (object)
            PyList_SET_ITEM(list, from + i, object);
        else
            r = -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) key_done(&block.rooms[i]);
    return r;
}

PyObject *dict_get_many(PyObject *self, PyObject *arguments) {
    PyObject *many, *otherwise = NULL;
    if (!PyArg_ParseTuple(arguments, "O|O:get_many", &many, &otherwise)) return NULL;
    PyObject *sequence = as_sequence(many), *keys = sequence ? PySequence_Tuple(sequence) : NULL;
    Py_ssize_t count = keys ? PyTuple_GET_SIZE(keys) : 0;
    PyObject *list = keys ? PyList_New(count) : NULL;
    for (Py_ssize_t from = 0; list && from < count; from += DICT_BLOCK) {
        Py_ssize_t block = count - from < DICT_BLOCK ? count - from : DICT_BLOCK;
        PyObject **at = &PyTuple_GET_ITEM(keys, from);
        if (look_up_block((struct view *)self, at, block, otherwise, list, from) < 0) Py_CLEAR(list);
    }
    Py_XDECREF(sequence);
    Py_XDECREF(keys);
    return list;
}

/* ---- a column ---- */

/* Returns the field of a record, a dict or an instance. New reference. */
static PyObject *field_of(struct view *view, Py_ssize_t index, PyObject *name) {
    struct hr_item item, field;
    int r = hr_frozen_at(view->frozen->data, &view->item, (uint64_t)(view->first + index * view->stride), &item);
    if (r < 0) return frozen_raise(r);
    const struct shape *shape = item.kind == HR_KIND_RECORD ? frozen_shape(view->frozen, item.shape) : NULL;
    Py_ssize_t number = shape ? shape_find(shape, name) : -1;
    if (number >= 0) {
        r = hr_frozen_at(view->frozen->data, &item, (uint64_t)number, &field);
        return r < 0 ? frozen_raise(r) : read_item(view->frozen, &field);
    }
    PyObject *record = PyErr_Occurred() ? NULL : read_item(view->frozen, &item), *object = NULL;
    if (record) object = is_view(record) ? PyObject_GetItem(record, name) : PyObject_GetAttr(record, name);
    Py_XDECREF(record);
    return object;
}

PyObject *list_column(PyObject *self, PyObject *name) {
    struct view *view = (struct view *)self;
    if (!PyUnicode_Check(name))
        return PyErr_Format(PyExc_TypeError, "headrace: the name of a column has to be a str, not %R", name);
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && i < view->count; i++) {
        PyObject *object = field_of(view, i, name);
        if (!object || PyList_Append(list, object) < 0) Py_CLEAR(list);
        Py_XDECREF(object);
    }
    PyObject *column = list ? frozen_hook("column", "O", list) : NULL;
    Py_XDECREF(list);
    return column;
}
