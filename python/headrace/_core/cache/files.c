/* SPDX-License-Identifier: Apache-2.0 */
/* _core.FilesPlan: array files that become one object, and how such an object is read. */
#include "cache/cache.h"

struct plan {
    PyObject_HEAD hr_files_plan *plan;
};

static hr_files_plan *plan_of(PyObject *self) {
    return ((struct plan *)self)->plan;
}

static int plan_paths(struct plan *self, PyObject *paths) {
    const char **texts = core_paths(paths);
    int r;
    if (!texts) return -1;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_files_plan_new(texts, (size_t)PyTuple_GET_SIZE(paths), &self->plan);
    Py_END_ALLOW_THREADS;
    PyMem_Free(texts);
    if (r < 0) cache_raise(r);
    return r < 0 ? -1 : 0;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *paths;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O!:FilesPlan", &PyTuple_Type, &paths)) return NULL;
    struct plan *self = (struct plan *)type->tp_alloc(type, 0);
    if (self && plan_paths(self, paths) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static void plan_dealloc(PyObject *self) {
    hr_files_plan_free(plan_of(self));
    Py_TYPE(self)->tp_free(self);
}

static int look_at_signals(void *context, const struct hr_files_progress *progress) {
    (void)context, (void)progress;
    PyGILState_STATE state = PyGILState_Ensure();
    int r = PyErr_CheckSignals();
    PyGILState_Release(state);
    return r;
}

static PyObject *plan_fill(PyObject *self, PyObject *arguments) {
    PyObject *build;
    unsigned int workers;
    int r;
    if (!PyArg_ParseTuple(arguments, "O!I:fill", &CacheBuildType, &build, &workers)) return NULL;
    hr_cache_build *open = cache_build_of(build);
    if (!open) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_files_fill(plan_of(self), open, workers, look_at_signals, NULL);
    Py_END_ALLOW_THREADS;
    if (PyErr_Occurred()) return NULL;
    return cache_none_or_raise(r);
}

static PyObject *plan_stamp(PyObject *self, void *ignored) {
    (void)ignored;
    return PyUnicode_FromString(hr_files_plan_stamp(plan_of(self)));
}

static PyMethodDef methods[] = {
    {"fill", plan_fill, METH_VARARGS,
     "fill(build, workers)\n\nCopies the files into the space of a build. Raises OSError or CacheError."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"stamp", plan_stamp, NULL, "A text that changes if a file changes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject FilesPlanType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.FilesPlan",
    .tp_basicsize = sizeof(struct plan),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "FilesPlan(paths)\n\nThe headers of array files (headrace/cache_files.h). paths: a tuple of bytes.",
    .tp_new = plan_new,
    .tp_dealloc = plan_dealloc,
    .tp_methods = methods,
    .tp_getset = attributes,
};

/* ---- reading ---- */

/* Gets the memory of an object. Returns -1 with an exception. */
static int get_memory(PyObject *cached, struct hr_cached_info *ret_info) {
    if (!PyObject_TypeCheck(cached, &CachedType)) {
        PyErr_SetString(PyExc_TypeError, "headrace: not an attached object");
        return -1;
    }
    cached_look(cached, ret_info);
    return 0;
}

PyObject *files_count(PyObject *module, PyObject *cached) {
    struct hr_cached_info info;
    uint64_t count;
    (void)module;
    if (get_memory(cached, &info) < 0) return NULL;
    int r = hr_files_count(info.data, info.bytes, &count);
    return r < 0 ? cache_raise(r) : PyLong_FromUnsignedLongLong(count);
}

PyObject *files_find(PyObject *module, PyObject *arguments) {
    PyObject *cached;
    const char *stem;
    Py_ssize_t length;
    struct hr_cached_info info;
    uint64_t first, count;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Oy#:files_find", &cached, &stem, &length) || get_memory(cached, &info) < 0)
        return NULL;
    int r = hr_files_find(info.data, info.bytes, stem, (uint64_t)length, &first, &count);
    if (r < 0) return cache_raise(r);
    if (r == 0) Py_RETURN_NONE;
    return Py_BuildValue("(KK)", (unsigned long long)first, (unsigned long long)count);
}

static PyObject *shape_of(const struct hr_files_array *array) {
    PyObject *shape = PyTuple_New((Py_ssize_t)array->dimension_count);
    for (uint32_t i = 0; shape && i < array->dimension_count; i++) {
        PyObject *size = PyLong_FromUnsignedLongLong(array->dimensions[i]);
        if (!size)
            Py_CLEAR(shape);
        else
            PyTuple_SET_ITEM(shape, (Py_ssize_t)i, size);
    }
    return shape;
}

PyObject *files_read(PyObject *module, PyObject *arguments) {
    PyObject *cached;
    unsigned long long number;
    struct hr_cached_info info;
    struct hr_files_array array;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OK:files_read", &cached, &number) || get_memory(cached, &info) < 0) return NULL;
    int r = hr_files_read(info.data, info.bytes, number, &array);
    if (r < 0) return cache_raise(r);
    PyObject *member =
        array.is_member ? PyBytes_FromStringAndSize(array.member, array.member_bytes) : Py_NewRef(Py_None);
    return Py_BuildValue("(y#NNNOKK)", array.stem, (Py_ssize_t)array.stem_bytes, member,
                         PyUnicode_DecodeLatin1(array.dtype, array.dtype_bytes, NULL), shape_of(&array),
                         array.is_fortran ? Py_True : Py_False,
                         (unsigned long long)((const char *)array.data - (const char *)info.data),
                         (unsigned long long)array.bytes);
}
