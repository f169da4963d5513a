/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Recording: the file of a loader in a recording. */
#include "record/record.h"

#include <string.h>

struct recording {
    PyObject_HEAD hr_record *record;
};

static hr_record *record_of(PyObject *self) {
    return ((struct recording *)self)->record;
}

static PyObject *recording_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"path", NULL};
    PyObject *path;
    hr_record *record = NULL;
    int r;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O&:Recording", names, PyUnicode_FSConverter, &path))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_record_open(PyBytes_AS_STRING(path), &record);
    Py_END_ALLOW_THREADS;
    Py_DECREF(path);
    if (r < 0) return core_raise(r);
    struct recording *self = (struct recording *)type->tp_alloc(type, 0);
    if (self)
        self->record = record;
    else
        hr_record_close(record);
    return (PyObject *)self;
}

static void recording_dealloc(PyObject *self) {
    hr_record_close(record_of(self));
    Py_TYPE(self)->tp_free(self);
}

/* ---- what it is ---- */

/* Names and command lines may have any bytes. */
static PyObject *text_of(const char *bytes) {
    return PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)strlen(bytes), "replace");
}

static PyObject *recording_identity(PyObject *self, void *ignored) {
    const struct hr_record_identity *identity = hr_record_identity_of(record_of(self));
    (void)ignored;
    return Py_BuildValue("{s:N,s:I,s:I,s:i,s:i,s:I,s:I,s:I,s:L,s:L,s:K,s:N,s:N,s:N}", "name", text_of(identity->name),
                         "pid", identity->pid, "loader", identity->loader, "rank", identity->rank, "world_size",
                         identity->world_size, "workers", identity->worker_count, "queue_room", identity->queue_room,
                         "cores", identity->core_count, "opened_ns", (long long)identity->opened_ns, "began_ns",
                         (long long)identity->began_ns, "memory_bytes", (unsigned long long)identity->memory_bytes,
                         "host", text_of(identity->host), "command", text_of(identity->command), "version",
                         text_of(identity->version));
}

static PyObject *recording_ended(PyObject *self, void *ignored) {
    static const char *const texts[HR_RECORD_ENDS] = {"", "the job ended", "it was stopped", "disk full",
                                                      "the number of workers grew"};
    struct hr_record_info info;
    (void)ignored;
    hr_record_look(record_of(self), &info);
    return PyUnicode_FromString(texts[info.end]);
}

static PyObject *recording_ended_ns(PyObject *self, void *ignored) {
    struct hr_record_info info;
    (void)ignored;
    hr_record_look(record_of(self), &info);
    return PyLong_FromLongLong(info.ended_ns);
}

static PyObject *recording_torn(PyObject *self, void *ignored) {
    struct hr_record_info info;
    (void)ignored;
    hr_record_look(record_of(self), &info);
    return PyLong_FromUnsignedLongLong(info.torn_count);
}

/* ---- rows ---- */

/* The columns of struct hr_record_row, whose fields are 64-bit numbers. */
static const char *const row_names[] = {
    "at_ns",         "real_ns",        "length_ns",        "epoch",         "step",         "batches",
    "samples",       "bytes",          "errors",           "inside_ns",     "start_ns",     "starts",
    "wait_ns",       "pin_ns",         "draw_ns",          "rebuild_ns",    "restarts",     "bad_samples",
    "queue_count",   "used_bytes",     "cores_busy",       "cores_allowed", "throttled_ns", "memory_available",
    "used_workers",  "trainer_cpu_ns", "trainer_delay_ns", "network_ns",    "hit_count",    "wait_count",
    "fetched_bytes", "requests",       "retries"};
static const char *const worker_names[] = {"fetch_ns", "collate_ns",    "wait_ns",   "delay_ns",
                                           "cpu_ns",   "private_bytes", "network_ns"};
enum { ROW_NAMES = sizeof row_names / sizeof *row_names, WORKER_NAMES = sizeof worker_names / sizeof *worker_names };
static_assert(sizeof(struct hr_record_row) == ROW_NAMES * sizeof(int64_t), "a column for each field");
static_assert(sizeof(struct hr_record_worker) == WORKER_NAMES * sizeof(int64_t), "a column for each field");

static void put(const struct core_columns *columns, uint64_t i, const void *fields) {
    for (Py_ssize_t k = 0; k < columns->count; k++)
        memcpy(&columns->at[k][i], (const char *)fields + (size_t)k * sizeof(int64_t), sizeof(int64_t));
}

static PyObject *rows_of(const hr_record *record, enum hr_record_part part) {
    struct core_columns columns;
    struct hr_record_row row;
    uint64_t count = hr_record_count(record, part);
    if (core_columns_make(&columns, row_names, ROW_NAMES, count) < 0) return NULL;
    for (uint64_t i = 0; i < count; i++) {
        hr_record_read_row(record, part, i, &row);
        put(&columns, i, &row);
    }
    return core_columns_take(&columns);
}

static PyObject *worker_of(const hr_record *record, enum hr_record_part part, uint32_t worker) {
    struct core_columns columns;
    struct hr_record_worker numbers;
    uint64_t count = hr_record_count(record, part);
    if (core_columns_make(&columns, worker_names, WORKER_NAMES, count) < 0) return NULL;
    for (uint64_t i = 0; i < count; i++) {
        hr_record_read_worker(record, part, i, worker, &numbers);
        put(&columns, i, &numbers);
    }
    return core_columns_take(&columns);
}

static PyObject *workers_of(const hr_record *record, enum hr_record_part part) {
    uint32_t count = hr_record_identity_of(record)->worker_count;
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *dict = worker_of(record, part, i);
        if (dict)
            PyList_SET_ITEM(list, (Py_ssize_t)i, dict);
        else
            Py_CLEAR(list);
    }
    return list;
}

static enum hr_record_part part_of(void *is_minutes) {
    return is_minutes ? HR_RECORD_MINUTES : HR_RECORD_SECONDS;
}

static PyObject *recording_rows(PyObject *self, void *is_minutes) {
    return rows_of(record_of(self), part_of(is_minutes));
}

static PyObject *recording_workers(PyObject *self, void *is_minutes) {
    return workers_of(record_of(self), part_of(is_minutes));
}

/* The first moment, and that of each minute; without minutes, that of each second. */
static PyObject *recording_clocks(PyObject *self, void *ignored) {
    const hr_record *record = record_of(self);
    const struct hr_record_identity *identity = hr_record_identity_of(record);
    struct hr_record_row row;
    enum hr_record_part part = hr_record_count(record, HR_RECORD_MINUTES) ? HR_RECORD_MINUTES : HR_RECORD_SECONDS;
    PyObject *list = PyList_New(0);
    uint64_t count = hr_record_count(record, part);
    (void)ignored;
    for (uint64_t i = 0; list && i <= count; i++) {
        if (i) hr_record_read_row(record, part, i - 1, &row);
        PyObject *pair = Py_BuildValue("(LL)", (long long)(i ? row.at_ns : identity->began_ns),
                                       (long long)(i ? row.real_ns : identity->began_real_ns));
        if (!pair || PyList_Append(list, pair) < 0) Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

/* ---- times of samples ---- */

static PyObject *counts_of(const uint64_t buckets[HR_LOOK_BUCKETS]) {
    PyObject *list = PyList_New(HR_LOOK_BUCKETS);
    for (int i = 0; list && i < HR_LOOK_BUCKETS; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(buckets[i]);
        if (number)
            PyList_SET_ITEM(list, i, number);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *recording_histograms(PyObject *self, void *ignored) {
    const hr_record *record = record_of(self);
    struct hr_record_hour hour;
    uint64_t count = hr_record_count(record, HR_RECORD_HOURS);
    PyObject *list = PyList_New((Py_ssize_t)count);
    (void)ignored;
    for (uint64_t i = 0; list && i < count; i++) {
        hr_record_read_hour(record, i, &hour);
        PyObject *tuple =
            Py_BuildValue("(LNN)", (long long)hour.at_ns, counts_of(hour.samples), counts_of(hour.collates));
        if (tuple)
            PyList_SET_ITEM(list, (Py_ssize_t)i, tuple);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *recording_slowest(PyObject *self, void *ignored) {
    const hr_record *record = record_of(self);
    struct hr_record_sample sample;
    uint64_t count = hr_record_count(record, HR_RECORD_SAMPLES);
    PyObject *list = PyList_New((Py_ssize_t)count);
    (void)ignored;
    for (uint64_t i = 0; list && i < count; i++) {
        hr_record_read_sample(record, i, &sample);
        PyObject *tuple = Py_BuildValue("(KKIL)", (unsigned long long)sample.ns, (unsigned long long)sample.index,
                                        sample.worker, (long long)sample.began_ns);
        if (tuple)
            PyList_SET_ITEM(list, (Py_ssize_t)i, tuple);
        else
            Py_CLEAR(list);
    }
    return list;
}

/* ---- batches and steps ---- */

static const char *const batch_names[] = {"worker",     "number", "task",          "began_ns",  "fetch_ns",
                                          "collate_ns", "bytes",  "slowest_index", "slowest_ns"};
static const char *const step_names[] = {"at_ns", "epoch", "step", "inside_us"};
enum { BATCH_NAMES = sizeof batch_names / sizeof *batch_names, STEP_NAMES = sizeof step_names / sizeof *step_names };

static PyObject *recording_batches(PyObject *self, void *ignored) {
    const hr_record *record = record_of(self);
    struct core_columns columns;
    struct hr_record_batch batch;
    uint64_t count = hr_record_count(record, HR_RECORD_BATCHES);
    (void)ignored;
    if (core_columns_make(&columns, batch_names, BATCH_NAMES, count) < 0) return NULL;
    for (uint64_t i = 0; i < count; i++) {
        hr_record_read_batch(record, i, &batch);
        const struct hr_batch_look *look = &batch.look;
        put(&columns, i,
            (const uint64_t[BATCH_NAMES]){batch.worker, look->number, look->task, look->began_ns, look->fetch_ns,
                                          look->collate_ns, look->bytes, look->slowest_index, look->slowest_ns});
    }
    return core_columns_take(&columns);
}

static PyObject *recording_steps(PyObject *self, void *ignored) {
    const hr_record *record = record_of(self);
    struct core_columns columns;
    struct hr_record_step step;
    uint64_t count = hr_record_count(record, HR_RECORD_STEPS);
    (void)ignored;
    if (core_columns_make(&columns, step_names, STEP_NAMES, count) < 0) return NULL;
    for (uint64_t i = 0; i < count; i++) {
        hr_record_read_step(record, i, &step);
        int64_t inside_us = step.inside_us == HR_LOOK_NO_STEP ? CORE_NO_STEP : (int64_t)step.inside_us;
        put(&columns, i, (const int64_t[STEP_NAMES]){step.at_ns, (int64_t)step.epoch, (int64_t)step.step, inside_us});
    }
    return core_columns_take(&columns);
}

static int is_minutes;

static PyGetSetDef properties[] = {
    {"identity", recording_identity, NULL, "Which loader it is: a dict of the fields of struct hr_record_identity.",
     NULL},
    {"ended", recording_ended, NULL, "Why it ends; empty: the recorder still runs, or was killed.", NULL},
    {"ended_ns", recording_ended_ns, NULL, "When it ended, of CLOCK_MONOTONIC; 0: not known.", NULL},
    {"torn", recording_torn, NULL, "Entries that were left out because their checksum is wrong.", NULL},
    {"clocks", recording_clocks, NULL, "Pairs of the same moment on CLOCK_MONOTONIC and CLOCK_REALTIME, oldest first.",
     NULL},
    {"seconds", recording_rows, NULL, "The columns of struct hr_record_row, a second each: memoryviews of int64.",
     NULL},
    {"minutes", recording_rows, NULL, "The same, a minute each.", &is_minutes},
    {"second_workers", recording_workers, NULL,
     "For each worker, the columns of struct hr_record_worker, as long as those of seconds.", NULL},
    {"minute_workers", recording_workers, NULL, "The same, as long as those of minutes.", &is_minutes},
    {"histograms", recording_histograms, NULL,
     "For each hour its begin, and counts of the times of samples and of collating: bucket n is from 2**n ns on.",
     NULL},
    {"slowest", recording_slowest, NULL,
     "The slowest samples, slowest first: nanoseconds, index, worker, and when the batch was begun.", NULL},
    {"batches", recording_batches, NULL, "Columns of the last batches whose phases were timed.", NULL},
    {"steps", recording_steps, NULL, "Columns of the last steps; inside_us is NO_STEP for the first one of an epoch.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject RecordingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Recording",
    .tp_basicsize = sizeof(struct recording),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Recording(path)\n\nThe file of a loader in a recording (headrace/record.h), read and checked. All of "
              "its properties make new objects. Raises OSError, ValueError and RuntimeError.",
    .tp_new = recording_new,
    .tp_dealloc = recording_dealloc,
    .tp_getset = properties,
};
