/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_CORE_H
#define HEADRACE_CORE_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include <headrace/face/face.h>
#include <headrace/headrace.h>

#include "dlpack.h"

/*
 * What all parts of the extension share. The extension turns Python objects into calls of libheadrace, and results back
 * into Python objects. It contains no algorithm of its own.
 *
 *     module.c   the module, and what Python configures once
 *     constants.c   the numbers of C that Python needs
 *     paths.c    tuples of paths
 *     errors.c   codes of C as results and exceptions of Python, and deadlines
 *     board/     the board between the ranks of this machine: _core.Board and BoardEntry
 *     cache/     named data that is built once per machine: _core.Cache, CacheTicket, CacheBuild,
 *                Cached, Samples, Shared and FilesPlan
 *     exchange/  batches between a worker and the trainer: _core.Loader, Port, Tasks, Iterator and Lease
 *     frozen/    frozen data: _core.freeze, thaw, Frozen, Builder and the views
 *     image/     images as recipes: _core.Picture
 *     record/    recordings of what loaders did: _core.Recording
 *     remote/    remote objects: _core.Fetcher, Filling and Announcer
 *     rows/      rows of numbers that are gathered in C: _core.Columns and Rows
 *     sampler/   orders of samples, parts of ranks and plans of batches: _core.Order
 *     source/    samples from the files of users: _core.Tokens, Tar, Lines, Objects, Index and Indexing
 *     inspect/   what an object refers to (_core.Walker), what a program has replaced (_core.Originals), how much of
 *                its memory is private, and the machine
 *
 * Each folder has headers of its own, and each prototype is in the header of the file that defines it.
 */

/* Returns true if only `owners` references to an object exist. */
static inline bool is_lone(PyObject *object, Py_ssize_t owners) {
#ifdef Py_GIL_DISABLED /* reference counts are split between threads, so this cannot be known */
    (void)object, (void)owners;
    return false;
#else
    return Py_REFCNT(object) <= owners;
#endif
}

/* The answer of a function that handles only some kinds of object. FOUND_ERROR: with an exception. FOUND_NOT: without
 * one; the caller treats the object in another way. */
enum found { FOUND_ERROR = -1, FOUND_NOT = 0, FOUND = 1 };

/* ---- constants.c ---- */

int core_add_constants(PyObject *module); /* -1: exception */

/* ---- module.c ---- */

/* The settings that Python makes once (configure, use_numpy, use_torch, use_images). Owned references, NULL until then.
 */
struct core {
    struct {
        PyObject *requires_grad, *dtype, *is_conj, *is_neg, *stride, *untyped_storage, *data_ptr, *storage_offset,
            *prepare, *is_from_signal, *show_step, *check_end;
    } names;                       /* interned when the module is made */
    PyObject *tensor_type;         /* torch.Tensor */
    PyObject *int8, *uint8;        /* the torch.dtypes */
    struct dl_exchange *exchange;  /* the DLPack table of torch.Tensor; NULL: capsules are used */
    PyObject *tensor_from_capsule; /* callable: a capsule "dltensor" -> torch.Tensor */
    PyObject *dump;                /* callable: object -> (pickle bytes, list of children) */
    PyObject *load;                /* callable: (pickle bytes, list of children) -> object */
    PyObject *deferred_type;       /* headrace.images' class of deferred tensors */
    PyObject *describe_deferred;   /* callable: list of them -> (code, bits, shape..., recipes), or None */
    PyObject *has_made;            /* callable: counts images that were made in a batch */
    PyObject *array_type;          /* numpy.ndarray */
    PyObject *dtype_type;          /* numpy.dtype */
};
extern struct core core;

/* Imports numpy and sets core.array_type and core.dtype_type. Returns -1 with an exception if numpy is not installed.
 */
int core_need_numpy(void);

/* ---- paths.c ---- */

/* Returns the paths of a tuple of bytes. The caller frees the array by PyMem_Free; the tuple keeps the texts. NULL:
 * exception. */
const char **core_paths(PyObject *tuple);

/* ---- errors.c ---- */

/* Sets the exception of a negative code, with the library's message. Returns NULL. */
void *core_raise(int code);
/* Returns None; raises if the code is negative. */
PyObject *core_none_or_raise(int code);
/* Returns an object that tp_alloc has made. It is freed, and NULL returned, if the code of filling it is negative,
 * which is raised. object: NULL with an exception if tp_alloc failed. */
PyObject *core_new_or_raise(void *object, int code);
/* Returns what a wait with a deadline has found, as a bool; raises if the code is negative. A signal without an
 * exception is False, because the callers wait in slices. */
PyObject *core_waited(int code);

int64_t core_now_ns(void); /* CLOCK_MONOTONIC */
/* Seconds in nanoseconds, at most INT64_MAX. Returns 0 for a negative number and for NaN. */
int64_t core_ns_of(double seconds);
/* Converts seconds (or None) to a monotonic deadline. Returns -1 with an exception. */
int core_deadline(PyObject *seconds, int64_t *ret_deadline_ns);

#endif
