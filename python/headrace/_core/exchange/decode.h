/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_EXCHANGE_DECODE_H
#define HEADRACE_CORE_EXCHANGE_DECODE_H

#include "exchange/arrays.h"

/* Decodes one delivery. The object stays valid after hr_delivery_done. `types` is a dict in which one loader keeps the
 * classes that it has loaded. New reference. */
PyObject *decode(struct hr_delivery *delivery, PyObject *types);

#endif
