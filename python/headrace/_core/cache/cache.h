/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_CACHE_CACHE_H
#define HEADRACE_CORE_CACHE_CACHE_H

#include "core.h"

/*
 * Named data that is built once per machine: what module.c adds to the module.
 *
 *     cache.c   _core.Cache, an open cache: attaches, asks, lists, removes
 *     ticket.c  _core.CacheTicket, a request that waits for an object or becomes its builder
 *     build.c   _core.CacheBuild, an object that this process builds
 *     files.c   _core.FilesPlan, array files that become one object, and how such an object is read
 *     cached.c  _core.Cached, an attached object; its bytes are a read-only buffer
 *     samples.c _core.Samples, the table of samples in an attached object
 *     shared.c  _core.Shared, an array that several processes write, in an attached object, and its locks
 */

extern PyTypeObject FilesPlanType, SamplesType, SharedType, SharedLockType;
extern PyTypeObject CacheType, CacheTicketType, CacheBuildType, CachedType;
extern PyObject *CacheError;

/* Sets the exception of a negative code: CacheError, or what core_raise sets for an errno. Returns NULL. */
void *cache_raise(int code);
PyObject *cache_none_or_raise(int code); /* None if the code is not negative */

/* Each takes over its argument, also on failure. */
PyObject *cached_new(hr_cached *cached);
PyObject *cache_build_new(hr_cache_build *build);
PyObject *cache_ticket_new(hr_cache_ticket *ticket);

/* Borrowed. The build is NULL, with an exception, if it has ended. */
hr_cache_build *cache_build_of(PyObject *build);
void cached_look(PyObject *cached, struct hr_cached_info *ret_info);
hr_cached *cached_of(PyObject *cached);

PyObject *cache_build_shared(PyObject *build, PyObject *arguments); /* the method of a build */

PyObject *files_count(PyObject *module, PyObject *cached);
PyObject *files_find(PyObject *module, PyObject *arguments);
PyObject *files_read(PyObject *module, PyObject *arguments);

/* Describes an object or a build as a dict; its texts may be any bytes. */
PyObject *describe_cached(const struct hr_cached_info *info);
PyObject *describe_builder(const struct hr_cache_builder *builder);

/* Adds the types and the exception to the module. Returns -1 with an exception. */
int cache_add(PyObject *module);

#endif
