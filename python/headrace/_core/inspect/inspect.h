/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_INSPECT_INSPECT_H
#define HEADRACE_CORE_INSPECT_INSPECT_H

#include "core.h"

/* References of an object and costs of memory: the functions and types that module.c adds to the module. */

extern PyTypeObject WalkerType;    /* _core.Walker, for headrace.doctor (walk.c) */
extern PyTypeObject OriginalsType; /* _core.Originals (originals.c) */
extern PyTypeObject ExpansionType; /* the iterator that _core.Walker.expand returns */

PyObject *walk_for_sets(PyObject *module, PyObject *called);  /* _core.for_sets (walk.c) */
PyObject *growth_look(PyObject *module, PyObject *arguments); /* _core.private_share (growth.c) */
PyObject *machine_look(PyObject *module, PyObject *ignored);  /* _core.machine (machine.c) */
PyObject *machine_private_bytes(PyObject *module, PyObject *ignored);

#endif
