/* SPDX-License-Identifier: Apache-2.0 */
/* The methods of _core.Loader for batches that are copied to a device: what is copied, from which slot, and which slots
 * the device has registered. headrace.torch._device calls them. */
#include "exchange/decode.h"
#include "exchange/exchange.h"

#include <errno.h>

PyObject *Unsettled;

static struct origin origin_of(struct hr_delivery *delivery) {
    return (struct origin){
        .data = delivery->data, .bytes = delivery->bytes, .delivery = delivery, .leased = LEASED_ALL};
}

/* NULL with an exception, or without one if the answer was rebuilt already. */
static struct hr_delivery *received_of(PyObject *self) {
    return core_open_loader(self) ? loader_received(self) : NULL;
}

PyObject *sending_sources(PyObject *self, PyObject *ignored) {
    struct hr_delivery *delivery = received_of(self);
    (void)ignored;
    if (!delivery && PyErr_Occurred()) return NULL;
    if (!delivery) Py_RETURN_NONE;
    struct origin origin = origin_of(delivery);
    PyObject *sources = decode_sources(&origin);
    if (sources && PyList_GET_SIZE(sources)) hr_delivery_send(delivery);
    return sources;
}

PyObject *sending_span(PyObject *self, PyObject *arguments) {
    unsigned long long address, bytes;
    struct hr_delivery *delivery = received_of(self);
    if (!PyArg_ParseTuple(arguments, "KK:span", &address, &bytes)) return NULL;
    if (!delivery) return PyErr_Format(PyExc_RuntimeError, "headrace: no batch was waited for");
    struct origin origin = origin_of(delivery);
    return output_bytes(&origin, address - (uintptr_t)delivery->data, bytes);
}

PyObject *sending_slot(PyObject *self, PyObject *ignored) {
    struct hr_slot_status status;
    struct hr_delivery *delivery = received_of(self);
    (void)ignored;
    if (!delivery && PyErr_Occurred()) return NULL;
    if (!delivery || hr_delivery_slot(delivery, &status) < 0) Py_RETURN_NONE;
    return Py_BuildValue("IKKK", status.slot, (unsigned long long)delivery->bytes,
                         (unsigned long long)status.registered_bytes, (unsigned long long)status.received_count);
}

PyObject *sending_register(PyObject *self, PyObject *arguments) {
    unsigned int slot;
    unsigned long long bytes;
    int has_grown;
    void *address;
    uint64_t registered;
    hr_loader *loader = core_open_loader(self);
    if (!loader || !PyArg_ParseTuple(arguments, "IKp:register_slot", &slot, &bytes, &has_grown)) return NULL;
    int r = hr_arena_register(hr_loader_arena(loader), slot, bytes, has_grown, &address, &registered);
    if (r == -EDQUOT) Py_RETURN_NONE;
    if (r == -EMLINK) Py_RETURN_FALSE;
    if (r < 0) return core_raise(r);
    return Py_BuildValue("KK", (unsigned long long)(uintptr_t)address, (unsigned long long)registered);
}

PyObject *sending_unregister(PyObject *self, PyObject *argument) {
    hr_loader *loader = core_open_loader(self);
    unsigned long slot = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    hr_arena_unregister(hr_loader_arena(loader), (uint32_t)slot);
    Py_RETURN_NONE;
}

/* ---- arenas that outlive their loaders ---- */

static const char ARENA[] = "headrace arena";

static void close_kept(PyObject *kept) {
    if (PyCapsule_GetContext(kept)) hr_arena_close(PyCapsule_GetPointer(kept, ARENA));
}

PyObject *sending_keep_arena(hr_arena *arena) {
    PyObject *kept = PyCapsule_New(arena, ARENA, close_kept);
    if (!kept) hr_arena_close(arena);
    if (kept) PyCapsule_SetContext(kept, kept); /* it is not taken */
    return kept;
}

hr_arena *sending_take_arena(PyObject *kept) {
    hr_arena *arena = PyCapsule_GetPointer(kept, ARENA);
    if (arena && !PyCapsule_GetContext(kept)) {
        PyErr_SetString(PyExc_RuntimeError, "headrace: another loader has this arena");
        return NULL;
    }
    if (arena) PyCapsule_SetContext(kept, NULL);
    return arena;
}

PyObject *sending_unregister_kept(PyObject *module, PyObject *arguments) {
    PyObject *kept;
    unsigned int slot;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OI:unregister_kept", &kept, &slot)) return NULL;
    hr_arena *arena = PyCapsule_GetPointer(kept, ARENA);
    if (!arena) return NULL;
    if (PyCapsule_GetContext(kept)) hr_arena_unregister(arena, slot);
    Py_RETURN_NONE;
}

/* ---- calls that are undone ---- */

enum { MOST_TRIES = 16 };

/* A signal's handler can raise an exception at the beginning of a function, before it has done anything. */
static bool call_until_done(PyObject *function) {
    PyObject *type = NULL, *error = NULL, *trace = NULL, *result = NULL;
    for (int i = 0; i < MOST_TRIES && !result; i++) {
        result = PyObject_CallNoArgs(function);
        if (!result && !type)
            PyErr_Fetch(&type, &error, &trace);
        else if (!result)
            PyErr_Clear();
    }
    bool is_done = result != NULL;
    Py_XDECREF(result);
    if (type) PyErr_Restore(type, error, trace);
    return is_done && !PyErr_Occurred();
}

PyObject *core_call_and_undo(PyObject *module, PyObject *arguments) {
    PyObject *function, *undo, *type, *error, *trace;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO:call_and_undo", &function, &undo)) return NULL;
    PyObject *result = PyObject_CallNoArgs(function);
    PyErr_Fetch(&type, &error, &trace);
    bool is_undone = call_until_done(undo);
    if (type) PyErr_Restore(type, error, trace); /* it replaces the other one */
    if (!is_undone || type) Py_CLEAR(result);
    return result;
}

/* ---- memory that a simulated device guards ---- */

PyObject *core_guard(PyObject *module, PyObject *arguments) {
    unsigned long long address, bytes;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KK:guard", &address, &bytes)) return NULL;
#ifdef HR_FAILPOINTS
    int r = bytes ? hr_guard(address, bytes) : hr_unguard(address);
#else
    int r = -ENOSYS;
#endif
    return r < 0 ? core_raise(r) : PyLong_FromLong(r);
}

PyObject *core_guard_lost(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
#ifdef HR_FAILPOINTS
    return PyLong_FromUnsignedLongLong(hr_guard_lost());
#else
    return PyLong_FromLong(0);
#endif
}
