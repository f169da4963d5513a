/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <string.h>

/* ---- texts and bytes ---- */

/* Are all bytes below 128? What an image says of its texts is believed only of sealed memory. */
static bool is_ascii(const unsigned char *bytes, uint64_t count) {
    uint64_t word, all = 0;
    uint64_t i = 0;
    for (; i + sizeof word <= count; i += sizeof word) {
        memcpy(&word, bytes + i, sizeof word);
        all |= word;
    }
    for (; i < count; i++) all |= bytes[i];
    return (all & UINT64_C(0x8080808080808080)) == 0;
}

static PyObject *damaged(const char *what) {
    return PyErr_Format(StoreError, "headrace: %s of this image is damaged; make the image again", what);
}

static PyObject *read_utf8(const struct hr_item *item) {
    PyObject *text = PyUnicode_DecodeUTF8(hr_item_bytes(item), (Py_ssize_t)item->count, "surrogatepass");
    if (text || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return text;
    PyErr_Clear();
    return damaged("a text");
}

PyObject *read_ascii(struct image *image, const void *bytes, uint64_t count) {
    if (!image->is_sealed && !is_ascii(bytes, count)) return damaged("a text");
    return text_new(bytes, count);
}

PyObject *read_text(struct image *image, const struct hr_item *item) {
    return item->is_ascii ? read_ascii(image, hr_item_bytes(item), item->count) : read_utf8(item);
}

static PyObject *read_bytes(const struct hr_item *item) {
    return PyBytes_FromStringAndSize(hr_item_bytes(item), (Py_ssize_t)item->count);
}

static PyObject *read_big_int(const struct hr_item *item) {
    PyObject *bytes = read_bytes(item);
    PyObject *number = bytes ? store_hook("int_from_bytes", "O", bytes) : NULL;
    Py_XDECREF(bytes);
    return number;
}

static PyObject *read_pickle(struct image *image, const struct hr_item *item) {
    if (!image->trusted)
        return PyErr_Format(StoreError,
                            "headrace: this image has a pickle, which runs code when it is loaded; if you trust "
                            "who made it: headrace.open(path, trust=True)");
    PyObject *bytes = read_bytes(item);
    PyObject *object = bytes ? store_hook("load", "O", bytes) : NULL;
    Py_XDECREF(bytes);
    return object;
}

PyObject *read_scalar(struct image *image, const struct hr_item *item) {
    switch (item->kind) {
    case HR_KIND_TEXT:
        return read_text(image, item);
    case HR_KIND_INT:
        return PyLong_FromLongLong(item->integer);
    case HR_KIND_FLOAT:
        return PyFloat_FromDouble(item->real);
    case HR_KIND_NONE:
        return Py_NewRef(Py_None);
    case HR_KIND_FALSE:
        return Py_NewRef(Py_False);
    case HR_KIND_TRUE:
        return Py_NewRef(Py_True);
    case HR_KIND_BYTES:
        return read_bytes(item);
    case HR_KIND_BIG_INT:
        return read_big_int(item);
    case HR_KIND_COMPLEX:
        return PyComplex_FromDoubles(item->pair.real, item->pair.imaginary);
    case HR_KIND_BYTE_ARRAY:
        return PyByteArray_FromStringAndSize(hr_item_bytes(item), (Py_ssize_t)item->count);
    case HR_KIND_PICKLE:
        return read_pickle(image, item);
    default:
        return NULL;
    }
}

/* ---- arrays ---- */

/* Borrowed: numpy's dtype of a text. */
static PyObject *dtype_of(struct image *image, const struct hr_store_array *array) {
    if (array->dtype.kind != HR_KIND_TEXT) return damaged("an array");
    PyObject *text = read_text(image, &array->dtype);
    PyObject *dtype = text ? PyDict_GetItemWithError(image->dtypes, text) : NULL;
    if (text && !dtype && !PyErr_Occurred()) {
        dtype = store_hook("dtype_from_text", "O", text);
        if (dtype && PyDict_SetItem(image->dtypes, text, dtype) < 0) Py_CLEAR(dtype);
        Py_XDECREF(dtype); /* the dict has it */
    }
    Py_XDECREF(text);
    return dtype;
}

static PyObject *dimensions_of(const struct hr_store_array *array) {
    PyObject *tuple = PyTuple_New(array->dimension_count);
    for (uint32_t i = 0; tuple && i < array->dimension_count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(array->dimensions[i]);
        if (!number) Py_CLEAR(tuple);
        if (tuple) PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

static PyObject *offset_of(struct image *image, const struct hr_store_array *array) {
    return PyLong_FromUnsignedLongLong(array->bytes ? (uint64_t)((const char *)array->data - image->start) : 0);
}

static PyObject *numpy_array(struct image *image, const struct hr_store_array *array, bool is_private) {
    if (core_need_numpy() < 0) return NULL;
    PyObject *dtype = Py_XNewRef(dtype_of(image, array)), *result = NULL;
    if (!dtype) return NULL;
    PyObject *size = PyObject_GetAttrString(dtype, "itemsize");
    bool fits = size && PyLong_AsUnsignedLongMask(size) == array->item_bytes;
    PyObject *shape = fits ? dimensions_of(array) : size && !PyErr_Occurred() ? damaged("an array") : NULL;
    PyObject *offset = offset_of(image, array);
    if (shape && offset) result = PyObject_CallFunctionObjArgs(core.array_type, shape, dtype, image, offset, NULL);
    if (result && is_private) Py_SETREF(result, PyObject_CallMethod(result, "copy", NULL));
    Py_DECREF(dtype);
    Py_XDECREF(size);
    Py_XDECREF(shape);
    Py_XDECREF(offset);
    return result;
}

static PyObject *numpy_scalar(struct image *image, const struct hr_store_array *array) {
    PyObject *whole = numpy_array(image, array, true), *empty = PyTuple_New(0);
    PyObject *scalar = whole && empty ? PyObject_GetItem(whole, empty) : NULL;
    Py_XDECREF(whole);
    Py_XDECREF(empty);
    return scalar;
}

static PyObject *tensor(struct image *image, const struct hr_store_array *array, bool is_private) {
    PyObject *name = array->dtype.kind == HR_KIND_TEXT ? read_text(image, &array->dtype) : damaged("a tensor");
    PyObject *shape = name ? dimensions_of(array) : NULL, *offset = shape ? offset_of(image, array) : NULL;
    PyObject *result = offset ? store_hook("tensor", "OOOOKO", image, name, shape, offset,
                                           (unsigned long long)array->bytes, is_private ? Py_True : Py_False)
                              : NULL;
    Py_XDECREF(name);
    Py_XDECREF(shape);
    Py_XDECREF(offset);
    return result;
}

PyObject *read_array(struct image *image, const struct hr_item *item, bool is_private) {
    struct hr_store_array array;
    int r = hr_store_array(image->store, item, &array);
    if (r < 0) return store_raise(r);
    switch (array.kind) {
    case HR_ARRAY_NUMPY:
        return numpy_array(image, &array, is_private);
    case HR_ARRAY_NUMPY_SCALAR:
        return numpy_scalar(image, &array);
    case HR_ARRAY_TORCH:
        return tensor(image, &array, is_private);
    default:
        return damaged("an array");
    }
}

/* ---- items ---- */

static PyObject *read_record(struct image *image, const struct hr_item *item) {
    const struct shape *shape = image_shape(image, item->shape);
    if (!shape) return NULL;
    return shape->kind == HR_SHAPE_DICT ? view_new(image, item, 0) : build(image, item, BUILD_RECORD);
}

/* A deque, Counter... is a view of its items; a Decimal, a date, an array of objects in rows... is made. */
static PyObject *read_typed(struct image *image, const struct hr_item *item) {
    struct hr_item extra, items;
    int r = typed_parts(image, item, &extra, &items);
    if (r < 0) return NULL;
    return r > 0 ? view_new(image, &items, item->value) : build(image, item, BUILD_ALL);
}

PyObject *read_item(struct image *image, const struct hr_item *item) {
    switch (item->kind) {
    case HR_KIND_INT: /* the most frequent ones first */
        return PyLong_FromLongLong(item->integer);
    case HR_KIND_TEXT:
        return read_text(image, item);
    case HR_KIND_LIST:
    case HR_KIND_TUPLE:
    case HR_KIND_DICT:
    case HR_KIND_SET:
    case HR_KIND_FROZEN_SET:
        return view_new(image, item, 0);
    case HR_KIND_RECORD:
        return read_record(image, item);
    case HR_KIND_ARRAY:
        return read_array(image, item, false);
    case HR_KIND_TYPED:
        return read_typed(image, item);
    default:
        break;
    }
    PyObject *scalar = read_scalar(image, item);
    return scalar || PyErr_Occurred() ? scalar : damaged("a value");
}

PyObject *read_key(struct image *image, const struct hr_item *item) {
    PyObject *scalar = read_scalar(image, item);
    return scalar || PyErr_Occurred() ? scalar : build(image, item, BUILD_KEY);
}

PyObject *read_value(struct image *image, hr_value value) {
    struct hr_item item;
    int r = hr_store_read(image->store, value, &item);
    return r < 0 ? store_raise(r) : read_item(image, &item);
}
