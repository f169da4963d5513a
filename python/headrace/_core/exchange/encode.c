/* SPDX-License-Identifier: Apache-2.0 */
/* Turns the Python objects of a batch into a tree, or into a pickle. */
#include "exchange/encode.h"

#include <errno.h>
#include <string.h>

enum {
    FIRST_ROOM = 64,       /* a power of two; it stays one when it grows */
    LARGE_BYTES = 16 << 10 /* sending a text of this size twice costs more than a pickle */
};

int encoder_init(struct encoder *encoder) {
    *encoder = (struct encoder){.seen_types = PyDict_New()};
    int r = hr_batch_new(&encoder->batch);
    if (r < 0) core_raise(r);
    encoder->seen = PyMem_Calloc(FIRST_ROOM, sizeof *encoder->seen);
    encoder->seen_room = FIRST_ROOM;
    if (!encoder->seen) PyErr_NoMemory();
    return r < 0 || !encoder->seen_types || !encoder->seen ? -1 : 0;
}

void encoder_free(struct encoder *encoder) {
    encoder->batch = hr_batch_free(encoder->batch);
    inputs_free(&encoder->inputs);
    recipes_free(&encoder->recipes);
    Py_CLEAR(encoder->seen_types);
    PyMem_Free(encoder->seen);
    encoder->seen = NULL;
}

static void forget_seen(struct encoder *encoder) {
    encoder->seen_most = Py_MAX(encoder->seen_most, encoder->seen_count);
    if (encoder->seen_count) memset(encoder->seen, 0, encoder->seen_room * sizeof *encoder->seen);
    encoder->seen_count = 0;
}

/* Frees a large set of which little was used, because all of it is cleared for each batch. */
static void give_back_room(struct encoder *encoder) {
    enum { MUCH = 1 << 16, LITTLE = 16 /* a sixteenth */ };
    bool is_spacious = encoder->seen_room > MUCH && encoder->seen_most < encoder->seen_room / LITTLE;
    const void **smaller = is_spacious ? PyMem_Realloc(encoder->seen, FIRST_ROOM * sizeof *smaller) : NULL;
    if (smaller) {
        encoder->seen = smaller;
        encoder->seen_room = FIRST_ROOM;
    }
    encoder->seen_most = 0;
}

void encoder_reset(struct encoder *encoder, bool is_done) {
    hr_batch_reset(encoder->batch);
    encoder->recipes.count = 0; /* their images and steps belong to the inputs */
    encoder->rows = NULL;
    inputs_clear(&encoder->inputs);
    forget_seen(encoder);
    if (is_done) give_back_room(encoder);
    encoder->tensor_count = 0;
}

enum found encode_result(int code) {
    if (code >= 0) return FOUND;
    if (code == -EINVAL) return FOUND_NOT; /* too deep for a tree */
    core_raise(code);
    return FOUND_ERROR;
}

/* ---- the objects that were met before ---- */

/* Returns the first place to check for an object. Large storages are whole pages apart, so the upper bits of the
 * product are used, which differ. */
static size_t place_of(const void *object, size_t room) {
    return ((uint64_t)(uintptr_t)object >> 4) * 0x9e3779b97f4a7c15u >> 32 & (room - 1);
}

static void insert(const void **table, size_t room, const void *object) {
    size_t at = place_of(object, room);
    while (table[at] && table[at] != object) at = (at + 1) & (room - 1);
    table[at] = object;
}

static int grow_seen(struct encoder *encoder) {
    size_t room = 2 * encoder->seen_room;
    const void **larger = PyMem_Calloc(room, sizeof *larger);
    if (!larger) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < encoder->seen_room; i++)
        if (encoder->seen[i]) insert(larger, room, encoder->seen[i]);
    PyMem_Free(encoder->seen);
    encoder->seen = larger;
    encoder->seen_room = room;
    return 0;
}

/* FOUND the first time; FOUND_NOT if this object was met before, because a tree would make two objects of it. */
static enum found meet(struct encoder *encoder, const void *object) {
    size_t at = place_of(object, encoder->seen_room);
    for (; encoder->seen[at]; at = (at + 1) & (encoder->seen_room - 1))
        if (encoder->seen[at] == object) return FOUND_NOT;
    encoder->seen[at] = object;
    encoder->seen_count++;
    return 2 * encoder->seen_count > encoder->seen_room && grow_seen(encoder) < 0 ? FOUND_ERROR : FOUND;
}

/* Finds the start of a tensor's storage. The data of an empty tensor may be NULL although it has a storage. -1:
 * exception. */
static int storage_of(const struct seen_tensor *one, const char **ret_storage) {
    PyObject *number, *storage = NULL;
    if (one->data)
        number = PyObject_CallMethodNoArgs(one->tensor, core.names.storage_offset);
    else {
        storage = PyObject_CallMethodNoArgs(one->tensor, core.names.untyped_storage);
        number = storage ? PyObject_CallMethodNoArgs(storage, core.names.data_ptr) : NULL;
    }
    uint64_t value = number ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(storage);
    Py_XDECREF(number);
    if (PyErr_Occurred()) return -1;
    *ret_storage = one->data ? one->data - value * one->item_bytes : (const char *)(uintptr_t)value;
    return 0;
}

static enum found meet_storage(struct encoder *encoder, const struct seen_tensor *one) {
    const char *storage;
    if (storage_of(one, &storage) < 0) return FOUND_ERROR;
    return storage ? meet(encoder, storage + 1) : FOUND; /* odd, so that it is not the address of an object */
}

/* Two tensors that share a storage must share one in the trainer too: FOUND_NOT at the second. */
static enum found meet_storage_of(struct encoder *encoder, PyObject *tensor, const struct hr_array *array) {
    struct seen_tensor one = {tensor, array->data, (uint64_t)array->dtype.bits * array->dtype.lanes / 8};
    if (encoder->tensor_count++ == 0) {
        encoder->first_tensor = one; /* while it is the only tensor, its storage is not needed */
        return FOUND;
    }
    enum found found = encoder->tensor_count == 2 ? meet_storage(encoder, &encoder->first_tensor) : FOUND;
    return found == FOUND ? meet_storage(encoder, &one) : found;
}

/* Checks a text, or bytes. FOUND_NOT if it is large and this object was met before, because a pickle sends it once. */
static enum found meet_immutable(struct encoder *encoder, PyObject *object, size_t bytes) {
    return bytes < LARGE_BYTES ? FOUND : meet(encoder, object);
}

/* ---- leaves ---- */

static enum found encode_int(struct encoder *encoder, PyObject *object) {
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow ? FOUND_NOT : encode_result(hr_batch_add_int(encoder->batch, value));
}

static enum found encode_text(struct encoder *encoder, PyObject *object) {
    Py_ssize_t length;
    const char *utf8 = PyUnicode_AsUTF8AndSize(object, &length);
    if (!utf8) {
        PyErr_Clear(); /* a lone surrogate: pickle can store it */
        return FOUND_NOT;
    }
    enum found found = meet_immutable(encoder, object, (size_t)length);
    return found == FOUND ? encode_result(hr_batch_add_text(encoder->batch, utf8, (size_t)length)) : found;
}

static enum found encode_bytes(struct encoder *encoder, PyObject *object) {
    size_t length = (size_t)PyBytes_GET_SIZE(object);
    enum found found = meet_immutable(encoder, object, length);
    return found == FOUND ? encode_result(hr_batch_add_bytes(encoder->batch, PyBytes_AS_STRING(object), length))
                          : found;
}

/* Returns true if the strides are those of a new array of this shape, in dimensions of size 1 too, because a tensor
 * keeps all its strides. */
static bool has_c_strides(const struct hr_array *array) {
    int64_t expected = 1;
    for (uint32_t i = array->ndim; i-- > 0;) {
        if (array->strides[i] != expected) return false;
        expected *= array->shape[i] ? array->shape[i] : 1;
    }
    return true;
}

/* The bytes that a tensor's elements span. Strides are not negative in torch. */
static uint64_t span_bytes(const struct hr_array *array) {
    uint64_t last = 0;
    for (uint32_t i = 0; i < array->ndim; i++) {
        if (array->shape[i] == 0) return 0;
        last += (uint64_t)(array->shape[i] - 1) * (uint64_t)array->strides[i];
    }
    return (last + 1) * array->dtype.bits * array->dtype.lanes / 8;
}

static uint64_t compact_bytes(const struct hr_array *array) {
    uint64_t bytes = (uint64_t)array->dtype.bits * array->dtype.lanes / 8;
    for (uint32_t i = 0; i < array->ndim; i++)
        if (__builtin_mul_overflow(bytes, (uint64_t)array->shape[i], &bytes))
            return UINT64_MAX; /* the tensor is expanded */
    return bytes;
}

/* A tensor with strides that are not those of C order is sent as the run of memory that it spans, and keeps its
 * strides, also if it is empty. It is not done if the tensor uses only a small part of this memory. */
static enum found encode_tensor(struct encoder *encoder, PyObject *object) {
    enum { WASTE = 4 };
    struct hr_array array;
    enum found found = input_tensor(&encoder->inputs, object, &array);
    if (found == FOUND) found = meet_storage_of(encoder, object, &array);
    if (found != FOUND) return found;
    uint64_t span = span_bytes(&array);
    if (has_c_strides(&array) || span / WASTE > compact_bytes(&array))
        return encode_result(hr_batch_add_array(encoder->batch, HR_FLAVOR_TENSOR, &array));
    uint32_t storage;
    found = encode_result(hr_batch_add_storage(encoder->batch, array.data, span, &storage));
    if (found == FOUND) found = encode_result(hr_batch_add_view(encoder->batch, HR_FLAVOR_TENSOR, storage, 0, &array));
    return found;
}

static enum found encode_array(struct encoder *encoder, PyObject *object) {
    struct hr_array array;
    enum found found = input_array(&encoder->inputs, object, &array);
    if (found != FOUND) return found;
    return encode_result(hr_batch_add_array(encoder->batch, HR_FLAVOR_NUMPY, &array));
}

/* ---- containers ---- */

static enum found encode_items(struct encoder *encoder, PyObject *sequence, int depth) {
    enum found found = FOUND;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
    for (Py_ssize_t i = 0; found == FOUND && i < count; i++) {
        if (PySequence_Fast_GET_SIZE(sequence) != count) return FOUND_NOT; /* another thread changes it */
        PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(sequence, i));
        found = encode_node(encoder, item, depth + 1);
        Py_DECREF(item);
    }
    return found;
}

static enum found encode_dict(struct encoder *encoder, PyObject *dict, int depth) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    Py_ssize_t count = PyDict_GET_SIZE(dict);
    enum found found = encode_result(hr_batch_open(encoder->batch, HR_NODE_DICT, (uint32_t)count));
    while (found == FOUND && PyDict_Next(dict, &at, &key, &value)) {
        Py_INCREF(key);
        Py_INCREF(value);
        found = encode_node(encoder, key, depth + 1);
        if (found == FOUND) found = encode_node(encoder, value, depth + 1);
        Py_DECREF(key);
        Py_DECREF(value);
        if (found == FOUND && PyDict_GET_SIZE(dict) != count) return FOUND_NOT; /* another thread changes it */
    }
    return found;
}

/* Returns true if a class makes its instances as collections.namedtuple does: from one value per field, without other
 * code. */
static bool has_namedtuples_new(PyTypeObject *type) {
    PyObject *made = PyDict_GetItemString(type->tp_dict, "__new__"); /* the function of a staticmethod */
    PyObject *function = made ? PyObject_GetAttrString(made, "__func__") : NULL;
    if (!function) PyErr_Clear();
    PyObject *globals = function && PyFunction_Check(function) ? PyFunction_GET_GLOBALS(function) : NULL;
    bool has = globals && PyDict_GetItemString(globals, "_tuple_new");
    Py_XDECREF(function);
    return has;
}

/* Returns true for a plain collections.namedtuple or typing.NamedTuple, which has nothing but its fields. */
bool is_named_tuple(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    return type->tp_base == &PyTuple_Type && type->tp_dictoffset == 0 && type->tp_dict &&
           type->tp_iter == PyTuple_Type.tp_iter && PyDict_GetItemString(type->tp_dict, "_fields") &&
           !PyDict_GetItemString(type->tp_dict, "__reduce__") &&
           !PyDict_GetItemString(type->tp_dict, "__reduce_ex__") && has_namedtuples_new(type);
}

int encode_class(struct encoder *encoder, PyObject *type) {
    PyObject *bytes = PyDict_GetItemWithError(encoder->seen_types, type);
    if (!bytes) {
        PyObject *dumped = PyErr_Occurred() ? NULL : PyObject_CallFunctionObjArgs(core.dump, type, NULL);
        if (!dumped) return -1;
        bytes = PyTuple_GetItem(dumped, 0);
        int r = bytes ? PyDict_SetItem(encoder->seen_types, type, bytes) : -1;
        Py_DECREF(dumped);
        if (r < 0) return -1;
    }
    int r = hr_batch_add_bytes(encoder->batch, PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes));
    if (r < 0) core_raise(r);
    return r < 0 ? -1 : 0;
}

static enum found encode_named(struct encoder *encoder, PyObject *object, int depth) {
    enum found found = encode_result(hr_batch_open(encoder->batch, HR_NODE_NAMED, (uint32_t)PyTuple_GET_SIZE(object)));
    if (found == FOUND && encode_class(encoder, (PyObject *)Py_TYPE(object)) < 0) return FOUND_ERROR;
    return found == FOUND ? encode_items(encoder, object, depth) : found;
}

static enum found encode_sequence(struct encoder *encoder, enum hr_node_kind kind, PyObject *object, int depth) {
    Py_ssize_t count = PySequence_Fast_GET_SIZE(object);
    if (count > INT32_MAX) return FOUND_NOT;
    enum found found = encode_result(hr_batch_open(encoder->batch, kind, (uint32_t)count));
    return found == FOUND ? encode_items(encoder, object, depth) : found;
}

/* ---- anything else ---- */

static enum found encode_child(struct encoder *encoder, PyObject *child) {
    struct hr_array array;
    enum found found;
    if (is_tensor(child)) {
        found = input_tensor(&encoder->inputs, child, &array);
        return found == FOUND ? encode_result(hr_batch_add_array(encoder->batch, HR_FLAVOR_TENSOR, &array)) : found;
    }
    found = input_array(&encoder->inputs, child, &array);
    if (found != FOUND) return found;
    return encode_result(hr_batch_add_array(encoder->batch, HR_FLAVOR_BUFFER, &array));
}

/* Pickles the object; its large parts become the node's children. */
static enum found encode_pickle(struct encoder *encoder, PyObject *object) {
    PyObject *dump = encoder->dump ? encoder->dump : core.dump;
    PyObject *dumped = PyObject_CallFunctionObjArgs(dump, object, NULL), *bytes, *children;
    if (!dumped) return FOUND_ERROR;
    enum found found = FOUND_ERROR;
    if (PyArg_ParseTuple(dumped, "SO!:dump", &bytes, &PyList_Type, &children)) {
        Py_ssize_t count = PyList_GET_SIZE(children);
        found = encode_result(hr_batch_open_pickle(encoder->batch, PyBytes_AS_STRING(bytes),
                                                   (size_t)PyBytes_GET_SIZE(bytes), (uint32_t)count));
        for (Py_ssize_t i = 0; found == FOUND && i < count; i++)
            found = encode_child(encoder, PyList_GET_ITEM(children, i));
    }
    Py_DECREF(dumped);
    return found;
}

static enum found encode_container(struct encoder *encoder, PyObject *object, int depth) {
    bool is_named = PyTuple_Check(object) && !PyTuple_CheckExact(object);
    if (depth >= HR_BATCH_MAX_DEPTH) return FOUND_NOT;
    if (!(PyTuple_CheckExact(object) && PyTuple_GET_SIZE(object) == 0)) { /* all empty tuples are the same object */
        enum found found = meet(encoder, object);
        if (found != FOUND) return found;
    }
    if (PyDict_Check(object)) return encode_dict(encoder, object, depth);
    if (is_named) return encode_named(encoder, object, depth);
    return encode_sequence(encoder, PyList_Check(object) ? HR_NODE_LIST : HR_NODE_TUPLE, object, depth);
}

static bool is_container(PyObject *object) {
    return PyList_CheckExact(object) || PyTuple_CheckExact(object) || PyDict_CheckExact(object) ||
           (PyTuple_Check(object) && is_named_tuple(object));
}

/* Returns true for a tensor to which a program has given attributes, which only a pickle keeps. */
static bool has_attributes(PyObject *tensor) {
    PyObject *dict = PyObject_GenericGetDict(tensor, NULL);
    bool has = dict && PyDict_Check(dict) && PyDict_GET_SIZE(dict) > 0;
    if (!dict) PyErr_Clear();
    Py_XDECREF(dict);
    return has;
}

static enum found encode_leaf(struct encoder *encoder, PyObject *object) {
    if (!is_tensor(object) && !is_array(object)) return FOUND_NOT;
    if (encoder->dump && is_tensor(object) && has_attributes(object)) return FOUND_NOT;
    enum found found = meet(encoder, object);
    if (found != FOUND) return found;
    return is_tensor(object) ? encode_tensor(encoder, object) : encode_array(encoder, object);
}

enum found encode_node(struct encoder *encoder, PyObject *object, int depth) {
    hr_batch *batch = encoder->batch;
    if (object == Py_None) return encode_result(hr_batch_add_none(batch));
    if (PyBool_Check(object)) return encode_result(hr_batch_add_bool(batch, object == Py_True));
    if (PyLong_CheckExact(object)) return encode_int(encoder, object);
    if (PyFloat_CheckExact(object)) return encode_result(hr_batch_add_float(batch, PyFloat_AS_DOUBLE(object)));
    if (PyUnicode_CheckExact(object)) return encode_text(encoder, object);
    if (PyBytes_CheckExact(object)) return encode_bytes(encoder, object);
    if (is_container(object)) return encode_container(encoder, object, depth);
    return encode_leaf(encoder, object);
}

/* An object that is not a tree of plain parts is pickled as a whole, because only one pickle keeps the identity of all
 * parts. Its arrays and tensors are still leaves of the batch. */
int encode(struct encoder *encoder, PyObject *object) {
    enum found found = encode_node(encoder, object, 0);
    if (found == FOUND_NOT) {
        encoder_reset(encoder, false);
        found = encode_pickle(encoder, object);
        if (found == FOUND_NOT) PyErr_SetString(PyExc_RuntimeError, "headrace: a batch could not be encoded");
    }
    return found == FOUND ? 0 : -1;
}
