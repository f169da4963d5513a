/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Loader: opens and closes the trainer's end of the arena, and refuses calls while a thread waits in it. */
#include "exchange/loader/loader.h"

#include <time.h>

PyObject *WorkerDied;

/* A converter for "O&": an int as a count. A number that does not fit becomes the largest one or 0, which libheadrace
 * refuses with a message that has the bounds. */
int loader_to_count(PyObject *object, void *ret_count) {
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (value == -1 && PyErr_Occurred()) return 0;
    bool is_negative = overflow < 0 || (!overflow && value < 0);
    *(uint32_t *)ret_count = is_negative ? 0 : overflow || value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
    return 1;
}

int loader_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    struct loader *loader = (struct loader *)self;
    static char *names[] = {"workers", "prefetch_factor", "in_order", "limit_bytes", "arena", NULL};
    PyObject *arena = NULL;
    struct hr_loader_options options = {0};
    int in_order;
    unsigned long long limit_bytes;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O&O&pK|O:Loader", names, loader_to_count,
                                     &options.worker_count, loader_to_count, &options.prefetch_factor, &in_order,
                                     &limit_bytes, &arena))
        return -1;
    if (loader->loader) {
        PyErr_SetString(PyExc_RuntimeError, "headrace: the loader is open already");
        return -1;
    }
    if (!loader->types && !(loader->types = PyDict_New())) return -1;
    options.out_of_order = !in_order;
    options.limit_bytes = limit_bytes;
    loader->worker_count = options.worker_count;
    loader->used_count = loader->expected_count = options.worker_count;
    loader->prefetch_factor = options.prefetch_factor;
    hr_arena *kept = arena && arena != Py_None ? sending_take_arena(arena) : NULL;
    if (PyErr_Occurred()) return -1;
    int r = hr_loader_open_in(&options, kept, &loader->loader);
    if (r < 0) core_raise(r);
    return r < 0 ? -1 : 0;
}

void loader_drop(PyObject *self) {
    struct loader *loader = (struct loader *)self;
    hr_delivery_done(loader->received);
    loader->received = NULL;
    loader->has_failed = false;
    Py_CLEAR(loader->answer);
}

bool *loader_has_failed(PyObject *self) {
    return &((struct loader *)self)->has_failed;
}

unsigned long long loader_task(PyObject *self) {
    return ((struct loader *)self)->task;
}

struct hr_delivery *loader_received(PyObject *self) {
    return ((struct loader *)self)->received;
}

void loader_dealloc(PyObject *self) {
    struct loader *loader = (struct loader *)self;
    loader_drop(self);
    hr_loader_close(loader->loader);
    Py_XDECREF(loader->types);
    Py_XDECREF(loader->show);
    Py_XDECREF(loader->tuner);
    Py_TYPE(self)->tp_free(self);
}

/* For methods that any thread may call at any time. */
hr_loader *core_open_loader(PyObject *self) {
    hr_loader *loader = ((struct loader *)self)->loader;
    if (!loader)
        PyErr_SetString(PyExc_RuntimeError,
                        "headrace: this iterator was closed, and its workers have ended; iter(loader) "
                        "starts a new epoch with new workers");
    return loader;
}

void *loader_refuse_busy(void) {
    return PyErr_Format(PyExc_RuntimeError, "headrace: another thread is waiting for this loader's next batch; give "
                                            "each thread its own iterator, or use a lock");
}

/* For methods that only one thread may call at a time. */
hr_loader *loader_idle(PyObject *self) {
    return ((struct loader *)self)->is_busy ? loader_refuse_busy() : core_open_loader(self);
}

PyObject *loader_show(PyObject *self, PyObject *show) {
    struct loader *loader = (struct loader *)self;
    hr_loader *open_loader = core_open_loader(self);
    if (!open_loader) return NULL;
    if (!show_of(show)) return PyErr_Format(PyExc_TypeError, "headrace: %R is no Show", show);
    hr_show_attach(show_of(show), hr_loader_arena(open_loader), loader->worker_count * loader->prefetch_factor);
    Py_XSETREF(loader->show, Py_NewRef(show));
    Py_RETURN_NONE;
}

PyObject *loader_open_worker_fds(PyObject *self, PyObject *argument) {
    struct hr_worker_fds fds;
    hr_loader *loader = core_open_loader(self);
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    int r = hr_crew_open_worker_fds(hr_loader_crew(loader), (uint32_t)worker, &fds);
    if (r < 0) return core_raise(r);
    return Py_BuildValue("Iiiiii", fds.worker, fds.memory_fd, fds.trainer_bell_fd, fds.worker_bell_fd, fds.life_fd,
                         fds.diagnostics_fd);
}

/* At the exit of the interpreter a daemon thread may still wait; hr_arena_stop makes it return. */
static bool wait_until_idle(const struct loader *loader) {
    enum { STEP_NS = 1000000, STEPS = 1000 };
    for (int i = 0; loader->is_busy && i < STEPS; i++) {
        Py_BEGIN_ALLOW_THREADS;
        nanosleep(&(struct timespec){.tv_nsec = STEP_NS}, NULL);
        Py_END_ALLOW_THREADS;
    }
    return !loader->is_busy;
}

PyObject *loader_close(PyObject *self, PyObject *ignored) {
    struct loader *loader = (struct loader *)self;
    (void)ignored;
    if (!wait_until_idle(loader))
        Py_RETURN_NONE; /* its thread never returns, so the memory is freed when the process ends */
    loader_drop(self);
    loader->loader = hr_loader_close(loader->loader);
    Py_RETURN_NONE;
}

PyObject *loader_detach(PyObject *self, PyObject *ignored) {
    struct loader *loader = (struct loader *)self;
    (void)ignored;
    if (loader->is_busy) return loader_refuse_busy();
    if (!core_open_loader(self)) return NULL;
    loader_drop(self);
    hr_arena *arena = hr_loader_detach(loader->loader);
    loader->loader = NULL;
    return sending_keep_arena(arena);
}
