/* SPDX-License-Identifier: Apache-2.0 */
#define Py_BUILD_CORE_MODULE 1 /* before Python.h: its internal headers are included below */
#include "frozen/freeze.h"

/*
 * Reads the attributes of an instance whose __dict__ was never used.
 *
 * CPython 3.11 and newer store them in the object, in the order in which they were set. The dict is made when code asks
 * for it, and then stays: freezing millions of instances would leave millions of dicts behind. The layout is not a
 * public interface, so the internal headers of the exact version are used. If they do not compile, if the version is
 * one that was not examined, or if threads run without the GIL, each instance is asked for its dict.
 */

#ifdef HEADRACE_HAS_INLINE_VALUES
#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>

/* NULL: the instance has a dict, or has no room for values. */
static PyDictValues *values_of(PyObject *object) {
    if (!(Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT)) return NULL;
#if PY_VERSION_HEX < 0x030c0000
    return *_PyObject_ValuesPointer(object);
#elif PY_VERSION_HEX < 0x030d0000
    PyDictOrValues held = *_PyObject_DictOrValuesPointer(object);
    return _PyDictOrValues_IsValues(held) ? _PyDictOrValues_GetValues(held) : NULL;
#else
    if (!(Py_TYPE(object)->tp_flags & Py_TPFLAGS_INLINE_VALUES) || _PyObject_ManagedDictPointer(object)->dict)
        return NULL;
    PyDictValues *values = (PyDictValues *)(void *)((char *)object + Py_TYPE(object)->tp_basicsize);
    return values->valid ? values : NULL;
#endif
}

static PyObject *managed_dict(PyObject *object) {
#if PY_VERSION_HEX < 0x030c0000
    return *_PyObject_ManagedDictPointer(object);
#elif PY_VERSION_HEX < 0x030d0000
    PyDictOrValues held = *_PyObject_DictOrValuesPointer(object);
    return _PyDictOrValues_IsValues(held) ? NULL : _PyDictOrValues_GetDict(held);
#else
    return (PyObject *)_PyObject_ManagedDictPointer(object)->dict;
#endif
}

/* For each value that is set, in the order in which they were set, its number among the keys of the class. */
#if PY_VERSION_HEX < 0x030d0000 /* backwards, before the values: bytes for the room, the count, the numbers */
static Py_ssize_t count_of(PyDictValues *values) {
    return ((const uint8_t *)values)[-2];
}
static Py_ssize_t number_at(PyDictValues *values, Py_ssize_t index) {
    return ((const uint8_t *)values)[-3 - index];
}
#else
static Py_ssize_t count_of(PyDictValues *values) {
    return values->size;
}
static Py_ssize_t number_at(PyDictValues *values, Py_ssize_t index) {
    return get_insertion_order_array(values)[index];
}
#endif

bool inline_at(PyObject *object, Py_ssize_t index, PyObject **ret_name, PyObject **ret_value) {
    PyDictValues *values = values_of(object);
    if (!values || index >= count_of(values)) return false;
    PyDictKeysObject *keys = ((PyHeapTypeObject *)Py_TYPE(object))->ht_cached_keys;
    Py_ssize_t number = number_at(values, index);
    *ret_name = DK_UNICODE_ENTRIES(keys)[number].me_key;
    *ret_value = values->values[number];
    return true;
}

bool has_inline(PyObject *object) {
    return values_of(object) != NULL;
}

PyObject *held_dict(PyObject *object) {
    if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) return Py_XNewRef(managed_dict(object));
    PyObject **place = _PyObject_GetDictPtr(object);
    return place ? Py_XNewRef(*place) : NULL;
}

#else

bool inline_at(PyObject *object, Py_ssize_t index, PyObject **ret_name, PyObject **ret_value) {
    (void)object, (void)index;
    *ret_name = *ret_value = NULL;
    return false;
}

bool has_inline(PyObject *object) {
    (void)object;
    return false;
}

PyObject *held_dict(PyObject *object) {
    PyObject *dict = Py_TYPE(object)->tp_dictoffset ? PyObject_GenericGetDict(object, NULL) : NULL;
    if (!dict) PyErr_Clear();
    return dict;
}

#endif
