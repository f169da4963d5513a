/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Order: an order and its table or mixture. */
#include "sampler/sampler.h"

#include <string.h>

enum { QUICK = 1024 }; /* so many indices are made without releasing the GIL */

const struct hr_order *order_of(PyObject *self) {
    return &((struct core_order *)self)->order;
}

static void order_dealloc(PyObject *self) {
    PyMem_RawFree(((struct core_order *)self)->table);
    hr_mixture_free(((struct core_order *)self)->mixture);
    Py_TYPE(self)->tp_free(self);
}

static struct core_order *new_order(void) {
    return (struct core_order *)OrderType.tp_alloc(&OrderType, 0);
}

/* Returns the order, or raises the exception of a negative code and releases it. */
static PyObject *finish(struct core_order *self, int code) {
    if (code >= 0) return (PyObject *)self;
    Py_DECREF(self);
    return core_raise(code);
}

/* ---- making one ---- */

static PyObject *order_sequential(PyObject *type, PyObject *arguments) {
    long long n;
    (void)type;
    if (!PyArg_ParseTuple(arguments, "L:sequential", &n)) return NULL;
    struct core_order *self = new_order();
    return self ? finish(self, hr_order_sequential(n, &self->order)) : NULL;
}

static PyObject *order_stream(PyObject *type, PyObject *arguments) {
    long long n;
    unsigned long long seed, epoch;
    (void)type;
    if (!PyArg_ParseTuple(arguments, "LKK:stream", &n, &seed, &epoch)) return NULL;
    struct core_order *self = new_order();
    return self ? finish(self, hr_order_stream(n, seed, epoch, &self->order)) : NULL;
}

static PyObject *order_machines(PyObject *type, PyObject *arguments) {
    long long n, world_size, machine_ranks;
    unsigned long long seed, epoch;
    int is_shuffled;
    (void)type;
    if (!PyArg_ParseTuple(arguments, "LLLpKK:machines", &n, &world_size, &machine_ranks, &is_shuffled, &seed, &epoch))
        return NULL;
    struct core_order *self = new_order();
    return self ? finish(self, hr_order_machines(n, world_size, machine_ranks, is_shuffled, seed, epoch, &self->order))
                : NULL;
}

static int need_table(struct core_order *self, int64_t n, int item_bytes) {
    if (n <= PY_SSIZE_T_MAX / item_bytes) self->table = PyMem_RawMalloc(n > 0 ? (size_t)n * (size_t)item_bytes : 1);
    if (self->table) return 0;
    PyErr_Format(PyExc_MemoryError,
                 "headrace: no memory for torch's order of %lld samples, which is a table of %d bytes for each; "
                 "kind=\"stream\" needs no table",
                 (long long)n, item_bytes);
    return -1;
}

static int permute(void *table, int64_t n, int item_bytes, uint64_t seed) {
    struct hr_mt19937 generator;
    hr_mt19937_seed(&generator, seed);
    return item_bytes == 4 ? hr_mt19937_permute_int32(&generator, n, table)
                           : hr_mt19937_permute_int64(&generator, n, table);
}

static void keep(struct core_order *self, const struct hr_deal *deal, int64_t n, int item_bytes) {
    if (item_bytes == 4)
        hr_deal_keep_int32(deal, n, self->table);
    else
        hr_deal_keep_int64(deal, n, self->table);
    void *smaller = PyMem_RawRealloc(self->table, deal->count ? (size_t)deal->count * (size_t)item_bytes : 1);
    if (smaller) self->table = smaller;
}

/* Sets the table to the indices that a rank gets of torch's permutation of n. */
static int fill_table(struct core_order *self, int64_t n, int item_bytes, uint64_t seed, const struct hr_deal *deal) {
    int r;
    if (need_table(self, n, item_bytes) < 0) return -1;
    Py_BEGIN_ALLOW_THREADS;
    r = permute(self->table, n, item_bytes, seed);
    if (r == 0 && deal->count < n) keep(self, deal, n, item_bytes);
    Py_END_ALLOW_THREADS;
    if (r == 0)
        r = item_bytes == 4 ? hr_order_int32(deal->count, self->table, &self->order)
                            : hr_order_int64(deal->count, self->table, &self->order);
    if (r < 0) core_raise(r);
    return r;
}

static PyObject *order_torch(PyObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"n", "seed", "world_size", "rank", "drop_last", "position", "item_bytes", NULL};
    long long n, world_size = 1, rank = 0, position = 0;
    unsigned long long seed;
    int drop_last = 0, item_bytes = 0;
    struct hr_deal deal;
    (void)type;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "LK|LLpLi:torch", names, &n, &seed, &world_size, &rank,
                                     &drop_last, &position, &item_bytes))
        return NULL;
    if (item_bytes == 0) item_bytes = n <= (long long)INT32_MAX + 1 ? 4 : 8;
    if (item_bytes != 4 && item_bytes != 8)
        return PyErr_Format(PyExc_ValueError, "headrace: item_bytes is %d; give 4 or 8", item_bytes);
    int r = hr_deal_rank(n, position, world_size, rank, drop_last, &deal);
    if (r < 0) return core_raise(r);
    struct core_order *self = new_order();
    if (self && fill_table(self, n, item_bytes, seed, &deal) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

/* ---- reading it ---- */

static PyObject *order_at(PyObject *self, PyObject *argument) {
    long long position = PyLong_AsLongLong(argument);
    if (position == -1 && PyErr_Occurred()) return NULL;
    int64_t index = hr_order_at(order_of(self), position);
    return index < 0 ? core_raise((int)index) : PyLong_FromLongLong(index);
}

static PyObject *order_find(PyObject *self, PyObject *argument) {
    long long index = PyLong_AsLongLong(argument);
    int64_t position;
    if (index == -1 && PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    position = hr_order_find(order_of(self), index);
    Py_END_ALLOW_THREADS;
    return position < 0 ? core_raise((int)position) : PyLong_FromLongLong(position);
}

int get_indices(PyObject *object, int flags, Py_buffer *ret_buffer) {
    if (PyObject_GetBuffer(object, ret_buffer, flags | PyBUF_FORMAT) < 0) return -1;
    const char *format = ret_buffer->format ? ret_buffer->format : "B";
    if (ret_buffer->itemsize == sizeof(int64_t) && (!strcmp(format, "l") || !strcmp(format, "q"))) return 0;
    PyErr_Format(PyExc_TypeError, "headrace: indices are int64, and this buffer has format '%s'", format);
    PyBuffer_Release(ret_buffer);
    return -1;
}

static PyObject *order_fill(PyObject *self, PyObject *arguments) {
    long long first, step;
    PyObject *object;
    Py_buffer target;
    int r;
    if (!PyArg_ParseTuple(arguments, "LLO:fill", &first, &step, &object)) return NULL;
    if (get_indices(object, PyBUF_CONTIG, &target) < 0) return NULL;
    int64_t count = target.len / (Py_ssize_t)sizeof(int64_t);
    if (count <= QUICK) {
        r = hr_order_fill(order_of(self), first, step, count, target.buf);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        r = hr_order_fill(order_of(self), first, step, count, target.buf);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&target);
    return core_none_or_raise(r);
}

static PyObject *order_iterator(PyObject *self, PyObject *arguments) {
    long long first, step, count;
    if (!PyArg_ParseTuple(arguments, "LLL:iterate", &first, &step, &count)) return NULL;
    return order_iterate(self, first, step, count);
}

static PyMethodDef methods[] = {
    {"sequential", order_sequential, METH_VARARGS | METH_STATIC,
     "sequential(n) -> Order\n\nReturns the order 0, 1, ..., n - 1."},
    {"stream", order_stream, METH_VARARGS | METH_STATIC,
     "stream(n, seed, epoch) -> Order\n\nReturns a shuffled order without a table. See hr_order_stream."},
    {"machines", order_machines, METH_VARARGS | METH_STATIC,
     "machines(n, world_size, machine_ranks, is_shuffled, seed, epoch) -> Order\n\nReturns an order in which each "
     "machine keeps its samples. See hr_order_machines."},
    {"torch", (PyCFunction)(void (*)(void))order_torch, METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "torch(n, seed, world_size=1, rank=0, drop_last=False, position=0, item_bytes=0) -> Order\n\nReturns the indices "
     "that DistributedSampler gives a rank of torch.randperm(n), from `position` on: all of them for world_size 1 and "
     "position 0. The table has 4 or 8 bytes for each, 0: 4 if they suffice. Raises MemoryError."},
    {"mixture", (PyCFunction)(void (*)(void))order_mixture, METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "mixture(sources, until, length, seed, epoch) -> Order\n\nReturns the order of a mixture. sources: a tuple of "
     "(name in UTF-8, size, weight). See hr_mixture_new."},
    {"look", order_look, METH_NOARGS,
     "look() -> (length, total, period, parts)\n\nDescribes a mixture; parts: a tuple of (share, before, count) for "
     "each source. See hr_mixture_look. Raises ValueError for another order."},
    {"at", order_at, METH_O, "at(position) -> int\n\nReturns the index at a position."},
    {"find", order_find, METH_O,
     "find(index) -> int\n\nReturns the position of an index. Raises ValueError if it is not in the order."},
    {"fill", order_fill, METH_VARARGS,
     "fill(first, step, target)\n\nWrites the indices at the positions first, first + step, ..., modulo n, to a "
     "contiguous buffer of int64, as many as it has items."},
    {"iterate", order_iterator, METH_VARARGS,
     "iterate(first, step, count) -> iterator\n\nReturns an iterator over `count` indices at the positions first, "
     "first + step, ..., modulo n, as ints."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject OrderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Order",
    .tp_basicsize = sizeof(struct core_order),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc =
        "An order of samples, which never changes. Order.sequential, stream, machines, torch and mixture make one.",
    .tp_dealloc = order_dealloc,
    .tp_methods = methods,
};
