/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Frozen: opens frozen data, finds its shapes, and calls headrace.frozen. */
#include "frozen/opened.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <structmember.h>

PyObject *FrozenError;

void *frozen_raise(int code) {
    if (code != HR_E_CORRUPT && code != HR_E_VERSION && code != -EINVAL && code != -ERANGE) return core_raise(code);
    const char *message = hr_error_message();
    PyErr_SetString(FrozenError, *message ? message : hr_error_text(code));
    return NULL;
}

int frozen_result(int code) {
    if (code >= 0) return 0;
    frozen_raise(code);
    return -1;
}

PyObject *frozen_hook(const char *name, const char *format, ...) {
    static PyObject *module;
    char tuple[32]; /* "(...)": one tuple as the only argument is still one argument */
    va_list values;
    if (!module && !(module = PyImport_ImportModule("headrace.frozen.types.hooks"))) return NULL;
    PyOS_snprintf(tuple, sizeof tuple, "(%s)", format);
    va_start(values, format);
    PyObject *arguments = Py_VaBuildValue(tuple, values), *function = PyObject_GetAttrString(module, name);
    va_end(values);
    PyObject *result = arguments && function ? PyObject_Call(function, arguments, NULL) : NULL;
    Py_XDECREF(arguments);
    Py_XDECREF(function);
    return result;
}

/* ---- shapes ---- */

static void shape_free(struct shape *shape) {
    if (!shape) return;
    for (uint32_t i = 0; shape->places && i < shape->field_count; i++) Py_XDECREF(shape->places[i]);
    PyMem_Free(shape->places);
    Py_XDECREF(shape->names);
    Py_XDECREF(shape->numbers);
    Py_XDECREF((PyObject *)shape->type);
    PyMem_Free(shape);
}

static int read_names(struct frozen *frozen, uint32_t number, struct shape *shape) {
    struct hr_item item;
    shape->names = PyTuple_New(shape->field_count);
    shape->numbers = PyDict_New();
    if (!shape->names || !shape->numbers) return -1;
    for (uint32_t i = 0; i < shape->field_count; i++) {
        int r = hr_frozen_field(frozen->data, number, i, &item);
        PyObject *name = r < 0 ? frozen_raise(r) : read_text(frozen, &item);
        if (!name) return -1;
        PyUnicode_InternInPlace(&name);
        PyTuple_SET_ITEM(shape->names, (Py_ssize_t)i, name);
        PyObject *index = PyLong_FromUnsignedLong(i);
        if (!index || PyDict_SetItem(shape->numbers, name, index) < 0) i = shape->field_count;
        Py_XDECREF(index);
    }
    if (!PyErr_Occurred() && PyDict_GET_SIZE(shape->numbers) != (Py_ssize_t)shape->field_count)
        PyErr_SetString(FrozenError,
                        "headrace: a shape of this frozen data has a name twice; the frozen data is damaged");
    return PyErr_Occurred() ? -1 : 0;
}

/* Finds how each field of an instance is set. The class was found to be plain, so the descriptors of its slots are
 * those of Python. */
static int find_places(struct shape *shape) {
    shape->places = PyMem_Calloc(shape->field_count + 1, sizeof(PyObject *));
    if (!shape->places) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = 0; i < shape->field_count; i++) {
        PyObject *found = _PyType_Lookup(shape->type, PyTuple_GET_ITEM(shape->names, (Py_ssize_t)i));
        if (found && Py_TYPE(found) == &PyMemberDescr_Type)
            shape->places[i] = Py_NewRef(found);
        else if (found && Py_TYPE(found)->tp_descr_set)
            shape->places[i] = Py_NewRef(Py_None);
        if (shape->places[i] != NULL && shape->places[i] != Py_None) continue;
        if (!shape->type->tp_dictoffset) {
            PyErr_Format(FrozenError, "headrace: %s has no attribute '%U' any more; freeze the data again",
                         shape->type->tp_name, PyTuple_GET_ITEM(shape->names, (Py_ssize_t)i));
            return -1;
        }
    }
    return 0;
}

static int resolve(struct frozen *frozen, struct shape *shape, const struct hr_item *type) {
    const char *kind = shape->kind == HR_SHAPE_OBJECT ? "object" : "tuple";
    if (shape->kind == HR_SHAPE_DICT) return 0;
    if (type->kind != HR_KIND_TEXT || (shape->kind != HR_SHAPE_OBJECT && shape->kind != HR_SHAPE_TUPLE)) {
        PyErr_SetString(FrozenError,
                        "headrace: a shape of this frozen data has an unknown kind; the frozen data is damaged");
        return -1;
    }
    PyObject *name = read_text(frozen, type);
    PyObject *found =
        name ? frozen_hook("resolve_class", "OsOO", name, kind, shape->names, frozen->trusted ? Py_True : Py_False)
             : NULL;
    Py_XDECREF(name);
    shape->type = (PyTypeObject *)found;
    if (!found) return -1;
    return shape->kind == HR_SHAPE_OBJECT ? find_places(shape) : 0;
}

static struct shape *read_shape(struct frozen *frozen, uint32_t number) {
    struct hr_shape read;
    int r = hr_frozen_shape(frozen->data, number, &read);
    if (r < 0) return frozen_raise(r);
    struct shape *shape = PyMem_Calloc(1, sizeof *shape);
    if (!shape) return (void *)PyErr_NoMemory();
    shape->kind = (enum hr_shape_kind)read.kind;
    shape->field_count = read.field_count;
    if (read_names(frozen, number, shape) == 0 && resolve(frozen, shape, &read.type) == 0) return shape;
    shape_free(shape);
    return NULL;
}

struct shape *frozen_shape(struct frozen *frozen, uint32_t number) {
    if (number < frozen->shape_count && frozen->shapes[number]) return frozen->shapes[number];
    struct shape *shape = read_shape(frozen, number);
    if (!shape || number >= frozen->shape_count) {
        shape_free(shape);
        return PyErr_Occurred() ? NULL : frozen_raise(HR_E_CORRUPT);
    }
    if (frozen->shapes[number])
        shape_free(shape); /* another thread has set it in between */
    else
        frozen->shapes[number] = shape;
    return frozen->shapes[number];
}

Py_ssize_t shape_find(const struct shape *shape, PyObject *name) {
    enum { FEW = 16 };
    for (uint32_t i = 0; i < shape->field_count && i < FEW; i++)
        if (PyTuple_GET_ITEM(shape->names, (Py_ssize_t)i) == name) return (Py_ssize_t)i;
    PyObject *number = PyDict_GetItemWithError(shape->numbers, name);
    if (!number) return PyErr_Occurred() ? -2 : -1;
    return PyLong_AsSsize_t(number);
}

/* ---- the object ---- */

PyObject *frozen_new(hr_frozen *data, int trusted) {
    struct hr_frozen_info info;
    struct frozen *frozen = (struct frozen *)FrozenType.tp_alloc(&FrozenType, 0);
    if (!frozen) {
        hr_frozen_close(data);
        return NULL;
    }
    hr_frozen_look(data, &info);
    frozen->data = data;
    frozen->start = info.contents;
    frozen->bytes = info.bytes;
    frozen->trusted = trusted;
    frozen->is_sealed = trusted && info.fd >= 0;
    frozen->shape_count = info.shape_count;
    frozen->shapes = PyMem_Calloc((size_t)info.shape_count + 1, sizeof(struct shape *));
    frozen->lookups = PyDict_New();
    frozen->dtypes = PyDict_New();
    if (frozen->shapes && frozen->lookups && frozen->dtypes) return (PyObject *)frozen;
    Py_DECREF(frozen);
    return PyErr_Occurred() ? NULL : PyErr_NoMemory();
}

static int frozen_traverse(PyObject *self, visitproc visit, void *arg) {
    struct frozen *frozen = (struct frozen *)self;
    Py_VISIT(frozen->lookups);
    Py_VISIT(frozen->dtypes);
    Py_VISIT(frozen->attributes);
    for (uint32_t i = 0; frozen->shapes && i < frozen->shape_count; i++)
        if (frozen->shapes[i]) Py_VISIT(frozen->shapes[i]->type);
    return 0;
}

static int frozen_clear(PyObject *self) {
    struct frozen *frozen = (struct frozen *)self;
    Py_CLEAR(frozen->lookups);
    Py_CLEAR(frozen->attributes);
    return 0;
}

static void frozen_dealloc(PyObject *self) {
    struct frozen *frozen = (struct frozen *)self;
    PyObject_GC_UnTrack(self);
    if (frozen->weakrefs) PyObject_ClearWeakRefs(self);
    frozen_clear(self);
    Py_CLEAR(frozen->dtypes);
    for (uint32_t i = 0; frozen->shapes && i < frozen->shape_count; i++) shape_free(frozen->shapes[i]);
    PyMem_Free(frozen->shapes);
    hr_frozen_close(frozen->data);
    PyMem_RawFree(frozen->memory);
    Py_XDECREF(frozen->owner);
    Py_TYPE(self)->tp_free(self);
}

static int frozen_get_buffer(PyObject *self, Py_buffer *view, int flags) {
    struct frozen *frozen = (struct frozen *)self;
    return PyBuffer_FillInfo(view, self, (void *)(uintptr_t)frozen->start, (Py_ssize_t)frozen->bytes, 1, flags);
}

static PyObject *frozen_root(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return read_view((struct frozen *)self, hr_frozen_root(((struct frozen *)self)->data));
}

static PyObject *frozen_at(PyObject *self, PyObject *value) {
    uint64_t word = PyLong_AsUnsignedLongLong(value);
    return PyErr_Occurred() ? NULL : read_view((struct frozen *)self, word);
}

static PyObject *frozen_verify(PyObject *self, PyObject *ignored) {
    int r;
    (void)ignored;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_frozen_verify(((struct frozen *)self)->data);
    Py_END_ALLOW_THREADS;
    if (r < 0) return frozen_raise(r);
    Py_RETURN_NONE;
}

static PyObject *frozen_info(PyObject *self, void *which) {
    struct hr_frozen_info info;
    hr_frozen_look(((struct frozen *)self)->data, &info);
    switch (*(const char *)which) {
    case 'i':
        return PyBytes_FromStringAndSize((const char *)info.id, sizeof info.id);
    case 'd':
        return PyBytes_FromStringAndSize((const char *)info.digest, sizeof info.digest);
    case 'f':
        return PyLong_FromLong(info.fd);
    case 's':
        return PyLong_FromUnsignedLong(info.shape_count);
    case 'r':
        return PyLong_FromUnsignedLongLong(hr_frozen_root(((struct frozen *)self)->data));
    default:
        return PyLong_FromUnsignedLongLong(info.bytes);
    }
}

static PyObject *frozen_trusted(PyObject *self, void *ignored) {
    (void)ignored;
    return PyBool_FromLong(((struct frozen *)self)->trusted);
}

static PyMemberDef frozen_members[] = {
    {"small_items", T_UINT, offsetof(struct frozen, small_items), 0,
     "Containers of up to so many items in all are read as ordinary objects; 0: none."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef frozen_methods[] = {
    {"root", frozen_root, METH_NOARGS, "root() -> object\n\nReturns the object that was frozen."},
    {"at", frozen_at, METH_O, "at(value) -> object\n\nReturns the object of a value that where() returned."},
    {"verify", frozen_verify, METH_NOARGS, "verify()\n\nChecks every chunk against its checksum. Raises FrozenError."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef frozen_attributes[] = {
    {"id", frozen_info, NULL, "16 random bytes, drawn when the frozen data was made.", "id"},
    {"digest", frozen_info, NULL, "16 bytes, a checksum of its contents.", "digest"},
    {"fd", frozen_info, NULL, "Its descriptor, borrowed; -1: it has none.", "fd"},
    {"bytes", frozen_info, NULL, "Its size.", "bytes"},
    {"shapes", frozen_info, NULL, "Number of shapes of records.", "shapes"},
    {"root_value", frozen_info, NULL, "The value of its root, for at().", "root"},
    {"trusted", frozen_trusted, NULL, "True if it may import classes and load pickles.", NULL},
    {"__dict__", PyObject_GenericGetDict, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyBufferProcs frozen_buffer = {.bf_getbuffer = frozen_get_buffer};

PyTypeObject FrozenType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Frozen",
    .tp_basicsize = sizeof(struct frozen),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "Open frozen data of frozen data; its bytes as a read-only buffer.",
    .tp_dealloc = frozen_dealloc,
    .tp_traverse = frozen_traverse,
    .tp_clear = frozen_clear,
    .tp_free = PyObject_GC_Del,
    .tp_as_buffer = &frozen_buffer,
    .tp_weaklistoffset = offsetof(struct frozen, weakrefs),
    .tp_dictoffset = offsetof(struct frozen, attributes),
    .tp_methods = frozen_methods,
    .tp_members = frozen_members,
    .tp_getset = frozen_attributes,
};
