/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of batches, for Python. */
#include "sampler/sampler.h"

#include <string.h>

/* Reads a buffer of items of 32 bits whose format is one of two. */
static int get_items(PyObject *object, const char *what, char format, char other, Py_buffer *ret_items) {
    if (PyObject_GetBuffer(object, ret_items, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) return -1;
    const char *found = ret_items->format ? ret_items->format : "B";
    bool is_right = strlen(found) == 1 && (*found == format || *found == other);
    if (ret_items->itemsize == sizeof(int32_t) && is_right) return 0;
    PyErr_Format(PyExc_TypeError, "headrace: %s, and this buffer has format '%s'", what, found);
    PyBuffer_Release(ret_items);
    return -1;
}

static int get_lengths(PyObject *object, Py_buffer *ret_lengths) {
    return get_items(object, "lengths are read as int32", 'i', 'l', ret_lengths);
}

/* Reads a tuple of pairs (longest, batch_size). The caller frees the array with PyMem_Free. */
static int get_buckets(PyObject *tuple, struct hr_plan_settings *settings, struct hr_bucket **ret_buckets) {
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    struct hr_bucket *buckets = PyMem_Calloc((size_t)count + 1, sizeof *buckets);
    if (!buckets) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        long long longest, batch_size;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "LL:bucket", &longest, &batch_size)) {
            PyMem_Free(buckets);
            return -1;
        }
        buckets[i] = (struct hr_bucket){longest, batch_size};
    }
    settings->buckets = buckets;
    settings->bucket_count = count;
    *ret_buckets = buckets;
    return 0;
}

static PyObject *result_of(struct hr_plan *plan) {
    PyObject *result = Py_BuildValue(
        "y#y#L", (const char *)plan->entries, (Py_ssize_t)plan->entry_count * (Py_ssize_t)sizeof *plan->entries,
        (const char *)plan->starts, (Py_ssize_t)(plan->batch_count + 1) * (Py_ssize_t)sizeof *plan->starts,
        (long long)plan->repeat_count);
    hr_plan_free(plan);
    return result;
}

PyObject *make_plan(PyObject *module, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"lengths",        "width",      "seed",      "epoch", "tail",
                            "max_sum",        "max_padded", "max_batch", "pack",  "cost_linear",
                            "cost_quadratic", "window",     "buckets",   "ranks", NULL};
    PyObject *object, *tuple = NULL;
    long long width, max_sum = 0, max_padded = 0, max_batch = 0, pack = 0, window = 0, ranks = 0;
    unsigned long long seed, epoch, linear = 1, quadratic = 0;
    int tail, r;
    Py_buffer lengths;
    struct hr_plan *plan = NULL;
    struct hr_bucket *buckets = NULL;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OLKKi|LLLLKKLO!L:plan", names, &object, &width, &seed,
                                     &epoch, &tail, &max_sum, &max_padded, &max_batch, &pack, &linear, &quadratic,
                                     &window, &PyTuple_Type, &tuple, &ranks))
        return NULL;
    struct hr_plan_settings settings = {.width = width,
                                        .max_sum = max_sum,
                                        .max_padded = max_padded,
                                        .max_batch = max_batch,
                                        .pack = pack,
                                        .window = window,
                                        .cost_linear = linear,
                                        .cost_quadratic = quadratic,
                                        .tail = (enum hr_plan_tail)tail,
                                        .seed = seed,
                                        .epoch = epoch,
                                        .ranks = ranks};
    if (tuple && get_buckets(tuple, &settings, &buckets) < 0) return NULL;
    if (get_lengths(object, &lengths) < 0) {
        PyMem_Free(buckets);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    r = hr_plan_new(lengths.buf, lengths.len / (Py_ssize_t)sizeof(int32_t), &settings, &plan);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&lengths);
    PyMem_Free(buckets);
    return r < 0 ? core_raise(r) : result_of(plan);
}

/* ---- several lengths ---- */

/* The lengths of the samples, with the buffers that they are in. */
struct several {
    Py_buffer buffers[HR_PLAN_LENGTHS_MAX], costs;
    struct hr_plan_length lengths[HR_PLAN_LENGTHS_MAX];
    int count;
    bool has_costs;
};

static void release(struct several *several) {
    for (int i = 0; i < several->count; i++) PyBuffer_Release(&several->buffers[i]);
    if (several->has_costs) PyBuffer_Release(&several->costs);
}

/* Reads a tuple (values, max_sum, max_padded, pack, cost_linear, cost_quadratic). */
static int add_length(struct several *several, PyObject *tuple) {
    PyObject *values;
    long long max_sum, max_padded, pack;
    unsigned long long linear, quadratic;
    Py_buffer *buffer = &several->buffers[several->count];
    if (!PyArg_ParseTuple(tuple, "OLLLKK:length", &values, &max_sum, &max_padded, &pack, &linear, &quadratic))
        return -1;
    if (get_lengths(values, buffer) < 0) return -1;
    several->lengths[several->count++] = (struct hr_plan_length){.values = buffer->buf,
                                                                 .max_sum = max_sum,
                                                                 .max_padded = max_padded,
                                                                 .pack = pack,
                                                                 .cost_linear = linear,
                                                                 .cost_quadratic = quadratic};
    if (buffer->len == several->buffers[0].len) return 0;
    PyErr_SetString(PyExc_ValueError, "headrace: the lengths of a sample are arrays of different sizes");
    return -1;
}

static int get_several(PyObject *tuple, PyObject *costs, struct several *several) {
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    if (count < 1 || count > HR_PLAN_LENGTHS_MAX) {
        PyErr_Format(PyExc_ValueError, "headrace: %zd lengths of a sample; give 1 to %d", count, HR_PLAN_LENGTHS_MAX);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (add_length(several, PyTuple_GET_ITEM(tuple, i)) < 0) return -1;
    if (costs == Py_None) return 0;
    if (get_items(costs, "costs are read as uint32", 'I', 'L', &several->costs) < 0) return -1;
    several->has_costs = true;
    if (several->costs.len == several->buffers[0].len) return 0;
    PyErr_SetString(PyExc_ValueError,
                    "headrace: the costs and the lengths of the samples are arrays of different sizes");
    return -1;
}

PyObject *make_plan_several(PyObject *module, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"lengths", "width", "seed", "epoch", "tail", "max_batch", "window", "costs", "ranks", NULL};
    PyObject *tuple, *costs = Py_None;
    long long width, max_batch = 0, window = 0, ranks = 0;
    unsigned long long seed, epoch;
    struct several several = {.count = 0};
    struct hr_plan *plan = NULL;
    int tail, r;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!LKKi|LLOL:plan_several", names, &PyTuple_Type, &tuple,
                                     &width, &seed, &epoch, &tail, &max_batch, &window, &costs, &ranks))
        return NULL;
    struct hr_plan_settings settings = {.width = width,
                                        .max_batch = max_batch,
                                        .window = window,
                                        .tail = (enum hr_plan_tail)tail,
                                        .seed = seed,
                                        .epoch = epoch,
                                        .ranks = ranks};
    if (get_several(tuple, costs, &several) < 0) {
        release(&several);
        return NULL;
    }
    int64_t count = several.buffers[0].len / (Py_ssize_t)sizeof(int32_t);
    Py_BEGIN_ALLOW_THREADS;
    r = hr_plan_new_several(several.lengths, several.count, several.has_costs ? several.costs.buf : NULL, count,
                            &settings, &plan);
    Py_END_ALLOW_THREADS;
    release(&several);
    return r < 0 ? core_raise(r) : result_of(plan);
}
