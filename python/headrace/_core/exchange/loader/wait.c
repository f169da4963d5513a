/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Loader: waits for the next answer, and for the beginning of an epoch, without the GIL. */
#include "exchange/loader/loader.h"

#include <errno.h>

/* Raises the exception for the result of a wait. */
static void *raise_wait(hr_loader *loader, int code) {
    if (code == -EBUSY || code == -ENOBUFS) {
        PyErr_SetObject(Unsettled, code == -ENOBUFS ? Py_True : Py_False);
        return NULL;
    }
    if (code != HR_E_WORKER_DIED) return core_raise(code);
    PyObject *worker = PyLong_FromUnsignedLong(hr_arena_dead_worker(hr_loader_arena(loader)));
    if (worker) PyErr_SetObject(WorkerDied, worker);
    Py_XDECREF(worker);
    return NULL;
}

enum { LOOK_NS = 500000000 }; /* a signal that arrived just before the wait is handled after this time at the latest */

/* The purpose of a wait: the next batch, or the start of an epoch with this payload. */
struct waited {
    struct hr_delivery **ret_delivery;
    const void *payload;
    size_t payload_bytes;
};

static int wait_once(struct loader *self, const struct waited *waited, int64_t deadline_ns) {
    int r;
    self->is_busy = true;
    Py_BEGIN_ALLOW_THREADS;
    r = waited->ret_delivery ? hr_loader_next(self->loader, deadline_ns, waited->ret_delivery)
                             : hr_loader_begin(self->loader, waited->payload, waited->payload_bytes, deadline_ns);
    Py_END_ALLOW_THREADS;
    self->is_busy = false;
    return r;
}

/* Waits without the GIL and handles signals. Their Python handlers may raise, or close this loader: then it returns
 * -EINTR with an exception. */
static int wait_for(struct loader *self, const struct waited *waited, int64_t deadline_ns) {
    for (;;) {
        int64_t look_ns = core_now_ns() + LOOK_NS;
        int r = wait_once(self, waited, look_ns < deadline_ns ? look_ns : deadline_ns);
        if (r != -EINTR && r != -ETIMEDOUT) return r;
        if (PyErr_CheckSignals() < 0 || !loader_idle((PyObject *)self)) return -EINTR;
        if (r == -ETIMEDOUT && core_now_ns() >= deadline_ns) return r;
    }
}

PyObject *loader_begin(PyObject *self, PyObject *arguments) {
    struct loader *loader = (struct loader *)self;
    int64_t deadline_ns;
    unsigned long long owed;
    int keeps_workers;
    PyObject *epoch, *timeout;
    if (!PyArg_ParseTuple(arguments, "OKpO:begin", &epoch, &owed, &keeps_workers, &timeout) || !loader_idle(self))
        return NULL;
    if (core_deadline(timeout, &deadline_ns) < 0) return NULL;
    loader_drop(self);
    PyObject *payload = core_pack_indices(epoch);
    if (!payload) return NULL;
    struct hr_arena_report before, after;
    hr_arena_report(hr_loader_arena(loader->loader), &before);
    struct waited waited = {.payload = PyBytes_AS_STRING(payload), .payload_bytes = (size_t)PyBytes_GET_SIZE(payload)};
    int r = wait_for(loader, &waited, deadline_ns);
    Py_DECREF(payload);
    if (loader->loader) {
        hr_arena_report(hr_loader_arena(loader->loader), &after);
        loader->begin_waited_ns += after.waited_ns - before.waited_ns;
    }
    if (r == -EINTR) return NULL;
    if (r < 0) return raise_wait(loader->loader, r);
    loader->keeps_workers = keeps_workers;
    loader->owed = owed;
    loader->surplus = loader->submitted = 0;
    Py_RETURN_NONE;
}

/* A worker has no more data: it, and other workers without data, get their last task. */
static int dismiss_workers(struct loader *loader) {
    int r = 0;
    for (uint32_t worker = 0; !loader->keeps_workers && r >= 0 && worker < loader->worker_count; worker++) {
        if (!hr_loader_has_data(loader->loader, worker)) r = hr_loader_dismiss(loader->loader, worker);
    }
    return r;
}

PyObject *loader_wait(PyObject *self, PyObject *timeout) {
    struct loader *loader = (struct loader *)self;
    struct hr_delivery *received = NULL;
    struct waited waited = {.ret_delivery = &received};
    int64_t deadline_ns;
    if (!loader_idle(self) || core_deadline(timeout, &deadline_ns) < 0) return NULL;
    if (loader->received || loader->answer) return PyLong_FromLong(loader->status);
    int r = wait_for(loader, &waited, deadline_ns);
    if (r == -EINTR) return NULL;
    if (r == HR_E_END) Py_RETURN_NONE;
    if (r < 0) return raise_wait(loader->loader, r);
    if (loader->surplus)
        loader->surplus--;
    else
        loader->owed++;
    if (r == 1) {
        r = dismiss_workers(loader);
        return r < 0 ? core_raise(r) : PyLong_FromLong(HR_STATUS_END);
    }
    loader_drop(self); /* a signal handler may have waited for an answer */
    loader->received = received;
    loader->status = (long)received->status;
    loader->task = received->task;
    loader->worker = received->worker;
    loader->batch_count += received->status == HR_STATUS_BATCH || received->status == HR_STATUS_USER /* STATUS_NOTED */;
    loader->serial++;
    return PyLong_FromLong(loader->status);
}
