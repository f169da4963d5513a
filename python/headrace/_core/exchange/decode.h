/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the Python objects of one delivery. */
#ifndef HEADRACE_CORE_EXCHANGE_DECODE_H
#define HEADRACE_CORE_EXCHANGE_DECODE_H

#include "exchange/arrays.h"

/* Tensors that take the places of those of a batch that are copied to a device. */
struct moved {
    PyObject *tensors; /* borrowed: a list, in the order of decode_sources */
    bool has_others;   /* out: the batch has other objects that may have to be moved */
};

/* Decodes a batch. The object stays valid after hr_delivery_done. `types` is a dict in which the caller keeps the
 * classes that it has loaded. `moved`: NULL, or its tensors are used, and nothing has a lease. New reference. */
PyObject *decode(const struct origin *origin, PyObject *types, struct moved *moved);

/* Makes a list of the tensors of a batch that can be copied to a device as they are: those in tuples, lists, dicts and
 * named tuples that fill their storage. Each has a lease. New reference. */
PyObject *decode_sources(const struct origin *origin);

#endif
