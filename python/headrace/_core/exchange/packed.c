/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/encode.h"

#include <string.h>

/*
 * headrace.torch.collate_packed (python/headrace/torch/_batches/packed.py) directly into the batch: one row of the
 * tokens of all samples, and what models need to tell the documents apart. A sample is a dict with "input_ids", and
 * "labels" if wanted, or the tokens themselves: tensors or arrays of one dimension, or lists of ints. By other names a
 * dict has tensors or arrays that are joined, such as the patches of its images. Anything else is FOUND_NOT, and the
 * Python function packs it, or raises the exception.
 */

/* The documents of a batch. Their memory belongs to the encoder's inputs. */
struct documents {
    struct hr_array *tokens, *labels; /* labels: NULL if the tokens are the labels */
    uint32_t count;
};

static enum found input_list(struct inputs *inputs, PyObject *list, struct hr_array *ret_array) {
    Py_ssize_t count = PyList_GET_SIZE(list);
    int64_t *numbers = inputs_room(inputs, (size_t)(count + 1) * sizeof *numbers);
    int overflow = 0;
    if (!numbers) return FOUND_ERROR;
    numbers[0] = count; /* the shape, in front of the data */
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = i < PyList_GET_SIZE(list) ? PyList_GET_ITEM(list, i) : NULL;
        if (!item || !PyLong_CheckExact(item)) return FOUND_NOT;
        numbers[i + 1] = PyLong_AsLongLongAndOverflow(item, &overflow);
        if (overflow) return FOUND_NOT;
    }
    *ret_array = (struct hr_array){.data = numbers + 1, .dtype = {0, 64, 1}, .ndim = 1, .shape = numbers};
    return FOUND;
}

/* Describes the tokens or the labels of a sample; FOUND_NOT if hr_batch_add_packed does not take them. */
static enum found input_row(struct inputs *inputs, PyObject *object, struct hr_array *ret_array) {
    enum { INT = 0, UINT = 1 };
    enum found found = FOUND_NOT;
    if (is_tensor(object))
        found = input_tensor(inputs, object, ret_array);
    else if (is_array(object))
        found = input_array(inputs, object, ret_array);
    else if (PyList_CheckExact(object))
        found = input_list(inputs, object, ret_array);
    if (found != FOUND) return found;
    bool is_int = ret_array->dtype.code == INT || (ret_array->dtype.code == UINT && ret_array->dtype.bits < 64);
    return is_int && ret_array->ndim == 1 ? FOUND : FOUND_NOT;
}

/* Returns an item of a dict with a name, borrowed, or NULL, perhaps with an exception. */
static PyObject *item_of(PyObject *dict, const char *name) {
    PyObject *key = PyUnicode_FromString(name);
    PyObject *item = key ? PyDict_GetItemWithError(dict, key) : NULL;
    Py_XDECREF(key);
    return item;
}

static enum found source_sample(struct encoder *encoder, PyObject *sample, struct documents *documents, uint32_t i) {
    bool is_dict = PyDict_CheckExact(sample);
    PyObject *tokens = Py_XNewRef(is_dict ? item_of(sample, "input_ids") : sample);
    PyObject *labels = Py_XNewRef(is_dict ? item_of(sample, "labels") : NULL);
    enum found found = PyErr_Occurred() ? FOUND_ERROR : tokens ? FOUND : FOUND_NOT;
    if (found == FOUND && (labels != NULL) != (documents->labels != NULL)) found = FOUND_NOT;
    if (found == FOUND) found = input_row(&encoder->inputs, tokens, &documents->tokens[i]);
    if (found == FOUND && labels) {
        found = input_row(&encoder->inputs, labels, &documents->labels[i]);
        if (found == FOUND && documents->labels[i].shape[0] != documents->tokens[i].shape[0]) found = FOUND_NOT;
    }
    Py_XDECREF(tokens);
    Py_XDECREF(labels);
    return found;
}

static enum found add_key(struct encoder *encoder, const char *name) {
    return encode_result(hr_batch_add_text(encoder->batch, name, strlen(name)));
}

static enum found add_part(struct encoder *encoder, const char *name, enum hr_packed_part part,
                           const struct hr_array *arrays, uint32_t count) {
    enum found found = add_key(encoder, name);
    if (found != FOUND) return found;
    return encode_result(hr_batch_add_packed(encoder->batch, HR_FLAVOR_TENSOR, part, arrays, count));
}

static enum found add_int(struct encoder *encoder, const char *name, int64_t value) {
    enum found found = add_key(encoder, name);
    return found == FOUND ? encode_result(hr_batch_add_int(encoder->batch, value)) : found;
}

/* ---- what is joined by name ---- */

/* Describes what a sample has by a name, a tensor or an array. */
static enum found input_named(struct inputs *inputs, PyObject *sample, PyObject *name, struct hr_array *ret_array) {
    PyObject *object = PyDict_CheckExact(sample) ? Py_XNewRef(PyDict_GetItemWithError(sample, name)) : NULL;
    enum found found = PyErr_Occurred() ? FOUND_ERROR : FOUND_NOT;
    if (object && is_tensor(object))
        found = input_tensor(inputs, object, ret_array);
    else if (object && is_array(object))
        found = input_array(inputs, object, ret_array);
    Py_XDECREF(object);
    return found == FOUND && !is_for_torch(ret_array, true) ? FOUND_NOT : found;
}

/* Returns whether two arrays can be joined along the first dimension. */
static bool can_join(const struct hr_array *a, const struct hr_array *b) {
    if (!a->ndim || a->ndim != b->ndim || a->dtype.code != b->dtype.code || a->dtype.bits != b->dtype.bits)
        return false;
    for (uint32_t i = 1; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i]) return false;
    return true;
}

/* Adds where the part of each sample begins, and the total, and then the longest part. */
static enum found add_starts(struct encoder *encoder, PyObject *name, const struct hr_array *arrays, uint32_t count) {
    int64_t shape[] = {(int64_t)count + 1}, longest = 0, total = 0;
    PyObject *starts = PyUnicode_FromFormat("cu_seq_lens_%U", name),
             *most = PyUnicode_FromFormat("max_length_%U", name);
    enum found found = starts && most ? encode_node(encoder, starts, 1) : FOUND_ERROR;
    void *data = NULL;
    if (found == FOUND)
        found = encode_result(
            hr_batch_add_filled(encoder->batch, HR_FLAVOR_TENSOR, (struct hr_dtype){0, 32, 1}, 1, shape, &data));
    for (uint32_t i = 0; found == FOUND && i <= count; i++) {
        ((int32_t *)data)[i] = (int32_t)total;
        if (i == count) break;
        total += arrays[i].shape[0];
        longest = Py_MAX(longest, arrays[i].shape[0]);
    }
    if (found == FOUND) found = encode_node(encoder, most, 1);
    if (found == FOUND) found = encode_result(hr_batch_add_int(encoder->batch, longest));
    Py_XDECREF(starts);
    Py_XDECREF(most);
    return found;
}

/* Joins what the samples have by a name. */
static enum found add_named(struct encoder *encoder, PyObject *samples, PyObject *name) {
    uint32_t count = (uint32_t)PyTuple_GET_SIZE(samples);
    struct hr_array *arrays = inputs_room(&encoder->inputs, count * sizeof *arrays);
    int64_t total = 0;
    if (!arrays) return FOUND_ERROR;
    for (uint32_t i = 0; i < count; i++) {
        enum found found = input_named(&encoder->inputs, PyTuple_GET_ITEM(samples, (Py_ssize_t)i), name, &arrays[i]);
        if (found != FOUND) return found;
        if (!can_join(&arrays[i], arrays) || (total += arrays[i].shape[0]) > INT32_MAX) return FOUND_NOT;
    }
    enum found found = encode_node(encoder, name, 1);
    if (found == FOUND) found = encode_result(hr_batch_add_joined(encoder->batch, HR_FLAVOR_TENSOR, arrays, count));
    return found == FOUND ? add_starts(encoder, name, arrays, count) : found;
}

static enum found add_all_named(struct encoder *encoder, PyObject *samples, PyObject *names) {
    enum found found = FOUND;
    for (Py_ssize_t i = 0; found == FOUND && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        found = PyUnicode_CheckExact(name) ? add_named(encoder, samples, name) : FOUND_NOT;
    }
    return found;
}

/* ---- the batch ---- */

/* Adds the parts of the tokens. `named`: how many names are joined after them. */
static enum found add_parts(struct encoder *encoder, const struct documents *documents, uint32_t named) {
    const struct {
        const char *name;
        enum hr_packed_part part;
    } parts[] = {{"input_ids", HR_PACKED_TOKENS},       {"labels", HR_PACKED_LABELS},
                 {"position_ids", HR_PACKED_POSITIONS}, {"seq_idx", HR_PACKED_NUMBERS},
                 {"cu_seq_lens_q", HR_PACKED_STARTS},   {"cu_seq_lens_k", HR_PACKED_STARTS}};
    enum { PARTS = sizeof parts / sizeof *parts };
    int64_t longest = 0;
    for (uint32_t i = 0; i < documents->count; i++) longest = Py_MAX(longest, documents->tokens[i].shape[0]);
    enum found found = encode_result(hr_batch_open(encoder->batch, HR_NODE_DICT, PARTS + 2 + 3 * named));
    for (int i = 0; found == FOUND && i < PARTS; i++) {
        bool is_labels = parts[i].part == HR_PACKED_LABELS && documents->labels;
        const struct hr_array *arrays = is_labels ? documents->labels : documents->tokens;
        found = add_part(encoder, parts[i].name, parts[i].part, arrays, documents->count);
    }
    if (found == FOUND) found = add_int(encoder, "max_length_q", longest);
    return found == FOUND ? add_int(encoder, "max_length_k", longest) : found;
}

static enum found pack(struct encoder *encoder, PyObject *samples, PyObject *names) {
    struct documents documents = {.count = (uint32_t)PyTuple_GET_SIZE(samples)};
    size_t bytes = documents.count * sizeof *documents.tokens;
    PyObject *first = PyTuple_GET_ITEM(samples, 0);
    bool has_labels = PyDict_CheckExact(first) && item_of(first, "labels");
    if (PyErr_Occurred()) return FOUND_ERROR;
    documents.tokens = inputs_room(&encoder->inputs, bytes);
    documents.labels = documents.tokens && has_labels ? inputs_room(&encoder->inputs, bytes) : NULL;
    if (!documents.tokens || (has_labels && !documents.labels)) return FOUND_ERROR;
    enum found found = FOUND;
    for (uint32_t i = 0; found == FOUND && i < documents.count; i++)
        found = source_sample(encoder, PyTuple_GET_ITEM(samples, (Py_ssize_t)i), &documents, i);
    if (found == FOUND) found = add_parts(encoder, &documents, (uint32_t)PyTuple_GET_SIZE(names));
    return found == FOUND ? add_all_named(encoder, samples, names) : found;
}

enum found collate_packed(struct encoder *encoder, PyObject *samples, PyObject *names) {
    if (!PyList_CheckExact(samples)) return FOUND_NOT;
    Py_ssize_t count = PyList_GET_SIZE(samples);
    if (count == 0 || count > INT32_MAX) return FOUND_NOT;
    PyObject *own = PyList_AsTuple(samples); /* the list may belong to the user's dataset, which may change it */
    if (!own) return FOUND_ERROR;
    enum found found = pack(encoder, own, names);
    Py_DECREF(own);
    return found;
}
