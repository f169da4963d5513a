/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/freeze.h"
#include "frozen/view.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

/* The functions of the module for frozen data. */

static PyObject *open_frozen(PyObject *module, PyObject *arguments) {
    const char *path;
    int verifies, trusts, r;
    hr_frozen *data = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "ypp:open_frozen", &path, &verifies, &trusts)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_frozen_open(path, verifies ? HR_FROZEN_VERIFY : 0, &data);
    Py_END_ALLOW_THREADS;
    return r < 0 ? frozen_raise(r) : frozen_new(data, trusts);
}

static PyObject *attach_frozen(PyObject *module, PyObject *arguments) {
    const char *name;
    int fd, trusts;
    hr_frozen *data = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "isp:attach_frozen", &fd, &name, &trusts)) return NULL;
    int r = hr_frozen_open_fd(fd, name, 0, &data);
    return r < 0 ? frozen_raise(r) : frozen_new(data, trusts);
}

/* Makes a copy of frozen data in private memory. */
static PyObject *copy_frozen(PyObject *module, PyObject *arguments) {
    enum { ALIGN = 64 };
    Py_buffer bytes;
    int trusts;
    hr_frozen *data = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*p:copy_frozen", &bytes, &trusts)) return NULL;
    void *memory = PyMem_RawMalloc((size_t)bytes.len + ALIGN);
    int r = memory ? 0 : -ENOMEM;
    if (r == 0) {
        char *aligned = (char *)memory + (ALIGN - (uintptr_t)memory % ALIGN);
        memcpy(aligned, bytes.buf, (size_t)bytes.len);
        r = hr_frozen_open_memory(aligned, (uint64_t)bytes.len, 0, &data);
    }
    PyBuffer_Release(&bytes);
    PyObject *frozen = r < 0 ? frozen_raise(r) : frozen_new(data, trusts);
    if (frozen)
        ((struct frozen *)frozen)->memory = memory;
    else
        PyMem_RawFree(memory);
    return frozen;
}

/* Opens frozen data in the memory of another object, which has to stay where it is and as it is. */
static PyObject *frozen_over(PyObject *module, PyObject *arguments) {
    PyObject *owner;
    Py_buffer bytes;
    int trusts;
    hr_frozen *data = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Op:frozen_over", &owner, &trusts)) return NULL;
    if (PyObject_GetBuffer(owner, &bytes, PyBUF_SIMPLE) < 0) return NULL;
    int r = hr_frozen_open_memory(bytes.buf, (uint64_t)bytes.len, 0, &data);
    PyBuffer_Release(&bytes);
    struct frozen *frozen = r < 0 ? frozen_raise(r) : (struct frozen *)frozen_new(data, trusts);
    if (!frozen) return NULL;
    frozen->owner = Py_NewRef(owner);
    frozen->is_sealed = trusts;
    return (PyObject *)frozen;
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
     "freeze(object, path=None, keeps_pickles=False, progress=None) -> (Frozen, (kinds, pickles))\n\nFreezes an object "
     "into frozen data, in memory or in a file (path as bytes). progress(bytes) is called from time to time."},
    {"thaw", core_thaw, METH_O,
     "thaw(view) -> object\n\nReturns an ordinary copy. An object that is not a view is returned unchanged."},
    {"thaw_together", core_thaw_together, METH_O,
     "thaw_together(views) -> list\n\nReturns ordinary copies of whole views of the same frozen data. Copies share "
     "objects if the views do."},
    {"where", core_where, METH_O, "where(view) -> (Frozen, value, slice or None)"},
    {"open_frozen", open_frozen, METH_VARARGS, "open_frozen(path, verify, trust) -> Frozen"},
    {"attach_frozen", attach_frozen, METH_VARARGS,
     "attach_frozen(fd, name, trust) -> Frozen\n\nOpens the frozen data behind a descriptor, which the caller keeps."},
    {"copy_frozen", copy_frozen, METH_VARARGS,
     "copy_frozen(bytes, trust) -> Frozen\n\nMakes a copy in private memory, without a descriptor."},
    {"frozen_over", frozen_over, METH_VARARGS,
     "frozen_over(owner, trust) -> Frozen\n\nOpens the frozen data in the memory of an attached object of a cache."},
    {"is_python_class", is_python_class, METH_VARARGS,
     "is_python_class(type, witness, base) -> bool\n\nReturns True if `type` and its bases up to `base` were made by "
     "class statements."},
    {NULL, NULL, 0, NULL},
};

int frozen_add(PyObject *module) {
    PyTypeObject *types[] = {&FrozenType,     &FrozenListType,  &FrozenTupleType,  &FrozenDictType, &FrozenSetType,
                             &FrozenKeysType, &FrozenItemsType, &FrozenValuesType, &BuilderType,    NULL};
    FrozenError = PyErr_NewExceptionWithDoc(
        "headrace.FrozenError", "Frozen data of frozen data is damaged, of another version, missing, or not trusted.",
        PyExc_RuntimeError, NULL);
    if (!FrozenError || PyModule_AddObjectRef(module, "FrozenError", FrozenError) < 0) return -1;
    for (size_t i = 0; types[i]; i++)
        if (PyModule_AddType(module, types[i]) < 0) return -1;
    return PyType_Ready(&FrozenIteratorType) < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
