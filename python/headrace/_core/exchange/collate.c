/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/encode.h"
#include "rows/rows.h"

/*
 * torch.utils.data.default_collate (torch/utils/data/_utils/collate.py) for exact types, directly into the batch.
 * Samples of other types, or of different types, are FOUND_NOT, and the Python function of torch collates them.
 */

static enum found collate_column(struct encoder *encoder, PyObject **items, uint32_t count, enum hr_flavor flavor,
                                 enum hr_node_kind column_kind);

/* Returns true if all items have exactly the type of the first. */
static bool is_uniform(PyObject **items, uint32_t count) {
    for (uint32_t i = 1; i < count; i++)
        if (Py_TYPE(items[i]) != Py_TYPE(items[0])) return false;
    return true;
}

/* ---- leaves ---- */

static bool are_alike(const struct hr_array *a, const struct hr_array *b) {
    if (a->ndim != b->ndim || a->dtype.code != b->dtype.code || a->dtype.bits != b->dtype.bits) return false;
    for (uint32_t i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i]) return false;
    return true;
}

bool is_for_torch(const struct hr_array *array, bool is_array) {
    enum { UINT = 1, COMPLEX = 5 };
    if (!is_array && array->dtype.code == UINT && array->dtype.bits == 64) return false;
    for (uint32_t i = 0; i < array->ndim; i++)
        if (array->strides[i] < 0) return false;
    return array->dtype.bits <= (array->dtype.code == COMPLEX ? 128 : 64);
}

static enum found collate_arrays(struct encoder *encoder, PyObject **items, uint32_t count, enum hr_flavor flavor) {
    enum found (*describe)(struct inputs *, PyObject *, struct hr_array *) =
        is_tensor(items[0]) ? input_tensor : input_array;
    struct hr_array *arrays = PyMem_Malloc(count * sizeof *arrays);
    bool has_shape = is_tensor(items[0]) || is_array(items[0]);
    enum found found = FOUND;
    if (!arrays) {
        PyErr_NoMemory();
        return FOUND_ERROR;
    }
    for (uint32_t i = 0; found == FOUND && i < count; i++) {
        found = describe(&encoder->inputs, items[i], &arrays[i]);
        if (found != FOUND) break;
        if (!has_shape && arrays[i].ndim)
            found = FOUND_NOT; /* an np.bytes_ has a buffer of its bytes, not of one number */
        if (flavor == HR_FLAVOR_TENSOR && !is_for_torch(&arrays[i], has_shape)) found = FOUND_NOT;
        if (i && !are_alike(&arrays[0], &arrays[i])) found = FOUND_NOT;
    }
    if (found == FOUND) found = encode_result(hr_batch_add_stack(encoder->batch, flavor, arrays, count));
    PyMem_Free(arrays);
    return found;
}

static enum found collate_floats(struct encoder *encoder, PyObject **items, uint32_t count, enum hr_flavor flavor) {
    void *data;
    int64_t shape[] = {count};
    enum found found =
        encode_result(hr_batch_add_filled(encoder->batch, flavor, (struct hr_dtype){2, 64, 1}, 1, shape, &data));
    for (uint32_t i = 0; found == FOUND && i < count; i++) ((double *)data)[i] = PyFloat_AS_DOUBLE(items[i]);
    return found;
}

static enum found collate_ints(struct encoder *encoder, PyObject **items, uint32_t count, enum hr_flavor flavor) {
    void *data;
    int overflow = 0;
    int64_t shape[] = {count};
    enum found found =
        encode_result(hr_batch_add_filled(encoder->batch, flavor, (struct hr_dtype){0, 64, 1}, 1, shape, &data));
    for (uint32_t i = 0; found == FOUND && !overflow && i < count; i++)
        ((int64_t *)data)[i] = PyLong_AsLongLongAndOverflow(items[i], &overflow);
    return overflow ? FOUND_NOT : found;
}

static enum found collate_bools(struct encoder *encoder, PyObject **items, uint32_t count, enum hr_flavor flavor) {
    void *data;
    int64_t shape[] = {count};
    enum found found =
        encode_result(hr_batch_add_filled(encoder->batch, flavor, (struct hr_dtype){6, 8, 1}, 1, shape, &data));
    for (uint32_t i = 0; found == FOUND && i < count; i++) ((uint8_t *)data)[i] = items[i] == Py_True;
    return found;
}

/* torch returns strings in the column in which it gathered them: a list, or a tuple if zip gathered them.
 * headrace.default_collate always returns a list. */
static enum found collate_strings(struct encoder *encoder, PyObject **items, uint32_t count,
                                  enum hr_node_kind column_kind) {
    enum found found = encode_result(hr_batch_open(encoder->batch, column_kind, count));
    for (uint32_t i = 0; found == FOUND && i < count; i++) found = encode_node(encoder, items[i], 1);
    return found;
}

/* ---- containers ---- */

/* A column has its own references, because another thread of the worker may change a container while torch or the
 * user's code has released the GIL. */
static void release(PyObject **column, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) Py_DECREF(column[i]);
}

static enum found collate_entry(struct encoder *encoder, PyObject **dicts, PyObject *key, PyObject **column,
                                uint32_t count, enum hr_flavor flavor) {
    uint32_t held = 0;
    enum found found = PyUnicode_CheckExact(key) || PyLong_CheckExact(key) ? encode_node(encoder, key, 1) : FOUND_NOT;
    while (found == FOUND && held < count) {
        PyObject *item = PyDict_GetItemWithError(dicts[held], key);
        if (item)
            column[held++] = Py_NewRef(item);
        else
            found = PyErr_Occurred() ? FOUND_ERROR : FOUND_NOT;
    }
    if (found == FOUND) found = collate_column(encoder, column, count, flavor, HR_NODE_LIST);
    release(column, held);
    return found;
}

static enum found collate_dicts(struct encoder *encoder, PyObject **items, uint32_t count, enum hr_flavor flavor) {
    PyObject *key;
    Py_ssize_t at = 0, left = PyDict_GET_SIZE(items[0]);
    PyObject **column = PyMem_Malloc(count * sizeof(PyObject *));
    enum found found = column ? FOUND : FOUND_ERROR;
    if (!column) PyErr_NoMemory();
    if (found == FOUND) found = encode_result(hr_batch_open(encoder->batch, HR_NODE_DICT, (uint32_t)left));
    for (; found == FOUND && PyDict_Next(items[0], &at, &key, NULL); left--) {
        Py_INCREF(key);
        found = left ? collate_entry(encoder, items, key, column, count, flavor) : FOUND_NOT;
        Py_DECREF(key);
    }
    PyMem_Free(column);
    return found == FOUND && left ? FOUND_NOT : found; /* its size has changed in between */
}

static enum found collate_place(struct encoder *encoder, PyObject **sequences, Py_ssize_t place, PyObject **column,
                                uint32_t count, enum hr_flavor flavor, enum hr_node_kind kind) {
    uint32_t held = 0;
    for (; held < count && place < PySequence_Fast_GET_SIZE(sequences[held]); held++)
        column[held] = Py_NewRef(PySequence_Fast_GET_ITEM(sequences[held], place));
    enum found found = held == count ? collate_column(encoder, column, count, flavor, kind) : FOUND_NOT;
    release(column, held);
    return found;
}

/* Collates tuples and lists of one length: a column per place. A tuple becomes a list, as in torch. */
static enum found collate_sequences(struct encoder *encoder, PyObject **items, uint32_t count, enum hr_flavor flavor) {
    Py_ssize_t width = PySequence_Fast_GET_SIZE(items[0]);
    for (uint32_t i = 1; i < count; i++)
        if (PySequence_Fast_GET_SIZE(items[i]) != width) return FOUND_NOT;
    bool is_named = PyTuple_Check(items[0]) && !PyTuple_CheckExact(items[0]);
    enum hr_node_kind kind = flavor == HR_FLAVOR_TENSOR ? HR_NODE_TUPLE : HR_NODE_LIST;
    PyObject **column = PyMem_Malloc(count * sizeof(PyObject *));
    enum found found = column ? FOUND : FOUND_ERROR;
    if (!column) PyErr_NoMemory();
    if (found == FOUND)
        found = encode_result(hr_batch_open(encoder->batch, is_named ? HR_NODE_NAMED : HR_NODE_LIST, (uint32_t)width));
    if (found == FOUND && is_named && encode_class(encoder, (PyObject *)Py_TYPE(items[0])) < 0) found = FOUND_ERROR;
    for (Py_ssize_t place = 0; found == FOUND && place < width; place++)
        found = collate_place(encoder, items, place, column, count, flavor, kind);
    PyMem_Free(column);
    return found;
}

static enum found collate_column(struct encoder *encoder, PyObject **items, uint32_t count, enum hr_flavor flavor,
                                 enum hr_node_kind column_kind) {
    PyObject *first = items[0];
    if (!is_uniform(items, count) || Py_EnterRecursiveCall(" in collate")) {
        PyErr_Clear(); /* too deep: Python raises the exception */
        return FOUND_NOT;
    }
    enum found found = FOUND_NOT;
    if (is_tensor(first) ? flavor == HR_FLAVOR_TENSOR : is_numpy(first)) /* only DataLoader collates tensors */
        found = collate_arrays(encoder, items, count, flavor);
    else if (flavor == HR_FLAVOR_TENSOR && is_deferred(first))
        found = collate_deferred(encoder, items, count, flavor);
    else if (PyFloat_CheckExact(first))
        found = collate_floats(encoder, items, count, flavor);
    else if (PyBool_Check(first))
        found = collate_bools(encoder, items, count, flavor);
    else if (PyLong_CheckExact(first))
        found = collate_ints(encoder, items, count, flavor);
    else if (PyUnicode_CheckExact(first) || PyBytes_CheckExact(first))
        found = collate_strings(encoder, items, count, column_kind);
    else if (PyDict_CheckExact(first))
        found = collate_dicts(encoder, items, count, flavor);
    else if (PyList_CheckExact(first) || PyTuple_CheckExact(first) || (PyTuple_Check(first) && is_named_tuple(first)))
        found = collate_sequences(encoder, items, count, flavor);
    Py_LeaveRecursiveCall();
    return found;
}

static enum found collate_rows(struct encoder *encoder, PyObject *rows, enum hr_flavor flavor) {
    if (inputs_keep(&encoder->inputs, rows) < 0) return FOUND_ERROR;
    encoder->rows = rows;
    return rows_add(rows, encoder->batch, flavor);
}

enum found collate(struct encoder *encoder, PyObject *samples, enum hr_flavor flavor) {
    if (is_rows(samples)) return collate_rows(encoder, samples, flavor);
    if (!PyList_CheckExact(samples)) return FOUND_NOT;
    Py_ssize_t count = PyList_GET_SIZE(samples);
    if (count == 0 || count > INT32_MAX) return FOUND_NOT;
    PyObject *own = PyList_AsTuple(samples); /* the list may belong to the user's dataset, which may change it */
    if (!own) return FOUND_ERROR;
    enum found found = collate_column(encoder, PySequence_Fast_ITEMS(own), (uint32_t)count, flavor, HR_NODE_LIST);
    Py_DECREF(own);
    return found;
}
