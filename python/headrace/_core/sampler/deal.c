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

PyObject *deal_advance(PyObject *module, PyObject *arguments) {
    long long n, position, world_size, batch_size, steps;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "LLLLL:advance", &n, &position, &world_size, &batch_size, &steps)) return NULL;
    int64_t end = hr_deal_advance(n, position, world_size, batch_size, steps);
    return end < 0 ? core_raise((int)end) : PyLong_FromLongLong(end);
}
