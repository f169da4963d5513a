/* SPDX-License-Identifier: Apache-2.0 */
/* Reads values, keys and arrays of frozen data as Python objects. */
#include "exchange/arrays.h"
#include "frozen/opened.h"
#include "frozen/thaw.h"
#include "frozen/view.h"

#include <string.h>

/* ---- texts and bytes ---- */

/* Returns true if all bytes are below 128. This is checked, because the flag in frozen data is trusted only if it is in
 * sealed memory. */
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
    return PyErr_Format(FrozenError, "headrace: %s of this frozen data is damaged; freeze the data again", what);
}

static PyObject *read_utf8(const struct hr_item *item) {
    PyObject *text = PyUnicode_DecodeUTF8(hr_item_bytes(item), (Py_ssize_t)item->count, "surrogatepass");
    if (text || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return text;
    PyErr_Clear();
    return damaged("a text");
}

PyObject *read_ascii(struct frozen *frozen, const void *bytes, uint64_t count) {
    if (!frozen->is_sealed && !is_ascii(bytes, count)) return damaged("a text");
    return text_new(bytes, count);
}

PyObject *read_text(struct frozen *frozen, const struct hr_item *item) {
    return item->is_ascii ? read_ascii(frozen, hr_item_bytes(item), item->count) : read_utf8(item);
}

static PyObject *read_bytes(const struct hr_item *item) {
    return PyBytes_FromStringAndSize(hr_item_bytes(item), (Py_ssize_t)item->count);
}

static PyObject *read_big_int(const struct hr_item *item) {
    PyObject *bytes = read_bytes(item);
    PyObject *number = bytes ? frozen_hook("int_from_bytes", "O", bytes) : NULL;
    Py_XDECREF(bytes);
    return number;
}

static PyObject *read_pickle(struct frozen *frozen, const struct hr_item *item) {
    if (!frozen->trusted)
        return PyErr_Format(FrozenError,
                            "headrace: this frozen data has a pickle, which runs code when it is loaded; if you "
                            "trust its author, use headrace.open(path, trust=True)");
    PyObject *bytes = read_bytes(item);
    PyObject *object = bytes ? frozen_hook("load", "O", bytes) : NULL;
    Py_XDECREF(bytes);
    return object;
}

PyObject *read_scalar(struct frozen *frozen, const struct hr_item *item) {
    switch (item->kind) {
    case HR_KIND_TEXT:
        return read_text(frozen, item);
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
        return read_pickle(frozen, item);
    default:
        return NULL;
    }
}

/* ---- arrays ---- */

/* Borrowed: the numpy dtype of a text. */
static PyObject *dtype_of(struct frozen *frozen, const struct hr_frozen_array *array) {
    if (array->dtype.kind != HR_KIND_TEXT) return damaged("an array");
    PyObject *text = read_text(frozen, &array->dtype);
    PyObject *dtype = text ? PyDict_GetItemWithError(frozen->dtypes, text) : NULL;
    if (text && !dtype && !PyErr_Occurred()) {
        dtype = frozen_hook("dtype_from_text", "O", text);
        if (dtype && PyDict_SetItem(frozen->dtypes, text, dtype) < 0) Py_CLEAR(dtype);
        Py_XDECREF(dtype); /* the dict has it */
    }
    Py_XDECREF(text);
    return dtype;
}

static PyObject *dimensions_of(const struct hr_frozen_array *array) {
    PyObject *tuple = PyTuple_New(array->dimension_count);
    for (uint32_t i = 0; tuple && i < array->dimension_count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(array->dimensions[i]);
        if (!number) Py_CLEAR(tuple);
        if (tuple) PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

/* Copies the elements that strided arrays share to a bytearray, the same one for all of them. New reference. */
static PyObject *copy_elements(struct frozen *frozen, const struct hr_frozen_array *array, struct map *copies) {
    enum { NO_TAG = 0xFF };
    uint64_t key = (uint64_t)((const char *)array->data - frozen->start) << 8 | NO_TAG;
    const uint64_t *known = map_find(copies, key);
    PyObject *copy = known ? (PyObject *)(uintptr_t)*known : NULL;
    if (copy && (uint64_t)PyByteArray_GET_SIZE(copy) == array->bytes) return Py_NewRef(copy);
    copy = PyByteArray_FromStringAndSize(array->data, (Py_ssize_t)array->bytes);
    if (known || !copy) return copy; /* in damaged frozen data two arrays of different sizes may begin at one place */
    if (map_add(copies, key, (uintptr_t)copy) < 0) {
        Py_DECREF(copy);
        return NULL;
    }
    return Py_NewRef(copy); /* the map has one too */
}

/* Returns the memory of an array, the frozen data or, for a strided array if there is `copies`, a copy; and the offset
 * in it in bytes. */
static PyObject *memory_of(struct frozen *frozen, const struct hr_frozen_array *array, struct map *copies,
                           uint64_t *ret_offset) {
    bool is_copy = array->is_strided && copies;
    *ret_offset = array->bytes && !is_copy ? (uint64_t)((const char *)array->data - frozen->start) : 0;
    return is_copy ? copy_elements(frozen, array, copies) : Py_NewRef((PyObject *)frozen);
}

/* numpy counts in bytes, so the dimensions of frozen data may be too large for it. */
static bool fits_numpy(const struct hr_frozen_array *array, PyObject *dtype) {
    PyObject *size = PyObject_GetAttrString(dtype, "itemsize");
    int64_t bytes = array->item_bytes;
    bool fits = size && PyLong_AsUnsignedLongMask(size) == array->item_bytes;
    Py_XDECREF(size);
    for (uint32_t i = 0; array->is_strided && fits && i < array->dimension_count; i++)
        fits = !__builtin_mul_overflow(bytes, array->dimensions[i], &bytes);
    if (!fits && !PyErr_Occurred()) damaged("an array");
    return fits;
}

static PyObject *numpy_array(struct frozen *frozen, const struct hr_frozen_array *array, struct map *copies) {
    uint64_t offset = 0;
    if (core_need_numpy() < 0) return NULL;
    PyObject *dtype = Py_XNewRef(dtype_of(frozen, array)), *result = NULL;
    PyObject *memory = dtype && fits_numpy(array, dtype) ? memory_of(frozen, array, copies, &offset) : NULL;
    PyObject *shape = memory ? dimensions_of(array) : NULL, *strides = NULL;
    if (shape)
        strides = array->is_strided ? numbers_tuple(array->strides, array->dimension_count, array->item_bytes)
                                    : Py_NewRef(Py_None);
    unsigned long long first = offset + array->first * array->item_bytes;
    if (shape && strides)
        result = PyObject_CallFunction(core.array_type, "OOOKO", shape, dtype, memory, first, strides);
    if (result && copies && !array->is_strided) Py_SETREF(result, PyObject_CallMethod(result, "copy", NULL));
    Py_XDECREF(dtype);
    Py_XDECREF(memory);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return result;
}

static PyObject *numpy_scalar(struct frozen *frozen, const struct hr_frozen_array *array) {
    struct map copies = {0};
    PyObject *whole = array->is_strided ? damaged("a number") : numpy_array(frozen, array, &copies);
    PyObject *empty = PyTuple_New(0), *scalar = whole && empty ? PyObject_GetItem(whole, empty) : NULL;
    Py_XDECREF(whole);
    Py_XDECREF(empty);
    return scalar;
}

static PyObject *tensor(struct frozen *frozen, const struct hr_frozen_array *array, struct map *copies) {
    uint64_t offset;
    PyObject *name = array->dtype.kind == HR_KIND_TEXT ? read_text(frozen, &array->dtype) : damaged("a tensor");
    PyObject *shape = name ? dimensions_of(array) : NULL;
    PyObject *strides = shape ? numbers_tuple(array->strides, array->dimension_count, 1) : NULL;
    PyObject *memory = strides ? memory_of(frozen, array, copies, &offset) : NULL, *result = NULL;
    if (memory && array->is_strided)
        result = frozen_hook("strided_tensor", "OOOOKKKK", memory, name, shape, strides,
                             (unsigned long long)array->first, (unsigned long long)array->item_bytes,
                             (unsigned long long)offset, (unsigned long long)array->bytes);
    else if (memory)
        result = frozen_hook("tensor", "OOOKKO", frozen, name, shape, (unsigned long long)offset,
                             (unsigned long long)array->bytes, copies ? Py_True : Py_False);
    Py_XDECREF(name);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    Py_XDECREF(memory);
    return result;
}

static PyObject *any_array(struct frozen *frozen, const struct hr_item *item, struct map *copies) {
    struct hr_frozen_array array;
    int r = hr_frozen_array(frozen->data, item, &array);
    if (r < 0) return frozen_raise(r);
    switch (array.kind) {
    case HR_ARRAY_NUMPY:
        return numpy_array(frozen, &array, copies);
    case HR_ARRAY_NUMPY_SCALAR:
        return numpy_scalar(frozen, &array);
    case HR_ARRAY_TORCH:
        return tensor(frozen, &array, copies);
    default:
        return damaged("an array");
    }
}

PyObject *read_array(struct frozen *frozen, const struct hr_item *item) {
    return any_array(frozen, item, NULL);
}

PyObject *read_private_array(struct frozen *frozen, const struct hr_item *item, struct map *copies) {
    return any_array(frozen, item, copies);
}

/* ---- items ---- */

static PyObject *read_record(struct frozen *frozen, const struct hr_item *item) {
    const struct shape *shape = frozen_shape(frozen, item->shape);
    if (!shape) return NULL;
    return shape->kind == HR_SHAPE_DICT ? view_new(frozen, item, 0) : thaw_item(frozen, item, THAW_RECORD);
}

/* A deque, Counter... becomes a view of its items. A Decimal, a date, an array of objects in rows... is made as an
 * ordinary object. */
static PyObject *read_typed(struct frozen *frozen, const struct hr_item *item) {
    struct hr_item extra, items;
    int r = typed_parts(frozen, item, &extra, &items);
    if (r < 0) return NULL;
    return r > 0 ? view_new(frozen, &items, item->value) : thaw_item(frozen, item, THAW_ALL);
}

static PyObject *read_whole(struct frozen *frozen, const struct hr_item *item) {
    switch (item->kind) {
    case HR_KIND_INT: /* the most frequent ones first */
        return PyLong_FromLongLong(item->integer);
    case HR_KIND_TEXT:
        return read_text(frozen, item);
    case HR_KIND_LIST:
    case HR_KIND_TUPLE:
    case HR_KIND_DICT:
    case HR_KIND_SET:
    case HR_KIND_FROZEN_SET:
        return view_new(frozen, item, 0);
    case HR_KIND_RECORD:
        return read_record(frozen, item);
    case HR_KIND_ARRAY:
        return read_array(frozen, item);
    case HR_KIND_TYPED:
        return read_typed(frozen, item);
    default:
        break;
    }
    PyObject *scalar = read_scalar(frozen, item);
    return scalar || PyErr_Occurred() ? scalar : damaged("a value");
}

PyObject *read_key(struct frozen *frozen, const struct hr_item *item) {
    PyObject *scalar = read_scalar(frozen, item);
    return scalar || PyErr_Occurred() ? scalar : thaw_item(frozen, item, THAW_KEY);
}

PyObject *read_item(struct frozen *frozen, const struct hr_item *item) {
    if (frozen->small_items && has_items(item) && item->count <= frozen->small_items) {
        PyObject *object = thaw_small(frozen, item, frozen->small_items);
        if (object || PyErr_Occurred()) return object;
    }
    return read_whole(frozen, item);
}

PyObject *read_view(struct frozen *frozen, hr_value value) {
    struct hr_item item;
    int r = hr_frozen_read(frozen->data, value, &item);
    return r < 0 ? frozen_raise(r) : read_whole(frozen, &item);
}
