/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of batches, for Python. */
#include "sampler/sampler.h"

#include <string.h>

static int get_lengths(PyObject *object, Py_buffer *ret_lengths) {
    if (PyObject_GetBuffer(object, ret_lengths, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) return -1;
    const char *format = ret_lengths->format ? ret_lengths->format : "B";
    if (ret_lengths->itemsize == sizeof(int32_t) && (!strcmp(format, "i") || !strcmp(format, "l"))) return 0;
    PyErr_Format(PyExc_TypeError, "headrace: lengths are read as int32, and this buffer has format '%s'", format);
    PyBuffer_Release(ret_lengths);
    return -1;
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
    static char *names[] = {"lengths",   "width", "seed",        "epoch",          "tail",   "max_sum", "max_padded",
                            "max_batch", "pack",  "cost_linear", "cost_quadratic", "window", "buckets", NULL};
    PyObject *object, *tuple = NULL;
    long long width, max_sum = 0, max_padded = 0, max_batch = 0, pack = 0, window = 0;
    unsigned long long seed, epoch, linear = 1, quadratic = 0;
    int tail, r;
    Py_buffer lengths;
    struct hr_plan *plan = NULL;
    struct hr_bucket *buckets = NULL;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OLKKi|LLLLKKLO!:plan", names, &object, &width, &seed, &epoch,
                                     &tail, &max_sum, &max_padded, &max_batch, &pack, &linear, &quadratic, &window,
                                     &PyTuple_Type, &tuple))
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
                                        .epoch = epoch};
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
