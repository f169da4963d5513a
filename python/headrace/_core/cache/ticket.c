/* SPDX-License-Identifier: Apache-2.0 */
/* _core.CacheTicket: a request that waits for an object or becomes its builder. */
#include "cache/cache.h"

#include <errno.h>

struct ticket {
    PyObject_HEAD hr_cache_ticket *ticket;
};

static hr_cache_ticket *ticket_of(PyObject *self) {
    return ((struct ticket *)self)->ticket;
}

PyObject *cache_ticket_new(hr_cache_ticket *ticket) {
    struct ticket *self = (struct ticket *)CacheTicketType.tp_alloc(&CacheTicketType, 0);
    if (!self) {
        hr_cache_ticket_free(ticket);
        return NULL;
    }
    self->ticket = ticket;
    return (PyObject *)self;
}

static void ticket_dealloc(PyObject *self) {
    hr_cache_ticket_free(ticket_of(self));
    Py_TYPE(self)->tp_free(self);
}

static PyObject *ticket_wait(PyObject *self, PyObject *seconds) {
    hr_cached *cached = NULL;
    hr_cache_build *build = NULL;
    int64_t deadline_ns;
    int r;
    if (core_deadline(seconds, &deadline_ns) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_cache_wait(ticket_of(self), deadline_ns, &cached, &build);
    Py_END_ALLOW_THREADS;
    if (r == -ETIMEDOUT) Py_RETURN_NONE;
    if (r < 0) return cache_raise(r);
    return r == HR_CACHE_BUILD ? cache_build_new(build) : cached_new(cached);
}

PyObject *describe_builder(const struct hr_cache_builder *builder) {
    return Py_BuildValue("{sOsIsOsOsIsLsKsKsKsN}", "is_building", builder->is_building ? Py_True : Py_False, "pid",
                         builder->pid, "is_visible", builder->is_visible ? Py_True : Py_False, "is_stopped",
                         builder->is_stopped ? Py_True : Py_False, "deaths", builder->deaths, "since_ns",
                         (long long)builder->since_ns, "generation", (unsigned long long)builder->generation, "done",
                         (unsigned long long)builder->done, "total", (unsigned long long)builder->total, "command",
                         PyUnicode_DecodeUTF8(builder->command, (Py_ssize_t)strlen(builder->command), "replace"));
}

static PyObject *ticket_builder(PyObject *self, PyObject *ignored) {
    struct hr_cache_builder builder;
    (void)ignored;
    hr_cache_ticket_look(ticket_of(self), &builder);
    return describe_builder(&builder);
}

static PyObject *ticket_failure(PyObject *self, PyObject *ignored) {
    uint64_t count;
    (void)ignored;
    const void *text = hr_cache_ticket_failure(ticket_of(self), &count);
    if (!text) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(text, (Py_ssize_t)count);
}

static PyMethodDef methods[] = {
    {"wait", ticket_wait, METH_O,
     "wait(timeout_s) -> Cached | CacheBuild | None\n\nWaits for the object, or until this process has to build it. "
     "None: neither in time. Raises CacheError."},
    {"builder", ticket_builder, METH_NOARGS, "builder() -> dict\n\nDescribes the builder that it waits for."},
    {"failure", ticket_failure, METH_NOARGS, "failure() -> bytes | None\n\nReturns the text of the failed builder."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject CacheTicketType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.CacheTicket",
    .tp_basicsize = sizeof(struct ticket),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "A request for an object of a cache. Cache.ask makes it.",
    .tp_dealloc = ticket_dealloc,
    .tp_methods = methods,
};
