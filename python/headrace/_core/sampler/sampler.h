/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_SAMPLER_SAMPLER_H
#define HEADRACE_CORE_SAMPLER_SAMPLER_H

#include "core.h"

#include <headrace/sampler.h>

/*
 * Orders of samples: what module.c adds to the module.
 *
 *     order.c     _core.Order, an order with random access
 *     mixture.c   the constructor and the description of a mixture
 *     iterator.c  the iterator that _core.Order.iterate returns
 *     deal.c      the part of a rank
 *     plan.c      plans of batches
 */

extern PyTypeObject OrderType;
extern PyTypeObject OrderIteratorType;

PyObject *deal_rank(PyObject *module, PyObject *arguments);                             /* _core.deal (deal.c) */
PyObject *deal_machines(PyObject *module, PyObject *arguments);                         /* _core.deal_machines */
PyObject *deal_advance(PyObject *module, PyObject *arguments);                          /* _core.advance */
PyObject *make_plan(PyObject *module, PyObject *arguments, PyObject *keywords);         /* _core.plan (plan.c) */
PyObject *make_plan_several(PyObject *module, PyObject *arguments, PyObject *keywords); /* _core.plan_several */

/* ---- order.c ---- */

/* _core.Order: an order of n samples (headrace/sampler.h), with its table or mixture if it has one. */
struct core_order {
    PyObject_HEAD struct hr_order order;
    void *table;         /* owned: what `order` borrows; NULL for orders without a table */
    hr_mixture *mixture; /* owned: the same for mixtures */
};

/* The order of a _core.Order; it never changes. */
const struct hr_order *order_of(PyObject *self);

/* Gets a contiguous buffer of int64; flags: PyBUF_CONTIG if it is written, or PyBUF_CONTIG_RO. Returns -1 with an
 * exception if the object has another one. The caller releases it. */
int get_indices(PyObject *object, int flags, Py_buffer *ret_buffer);

/* ---- mixture.c: methods of _core.Order ---- */

PyObject *order_mixture(PyObject *type, PyObject *arguments, PyObject *keywords);
PyObject *order_look(PyObject *self, PyObject *ignored);

/* ---- iterator.c ---- */

/* Returns an iterator over `count` indices from position `first`, in steps of `step`; hr_order_fill accepts these. */
PyObject *order_iterate(PyObject *order, int64_t first, int64_t step, int64_t count);

#endif
