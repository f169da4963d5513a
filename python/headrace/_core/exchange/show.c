/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Show: what observers see of a loader, and its numbers for the program itself. */
#include "exchange/exchange.h"

struct show {
    PyObject_HEAD hr_show *show;
};

hr_show *show_of(PyObject *show) {
    return show && Py_IS_TYPE(show, &ShowType) ? ((struct show *)show)->show : NULL;
}

static int show_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"name", "rank", "world_size", "recording", NULL};
    struct show *show = (struct show *)self;
    struct hr_show_who who = {.recording = 0};
    unsigned long long recording = 0;
    PyObject *name;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "Sii|K:Show", names, &name, &who.rank, &who.world_size,
                                     &recording))
        return -1;
    who.recording = recording;
    if (show->show) {
        PyErr_SetString(PyExc_RuntimeError, "headrace: the show is open already");
        return -1;
    }
    who.name = PyBytes_AS_STRING(name);
    show->show = hr_show_open(&who);
    if (!show->show) PyErr_NoMemory();
    return show->show ? 0 : -1;
}

static void show_dealloc(PyObject *self) {
    hr_show_close(((struct show *)self)->show);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *show_page(PyObject *self, PyObject *ignored) {
    (void)ignored;
    hr_show_attach_page(((struct show *)self)->show);
    Py_RETURN_NONE;
}

static PyObject *show_begin(PyObject *self, PyObject *arguments) {
    unsigned long long epoch;
    long long since_ns;
    if (!PyArg_ParseTuple(arguments, "KL:begin", &epoch, &since_ns)) return NULL;
    hr_show_begin(((struct show *)self)->show, epoch, since_ns);
    Py_RETURN_NONE;
}

static PyObject *show_end(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return PyBool_FromLong(hr_show_end(((struct show *)self)->show));
}

static PyObject *show_pin_begin(PyObject *self, PyObject *ignored) {
    (void)ignored;
    hr_show_pin_begin(((struct show *)self)->show);
    Py_RETURN_NONE;
}

static PyObject *show_pin_end(PyObject *self, PyObject *ignored) {
    (void)ignored;
    hr_show_pin_end(((struct show *)self)->show);
    Py_RETURN_NONE;
}

static PyObject *show_waited(PyObject *self, PyObject *ignored) {
    struct hr_arena_look look;
    const hr_show *show = ((struct show *)self)->show;
    (void)ignored;
    hr_show_read_epoch(show, &look);
    return Py_BuildValue("KL", (unsigned long long)look.inside_ns, (long long)hr_show_elapsed_ns(show));
}

static double in_s(uint64_t ns) {
    return (double)ns / 1e9;
}

static PyObject *describe_epoch(const hr_show *show) {
    struct hr_arena_look look;
    hr_show_read_epoch(show, &look);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:d,s:d,s:d,s:d,s:d,s:d,s:d,s:K,s:K}", "epoch",
                         (unsigned long long)look.epoch, "step", (unsigned long long)look.step, "batches",
                         (unsigned long long)look.batches, "samples", (unsigned long long)look.samples, "bytes",
                         (unsigned long long)look.bytes, "errors", (unsigned long long)look.errors, "seconds",
                         in_s((uint64_t)hr_show_elapsed_ns(show)), "inside_s", in_s(look.inside_ns), "start_s",
                         in_s(look.start_ns), "workers_s", in_s(look.wait_ns), "pin_s", in_s(look.pin_ns), "draw_s",
                         in_s(look.draw_ns), "rebuild_s", in_s(look.rebuild_ns), "restarts",
                         (unsigned long long)look.restarts, "bad_samples", (unsigned long long)look.bad_samples);
}

/* Adds the numbers of the workers, waiting of those that get tasks only; `buckets` are those of their samples. */
static PyObject *sum_workers(const struct hr_arena_look *look, const struct hr_worker_look *workers) {
    uint64_t phase_ns[HR_PHASE_COUNT] = {0}, worst_ns = 0, worst_index = HR_NO_SAMPLE, done_count = 0;
    unsigned idle = 0; /* workers that get tasks and have none */
    PyObject *buckets = PyList_New(HR_LOOK_BUCKETS);
    for (uint32_t i = 0; i < look->worker_count; i++) {
        for (int phase = 0; phase < HR_PHASE_COUNT; phase++)
            if (phase != HR_PHASE_WAIT || i < look->used_count) phase_ns[phase] += workers[i].status.phase_ns[phase];
        done_count += workers[i].status.done_count;
        if (workers[i].samples.worst_ns > worst_ns) {
            worst_ns = workers[i].samples.worst_ns;
            worst_index = workers[i].samples.worst_index;
        }
        idle += i < look->used_count && workers[i].status.phase == HR_PHASE_WAIT;
    }
    for (int i = 0; buckets && i < HR_LOOK_BUCKETS; i++) {
        unsigned long long count = 0;
        for (uint32_t worker = 0; worker < look->worker_count; worker++) count += workers[worker].samples.buckets[i];
        PyObject *number = PyLong_FromUnsignedLongLong(count);
        if (number)
            PyList_SET_ITEM(buckets, i, number);
        else
            Py_CLEAR(buckets);
    }
    if (!buckets) return NULL;
    PyObject *index = worst_index == HR_NO_SAMPLE ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(worst_index);
    return Py_BuildValue("{s:I,s:I,s:K,s:I,s:d,s:d,s:d,s:d,s:N,s:N}", "workers", look->used_count, "idle", idle, "done",
                         (unsigned long long)done_count, "queue", look->queue_count, "wait_s",
                         in_s(phase_ns[HR_PHASE_WAIT]), "fetch_s", in_s(phase_ns[HR_PHASE_FETCH]), "collate_s",
                         in_s(phase_ns[HR_PHASE_COLLATE]), "worst_s", in_s(worst_ns), "worst_index", index, "buckets",
                         buckets);
}

static PyObject *show_numbers(PyObject *self, PyObject *ignored) {
    const hr_show *show = ((struct show *)self)->show;
    struct hr_arena_look look;
    (void)ignored;
    uint32_t count = hr_show_read(show, &look, NULL, 0);
    struct hr_worker_look *workers = PyMem_Calloc(count + 1, sizeof *workers);
    if (!workers) return PyErr_NoMemory();
    hr_show_read(show, &look, workers, count);
    PyObject *epoch = describe_epoch(show), *sums = sum_workers(&look, workers);
    PyMem_Free(workers);
    PyObject *both = epoch && sums ? Py_BuildValue("OO", epoch, sums) : NULL;
    Py_XDECREF(epoch);
    Py_XDECREF(sums);
    return both;
}

static PyObject *show_name(PyObject *self, void *ignored) {
    struct hr_arena_look look;
    (void)ignored;
    hr_show_read(((struct show *)self)->show, &look, NULL, 0);
    return PyBytes_FromString(look.name);
}

static PyGetSetDef show_properties[] = {
    {"name", show_name, NULL, "The name of the loader, cut if it is long.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef show_methods[] = {
    {"page", show_page, METH_NOARGS, "page()\n\nShows the loader in a page of its own, because it has no workers."},
    {"begin", show_begin, METH_VARARGS,
     "begin(epoch, since_ns)\n\nAn epoch begins; its iterator began to be made at since_ns of time.monotonic_ns()."},
    {"end", show_end, METH_NOARGS, "end() -> bool\n\nThe epoch has ended. True: it was not known yet."},
    {"pin_begin", show_pin_begin, METH_NOARGS, "pin_begin()\n\nThe loop waits for the pinning thread."},
    {"pin_end", show_pin_end, METH_NOARGS, "pin_end()\n\nIt does not wait any more."},
    {"waited", show_waited, METH_NOARGS,
     "waited() -> (int, int)\n\nNanoseconds inside next() in this epoch, and those since its first batch."},
    {"numbers", show_numbers, METH_NOARGS,
     "numbers() -> (dict, dict)\n\nReturns the counts of this epoch, and the sums of the workers since the loader was "
     "made."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject ShowType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Show",
    .tp_basicsize = sizeof(struct show),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Shows observers a loader: Show(name (bytes), rank (-1: not known), world_size, recording=0). "
              "recording: which recorder takes it.",
    .tp_new = PyType_GenericNew,
    .tp_init = show_init,
    .tp_dealloc = show_dealloc,
    .tp_methods = show_methods,
    .tp_getset = show_properties,
};
