/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the Python objects of one delivery. */
#ifndef HEADRACE_CORE_EXCHANGE_DECODE_H
#define HEADRACE_CORE_EXCHANGE_DECODE_H

#include "exchange/arrays.h"

/* Decodes a batch. The object stays valid after hr_delivery_done. `types` is a dict in which the caller keeps the
 * classes that it has loaded. New reference. */
PyObject *decode(const struct origin *origin, PyObject *types);

#endif
