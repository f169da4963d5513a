/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"
#include "crew.h"

#include <errno.h>
#include <time.h>

/* _core.Loader: the trainer's end of a loader. */
struct loader {
    PyObject_HEAD hr_loader *loader;
    bool is_busy;                 /* a thread is inside, without the GIL */
    struct hr_delivery *received; /* waited for, not taken yet; touched with the GIL only */
    unsigned long receiver;       /* the thread that waited for it */
    PyObject *types;              /* see decode */
};

PyObject *WorkerDied;

/* "O&": an int as a count; one that does not fit is the largest or 0, which libheadrace refuses with its bounds. */
static int to_count(PyObject *object, void *ret_count) {
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (value == -1 && PyErr_Occurred()) return 0;
    bool is_negative = overflow < 0 || (!overflow && value < 0);
    *(uint32_t *)ret_count = is_negative ? 0 : overflow || value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
    return 1;
}

static int loader_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    struct loader *loader = (struct loader *)self;
    static char *names[] = {"workers", "prefetch_factor", "in_order", "limit_bytes", NULL};
    struct hr_loader_options options = {0};
    int in_order;
    unsigned long long limit_bytes;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O&O&pK:Loader", names, to_count, &options.worker_count,
                                     to_count, &options.prefetch_factor, &in_order, &limit_bytes))
        return -1;
    if (loader->loader) {
        PyErr_SetString(PyExc_RuntimeError, "headrace: the loader is open already");
        return -1;
    }
    if (!loader->types && !(loader->types = PyDict_New())) return -1;
    options.out_of_order = !in_order;
    options.limit_bytes = limit_bytes;
    int r = hr_loader_open(&options, &loader->loader);
    if (r < 0) core_raise(r);
    return r < 0 ? -1 : 0;
}

static void drop_received(struct loader *loader) {
    hr_delivery_done(loader->received);
    loader->received = NULL;
}

static void loader_dealloc(PyObject *self) {
    struct loader *loader = (struct loader *)self;
    drop_received(loader);
    hr_loader_close(loader->loader);
    Py_XDECREF(loader->types);
    Py_TYPE(self)->tp_free(self);
}

/* For what any thread may do at any time. */
hr_loader *core_open_loader(PyObject *self) {
    hr_loader *loader = ((struct loader *)self)->loader;
    if (!loader)
        PyErr_SetString(PyExc_RuntimeError,
                        "headrace: this iterator was closed, and its workers have ended; iter(loader) "
                        "starts a new epoch with new workers");
    return loader;
}

/* For what one thread may do at a time. */
static hr_loader *idle_loader(PyObject *self) {
    if (((struct loader *)self)->is_busy) {
        PyErr_SetString(PyExc_RuntimeError,
                        "headrace: another thread is waiting for this loader's next batch; give each "
                        "thread an iterator of its own, or a lock");
        return NULL;
    }
    return core_open_loader(self);
}

static PyObject *loader_open_pass(PyObject *self, PyObject *argument) {
    struct hr_pass pass;
    hr_loader *loader = core_open_loader(self);
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    int r = hr_crew_pass(hr_loader_crew(loader), (uint32_t)worker, &pass);
    if (r < 0) return core_raise(r);
    return Py_BuildValue("Iiiiii", pass.worker, pass.memory_fd, pass.trainer_bell_fd, pass.worker_bell_fd, pass.life_fd,
                         pass.box_fd);
}

/* What a wait of the trainer's ended with, as an exception. */
static void *raise_wait(hr_loader *loader, int code) {
    if (code != HR_E_WORKER_DIED) return core_raise(code);
    PyObject *worker = PyLong_FromUnsignedLong(hr_arena_dead_worker(hr_loader_arena(loader)));
    if (worker) PyErr_SetObject(WorkerDied, worker);
    Py_XDECREF(worker);
    return NULL;
}

enum { LOOK_NS = 500000000 }; /* a signal that came just before the wait is served after this long at the latest */

/* What a wait is for: the next batch, or an epoch's beginning with this payload. */
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

/* Waits without the GIL, serving signals, whose Python handlers may raise, or close this loader: -EINTR then, with an
 * exception. */
static int wait_for(struct loader *self, const struct waited *waited, int64_t deadline_ns) {
    for (;;) {
        int64_t look_ns = core_now_ns() + LOOK_NS;
        int r = wait_once(self, waited, look_ns < deadline_ns ? look_ns : deadline_ns);
        if (r != -EINTR && r != -ETIMEDOUT) return r;
        if (PyErr_CheckSignals() < 0 || !idle_loader((PyObject *)self)) return -EINTR;
        if (r == -ETIMEDOUT && core_now_ns() >= deadline_ns) return r;
    }
}

static PyObject *loader_begin(PyObject *self, PyObject *arguments) {
    int64_t deadline_ns;
    PyObject *epoch, *timeout;
    if (!PyArg_ParseTuple(arguments, "OO:begin", &epoch, &timeout) || !idle_loader(self)) return NULL;
    if (core_deadline(timeout, &deadline_ns) < 0) return NULL;
    drop_received((struct loader *)self);
    PyObject *payload = core_pack_indices(epoch);
    if (!payload) return NULL;
    struct waited waited = {.payload = PyBytes_AS_STRING(payload), .payload_bytes = (size_t)PyBytes_GET_SIZE(payload)};
    int r = wait_for((struct loader *)self, &waited, deadline_ns);
    Py_DECREF(payload);
    if (r == -EINTR) return NULL;
    if (r < 0) return raise_wait(((struct loader *)self)->loader, r);
    Py_RETURN_NONE;
}

static PyObject *loader_submit(PyObject *self, PyObject *indices) {
    hr_loader *loader = idle_loader(self);
    PyObject *payload = loader ? core_pack_indices(indices) : NULL;
    if (!payload) return NULL;
    int r = hr_loader_submit(loader, PyBytes_AS_STRING(payload), (size_t)PyBytes_GET_SIZE(payload));
    Py_DECREF(payload);
    return r < 0 ? core_raise(r) : PyBool_FromLong(r);
}

static PyObject *loader_wait(PyObject *self, PyObject *timeout) {
    struct loader *loader = (struct loader *)self;
    struct hr_delivery *received = NULL;
    struct waited waited = {.ret_delivery = &received};
    int64_t deadline_ns;
    if (!idle_loader(self) || core_deadline(timeout, &deadline_ns) < 0) return NULL;
    drop_received(loader);
    int r = wait_for(loader, &waited, deadline_ns);
    if (r == -EINTR) return NULL;
    if (r == HR_E_END) Py_RETURN_NONE;
    if (r < 0) return raise_wait(loader->loader, r);
    drop_received(loader); /* another thread's, of while this one served a signal */
    loader->received = received;
    loader->receiver = PyThread_get_thread_ident();
    return PyLong_FromLong(r == 1 ? HR_STATUS_END : (long)received->status);
}

static PyObject *loader_take(PyObject *self, PyObject *ignored) {
    struct loader *loader = (struct loader *)self;
    struct hr_delivery *delivery = loader->received;
    PyObject *object;
    (void)ignored;
    if (!idle_loader(self)) return NULL;
    if (!delivery || loader->receiver != PyThread_get_thread_ident())
        return PyErr_Format(PyExc_RuntimeError,
                            "headrace: another thread has asked for a batch meanwhile, and this one "
                            "is gone; give each thread an iterator of its own, or a lock");
    loader->received = NULL;
    if (delivery->status == HR_STATUS_TOO_BIG && delivery->bytes == sizeof(uint64_t))
        object = PyLong_FromUnsignedLongLong(*(const uint64_t *)delivery->data);
    else
        object = decode(delivery, loader->types);
    hr_delivery_done(delivery);
    return object;
}

static PyObject *loader_has_data(PyObject *self, PyObject *argument) {
    hr_loader *loader = idle_loader(self);
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    return PyBool_FromLong(hr_loader_has_data(loader, (uint32_t)worker));
}

static PyObject *loader_dismiss(PyObject *self, PyObject *argument) {
    hr_loader *loader = idle_loader(self);
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    int r = hr_loader_dismiss(loader, (uint32_t)worker);
    if (r < 0) return core_raise(r);
    Py_RETURN_NONE;
}

/* At the interpreter's exit a daemon thread may still wait; hr_arena_stop has told it to return. */
static bool wait_until_idle(const struct loader *loader) {
    enum { STEP_NS = 1000000, STEPS = 1000 };
    for (int i = 0; loader->is_busy && i < STEPS; i++) {
        Py_BEGIN_ALLOW_THREADS;
        nanosleep(&(struct timespec){.tv_nsec = STEP_NS}, NULL);
        Py_END_ALLOW_THREADS;
    }
    return !loader->is_busy;
}

static PyObject *loader_close(PyObject *self, PyObject *ignored) {
    struct loader *loader = (struct loader *)self;
    (void)ignored;
    if (!wait_until_idle(loader)) Py_RETURN_NONE; /* its thread never returns: the process's end frees all */
    drop_received(loader);
    loader->loader = hr_loader_close(loader->loader);
    Py_RETURN_NONE;
}

static PyObject *loader_report(PyObject *self, PyObject *ignored) {
    static const char *const memories[] = {"memfd", "shm", "tmp"};
    struct hr_arena_report r;
    hr_loader *loader = core_open_loader(self);
    (void)ignored;
    if (!loader) return NULL;
    hr_arena_report(hr_loader_arena(loader), &r);
    return Py_BuildValue("{s:s,s:I,s:I,s:K,s:K,s:K,s:K,s:I,s:K,s:K,s:K,s:K,s:K,s:K,s:d,s:K,s:I,s:K}", "memory",
                         memories[r.memory], "workers", r.worker_count, "slots", r.slot_count, "limit_bytes",
                         (unsigned long long)r.limit_bytes, "window_bytes", (unsigned long long)r.window_bytes,
                         "used_bytes", (unsigned long long)r.used_bytes, "held_bytes", (unsigned long long)r.held_bytes,
                         "held", r.held_count, "batches", (unsigned long long)r.delivered_count, "bytes",
                         (unsigned long long)r.delivered_bytes, "copied", (unsigned long long)r.copied_count, "asked",
                         (unsigned long long)r.asked_count, "trimmed", (unsigned long long)r.trimmed_count, "waits",
                         (unsigned long long)r.waited_count, "waited_s", (double)r.waited_ns / 1e9, "sleeps",
                         (unsigned long long)r.slept_count, "restarts", r.restart_count, "skipped",
                         (unsigned long long)r.skipped_count);
}

static PyObject *loader_copied(PyObject *self, PyObject *ignored) {
    struct hr_arena_report report = {0};
    hr_loader *loader = ((struct loader *)self)->loader;
    (void)ignored;
    if (loader) hr_arena_report(hr_loader_arena(loader), &report);
    return PyLong_FromUnsignedLongLong(report.copied_count);
}

static PyObject *loader_count_skipped(PyObject *self, PyObject *argument) {
    hr_loader *loader = core_open_loader(self);
    unsigned long long count = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    int r = hr_arena_count(hr_loader_arena(loader), 0, count);
    if (r < 0) return core_raise(r);
    Py_RETURN_NONE;
}

static PyObject *loader_replace(PyObject *self, PyObject *argument) {
    struct hr_succession succession;
    hr_loader *loader = idle_loader(self);
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    int r = hr_loader_replace(loader, (uint32_t)worker, &succession);
    if (r < 0) return core_raise(r);
    return Py_BuildValue("KKK", (unsigned long long)succession.delivered_count,
                         (unsigned long long)succession.published_count, (unsigned long long)succession.granted_count);
}

static int add_task(PyObject *tasks, uint64_t task, const void *payload, size_t bytes) {
    PyObject *number = PyLong_FromUnsignedLongLong(task);
    PyObject *indices = bytes ? core_unpack_indices(payload, bytes) : Py_NewRef(Py_None);
    int r = number && indices ? PyDict_SetItem(tasks, number, indices) : -1;
    Py_XDECREF(number);
    Py_XDECREF(indices);
    return r;
}

static PyObject *loader_tasks(PyObject *self, PyObject *argument) {
    uint64_t task;
    const void *payload;
    size_t bytes;
    hr_loader *loader = idle_loader(self);
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    PyObject *tasks = PyDict_New();
    int r = 0;
    for (uint32_t nth = 0; tasks && r == 0; nth++) {
        r = hr_loader_outstanding(loader, (uint32_t)worker, nth, &task, &payload, &bytes);
        if (r == 0 && add_task(tasks, task, payload, bytes) < 0) Py_CLEAR(tasks);
    }
    if (!tasks || r == HR_E_END) return tasks;
    Py_DECREF(tasks);
    return core_raise(r);
}

static PyObject *loader_awaited(PyObject *self, PyObject *ignored) {
    uint32_t worker;
    hr_loader *loader = idle_loader(self);
    (void)ignored;
    if (!loader) return NULL;
    if (hr_loader_awaited(loader, &worker) < 0 || worker == HR_ANY_WORKER) Py_RETURN_NONE;
    return PyLong_FromUnsignedLong(worker);
}

static PyMethodDef loader_methods[] = {
    {"open_pass", loader_open_pass, METH_O,
     "open_pass(worker) -> (worker, memory_fd, trainer_bell_fd, worker_bell_fd, life_fd, box_fd)\n\nWhat a worker "
     "needs for its Port. The caller owns and closes the descriptors."},
    {"replace", loader_replace, METH_O,
     "replace(worker) -> (delivered, published, granted)\n\nGrants a dead worker's tasks anew, for its successor. See "
     "struct hr_succession."},
    {"awaited", loader_awaited, METH_NOARGS,
     "awaited() -> int | None\n\nThe worker whose answer is the next in order; None: any."},
    {"tasks", loader_tasks, METH_O, "tasks(worker) -> dict\n\nA worker's outstanding tasks: number -> indices."},
    {"adopt", crew_adopt, METH_VARARGS,
     "adopt(worker, pid, sentinel)\n\nWatches process `pid` as a worker; `sentinel` is a descriptor that becomes "
     "readable when it ends, for a kernel without pidfd."},
    {"guard", crew_guard, METH_VARARGS | METH_STATIC,
     "guard(life_fd, pid) -> bool\n\nHas process `pid` killed when nobody can write to the pipe any more that this "
     "descriptor reads, so with open_pass's when the trainer has died. False: it has ended, or the system refuses."},
    {"look", crew_look, METH_O,
     "look(worker) -> dict\n\nstruct hr_worker_report by its fields' names, and `stack`, `said`."},
    {"told", crew_told, METH_O, "told(worker) -> bytes\n\nWhat a worker told last; it may have written anything."},
    {"signal", crew_signal, METH_VARARGS, "signal(worker, number)\n\nSends a worker a signal. OSError."},
    {"stop", crew_stop, METH_O,
     "stop(timeout) -> int\n\nEnds all workers within `timeout` seconds: tells them, SIGTERM, SIGKILL. How many still "
     "run."},
    {"begin", loader_begin, METH_VARARGS,
     "begin(epoch, timeout)\n\nBegins an epoch; workers that go on from an earlier one are sent `epoch`, any object. "
     "See "
     "hr_loader_begin. WorkerDied, TimeoutError."},
    {"submit", loader_submit, METH_O,
     "submit(indices) -> bool\n\nSubmits the next task. False: no worker has data any more, and it was dropped."},
    {"wait", loader_wait, METH_O,
     "wait(timeout) -> int | None\n\nWaits for the next result in the loader's order, and tells its status; None when "
     "nothing is outstanding. STATUS_END: a worker has no more data, nothing to take. WorkerDied, TimeoutError."},
    {"take", loader_take, METH_NOARGS,
     "take() -> object\n\nThe result that was waited for. STATUS_TOO_BIG: the bytes that the batch needs. Raises what "
     "rebuilding it raises."},
    {"has_data", loader_has_data, METH_O, "has_data(worker) -> bool\n\nHas the worker data left in this epoch?"},
    {"dismiss", loader_dismiss, METH_O, "dismiss(worker)\n\nSends a worker its last task."},
    {"close", loader_close, METH_NOARGS, "close()\n\nCloses the loader; what was received stays readable. Idempotent."},
    {"copied", loader_copied, METH_NOARGS,
     "copied() -> int\n\nThe report's count of batches delivered as copies; 0 once closed."},
    {"count_skipped", loader_count_skipped, METH_O,
     "count_skipped(count)\n\nAdds bad samples, left out or replaced, to the report's."},
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
