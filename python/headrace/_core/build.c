/* SPDX-License-Identifier: Apache-2.0 */
#include "build.h"

/*
 * Objects out of an image, by a work list: a step per container that is being built. A container is made empty and is
 * known by its value before it is filled, so that what refers back to it finds it.
 *
 * An image may hold what Python never makes. A tuple that holds itself through tuples alone (hashing it would never
 * end) is refused, and so is a key of tuples in tuples that unfolds to more items than anybody could hash in time.
 */

enum { SIGNAL_ITEMS = 4096 };

/* ---- putting ---- */

static int set_field(const struct step *step, uint64_t index, PyObject *object) {
    PyObject *name = PyTuple_GET_ITEM(step->shape->names, (Py_ssize_t)index), *place = step->shape->places[index];
    if (!place) return PyObject_GenericSetAttr(step->object, name, object);
    if (place != Py_None) return Py_TYPE(place)->tp_descr_set(place, step->object, object);
    PyObject *dict = PyObject_GenericGetDict(step->object, NULL);
    int r = dict ? PyDict_SetItem(dict, name, object) : -1;
    Py_XDECREF(dict);
    return r;
}

static int put_entry(const struct step *step, PyObject *key, PyObject *object) {
    if (step->how == HOW_DICT) return PyDict_SetItem(step->object, key, object);
    if (step->how == HOW_ENTRIES) return PyObject_SetItem(step->object, key, object);
    if (!PyUnicode_Check(key)) return build_refuse("an attribute's name is no text");
    return PyObject_SetAttr(step->object, key, object);
}

static void set_tuple_item(PyObject *tuple, uint64_t index, PyObject *object) {
    PyObject *old = PyTuple_GET_ITEM(tuple, (Py_ssize_t)index);
    PyTuple_SET_ITEM(tuple, (Py_ssize_t)index, Py_NewRef(object));
    Py_DECREF(old);
}

static int append(PyObject *deque, PyObject *object) {
    PyObject *name = PyUnicode_InternFromString("append");
    PyObject *answer = name ? PyObject_CallMethodOneArg(deque, name, object) : NULL;
    Py_XDECREF(name);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

static int put_in_dict(struct step *step, PyObject *object, uint64_t weight) {
    if (step->has_name)
        return put_entry(step, PyTuple_GET_ITEM(step->shape->names, (Py_ssize_t)step->next - 1), object);
    if (!step->key) {
        if (weight > MOST_WEIGHT) return build_refuse("a key unfolds to too many items");
        step->key = Py_NewRef(object);
        return 0;
    }
    PyObject *key = step->key;
    step->key = NULL;
    int r = put_entry(step, key, object);
    Py_DECREF(key);
    return r;
}

/* Python made no dict with such a key: somebody else made the image. */
static int hashed(int result) {
    if (result >= 0 || !PyErr_ExceptionMatches(PyExc_TypeError)) return result;
    PyErr_Clear();
    return build_refuse("a key or a set's item has no hash");
}

/* Puts the item that was asked for last. */
static int put(struct step *step, PyObject *object, uint64_t weight) {
    uint64_t index = step->next - 1;
    step->weight = step->weight + weight > MOST_WEIGHT ? MOST_WEIGHT + 1 : step->weight + weight;
    switch (step->how) {
    case HOW_LIST:
        return PyList_SetItem(step->object, (Py_ssize_t)index, Py_NewRef(object));
    case HOW_TUPLE:
        set_tuple_item(step->object, index, object);
        return 0;
    case HOW_SET:
        if (weight > MOST_WEIGHT) return build_refuse("a set's item unfolds to too many items");
        return hashed(PySet_Add(step->object, object));
    case HOW_FROZEN_SET:
        if (weight > MOST_WEIGHT) return build_refuse("a set's item unfolds to too many items");
        return PyList_Append(step->parts, object);
    case HOW_TYPED:
        return PyList_Append(step->parts, object);
    case HOW_INSTANCE:
        return set_field(step, index, object);
    case HOW_APPEND:
        return append(step->object, object);
    case HOW_ELEMENTS:
        return PySequence_SetItem(step->parts, (Py_ssize_t)index, object);
    case HOW_DICT:
    case HOW_ENTRIES:
    case HOW_NAMESPACE:
        return hashed(put_in_dict(step, object, weight));
    }
    return -1;
}

/* ---- the work ---- */

/* The next item of the step: 1; 0: there is none left. A dict's entry comes as its key, then as its value. */
static int next_item(struct build *build, struct step *step, struct hr_item *ret_item) {
    bool is_value = step->key != NULL;
    uint64_t index = is_value ? step->next - 1 : step->next;
    if (!is_value && index >= step->item.count) return 0;
    if (!is_value) step->next++;
    int r = is_value ? hr_store_entry(build->image->store, &step->item, index, ret_item)
                     : hr_store_at(build->image->store, &step->item, index, ret_item);
    if (r < 0) store_raise(r);
    return r < 0 ? -1 : 1;
}

/* 0: done; 1: a step was begun. */
static int advance(struct build *build) {
    size_t top = build->count - 1;
    for (;;) {
        struct hr_item item;
        uint64_t weight;
        struct step *step = &build->steps[top];
        if (++build->done % SIGNAL_ITEMS == 0 && PyErr_CheckSignals() < 0) return -1;
        int r = next_item(build, step, &item);
        if (r <= 0) return r;
        PyObject *object = build_begin(build, &item, &weight);
        if (!object) return PyErr_Occurred() ? -1 : 1;
        r = put(&build->steps[top], object, weight);
        Py_DECREF(object);
        if (r < 0) return -1;
    }
}

static PyObject *make_typed(struct build *build, const struct step *step) {
    struct hr_item name;
    if (build_at(build->image, &step->item, 0, &name) < 0) return NULL;
    if (name.kind != HR_KIND_TEXT) return build_refuse("a value's name is no text"), NULL;
    PyObject *text = read_text(build->image, &name);
    PyObject *object = text ? store_hook("from_parts", "OOO", text, PyList_GET_ITEM(step->parts, 0),
                                         build->image->trusted ? Py_True : Py_False)
                            : NULL;
    Py_XDECREF(text);
    return object;
}

static PyObject *new_frozen_set(PyObject *items) {
    PyObject *set = PyFrozenSet_New(items);
    if (!set) hashed(-1);
    return set;
}

/* The object of the step on top. New reference. */
static PyObject *finish(struct build *build) {
    struct step *step = &build->steps[build->count - 1];
    PyObject *object = step->how == HOW_FROZEN_SET ? new_frozen_set(step->parts)
                       : step->how == HOW_TYPED    ? make_typed(build, step)
                                                   : Py_NewRef(step->object);
    uint64_t *known = object ? map_find(&build->memo, step->value) : NULL;
    if (known && *known == 1) *known = (uintptr_t)Py_NewRef(object);
    if (object && is_immutable(step) && step->how != HOW_TYPED &&
        map_add(&build->weights, step->value, step->weight + 1) < 0)
        Py_CLEAR(object);
    build_drop(step);
    return object;
}

static PyObject *run(struct build *build, const struct hr_item *item) {
    uint64_t weight;
    PyObject *object = build_begin(build, item, &weight);
    if (object || PyErr_Occurred()) return object;
    for (;;) {
        int r = advance(build);
        if (r < 0) return NULL;
        if (r > 0) continue;
        weight = build->steps[build->count - 1].weight + 1;
        if (!is_immutable(&build->steps[build->count - 1])) weight = 1;
        object = finish(build);
        build->count--;
        if (!object || build->count == 0) return object;
        r = put(&build->steps[build->count - 1], object, weight);
        Py_DECREF(object);
        if (r < 0) return NULL;
    }
}

PyObject *build(struct image *image, const struct hr_item *item, enum depth depth) {
    struct build build = {.image = image, .depth = depth, .room = FIRST_STEPS};
    build.steps = build.first;
    if (Py_EnterRecursiveCall(" while reading frozen data")) return NULL;
    PyObject *object = run(&build, item);
    Py_LeaveRecursiveCall();
    while (build.count) build_drop(&build.steps[--build.count]);
    if (build.steps != build.first) PyMem_Free(build.steps);
    for (size_t i = 0; i < build.memo.room; i++)
        if (build.memo.entries[i].value > 1) Py_DECREF((PyObject *)(uintptr_t)build.memo.entries[i].value);
    map_free(&build.memo);
    map_free(&build.weights);
    return object;
}
