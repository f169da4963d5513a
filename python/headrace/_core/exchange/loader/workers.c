/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Loader: which workers get tasks, which tasks they have, and what becomes of those of a dead one. */
#include "exchange/loader/loader.h"

PyObject *loader_has_data(PyObject *self, PyObject *argument) {
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    hr_loader *loader = core_open_loader(self);
    if (PyErr_Occurred() || !loader) return NULL;
    return PyBool_FromLong(worker <= UINT32_MAX && hr_loader_has_data(loader, (uint32_t)worker));
}

PyObject *loader_start_at(PyObject *self, PyObject *argument) {
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !loader_idle(self)) return NULL;
    int r = hr_loader_start_at(((struct loader *)self)->loader, worker > UINT32_MAX ? UINT32_MAX : (uint32_t)worker);
    return core_none_or_raise(r);
}

/* The tasks that are outstanding or owed become prefetch_factor for each of them. */
static int use_workers(struct loader *loader, uint32_t count) {
    int r = hr_loader_use(loader->loader, count);
    if (r < 0) return r;
    uint64_t before = (uint64_t)loader->used_count * loader->prefetch_factor;
    uint64_t after = (uint64_t)count * loader->prefetch_factor;
    uint64_t more = after > before ? after - before : 0, fewer = before > after ? before - after : 0;
    uint64_t kept = more < loader->surplus ? more : loader->surplus;
    uint64_t dropped = fewer < loader->owed ? fewer : loader->owed;
    loader->surplus += fewer - dropped - kept;
    loader->owed += more - kept - dropped;
    loader->used_count = count;
    loader->fitting_count = 0;
    if (show_of(loader->show)) hr_show_use(show_of(loader->show), count, (uint32_t)after);
    return 0;
}

static uint64_t waited_ns(const struct loader *loader) {
    return show_of(loader->show) ? hr_show_waited_ns(show_of(loader->show)) : 0;
}

/* How many workers have room in 80 % of the free memory, with the batches that are on the way for each. */
static uint32_t workers_in_memory(struct loader *loader) {
    enum { FREE_PERCENT = 80 };
    struct hr_machine machine;
    struct hr_arena_report report;
    hr_machine_look(&machine);
    hr_arena_report(hr_loader_arena(loader->loader), &report);
    uint64_t each = loader->worker_bytes + report.used_bytes / loader->used_count + 1;
    uint64_t count = machine.spare_bytes == HR_NO_LIMIT ? UINT32_MAX : machine.spare_bytes / 100 * FREE_PERCENT / each;
    return count < loader->worker_count ? loader->used_count + (uint32_t)count : loader->worker_count;
}

/* A look at the memory may take longer than a batch, so for the same number of workers there is one each second. */
static uint32_t limit_to_memory(struct loader *loader, hr_tuner *tuner) {
    enum { PERIOD_NS = 1000000000 };
    int64_t now_ns = core_now_ns();
    if (hr_tuner_wanted(tuner) == loader->fitting_count && now_ns - loader->fitting_ns < PERIOD_NS)
        return loader->fitting_count;
    hr_tuner_limit(tuner, workers_in_memory(loader));
    loader->fitting_ns = now_ns;
    return loader->fitting_count = hr_tuner_wanted(tuner);
}

/* Lets so many workers get tasks as the tuner wants, once they were started and if memory allows it. */
static void follow(struct loader *loader, hr_tuner *tuner) {
    uint32_t wanted = hr_tuner_wanted(tuner);
    if (wanted > loader->used_count) wanted = limit_to_memory(loader, tuner);
    if (wanted > loader->expected_count || use_workers(loader, wanted) < 0) return;
    hr_tuner_use(tuner, wanted, waited_ns(loader));
}

void loader_tune(PyObject *self, int64_t now_ns) {
    struct loader *loader = (struct loader *)self;
    hr_tuner *tuner = tuner_of(loader->tuner);
    if (!tuner || !loader->loader) return;
    uint32_t wanted = hr_tuner_step(tuner, now_ns, waited_ns(loader));
    if (loader->may_tune && wanted != loader->used_count && !loader->is_busy) follow(loader, tuner);
}

PyObject *loader_set_tuner(PyObject *self, PyObject *arguments) {
    struct loader *loader = (struct loader *)self;
    PyObject *tuner;
    int may_tune;
    if (!PyArg_ParseTuple(arguments, "OpK:tune", &tuner, &may_tune, &loader->worker_bytes)) return NULL;
    if (!tuner_of(tuner)) return PyErr_Format(PyExc_TypeError, "headrace: %R is no Tuner", tuner);
    Py_XSETREF(loader->tuner, Py_NewRef(tuner));
    loader->may_tune = may_tune;
    loader->fitting_count = 0;
    Py_RETURN_NONE;
}

/* Between epochs, in the first step of one. */
PyObject *loader_tune_begin(PyObject *self, PyObject *argument) {
    struct loader *loader = (struct loader *)self;
    hr_tuner *tuner = tuner_of(loader->tuner);
    long long now_ns = PyLong_AsLongLong(argument);
    if (PyErr_Occurred() || !loader_idle(self)) return NULL;
    if (tuner && hr_tuner_wanted(tuner) != loader->used_count) follow(loader, tuner);
    if (tuner) hr_tuner_begin(tuner, now_ns, waited_ns(loader));
    Py_RETURN_NONE;
}

PyObject *loader_tune_end(PyObject *self, PyObject *ignored) {
    struct loader *loader = (struct loader *)self;
    (void)ignored;
    if (tuner_of(loader->tuner)) hr_tuner_end(tuner_of(loader->tuner), core_now_ns(), waited_ns(loader));
    Py_RETURN_NONE;
}

PyObject *loader_use(PyObject *self, PyObject *argument) {
    struct loader *loader = (struct loader *)self;
    uint32_t count;
    if (!loader_to_count(argument, &count) || !loader_idle(self)) return NULL;
    int r = use_workers(loader, count);
    if (r < 0) return core_raise(r);
    if (tuner_of(loader->tuner)) hr_tuner_use(tuner_of(loader->tuner), count, waited_ns(loader));
    Py_RETURN_NONE;
}

PyObject *loader_expect(PyObject *self, PyObject *argument) {
    struct loader *loader = (struct loader *)self;
    uint32_t count;
    if (!loader_to_count(argument, &count) || !loader_idle(self)) return NULL;
    int r = hr_loader_expect(loader->loader, count);
    if (r < 0) return core_raise(r);
    loader->expected_count = count;
    loader->fitting_count = 0;
    Py_RETURN_NONE;
}

PyObject *loader_lacks_worker(PyObject *self, void *ignored) {
    const struct loader *loader = (const struct loader *)self;
    const hr_tuner *tuner = tuner_of(loader->tuner);
    (void)ignored;
    return PyBool_FromLong(tuner && hr_tuner_wanted(tuner) > loader->expected_count);
}

PyObject *loader_waited_s(PyObject *self, void *ignored) {
    (void)ignored;
    return PyFloat_FromDouble((double)waited_ns((const struct loader *)self) / 1e9);
}

PyObject *loader_replace(PyObject *self, PyObject *argument) {
    struct hr_succession succession;
    hr_loader *loader = loader_idle(self);
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

PyObject *loader_tasks(PyObject *self, PyObject *argument) {
    uint64_t task;
    const void *payload;
    size_t bytes;
    hr_loader *loader = loader_idle(self);
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

PyObject *loader_awaited(PyObject *self, PyObject *ignored) {
    uint32_t worker;
    hr_loader *loader = loader_idle(self);
    (void)ignored;
    if (!loader) return NULL;
    if (hr_loader_awaited(loader, &worker) < 0 || worker == HR_ANY_WORKER) Py_RETURN_NONE;
    return PyLong_FromUnsignedLong(worker);
}
