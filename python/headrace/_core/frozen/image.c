/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/image.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <structmember.h>

PyObject *StoreError;

void *store_raise(int code) {
    if (code != HR_E_CORRUPT && code != HR_E_VERSION && code != -EINVAL && code != -ERANGE) return core_raise(code);
    const char *message = hr_error_message();
    PyErr_SetString(StoreError, *message ? message : hr_error_text(code));
    return NULL;
}

int store_result(int code) {
    if (code >= 0) return 0;
    store_raise(code);
    return -1;
}

PyObject *store_hook(const char *name, const char *format, ...) {
    static PyObject *module;
    char tuple[32]; /* "(...)": one tuple as the only argument is still one argument */
    va_list values;
    if (!module && !(module = PyImport_ImportModule("headrace.store.types.hooks"))) return NULL;
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

static int read_names(struct image *image, uint32_t number, struct shape *shape) {
    struct hr_item item;
    shape->names = PyTuple_New(shape->field_count);
    shape->numbers = PyDict_New();
    if (!shape->names || !shape->numbers) return -1;
    for (uint32_t i = 0; i < shape->field_count; i++) {
        int r = hr_store_field(image->store, number, i, &item);
        PyObject *name = r < 0 ? store_raise(r) : read_text(image, &item);
        if (!name) return -1;
        PyUnicode_InternInPlace(&name);
        PyTuple_SET_ITEM(shape->names, (Py_ssize_t)i, name);
        PyObject *index = PyLong_FromUnsignedLong(i);
        if (!index || PyDict_SetItem(shape->numbers, name, index) < 0) i = shape->field_count;
        Py_XDECREF(index);
    }
    if (!PyErr_Occurred() && PyDict_GET_SIZE(shape->numbers) != (Py_ssize_t)shape->field_count)
        PyErr_SetString(StoreError, "headrace: a shape of this image has a name twice; the image is damaged");
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
            PyErr_Format(StoreError, "headrace: %s has no attribute '%U' any more; make the image again",
                         shape->type->tp_name, PyTuple_GET_ITEM(shape->names, (Py_ssize_t)i));
            return -1;
        }
    }
    return 0;
}

static int resolve(struct image *image, struct shape *shape, const struct hr_item *type) {
    const char *kind = shape->kind == HR_SHAPE_OBJECT ? "object" : "tuple";
    if (shape->kind == HR_SHAPE_DICT) return 0;
    if (type->kind != HR_KIND_TEXT || (shape->kind != HR_SHAPE_OBJECT && shape->kind != HR_SHAPE_TUPLE)) {
        PyErr_SetString(StoreError, "headrace: a shape of this image has an unknown kind; the image is damaged");
        return -1;
    }
    PyObject *name = read_text(image, type);
    PyObject *found =
        name ? store_hook("resolve_class", "OsOO", name, kind, shape->names, image->trusted ? Py_True : Py_False)
             : NULL;
    Py_XDECREF(name);
    shape->type = (PyTypeObject *)found;
    if (!found) return -1;
    return shape->kind == HR_SHAPE_OBJECT ? find_places(shape) : 0;
}

static struct shape *read_shape(struct image *image, uint32_t number) {
    struct hr_shape read;
    int r = hr_store_shape(image->store, number, &read);
    if (r < 0) return store_raise(r);
    struct shape *shape = PyMem_Calloc(1, sizeof *shape);
    if (!shape) return (void *)PyErr_NoMemory();
    shape->kind = (enum hr_shape_kind)read.kind;
    shape->field_count = read.field_count;
    if (read_names(image, number, shape) == 0 && resolve(image, shape, &read.type) == 0) return shape;
    shape_free(shape);
    return NULL;
}

struct shape *image_shape(struct image *image, uint32_t number) {
    if (number < image->shape_count && image->shapes[number]) return image->shapes[number];
    struct shape *shape = read_shape(image, number);
    if (!shape || number >= image->shape_count) {
        shape_free(shape);
        return PyErr_Occurred() ? NULL : store_raise(HR_E_CORRUPT);
    }
    if (image->shapes[number])
        shape_free(shape); /* another thread has set it in between */
    else
        image->shapes[number] = shape;
    return image->shapes[number];
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

PyObject *image_new(hr_store *store, int trusted) {
    struct hr_store_info info;
    struct image *image = (struct image *)ImageType.tp_alloc(&ImageType, 0);
    if (!image) {
        hr_store_close(store);
        return NULL;
    }
    hr_store_look(store, &info);
    image->store = store;
    image->start = info.image;
    image->bytes = info.bytes;
    image->trusted = trusted;
    image->is_sealed = trusted && info.fd >= 0;
    image->shape_count = info.shape_count;
    image->shapes = PyMem_Calloc((size_t)info.shape_count + 1, sizeof(struct shape *));
    image->lookups = PyDict_New();
    image->dtypes = PyDict_New();
    if (image->shapes && image->lookups && image->dtypes) return (PyObject *)image;
    Py_DECREF(image);
    return PyErr_Occurred() ? NULL : PyErr_NoMemory();
}

static int image_traverse(PyObject *self, visitproc visit, void *arg) {
    struct image *image = (struct image *)self;
    Py_VISIT(image->lookups);
    Py_VISIT(image->dtypes);
    Py_VISIT(image->attributes);
    for (uint32_t i = 0; image->shapes && i < image->shape_count; i++)
        if (image->shapes[i]) Py_VISIT(image->shapes[i]->type);
    return 0;
}

static int image_clear(PyObject *self) {
    struct image *image = (struct image *)self;
    Py_CLEAR(image->lookups);
    Py_CLEAR(image->attributes);
    return 0;
}

static void image_dealloc(PyObject *self) {
    struct image *image = (struct image *)self;
    PyObject_GC_UnTrack(self);
    if (image->weakrefs) PyObject_ClearWeakRefs(self);
    image_clear(self);
    Py_CLEAR(image->dtypes);
    for (uint32_t i = 0; image->shapes && i < image->shape_count; i++) shape_free(image->shapes[i]);
    PyMem_Free(image->shapes);
    hr_store_close(image->store);
    PyMem_RawFree(image->memory);
    Py_XDECREF(image->owner);
    Py_TYPE(self)->tp_free(self);
}

static int image_get_buffer(PyObject *self, Py_buffer *view, int flags) {
    struct image *image = (struct image *)self;
    return PyBuffer_FillInfo(view, self, (void *)(uintptr_t)image->start, (Py_ssize_t)image->bytes, 1, flags);
}

static PyObject *image_root(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return read_view((struct image *)self, hr_store_root(((struct image *)self)->store));
}

static PyObject *image_at(PyObject *self, PyObject *value) {
    uint64_t word = PyLong_AsUnsignedLongLong(value);
    return PyErr_Occurred() ? NULL : read_view((struct image *)self, word);
}

static PyObject *image_verify(PyObject *self, PyObject *ignored) {
    int r;
    (void)ignored;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_store_verify(((struct image *)self)->store);
    Py_END_ALLOW_THREADS;
    if (r < 0) return store_raise(r);
    Py_RETURN_NONE;
}

static PyObject *image_info(PyObject *self, void *which) {
    struct hr_store_info info;
    hr_store_look(((struct image *)self)->store, &info);
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
        return PyLong_FromUnsignedLongLong(hr_store_root(((struct image *)self)->store));
    default:
        return PyLong_FromUnsignedLongLong(info.bytes);
    }
}

static PyObject *image_trusted(PyObject *self, void *ignored) {
    (void)ignored;
    return PyBool_FromLong(((struct image *)self)->trusted);
}

static PyMemberDef image_members[] = {
    {"small_items", T_UINT, offsetof(struct image, small_items), 0,
     "Containers of up to so many items in all are read as ordinary objects; 0: none."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef image_methods[] = {
    {"root", image_root, METH_NOARGS, "root() -> object\n\nReturns the object that was frozen."},
    {"at", image_at, METH_O, "at(value) -> object\n\nReturns the object of a value that where() returned."},
    {"verify", image_verify, METH_NOARGS, "verify()\n\nChecks every chunk against its checksum. Raises StoreError."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef image_attributes[] = {
    {"id", image_info, NULL, "16 random bytes, drawn when the image was made.", "id"},
    {"digest", image_info, NULL, "16 bytes, a checksum of its contents.", "digest"},
    {"fd", image_info, NULL, "Its descriptor, borrowed; -1: it has none.", "fd"},
    {"bytes", image_info, NULL, "Its size.", "bytes"},
    {"shapes", image_info, NULL, "Number of shapes of records.", "shapes"},
    {"root_value", image_info, NULL, "The value of its root, for at().", "root"},
    {"trusted", image_trusted, NULL, "True if it may import classes and load pickles.", NULL},
    {"__dict__", PyObject_GenericGetDict, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyBufferProcs image_buffer = {.bf_getbuffer = image_get_buffer};

PyTypeObject ImageType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Image",
    .tp_basicsize = sizeof(struct image),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "An open image of frozen data; its bytes as a read-only buffer.",
    .tp_dealloc = image_dealloc,
    .tp_traverse = image_traverse,
    .tp_clear = image_clear,
    .tp_free = PyObject_GC_Del,
    .tp_as_buffer = &image_buffer,
    .tp_weaklistoffset = offsetof(struct image, weakrefs),
    .tp_dictoffset = offsetof(struct image, attributes),
    .tp_methods = image_methods,
    .tp_members = image_members,
    .tp_getset = image_attributes,
};
