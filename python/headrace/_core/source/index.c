/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Index: where the members and lines of files are. _core.Indexing: threads that make an index. */
#include "source/source.h"

/* ---- an index ---- */

struct core_index {
    PyObject_HEAD hr_index *index;
    Py_buffer buffer; /* the memory of the serial form; obj NULL: the index owns it */
};

const hr_index *index_of(PyObject *self) {
    return ((struct core_index *)self)->index;
}

static PyObject *wrap(hr_index *index) {
    struct core_index *self = (struct core_index *)IndexType.tp_alloc(&IndexType, 0);
    if (self)
        self->index = index;
    else
        hr_index_close(index);
    return (PyObject *)self;
}

static PyObject *index_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"data", "kind", "checks_sum", NULL};
    PyObject *data;
    int kind, checks_sum, r;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "Oip:Index", names, &data, &kind, &checks_sum)) return NULL;
    struct core_index *self = (struct core_index *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    if (PyObject_GetBuffer(data, &self->buffer, PyBUF_SIMPLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    r = hr_index_open(self->buffer.buf, (uint64_t)self->buffer.len, (enum hr_index_kind)kind, checks_sum, &self->index);
    Py_END_ALLOW_THREADS;
    return core_new_or_raise(self, r);
}

static void index_dealloc(PyObject *object) {
    struct core_index *self = (struct core_index *)object;
    hr_index_close(self->index);
    if (self->buffer.obj) PyBuffer_Release(&self->buffer);
    Py_TYPE(object)->tp_free(object);
}

static int index_buffer(PyObject *self, Py_buffer *ret_buffer, int flags) {
    uint64_t bytes;
    const void *data = hr_index_data(index_of(self), &bytes);
    return PyBuffer_FillInfo(ret_buffer, self, (void *)data, (Py_ssize_t)bytes, 1, flags);
}

static PyObject *index_look(PyObject *self, PyObject *ignored) {
    struct hr_index_info info;
    (void)ignored;
    hr_index_look(index_of(self), &info);
    return Py_BuildValue("(KKKK)", (unsigned long long)info.file_count, (unsigned long long)info.entry_count,
                         (unsigned long long)info.sample_count, (unsigned long long)info.bytes);
}

static PyObject *counts_of(const struct hr_index_file *file) {
    PyObject *counts = PyTuple_New(HR_INDEX_COUNTS);
    for (int i = 0; counts && i < HR_INDEX_COUNTS; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(file->counts[i]);
        if (count)
            PyTuple_SET_ITEM(counts, i, count);
        else
            Py_CLEAR(counts);
    }
    return counts;
}

static PyObject *index_file(PyObject *self, PyObject *argument) {
    unsigned long long number = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return NULL;
    const struct hr_index_file *file = hr_index_look_file(index_of(self), number);
    if (!file) return PyErr_Format(PyExc_IndexError, "headrace: there is no file %llu in the index", number);
    PyObject *counts = counts_of(file);
    if (!counts) return NULL;
    return Py_BuildValue("{sK sL sK sK sK sK sK sK sK si sN}", "bytes", (unsigned long long)file->bytes, "changed_ns",
                         (long long)file->changed_ns, "inode", (unsigned long long)file->inode, "data_bytes",
                         (unsigned long long)file->data_bytes, "entries", (unsigned long long)file->entry_count,
                         "samples", (unsigned long long)file->sample_count, "first_name",
                         (unsigned long long)file->first_name, "names", (unsigned long long)file->name_count,
                         "good_bytes", (unsigned long long)file->good_bytes, "damage", (int)file->damage, "counts",
                         counts);
}

static PyObject *index_name(PyObject *self, PyObject *argument) {
    unsigned long long number = PyLong_AsUnsignedLongLong(argument);
    uint64_t bytes;
    if (PyErr_Occurred()) return NULL;
    const char *name = hr_index_name(index_of(self), number, &bytes);
    if (!name) return PyErr_Format(PyExc_IndexError, "headrace: there is no name %llu in the index", number);
    return PyBytes_FromStringAndSize(name, (Py_ssize_t)bytes);
}

static PyObject *index_save(PyObject *self, PyObject *argument) {
    const char *path = PyBytes_AsString(argument);
    int r;
    if (!path) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_index_save(index_of(self), path);
    Py_END_ALLOW_THREADS;
    return core_none_or_raise(r);
}

static PyObject *index_load(PyObject *ignored, PyObject *arguments) {
    int kind, r;
    const char *path;
    hr_index *index;
    (void)ignored;
    if (!PyArg_ParseTuple(arguments, "iy:load", &kind, &path)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_index_load((enum hr_index_kind)kind, path, &index);
    Py_END_ALLOW_THREADS;
    return r < 0 ? core_raise(r) : wrap(index);
}

static PyObject *index_guess(PyObject *ignored, PyObject *argument) {
    const char *path = PyBytes_AsString(argument);
    enum hr_index_kind kind;
    int r;
    (void)ignored;
    if (!path) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_index_guess(path, &kind);
    Py_END_ALLOW_THREADS;
    return r < 0 ? core_raise(r) : PyLong_FromLong(kind);
}

static PyMethodDef index_methods[] = {
    {"look", index_look, METH_NOARGS, "look() -> (files, entries, samples, bytes)"},
    {"file", index_file, METH_O,
     "file(number) -> dict\n\nReturns the fields of struct hr_index_file. Raises IndexError."},
    {"name", index_name, METH_O, "name(number) -> bytes\n\nReturns a name that entries refer to. Raises IndexError."},
    {"save", index_save, METH_O, "save(path)\n\nWrites PATH.hri, next to the file of the index. Raises OSError."},
    {"load", index_load, METH_VARARGS | METH_STATIC,
     "load(kind, path) -> Index\n\nReads PATH.hri. Raises FileNotFoundError, OSError if the file has changed since it "
     "was made, and ValueError or RuntimeError if it cannot be used."},
    {"guess", index_guess, METH_O | METH_STATIC,
     "guess(path) -> kind\n\nFinds the kind of a file by its name and its first bytes. Raises OSError and ValueError."},
    {NULL, NULL, 0, NULL},
};

static PyBufferProcs index_as_buffer = {.bf_getbuffer = index_buffer};

PyTypeObject IndexType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Index",
    .tp_basicsize = sizeof(struct core_index),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Index(data, kind, checks_sum)\n\nThe serial form of an index (headrace/index.h), in a buffer that is "
              "aligned to 8 bytes and not copied. An Index is a buffer, too. Raises ValueError.",
    .tp_new = index_new,
    .tp_dealloc = index_dealloc,
    .tp_methods = index_methods,
    .tp_as_buffer = &index_as_buffer,
};

/* ---- threads that make one ---- */

struct core_indexing {
    PyObject_HEAD hr_indexing *indexing;
};

static hr_indexing *indexing_of(PyObject *self) {
    return ((struct core_indexing *)self)->indexing;
}

static PyObject *indexing_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"kind", "paths", "uses_saved", NULL};
    PyObject *paths;
    int kind, uses_saved, r = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "iO!p:Indexing", names, &kind, &PyTuple_Type, &paths,
                                     &uses_saved))
        return NULL;
    const char **texts = core_paths(paths);
    struct core_indexing *self = texts ? (struct core_indexing *)type->tp_alloc(type, 0) : NULL;
    if (self) {
        Py_BEGIN_ALLOW_THREADS;
        r = hr_indexing_start((enum hr_index_kind)kind, texts, (size_t)PyTuple_GET_SIZE(paths), uses_saved,
                              &self->indexing);
        Py_END_ALLOW_THREADS;
    }
    PyMem_Free(texts);
    return core_new_or_raise(self, r);
}

static void indexing_dealloc(PyObject *self) {
    Py_BEGIN_ALLOW_THREADS;
    hr_indexing_free(indexing_of(self));
    Py_END_ALLOW_THREADS;
    Py_TYPE(self)->tp_free(self);
}

static PyObject *indexing_wait(PyObject *self, PyObject *seconds) {
    int64_t deadline_ns;
    int r;
    if (core_deadline(seconds, &deadline_ns) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_indexing_wait(indexing_of(self), deadline_ns);
    Py_END_ALLOW_THREADS;
    return core_waited(r);
}

static PyObject *indexing_look(PyObject *self, PyObject *ignored) {
    struct hr_indexing_info info;
    (void)ignored;
    hr_indexing_look(indexing_of(self), &info);
    return Py_BuildValue("{sK sK sK sK sK sy}", "files", (unsigned long long)info.file_count, "files_done",
                         (unsigned long long)info.files_done, "bytes_done", (unsigned long long)info.bytes_done,
                         "saved", (unsigned long long)info.saved_count, "unused_count",
                         (unsigned long long)info.unused_count, "unused", info.unused);
}

static PyObject *indexing_take(PyObject *self, PyObject *ignored) {
    hr_index *index;
    int r;
    (void)ignored;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_indexing_take(indexing_of(self), &index);
    Py_END_ALLOW_THREADS;
    return r < 0 ? core_raise(r) : wrap(index);
}

static PyMethodDef indexing_methods[] = {
    {"wait", indexing_wait, METH_O,
     "wait(seconds) -> bool\n\nReturns True when all files are read; None: waits for it. Raises OSError and "
     "MemoryError."},
    {"look", indexing_look, METH_NOARGS, "look() -> dict\n\nReturns the fields of struct hr_indexing_info."},
    {"take", indexing_take, METH_NOARGS,
     "take() -> Index\n\nMakes one index of all files, once, after `wait` has returned True."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject IndexingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Indexing",
    .tp_basicsize = sizeof(struct core_indexing),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Indexing(kind, paths, uses_saved)\n\nThreads that read files and make an index of them. paths: a tuple "
              "of bytes. uses_saved: PATH.hri is used if it is of the size and time of its file.",
    .tp_new = indexing_new,
    .tp_dealloc = indexing_dealloc,
    .tp_methods = indexing_methods,
};
