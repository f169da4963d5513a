/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/thaw_step.h"

/*
 * Makes objects from frozen data with a work list: a step per container that is being built. A container is made empty
 * and added to the memo by its value before it is filled, so that items that refer to it find it.
 *
 * Frozen data may contain structures that Python never makes. Two of them are refused: a tuple that contains itself
 * through tuples alone, because hashing it would never end, and a key of nested tuples that has so many items in total
 * that hashing it would take too long.
 */

enum { SIGNAL_ITEMS = 4096 };

/* ---- putting ---- */

static int set_in_dict(PyObject *instance, PyObject *name, PyObject *object) {
    PyObject *dict = PyObject_GenericGetDict(instance, NULL);
    int r = dict ? PyDict_SetItem(dict, name, object) : -1;
    Py_XDECREF(dict);
    return r;
}

static int set_field(const struct step *step, uint64_t index, PyObject *object) {
    PyObject *name = PyTuple_GET_ITEM(step->shape->names, (Py_ssize_t)index), *place = step->shape->places[index];
    if (!place) return PyObject_GenericSetAttr(step->object, name, object);
    if (place != Py_None) return Py_TYPE(place)->tp_descr_set(place, step->object, object);
    return set_in_dict(step->object, name, object);
}

static int put_entry(const struct step *step, PyObject *key, PyObject *object) {
    if (step->how == HOW_DICT) return PyDict_SetItem(step->object, key, object);
    if (step->how == HOW_ENTRIES) return PyObject_SetItem(step->object, key, object);
    if (!PyUnicode_Check(key)) return thaw_refuse("the name of an attribute is not a text");
    return set_in_dict(step->object, key, object); /* whatever its name: __class__, say */
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

/* Adds the weight and nesting of a child: hashing the container visits each item as often as there are references to
 * it, and is recursive. */
static void weigh(struct step *step, uint64_t child) {
    uint32_t weight = (uint32_t)child, nesting = (uint32_t)((child & ~WEIGHT_EARLY) >> NESTING_BITS);
    if (child & WEIGHT_EARLY) step->is_early = true;
    step->weight = step->weight + weight > MOST_WEIGHT ? MOST_WEIGHT + 1 : step->weight + weight;
    if (nesting > step->nesting) step->nesting = nesting;
}

static uint64_t weight_of(const struct step *step) {
    bool by_value = step->how != HOW_INSTANCE || hashes_by_value(step->object);
    uint64_t early = step->is_early && by_value && (is_weighed(step) || step->how == HOW_TYPED) ? WEIGHT_EARLY : 0;
    return early | (is_weighed(step) ? (uint64_t)(step->nesting + 1) << NESTING_BITS | (step->weight + 1) : 1);
}

static bool is_too_heavy(uint64_t weight) {
    weight &= ~WEIGHT_EARLY;
    if ((uint32_t)weight <= MOST_WEIGHT && weight >> NESTING_BITS <= MOST_NESTING) return false;
    thaw_refuse("a key or a set's item is too large to be hashed");
    return true;
}

/* ---- objects that are hashed before they are complete ----
 *
 * An instance may be an item of a set, or a key of a dict, that it contains itself. If it hashes by its fields, it is
 * hashed before it has all of them. The hash of that time must be equal to the hash of the complete object. This is
 * checked, and not refused at once, because a tree whose nodes hash by their names and keep their children in sets and
 * their parent in an attribute is an ordinary dataset, which pickle restores too. */

static int refuse_early(PyObject *object, PyObject *error) {
    PyObject *why = error ? PyUnicode_FromFormat(" (%S)", error) : PyUnicode_FromString("");
    if (why)
        PyErr_Format(
            FrozenError,
            "headrace: a %s is an item of a set, or a key of a dict, that it contains itself, and its hash depends on "
            "fields that it does not have yet when it is put there%U; it cannot be thawed, let it hash by its identity",
            Py_TYPE(object)->tp_name, why);
    Py_XDECREF(why);
    return -1;
}

static PyObject *hash_of(PyObject *object) {
    PyObject *type, *error, *trace;
    Py_hash_t hash = PyObject_Hash(object);
    if (hash != -1) return PyLong_FromSsize_t(hash);
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
    PyErr_Fetch(&type, &error, &trace);
    refuse_early(object, error);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return NULL;
}

static int note_hash(struct thaw *thaw, PyObject *object) {
    if (!thaw->hashed && !(thaw->hashed = PyList_New(0))) return -1;
    PyObject *hash = hash_of(object), *pair = hash ? PyTuple_Pack(2, object, hash) : NULL;
    int r = pair ? PyList_Append(thaw->hashed, pair) : -1;
    Py_XDECREF(hash);
    Py_XDECREF(pair);
    return r;
}

/* CPython 3.14 stores the hash of a tuple in it, which may be the hash of the incomplete tuple. */
static void forget_hash(PyObject *object) {
#ifdef HEADRACE_TUPLES_KEEP_HASHES
    if (PyTuple_Check(object)) ((PyTupleObject *)object)->ob_hash = -1;
#else
    (void)object;
#endif
}

static void forget_hashes(struct thaw *thaw, PyObject *root) {
    forget_hash(root); /* a record is not in the memo */
    for (size_t i = 0; i < thaw->memo.room; i++)
        if (thaw->memo.entries[i].value > 1) forget_hash((PyObject *)(uintptr_t)thaw->memo.entries[i].value);
}

/* Checks, when all objects are complete, that each still has the hash with which it was put. */
static int check_hashes(struct thaw *thaw, PyObject *root) {
    int r = 1;
    if (thaw->hashed) forget_hashes(thaw, root);
    for (Py_ssize_t i = 0; r > 0 && thaw->hashed && i < PyList_GET_SIZE(thaw->hashed); i++) {
        PyObject *pair = PyList_GET_ITEM(thaw->hashed, i), *object = PyTuple_GET_ITEM(pair, 0);
        PyObject *hash = hash_of(object);
        r = hash ? PyObject_RichCompareBool(hash, PyTuple_GET_ITEM(pair, 1), Py_EQ) : -1;
        if (r == 0) refuse_early(object, NULL);
        Py_XDECREF(hash);
    }
    Py_CLEAR(thaw->hashed);
    return r > 0 ? 0 : -1;
}

/* Checks that an item of a set, or a key, can be hashed. */
static int check_hashable(struct thaw *thaw, PyObject *object, uint64_t weight) {
    if (is_too_heavy(weight)) return -1;
    return weight & WEIGHT_EARLY ? note_hash(thaw, object) : 0;
}

/* ---- putting an item ---- */

static int put_in_dict(struct thaw *thaw, struct step *step, PyObject *object, uint64_t weight) {
    if (step->has_name)
        return put_entry(step, PyTuple_GET_ITEM(step->shape->names, (Py_ssize_t)step->next - 1), object);
    if (!step->key) {
        if (check_hashable(thaw, object, weight) < 0) return -1;
        step->key = Py_NewRef(object);
        return 0;
    }
    PyObject *key = step->key;
    step->key = NULL;
    int r = put_entry(step, key, object);
    Py_DECREF(key);
    return r;
}

/* Python cannot have made a dict with such a key, so the frozen data was made by another program. */
static int hashed(int result) {
    if (result >= 0 || !PyErr_ExceptionMatches(PyExc_TypeError)) return result;
    PyErr_Clear();
    return thaw_refuse("a key or a set's item has no hash");
}

/* Puts the item that the step asked for last. */
static int put(struct thaw *thaw, PyObject *object, uint64_t weight) {
    struct step *step = &thaw->steps[thaw->count - 1];
    uint64_t index = step->next - 1;
    weigh(step, weight);
    switch (step->how) {
    case HOW_LIST:
        return PyList_SetItem(step->object, (Py_ssize_t)index, Py_NewRef(object));
    case HOW_TUPLE:
        set_tuple_item(step->object, index, object);
        return 0;
    case HOW_SET:
        if (check_hashable(thaw, object, weight) < 0) return -1;
        return hashed(PySet_Add(step->object, object));
    case HOW_FROZEN_SET:
        if (check_hashable(thaw, object, weight) < 0) return -1;
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
        return hashed(put_in_dict(thaw, step, object, weight));
    }
    return -1;
}

/* ---- the work ---- */

/* Returns the next item of the step: 1; 0: the end. A dict's entry comes as its key, then as its value. */
static int next_item(struct thaw *thaw, struct step *step, struct hr_item *ret_item) {
    bool is_value = step->key != NULL;
    uint64_t index = is_value ? step->next - 1 : step->next;
    if (!is_value && index >= step->item.count) return 0;
    if (!is_value) step->next++;
    int r = is_value ? hr_frozen_entry(thaw->frozen->data, &step->item, index, ret_item)
                     : hr_frozen_at(thaw->frozen->data, &step->item, index, ret_item);
    if (r < 0) frozen_raise(r);
    return r < 0 ? -1 : 1;
}

/* 0: done; 1: a step was pushed. */
static int advance(struct thaw *thaw) {
    size_t top = thaw->count - 1;
    for (;;) {
        struct hr_item item;
        uint64_t weight;
        struct step *step = &thaw->steps[top];
        if (++thaw->done % SIGNAL_ITEMS == 0 && PyErr_CheckSignals() < 0) return -1;
        int r = next_item(thaw, step, &item);
        if (r <= 0) return r;
        PyObject *object = thaw_begin(thaw, &item, &weight);
        if (!object) return PyErr_Occurred() ? -1 : 1;
        r = put(thaw, object, weight);
        Py_DECREF(object);
        if (r < 0) return -1;
    }
}

static PyObject *make_typed(struct thaw *thaw, const struct step *step) {
    struct hr_item name;
    if (thaw_at(thaw->frozen, &step->item, 0, &name) < 0) return NULL;
    if (name.kind != HR_KIND_TEXT) return thaw_refuse("the name of a typed value is not a text"), NULL;
    PyObject *text = read_text(thaw->frozen, &name);
    PyObject *object = text ? frozen_hook("from_parts", "OOO", text, PyList_GET_ITEM(step->parts, 0),
                                          thaw->frozen->trusted ? Py_True : Py_False)
                            : NULL;
    Py_XDECREF(text);
    return object;
}

static PyObject *new_frozen_set(PyObject *items) {
    PyObject *set = PyFrozenSet_New(items);
    if (!set) hashed(-1);
    return set;
}

/* Pops the step on top and returns its object. New reference. */
static PyObject *finish(struct thaw *thaw) {
    struct step *step = &thaw->steps[thaw->count - 1];
    PyObject *object = step->how == HOW_FROZEN_SET ? new_frozen_set(step->parts)
                       : step->how == HOW_TYPED    ? make_typed(thaw, step)
                                                   : Py_NewRef(step->object);
    uint64_t *known = object ? map_find(&thaw->memo, step->value) : NULL;
    if (known && *known == 1) *known = (uintptr_t)Py_NewRef(object);
    bool may_be_met = thaw->count > 1 || thaw->is_kept;
    if (object && may_be_met && is_weighed(step) && map_add(&thaw->weights, step->value, weight_of(step)) < 0)
        Py_CLEAR(object);
    thaw_drop(step);
    return object;
}

static PyObject *run(struct thaw *thaw, const struct hr_item *item, uint64_t *ret_weight) {
    uint64_t weight;
    PyObject *object = thaw_begin(thaw, item, &weight);
    *ret_weight = 1;
    if (object || PyErr_Occurred()) return object;
    for (;;) {
        int r = advance(thaw);
        if (r < 0) return NULL;
        if (r > 0) continue;
        *ret_weight = weight = weight_of(&thaw->steps[thaw->count - 1]);
        object = finish(thaw);
        thaw->count--;
        if (!object || thaw->count == 0) return object;
        r = put(thaw, object, weight);
        Py_DECREF(object);
        if (r < 0) return NULL;
    }
}

static void thaw_close(struct thaw *thaw) {
    while (thaw->count) thaw_drop(&thaw->steps[--thaw->count]);
    if (thaw->steps != thaw->first) PyMem_Free(thaw->steps);
    for (size_t i = 0; i < thaw->memo.room; i++)
        if (thaw->memo.entries[i].value > 1) Py_DECREF((PyObject *)(uintptr_t)thaw->memo.entries[i].value);
    map_free(&thaw->memo);
    map_free(&thaw->weights);
    Py_CLEAR(thaw->hashed);
}

static PyObject *thaw_one(struct thaw *thaw, const struct hr_item *item) {
    uint64_t weight;
    PyObject *object = run(thaw, item, &weight);
    if (object && thaw->depth == THAW_KEY && is_too_heavy(weight)) Py_CLEAR(object);
    return object;
}

PyObject *thaw_item(struct frozen *frozen, const struct hr_item *item, enum depth depth) {
    struct thaw thaw = {.frozen = frozen, .depth = depth, .steps = thaw.first, .room = FIRST_STEPS};
    if (Py_EnterRecursiveCall(" while reading frozen data")) return NULL;
    PyObject *object = thaw_one(&thaw, item);
    if (object && check_hashes(&thaw, object) < 0) Py_CLEAR(object);
    Py_LeaveRecursiveCall();
    thaw_close(&thaw);
    return object;
}

PyObject *thaw_small(struct frozen *frozen, const struct hr_item *item, uint32_t most) {
    struct thaw thaw = {.frozen = frozen, .depth = THAW_SMALL, .steps = thaw.first, .room = FIRST_STEPS, .left = most};
    if (Py_EnterRecursiveCall(" while reading frozen data")) return NULL;
    PyObject *object = thaw_one(&thaw, item);
    if (object && check_hashes(&thaw, object) < 0) Py_CLEAR(object);
    if (!object && thaw.is_large) PyErr_Clear();
    Py_LeaveRecursiveCall();
    thaw_close(&thaw);
    return object;
}

PyObject *thaw_many(struct frozen *frozen, thaw_next *next, void *state, enum depth depth) {
    struct thaw thaw = {.frozen = frozen, .depth = depth, .steps = thaw.first, .room = FIRST_STEPS, .is_kept = true};
    struct hr_item item;
    int r;
    if (Py_EnterRecursiveCall(" while reading frozen data")) return NULL;
    PyObject *list = PyList_New(0);
    while (list && (r = next(state, &item)) != 0) {
        PyObject *object = r > 0 ? thaw_one(&thaw, &item) : NULL;
        if (!object || PyList_Append(list, object) < 0) Py_CLEAR(list);
        Py_XDECREF(object);
    }
    if (list && check_hashes(&thaw, list) < 0) Py_CLEAR(list);
    Py_LeaveRecursiveCall();
    thaw_close(&thaw);
    return list;
}
