/* SPDX-License-Identifier: Apache-2.0 */
/* _core.CacheBuild: an object that this process builds. */
#include "cache/cache.h"

struct build {
    PyObject_HEAD hr_cache_build *build; /* NULL: it has ended */
};

PyObject *cache_build_new(hr_cache_build *build) {
    struct build *self = (struct build *)CacheBuildType.tp_alloc(&CacheBuildType, 0);
    if (!self) {
        hr_cache_build_abandon(build);
        return NULL;
    }
    self->build = build;
    return (PyObject *)self;
}

static void build_dealloc(PyObject *self) {
    hr_cache_build_abandon(((struct build *)self)->build);
    Py_TYPE(self)->tp_free(self);
}

hr_cache_build *cache_build_of(PyObject *self) {
    hr_cache_build *build = ((struct build *)self)->build;
    if (!build) PyErr_SetString(CacheError, "headrace: this build has ended");
    return build;
}

static PyObject *build_reserve(PyObject *self, PyObject *arguments) {
    unsigned long long bytes, chunk_bytes;
    const char *meta;
    hr_cache_build *build = cache_build_of(self);
    int r;
    if (!build || !PyArg_ParseTuple(arguments, "KKs:reserve", &bytes, &chunk_bytes, &meta)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_cache_build_reserve(build, bytes, chunk_bytes, meta);
    Py_END_ALLOW_THREADS;
    return cache_none_or_raise(r);
}

static PyObject *build_file(PyObject *self, PyObject *argument) {
    const char *path;
    hr_cache_build *build = cache_build_of(self);
    unsigned long long hint = PyLong_AsUnsignedLongLong(argument);
    if (!build || PyErr_Occurred()) return NULL;
    int r = hr_cache_build_file(build, hint, &path);
    return r < 0 ? cache_raise(r) : PyBytes_FromString(path);
}

static PyObject *build_samples(PyObject *self, PyObject *arguments) {
    unsigned long long count, budget;
    hr_cache_build *build = cache_build_of(self);
    if (!build || !PyArg_ParseTuple(arguments, "KK:samples", &count, &budget)) return NULL;
    return cache_none_or_raise(hr_samples_build(build, count, budget));
}

static PyObject *build_check_room(PyObject *self, PyObject *argument) {
    hr_cache_build *build = cache_build_of(self);
    unsigned long long bytes = PyLong_AsUnsignedLongLong(argument);
    if (!build || PyErr_Occurred()) return NULL;
    return cache_none_or_raise(hr_cache_build_check_room(build, bytes));
}

static PyObject *build_append(PyObject *self, PyObject *argument) {
    Py_buffer data;
    hr_cache_build *build = cache_build_of(self);
    int r;
    if (!build || PyObject_GetBuffer(argument, &data, PyBUF_SIMPLE) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_cache_build_append(build, data.buf, (uint64_t)data.len);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&data);
    return cache_none_or_raise(r);
}

static PyObject *build_write(PyObject *self, PyObject *arguments) {
    unsigned long long offset;
    Py_buffer data;
    hr_cache_build *build = cache_build_of(self);
    int r;
    if (!build || !PyArg_ParseTuple(arguments, "Ky*:write", &offset, &data)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_cache_build_write(build, offset, data.buf, (uint64_t)data.len);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&data);
    return cache_none_or_raise(r);
}

static PyObject *build_mark(PyObject *self, PyObject *argument) {
    hr_cache_build *build = cache_build_of(self);
    unsigned long long chunk = PyLong_AsUnsignedLongLong(argument);
    int r;
    if (!build || PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_cache_build_mark(build, chunk);
    Py_END_ALLOW_THREADS;
    return cache_none_or_raise(r);
}

static PyObject *build_has(PyObject *self, PyObject *argument) {
    hr_cache_build *build = cache_build_of(self);
    unsigned long long chunk = PyLong_AsUnsignedLongLong(argument);
    if (!build || PyErr_Occurred()) return NULL;
    return PyBool_FromLong(hr_cache_build_has(build, chunk));
}

static PyObject *build_progress(PyObject *self, PyObject *arguments) {
    unsigned long long done, total;
    hr_cache_build *build = cache_build_of(self);
    if (!build || !PyArg_ParseTuple(arguments, "KK:progress", &done, &total)) return NULL;
    hr_cache_build_progress(build, done, total);
    Py_RETURN_NONE;
}

static PyObject *build_finish(PyObject *self, PyObject *arguments) {
    const char *meta;
    hr_cached *cached = NULL;
    hr_cache_build *build = cache_build_of(self);
    int r;
    if (!build || !PyArg_ParseTuple(arguments, "z:finish", &meta)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_cache_build_finish(build, meta, &cached);
    Py_END_ALLOW_THREADS;
    if (r < 0) return cache_raise(r);
    ((struct build *)self)->build = NULL;
    return cached_new(cached);
}

static PyObject *build_fail(PyObject *self, PyObject *arguments) {
    Py_buffer text;
    int keeps_chunks;
    hr_cache_build *build = cache_build_of(self);
    if (!build || !PyArg_ParseTuple(arguments, "y*p:fail", &text, &keeps_chunks)) return NULL;
    ((struct build *)self)->build = hr_cache_build_fail(build, text.buf, (uint64_t)text.len, keeps_chunks);
    PyBuffer_Release(&text);
    Py_RETURN_NONE;
}

static PyObject *build_abandon(PyObject *self, PyObject *ignored) {
    (void)ignored;
    ((struct build *)self)->build = hr_cache_build_abandon(((struct build *)self)->build);
    Py_RETURN_NONE;
}

static PyObject *build_chunk_count(PyObject *self, void *ignored) {
    (void)ignored;
    hr_cache_build *build = cache_build_of(self);
    return build ? PyLong_FromUnsignedLongLong(hr_cache_build_chunk_count(build)) : NULL;
}

static PyMethodDef methods[] = {
    {"reserve", build_reserve, METH_VARARGS,
     "reserve(bytes, chunk_bytes, meta)\n\nReserves the space, or takes over that of a dead builder. Raises OSError or "
     "MemoryError."},
    {"check_room", build_check_room, METH_O,
     "check_room(bytes)\n\nRaises OSError if so many bytes would not find a place now."},
    {"file", build_file, METH_O, "file(bytes_hint) -> bytes\n\nReturns the path of a file to make and fill."},
    {"samples", build_samples, METH_VARARGS,
     "samples(count, budget)\n\nMakes it an empty table of samples; finish() publishes it. Raises OSError."},
    {"shared", cache_build_shared, METH_VARARGS,
     "shared(dtype, shape, fill)\n\nMakes it an array that several processes write; finish(None) publishes it. fill: "
     "the bytes of an element. Raises ValueError, OSError or MemoryError."},
    {"append", build_append, METH_O, "append(buffer)\n\nAfter file(), instead of making it: appends to the data."},
    {"write", build_write, METH_VARARGS, "write(offset, buffer)\n\nWrites to the reserved space."},
    {"mark", build_mark, METH_O, "mark(chunk)\n\nNotes that a chunk is complete."},
    {"has", build_has, METH_O, "has(chunk) -> bool\n\nReturns True if a chunk is complete."},
    {"progress", build_progress, METH_VARARGS, "progress(done, total)\n\nShows the progress to those that wait."},
    {"finish", build_finish, METH_VARARGS, "finish(meta) -> Cached\n\nPublishes the data. meta: str or None."},
    {"fail", build_fail, METH_VARARGS,
     "fail(text, keeps_chunks)\n\nEnds the build; those that wait get the text (bytes)."},
    {"abandon", build_abandon, METH_NOARGS, "abandon()\n\nEnds the build as the death of this process would."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"chunks", build_chunk_count, NULL, "The number of chunks.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject CacheBuildType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.CacheBuild",
    .tp_basicsize = sizeof(struct build),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "An object of a cache that this process builds. CacheTicket.wait returns it.",
    .tp_dealloc = build_dealloc,
    .tp_methods = methods,
    .tp_getset = attributes,
};
