/* SPDX-License-Identifier: Apache-2.0 */
/* Reads arrays and tensors of a batch in the worker, and keeps them alive until they are copied. */
#include "exchange/arrays.h"

#include <string.h>

/* ---- the objects that are kept alive ---- */

static void *grow(void *items, size_t count, size_t *room, size_t size) {
    if (count < *room) return items;
    size_t larger = *room ? 2 * *room : 16;
    void *moved = PyMem_Realloc(items, larger * size);
    if (!moved) return PyErr_NoMemory();
    *room = larger;
    return moved;
}

static Py_buffer *new_buffer(struct inputs *inputs) {
    Py_buffer *buffers = grow(inputs->buffers, inputs->buffer_count, &inputs->buffer_room, sizeof *buffers);
    if (!buffers) return NULL;
    inputs->buffers = buffers;
    return &buffers[inputs->buffer_count];
}

int inputs_keep(struct inputs *inputs, PyObject *object) {
    PyObject **objects = grow(inputs->objects, inputs->object_count, &inputs->object_room, sizeof(PyObject *));
    if (!objects) return -1;
    inputs->objects = objects;
    objects[inputs->object_count++] = Py_NewRef(object);
    return 0;
}

void *inputs_room(struct inputs *inputs, size_t bytes) {
    PyObject *keeper = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    int r = keeper ? inputs_keep(inputs, keeper) : -1;
    Py_XDECREF(keeper);
    return r < 0 ? NULL : PyBytes_AS_STRING(keeper);
}

void inputs_clear(struct inputs *inputs) {
    while (inputs->buffer_count) PyBuffer_Release(&inputs->buffers[--inputs->buffer_count]);
    while (inputs->object_count) Py_DECREF(inputs->objects[--inputs->object_count]);
}

void inputs_free(struct inputs *inputs) {
    inputs_clear(inputs);
    PyMem_Free(inputs->buffers);
    PyMem_Free(inputs->objects);
    *inputs = (struct inputs){0};
}

bool array_is_c_order(const struct hr_array *array) {
    bool is_c_order = true;
    int64_t expected = 1;
    for (uint32_t i = array->ndim; i-- > 0;) {
        if (!array->shape[i]) return true;
        is_c_order = is_c_order && (array->shape[i] == 1 || array->strides[i] == expected);
        expected *= array->shape[i];
    }
    return is_c_order;
}

/* ---- tensors ---- */

bool is_tensor(PyObject *object) {
    return (PyObject *)Py_TYPE(object) == core.tensor_type;
}

/* Returns 1 if an answer of Python is True, 0 if not, -1 with an exception. Steals the reference. */
static int is_true(PyObject *answer) {
    if (!answer) return -1;
    Py_DECREF(answer);
    return answer == Py_True;
}

/* Tensors with gradients are pickled, so that those that torch refuses are refused. -1: exception. */
static int wants_gradient(PyObject *tensor) {
    return is_true(PyObject_GetAttr(tensor, core.names.requires_grad));
}

/* Conjugated and negated views are lazy: their bytes differ from their values. -1: exception. */
static int is_lazy(PyObject *tensor, bool is_complex) {
    int lazy = is_complex ? is_true(PyObject_CallMethodNoArgs(tensor, core.names.is_conj)) : 0;
    return lazy ? lazy : is_true(PyObject_CallMethodNoArgs(tensor, core.names.is_neg));
}

/* DLPack describes the dtypes int1 to int7 and uint1 to uint7 of torch as if they had 8 bits. -1: exception. */
static int is_disguised(PyObject *tensor, struct dl_dtype described) {
    enum { INT = 0, UINT = 1 };
    if (described.bits != 8 || described.code > UINT) return 0;
    PyObject *dtype = PyObject_GetAttr(tensor, core.names.dtype);
    if (!dtype) return -1;
    Py_DECREF(dtype); /* dtypes are never freed */
    return dtype != (described.code == INT ? core.int8 : core.uint8);
}

/* The capsules of torch before 2.10 have a stride of 1 for each dimension of size 0 or 1. -1: exception. */
static int read_strides(struct inputs *inputs, PyObject *tensor, struct dl_tensor *description) {
    size_t ndim = (size_t)description->ndim;
    int64_t *strides = inputs_room(inputs, ndim * sizeof *strides);
    PyObject *found = strides ? PyObject_CallMethodNoArgs(tensor, core.names.stride) : NULL;
    if (!found) return -1;
    if (!PyTuple_Check(found) || PyTuple_GET_SIZE(found) != (Py_ssize_t)ndim)
        PyErr_SetString(PyExc_RuntimeError, "headrace: stride() of a tensor has not one number for each dimension");
    for (size_t i = 0; i < ndim && !PyErr_Occurred(); i++) strides[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(found, i));
    Py_DECREF(found);
    description->strides = strides;
    return PyErr_Occurred() ? -1 : 0;
}

/* Without an exchange table, the tensor gives a capsule. The inputs keep it alive, and with it the description of the
 * tensor. */
static enum found describe_by_capsule(struct inputs *inputs, PyObject *tensor, struct dl_tensor *ret_tensor) {
    PyObject *capsule = PyObject_CallMethod(tensor, "__dlpack__", NULL);
    struct dl_managed *managed = capsule ? PyCapsule_GetPointer(capsule, "dltensor") : NULL;
    if (!managed) {
        Py_XDECREF(capsule);
        return FOUND_ERROR;
    }
    *ret_tensor = managed->tensor;
    int r = inputs_keep(inputs, capsule);
    Py_DECREF(capsule);
    return r < 0 || read_strides(inputs, tensor, ret_tensor) < 0 ? FOUND_ERROR : FOUND;
}

static enum found describe(struct inputs *inputs, PyObject *tensor, struct dl_tensor *ret_tensor) {
    if (!core.exchange) return describe_by_capsule(inputs, tensor, ret_tensor);
    return core.exchange->describe(tensor, ret_tensor) == 0 ? FOUND : FOUND_ERROR;
}

/* The tensors of zeros that automatic differentiation makes have elements, but no memory. */
static bool lacks_memory(const struct dl_tensor *tensor) {
    bool has_elements = true;
    for (int32_t i = 0; i < tensor->ndim; i++) has_elements = has_elements && tensor->shape[i] > 0;
    return has_elements && !tensor->data;
}

enum found input_tensor(struct inputs *inputs, PyObject *object, struct hr_array *ret_array) {
    enum { COMPLEX = 5, FLOAT = 2 };
    struct dl_tensor tensor;
    int gradient = wants_gradient(object);
    if (gradient != 0) return gradient < 0 ? FOUND_ERROR : FOUND_NOT;
    if (describe(inputs, object, &tensor) != FOUND) {
        if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) return FOUND_ERROR;
        PyErr_Clear(); /* sparse, quantized, meta...: these are pickled by the reductions of torch */
        return FOUND_NOT;
    }
    if (tensor.device.type != DL_CPU || tensor.dtype.bits * tensor.dtype.lanes % 8) return FOUND_NOT;
    if (tensor.dtype.code == COMPLEX || tensor.dtype.code == FLOAT) {
        int lazy = is_lazy(object, tensor.dtype.code == COMPLEX);
        if (lazy != 0) return lazy < 0 ? FOUND_ERROR : FOUND_NOT;
    }
    if (lacks_memory(&tensor)) return FOUND_NOT;
    int disguised = is_disguised(object, tensor.dtype);
    if (disguised != 0) return disguised < 0 ? FOUND_ERROR : FOUND_NOT;
    if (inputs_keep(inputs, object) < 0) return FOUND_ERROR;
    *ret_array = (struct hr_array){.data = (const char *)tensor.data + tensor.byte_offset,
                                   .dtype = {tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes},
                                   .ndim = (uint32_t)tensor.ndim,
                                   .shape = tensor.shape,
                                   .strides = tensor.strides};
    return FOUND;
}

/* ---- arrays ---- */

bool is_array(PyObject *object) {
    return core.array_type && (PyObject *)Py_TYPE(object) == core.array_type;
}

bool is_numpy(PyObject *object) {
    return is_array(object) || strncmp(Py_TYPE(object)->tp_name, "numpy.", 6) == 0;
}

/* Finds the element type of a buffer of plain numbers in the byte order of this machine. Returns false for anything
 * else. */
static bool dtype_of(const Py_buffer *view, struct hr_dtype *ret_dtype) {
    enum { INT = 0, UINT = 1, FLOAT = 2, COMPLEX = 5, BOOL = 6 };
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=') format++;
    bool is_complex = *format == 'Z';
    if (is_complex) format++;
    if (strlen(format) != 1) return false;
    int code = *format == '?'              ? BOOL
               : strchr("bhilqn", *format) ? INT
               : strchr("BHILQN", *format) ? UINT
               : !strchr("efdg", *format)  ? -1
               : is_complex                ? COMPLEX
                                           : FLOAT;
    if (code < 0 || (is_complex && code != COMPLEX) || view->itemsize > 31) return false;
    *ret_dtype = (struct hr_dtype){(uint8_t)code, (uint8_t)(8 * view->itemsize), 1};
    return true;
}

/* Buffers have strides in bytes. An array whose strides are not whole elements is encoded in another way. */
static bool has_whole_strides(const Py_buffer *view) {
    for (int i = 0; i < view->ndim; i++)
        if (view->strides[i] % view->itemsize) return false;
    return true;
}

enum found input_array(struct inputs *inputs, PyObject *object, struct hr_array *ret_array) {
    struct hr_dtype dtype;
    Py_buffer *view = new_buffer(inputs);
    if (!view) return FOUND_ERROR;
    if (PyObject_GetBuffer(object, view, PyBUF_STRIDED_RO | PyBUF_FORMAT) < 0) {
        PyErr_Clear(); /* arrays of dates and similar dtypes have no buffer */
        return FOUND_NOT;
    }
    inputs->buffer_count++;
    if (view->ndim && (!view->shape || !view->strides)) return FOUND_NOT; /* date scalars of numpy */
    if (!dtype_of(view, &dtype) || !has_whole_strides(view) || view->ndim > HR_BATCH_MAX_NDIM) return FOUND_NOT;
    size_t ndim = (size_t)view->ndim;
    int64_t *numbers = inputs_room(inputs, 2 * ndim * sizeof *numbers);
    if (!numbers) return FOUND_ERROR;
    for (size_t i = 0; i < ndim; i++) {
        numbers[i] = view->shape[i];
        numbers[ndim + i] = view->strides[i] / view->itemsize;
    }
    *ret_array = (struct hr_array){
        .data = view->buf, .dtype = dtype, .ndim = (uint32_t)ndim, .shape = numbers, .strides = numbers + ndim};
    return FOUND;
}
