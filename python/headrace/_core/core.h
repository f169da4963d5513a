/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_CORE_H
#define HEADRACE_CORE_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include <headrace/headrace.h>

#include "dlpack.h"

/*
 * The extension: thin. It turns Python objects into calls of libheadrace and back; no algorithm lives here.
 *
 *     module.c   the module; what the Python side tells it (configure)
 *     errors.c   negative codes as Python exceptions
 *     indices.c  a task's indices as bytes and back
 *     array_in.c tensors and arrays as struct hr_array
 *     encode.c   an object as a batch          collate.c  a list of samples as a batch
 *     array_out.c array leaves as tensors and arrays, with their leases
 *     decode.c   a batch as an object
 *     tasks.c    _core.Tasks, what is to be made next
 *     loader.c   _core.Loader, the trainer's end      crew.c  its worker processes
 *     iterator.c _core.Iterator, which hands batches on to the loop
 *     port.c     _core.Port, a worker's end
 *     growth.c   how much of an object's memory is private
 *     machine.c  what the machine gives this process
 *     walk.c     _core.Walker, for headrace.doctor
 */

/* Does nothing refer to an object but `owners`? */
static inline bool is_lone(PyObject *object, Py_ssize_t owners) {
#ifdef Py_GIL_DISABLED /* reference counts are split: nothing is known to be alone */
    (void)object, (void)owners;
    return false;
#else
    return Py_REFCNT(object) <= owners;
#endif
}

/* ---- module.c ---- */

/* What Python tells the extension once (configure); owned references, NULL until told. */
struct core {
    struct {
        PyObject *requires_grad, *dtype, *is_conj, *is_neg, *untyped_storage, *data_ptr, *storage_offset, *prepare,
            *is_from_signal;
    } names;                       /* interned; set when the module is made */
    PyObject *tensor_type;         /* torch.Tensor */
    PyObject *int8, *uint8;        /* the torch.dtypes */
    struct dl_exchange *exchange;  /* its table; NULL: capsules are used */
    PyObject *tensor_from_capsule; /* callable: a capsule "dltensor" -> torch.Tensor */
    PyObject *dump;                /* callable: object -> (pickle bytes, list of children) */
    PyObject *load;                /* callable: (pickle bytes, list of children) -> object */
    PyObject *array_type;          /* numpy.ndarray */
    PyObject *dtype_type;          /* numpy.dtype */
};
extern struct core core;

/* Makes core.array_type known; imports numpy. -1 with an exception where it is not installed. */
int core_need_numpy(void);

/* ---- errors.c ---- */

/* Sets the exception of a negative code, with the library's message; returns NULL. */
void *core_raise(int code);

/* ---- indices.c ---- */

/* The bytes of a task's indices: a list of int as int64, anything else pickled. New reference. */
PyObject *core_pack_indices(PyObject *indices);
PyObject *core_unpack_indices(const void *bytes, uint64_t length);

/* ---- source.c ---- */

/* Where arrays' bytes come from while a batch is being written: keeps objects and buffers alive. */
struct sources {
    Py_buffer *buffers;
    size_t buffer_count, buffer_room;
    PyObject **objects;
    size_t object_count, object_room;
};
void sources_clear(struct sources *sources); /* keeps the memory */
void sources_free(struct sources *sources);

enum found { FOUND_ERROR = -1, FOUND_NOT = 0, FOUND = 1 };

/* Describes a tensor (an exact torch.Tensor: CPU, strided, no gradient, nothing lazy) or an array (an exact
 * numpy.ndarray or scalar of a plain dtype). FOUND_NOT without an exception: take another way. The description is valid
 * until sources_clear. */
enum found source_tensor(struct sources *sources, PyObject *object, struct hr_array *ret_array);
enum found source_array(struct sources *sources, PyObject *object, struct hr_array *ret_array);
bool is_tensor(PyObject *object);
bool is_numpy(PyObject *object);
bool is_array(PyObject *object);

/* ---- encode.c, collate.c ---- */

/* A tensor of a batch, borrowed, and where its elements are. */
struct member {
    PyObject *tensor;
    const char *data;
    uint64_t item_bytes;
};

struct encoder {
    hr_batch *batch;
    struct sources sources;
    PyObject *seen_types; /* dict: named tuple class -> its pickle, bytes */
    const void **seen;    /* containers and tensors met in this batch, a hash set */
    size_t seen_count, seen_room;
    size_t seen_most;           /* that was met for this batch, up to the last reset */
    struct member first_tensor; /* its storage is not among `seen` until there is a second tensor */
    size_t tensor_count;
};
int encoder_init(struct encoder *encoder);
void encoder_free(struct encoder *encoder);
/* To begin the batch anew, or, where it `is_done`, for the next one. */
void encoder_reset(struct encoder *encoder, bool is_done);

/* Puts an object into the encoder's empty batch: as a tree, or as a pickle where it is not one. -1: exception. */
int encode(struct encoder *encoder, PyObject *object);
/* One named tuple's class, as the first child of its node. */
int encode_class(struct encoder *encoder, PyObject *type);
bool is_named_tuple(PyObject *object);
/* Adds an object as a node. FOUND_NOT: it is no tree of plain parts, or a part of it is in it twice. */
enum found encode_node(struct encoder *encoder, PyObject *object, int depth);
/* 0 or an exception from a negative code of hr_batch_*; FOUND_NOT for "too deep". */
enum found encode_result(int code);

/* Puts the default collation of a list of samples into the encoder's empty batch. FOUND_NOT: let Python collate. */
enum found collate(struct encoder *encoder, PyObject *samples, enum hr_flavor flavor);

/* ---- sink.c, decode.c ---- */

extern PyTypeObject LeaseType; /* _core.Lease: a buffer over leased or private memory */

/* Decodes one delivery; stays valid after hr_delivery_done. `types` is a dict that remembers classes for one loader.
 * New reference. */
PyObject *decode(struct hr_delivery *delivery, PyObject *types);
/* One array leaf, at `node->data_offset` of the delivery. New reference. */
PyObject *sink_array(struct hr_delivery *delivery, const struct hr_node *node);

/* ---- growth.c, machine.c ---- */

PyObject *growth_look(PyObject *module, PyObject *arguments);
PyObject *machine_look(PyObject *module, PyObject *ignored);
PyObject *machine_private_bytes(PyObject *module, PyObject *ignored);

/* ---- tasks.c, loader.c ---- */

/* See _core.Tasks.draw and handed_on. New reference; NULL without an exception: there is no more. */
PyObject *tasks_draw(PyObject *tasks);
void tasks_handed_on(PyObject *tasks);
/* See _core.Loader.drop and fail. */
void loader_drop(PyObject *loader);
bool *loader_has_failed(PyObject *loader);

/* ---- types ---- */

extern PyTypeObject LoaderType;
extern PyTypeObject PortType;
extern PyTypeObject TasksType;
extern PyTypeObject IteratorType;
extern PyTypeObject WalkerType;    /* _core.Walker */
extern PyTypeObject ExpansionType; /* its iterator */
extern PyTypeObject NotingType;    /* _core.Port.noting's iterator */
extern PyObject *WorkerDied;       /* _core.WorkerDied, an exception */

/* The loader of a _core.Loader; NULL with an exception when it is closed. Any thread, at any time. */
hr_loader *core_open_loader(PyObject *self);

int64_t core_now_ns(void);          /* CLOCK_MONOTONIC */
int64_t core_ns_of(double seconds); /* as far as nanoseconds reach; 0 for what is no time */
/* Seconds (or None) as a monotonic deadline; -1 with an exception. */
int core_deadline(PyObject *seconds, int64_t *ret_deadline_ns);

#endif
