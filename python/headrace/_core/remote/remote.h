/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_REMOTE_REMOTE_H
#define HEADRACE_CORE_REMOTE_REMOTE_H

#include "core.h"

/*
 * Remote objects: what module.c adds to the module.
 *
 *     announcer.c _core.Announcer, which tells the fetcher what will be read
 *     objects.c   objects that this process knows, and calls of the fetcher
 *     fetcher.c   _core.Fetcher, the fetcher without its network code
 *     filling.c   _core.Filling, which has whole objects fetched
 */

extern PyTypeObject AnnouncerType, FetcherType, FillingType;

hr_announcer *announcer_of(PyObject *self); /* that of a _core.Announcer; borrowed */

int remote_add(PyObject *module); /* adds all; -1: exception */

#endif
