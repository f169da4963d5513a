/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Loader: the trainer's end of the arena. */
#include "exchange/decode.h"
#include "exchange/exchange.h"

#include <errno.h>
#include <structmember.h>
#include <time.h>

/* _core.Loader: the trainer's side of a loader. */
struct loader {
    PyObject_HEAD hr_loader *loader;
    bool is_busy;                 /* a thread is inside, without the GIL */
    struct hr_delivery *received; /* it was waited for and is not decoded yet; used only with the GIL */
    PyObject *answer;             /* it is decoded and not dropped yet */
    long status;                  /* status of `received` or `answer` */
    bool has_failed;              /* the answer is the exception that is being raised */
    unsigned long long serial;    /* number of answers that were waited for */
    unsigned long long task;      /* number of the task of the last of them */
    uint32_t worker;              /* the worker that answered it */
    unsigned long long owed;      /* number of tasks that still have to be submitted */
    unsigned long long submitted; /* tasks that were submitted in this epoch */
    int failed_step;              /* enum step: the step at which the last submit failed */
    uint32_t worker_count;
    bool keeps_workers; /* workers without data wait for another epoch */
    bool has_others;    /* the answer has objects that may have to be moved to a device */
    PyObject *types;    /* see decode */
    PyObject *show;     /* the Show in which observers see this loader, or NULL */
    unsigned long long batch_count;
    uint64_t begin_waited_ns; /* the time that beginnings of epochs have waited */
    PyObject *tuner;          /* the Tuner that says how many workers get tasks, or NULL */
    bool may_tune;            /* within an epoch */
    uint32_t prefetch_factor;
    uint32_t used_count;             /* workers that get tasks */
    uint32_t expected_count;         /* workers that were started */
    uint32_t fitting_count;          /* workers that had room in memory; 0: not known */
    int64_t fitting_ns;              /* when */
    unsigned long long surplus;      /* answers after which no task is owed, because fewer workers get tasks */
    unsigned long long worker_bytes; /* private memory that a further worker takes, about */
};

PyObject *WorkerDied;

/* A converter for "O&": an int as a count. A number that does not fit becomes the largest one or 0, which libheadrace
 * refuses with a message that has the bounds. */
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
    static char *names[] = {"workers", "prefetch_factor", "in_order", "limit_bytes", "arena", NULL};
    PyObject *arena = NULL;
    struct hr_loader_options options = {0};
    int in_order;
    unsigned long long limit_bytes;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O&O&pK|O:Loader", names, to_count, &options.worker_count,
                                     to_count, &options.prefetch_factor, &in_order, &limit_bytes, &arena))
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

static void loader_dealloc(PyObject *self) {
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
static hr_loader *idle_loader(PyObject *self) {
    return ((struct loader *)self)->is_busy ? loader_refuse_busy() : core_open_loader(self);
}

static PyObject *loader_show(PyObject *self, PyObject *show) {
    struct loader *loader = (struct loader *)self;
    hr_loader *open_loader = core_open_loader(self);
    if (!open_loader) return NULL;
    if (!show_of(show)) return PyErr_Format(PyExc_TypeError, "headrace: %R is no Show", show);
    hr_show_attach(show_of(show), hr_loader_arena(open_loader), loader->worker_count * loader->prefetch_factor);
    Py_XSETREF(loader->show, Py_NewRef(show));
    Py_RETURN_NONE;
}

static PyObject *loader_open_worker_fds(PyObject *self, PyObject *argument) {
    struct hr_worker_fds fds;
    hr_loader *loader = core_open_loader(self);
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    int r = hr_crew_open_worker_fds(hr_loader_crew(loader), (uint32_t)worker, &fds);
    if (r < 0) return core_raise(r);
    return Py_BuildValue("Iiiiii", fds.worker, fds.memory_fd, fds.trainer_bell_fd, fds.worker_bell_fd, fds.life_fd,
                         fds.diagnostics_fd);
}

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
        if (PyErr_CheckSignals() < 0 || !idle_loader((PyObject *)self)) return -EINTR;
        if (r == -ETIMEDOUT && core_now_ns() >= deadline_ns) return r;
    }
}

static PyObject *loader_begin(PyObject *self, PyObject *arguments) {
    struct loader *loader = (struct loader *)self;
    int64_t deadline_ns;
    unsigned long long owed;
    int keeps_workers;
    PyObject *epoch, *timeout;
    if (!PyArg_ParseTuple(arguments, "OKpO:begin", &epoch, &owed, &keeps_workers, &timeout) || !idle_loader(self))
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

static PyObject *loader_has_data(PyObject *self, PyObject *argument) {
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    hr_loader *loader = core_open_loader(self);
    if (PyErr_Occurred() || !loader) return NULL;
    return PyBool_FromLong(worker <= UINT32_MAX && hr_loader_has_data(loader, (uint32_t)worker));
}

static PyObject *loader_start_at(PyObject *self, PyObject *argument) {
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !idle_loader(self)) return NULL;
    int r = hr_loader_start_at(((struct loader *)self)->loader, worker > UINT32_MAX ? UINT32_MAX : (uint32_t)worker);
    if (r < 0) return core_raise(r);
    Py_RETURN_NONE;
}

static PyObject *pack_task(PyObject *task, PyObject *wrap) {
    if (wrap == Py_None) return core_pack_indices(task);
    PyObject *wrapped = PyObject_CallOneArg(wrap, task);
    PyObject *payload = wrapped ? core_pack_indices(wrapped) : NULL;
    Py_XDECREF(wrapped);
    return payload;
}

enum step { STEP_NONE, STEP_DRAW, STEP_SEND };

static PyObject *loader_submit(PyObject *self, PyObject *arguments) {
    struct loader *loader = (struct loader *)self;
    PyObject *tasks, *wrap;
    loader->failed_step = STEP_NONE;
    if (!PyArg_ParseTuple(arguments, "O!O:submit", &TasksType, &tasks, &wrap) || !idle_loader(self)) return NULL;
    loader->failed_step = STEP_DRAW;
    int64_t began_ns = show_of(loader->show) ? hr_show_part_begin(show_of(loader->show)) : 0;
    PyObject *task = tasks_draw(tasks);
    if (!task && PyErr_Occurred()) return NULL;
    if (!task) {
        loader->failed_step = STEP_NONE;
        loader->owed = loader->owed ? loader->owed - 1 : 0;
        Py_RETURN_FALSE;
    }
    loader->failed_step = STEP_SEND;
    PyObject *payload = pack_task(task, wrap);
    Py_DECREF(task);
    hr_loader *open_loader =
        payload ? idle_loader(self) : NULL; /* pickling the task may have run code that closed the loader */
    int r =
        open_loader ? hr_loader_submit(open_loader, PyBytes_AS_STRING(payload), (size_t)PyBytes_GET_SIZE(payload)) : 0;
    Py_XDECREF(payload);
    if (!open_loader) return NULL;
    if (r < 0) return core_raise(r);
    loader->failed_step = STEP_NONE;
    tasks_handed_on(tasks);
    loader->owed--;
    loader->submitted++;
    if (show_of(loader->show)) hr_show_part_end(show_of(loader->show), HR_SHOW_DRAW, began_ns);
    Py_RETURN_TRUE;
}

/* A worker has no more data: it, and other workers without data, get their last task. */
static int dismiss_workers(struct loader *loader) {
    int r = 0;
    for (uint32_t worker = 0; !loader->keeps_workers && r >= 0 && worker < loader->worker_count; worker++) {
        if (!hr_loader_has_data(loader->loader, worker)) r = hr_loader_dismiss(loader->loader, worker);
    }
    return r;
}

static PyObject *loader_wait(PyObject *self, PyObject *timeout) {
    struct loader *loader = (struct loader *)self;
    struct hr_delivery *received = NULL;
    struct waited waited = {.ret_delivery = &received};
    int64_t deadline_ns;
    if (!idle_loader(self) || core_deadline(timeout, &deadline_ns) < 0) return NULL;
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

/* ---- how many workers get tasks ---- */

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

static PyObject *py_tune(PyObject *self, PyObject *arguments) {
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
static PyObject *py_tune_begin(PyObject *self, PyObject *argument) {
    struct loader *loader = (struct loader *)self;
    hr_tuner *tuner = tuner_of(loader->tuner);
    long long now_ns = PyLong_AsLongLong(argument);
    if (PyErr_Occurred() || !idle_loader(self)) return NULL;
    if (tuner && hr_tuner_wanted(tuner) != loader->used_count) follow(loader, tuner);
    if (tuner) hr_tuner_begin(tuner, now_ns, waited_ns(loader));
    Py_RETURN_NONE;
}

static PyObject *py_tune_end(PyObject *self, PyObject *ignored) {
    struct loader *loader = (struct loader *)self;
    (void)ignored;
    if (tuner_of(loader->tuner)) hr_tuner_end(tuner_of(loader->tuner), core_now_ns(), waited_ns(loader));
    Py_RETURN_NONE;
}

static PyObject *py_use(PyObject *self, PyObject *argument) {
    struct loader *loader = (struct loader *)self;
    uint32_t count;
    if (!to_count(argument, &count) || !idle_loader(self)) return NULL;
    int r = use_workers(loader, count);
    if (r < 0) return core_raise(r);
    if (tuner_of(loader->tuner)) hr_tuner_use(tuner_of(loader->tuner), count, waited_ns(loader));
    Py_RETURN_NONE;
}

static PyObject *py_expect(PyObject *self, PyObject *argument) {
    struct loader *loader = (struct loader *)self;
    uint32_t count;
    if (!to_count(argument, &count) || !idle_loader(self)) return NULL;
    int r = hr_loader_expect(loader->loader, count);
    if (r < 0) return core_raise(r);
    loader->expected_count = count;
    loader->fitting_count = 0;
    Py_RETURN_NONE;
}

static PyObject *lacks_worker(PyObject *self, void *ignored) {
    const struct loader *loader = (const struct loader *)self;
    const hr_tuner *tuner = tuner_of(loader->tuner);
    (void)ignored;
    return PyBool_FromLong(tuner && hr_tuner_wanted(tuner) > loader->expected_count);
}

static PyObject *waited_s(PyObject *self, void *ignored) {
    (void)ignored;
    return PyFloat_FromDouble((double)waited_ns((const struct loader *)self) / 1e9);
}

static PyObject *loader_answer(PyObject *self, PyObject *arguments) {
    struct loader *loader = (struct loader *)self;
    struct hr_delivery *delivery = loader->received;
    PyObject *tensors = NULL;
    if (!PyArg_ParseTuple(arguments, "|O!:answer", &PyList_Type, &tensors)) return NULL;
    if (loader->answer) return Py_NewRef(loader->answer);
    if (!idle_loader(self)) return NULL;
    if (!delivery) return PyErr_Format(PyExc_RuntimeError, "headrace: no answer was waited for");
    loader->received = NULL; /* decoding may run code that closes this loader, or waits */
    int64_t began_ns = show_of(loader->show) ? hr_show_part_begin(show_of(loader->show)) : 0;
    struct origin origin = {.data = delivery->data,
                            .bytes = delivery->bytes,
                            .delivery = delivery,
                            .leased = tensors ? LEASED_NONE : LEASED_LARGE};
    struct moved moved = {.tensors = tensors};
    PyObject *answer = delivery->status == HR_STATUS_TOO_BIG && delivery->bytes == sizeof(uint64_t)
                           ? PyLong_FromUnsignedLongLong(*(const uint64_t *)delivery->data)
                           : decode(&origin, loader->types, tensors ? &moved : NULL);
    if (show_of(loader->show)) hr_show_part_end(show_of(loader->show), HR_SHOW_REBUILD, began_ns);
    loader->has_failed = !answer;
    loader->has_others = moved.has_others;
    if (!answer && loader->loader && !loader->received) {
        loader->received = delivery;
        return NULL;
    }
    hr_delivery_done(delivery);
    if (answer) Py_XSETREF(loader->answer, Py_NewRef(answer));
    return answer;
}

static PyObject *py_fail(PyObject *self, PyObject *ignored) {
    (void)ignored;
    ((struct loader *)self)->has_failed = true;
    Py_RETURN_NONE;
}

static PyObject *has_answer(PyObject *self, void *ignored) {
    (void)ignored;
    return PyBool_FromLong(((struct loader *)self)->received || ((struct loader *)self)->answer);
}

static PyObject *py_drop(PyObject *self, PyObject *ignored) {
    (void)ignored;
    loader_drop(self);
    Py_RETURN_NONE;
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

static PyObject *loader_close(PyObject *self, PyObject *ignored) {
    struct loader *loader = (struct loader *)self;
    (void)ignored;
    if (!wait_until_idle(loader))
        Py_RETURN_NONE; /* its thread never returns, so the memory is freed when the process ends */
    loader_drop(self);
    loader->loader = hr_loader_close(loader->loader);
    Py_RETURN_NONE;
}

static PyObject *loader_detach(PyObject *self, PyObject *ignored) {
    struct loader *loader = (struct loader *)self;
    (void)ignored;
    if (loader->is_busy) return loader_refuse_busy();
    if (!core_open_loader(self)) return NULL;
    loader_drop(self);
    hr_arena *arena = hr_loader_detach(loader->loader);
    loader->loader = NULL;
    return sending_keep_arena(arena);
}

static PyObject *loader_report(PyObject *self, PyObject *ignored) {
    static const char *const memories[] = {"memfd", "shm", "tmp"};
    struct hr_arena_report r;
    hr_loader *loader = core_open_loader(self);
    (void)ignored;
    if (!loader) return NULL;
    hr_arena_report(hr_loader_arena(loader), &r);
    uint64_t waited_ns = r.waited_ns - ((struct loader *)self)->begin_waited_ns;
    if (show_of(((struct loader *)self)->show)) waited_ns += hr_show_pinned_ns(show_of(((struct loader *)self)->show));
    return Py_BuildValue("{s:s,s:I,s:I,s:K,s:K,s:K,s:K,s:I,s:K,s:K,s:K,s:K,s:K,s:K,s:d,s:K,s:I,s:K}", "memory",
                         memories[r.memory], "workers", r.worker_count, "slots", r.slot_count, "limit_bytes",
                         (unsigned long long)r.limit_bytes, "window_bytes", (unsigned long long)r.window_bytes,
                         "used_bytes", (unsigned long long)r.used_bytes, "held_bytes", (unsigned long long)r.held_bytes,
                         "held", r.held_count, "batches", ((struct loader *)self)->batch_count, "bytes",
                         (unsigned long long)r.delivered_bytes, "copied", (unsigned long long)r.copied_count, "asked",
                         (unsigned long long)r.asked_count, "trimmed", (unsigned long long)r.trimmed_count, "waits",
                         (unsigned long long)r.waited_count, "waited_s", (double)waited_ns / 1e9, "sleeps",
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
    struct hr_arena_report report;
    hr_loader *loader = core_open_loader(self);
    unsigned long long count = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    hr_arena_report(hr_loader_arena(loader), &report);
    int r = hr_arena_count(hr_loader_arena(loader), 0, count - report.skipped_count);
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
    {"open_worker_fds", loader_open_worker_fds, METH_O,
     "open_worker_fds(worker) -> (worker, memory_fd, trainer_bell_fd, worker_bell_fd, life_fd, "
     "diagnostics_fd)\n\nOpens the descriptors that a worker needs for its Port. The caller owns and closes them."},
    {"show", loader_show, METH_O,
     "show(show)\n\nShows observers this loader in a Show, before its workers start. It keeps a reference."},
    {"replace", loader_replace, METH_O,
     "replace(worker) -> (delivered, published, granted)\n\nGrants the tasks of a dead worker to its successor. See "
     "struct hr_succession."},
    {"awaited", loader_awaited, METH_NOARGS,
     "awaited() -> int | None\n\nReturns the worker whose answer is the next in order; None: any worker."},
    {"tasks", loader_tasks, METH_O,
     "tasks(worker) -> dict\n\nReturns a worker's outstanding tasks: number -> indices."},
    {"adopt", crew_adopt, METH_VARARGS,
     "adopt(worker, pid, sentinel)\n\nWatches process `pid` as a worker; `sentinel` is a descriptor that becomes "
     "readable when it ends, for a kernel without pidfd."},
    {"guard", crew_guard, METH_VARARGS | METH_STATIC,
     "guard(life_fd, pid) -> bool\n\nHas process `pid` killed when the write end of the pipe of this descriptor is "
     "closed; with the one of open_worker_fds, when the trainer dies. Returns False if the process has ended, or the "
     "system refuses."},
    {"ignore_others", crew_ignore_others, METH_VARARGS | METH_STATIC,
     "ignore_others(trainer)\n\nIgnores SIGTERM, SIGUSR1 and SIGUSR2 in this process unless process `trainer` or this "
     "process has sent them. Signals that are handled or ignored are left. See hr_worker_ignore_others."},
    {"snapshot", crew_snapshot, METH_O,
     "snapshot(worker) -> dict\n\nReturns the fields of struct hr_worker_report by their names, and the texts of the "
     "worker's diagnostics file: `stack` and `said` (the end of its stderr)."},
    {"posted_status", crew_posted_status, METH_O,
     "posted_status(worker) -> bytes\n\nReturns the last status text of a worker, which may have written any bytes."},
    {"signal", crew_signal, METH_VARARGS, "signal(worker, number)\n\nSends a worker a signal. OSError."},
    {"stop", crew_stop, METH_O,
     "stop(timeout) -> int\n\nEnds all workers within `timeout` seconds: stops the arena, then sends SIGTERM, then "
     "SIGKILL. Returns how many still run."},
    {"begin", loader_begin, METH_VARARGS,
     "begin(epoch, owed, keeps_workers, timeout)\n\nBegins an epoch, with `owed` tasks to be submitted; workers that "
     "go "
     "on from an earlier one are sent `epoch`, any object. keeps_workers: those without data wait for another epoch. "
     "See "
     "hr_loader_begin. WorkerDied, TimeoutError."},
    {"has_data", loader_has_data, METH_O,
     "has_data(worker) -> bool\n\nReturns True while a worker has data in this epoch, as far as is known."},
    {"start_at", loader_start_at, METH_O,
     "start_at(worker)\n\nGives the first task of the epoch that has begun to this worker."},
    {"submit", loader_submit, METH_VARARGS,
     "submit(tasks, wrap) -> bool\n\nSubmits the next of the Tasks. `wrap` is None, or a callable that returns what is "
     "sent for the task. Returns False if there is no task. If it raises, the task stays drawn, and owed."},
    {"tune", py_tune, METH_VARARGS,
     "tune(tuner, within_epochs, worker_bytes)\n\nLets a Tuner say how many workers get tasks, within epochs too or "
     "only "
     "between them. worker_bytes: the private memory that a further worker takes, about."},
    {"tune_begin", py_tune_begin, METH_O,
     "tune_begin(since_ns)\n\nAn epoch begins. As many workers get tasks as the Tuner wants and as are expected."},
    {"tune_end", py_tune_end, METH_NOARGS, "tune_end()\n\nThe epoch has ended, for the Tuner."},
    {"use", py_use, METH_O, "use(count)\n\nLets only the first workers get tasks. See hr_loader_use."},
    {"expect", py_expect, METH_O, "expect(count)\n\nSays how many workers were started. See hr_loader_expect."},
    {"wait", loader_wait, METH_O,
     "wait(timeout) -> int | None\n\nWaits for the next answer in the loader's order, and returns its status, the same "
     "until it is dropped; None if nothing is outstanding. STATUS_END: a worker has no more data, there is no "
     "answer. "
     "One more task is owed then. WorkerDied, TimeoutError."},
    {"answer", loader_answer, METH_VARARGS,
     "answer([tensors]) -> object\n\nReturns the answer that was waited for, the same until it is dropped. "
     "STATUS_TOO_BIG: the number of bytes that the batch needs. Raises any exception that occurs while the answer is "
     "rebuilt. tensors: a list that takes the place of the tensors of sources(); nothing of the answer has a lease "
     "then."},
    {"sources", sending_sources, METH_NOARGS,
     "sources() -> list | None\n\nReturns the tensors of the answer that a device can copy, over its slot. They are "
     "kept until the copies have ended. None: it was rebuilt already."},
    {"span", sending_span, METH_VARARGS,
     "span(address, size) -> tensor\n\nReturns bytes of the slot, as a tensor, for the same use."},
    {"slot", sending_slot, METH_NOARGS,
     "slot() -> (slot, size, registered, times) | None\n\nReturns the slot of the answer, how many bytes the answer "
     "has, "
     "how many of the slot are registered, and how often something was received in it. None: it is a private copy."},
    {"register_slot", sending_register, METH_VARARGS,
     "register_slot(slot, size, has_grown) -> (address, size) | None | False\n\nMarks memory as registered: see "
     "hr_arena_register. None: as much is registered as may be. False: not this slot."},
    {"unregister_slot", sending_unregister, METH_O, "unregister_slot(slot)\n\nEnds that."},
    {"detach", loader_detach, METH_NOARGS,
     "detach() -> arena\n\nCloses the loader, and returns its memory for the next one. All workers have ended."},
    {"fail", py_fail, METH_NOARGS,
     "fail()\n\nDeclares that the next exception is the answer. (An exception of answer() is the answer too.)"},
    {"drop", py_drop, METH_NOARGS, "drop()\n\nDrops the answer: the next wait is for the next one."},
    {"close", loader_close, METH_NOARGS,
     "close()\n\nCloses the loader; received batches stay readable. May be called several times."},
    {"copied", loader_copied, METH_NOARGS,
     "copied() -> int\n\nReturns the number of batches that were delivered as copies; 0 after close()."},
    {"count_skipped", loader_count_skipped, METH_O,
     "count_skipped(count)\n\nSets how many bad samples were left out or replaced, for the report."},
    {"report", loader_report, METH_NOARGS, "report() -> dict\n\nReturns the counts of struct hr_arena_report."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef loader_members[] = {
    {"owed", T_ULONGLONG, offsetof(struct loader, owed), READONLY, "Number of tasks that still have to be submitted."},
    {"submitted", T_ULONGLONG, offsetof(struct loader, submitted), READONLY,
     "Number of tasks that were submitted in this epoch."},
    {"failed_step", T_INT, offsetof(struct loader, failed_step), READONLY,
     "The step at which the last submit failed. 0: it did not fail; 1: drawing the task; 2: sending it."},
    {"has_others", T_BOOL, offsetof(struct loader, has_others), READONLY,
     "True if the answer that was rebuilt last has objects that may have to be moved to a device."},
    {"used", T_UINT, offsetof(struct loader, used_count), READONLY, "How many workers get tasks."},
    {"expected", T_UINT, offsetof(struct loader, expected_count), READONLY, "How many workers were started."},
    {"worker", T_UINT, offsetof(struct loader, worker), READONLY, "The worker that gave that answer."},
    {"task", T_ULONGLONG, offsetof(struct loader, task), READONLY,
     "The number of the task of the answer that was waited for last."},
    {"serial", T_ULONGLONG, offsetof(struct loader, serial), READONLY, "Number of answers that were waited for."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef loader_properties[] = {
    {"has_answer", has_answer, NULL, "True if an answer was waited for and not dropped.", NULL},
    {"lacks_worker", lacks_worker, NULL, "True if the Tuner wants more workers than are expected.", NULL},
    {"waited_s", waited_s, NULL, "How long the loop has waited for workers, since its Show was made.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject LoaderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Loader",
    .tp_basicsize = sizeof(struct loader),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "The trainer's side: Loader(workers, prefetch_factor (per worker), in_order, limit_bytes (0: chosen by "
              "the library)).",
    .tp_new = PyType_GenericNew,
    .tp_init = loader_init,
    .tp_dealloc = loader_dealloc,
    .tp_methods = loader_methods,
    .tp_members = loader_members,
    .tp_getset = loader_properties,
};
