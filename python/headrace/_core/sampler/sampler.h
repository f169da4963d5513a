/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_SAMPLER_SAMPLER_H
#define HEADRACE_CORE_SAMPLER_SAMPLER_H

#include "core.h"

/*
 * Orders of samples, and random draws: what module.c adds to the module.
 *
 *     order.c     _core.Order, an order with random access
 *     iterator.c  the iterator that _core.Order.iterate returns
 *     deal.c      the part of a rank
 *     draw.c      draws with replacement
 *     plan.c      plans of batches
 */

extern PyTypeObject OrderType;
extern PyTypeObject OrderIteratorType;

PyObject *deal_rank(PyObject *module, PyObject *arguments);                     /* _core.deal (deal.c) */
PyObject *deal_advance(PyObject *module, PyObject *arguments);                  /* _core.advance */
PyObject *draw_indices(PyObject *module, PyObject *arguments);                  /* _core.draw_indices (draw.c) */
PyObject *draw_weighted(PyObject *module, PyObject *arguments);                 /* _core.draw_weighted */
PyObject *make_plan(PyObject *module, PyObject *arguments, PyObject *keywords); /* _core.plan (plan.c) */

/* ---- order.c ---- */

/* The order of a _core.Order; it never changes. */
const struct hr_order *order_of(PyObject *self);

/* Gets a writable, contiguous buffer of int64. Returns -1 with an exception if the object has another one. The caller
 * releases it. */
int order_get_target(PyObject *object, Py_buffer *ret_buffer);

/* The number of int64 in such a buffer. */
int64_t order_count_of(const Py_buffer *target);

/* ---- iterator.c ---- */

/* Returns an iterator over `count` indices from position `first`, in steps of `step`; hr_order_fill accepts these. */
PyObject *order_iterate(PyObject *order, int64_t first, int64_t step, int64_t count);

#endif
