/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_CREW_H
#define HEADRACE_CORE_CREW_H

#include "core.h"

/* The methods of _core.Loader that deal with its worker processes. */

PyObject *crew_adopt(PyObject *self, PyObject *arguments);
PyObject *crew_guard(PyObject *module, PyObject *arguments);
PyObject *crew_look(PyObject *self, PyObject *worker);
PyObject *crew_told(PyObject *self, PyObject *worker);
PyObject *crew_signal(PyObject *self, PyObject *arguments);
PyObject *crew_stop(PyObject *self, PyObject *timeout);

#endif
