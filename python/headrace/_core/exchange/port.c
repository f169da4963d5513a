/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Port: a worker's end of the arena. */
#include "exchange/encode.h"
#include "exchange/exchange.h"
#include "rows/rows.h"

#include <errno.h>
#include <stddef.h>
#include <structmember.h>
#include <time.h>

/* _core.Port: a worker's side of the arena. */
struct port {
    PyObject_HEAD hr_port *port;
    struct encoder encoder;
    PyObject *watch;      /* callable, or NULL: called between tasks */
    int64_t watch_due_ns; /* by the coarse clock */
    uint64_t sample_count;
    uint64_t number;      /* of the task that was taken last */
    unsigned int threads; /* that make the images of a batch */
    int64_t noted;        /* the sample that the worker is reading; -1: not noted since the task was taken */
};

/* Goes through a batch's indices and notes in the worker's record which one is at work. */
struct noting {
    PyObject_HEAD struct port *port;
    PyObject *indices; /* iterator */
    uint64_t next;
};

static int port_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    struct port *port = (struct port *)self;
    static char *names[] = {"worker",         "memory_fd", "trainer_bell_fd", "worker_bell_fd", "life_fd",
                            "diagnostics_fd", NULL};
    struct hr_worker_fds fds;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "Iiiiii:Port", names, &fds.worker, &fds.memory_fd,
                                     &fds.trainer_bell_fd, &fds.worker_bell_fd, &fds.life_fd, &fds.diagnostics_fd))
        return -1;
    if (port->port) {
        PyErr_SetString(PyExc_RuntimeError, "headrace: the port is open already");
        return -1;
    }
    if (encoder_init(&port->encoder) < 0) return -1;
    int r = hr_port_open(&fds, &port->port);
    if (r < 0) core_raise(r);
    return r < 0 ? -1 : 0;
}

static void port_dealloc(PyObject *self) {
    struct port *port = (struct port *)self;
    hr_port_close(port->port);
    Py_XDECREF(port->watch);
    encoder_free(&port->encoder);
    Py_TYPE(self)->tp_free(self);
}

static hr_port *open_port(struct port *port) {
    if (!port->port) PyErr_SetString(PyExc_RuntimeError, "headrace: the port is closed");
    return port->port;
}

/* A signal's handler may fork, and the child has the port closed. */
static int take(struct port *port, struct hr_task *ret_task) {
    int r;
    do {
        Py_BEGIN_ALLOW_THREADS;
        r = hr_port_take(port->port, HR_NO_DEADLINE, ret_task);
        Py_END_ALLOW_THREADS;
        if (r == -EINTR && (PyErr_CheckSignals() < 0 || !open_port(port))) return -1;
    } while (r == -EINTR);
    if (r < 0 && r != HR_E_CLOSED) core_raise(r);
    return r;
}

/* Waits like take, if it may. Returns what hr_port_look does, -ETIMEDOUT too, and -1 with an exception. */
static int look(struct port *port, uint32_t ahead, bool waits, struct hr_task *ret_task) {
    int r;
    do {
        Py_BEGIN_ALLOW_THREADS;
        r = hr_port_look(port->port, ahead, waits ? HR_NO_DEADLINE : 0, ret_task);
        Py_END_ALLOW_THREADS;
        if (r == -EINTR && (PyErr_CheckSignals() < 0 || !open_port(port))) return -1;
    } while (r == -EINTR);
    if (r < 0 && r != HR_E_CLOSED && r != -ETIMEDOUT) {
        core_raise(r);
        return -1;
    }
    return r;
}

static int64_t coarse_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void drop_watch(struct port *port) {
    Py_CLEAR(port->watch);
    port->watch_due_ns = INT64_MAX;
}

/* The watch returns after how many seconds it wants to be called again, or None. What it raises ends it, and no more.
 */
static void call_watch(struct port *port) {
    PyObject *again = PyObject_CallNoArgs(port->watch);
    double seconds = again && again != Py_None ? PyFloat_AsDouble(again) : 0;
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(port->watch);
        drop_watch(port);
    } else if (again == Py_None || seconds > 1e9)
        drop_watch(port);
    else
        port->watch_due_ns = coarse_now_ns() + (int64_t)(seconds * 1e9);
    Py_XDECREF(again);
}

static PyObject *port_watch(PyObject *self, PyObject *arguments) {
    struct port *port = (struct port *)self;
    PyObject *watch;
    double seconds;
    if (!PyArg_ParseTuple(arguments, "Od:watch", &watch, &seconds)) return NULL;
    drop_watch(port);
    port->watch = Py_NewRef(watch);
    port->watch_due_ns = coarse_now_ns() + (int64_t)(seconds * 1e9);
    Py_RETURN_NONE;
}

static PyObject *port_number(PyObject *self, void *ignored) {
    (void)ignored;
    return PyLong_FromUnsignedLongLong(((struct port *)self)->number);
}

static PyObject *port_samples(PyObject *self, void *ignored) {
    (void)ignored;
    return PyLong_FromUnsignedLongLong(((struct port *)self)->sample_count);
}

static PyObject *indices_of(const struct hr_task *task) {
    return task->payload_bytes ? core_unpack_indices(task->payload, task->payload_bytes) : Py_NewRef(Py_None);
}

static PyObject *port_take(PyObject *self, PyObject *ignored) {
    struct hr_task task;
    struct port *const own = (struct port *)self;
    (void)ignored;
    if (own->watch && coarse_now_ns() >= own->watch_due_ns) call_watch(own);
    if (!open_port(own)) return NULL;
    int r = take(own, &task);
    own->noted = -1;
    if (r == HR_E_CLOSED) Py_RETURN_NONE;
    if (r < 0) return NULL;
    own->number = task.task;
    PyObject *indices = indices_of(&task);
    if (indices && task.kind == HR_TASK_MAKE)
        own->sample_count += PyList_CheckExact(indices) ? (uint64_t)PyList_GET_SIZE(indices) : 1;
    return indices ? Py_BuildValue("IKN", task.kind, (unsigned long long)task.task, indices) : NULL;
}

static PyObject *port_look(PyObject *self, PyObject *arguments) {
    unsigned int ahead;
    int waits;
    struct hr_task task;
    if (!PyArg_ParseTuple(arguments, "Ip:look", &ahead, &waits) || !open_port((struct port *)self)) return NULL;
    int r = look((struct port *)self, ahead, waits, &task);
    if (r == HR_E_CLOSED) Py_RETURN_FALSE;
    if (r == 0 || r == -ETIMEDOUT) Py_RETURN_NONE;
    if (r < 0) return NULL;
    PyObject *indices = indices_of(&task);
    return indices ? Py_BuildValue("IKN", task.kind, (unsigned long long)task.task, indices) : NULL;
}

static PyObject *port_ring(PyObject *self, PyObject *ignored) {
    (void)ignored;
    if (((struct port *)self)->port) hr_port_ring(((struct port *)self)->port);
    Py_RETURN_NONE;
}

/* The batch is over the limit: publishes how many bytes it needs. The slot always has room for this number. */
static int publish_size(hr_port *port, uint64_t bytes) {
    void *data;
    int r = hr_port_reserve(port, sizeof bytes, &data);
    if (r < 0) return r;
    *(uint64_t *)data = bytes;
    return hr_port_publish(port, HR_STATUS_TOO_BIG, sizeof bytes);
}

/* Writes the encoder's batch to the slot, with the images that are made in it, or the rows that are gathered into it.
 * It runs without the GIL, because it may wait for memory, copies, and makes images. Returns how many images or rows
 * could not be made. */
static int write_batch(struct port *port, uint64_t bytes) {
    struct encoder *encoder = &port->encoder;
    void *data = NULL;
    int r;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_port_reserve(port->port, bytes, &data);
    if (r == 0) r = hr_batch_write(encoder->batch, data, bytes);
    if (r == 0 && encoder->recipes.count)
        r = recipes_run(&encoder->recipes, encoder->batch, data, port->port, port->threads);
    if (r == 0 && encoder->rows) r = rows_run(encoder->rows, encoder->batch, data, port->threads);
    Py_END_ALLOW_THREADS;
    return r;
}

/* Counts the images that were made, before the trainer can have the batch. */
static void count_made(const struct recipes *recipes) {
    if (!recipes->count) return;
    PyObject *counted = PyObject_CallFunction(core.has_made, "n", (Py_ssize_t)recipes->count);
    if (!counted) PyErr_WriteUnraisable(core.has_made);
    Py_XDECREF(counted);
}

/* Publishes the encoder's batch. FOUND_NOT: an image, or the rows, could not be made, and nothing was published. */
static enum found publish(struct port *port, uint32_t status) {
    struct recipes *recipes = &port->encoder.recipes;
    uint64_t bytes = 0;
    int r = hr_batch_measure(port->encoder.batch, &bytes);
    if (r == 0 && recipes_begin(recipes) < 0) {
        encoder_reset(&port->encoder, true);
        return FOUND_ERROR;
    }
    if (r == 0) r = write_batch(port, bytes);
    recipes_end(recipes);
    if (r == 0) {
        count_made(recipes);
        r = hr_port_publish(port->port, status, bytes);
    } else if (r == HR_E_TOO_BIG) {
        r = publish_size(port->port, bytes);
    }
    encoder_reset(&port->encoder, true);
    if (r >= 0 || r == HR_E_CLOSED) return r > 0 ? FOUND_NOT : FOUND;
    core_raise(r);
    return FOUND_ERROR;
}

static PyObject *port_publish(PyObject *self, PyObject *arguments) {
    struct port *port = (struct port *)self;
    PyObject *object;
    unsigned status;
    if (!PyArg_ParseTuple(arguments, "IO:publish", &status, &object) || !open_port(port)) return NULL;
    hr_port_enter(port->port, HR_PHASE_COLLATE);
    if (encode(&port->encoder, object) == 0) {
        uint64_t bytes;
        if (hr_batch_measure(port->encoder.batch, &bytes) == 0) hr_port_keep_blocks(port->port, bytes);
        if (publish(port, status) == FOUND_ERROR) return NULL;
        Py_RETURN_NONE;
    }
    encoder_reset(&port->encoder, false);
    return NULL;
}

static PyObject *port_publish_status(PyObject *self, PyObject *argument) {
    struct port *port = (struct port *)self;
    unsigned long status = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !open_port(port)) return NULL;
    return core_none_or_raise(hr_port_publish(port->port, (uint32_t)status, 0));
}

static PyObject *port_collate(PyObject *self, PyObject *arguments) {
    struct port *port = (struct port *)self;
    PyObject *samples, *kind;
    if (!PyArg_ParseTuple(arguments, "OO:collate", &samples, &kind) || !open_port(port)) return NULL;
    bool is_packed = PyTuple_Check(kind);
    long flavor = is_packed ? 0 : PyLong_AsLong(kind);
    if (flavor == -1 && PyErr_Occurred()) return NULL;
    hr_port_enter(port->port, HR_PHASE_COLLATE);
    enum found found = is_packed ? collate_packed(&port->encoder, samples, kind)
                                 : collate(&port->encoder, samples, (enum hr_flavor)flavor);
    if (found == FOUND)
        found = publish(port, HR_STATUS_BATCH);
    else
        encoder_reset(&port->encoder, false);
    return found == FOUND_ERROR ? NULL : PyBool_FromLong(found == FOUND);
}

static void note(struct port *port, uint64_t sample, uint64_t index) {
    port->noted = (int64_t)sample;
    if (port->port) hr_port_note_index(port->port, sample, index);
}

/* All samples are made; `count` is the number after the last one. */
static void note_last(struct port *port, uint64_t count) {
    port->noted = (int64_t)count;
    if (port->port) hr_port_note_last(port->port, count);
}

/* The index of a sample for observers: HR_NO_SAMPLE if it is no number. Runs no code of the user's. */
static uint64_t index_of(PyObject *index) {
    if (!PyLong_CheckExact(index)) return HR_NO_SAMPLE;
    long long value = PyLong_AsLongLong(index);
    if (value == -1 && PyErr_Occurred()) PyErr_Clear();
    return value < 0 ? HR_NO_SAMPLE : (uint64_t)value;
}

static PyObject *port_note(PyObject *self, PyObject *argument) {
    uint64_t sample = PyLong_AsUnsignedLongLongMask(argument);
    if (PyErr_Occurred() || !open_port((struct port *)self)) return NULL;
    note((struct port *)self, sample, HR_NO_SAMPLE);
    Py_RETURN_NONE;
}

/* The two arguments of the functions that threads call for each sample. -1 with an exception. */
static int check_two(const char *name, Py_ssize_t count) {
    if (count == 2) return 0;
    PyErr_Format(PyExc_TypeError, "%s takes two arguments, but got %zd", name, count);
    return -1;
}

/* Reads the place of a sample in its batch. A negative number: HR_NO_SAMPLE. -1 with an exception. */
static int read_place(PyObject *number, uint64_t *ret_place) {
    Py_ssize_t place = PyLong_AsSsize_t(number);
    if (place == -1 && PyErr_Occurred()) return -1;
    *ret_place = place < 0 ? HR_NO_SAMPLE : (uint64_t)place;
    return 0;
}

static PyObject *port_note_making(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    uint64_t thread, sample;
    if (check_two("note_making", count) < 0) return NULL;
    if (read_place(arguments[0], &thread) < 0 || read_place(arguments[1], &sample) < 0) return NULL;
    hr_port *port = ((struct port *)self)->port;
    if (port && thread < HR_MAKING_THREADS) hr_port_note_making(port, (uint32_t)thread, sample);
    Py_RETURN_NONE;
}

static PyObject *port_note_oldest(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    uint64_t sample;
    if (check_two("note_oldest", count) < 0 || read_place(arguments[0], &sample) < 0) return NULL;
    hr_port *port = ((struct port *)self)->port;
    if (port) hr_port_note_oldest(port, sample, index_of(arguments[1]));
    Py_RETURN_NONE;
}

static PyObject *port_note_made(PyObject *self, PyObject *arguments) {
    struct port *port = (struct port *)self;
    Py_ssize_t sample;
    PyObject *index;
    unsigned long long took_ns;
    if (!PyArg_ParseTuple(arguments, "nOK:note_made", &sample, &index, &took_ns) || !open_port(port)) return NULL;
    port->noted = sample;
    if (took_ns) hr_port_count_sample(port->port, index_of(index), took_ns);
    Py_RETURN_NONE;
}

/* Collating in C begins by itself. */
static PyObject *port_begin_collate(PyObject *self, PyObject *ignored) {
    (void)ignored;
    if (!open_port((struct port *)self)) return NULL;
    hr_port_enter(((struct port *)self)->port, HR_PHASE_COLLATE);
    Py_RETURN_NONE;
}

static PyObject *port_noted(PyObject *self, void *ignored) {
    (void)ignored;
    if (((struct port *)self)->noted < 0) Py_RETURN_NONE;
    return PyLong_FromLongLong(((struct port *)self)->noted);
}

static PyObject *port_noting(PyObject *self, PyObject *indices) {
    PyObject *iterator = PyObject_GetIter(indices);
    struct noting *noting = iterator ? PyObject_New(struct noting, &NotingType) : NULL;
    if (!noting) {
        Py_XDECREF(iterator);
        return NULL;
    }
    noting->port = (struct port *)Py_NewRef(self);
    noting->indices = iterator;
    noting->next = 0;
    return (PyObject *)noting;
}

static PyObject *noting_next(PyObject *self) {
    struct noting *noting = (struct noting *)self;
    PyObject *index = PyIter_Next(noting->indices);
    if (index)
        note(noting->port, noting->next++, index_of(index));
    else if (!PyErr_Occurred())
        note_last(noting->port, noting->next++);
    return index;
}

static void noting_dealloc(PyObject *self) {
    Py_DECREF(((struct noting *)self)->port);
    Py_DECREF(((struct noting *)self)->indices);
    PyObject_Free(self);
}

PyTypeObject NotingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Noting",
    .tp_basicsize = sizeof(struct noting),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = noting_next,
    .tp_dealloc = noting_dealloc,
};

static PyObject *port_log_stderr(PyObject *self, PyObject *text) {
    char *bytes;
    Py_ssize_t length;
    if (!open_port((struct port *)self) || PyBytes_AsStringAndSize(text, &bytes, &length) < 0) return NULL;
    int r = hr_diagnostics_log_stderr(hr_port_diagnostics_fd(((struct port *)self)->port), bytes, (size_t)length);
    return core_none_or_raise(r);
}

static PyObject *port_post_status(PyObject *self, PyObject *text) {
    char *bytes;
    Py_ssize_t length;
    if (!open_port((struct port *)self) || PyBytes_AsStringAndSize(text, &bytes, &length) < 0) return NULL;
    int r = hr_diagnostics_post_status(hr_port_diagnostics_fd(((struct port *)self)->port), bytes, (size_t)length);
    return core_none_or_raise(r);
}

/* Returns 0 with an exception. */
static uint32_t count_trainers(struct port *port, PyObject *trainers) {
    long count = PyLong_AsLong(trainers);
    if (PyErr_Occurred() || !open_port(port)) return 0;
    if (count >= 1 && count <= UINT32_MAX) return (uint32_t)count;
    PyErr_Format(PyExc_ValueError, "headrace: the number of trainers cannot be %ld; give 1 or more", count);
    return 0;
}

static PyObject *port_share_cores(PyObject *self, PyObject *trainers) {
    struct port *port = (struct port *)self;
    uint32_t count = count_trainers(port, trainers);
    if (!count) return NULL;
    uint32_t share = hr_port_core_share(port->port, count);
    uint32_t threads = share < 1 ? 1 : share < HR_BATCH_MAX_THREADS ? share : HR_BATCH_MAX_THREADS;
    int r = hr_batch_set_threads(port->encoder.batch, threads);
    if (r < 0) return core_raise(r);
    return PyLong_FromUnsignedLong(threads);
}

static PyObject *port_core_share(PyObject *self, PyObject *trainers) {
    struct port *port = (struct port *)self;
    uint32_t count = count_trainers(port, trainers);
    return count ? PyLong_FromUnsignedLong(hr_port_core_share(port->port, count)) : NULL;
}

static PyObject *port_keep_heap(PyObject *self, PyObject *trainers) {
    struct port *port = (struct port *)self;
    uint32_t count = count_trainers(port, trainers);
    return count ? PyLong_FromUnsignedLongLong(hr_port_keep_heap(port->port, count)) : NULL;
}

static PyObject *port_diagnostics_fd(PyObject *self, PyObject *ignored) {
    (void)ignored;
    if (!open_port((struct port *)self)) return NULL;
    return PyLong_FromLong(hr_port_diagnostics_fd(((struct port *)self)->port));
}

static PyObject *port_close(PyObject *self, PyObject *ignored) {
    struct port *port = (struct port *)self;
    (void)ignored;
    port->port = hr_port_close(port->port);
    drop_watch(port); /* it may refer to this port */
    Py_RETURN_NONE;
}

static PyMethodDef port_methods[] = {
    {"take", port_take, METH_NOARGS,
     "take() -> tuple[int, int, object] | None\n\nWaits for a task and returns its kind, number and indices. None: the "
     "trainer stopped the arena."},
    {"look", port_look, METH_VARARGS,
     "look(ahead, waits) -> tuple[int, int, object] | None | False\n\nReturns the task that is so many behind the one "
     "that take() takes next, which stays where it is. None: ring() was called, or, if it may not wait, there is no "
     "such task. False: the trainer stopped the arena."},
    {"ring", port_ring, METH_NOARGS, "ring()\n\nEnds look() of another thread, or its next call."},
    {"publish", port_publish, METH_VARARGS,
     "publish(status, object)\n\nPublishes the result of the current task. If it raises while it encodes the result "
     "(an object that cannot be pickled), the task stays current."},
    {"publish_status", port_publish_status, METH_O, "publish_status(status)\n\nPublishes a status without a result."},
    {"collate", port_collate, METH_VARARGS,
     "collate(samples, flavor) -> bool\n\nPublishes the default collation of a list of samples, as tensors (flavor 0) "
     "or numpy arrays (1), or what headrace.torch.collate_packed makes of it (a tuple of its names). Deferred images "
     "are made in the batch, by `threads` threads. Returns False, and publishes nothing, if a sample contains "
     "something else, or if an image is damaged."},
    {"begin_collate", port_begin_collate, METH_NOARGS,
     "begin_collate()\n\nRecords that the samples are made, and that the user's collate function is called."},
    {"note", port_note, METH_O, "note(sample)\n\nRecords which sample the worker is reading, for reports."},
    {"noting", port_noting, METH_O,
     "noting(indices) -> iterator\n\nReturns an iterator over the indices that records the position of the current one "
     "(0 for the first) as note does."},
    {"note_making", (PyCFunction)(void (*)(void))port_note_making, METH_FASTCALL,
     "note_making(thread, sample)\n\nRecords which sample of the current batch a thread makes, for reports; -1: none. "
     "Threads that call note_oldest, too, have numbers from 1."},
    {"note_oldest", (PyCFunction)(void (*)(void))port_note_oldest, METH_FASTCALL,
     "note_oldest(sample, index)\n\nRecords the sample of the current batch that was begun before all others that "
     "threads make, for reports and observers; -1: none is made."},
    {"note_made", port_note_made, METH_VARARGS,
     "note_made(sample, index, took_ns)\n\nSets `noted` for a sample that a thread has made, and counts its time; 0: "
     "it took none."},
    {"log_stderr", port_log_stderr, METH_O,
     "log_stderr(bytes)\n\nAdds bytes to the kept end of the worker's stderr, for reports. Raises OSError."},
    {"post_status", port_post_status, METH_O,
     "post_status(bytes)\n\nReplaces the status text that Loader.posted_status returns in the trainer: "
     "DIAGNOSTICS_STATUS_BYTES at most. "
     "OSError."},
    {"watch", port_watch, METH_VARARGS,
     "watch(function, seconds)\n\nCalls function() between two tasks after this many seconds. It returns the seconds "
     "until the next call, or None."},
    {"share_cores", port_share_cores, METH_O,
     "share_cores(trainers) -> int\n\nSets how many threads write large batches: as many as the cores that this worker "
     "can use alone if `trainers` trainers with as many workers run here. Returns this number."},
    {"core_share", port_core_share, METH_O,
     "core_share(trainers) -> int\n\nReturns how many cores this worker can use alone if `trainers` trainers with as "
     "many workers run here; 0: not one."},
    {"keep_heap", port_keep_heap, METH_O,
     "keep_heap(trainers) -> int\n\nMakes malloc keep freed memory for the samples of the next batch. Returns the "
     "maximum number of bytes that it keeps; 0: malloc is unchanged."},
    {"diagnostics_fd", port_diagnostics_fd, METH_NOARGS,
     "diagnostics_fd() -> int\n\nReturns the descriptor of the worker's diagnostics file, borrowed. Stacks are written "
     "at DIAGNOSTICS_STACK_AT."},
    {"close", port_close, METH_NOARGS, "close()\n\nCloses the port. May be called several times."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef port_members[] = {
    {"threads", T_UINT, offsetof(struct port, threads), 0,
     "How many threads make the deferred images of a batch, or gather its rows."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef port_attributes[] = {
    {"noted", port_noted, NULL, "The sample that the worker is reading; None: not noted since the task was taken.",
     NULL},
    {"number", port_number, NULL, "The number of the task that was taken last.", NULL},
    {"samples", port_samples, NULL,
     "Number of samples that were requested so far; a task without a list counts as one.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject PortType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Port",
    .tp_basicsize = sizeof(struct port),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A worker's side of the arena. It takes ownership of the descriptors of Loader.open_worker_fds.",
    .tp_new = PyType_GenericNew,
    .tp_init = port_init,
    .tp_dealloc = port_dealloc,
    .tp_methods = port_methods,
    .tp_members = port_members,
    .tp_getset = port_attributes,
};
