/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Cached: an attached object; its bytes are a read-only buffer. */
#include "cache/cache.h"

#include <stddef.h>

struct cached {
    PyObject_HEAD hr_cached *cached;
    PyObject *weakrefs;
};

hr_cached *cached_of(PyObject *self) {
    return ((struct cached *)self)->cached;
}

PyObject *cached_new(hr_cached *cached) {
    struct cached *self = (struct cached *)CachedType.tp_alloc(&CachedType, 0);
    if (!self) {
        hr_cached_detach(cached);
        return NULL;
    }
    self->cached = cached;
    return (PyObject *)self;
}

void cached_look(PyObject *cached, struct hr_cached_info *ret_info) {
    hr_cached_look(cached_of(cached), ret_info);
}

static void cached_dealloc(PyObject *self) {
    struct cached *cached = (struct cached *)self;
    if (cached->weakrefs) PyObject_ClearWeakRefs(self);
    hr_cached_detach(cached->cached);
    Py_TYPE(self)->tp_free(self);
}

static int cached_get_buffer(PyObject *self, Py_buffer *view, int flags) {
    static char empty[1];
    struct hr_cached_info info;
    hr_cached_look(cached_of(self), &info);
    void *data = info.data ? (void *)(uintptr_t)info.data : empty;
    return PyBuffer_FillInfo(view, self, data, (Py_ssize_t)info.bytes, 1, flags);
}

static PyObject *text_of(const char *text) {
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "surrogateescape");
}

/* Adds a value to a dict, and takes it over. Returns false with an exception. */
static bool add(PyObject *dict, const char *name, PyObject *value) {
    int r = value ? PyDict_SetItemString(dict, name, value) : -1;
    Py_XDECREF(value);
    return r == 0;
}

PyObject *describe_cached(const struct hr_cached_info *info) {
    PyObject *dict = PyDict_New();
    if (dict && add(dict, "name", text_of(info->name)) && add(dict, "version", text_of(info->version)) &&
        add(dict, "id", text_of(info->id)) && add(dict, "format", text_of(info->format)) &&
        add(dict, "stamp", text_of(info->stamp)) && add(dict, "meta", text_of(info->meta)) &&
        add(dict, "path", text_of(info->path)) && add(dict, "place", text_of(info->place)) &&
        add(dict, "command", text_of(info->command)) && add(dict, "keep", PyLong_FromUnsignedLong(info->keep)) &&
        add(dict, "pid", PyLong_FromUnsignedLong(info->pid)) &&
        add(dict, "built_ns", PyLong_FromLongLong(info->built_ns)) &&
        add(dict, "bytes", PyLong_FromUnsignedLongLong(info->bytes)) &&
        add(dict, "chunk_bytes", PyLong_FromUnsignedLongLong(info->chunk_bytes)) &&
        add(dict, "is_private", PyBool_FromLong(info->is_private)))
        return dict;
    Py_XDECREF(dict);
    return NULL;
}

static PyObject *cached_info(PyObject *self, PyObject *ignored) {
    struct hr_cached_info info;
    (void)ignored;
    hr_cached_look(cached_of(self), &info);
    return describe_cached(&info);
}

static PyObject *cached_verify(PyObject *self, PyObject *ignored) {
    int r;
    (void)ignored;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_cached_verify(cached_of(self));
    Py_END_ALLOW_THREADS;
    return cache_none_or_raise(r);
}

static PyObject *cached_unclaim(PyObject *self, PyObject *ignored) {
    (void)ignored;
    hr_cached_unclaim(cached_of(self));
    Py_RETURN_NONE;
}

static PyObject *cached_number(PyObject *self, void *which) {
    struct hr_cached_info info;
    hr_cached_look(cached_of(self), &info);
    if (*(const char *)which == 'f') return PyLong_FromLong(info.fd);
    if (*(const char *)which == 'a') return PyLong_FromUnsignedLongLong((uintptr_t)info.data);
    return PyLong_FromUnsignedLongLong(info.bytes);
}

static PyObject *cached_text(PyObject *self, void *which) {
    struct hr_cached_info info;
    hr_cached_look(cached_of(self), &info);
    return text_of(*(const char *)which == 'i' ? info.id : info.meta);
}

static PyMethodDef methods[] = {
    {"info", cached_info, METH_NOARGS, "info() -> dict\n\nReturns the fields of struct hr_cached_info."},
    {"verify", cached_verify, METH_NOARGS,
     "verify()\n\nReads the data and compares it with its checksums. Raises CacheError."},
    {"unclaim", cached_unclaim, METH_NOARGS, "unclaim()\n\nEnds the claim; the data stays mapped."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"fd", cached_number, NULL, "A descriptor of the data, borrowed; -1 after unclaim().", "fd"},
    {"id", cached_text, NULL, "The id of the object.", "id"},
    {"meta", cached_text, NULL, "The text of its builder.", "meta"},
    {"address", cached_number, NULL, "Where the data is mapped.", "address"},
    {"bytes", cached_number, NULL, "The size of the data.", "bytes"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyBufferProcs buffer = {.bf_getbuffer = cached_get_buffer};

PyTypeObject CachedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Cached",
    .tp_basicsize = sizeof(struct cached),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "An attached object of a cache (headrace/cache.h); its bytes as a read-only buffer.",
    .tp_dealloc = cached_dealloc,
    .tp_weaklistoffset = offsetof(struct cached, weakrefs),
    .tp_as_buffer = &buffer,
    .tp_methods = methods,
    .tp_getset = attributes,
};
