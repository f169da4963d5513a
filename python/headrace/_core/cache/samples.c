/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/cache.h"

#include <errno.h>

#include "exchange/decode.h"
#include "exchange/encode.h"

/* _core.Samples: a table of samples (headrace/cache_samples.h). A sample is written as a batch is. */

enum { WAIT_NS = 100000000 }; /* between two looks at signals */

struct samples {
    PyObject_HEAD hr_samples *samples;
    PyObject *cached; /* has the mapping */
    PyObject *dump;   /* pickles what is not a tree of plain parts, as core.dump does */
    PyObject *types;  /* dict: named tuple classes that were loaded */
    struct encoder encoder;
    bool is_encoding; /* a thread uses the encoder */
};

/* ---- out ---- */

static PyObject *read_sample(struct samples *self, const struct hr_sample *sample, PyObject *owner) {
    struct origin origin = {.data = sample->data, .bytes = sample->bytes, .owner = owner};
    return decode(&origin, self->types, NULL);
}

/* ---- in ---- */

/* Copies the encoder's batch to its place, if there is one. It runs without the GIL, because memory is committed. */
static void store(hr_samples *samples, hr_batch *batch, struct hr_sample *sample) {
    uint64_t bytes;
    int r = hr_batch_measure(batch, &bytes);
    if (r < 0) {
        hr_samples_refuse(samples, sample, HR_SAMPLE_UNFIT);
        return;
    }
    Py_BEGIN_ALLOW_THREADS;
    r = hr_samples_reserve(samples, sample, bytes);
    if (r == HR_SAMPLE_READY) {
        r = hr_batch_write(batch, sample->data, bytes);
        if (r == 0)
            hr_samples_publish(samples, sample);
        else
            hr_samples_give_back(samples, sample);
    }
    Py_END_ALLOW_THREADS;
}

/* An object that cannot be pickled is refused; any other exception gives the sample back. */
static int judge_failure(struct samples *self, struct hr_sample *sample) {
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) {
        hr_samples_give_back(self->samples, sample);
        return -1;
    }
    PyErr_Clear();
    hr_samples_refuse(self->samples, sample, HR_SAMPLE_UNFIT);
    return 0;
}

static int keep_with(struct samples *self, struct encoder *encoder, struct hr_sample *sample, PyObject *object) {
    if (encode(encoder, object) < 0) {
        encoder_reset(encoder, false);
        return judge_failure(self, sample);
    }
    store(self->samples, encoder->batch, sample); /* the caller has the sample, whether it is kept or not */
    encoder_reset(encoder, true);
    return 0;
}

/* Writes a sample that this process has made. Another thread may be writing one. */
static int keep(struct samples *self, struct hr_sample *sample, PyObject *object) {
    if (!self->is_encoding) {
        self->is_encoding = true;
        int r = keep_with(self, &self->encoder, sample, object);
        self->is_encoding = false;
        return r;
    }
    struct encoder encoder;
    int r = encoder_init(&encoder);
    if (r < 0)
        hr_samples_give_back(self->samples, sample);
    else {
        encoder.dump = self->dump;
        r = keep_with(self, &encoder, sample, object);
    }
    encoder_free(&encoder);
    return r;
}

/* Makes a sample whose entry this process has taken, and keeps it. */
static PyObject *make_and_keep(struct samples *self, struct hr_sample *sample, PyObject *make, PyObject *index) {
    PyObject *object = PyObject_CallOneArg(make, index);
    if (!object) {
        hr_samples_give_back(self->samples, sample);
        return NULL;
    }
    if (keep(self, sample, object) < 0) Py_CLEAR(object);
    return object;
}

/* ---- methods ---- */

static bool parse(PyObject *const *arguments, uint64_t *ret_index) {
    *ret_index = PyLong_AsUnsignedLongLong(arguments[0]);
    return !PyErr_Occurred();
}

/* Waits for the process that makes the sample. 0: begin again. 1: it takes too long. -1: an exception. */
static int wait_for_maker(struct samples *self, const struct hr_sample *sample) {
    int r;
    do {
        Py_BEGIN_ALLOW_THREADS;
        r = hr_samples_wait(self->samples, sample, core_now_ns() + WAIT_NS);
        Py_END_ALLOW_THREADS;
        if (PyErr_CheckSignals() < 0) return -1;
    } while (r == -EAGAIN);
    return r == -ETIMEDOUT;
}

static PyObject *make_alone(struct samples *self, PyObject *make, PyObject *index) {
    hr_samples_count_alone(self->samples);
    return PyObject_CallOneArg(make, index);
}

/* NULL without an exception: another process makes the sample. */
static PyObject *try_to_get(struct samples *self, struct hr_sample *sample, PyObject *const *arguments) {
    uint64_t index;
    if (!parse(arguments, &index)) return NULL;
    int r = hr_samples_begin(self->samples, index, sample);
    if (r < 0) return cache_raise(r);
    if (r == HR_SAMPLE_READY) return read_sample(self, sample, NULL);
    if (r == HR_SAMPLE_MAKE) return make_and_keep(self, sample, arguments[1], arguments[0]);
    return r == HR_SAMPLE_REFUSED ? make_alone(self, arguments[1], arguments[0]) : NULL;
}

static PyObject *samples_get(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    struct samples *self = (struct samples *)object;
    struct hr_sample sample;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "get takes 2 arguments, not %zd", count);
    for (;;) {
        PyObject *found = try_to_get(self, &sample, arguments);
        if (found || PyErr_Occurred()) return found;
        int r = wait_for_maker(self, &sample);
        if (r != 0) return r < 0 ? NULL : make_alone(self, arguments[1], arguments[0]);
    }
}

static PyObject *samples_take(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    struct hr_sample sample;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "take takes 2 arguments, not %zd", count);
    PyObject *found = try_to_get((struct samples *)object, &sample, arguments);
    return found || PyErr_Occurred() ? found : Py_NewRef(Py_NotImplemented);
}

static PyObject *samples_view(PyObject *object, PyObject *argument) {
    struct samples *self = (struct samples *)object;
    struct hr_sample sample;
    unsigned long long index = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return NULL;
    int r = hr_samples_begin(self->samples, index, &sample);
    if (r < 0) return cache_raise(r);
    if (r == HR_SAMPLE_READY) return read_sample(self, &sample, object);
    if (r == HR_SAMPLE_MAKE) hr_samples_give_back(self->samples, &sample);
    return PyErr_Format(PyExc_KeyError, "sample %llu is not in the cache", index);
}

static PyObject *samples_report(PyObject *object, PyObject *ignored) {
    struct hr_samples_report report;
    (void)ignored;
    hr_samples_look(((struct samples *)object)->samples, &report);
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsKsK}", "count", (unsigned long long)report.count, "budget_bytes",
                         (unsigned long long)report.budget_bytes, "ready", (unsigned long long)report.ready, "no_room",
                         (unsigned long long)report.refused[HR_SAMPLE_NO_ROOM], "unfit",
                         (unsigned long long)report.refused[HR_SAMPLE_UNFIT], "used_bytes",
                         (unsigned long long)report.used_bytes, "hits", (unsigned long long)report.hits, "made",
                         (unsigned long long)report.made, "made_alone", (unsigned long long)report.made_alone,
                         "no_memory", (unsigned long long)report.no_memory, "mean_ns",
                         (unsigned long long)report.mean_ns);
}

static int append_index(void *list, uint64_t index) {
    PyObject *number = PyLong_FromUnsignedLongLong(index);
    int r = number ? PyList_Append(list, number) : -1;
    Py_XDECREF(number);
    return r;
}

static PyObject *samples_unfinished(PyObject *object, PyObject *ignored) {
    (void)ignored;
    PyObject *list = PyList_New(0);
    if (list && hr_samples_unfinished(((struct samples *)object)->samples, append_index, list) < 0) Py_CLEAR(list);
    return list;
}

static PyObject *samples_begin_check(PyObject *object, PyObject *ignored) {
    (void)ignored;
    int r = hr_samples_begin_check(((struct samples *)object)->samples);
    return r < 0 ? cache_raise(r) : PyLong_FromLong(r);
}

static PyObject *samples_end_check(PyObject *object, PyObject *result) {
    long number = PyLong_AsLong(result);
    if (PyErr_Occurred()) return NULL;
    hr_samples_end_check(((struct samples *)object)->samples, (enum hr_samples_check)number);
    Py_RETURN_NONE;
}

static PyObject *samples_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *cached, *dump;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O!O:Samples", &CachedType, &cached, &dump)) return NULL;
    struct samples *self = (struct samples *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->cached = Py_NewRef(cached);
    self->dump = Py_NewRef(dump);
    self->types = PyDict_New();
    int r = self->types ? encoder_init(&self->encoder) : -1;
    self->encoder.dump = dump;
    if (r == 0) {
        r = hr_samples_open(cached_of(cached), &self->samples);
        if (r < 0) cache_raise(r);
    }
    if (r == 0) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void samples_dealloc(PyObject *object) {
    struct samples *self = (struct samples *)object;
    hr_samples_close(self->samples);
    encoder_free(&self->encoder);
    Py_XDECREF(self->types);
    Py_XDECREF(self->dump);
    Py_XDECREF(self->cached);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef methods[] = {
    {"get", (PyCFunction)(void (*)(void))samples_get, METH_FASTCALL,
     "get(index, make) -> object\n\nReturns a sample: a copy of the one that is kept, or make(index), which is kept."},
    {"take", (PyCFunction)(void (*)(void))samples_take, METH_FASTCALL,
     "take(index, make) -> object\n\nThe same, but returns NotImplemented at once if another process makes the "
     "sample."},
    {"view", samples_view, METH_O,
     "view(index) -> object\n\nReturns a sample whose numpy arrays are read-only views of the cache. Raises KeyError."},
    {"report", samples_report, METH_NOARGS, "report() -> dict\n\nReturns the fields of struct hr_samples_report."},
    {"unfinished", samples_unfinished, METH_NOARGS,
     "unfinished() -> list[int]\n\nReturns the samples that a process has begun to make and not ended."},
    {"begin_check", samples_begin_check, METH_NOARGS,
     "begin_check() -> int\n\nReturns 0 if this process has to check the samples, 1 if another one does, 2 if they are "
     "right, 3 if they are wrong."},
    {"end_check", samples_end_check, METH_O, "end_check(result)\n\nEnds the check: 2 right, 3 wrong, 0 broken off."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject SamplesType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Samples",
    .tp_basicsize = sizeof(struct samples),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc =
        "Samples(cached, dump)\n\nThe table of samples in an attached object of a cache. dump: pickles, as that of "
        "configure().",
    .tp_new = samples_new,
    .tp_dealloc = samples_dealloc,
    .tp_methods = methods,
};
