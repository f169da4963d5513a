/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/freeze.h"
#include "frozen/opened.h"
#include "frozen/view.h"

/*
 * Freezes objects that are not built-in containers, according to their class. headrace.frozen.types.hooks.classify
 * returns a tuple that describes a class:
 *
 *     ("object", "module:Class", slots)       a plain class; slots: names and descriptors, (name, descriptor, ...)
 *     ("tuple", "module:Class", names, dict)  a named tuple; dict: instances have a __dict__
 *     ("typed", name, to_parts)               to_parts(object) -> the value that describes it
 *     ("unknown", why)
 */

PyObject *freeze_class(struct freezer *freezer, PyTypeObject *type) {
    PyObject *known = PyDict_GetItemWithError(freezer->classes, (PyObject *)type);
    if (known || PyErr_Occurred()) return known;
    known = frozen_hook("classify", "O", type);
    int r = known ? PyDict_SetItem(freezer->classes, (PyObject *)type, known) : -1;
    Py_XDECREF(known);
    return r < 0 ? NULL : known; /* the dict has it */
}

static bool is_of(PyObject *known, const char *kind) {
    return PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(known, 0), kind) == 0;
}

/* ---- instances ---- */

/* The attributes of an instance, except its slots. While it is used no code may run that could change them, so no
 * object that the garbage collector tracks may be created. */
struct attributes {
    PyObject *object;
    PyObject *dict; /* owned; NULL: they are stored in the object, or it has no attributes */
    Py_ssize_t at;
};

static struct attributes attributes_of(PyObject *object) {
    return (struct attributes){.object = object, .dict = has_inline(object) ? NULL : held_dict(object)};
}

static bool next_attribute(struct attributes *attributes, PyObject **ret_name, PyObject **ret_value) {
    if (attributes->dict) return PyDict_Next(attributes->dict, &attributes->at, ret_name, ret_value);
    return inline_at(attributes->object, attributes->at++, ret_name, ret_value);
}

bool has_attributes(PyObject *object) {
    PyObject *name, *value;
    struct attributes attributes = attributes_of(object);
    bool has = next_attribute(&attributes, &name, &value);
    Py_XDECREF(attributes.dict);
    return has;
}

static int add(PyObject *names, PyObject *values, PyObject *name, PyObject *value) {
    return PyList_Append(names, name) < 0 || PyList_Append(values, value) < 0 ? -1 : 1;
}

static int add_slots(PyObject *slots, PyObject *object, PyObject *names, PyObject *values) {
    int r = 1;
    for (Py_ssize_t i = 0; r > 0 && i + 1 < PyTuple_GET_SIZE(slots); i += 2) {
        PyObject *descriptor = PyTuple_GET_ITEM(slots, i + 1);
        PyObject *value = Py_TYPE(descriptor)->tp_descr_get(descriptor, object, (PyObject *)Py_TYPE(object));
        if (value)
            r = add(names, values, PyTuple_GET_ITEM(slots, i), value);
        else if (PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Clear(); /* it was never set */
        else
            r = -1;
        Py_XDECREF(value);
    }
    return r;
}

static bool is_name(PyObject *name, PyObject *other) {
    return name == other || (PyUnicode_CheckExact(name) && PyUnicode_Compare(name, other) == 0);
}

static bool is_slot(PyObject *slots, PyObject *name) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(slots); i += 2)
        if (is_name(PyTuple_GET_ITEM(slots, i), name)) return true;
    return false;
}

/* 0: a name is not a text, or is also the name of a slot. */
static int add_attributes(PyObject *slots, PyObject *object, PyObject *names, PyObject *values) {
    PyObject *name, *value;
    struct attributes attributes = attributes_of(object);
    int r = 1;
    while (r > 0 && next_attribute(&attributes, &name, &value))
        r = PyUnicode_CheckExact(name) && !is_slot(slots, name) ? add(names, values, name, value) : 0;
    Py_XDECREF(attributes.dict);
    return r;
}

int freeze_fields(PyObject *known, PyObject *object, PyObject **ret_names, PyObject **ret_values) {
    PyObject *names = PyList_New(0), *values = PyList_New(0), *slots = PyTuple_GET_ITEM(known, 2);
    int r = names && values ? add_slots(slots, object, names, values) : -1;
    if (r > 0) r = add_attributes(slots, object, names, values);
    *ret_names = r > 0 ? PyList_AsTuple(names) : NULL;
    *ret_values = r > 0 ? PyList_AsTuple(values) : NULL;
    if (r > 0 && (!*ret_names || !*ret_values)) r = -1;
    Py_XDECREF(names);
    Py_XDECREF(values);
    return r;
}

/* Returns the number of slots that are set if they are the first names; -1: they are not; -2: exception. */
static Py_ssize_t match_slots(PyObject *slots, PyObject *object, PyObject *names, PyObject *values) {
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i + 1 < PyTuple_GET_SIZE(slots); i += 2) {
        bool has_name =
            count < PyTuple_GET_SIZE(names) && is_name(PyTuple_GET_ITEM(names, count), PyTuple_GET_ITEM(slots, i));
        PyObject *descriptor = PyTuple_GET_ITEM(slots, i + 1);
        PyObject *value = Py_TYPE(descriptor)->tp_descr_get(descriptor, object, (PyObject *)Py_TYPE(object));
        if (!value && !PyErr_ExceptionMatches(PyExc_AttributeError)) return -2;
        if (!value) PyErr_Clear(); /* it was never set */
        if (value && has_name && values)
            PyTuple_SET_ITEM(values, count, value);
        else
            Py_XDECREF(value);
        if ((value != NULL) != has_name) return -1;
        count += has_name;
    }
    return count;
}

static bool match_attributes(PyObject *object, PyObject *names, Py_ssize_t first, PyObject *values) {
    PyObject *name, *value;
    struct attributes attributes = attributes_of(object);
    Py_ssize_t at = first, count = PyTuple_GET_SIZE(names);
    while (next_attribute(&attributes, &name, &value)) {
        if (at == count || !is_name(name, PyTuple_GET_ITEM(names, at))) {
            at = -1;
            break;
        }
        if (values) PyTuple_SET_ITEM(values, at, Py_NewRef(value));
        at++;
    }
    Py_XDECREF(attributes.dict);
    return at == count;
}

int freeze_match(PyObject *known, PyObject *object, PyObject *names, PyObject **ret_values) {
    PyObject *values = ret_values ? PyTuple_New(PyTuple_GET_SIZE(names)) : NULL;
    if (ret_values && !values) return -1;
    Py_ssize_t first = match_slots(PyTuple_GET_ITEM(known, 2), object, names, values);
    int r = first == -2 ? -1 : first >= 0 && match_attributes(object, names, first, values);
    if (r <= 0) Py_CLEAR(values);
    if (ret_values) *ret_values = values;
    return r;
}

/* Most instances of a class have the same fields as the last one. */
static int find_fields(struct freezer *freezer, PyObject *known, PyObject *object, PyObject **ret_names,
                       PyObject **ret_values) {
    PyObject *type = (PyObject *)Py_TYPE(object), *names = PyDict_GetItemWithError(freezer->fields, type);
    int r = names ? freeze_match(known, object, names, ret_values) : PyErr_Occurred() ? -1 : 0;
    if (r > 0) *ret_names = Py_NewRef(names);
    if (r) return r;
    r = freeze_fields(known, object, ret_names, ret_values);
    return r > 0 && PyDict_SetItem(freezer->fields, type, *ret_names) < 0 ? -1 : r;
}

/* 1: started; 0: the shape cannot be made. */
static int begin_fields(struct freezer *freezer, PyObject *object, PyObject *known, enum hr_shape_kind kind,
                        PyObject *names, PyObject *values, hr_value *ret_value) {
    uint32_t shape;
    uint64_t before = hr_builder_bytes(freezer->builder);
    int r = freeze_shape(freezer, (PyObject *)Py_TYPE(object), PyTuple_GET_ITEM(known, 1), kind, names, &shape);
    if (r <= 0) return r;
    if (frozen_result(hr_builder_record(freezer->builder, shape, ret_value)) < 0) return -1;
    freeze_count(freezer, HR_KIND_RECORD, before);
    struct freeze_frame frame = {.kind = FRAME_FIELDS, .object = values, .names = names, .value = *ret_value};
    frame.is_object = true;
    frame.count = (uint64_t)PyTuple_GET_SIZE(names);
    return freeze_push(freezer, frame) < 0 ? -1 : 1;
}

static int begin_instance(struct freezer *freezer, PyObject *object, PyObject *known, hr_value *ret_value) {
    PyObject *names = NULL, *values = NULL;
    int r = find_fields(freezer, known, object, &names, &values);
    if (r > 0) r = begin_fields(freezer, object, known, HR_SHAPE_OBJECT, names, values, ret_value);
    Py_XDECREF(names);
    Py_XDECREF(values);
    return r;
}

static int begin_named_tuple(struct freezer *freezer, PyObject *object, PyObject *known, hr_value *ret_value) {
    PyObject *names = PyTuple_GET_ITEM(known, 2);
    if (PyTuple_GET_SIZE(object) != PyTuple_GET_SIZE(names)) return 0;
    if (has_attributes(object)) return 0;
    PyObject *values = PyTuple_GetSlice(object, 0, PyTuple_GET_SIZE(object));
    int r = values ? begin_fields(freezer, object, known, HR_SHAPE_TUPLE, names, values, ret_value) : -1;
    Py_XDECREF(values);
    return r;
}

/* ---- typed values ---- */

static int begin_typed(struct freezer *freezer, PyObject *object, PyObject *known, bool is_shared,
                       hr_value *ret_value) {
    hr_value name, inner;
    PyObject *parts = PyObject_CallOneArg(PyTuple_GET_ITEM(known, 2), object);
    if (!parts || parts == Py_None) {
        Py_XDECREF(parts);
        return parts ? 0 : -1;
    }
    uint64_t before = hr_builder_bytes(freezer->builder);
    int r = freeze_text(freezer, PyTuple_GET_ITEM(known, 1), &name);
    if (r == 0) r = frozen_result(hr_builder_container(freezer->builder, HR_KIND_TYPED, 2, ret_value));
    if (r == 0 && is_shared)
        r = freeze_memo(freezer, object, *ret_value); /* before its parts, because they may refer to it */
    freeze_count(freezer, HR_KIND_TYPED, before);
    size_t depth = freezer->frame_count;
    if (r == 0) r = freeze_object(freezer, parts, false, &inner);
    if (r == 0 && freezer->frame_count > depth) freezer->frames[depth].is_hidden = true;
    if (r == 0) r = frozen_result(hr_builder_put(freezer->builder, *ret_value, 0, name));
    if (r == 0) r = frozen_result(hr_builder_put(freezer->builder, *ret_value, 1, inner));
    Py_DECREF(parts);
    return r < 0 ? -1 : 1;
}

/* A view of other frozen data is frozen like the object from which it was made. */
static int begin_view(struct freezer *freezer, PyObject *view, hr_value *ret_value) {
    PyObject *ordinary = core_thaw(NULL, view);
    if (ordinary &&
        !(core.array_type && core.tensor_type)) { /* it may contain the first arrays that this process has met */
        PyObject *none = frozen_hook("know_arrays", "");
        if (!none) Py_CLEAR(ordinary);
        Py_XDECREF(none);
    }
    int r = ordinary ? freeze_object(freezer, ordinary, false, ret_value) : -1;
    Py_XDECREF(ordinary);
    return r < 0 ? -1 : 1;
}

/* ---- anything else ---- */

static int refuse(struct freezer *freezer, PyObject *object, PyObject *known) {
    PyObject *why = is_of(known, "unknown") ? PyTuple_GET_ITEM(known, 1) : NULL;
    PyObject *path = freeze_path(freezer), *error = PyErr_Occurred() ? NULL : Py_None;
    if (path && error) {
        PyObject *refusal = frozen_hook("refusal", "OO", object, why ? why : Py_None);
        if (refusal)
            PyErr_Format(PyExc_TypeError,
                         "headrace.freeze: %U is a %s, which cannot be frozen: %U" HR_HELP("cannot-freeze"), path,
                         Py_TYPE(object)->tp_name, refusal);
        Py_XDECREF(refusal);
    }
    Py_XDECREF(path);
    return -1;
}

static int keep_pickle(struct freezer *freezer, PyObject *object, hr_value *ret_value) {
    PyObject *path = freeze_path(freezer);
    PyObject *pickle = path ? frozen_hook("dump", "OO", object, path) : NULL;
    int r = pickle ? PyList_Append(freezer->pickles, path) : -1;
    uint64_t before = hr_builder_bytes(freezer->builder);
    if (r == 0)
        r = frozen_result(hr_builder_bytes_of(freezer->builder, HR_KIND_PICKLE, PyBytes_AS_STRING(pickle),
                                              (uint64_t)PyBytes_GET_SIZE(pickle), ret_value));
    if (r == 0) freeze_count(freezer, HR_KIND_PICKLE, before);
    Py_XDECREF(path);
    Py_XDECREF(pickle);
    return r;
}

int freeze_other(struct freezer *freezer, PyObject *object, bool is_shared, hr_value *ret_value) {
    if (is_view(object)) return begin_view(freezer, object, ret_value) < 0 ? -1 : 0;
    PyObject *known = Py_XNewRef(freeze_class(freezer, Py_TYPE(object)));
    if (!known) return -1;
    int r = is_of(known, "object")  ? begin_instance(freezer, object, known, ret_value)
            : is_of(known, "tuple") ? begin_named_tuple(freezer, object, known, ret_value)
            : is_of(known, "typed") ? begin_typed(freezer, object, known, is_shared, ret_value)
                                    : 0;
    if (r == 0) r = freezer->keeps_pickles ? keep_pickle(freezer, object, ret_value) : refuse(freezer, object, known);
    Py_DECREF(known);
    return r < 0 ? -1 : 0;
}
