/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the Python objects of a received batch. */
#include "exchange/decode.h"

struct decoder {
    const struct origin *origin;
    struct hr_batch_reader reader;
    PyObject *types; /* borrowed: named tuple classes by their pickle */
    struct moved *moved;
    Py_ssize_t moved_count;
    bool is_in_pickle;
};

static PyObject *decode_node(struct decoder *decoder);

static PyObject *decode_list(struct decoder *decoder, uint32_t count) {
    PyObject *list = PyList_New(0); /* grows with the nodes that exist, because the count in the batch may be wrong */
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *item = decode_node(decoder);
        if (!item || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *decode_tuple(struct decoder *decoder, uint32_t count) {
    PyObject *list = decode_list(decoder, count);
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static PyObject *decode_dict(struct decoder *decoder, uint32_t count) {
    PyObject *dict = PyDict_New();
    for (uint32_t i = 0; dict && i < count; i++) {
        PyObject *key = decode_node(decoder);
        PyObject *value = key ? decode_node(decoder) : NULL;
        if (!value || PyDict_SetItem(dict, key, value) < 0) Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return dict;
}

/* Borrowed: the class that a pickle names. */
static PyObject *class_of(struct decoder *decoder, PyObject *pickle) {
    PyObject *type = PyDict_GetItemWithError(decoder->types, pickle);
    if (type || PyErr_Occurred()) return type;
    PyObject *none = PyList_New(0);
    type = none ? PyObject_CallFunctionObjArgs(core.load, pickle, none, NULL) : NULL;
    Py_XDECREF(none);
    if (!type) return NULL;
    int r = PyDict_SetItem(decoder->types, pickle, type);
    Py_DECREF(type);
    return r < 0 ? NULL : type;
}

static PyObject *decode_named(struct decoder *decoder, uint32_t count) {
    PyObject *pickle = decode_node(decoder);
    PyObject *type = pickle ? class_of(decoder, pickle) : NULL;
    PyObject *fields = type ? decode_tuple(decoder, count) : NULL;
    PyObject *result = NULL;
    if (fields && PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        PyObject *arguments = PyTuple_Pack(1, fields);
        if (arguments) result = PyTuple_Type.tp_new((PyTypeObject *)type, arguments, NULL);
        Py_XDECREF(arguments);
    }
    Py_XDECREF(pickle);
    Py_XDECREF(fields);
    return result;
}

static PyObject *decode_pickle(struct decoder *decoder, const struct hr_node *node) {
    bool was_in_pickle = decoder->is_in_pickle;
    decoder->is_in_pickle = true;
    if (decoder->moved) decoder->moved->has_others = true;
    PyObject *bytes = PyBytes_FromStringAndSize(node->bytes, (Py_ssize_t)node->length);
    PyObject *children = bytes ? decode_list(decoder, node->count) : NULL;
    decoder->is_in_pickle = was_in_pickle;
    PyObject *result = children ? PyObject_CallFunctionObjArgs(core.load, bytes, children, NULL) : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(children);
    return result;
}

/* Returns the dimension of more than one element, not in `done`, whose stride is `step`; or ndim. */
static uint32_t find_dimension(const struct hr_node *node, uint64_t done, int64_t step) {
    uint32_t d = 0;
    while (d < node->ndim && (done >> d & 1 || node->shape[d] == 1 || node->strides[d] != step)) d++;
    return d;
}

/* Returns true if the elements fill the storage, each place once, in any order of the dimensions (at most
 * HR_BATCH_MAX_NDIM, 64). */
static bool fills_storage(const struct hr_node *node) {
    int64_t step = 1;
    uint64_t done = 0;
    for (uint32_t d = find_dimension(node, done, 1); d < node->ndim; d = find_dimension(node, done, step)) {
        done |= UINT64_C(1) << d;
        step *= node->shape[d];
    }
    for (uint32_t d = 0; d < node->ndim; d++)
        if (node->shape[d] != 1 && !(done >> d & 1)) return false;
    uint64_t bytes = (uint64_t)step * node->dtype.bits * node->dtype.lanes / 8;
    return bytes == node->storage_bytes && node->data_offset == node->storage_offset;
}

/* A part of a storage, or a tensor without elements, is moved by torch. */
static bool is_copied_as_it_is(const struct hr_node *node) {
    return node->flavor == HR_FLAVOR_TENSOR && node->storage_bytes && fills_storage(node);
}

static PyObject *decode_array(struct decoder *decoder, const struct hr_node *node) {
    struct moved *moved = decoder->moved;
    if (!moved) return output_array(decoder->origin, node);
    if (decoder->is_in_pickle || !is_copied_as_it_is(node)) {
        moved->has_others = moved->has_others || node->flavor == HR_FLAVOR_TENSOR;
        return output_array(decoder->origin, node);
    }
    PyObject *tensor = PyList_GetItem(moved->tensors, decoder->moved_count++);
    return Py_XNewRef(tensor);
}

static PyObject *build(struct decoder *decoder, const struct hr_node *node) {
    switch (node->kind) {
    case HR_NODE_NONE:
        return Py_NewRef(Py_None);
    case HR_NODE_BOOL:
        return PyBool_FromLong(node->integer != 0);
    case HR_NODE_INT:
        return PyLong_FromLongLong(node->integer);
    case HR_NODE_FLOAT:
        return PyFloat_FromDouble(node->real);
    case HR_NODE_TEXT:
        return PyUnicode_DecodeUTF8(node->bytes, (Py_ssize_t)node->length, NULL);
    case HR_NODE_BYTES:
        return PyBytes_FromStringAndSize(node->bytes, (Py_ssize_t)node->length);
    case HR_NODE_TUPLE:
        return decode_tuple(decoder, node->count);
    case HR_NODE_LIST:
        return decode_list(decoder, node->count);
    case HR_NODE_DICT:
        return decode_dict(decoder, node->count);
    case HR_NODE_NAMED:
        return decode_named(decoder, node->count);
    case HR_NODE_ARRAY:
        return decode_array(decoder, node);
    case HR_NODE_PICKLE:
        return decode_pickle(decoder, node);
    case HR_NODE_KIND_END_:
        break;
    }
    return PyErr_Format(PyExc_RuntimeError, "headrace: a batch has a node of unknown kind %d", (int)node->kind);
}

static PyObject *decode_node(struct decoder *decoder) {
    struct hr_node node;
    int r = hr_batch_read_node(&decoder->reader, &node);
    if (r < 0) return core_raise(r);
    if (r == 0) return PyErr_Format(PyExc_RuntimeError, "headrace: a batch is incomplete");
    if (Py_EnterRecursiveCall(" while receiving a batch")) return NULL;
    PyObject *object = build(decoder, &node);
    Py_LeaveRecursiveCall();
    return object;
}

PyObject *decode(const struct origin *origin, PyObject *types, struct moved *moved) {
    struct decoder decoder = {.origin = origin, .types = types, .moved = moved};
    int r = hr_batch_read(&decoder.reader, origin->data, origin->bytes);
    return r < 0 ? core_raise(r) : decode_node(&decoder);
}

/* ---- what is copied to a device ---- */

static bool add_source(const struct origin *origin, const struct hr_node *node, PyObject *list) {
    if (!is_copied_as_it_is(node)) return true;
    PyObject *tensor = output_array(origin, node);
    bool is_added = tensor && PyList_Append(list, tensor) == 0;
    Py_XDECREF(tensor);
    return is_added;
}

/* The number of nodes that follow a node as its children. */
static uint64_t count_children(const struct hr_node *node) {
    uint64_t is_container = node->kind == HR_NODE_TUPLE || node->kind == HR_NODE_LIST || node->kind == HR_NODE_PICKLE;
    if (node->kind == HR_NODE_DICT) return 2 * (uint64_t)node->count;
    return node->kind == HR_NODE_NAMED ? 1 + (uint64_t)node->count : is_container * node->count;
}

/* The nodes come in the order of `decode`. Those inside a pickle are counted down. */
static bool add_sources(const struct origin *origin, PyObject *list) {
    struct hr_batch_reader reader;
    struct hr_node node;
    uint64_t in_pickle = 0;
    int r = hr_batch_read(&reader, origin->data, origin->bytes);
    while (r >= 0 && (r = hr_batch_read_node(&reader, &node)) > 0) {
        if (!in_pickle && node.kind == HR_NODE_ARRAY && !add_source(origin, &node, list)) return false;
        if (in_pickle || node.kind == HR_NODE_PICKLE) in_pickle += count_children(&node) - (in_pickle > 0);
    }
    if (r < 0) core_raise(r);
    return r >= 0;
}

PyObject *decode_sources(const struct origin *origin) {
    PyObject *list = PyList_New(0);
    if (list && !add_sources(origin, list)) Py_CLEAR(list);
    return list;
}
