/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/freeze.h"
#include "frozen/view.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

/* The functions of the module for frozen data. */

static PyObject *open_image(PyObject *module, PyObject *arguments) {
    const char *path;
    int verifies, trusts, r;
    hr_store *store = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "ypp:open_image", &path, &verifies, &trusts)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_store_open(path, verifies ? HR_STORE_VERIFY : 0, &store);
    Py_END_ALLOW_THREADS;
    return r < 0 ? store_raise(r) : image_new(store, trusts);
}

static PyObject *attach_image(PyObject *module, PyObject *arguments) {
    const char *name;
    int fd, trusts;
    hr_store *store = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "isp:attach_image", &fd, &name, &trusts)) return NULL;
    int r = hr_store_open_fd(fd, name, 0, &store);
    return r < 0 ? store_raise(r) : image_new(store, trusts);
}

/* Makes a copy of an image in private memory. */
static PyObject *copy_image(PyObject *module, PyObject *arguments) {
    enum { ALIGN = 64 };
    Py_buffer bytes;
    int trusts;
    hr_store *store = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*p:copy_image", &bytes, &trusts)) return NULL;
    void *memory = PyMem_RawMalloc((size_t)bytes.len + ALIGN);
    int r = memory ? 0 : -ENOMEM;
    if (r == 0) {
        char *aligned = (char *)memory + (ALIGN - (uintptr_t)memory % ALIGN);
        memcpy(aligned, bytes.buf, (size_t)bytes.len);
        r = hr_store_open_memory(aligned, (uint64_t)bytes.len, 0, &store);
    }
    PyBuffer_Release(&bytes);
    PyObject *image = r < 0 ? store_raise(r) : image_new(store, trusts);
    if (image)
        ((struct image *)image)->memory = memory;
    else
        PyMem_RawFree(memory);
    return image;
}

/* Opens an image in the memory of another object, which has to stay where it is and as it is. */
static PyObject *image_over(PyObject *module, PyObject *arguments) {
    PyObject *owner;
    Py_buffer bytes;
    int trusts;
    hr_store *store = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Op:image_over", &owner, &trusts)) return NULL;
    if (PyObject_GetBuffer(owner, &bytes, PyBUF_SIMPLE) < 0) return NULL;
    int r = hr_store_open_memory(bytes.buf, (uint64_t)bytes.len, 0, &store);
    PyBuffer_Release(&bytes);
    struct image *image = r < 0 ? store_raise(r) : (struct image *)image_new(store, trusts);
    if (!image) return NULL;
    image->owner = Py_NewRef(owner);
    image->is_sealed = trusts;
    return (PyObject *)image;
}

/* Returns true if a class and its bases up to object (or `base`) were made by class statements, which add only a dict,
 * slots and weak references. The deallocator of Python classes is the only reliable sign of this. A C base without data
 * is accepted (typing.Generic, since Python 3.12). */
static bool is_made_by_statements(PyTypeObject *type, PyTypeObject *witness, PyTypeObject *base) {
    if (type != base && type->tp_dealloc != witness->tp_dealloc) return false;
    for (; type && type != base; type = type->tp_base)
        if (type->tp_dealloc != witness->tp_dealloc && type->tp_basicsize > base->tp_basicsize) return false;
    return type == base;
}

static PyObject *is_python_class(PyObject *module, PyObject *arguments) {
    PyTypeObject *type, *witness, *base;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!O!:is_python_class", &PyType_Type, &type, &PyType_Type, &witness,
                          &PyType_Type, &base))
        return NULL;
    return PyBool_FromLong(is_made_by_statements(type, witness, base));
}

static PyMethodDef methods[] = {
    {"freeze", (PyCFunction)(void (*)(void))core_freeze, METH_VARARGS | METH_KEYWORDS,
     "freeze(object, path=None, keeps_pickles=False, progress=None) -> (Image, (kinds, pickles))\n\nFreezes an object "
     "into an image, in memory or in a file (path as bytes). progress(bytes) is called from time to time."},
    {"thaw", core_thaw, METH_O,
     "thaw(view) -> object\n\nReturns an ordinary copy. An object that is not a view is returned unchanged."},
    {"thaw_together", core_thaw_together, METH_O,
     "thaw_together(views) -> list\n\nReturns ordinary copies of whole views of one image. Copies share objects if the "
     "views do."},
    {"where", core_where, METH_O, "where(view) -> (Image, value, slice or None)"},
    {"open_image", open_image, METH_VARARGS, "open_image(path, verify, trust) -> Image"},
    {"attach_image", attach_image, METH_VARARGS,
     "attach_image(fd, name, trust) -> Image\n\nOpens the image behind a descriptor, which the caller keeps."},
    {"copy_image", copy_image, METH_VARARGS,
     "copy_image(bytes, trust) -> Image\n\nMakes a copy in private memory, without a descriptor."},
    {"image_over", image_over, METH_VARARGS,
     "image_over(owner, trust) -> Image\n\nOpens the image in the memory of an attached object of a cache."},
    {"is_python_class", is_python_class, METH_VARARGS,
     "is_python_class(type, witness, base) -> bool\n\nReturns True if `type` and its bases up to `base` were made by "
     "class statements."},
    {NULL, NULL, 0, NULL},
};

int store_add(PyObject *module) {
    PyTypeObject *types[] = {&ImageType,      &FrozenListType,  &FrozenTupleType,  &FrozenDictType, &FrozenSetType,
                             &FrozenKeysType, &FrozenItemsType, &FrozenValuesType, &BuilderType,    NULL};
    StoreError = PyErr_NewExceptionWithDoc(
        "headrace.StoreError", "An image of frozen data is damaged, of another version, missing, or not trusted.",
        PyExc_RuntimeError, NULL);
    if (!StoreError || PyModule_AddObjectRef(module, "StoreError", StoreError) < 0) return -1;
    for (size_t i = 0; types[i]; i++)
        if (PyModule_AddType(module, types[i]) < 0) return -1;
    return PyType_Ready(&FrozenIteratorType) < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
