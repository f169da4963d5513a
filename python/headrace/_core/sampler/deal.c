/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a rank, for Python. */
#include "sampler/sampler.h"

PyObject *deal_rank(PyObject *module, PyObject *arguments) {
    long long n, position, world_size, rank;
    int drop_last;
    struct hr_deal deal;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "LLLLp:deal", &n, &position, &world_size, &rank, &drop_last)) return NULL;
    int r = hr_deal_rank(n, position, world_size, rank, drop_last, &deal);
    if (r < 0) return core_raise(r);
    return Py_BuildValue("LLLL", (long long)deal.first, (long long)deal.step, (long long)deal.count,
                         (long long)deal.once);
}

static int deal_between(const Py_buffer *table, const Py_buffer *target, int64_t world_size, int64_t machine_ranks) {
    int r;
    if (table->len != target->len) {
        PyErr_SetString(PyExc_ValueError, "headrace: the two tables of indices have different lengths");
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS;
    r = hr_deal_machines(table->buf, table->len / (Py_ssize_t)sizeof(int64_t), world_size, machine_ranks, target->buf);
    Py_END_ALLOW_THREADS;
    if (r < 0) core_raise(r);
    return r;
}

PyObject *deal_machines(PyObject *module, PyObject *arguments) {
    PyObject *given, *made;
    long long world_size, machine_ranks;
    Py_buffer table, target;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OLLO:deal_machines", &given, &world_size, &machine_ranks, &made)) return NULL;
    if (get_indices(given, PyBUF_CONTIG_RO, &table) < 0) return NULL;
    int r = get_indices(made, PyBUF_CONTIG, &target);
    if (r == 0) {
        r = deal_between(&table, &target, world_size, machine_ranks);
        PyBuffer_Release(&target);
    }
    PyBuffer_Release(&table);
    if (r < 0) return NULL;
    Py_RETURN_NONE;
}

PyObject *deal_advance(PyObject *module, PyObject *arguments) {
    long long n, position, world_size, batch_size, steps;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "LLLLL:advance", &n, &position, &world_size, &batch_size, &steps)) return NULL;
    int64_t end = hr_deal_advance(n, position, world_size, batch_size, steps);
    return end < 0 ? core_raise((int)end) : PyLong_FromLongLong(end);
}
