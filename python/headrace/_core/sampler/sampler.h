/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_SAMPLER_SAMPLER_H
#define HEADRACE_CORE_SAMPLER_SAMPLER_H

#include "core.h"

/*
 * Orders of samples: what module.c adds to the module.
 *
 *     order.c     _core.Order, an order with random access
 *     iterator.c  the iterator that _core.Order.iterate returns
 *     deal.c      the part of a rank
 *     plan.c      plans of batches
 */

extern PyTypeObject OrderType;
extern PyTypeObject OrderIteratorType;

PyObject *deal_rank(PyObject *module, PyObject *arguments);                     /* _core.deal (deal.c) */
PyObject *deal_advance(PyObject *module, PyObject *arguments);                  /* _core.advance */
PyObject *make_plan(PyObject *module, PyObject *arguments, PyObject *keywords); /* _core.plan (plan.c) */

/* ---- order.c ---- */

/* The order of a _core.Order; it never changes. */
const struct hr_order *order_of(PyObject *self);

/* ---- iterator.c ---- */

/* Returns an iterator over `count` indices from position `first`, in steps of `step`; hr_order_fill accepts these. */
PyObject *order_iterate(PyObject *order, int64_t first, int64_t step, int64_t count);

#endif
