/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/freeze.h"

#include <errno.h>

/*
 * Packed lists: all items have exactly the same type. Between the first check and the writing only signal handlers can
 * run Python code; whatever they may change is checked again.
 */

enum { FEWEST_INTS = 3, FEWEST_TEXTS = 16, FEWEST_ROWS = 2, MOST_NAMES = 64, SLICE_ITEMS = 65536 };
enum {
    MOST_DICT_SHAPES =
        60000 /* a part of HR_FROZEN_MAX_SHAPES; the rest is for classes, which need a shape, while dicts do not */
};

static Py_ssize_t count_of(PyObject *sequence) {
    return PySequence_Fast_GET_SIZE(sequence);
}
static PyObject *item_of(PyObject *sequence, Py_ssize_t index) {
    return PySequence_Fast_GET_ITEM(sequence, index);
}
static enum hr_kind kind_of(PyObject *sequence) {
    return PyList_CheckExact(sequence) ? HR_KIND_LIST : HR_KIND_TUPLE;
}

static bool are_all(PyObject *sequence, PyTypeObject *type) {
    Py_ssize_t count = count_of(sequence);
    for (Py_ssize_t i = 0; i < count; i++)
        if (Py_TYPE(item_of(sequence, i)) != type) return false;
    return true;
}

/* Returns 1 while all items have this type; -1, with an exception, if Python code, for example a finalizer, has changed
 * this. */
static int still_all(struct freezer *freezer, PyObject *sequence, PyTypeObject *type) {
    return count_of(sequence) && are_all(sequence, type) ? 1 : freeze_changed(freezer);
}

/* ---- numbers ---- */

/* Returns 32, 64, or 0: there are larger integers. */
static int width_of(PyObject *sequence) {
    int overflow = 0, width = 32;
    Py_ssize_t count = count_of(sequence);
    for (Py_ssize_t i = 0; i < count; i++) {
        long long value = PyLong_AsLongLongAndOverflow(item_of(sequence, i), &overflow);
        if (overflow) return 0;
        if (value != (int32_t)value) width = 64;
    }
    return width;
}

static int pack_ints(struct freezer *freezer, PyObject *sequence, hr_value *ret_value) {
    int width = width_of(sequence), r;
    uint64_t count = (uint64_t)count_of(sequence);
    int32_t *small = NULL;
    int64_t *large = NULL;
    if (width == 0) return 0;
    r = width == 32 ? hr_builder_small_ints(freezer->builder, kind_of(sequence), count, ret_value, &small)
                    : hr_builder_ints(freezer->builder, kind_of(sequence), count, ret_value, &large);
    if (frozen_result(r) < 0) return -1;
    for (uint64_t i = 0; i < count; i++) {
        long long value = PyLong_AsLongLong(item_of(sequence, (Py_ssize_t)i));
        if (small)
            small[i] = (int32_t)value;
        else
            large[i] = value;
    }
    return 1;
}

static int pack_floats(struct freezer *freezer, PyObject *sequence, hr_value *ret_value) {
    double *items;
    uint64_t count = (uint64_t)count_of(sequence);
    int r = hr_builder_floats(freezer->builder, kind_of(sequence), count, ret_value, &items);
    if (frozen_result(r) < 0) return -1;
    for (uint64_t i = 0; i < count; i++) items[i] = PyFloat_AS_DOUBLE(item_of(sequence, (Py_ssize_t)i));
    return 1;
}

/* ---- texts and bytes ---- */

static uint64_t measure(PyObject *sequence, bool are_texts, bool *ret_is_ascii) {
    uint64_t bytes = 0;
    Py_ssize_t count = count_of(sequence);
    *ret_is_ascii = are_texts;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = item_of(sequence, i);
        bytes += are_texts ? text_bytes(item) : (uint64_t)PyBytes_GET_SIZE(item);
        if (are_texts && !PyUnicode_IS_ASCII(item)) *ret_is_ascii = false;
    }
    return bytes;
}

static int add_text(struct freezer *freezer, struct hr_texts *texts, PyObject *item, bool are_texts) {
    size_t bytes;
    if (!are_texts) return hr_texts_add(texts, PyBytes_AS_STRING(item), (uint64_t)PyBytes_GET_SIZE(item));
    const void *utf8 = freeze_utf8(freezer, item, &bytes);
    return utf8 ? hr_texts_add(texts, utf8, bytes) : -ENOMEM;
}

static int tick_within(struct freezer *freezer, uint64_t ahead_bytes) {
    freezer->ahead_bytes = ahead_bytes;
    int r = freeze_tick(freezer, SLICE_ITEMS);
    freezer->ahead_bytes = 0;
    return r;
}

static int pack_texts(struct freezer *freezer, PyObject *sequence, hr_value *ret_value) {
    PyTypeObject *type = Py_TYPE(item_of(sequence, 0));
    bool are_texts = type == &PyUnicode_Type, is_ascii;
    struct hr_texts texts;
    Py_ssize_t count = count_of(sequence);
    uint64_t bytes = measure(sequence, are_texts, &is_ascii);
    int r = hr_builder_texts(freezer->builder, kind_of(sequence), are_texts ? HR_KIND_TEXT : HR_KIND_BYTES,
                             (uint64_t)count, bytes, is_ascii, ret_value, &texts);
    if (frozen_result(r) < 0) return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i % SLICE_ITEMS == SLICE_ITEMS - 1 && tick_within(freezer, texts.room - texts.used) < 0) return -1;
        if (count_of(sequence) != count || Py_TYPE(item_of(sequence, i)) != type) return freeze_changed(freezer);
        PyObject *item = item_of(sequence, i);
        if (is_ascii && !PyUnicode_IS_ASCII(item)) return freeze_changed(freezer);
        r = add_text(freezer, &texts, item, are_texts);
        if (r == -ERANGE) return freeze_changed(freezer);
        if (frozen_result(r) < 0) return -1;
    }
    return 1;
}

/* ---- rows ---- */

PyObject *names_of(PyObject *dict) {
    PyObject *key, *value;
    Py_ssize_t at = 0, count = PyDict_GET_SIZE(dict);
    if (count == 0 || count > MOST_NAMES) return NULL;
    PyObject *names = PyTuple_New(count);
    for (Py_ssize_t i = 0; names && i < count; i++) {
        if (PyDict_Next(dict, &at, &key, &value) && PyUnicode_CheckExact(key))
            PyTuple_SET_ITEM(names, i, Py_NewRef(key));
        else
            Py_CLEAR(names);
    }
    return names;
}

bool has_names(PyObject *dict, PyObject *names) {
    PyObject *key, *value;
    Py_ssize_t at = 0, count = PyTuple_GET_SIZE(names);
    if (PyDict_GET_SIZE(dict) != count) return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (!PyDict_Next(dict, &at, &key, &value)) return false;
        if (key != name && !(PyUnicode_CheckExact(key) && PyUnicode_Compare(key, name) == 0)) return false;
    }
    return true;
}

static int write_names(struct freezer *freezer, PyObject *names, hr_value *values) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++)
        if (freeze_text(freezer, PyTuple_GET_ITEM(names, i), &values[i]) < 0) return -1;
    return 0;
}

static int make_shape(struct freezer *freezer, PyObject *type_name, enum hr_shape_kind kind, PyObject *names,
                      uint32_t *ret_number) {
    hr_value values[HR_FROZEN_MAX_FIELDS], type = hr_value_none();
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    if (count > HR_FROZEN_MAX_FIELDS) return 0;
    if (kind == HR_SHAPE_DICT && freezer->dict_shape_count >= MOST_DICT_SHAPES) return 0;
    if (type_name && freeze_text(freezer, type_name, &type) < 0) return -1;
    if (write_names(freezer, names, values) < 0) return -1;
    int r = hr_builder_shape(freezer->builder, kind, type, values, (uint32_t)count, ret_number);
    if (r == -EOVERFLOW) return 0;
    freezer->dict_shape_count += kind == HR_SHAPE_DICT;
    return frozen_result(r) < 0 ? -1 : 1;
}

int freeze_shape(struct freezer *freezer, PyObject *type, PyObject *type_name, enum hr_shape_kind kind, PyObject *names,
                 uint32_t *ret_number) {
    PyObject *key = type ? PyTuple_Pack(2, type, names) : Py_NewRef(names);
    PyObject *known = key ? PyDict_GetItemWithError(freezer->shapes, key) : NULL;
    int r = known ? 1 : PyErr_Occurred() ? -1 : make_shape(freezer, type_name, kind, names, ret_number);
    if (known) {
        *ret_number = (uint32_t)PyLong_AsUnsignedLong(known);
    } else if (r > 0) {
        PyObject *number = PyLong_FromUnsignedLong(*ret_number);
        if (!number || PyDict_SetItem(freezer->shapes, key, number) < 0) r = -1;
        Py_XDECREF(number);
    }
    Py_XDECREF(key);
    return r;
}

/* A row is stored in its list, so an object that was already written elsewhere, or occurs here twice, cannot be a row.
 * 1: all are new. */
static int are_new(struct freezer *freezer, PyObject *sequence) {
    struct map met = {0};
    int r = 1;
    for (Py_ssize_t i = 0; r > 0 && i < count_of(sequence); i++) {
        uint64_t address = (uintptr_t)item_of(sequence, i);
        if (is_lone(item_of(sequence, i), 1)) continue;
        if (map_find(&freezer->memo, address) || map_find(&met, address))
            r = 0;
        else if (map_add(&met, address, 1) < 0)
            r = -1;
    }
    map_free(&met);
    return r;
}

/* Adds rows that other objects may refer to to the memo before they are written, because the first may refer to the
 * last. */
static int know_rows(struct freezer *freezer, PyObject *sequence, hr_value rows) {
    for (Py_ssize_t i = 0; i < count_of(sequence); i++) {
        PyObject *item = item_of(sequence, i);
        hr_value row;
        if (is_lone(item, 1)) continue;
        if (frozen_result(hr_builder_row(freezer->builder, rows, (uint64_t)i, &row)) < 0) return -1;
        if (freeze_memo(freezer, item, row) < 0) return -1;
    }
    return 0;
}

/* `type`: the class of rows that are instances; NULL: the rows are dicts. */
static int begin_rows(struct freezer *freezer, PyObject *sequence, PyObject *names, uint32_t shape, PyTypeObject *type,
                      hr_value *ret_value) {
    struct freeze_frame frame = {.kind = FRAME_ROWS, .object = sequence, .names = names, .is_object = type != NULL};
    frame.extra = (PyObject *)type;
    frame.count = (uint64_t)count_of(sequence);
    uint64_t before = hr_builder_bytes(freezer->builder);
    int r = hr_builder_rows(freezer->builder, kind_of(sequence), shape, frame.count, &frame.value);
    if (frozen_result(r) < 0) return -1;
    freezer->bytes[HR_KIND_RECORD] += hr_builder_bytes(freezer->builder) - before;
    *ret_value = frame.value;
    return know_rows(freezer, sequence, frame.value) < 0 || freeze_push(freezer, frame) < 0 ? -1 : 1;
}

static int pack_dicts(struct freezer *freezer, PyObject *sequence, hr_value *ret_value) {
    uint32_t shape;
    PyObject *first = Py_NewRef(item_of(sequence, 0)), *names = names_of(first);
    Py_DECREF(first);
    if (!names) return PyErr_Occurred() ? -1 : 0;
    int r = still_all(freezer, sequence, &PyDict_Type);
    for (Py_ssize_t i = 0; r > 0 && i < count_of(sequence); i++) r = has_names(item_of(sequence, i), names);
    if (r > 0) r = are_new(freezer, sequence);
    if (r > 0) r = freeze_shape(freezer, NULL, NULL, HR_SHAPE_DICT, names, &shape);
    if (r > 0) r = begin_rows(freezer, sequence, names, shape, NULL, ret_value);
    Py_DECREF(names);
    return r;
}

/* 1: all instances have these fields; 0: they do not, or one is not a plain instance. */
static int have_fields(PyObject *known, PyObject *sequence, PyObject *names) {
    int r = 1;
    for (Py_ssize_t i = 1; r > 0 && i < count_of(sequence); i++) {
        PyObject *item = Py_NewRef(item_of(sequence, i));
        r = freeze_match(known, item, names, NULL);
        if (r > 0 && i % SLICE_ITEMS == SLICE_ITEMS - 1 && PyErr_CheckSignals() < 0) r = -1;
        Py_DECREF(item);
    }
    return r;
}

static int pack_instances(struct freezer *freezer, PyObject *sequence, PyTypeObject *type, PyObject *known,
                          hr_value *ret_value) {
    uint32_t shape;
    PyObject *names = NULL, *values = NULL;
    if (still_all(freezer, sequence, type) < 0) return -1; /* classify ran Python code */
    PyObject *class_name = PyTuple_GET_ITEM(known, 1), *first = Py_NewRef(item_of(sequence, 0));
    int r = freeze_fields(known, first, &names, &values);
    Py_DECREF(first);
    if (r > 0 && PyTuple_GET_SIZE(names) == 0) r = 0;
    if (r > 0) r = have_fields(known, sequence, names);
    if (r > 0) r = are_new(freezer, sequence);
    if (r > 0) r = freeze_shape(freezer, (PyObject *)type, class_name, HR_SHAPE_OBJECT, names, &shape);
    if (r > 0) r = begin_rows(freezer, sequence, names, shape, type, ret_value);
    Py_XDECREF(names);
    Py_XDECREF(values);
    return r;
}

/* Returns 1 if the instances of the class are plain. */
static int is_plain_class(struct freezer *freezer, PyTypeObject *type, PyObject **ret_known) {
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return 0;
    *ret_known = freeze_class(freezer, type);
    if (!*ret_known) return -1;
    return PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(*ret_known, 0), "object") == 0;
}

static int pack(struct freezer *freezer, PyObject *sequence, PyTypeObject *type, hr_value *ret_value) {
    Py_ssize_t count = count_of(sequence);
    PyObject *known;
    if (type == &PyLong_Type) return count >= FEWEST_INTS ? pack_ints(freezer, sequence, ret_value) : 0;
    if (type == &PyFloat_Type) return pack_floats(freezer, sequence, ret_value);
    if (type == &PyUnicode_Type || type == &PyBytes_Type)
        return count >= FEWEST_TEXTS ? pack_texts(freezer, sequence, ret_value) : 0;
    if (count < FEWEST_ROWS) return 0;
    if (type == &PyDict_Type) return pack_dicts(freezer, sequence, ret_value);
    int plain = is_plain_class(freezer, type, &known);
    return plain > 0 ? pack_instances(freezer, sequence, type, known, ret_value) : plain;
}

int freeze_packed(struct freezer *freezer, PyObject *sequence, hr_value *ret_value) {
    if (count_of(sequence) == 0) return 0;
    PyTypeObject *type = Py_TYPE(item_of(sequence, 0));
    if (!are_all(sequence, type)) return 0;
    uint64_t before = hr_builder_bytes(freezer->builder);
    Py_INCREF(type); /* freeze_class runs Python code */
    int r = pack(freezer, sequence, type, ret_value);
    Py_DECREF(type);
    if (r > 0) freeze_count(freezer, kind_of(sequence), before);
    return r;
}
