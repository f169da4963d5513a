/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the Python objects of a received batch. */
#include "exchange/decode.h"

struct decoder {
    const struct origin *origin;
    struct hr_batch_reader reader;
    PyObject *types; /* borrowed: named tuple classes by their pickle */
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
    PyObject *bytes = PyBytes_FromStringAndSize(node->bytes, (Py_ssize_t)node->length);
    PyObject *children = bytes ? decode_list(decoder, node->count) : NULL;
    PyObject *result = children ? PyObject_CallFunctionObjArgs(core.load, bytes, children, NULL) : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(children);
    return result;
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
        return sink_array(decoder->origin, node);
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

PyObject *decode(const struct origin *origin, PyObject *types) {
    struct decoder decoder = {.origin = origin, .types = types};
    int r = hr_batch_read(&decoder.reader, origin->data, origin->bytes);
    return r < 0 ? core_raise(r) : decode_node(&decoder);
}
