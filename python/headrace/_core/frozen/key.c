/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a Python key into a key of frozen data. */
#include "exchange/arrays.h"
#include "frozen/view.h"

#include <string.h>

static enum found key_of_text(PyObject *text, struct key_room *room, struct hr_key *ret_key) {
    size_t bytes = text_bytes(text);
    ret_key->kind = HR_KIND_TEXT;
    ret_key->count = bytes;
    ret_key->bytes = PyUnicode_DATA(text);
    if (PyUnicode_IS_ASCII(text)) return FOUND;
    unsigned char *room_bytes = room->bytes + room->used;
    if (bytes > KEY_SMALL_BYTES - room->used) {
        if (room->kept_count == KEY_MAX_KEPT) return FOUND_NOT; /* many long texts in one tuple: Python looks it up */
        PyObject *kept = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
        if (!kept) return FOUND_ERROR;
        room->kept[room->kept_count++] = kept;
        room_bytes = (unsigned char *)PyBytes_AS_STRING(kept);
    } else {
        room->used += bytes;
    }
    text_write(text, room_bytes);
    ret_key->bytes = room_bytes;
    return FOUND;
}

static void set_float(double real, struct hr_key *ret_key) {
    ret_key->kind = HR_KIND_FLOAT;
    ret_key->real = real;
}

/* An int of more than 64 bits is equal to a float, or to no key that the library can look up. */
static enum found key_of_large(PyObject *number, struct hr_key *ret_key, bool *ret_never) {
    double real = PyLong_AsDouble(number);
    *ret_never = true;
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return FOUND_NOT;
    }
    PyObject *back = PyLong_FromDouble(real);
    int r = back ? PyObject_RichCompareBool(back, number, Py_EQ) : -1;
    Py_XDECREF(back);
    if (r > 0) set_float(real, ret_key);
    return r < 0 ? FOUND_ERROR : r ? FOUND : FOUND_NOT;
}

static enum found key_of_int(PyObject *number, struct hr_key *ret_key, bool *ret_never) {
    int overflow;
    ret_key->integer = PyLong_AsLongLongAndOverflow(number, &overflow);
    ret_key->kind = HR_KIND_INT;
    return overflow ? key_of_large(number, ret_key, ret_never) : FOUND;
}

static enum found key_of_one(PyObject *object, struct key_room *room, struct hr_key *ret_key, bool *ret_never,
                             int depth);

static enum found key_of_tuple(PyObject *tuple, struct key_room *room, struct hr_key *ret_key, bool *ret_never,
                               int depth) {
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    if (depth == KEY_MAX_DEPTH || count > KEY_MAX_ITEMS - (Py_ssize_t)room->key_count) return FOUND_NOT;
    struct hr_key *keys = &room->keys[room->key_count];
    room->key_count += (uint32_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        enum found found = key_of_one(PyTuple_GET_ITEM(tuple, i), room, &keys[i], ret_never, depth + 1);
        if (found != FOUND) return found;
    }
    ret_key->kind = HR_KIND_TUPLE;
    ret_key->count = (uint64_t)count;
    ret_key->keys = keys;
    return FOUND;
}

/* The parts of a date or a similar value, which headrace.frozen._keys returns as a tuple of name and value. */
static enum found key_of_parts(PyObject *object, PyObject *function, struct key_room *room, struct hr_key *ret_key,
                               bool *ret_never, int depth) {
    if (room->kept_count == KEY_MAX_KEPT) return FOUND_NOT;
    PyObject *parts = PyObject_CallOneArg(function, object);
    if (!parts) return FOUND_ERROR;
    room->kept[room->kept_count++] = parts;
    if (parts == Py_None) return FOUND_NOT;
    enum found found = key_of_tuple(parts, room, ret_key, ret_never, depth);
    ret_key->kind = HR_KIND_TYPED;
    return found;
}

/* Borrowed: the function that returns the parts of a type's instances; NULL without an exception: no such function
 * exists. */
static PyObject *parts_function(PyTypeObject *type) {
    static PyObject *functions;
    if (!functions) {
        PyObject *module = PyImport_ImportModule("headrace.frozen._keys");
        functions = module ? PyObject_GetAttrString(module, "PARTS") : NULL;
        Py_XDECREF(module);
    }
    return functions ? PyDict_GetItemWithError(functions, (PyObject *)type) : NULL;
}

/* Returns true if a class, for example a subclass of str or int, hashes and compares like the built-in one. */
static bool is_like(PyObject *object, PyTypeObject *type) {
    return PyType_IsSubtype(Py_TYPE(object), type) && Py_TYPE(object)->tp_hash == type->tp_hash &&
           Py_TYPE(object)->tp_richcompare == type->tp_richcompare;
}

/* Integers and floats of numpy hash and compare like those of Python. */
static enum found key_of_numpy(PyObject *object, struct hr_key *ret_key, bool *ret_never) {
    if (PyFloat_Check(object)) {
        set_float(PyFloat_AS_DOUBLE(object), ret_key);
        return FOUND;
    }
    PyObject *number = PyIndex_Check(object) && !is_array(object) ? PyNumber_Index(object) : NULL;
    if (!number) {
        PyErr_Clear();
        return FOUND_NOT;
    }
    enum found found = key_of_int(number, ret_key, ret_never);
    Py_DECREF(number);
    return found;
}

/* An object that compares by identity is equal to no key of the library. */
static bool is_identity(PyObject *object) {
    return Py_TYPE(object)->tp_richcompare == PyBaseObject_Type.tp_richcompare;
}

static enum found key_of_one(PyObject *object, struct key_room *room, struct hr_key *ret_key, bool *ret_never,
                             int depth) {
    *ret_key = (struct hr_key){0};
    if (PyUnicode_CheckExact(object) || is_like(object, &PyUnicode_Type)) return key_of_text(object, room, ret_key);
    if (object == Py_None) {
        ret_key->kind = HR_KIND_NONE;
        return FOUND;
    }
    if (PyBool_Check(object)) {
        ret_key->kind = object == Py_True ? HR_KIND_TRUE : HR_KIND_FALSE;
        return FOUND;
    }
    if (PyLong_CheckExact(object) || is_like(object, &PyLong_Type)) return key_of_int(object, ret_key, ret_never);
    if (PyFloat_CheckExact(object)) {
        set_float(PyFloat_AS_DOUBLE(object), ret_key);
        return FOUND;
    }
    if (PyBytes_CheckExact(object)) {
        *ret_key = (struct hr_key){.kind = HR_KIND_BYTES, .count = (uint64_t)PyBytes_GET_SIZE(object)};
        ret_key->bytes = PyBytes_AS_STRING(object);
        return FOUND;
    }
    if (PyTuple_CheckExact(object)) return key_of_tuple(object, room, ret_key, ret_never, depth);
    if (strncmp(Py_TYPE(object)->tp_name, "numpy.", 6) == 0) return key_of_numpy(object, ret_key, ret_never);
    PyObject *function = parts_function(Py_TYPE(object));
    if (function) return key_of_parts(object, function, room, ret_key, ret_never, depth);
    if (PyErr_Occurred()) return FOUND_ERROR;
    *ret_never = is_identity(object);
    return FOUND_NOT;
}

enum found key_of(PyObject *object, struct key_room *room, struct hr_key *ret_key, bool *ret_never) {
    room->used = 0;
    room->key_count = 0;
    room->kept_count = 0;
    *ret_never = false;
    return key_of_one(object, room, ret_key, ret_never, 0);
}

void key_done(struct key_room *room) {
    while (room->kept_count) Py_DECREF(room->kept[--room->kept_count]);
}
