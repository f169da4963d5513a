/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#include <errno.h>

/* _core.Loader: the trainer's end of a loader. */
struct loader {
    PyObject_HEAD hr_loader *loader;
    bool is_busy; /* a thread is inside, without the GIL */
};

PyObject *WorkerDied;

static int loader_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    struct loader *loader = (struct loader *)self;
    static char *names[] = {"workers", "prefetch_factor", "in_order", "limit_bytes", NULL};
    struct hr_loader_options options = {0};
    int in_order;
    unsigned long long limit_bytes;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "IIpK:Loader", names, &options.worker_count,
                                     &options.prefetch_factor, &in_order, &limit_bytes))
        return -1;
    if (loader->loader) {
        PyErr_SetString(PyExc_RuntimeError, "headrace: the loader is open already");
        return -1;
    }
    options.out_of_order = !in_order;
    options.limit_bytes = limit_bytes;
    int r = hr_loader_open(&options, &loader->loader);
    if (r < 0) core_raise(r);
    return r < 0 ? -1 : 0;
}

static void loader_dealloc(PyObject *self) {
    hr_loader_close(((struct loader *)self)->loader);
    Py_TYPE(self)->tp_free(self);
}

static hr_loader *open_loader(PyObject *self) {
    struct loader *loader = (struct loader *)self;
    if (!loader->loader) return (void *)PyErr_Format(PyExc_RuntimeError, "headrace: the loader is closed");
    if (loader->is_busy)
        return (void *)PyErr_Format(
            PyExc_RuntimeError, "headrace: another thread is waiting for this loader's next batch; give each thread an "
                                "iterator of its own, or a lock");
    return loader->loader;
}

static PyObject *loader_open_pass(PyObject *self, PyObject *argument) {
    struct hr_pass pass;
    hr_loader *loader = open_loader(self);
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    int r = hr_arena_pass(hr_loader_arena(loader), (uint32_t)worker, &pass);
    if (r < 0) return core_raise(r);
    return Py_BuildValue("Iiiii", pass.worker, pass.memory_fd, pass.trainer_bell_fd, pass.worker_bell_fd, pass.life_fd);
}

static PyObject *loader_watch(PyObject *self, PyObject *arguments) {
    unsigned worker;
    int fd;
    hr_loader *loader = open_loader(self);
    if (!loader || !PyArg_ParseTuple(arguments, "Ii:watch", &worker, &fd)) return NULL;
    int r = hr_arena_watch(hr_loader_arena(loader), worker, fd);
    if (r < 0) return core_raise(r);
    Py_RETURN_NONE;
}

/* What a wait of the trainer's ended with, as an exception. */
static void *raise_wait(hr_loader *loader, int code) {
    if (code != HR_E_WORKER_DIED) return core_raise(code);
    PyObject *worker = PyLong_FromUnsignedLong(hr_arena_dead_worker(hr_loader_arena(loader)));
    if (worker) PyErr_SetObject(WorkerDied, worker);
    Py_XDECREF(worker);
    return NULL;
}

/* Calls `wait` without the GIL until it is not interrupted by a signal, whose Python handler may raise. */
static int wait_for(struct loader *self, int64_t deadline_ns, struct hr_delivery **ret_delivery) {
    int r;
    do {
        self->is_busy = true;
        Py_BEGIN_ALLOW_THREADS;
        r = ret_delivery ? hr_loader_next(self->loader, deadline_ns, ret_delivery)
                         : hr_loader_begin(self->loader, deadline_ns);
        Py_END_ALLOW_THREADS;
        self->is_busy = false;
    } while (r == -EINTR && PyErr_CheckSignals() == 0);
    return r;
}

static PyObject *loader_begin(PyObject *self, PyObject *timeout) {
    int64_t deadline_ns;
    if (!open_loader(self) || core_deadline(timeout, &deadline_ns) < 0) return NULL;
    int r = wait_for((struct loader *)self, deadline_ns, NULL);
    if (r == -EINTR) return NULL;
    if (r < 0) return raise_wait(((struct loader *)self)->loader, r);
    Py_RETURN_NONE;
}

static PyObject *loader_submit(PyObject *self, PyObject *indices) {
    hr_loader *loader = open_loader(self);
    PyObject *payload = loader ? core_pack_indices(indices) : NULL;
    if (!payload) return NULL;
    int r = hr_loader_submit(loader, PyBytes_AS_STRING(payload), (size_t)PyBytes_GET_SIZE(payload));
    Py_DECREF(payload);
    return r < 0 ? core_raise(r) : PyBool_FromLong(r);
}

static PyObject *result_of(struct hr_delivery *delivery) {
    PyObject *object;
    if (delivery->status == HR_STATUS_TOO_BIG && delivery->bytes == sizeof(uint64_t))
        object = PyLong_FromUnsignedLongLong(*(const uint64_t *)delivery->data);
    else
        object = decode(delivery);
    return object
               ? Py_BuildValue("IKIN", delivery->status, (unsigned long long)delivery->task, delivery->worker, object)
               : NULL;
}

static PyObject *loader_next(PyObject *self, PyObject *timeout) {
    struct hr_delivery *delivery = NULL;
    int64_t deadline_ns;
    if (!open_loader(self) || core_deadline(timeout, &deadline_ns) < 0) return NULL;
    int r = wait_for((struct loader *)self, deadline_ns, &delivery);
    if (r == -EINTR) return NULL;
    if (r == HR_E_END) Py_RETURN_NONE;
    if (r == 1) return Py_BuildValue("IKIO", HR_STATUS_END, 0ULL, 0U, Py_None);
    if (r < 0) return raise_wait(((struct loader *)self)->loader, r);
    PyObject *result = result_of(delivery);
    hr_delivery_done(delivery);
    return result;
}

static PyObject *loader_has_data(PyObject *self, PyObject *argument) {
    hr_loader *loader = open_loader(self);
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    return PyBool_FromLong(hr_loader_has_data(loader, (uint32_t)worker));
}

static PyObject *loader_dismiss(PyObject *self, PyObject *argument) {
    hr_loader *loader = open_loader(self);
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    int r = hr_loader_dismiss(loader, (uint32_t)worker);
    if (r < 0) return core_raise(r);
    Py_RETURN_NONE;
}

static PyObject *loader_stop(PyObject *self, PyObject *ignored) {
    hr_loader *loader = open_loader(self);
    (void)ignored;
    if (!loader) return NULL;
    hr_arena_stop(hr_loader_arena(loader));
    Py_RETURN_NONE;
}

static PyObject *loader_close(PyObject *self, PyObject *ignored) {
    struct loader *loader = (struct loader *)self;
    (void)ignored;
    if (loader->loader && !open_loader(self)) return NULL;
    loader->loader = hr_loader_close(loader->loader);
    Py_RETURN_NONE;
}

static PyObject *loader_report(PyObject *self, PyObject *ignored) {
    static const char *const memories[] = {"memfd", "shm", "tmp"};
    struct hr_arena_report r;
    hr_loader *loader = open_loader(self);
    (void)ignored;
    if (!loader) return NULL;
    hr_arena_report(hr_loader_arena(loader), &r);
    return Py_BuildValue("{s:s,s:I,s:I,s:K,s:K,s:K,s:K,s:I,s:K,s:K,s:K,s:K,s:K,s:K,s:d,s:K}", "memory",
                         memories[r.memory], "workers", r.worker_count, "slots", r.slot_count, "limit_bytes",
                         (unsigned long long)r.limit_bytes, "window_bytes", (unsigned long long)r.window_bytes,
                         "used_bytes", (unsigned long long)r.used_bytes, "held_bytes", (unsigned long long)r.held_bytes,
                         "held", r.held_count, "batches", (unsigned long long)r.delivered_count, "bytes",
                         (unsigned long long)r.delivered_bytes, "copied", (unsigned long long)r.copied_count, "asked",
                         (unsigned long long)r.asked_count, "trimmed", (unsigned long long)r.trimmed_count, "waits",
                         (unsigned long long)r.waited_count, "waited_s", (double)r.waited_ns / 1e9, "sleeps",
                         (unsigned long long)r.slept_count);
}

static PyObject *loader_copied(PyObject *self, PyObject *ignored) {
    struct hr_arena_report report;
    hr_loader *loader = open_loader(self);
    (void)ignored;
    if (!loader) return NULL;
    hr_arena_report(hr_loader_arena(loader), &report);
    return PyLong_FromUnsignedLongLong(report.copied_count);
}

static PyMethodDef loader_methods[] = {
    {"open_pass", loader_open_pass, METH_O,
     "open_pass(worker) -> (worker, memory_fd, trainer_bell_fd, worker_bell_fd, life_fd)\n\nDuplicates of what a "
     "worker "
     "needs for its Port. The caller owns and closes them."},
    {"watch", loader_watch, METH_VARARGS,
     "watch(worker, fd)\n\nA descriptor that becomes readable when the worker ends; -1: do not watch it. Borrowed."},
    {"begin", loader_begin, METH_O,
     "begin(timeout)\n\nBegins an epoch. See hr_loader_begin. WorkerDied, TimeoutError."},
    {"submit", loader_submit, METH_O,
     "submit(indices) -> bool\n\nSubmits the next task. False: no worker has data any more, and it was dropped."},
    {"next", loader_next, METH_O,
     "next(timeout) -> (status, task, worker, object) | None\n\nThe next result in the loader's order; None when "
     "nothing "
     "is outstanding. STATUS_END: a worker has no more data. STATUS_TOO_BIG: the object is the bytes that it needs. "
     "WorkerDied, TimeoutError."},
    {"has_data", loader_has_data, METH_O, "has_data(worker) -> bool\n\nHas the worker data left in this epoch?"},
    {"dismiss", loader_dismiss, METH_O, "dismiss(worker)\n\nSends a worker its last task."},
    {"stop", loader_stop, METH_NOARGS, "stop()\n\nTells all workers to end. Idempotent."},
    {"close", loader_close, METH_NOARGS, "close()\n\nCloses the loader; what was received stays readable. Idempotent."},
    {"copied", loader_copied, METH_NOARGS, "copied() -> int\n\nThe report's count of batches delivered as copies."},
    {"report", loader_report, METH_NOARGS, "report() -> dict\n\nCounters: see struct hr_arena_report."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject LoaderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Loader",
    .tp_basicsize = sizeof(struct loader),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "The trainer's end: workers, prefetch_factor (per worker), in_order, limit_bytes (0: chosen).",
    .tp_new = PyType_GenericNew,
    .tp_init = loader_init,
    .tp_dealloc = loader_dealloc,
    .tp_methods = loader_methods,
};
