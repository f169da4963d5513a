/* SPDX-License-Identifier: Apache-2.0 */
/* Freezes text, bytes, numbers and arrays. */
#include "frozen/freeze.h"

#include <string.h>

enum { LARGE_BYTES = 1 << 20 /* for copies of this size and above the GIL is released */ };

/* ---- texts and bytes ---- */

static int write_bytes(struct freezer *freezer, enum hr_kind kind, const void *bytes, size_t count,
                       hr_value *ret_value) {
    int r;
    uint64_t before = hr_builder_bytes(freezer->builder);
    if (count < LARGE_BYTES) {
        r = hr_builder_bytes_of(freezer->builder, kind, bytes, count, ret_value);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        r = hr_builder_bytes_of(freezer->builder, kind, bytes, count, ret_value);
        Py_END_ALLOW_THREADS;
    }
    freeze_count(freezer, kind, before);
    return frozen_result(r);
}

const void *freeze_utf8(struct freezer *freezer, PyObject *text, size_t *ret_bytes) {
    *ret_bytes = text_bytes(text);
    if (PyUnicode_IS_ASCII(text)) return PyUnicode_DATA(text);
    if (*ret_bytes > freezer->scratch_bytes) {
        unsigned char *scratch = PyMem_Realloc(freezer->scratch, 2 * *ret_bytes);
        if (!scratch) return PyErr_NoMemory();
        freezer->scratch = scratch;
        freezer->scratch_bytes = 2 * *ret_bytes;
    }
    text_write(text, freezer->scratch);
    return freezer->scratch;
}

int freeze_text(struct freezer *freezer, PyObject *text, hr_value *ret_value) {
    size_t bytes;
    const void *utf8 = freeze_utf8(freezer, text, &bytes);
    return utf8 ? write_bytes(freezer, HR_KIND_TEXT, utf8, bytes, ret_value) : -1;
}

/* The buffer of a byte array is held while it is copied, because other threads may resize it. */
static int write_buffer(struct freezer *freezer, PyObject *object, hr_value *ret_value) {
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0) return -1;
    int r = write_bytes(freezer, HR_KIND_BYTE_ARRAY, view.buf, (size_t)view.len, ret_value);
    PyBuffer_Release(&view);
    return r < 0 ? -1 : 1;
}

int freeze_bytes(struct freezer *freezer, PyObject *object, hr_value *ret_value) {
    int r;
    if (PyByteArray_CheckExact(object)) return write_buffer(freezer, object, ret_value);
    if (PyUnicode_CheckExact(object))
        r = freeze_text(freezer, object, ret_value);
    else if (PyBytes_CheckExact(object))
        r = write_bytes(freezer, HR_KIND_BYTES, PyBytes_AS_STRING(object), (size_t)PyBytes_GET_SIZE(object), ret_value);
    else
        return 0;
    return r < 0 ? -1 : 1;
}

/* ---- numbers ---- */

static int write_big_int(struct freezer *freezer, PyObject *object, hr_value *ret_value) {
    PyObject *bytes = frozen_hook("int_bytes", "O", object);
    if (!bytes) return -1;
    int r = write_bytes(freezer, HR_KIND_BIG_INT, PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes), ret_value);
    Py_DECREF(bytes);
    return r;
}

static int write_int(struct freezer *freezer, PyObject *object, hr_value *ret_value) {
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow) return write_big_int(freezer, object, ret_value);
    freezer->counts[HR_KIND_INT]++;
    return frozen_result(hr_builder_int(freezer->builder, value, ret_value));
}

static int write_complex(struct freezer *freezer, PyObject *object, hr_value *ret_value) {
    Py_complex value = PyComplex_AsCComplex(object);
    freezer->counts[HR_KIND_COMPLEX]++;
    return frozen_result(hr_builder_complex(freezer->builder, value.real, value.imag, ret_value));
}

static int write_float(struct freezer *freezer, PyObject *object, hr_value *ret_value) {
    freezer->counts[HR_KIND_FLOAT]++;
    return frozen_result(hr_builder_float(freezer->builder, PyFloat_AS_DOUBLE(object), ret_value));
}

/* Short texts are treated as scalars: the builder recognizes recent ones, so they need no memo. */
static bool is_short(PyObject *text) {
    enum { SHORT = 64 };
    return PyUnicode_GET_LENGTH(text) < SHORT;
}

int freeze_scalar(struct freezer *freezer, PyObject *object, hr_value *ret_value) {
    int r;
    if (PyUnicode_CheckExact(object) && is_short(object)) {
        r = freeze_text(freezer, object, ret_value);
    } else if (PyLong_CheckExact(object)) {
        r = write_int(freezer, object, ret_value);
    } else if (PyFloat_CheckExact(object)) {
        r = write_float(freezer, object, ret_value);
    } else if (object == Py_None) {
        *ret_value = hr_value_none();
        return 1;
    } else if (PyBool_Check(object)) {
        *ret_value = hr_value_bool(object == Py_True);
        return 1;
    } else if (PyComplex_CheckExact(object)) {
        r = write_complex(freezer, object, ret_value);
    } else {
        return 0;
    }
    return r < 0 ? -1 : 1;
}

/* ---- arrays ---- */

/* Writes the text of a dtype. 1; 0: it has objects, or numpy has no text for it; -1: exception. */
static int write_dtype(struct freezer *freezer, PyObject *array, hr_value *ret_value) {
    PyObject *dtype = PyObject_GetAttr(array, core.names.dtype);
    PyObject *text = dtype ? PyDict_GetItemWithError(freezer->dtypes, dtype) : NULL;
    int r = PyErr_Occurred() ? -1 : 0;
    if (text)
        Py_INCREF(text);
    else if (r == 0) {
        text = frozen_hook("dtype_text", "O", dtype);
        r = text ? PyDict_SetItem(freezer->dtypes, dtype, text) : -1;
    }
    if (r == 0 && text != Py_None) r = freeze_text(freezer, text, ret_value) < 0 ? -1 : 1;
    Py_XDECREF(dtype);
    Py_XDECREF(text);
    return r;
}

static int copy_buffer(void *target, Py_buffer *view) {
    if (view->len == 0) return 0;
    if (!PyBuffer_IsContiguous(view, 'C')) return PyBuffer_ToContiguous(target, view, view->len, 'C');
    if (view->len < LARGE_BYTES) {
        memcpy(target, view->buf, (size_t)view->len);
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS;
    memcpy(target, view->buf, (size_t)view->len);
    Py_END_ALLOW_THREADS;
    return 0;
}

/* Makes an array in the frozen data and returns the address for its bytes. -1: exception. */
static int make_array(struct freezer *freezer, enum hr_array_kind kind, hr_value dtype, Py_ssize_t item_bytes, int ndim,
                      const int64_t *shape, hr_value *ret_value, void **ret_data) {
    uint64_t dimensions[HR_FROZEN_MAX_DIMENSIONS], before = hr_builder_bytes(freezer->builder);
    for (int i = 0; i < ndim; i++) dimensions[i] = (uint64_t)shape[i];
    int r = hr_builder_array(freezer->builder, kind, dtype, (uint32_t)item_bytes, dimensions, (uint32_t)ndim, ret_value,
                             ret_data);
    freeze_count(freezer, HR_KIND_ARRAY, before);
    return frozen_result(r);
}

/* Finds the value that was written for an array of the same elements, or 0. -1: exception. */
static int find_strided(struct freezer *freezer, PyObject *key, hr_value *ret_value) {
    if (!freezer->strided && !(freezer->strided = PyDict_New())) return -1;
    PyObject *known = PyDict_GetItemWithError(freezer->strided, key);
    *ret_value = known ? PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(known, 0)) : 0;
    return PyErr_Occurred() ? -1 : 0;
}

/* The array is kept alive, because its memory is recognized by its address, which must not become that of another
 * array. */
static int note_strided(struct freezer *freezer, PyObject *key, hr_value value, PyObject *array) {
    PyObject *pair = Py_BuildValue("(KO)", (unsigned long long)value, array);
    int r = pair ? PyDict_SetItem(freezer->strided, key, pair) : -1;
    Py_XDECREF(pair);
    return r;
}

static int write_elements(struct freezer *freezer, PyObject *array, struct once *once, hr_value dtype,
                          hr_value *ret_value) {
    void *data;
    hr_value other;
    uint64_t before = hr_builder_bytes(freezer->builder);
    PyObject *key = once_key(once);
    int r = key ? find_strided(freezer, key, &other) : -1;
    if (r == 0) r = frozen_result(hr_builder_strided(freezer->builder, &once->layout, dtype, other, ret_value, &data));
    if (r == 0) freeze_count(freezer, HR_KIND_ARRAY, before);
    if (r == 0 && !other) r = copy_buffer(data, &once->elements);
    if (r == 0 && !other) r = note_strided(freezer, key, *ret_value, array);
    Py_XDECREF(key);
    return r;
}

/* 1: written; 0: every place of the array is an element of its own; -1: exception. */
static int write_once(struct freezer *freezer, PyObject *array, const Py_buffer *view, enum hr_array_kind kind,
                      hr_value dtype, hr_value *ret_value) {
    struct once once;
    if (!once_of(view, &once)) return 0;
    once.layout.kind = (uint32_t)kind;
    return write_elements(freezer, array, &once, dtype, ret_value) < 0 ? -1 : 1;
}

static int write_view(struct freezer *freezer, PyObject *array, Py_buffer *view, enum hr_array_kind kind,
                      hr_value dtype, hr_value *ret_value) {
    int64_t shape[HR_FROZEN_MAX_DIMENSIONS];
    void *data;
    if (view->ndim > HR_FROZEN_MAX_DIMENSIONS || view->itemsize <= 0) return 0;
    int r = write_once(freezer, array, view, kind, dtype, ret_value);
    if (r) return r;
    for (int i = 0; i < view->ndim; i++) shape[i] = view->shape[i];
    if (make_array(freezer, kind, dtype, view->itemsize, view->ndim, shape, ret_value, &data) < 0) return -1;
    return copy_buffer(data, view) < 0 ? -1 : 1;
}

/* Arrays of dates and similar dtypes have no buffer, but a view of their raw bytes has one. */
static int get_buffer(PyObject *array, Py_buffer *view) {
    if (PyObject_GetBuffer(array, view, PyBUF_STRIDED_RO | PyBUF_FORMAT) == 0) return 0;
    PyErr_Clear();
    PyObject *raw = frozen_hook("raw_array", "O", array);
    int r = raw ? PyObject_GetBuffer(raw, view, PyBUF_STRIDED_RO | PyBUF_FORMAT) : -1;
    Py_XDECREF(raw);
    return r;
}

static int write_array(struct freezer *freezer, PyObject *array, enum hr_array_kind kind, hr_value *ret_value) {
    hr_value dtype;
    Py_buffer view;
    int r = write_dtype(freezer, array, &dtype);
    if (r <= 0) return r;
    if (get_buffer(array, &view) < 0) return -1;
    r = write_view(freezer, array, &view, kind, dtype, ret_value);
    PyBuffer_Release(&view);
    return r;
}

static int write_scalar(struct freezer *freezer, PyObject *scalar, hr_value *ret_value) {
    PyObject *array = frozen_hook("scalar_array", "O", scalar);
    int r = array ? array == Py_None ? 0 : write_array(freezer, array, HR_ARRAY_NUMPY_SCALAR, ret_value) : -1;
    Py_XDECREF(array);
    return r;
}

/* ---- tensors ---- */

/* Returns the tensor if its elements are contiguous in C order, else a copy of which this is true. New reference. */
static PyObject *contiguous(PyObject *tensor) {
    return PyObject_CallMethod(tensor, "contiguous", NULL);
}

static Py_ssize_t item_bytes_of(const struct hr_array *array) {
    return (Py_ssize_t)array->dtype.bits * array->dtype.lanes / 8;
}

static int write_tensor_dtype(struct freezer *freezer, PyObject *tensor, hr_value *ret_value) {
    PyObject *name = frozen_hook("tensor_dtype", "O", tensor);
    int r = name ? freeze_text(freezer, name, ret_value) : -1;
    Py_XDECREF(name);
    return r;
}

/* Does the same as write_once for a tensor. Also 0 if it has too many dimensions. */
static int write_tensor_once(struct freezer *freezer, PyObject *tensor, const struct hr_array *array,
                             hr_value *ret_value) {
    Py_ssize_t shape[HR_FROZEN_MAX_DIMENSIONS], strides[HR_FROZEN_MAX_DIMENSIONS];
    struct once once;
    hr_value dtype;
    Py_buffer view = {.buf = (void *)(uintptr_t)array->data,
                      .itemsize = item_bytes_of(array),
                      .ndim = (int)array->ndim,
                      .shape = shape,
                      .strides = strides};
    if (!array->strides || array->ndim > HR_FROZEN_MAX_DIMENSIONS) return 0;
    for (uint32_t i = 0; i < array->ndim; i++) {
        shape[i] = (Py_ssize_t)array->shape[i];
        strides[i] = shape[i] > 1 ? (Py_ssize_t)array->strides[i] * view.itemsize : 0;
    }
    if (!once_of(&view, &once)) return 0;
    once.layout.kind = HR_ARRAY_TORCH;
    if (write_tensor_dtype(freezer, tensor, &dtype) < 0) return -1;
    return write_elements(freezer, tensor, &once, dtype, ret_value) < 0 ? -1 : 1;
}

static int write_described(struct freezer *freezer, PyObject *tensor, const struct hr_array *array,
                           hr_value *ret_value) {
    void *data;
    hr_value dtype;
    size_t item_bytes = (size_t)item_bytes_of(array), bytes = item_bytes;
    for (uint32_t i = 0; i < array->ndim; i++) bytes *= (size_t)array->shape[i];
    int r = write_tensor_dtype(freezer, tensor, &dtype);
    if (r == 0 && array->ndim > HR_FROZEN_MAX_DIMENSIONS) return 0;
    if (r == 0)
        r = make_array(freezer, HR_ARRAY_TORCH, dtype, (Py_ssize_t)item_bytes, (int)array->ndim, array->shape,
                       ret_value, &data);
    if (r < 0) return -1;
    if (!bytes) return 1;
    Py_BEGIN_ALLOW_THREADS;
    memcpy(data, array->data, bytes);
    Py_END_ALLOW_THREADS;
    return 1;
}

static int write_tensor(struct freezer *freezer, PyObject *object, hr_value *ret_value) {
    struct hr_array array;
    PyObject *tensor = NULL;
    if (has_attributes(object)) return 0; /* the attributes would be lost */
    enum found found = source_tensor(&freezer->sources, object, &array);
    int r = found == FOUND ? write_tensor_once(freezer, object, &array, ret_value) : 0;
    if (found == FOUND && r == 0) {
        tensor = contiguous(object);
        if (!tensor) found = FOUND_ERROR;
        if (tensor && tensor != object) found = source_tensor(&freezer->sources, tensor, &array);
        if (found == FOUND) r = write_described(freezer, tensor, &array, ret_value);
    }
    sources_clear(&freezer->sources);
    Py_XDECREF(tensor);
    return found == FOUND_ERROR ? -1 : r;
}

int freeze_array(struct freezer *freezer, PyObject *object, hr_value *ret_value) {
    if (is_array(object)) return write_array(freezer, object, HR_ARRAY_NUMPY, ret_value);
    if (core.tensor_type && is_tensor(object)) return write_tensor(freezer, object, ret_value);
    if (strncmp(Py_TYPE(object)->tp_name, "numpy.", 6) == 0 && core.array_type)
        return write_scalar(freezer, object, ret_value);
    return 0;
}
