/* SPDX-License-Identifier: Apache-2.0 */
/* Draws with replacement, for tests that compare them with torch's. */
#include "sampler/sampler.h"

#include <string.h>

PyObject *draw_indices(PyObject *module, PyObject *arguments) {
    unsigned long long seed;
    long long n;
    PyObject *object;
    Py_buffer target;
    struct hr_mt19937 generator;
    int r;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KLO:draw_indices", &seed, &n, &object)) return NULL;
    if (order_get_target(object, &target) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    hr_mt19937_seed(&generator, seed);
    r = hr_mt19937_draw(&generator, n, order_count_of(&target), target.buf);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&target);
    if (r < 0) return core_raise(r);
    Py_RETURN_NONE;
}

static int get_weights(PyObject *object, Py_buffer *ret_weights) {
    if (PyObject_GetBuffer(object, ret_weights, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) return -1;
    const char *format = ret_weights->format ? ret_weights->format : "B";
    if (!strcmp(format, "d")) return 0;
    PyErr_Format(PyExc_TypeError, "headrace: weights are read as float64, and this buffer has format '%s'", format);
    PyBuffer_Release(ret_weights);
    return -1;
}

/* `cumulative` has room for as many numbers as there are weights. */
static int draw(uint64_t seed, const Py_buffer *weights, double *cumulative, const Py_buffer *target) {
    int64_t n = weights->len / (Py_ssize_t)sizeof(double);
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, seed);
    int r = hr_weights_accumulate(weights->buf, n, cumulative);
    return r < 0 ? r : hr_weights_draw(&generator, cumulative, n, order_count_of(target), target->buf);
}

PyObject *draw_weighted(PyObject *module, PyObject *arguments) {
    unsigned long long seed;
    PyObject *weights_object, *object;
    Py_buffer weights, target;
    int r = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KOO:draw_weighted", &seed, &weights_object, &object)) return NULL;
    if (get_weights(weights_object, &weights) < 0) return NULL;
    if (order_get_target(object, &target) < 0) {
        PyBuffer_Release(&weights);
        return NULL;
    }
    double *cumulative = PyMem_RawMalloc((size_t)weights.len + 1);
    if (cumulative) {
        Py_BEGIN_ALLOW_THREADS;
        r = draw(seed, &weights, cumulative, &target);
        Py_END_ALLOW_THREADS;
    }
    PyMem_RawFree(cumulative);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&target);
    if (!cumulative) return PyErr_NoMemory();
    if (r < 0) return core_raise(r);
    Py_RETURN_NONE;
}
