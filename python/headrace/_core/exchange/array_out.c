/* SPDX-License-Identifier: Apache-2.0 */
/* Makes tensors and arrays of a received batch in the trainer, over leases or as copies. */
#include "exchange/arrays.h"

#include <stdlib.h>
#include <string.h>

/*
 * Makes tensors and arrays of array leaves, in the trainer. A large one uses the memory of the arena and has a lease on
 * it, which its deallocator releases, in any thread. A small one is a private copy, so that a program that keeps labels
 * does not keep the images of the same slot.
 */
enum { SMALL_BYTES = HR_BATCH_LARGE_BYTES, ALIGN = 64 };

/* The memory of one leaf: private bytes after the struct, or a lease, or a view. */
struct memory {
    hr_lease *lease;
    PyObject *owner; /* the owner of the memory of a view; an owned reference */
    void *data;      /* the storage's first byte */
};

/* Reserves `extra` bytes for the caller, and behind them a private copy of the leaf. */
static void *memory_copy(const struct origin *origin, const struct hr_node *node, size_t extra,
                         struct memory *ret_memory) {
    char *block = malloc(extra + node->storage_bytes + ALIGN);
    if (!block) return PyErr_NoMemory();
    void *data = (void *)(((uintptr_t)block + extra + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
    memcpy(data, (const char *)origin->data + node->storage_offset, node->storage_bytes);
    *ret_memory = (struct memory){.data = data};
    return block;
}

/* The same, but the leaf stays where it is. */
static void *memory_lease(const struct origin *origin, const struct hr_node *node, size_t extra,
                          struct memory *ret_memory) {
    const char *stored = (const char *)origin->data + node->storage_offset;
    char *block = malloc(extra);
    if (!block) return PyErr_NoMemory();
    *ret_memory = (struct memory){.data = (void *)(uintptr_t)stored};
    int r = hr_delivery_lease(origin->delivery, node->storage_offset, node->storage_bytes, &ret_memory->lease);
    if (r == 0) return block;
    free(block);
    return core_raise(r);
}

/* The block is freed by the caller, after the lease. */
static void *memory_take(const struct origin *origin, const struct hr_node *node, size_t extra,
                         struct memory *ret_memory) {
    bool is_leased =
        origin->leased == LEASED_ALL || (origin->leased == LEASED_LARGE && node->storage_bytes >= SMALL_BYTES);
    bool is_copied = !origin->delivery || !is_leased;
    return is_copied ? memory_copy(origin, node, extra, ret_memory) : memory_lease(origin, node, extra, ret_memory);
}

/* ---- tensors ---- */

struct tensor {
    union {
        struct dl_versioned versioned;
        struct dl_managed managed;
    } dl;
    hr_lease *lease;
    int64_t numbers[]; /* shape, then strides */
};

static void free_tensor(struct tensor *tensor) {
    hr_lease_release(tensor->lease);
    free(tensor);
}

static void delete_versioned(struct dl_versioned *self) {
    free_tensor((struct tensor *)self);
}
static void delete_managed(struct dl_managed *self) {
    free_tensor((struct tensor *)self);
}

static struct tensor *new_tensor(const struct origin *origin, const struct hr_node *node,
                                 struct dl_tensor *ret_description) {
    struct memory memory = {0};
    struct tensor *tensor =
        memory_take(origin, node, sizeof *tensor + 2 * node->ndim * sizeof *tensor->numbers, &memory);
    if (!tensor) return NULL;
    tensor->lease = memory.lease;
    if (node->ndim) {
        memcpy(tensor->numbers, node->shape, node->ndim * sizeof *tensor->numbers);
        memcpy(tensor->numbers + node->ndim, node->strides, node->ndim * sizeof *tensor->numbers);
    }
    *ret_description = (struct dl_tensor){.data = (char *)memory.data + (node->data_offset - node->storage_offset),
                                          .device = {DL_CPU, 0},
                                          .ndim = (int32_t)node->ndim,
                                          .dtype = {node->dtype.code, node->dtype.bits, node->dtype.lanes},
                                          .shape = tensor->numbers,
                                          .strides = tensor->numbers + node->ndim};
    return tensor;
}

static void drop_capsule(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return; /* it was consumed, and has the name "used_dltensor" now */
    struct dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    managed->deleter(managed);
}

static PyObject *sink_by_capsule(struct tensor *tensor, const struct dl_tensor *description) {
    tensor->dl.managed = (struct dl_managed){.tensor = *description, .deleter = delete_managed};
    PyObject *capsule = PyCapsule_New(&tensor->dl.managed, "dltensor", drop_capsule);
    if (!capsule) {
        free_tensor(tensor);
        return NULL;
    }
    PyObject *result = PyObject_CallFunctionObjArgs(core.tensor_from_capsule, capsule, NULL);
    Py_DECREF(capsule);
    return result;
}

static PyObject *sink_tensor(const struct origin *origin, const struct hr_node *node) {
    struct dl_tensor description;
    void *result = NULL;
    if (!core.tensor_type)
        return PyErr_Format(PyExc_RuntimeError, "headrace: a tensor arrived, but this process does not use torch");
    struct tensor *tensor = new_tensor(origin, node, &description);
    if (!tensor) return NULL;
    if (!core.exchange) return sink_by_capsule(tensor, &description);
    tensor->dl.versioned = (struct dl_versioned){
        .version = {DL_MAJOR_VERSION, DL_MINOR_VERSION}, .deleter = delete_versioned, .tensor = description};
    return core.exchange->import_managed(&tensor->dl.versioned, &result) < 0 ? NULL : result;
}

/* ---- buffers ---- */

struct lease {
    PyObject_HEAD struct memory memory;
    void *block;
    Py_ssize_t bytes;
};

static void lease_dealloc(PyObject *self) {
    struct lease *lease = (struct lease *)self;
    hr_lease_release(lease->memory.lease);
    Py_XDECREF(lease->memory.owner);
    free(lease->block);
    Py_TYPE(self)->tp_free(self);
}

static int lease_get_buffer(PyObject *self, Py_buffer *view, int flags) {
    struct lease *lease = (struct lease *)self;
    return PyBuffer_FillInfo(view, self, lease->memory.data, lease->bytes, lease->memory.owner != NULL, flags);
}

static PyBufferProcs lease_buffer = {.bf_getbuffer = lease_get_buffer};

PyTypeObject LeaseType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Lease",
    .tp_basicsize = sizeof(struct lease),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc =
        "Bytes of a batch, as a writable buffer, or of a sample of the cache, as a read-only one. They are valid as "
        "long as this object and its views.",
    .tp_dealloc = lease_dealloc,
    .tp_as_buffer = &lease_buffer,
};

static PyObject *sink_buffer(const struct origin *origin, const struct hr_node *node) {
    struct lease *lease = PyObject_New(struct lease, &LeaseType);
    if (!lease) return NULL;
    *lease = (struct lease){.ob_base = lease->ob_base, .bytes = (Py_ssize_t)node->storage_bytes};
    if (origin->owner) {
        void *data = (char *)(uintptr_t)origin->data + node->storage_offset;
        lease->memory = (struct memory){.owner = Py_NewRef(origin->owner), .data = data};
        return (PyObject *)lease;
    }
    lease->block = memory_take(origin, node, 1, &lease->memory);
    if (lease->block) return (PyObject *)lease;
    Py_DECREF(lease);
    return NULL;
}

/* ---- numpy arrays ---- */

/* Writes the numpy name of a dtype, its kind and size, such as "f4". Returns false if numpy has no such dtype. */
static bool name_of(struct hr_dtype dtype, char name[8]) {
    static const char kinds[] = {'i', 'u', 'f', 0, 0, 'c', 'b'};
    char kind = dtype.code < sizeof kinds ? kinds[dtype.code] : 0;
    if (!kind || dtype.lanes != 1) return false;
    snprintf(name, 8, "%c%d", kind, dtype.bits / 8);
    return true;
}

/* Borrowed, from a table that keeps the dtypes that were met. */
static PyObject *numpy_dtype_of(struct hr_dtype dtype) {
    static PyObject *known;
    char name[8];
    if (!name_of(dtype, name))
        return PyErr_Format(PyExc_RuntimeError, "headrace: an array of a dtype that numpy does not have");
    if (core_need_numpy() < 0 || (!known && !(known = PyDict_New()))) return NULL;
    PyObject *found = PyDict_GetItemString(known, name);
    if (found) return found;
    PyObject *made = PyObject_CallFunction(core.dtype_type, "s", name);
    int r = made ? PyDict_SetItemString(known, name, made) : -1;
    Py_XDECREF(made);
    return r < 0 ? NULL : made;
}

PyObject *numbers_tuple(const int64_t *numbers, uint32_t count, int64_t factor) {
    PyObject *tuple = PyTuple_New(count);
    for (uint32_t i = 0; tuple && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i] * factor);
        if (!number) Py_CLEAR(tuple);
        if (tuple) PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

static PyObject *sink_numpy(const struct origin *origin, const struct hr_node *node) {
    PyObject *dtype = numpy_dtype_of(node->dtype), *result = NULL;
    if (!dtype) return NULL;
    PyObject *lease = sink_buffer(origin, node);
    PyObject *shape = numbers_tuple(node->shape, node->ndim, 1);
    PyObject *strides = numbers_tuple(node->strides, node->ndim, node->dtype.bits / 8);
    PyObject *offset = PyLong_FromUnsignedLongLong(node->data_offset - node->storage_offset);
    if (lease && shape && strides && offset)
        result = PyObject_CallFunctionObjArgs(core.array_type, shape, dtype, lease, offset, strides, NULL);
    Py_XDECREF(lease);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    Py_XDECREF(offset);
    return result;
}

PyObject *output_bytes(const struct origin *origin, uint64_t offset, uint64_t bytes) {
    enum { DL_UINT = 1 };
    int64_t size = (int64_t)bytes, stride = 1;
    struct hr_node node = {.kind = HR_NODE_ARRAY,
                           .flavor = HR_FLAVOR_TENSOR,
                           .dtype = {DL_UINT, 8, 1},
                           .ndim = 1,
                           .shape = &size,
                           .strides = &stride,
                           .storage_offset = offset,
                           .storage_bytes = bytes,
                           .data_offset = offset};
    return sink_tensor(origin, &node);
}

PyObject *output_array(const struct origin *origin, const struct hr_node *node) {
    if (node->flavor == HR_FLAVOR_TENSOR) return sink_tensor(origin, node);
    return node->flavor == HR_FLAVOR_NUMPY ? sink_numpy(origin, node) : sink_buffer(origin, node);
}
