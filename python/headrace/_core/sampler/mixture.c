/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of sources, as a _core.Order. */
#include "sampler/sampler.h"

/* Reads one source from a tuple, which keeps its name. */
static int read_source(PyObject *tuple, struct hr_mixture_source *ret_source) {
    long long size;
    unsigned long long weight;
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "headrace: a source is a tuple of name, size and weight");
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "yLK:source", &ret_source->name, &size, &weight)) return -1;
    ret_source->size = size;
    ret_source->weight = weight;
    return 0;
}

static struct hr_mixture_source *read_sources(PyObject *tuple) {
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    struct hr_mixture_source *sources = PyMem_Calloc((size_t)count + 1, sizeof *sources);
    if (!sources) PyErr_NoMemory();
    for (Py_ssize_t i = 0; sources && i < count; i++)
        if (read_source(PyTuple_GET_ITEM(tuple, i), &sources[i]) < 0) {
            PyMem_Free(sources);
            return NULL;
        }
    return sources;
}

PyObject *order_mixture(PyObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"sources", "until", "length", "seed", "epoch", NULL};
    PyObject *tuple;
    int until, r;
    long long length;
    unsigned long long seed, epoch;
    (void)type;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!iLKK:mixture", names, &PyTuple_Type, &tuple, &until,
                                     &length, &seed, &epoch))
        return NULL;
    struct hr_mixture_settings settings = {(enum hr_mixture_until)until, length, seed, epoch};
    struct core_order *self = (struct core_order *)OrderType.tp_alloc(&OrderType, 0);
    struct hr_mixture_source *sources = self ? read_sources(tuple) : NULL;
    if (!sources) {
        Py_XDECREF(self);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    r = hr_mixture_new(sources, (uint32_t)PyTuple_GET_SIZE(tuple), &settings, &self->mixture);
    Py_END_ALLOW_THREADS;
    PyMem_Free(sources);
    if (r < 0) {
        Py_DECREF(self);
        return core_raise(r);
    }
    hr_order_mixture(self->mixture, &self->order);
    return (PyObject *)self;
}

/* ---- what it is ---- */

static PyObject *describe_parts(const struct hr_mixture_part *parts, Py_ssize_t count) {
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++) {
        PyObject *part =
            Py_BuildValue("ILL", (unsigned int)parts[i].share, (long long)parts[i].before, (long long)parts[i].count);
        if (part)
            PyTuple_SET_ITEM(tuple, i, part);
        else
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *order_look(PyObject *object, PyObject *ignored) {
    const hr_mixture *mixture = ((struct core_order *)object)->mixture;
    struct hr_mixture_part parts[HR_MIXTURE_SOURCES_MAX];
    struct hr_mixture_epoch epoch;
    (void)ignored;
    if (!mixture) return PyErr_Format(PyExc_ValueError, "headrace: this order is not a mixture");
    hr_mixture_look(mixture, &epoch, parts);
    PyObject *described = describe_parts(parts, epoch.source_count);
    if (!described) return NULL;
    return Py_BuildValue("LLIN", (long long)epoch.length, (long long)epoch.total, (unsigned int)epoch.period,
                         described);
}
