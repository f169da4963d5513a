/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Tar: tar files that are open, and their samples. */
#include "source/source.h"

#include <string.h>

struct core_tar {
    PyObject_HEAD hr_tar *tar;
    PyObject *index; /* the _core.Index, which is borrowed by `tar` */
    PyObject *names; /* a tuple of str: the fields by their numbers in the index */
    size_t field_count;
    int has_key; /* samples with fields have their key as the last element */
};

static struct core_tar *of(PyObject *self) {
    return (struct core_tar *)self;
}

/* ---- opening ---- */

/* Names may have any bytes. WebDataset has them in lower case. */
static PyObject *decode_name(const char *name, uint64_t bytes) {
    PyObject *text = PyUnicode_DecodeUTF8(name, (Py_ssize_t)bytes, "surrogateescape");
    if (!text) return NULL;
    PyObject *lower = PyObject_CallMethod(text, "lower", NULL);
    Py_DECREF(text);
    if (lower) PyUnicode_InternInPlace(&lower);
    return lower;
}

static PyObject *decode_names(const hr_index *index) {
    const char *name;
    uint64_t bytes, count = 0;
    while (hr_index_name(index, count, &bytes)) count++;
    PyObject *names = PyTuple_New((Py_ssize_t)count);
    for (uint64_t i = 0; names && (name = hr_index_name(index, i, &bytes)); i++) {
        PyObject *text = decode_name(name, bytes);
        if (text)
            PyTuple_SET_ITEM(names, (Py_ssize_t)i, text);
        else
            Py_CLEAR(names);
    }
    return names;
}

static int open_paths(struct core_tar *self, PyObject *paths, PyObject *fields, struct hr_tar_options options) {
    const char **texts = core_paths(paths), **names = texts ? core_paths(fields) : NULL;
    int r = 0;
    if (names) {
        options.fields = names;
        options.field_count = self->field_count = (size_t)PyTuple_GET_SIZE(fields);
        Py_BEGIN_ALLOW_THREADS;
        r = hr_tar_open(texts, (size_t)PyTuple_GET_SIZE(paths), index_of(self->index), &options, &self->tar);
        Py_END_ALLOW_THREADS;
        if (r < 0) core_raise(r);
    }
    PyMem_Free(texts);
    PyMem_Free(names);
    return !names || r < 0 ? -1 : 0;
}

static PyObject *tar_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *keys[] = {"paths", "index", "fields", "has_key", "skips_missing", "skips_repeated", NULL};
    PyObject *paths, *index, *fields;
    int has_key, skips_missing, skips_repeated;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O!O!ppp:Tar", keys, &PyTuple_Type, &paths, &IndexType,
                                     &index, &PyTuple_Type, &fields, &has_key, &skips_missing, &skips_repeated))
        return NULL;
    struct core_tar *self = (struct core_tar *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->index = Py_NewRef(index);
    self->has_key = has_key;
    self->names = decode_names(index_of(index));
    struct hr_tar_options options = {.skips_missing = skips_missing, .skips_repeated = skips_repeated};
    if (!self->names || open_paths(self, paths, fields, options) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static void tar_dealloc(PyObject *self) {
    hr_tar_close(of(self)->tar);
    Py_XDECREF(of(self)->index);
    Py_XDECREF(of(self)->names);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *tar_look(PyObject *self, PyObject *ignored) {
    struct hr_tar_info info;
    (void)ignored;
    hr_tar_look(of(self)->tar, &info);
    return Py_BuildValue("(KKK)", (unsigned long long)info.sample_count, (unsigned long long)info.missing_count,
                         (unsigned long long)info.repeated_count);
}

/* ---- a sample ---- */

enum { FEW = 16, KEY_BYTES = 1024 };

/* The members of a sample, and the bytes objects that they are read to. */
struct sample {
    struct hr_tar_member few[FEW], *members;
    void *few_targets[FEW], **targets;
    PyObject *few_data[FEW], **data;
    uint64_t file;
    size_t count;
    char few_key[KEY_BYTES], *key;
    size_t key_bytes;
};

static void drop(struct sample *sample) {
    for (size_t i = 0; sample->data && i < sample->count; i++) Py_XDECREF(sample->data[i]);
    if (sample->members != sample->few) {
        PyMem_Free(sample->members);
        PyMem_Free(sample->targets);
        PyMem_Free(sample->data);
    }
    if (sample->key != sample->few_key) PyMem_Free(sample->key);
}

static int make_room(struct sample *sample, size_t count) {
    sample->members = PyMem_Calloc(count, sizeof *sample->members);
    sample->targets = PyMem_Calloc(count, sizeof *sample->targets);
    sample->data = PyMem_Calloc(count, sizeof(PyObject *));
    if (sample->members && sample->targets && sample->data) return 0;
    PyErr_NoMemory();
    return -1;
}

/* Finds the members of a sample. Returns -1 with an exception. drop() it in any case. */
static int find(const struct core_tar *self, uint64_t number, struct sample *ret_sample) {
    ret_sample->members = ret_sample->few;
    ret_sample->targets = ret_sample->few_targets;
    ret_sample->data = ret_sample->few_data;
    ret_sample->key = ret_sample->few_key;
    ret_sample->count = ret_sample->key_bytes = 0;
    int count = hr_tar_find(self->tar, number, ret_sample->few, FEW, &ret_sample->file);
    if (count > FEW) {
        if (make_room(ret_sample, (size_t)count) < 0) return -1;
        count = hr_tar_find(self->tar, number, ret_sample->members, (size_t)count, &ret_sample->file);
    }
    if (count < 0) core_raise(count);
    if (count < 0) return -1;
    ret_sample->count = (size_t)count;
    memset(ret_sample->data, 0, ret_sample->count * sizeof(PyObject *));
    return 0;
}

static int allocate(struct sample *sample) {
    for (size_t i = 0; i < sample->count; i++) {
        PyObject *data = sample->members[i].bytes > PY_SSIZE_T_MAX / 2
                             ? PyErr_NoMemory()
                             : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sample->members[i].bytes);
        if (!data) return -1;
        sample->data[i] = data;
        sample->targets[i] = PyBytes_AS_STRING(data);
    }
    return 0;
}

/* Reads the headers of the members, and with `has_data` their contents. A long key needs a second read. */
static int read_members(const struct core_tar *self, struct sample *sample, bool has_data, bool has_key) {
    int r;
    for (size_t room = KEY_BYTES;; room = sample->key_bytes) {
        Py_BEGIN_ALLOW_THREADS;
        r = hr_tar_read(self->tar, sample->file, sample->members, has_data ? sample->count : 1,
                        has_data ? sample->targets : NULL, has_key ? sample->key : NULL, room, &sample->key_bytes);
        Py_END_ALLOW_THREADS;
        if (r < 0) core_raise(r);
        if (r < 0) return -1;
        if (sample->key_bytes <= room) return 0;
        char *key = PyMem_Malloc(sample->key_bytes);
        if (!key) PyErr_NoMemory();
        if (!key) return -1;
        if (sample->key != sample->few_key) PyMem_Free(sample->key);
        sample->key = key;
    }
}

static PyObject *key_of(const struct sample *sample) {
    return PyUnicode_DecodeUTF8(sample->key, (Py_ssize_t)sample->key_bytes, "surrogateescape");
}

static PyObject *take(PyObject **data) {
    PyObject *taken = *data;
    *data = NULL;
    return taken;
}

/* Names may be equal in lower case only, or "__key__". */
static int refuse_lost(PyObject *dict, PyObject *key, size_t fields) {
    if ((size_t)PyDict_GET_SIZE(dict) == fields + 1) return 0;
    PyErr_Format(PyExc_ValueError,
                 "headrace: the sample with the key %R has a field twice, in lower case, or one that is named __key__; "
                 "ask for some of its fields by fields=, or give them different names",
                 key);
    return -1;
}

/* {"__key__": str, field: bytes, ...} */
static PyObject *as_dict(const struct core_tar *self, struct sample *sample) {
    PyObject *dict = PyDict_New(), *key = key_of(sample);
    int r = !dict || !key ? -1 : PyDict_SetItemString(dict, "__key__", key);
    for (size_t i = 0; r == 0 && i < sample->count; i++)
        r = PyDict_SetItem(dict, PyTuple_GET_ITEM(self->names, (Py_ssize_t)sample->members[i].name), sample->data[i]);
    if (r == 0) r = refuse_lost(dict, key, sample->count);
    Py_XDECREF(key);
    if (r < 0) Py_CLEAR(dict);
    return dict;
}

/* (bytes, ...) in the order of the fields, and the key */
static PyObject *as_tuple(const struct core_tar *self, struct sample *sample) {
    Py_ssize_t count = (Py_ssize_t)sample->count;
    PyObject *tuple = PyTuple_New(count + self->has_key), *key = self->has_key ? key_of(sample) : NULL;
    if (!tuple || (self->has_key && !key)) {
        Py_XDECREF(key);
        Py_XDECREF(tuple);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(tuple, i, take(&sample->data[i]));
    if (key) PyTuple_SET_ITEM(tuple, count, key);
    return tuple;
}

static PyObject *tar_read(PyObject *self, PyObject *argument) {
    struct sample sample;
    PyObject *result = NULL;
    unsigned long long number = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return NULL;
    bool is_dict = of(self)->field_count == 0;
    bool is_read = find(of(self), number, &sample) == 0 && allocate(&sample) == 0 &&
                   read_members(of(self), &sample, true, is_dict || of(self)->has_key) == 0;
    if (is_read) result = is_dict ? as_dict(of(self), &sample) : as_tuple(of(self), &sample);
    drop(&sample);
    return result;
}

static PyObject *tar_key(PyObject *self, PyObject *argument) {
    struct sample sample;
    PyObject *key = NULL;
    unsigned long long number = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return NULL;
    if (find(of(self), number, &sample) == 0 && read_members(of(self), &sample, false, true) == 0)
        key = key_of(&sample);
    drop(&sample);
    return key;
}

static PyObject *tar_find(PyObject *self, PyObject *argument) {
    struct sample sample;
    unsigned long long number = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return NULL;
    PyObject *members = find(of(self), number, &sample) < 0 ? NULL : PyList_New(0);
    for (size_t i = 0; members && i < sample.count; i++) {
        const struct hr_tar_member *member = &sample.members[i];
        PyObject *name = PyTuple_GET_ITEM(of(self)->names, (Py_ssize_t)member->name);
        PyObject *one = Py_BuildValue("(OKKK)", name, (unsigned long long)member->head_at,
                                      (unsigned long long)member->data_at, (unsigned long long)member->bytes);
        if (!one || PyList_Append(members, one) < 0) Py_CLEAR(members);
        Py_XDECREF(one);
    }
    PyObject *found = members ? Py_BuildValue("(KO)", (unsigned long long)sample.file, members) : NULL;
    Py_XDECREF(members);
    drop(&sample);
    return found;
}

static PyObject *tar_ask(PyObject *self, PyObject *arguments) {
    struct source_asked asked;
    if (source_read_asked(arguments, &asked) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    hr_tar_ask(of(self)->tar, asked.indices, asked.count, asked.announcer);
    Py_END_ALLOW_THREADS;
    PyMem_Free(asked.indices);
    Py_RETURN_NONE;
}

static PyObject *tar_names(PyObject *self, void *ignored) {
    (void)ignored;
    return Py_NewRef(of(self)->names);
}

static PyMethodDef methods[] = {
    {"look", tar_look, METH_NOARGS, "look() -> (samples, missing, repeated)"},
    {"read", tar_read, METH_O,
     "read(number) -> tuple or dict\n\nReturns the bytes of the fields, and the key if it is wanted; without fields a "
     "dict with all members and \"__key__\". Raises OSError and ValueError."},
    {"key", tar_key, METH_O, "key(number) -> str\n\nReads the key of a sample. Raises OSError and ValueError."},
    {"find", tar_find, METH_O, "find(number) -> (file, [(field, head_at, data_at, bytes), ...])\n\nRaises ValueError."},
    {"ask", tar_ask, METH_VARARGS, SOURCE_ASK_DOC},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"names", tar_names, NULL, "The fields, by their numbers in the index.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject TarType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Tar",
    .tp_basicsize = sizeof(struct core_tar),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Tar(paths, index, fields, has_key, skips_missing, skips_repeated)\n\nTar files that are open "
              "(headrace/tar.h). paths, fields: tuples of bytes. Raises OSError and ValueError.",
    .tp_new = tar_new,
    .tp_dealloc = tar_dealloc,
    .tp_methods = methods,
    .tp_getset = attributes,
};
