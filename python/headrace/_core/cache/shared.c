/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/cache.h"

#include <errno.h>
#include <stddef.h>

/* _core.Shared: an array that several processes write (headrace/cache_shared.h), and _core.SharedLock, a lock of it. */

enum { FEW = 1024 }; /* so many elements are changed without releasing the GIL */

struct shared {
    PyObject_HEAD hr_shared *shared;
    PyObject *cached; /* has the claim */
    PyObject *tell;   /* callable: (name, [(pid, is_visible), ...]), when a lock outlived its holder */
    PyObject *weakrefs;
};

struct lock {
    PyObject_HEAD struct shared *owner;
    uint64_t first_row, row_count;
    double timeout_s; /* negative: none */
    struct hr_shared_hold hold;
    bool is_held;
};

/* ---- the lock ---- */

/* Lets signal handlers run while the lock is waited for without the GIL. */
static int look(void *context) {
    PyThreadState **state = context;
    PyEval_RestoreThread(*state);
    int r = PyErr_CheckSignals();
    *state = PyEval_SaveThread();
    return r < 0;
}

/* Another thread may have the same object meanwhile, so its hold is not touched. */
static int take(const struct lock *self, struct hr_shared_hold *ret_hold) {
    hr_shared *shared = self->owner->shared;
    int r = hr_shared_lock(shared, self->first_row, self->row_count, NULL, ret_hold);
    if (r != -EAGAIN) return r;
    int64_t now_ns = core_now_ns(), limit_ns = core_ns_of(self->timeout_s);
    bool is_endless = self->timeout_s < 0 || limit_ns > INT64_MAX - now_ns;
    PyThreadState *state = PyEval_SaveThread();
    struct hr_shared_wait wait = {
        .deadline_ns = is_endless ? HR_NO_DEADLINE : now_ns + limit_ns, .look = look, .context = &state};
    r = hr_shared_lock(shared, self->first_row, self->row_count, &wait, ret_hold);
    PyEval_RestoreThread(state);
    return r;
}

static PyObject *list_dead(const struct hr_shared_hold *hold) {
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < hold->dead_count; i++) {
        PyObject *one = Py_BuildValue("(IO)", hold->dead[i].pid, hold->dead[i].is_visible ? Py_True : Py_False);
        if (!one || PyList_Append(list, one) < 0) Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return list;
}

static int tell_dead(struct lock *self) {
    struct hr_cached_info info;
    cached_look(self->owner->cached, &info);
    PyObject *dead = list_dead(&self->hold);
    PyObject *told = dead ? PyObject_CallFunction(self->owner->tell, "sO", info.name, dead) : NULL;
    Py_XDECREF(dead);
    Py_XDECREF(told);
    return told ? 0 : -1;
}

static PyObject *lock_enter(PyObject *object, PyObject *ignored) {
    struct lock *self = (struct lock *)object;
    (void)ignored;
    if (self->is_held) return PyErr_Format(CacheError, "cache: this lock is held already; make another one");
    struct hr_shared_hold hold;
    int r = take(self, &hold);
    if (r == -EINTR && PyErr_Occurred()) return NULL;
    if (r < 0) return cache_raise(r);
    self->hold = hold;
    self->is_held = true;
    if (hold.dead_count == 0 || tell_dead(self) == 0) return Py_NewRef(object);
    self->is_held = false; /* warnings are errors, and the body of the with statement, which may repair, will not run */
    hr_shared_give_back(self->owner->shared, &hold);
    return NULL;
}

static PyObject *lock_exit(PyObject *object, PyObject *const *ignored, Py_ssize_t count) {
    struct lock *self = (struct lock *)object;
    (void)ignored, (void)count;
    if (!self->is_held) return PyErr_Format(CacheError, "cache: this lock is not held");
    self->is_held = false;
    int r = hr_shared_unlock(self->owner->shared, &self->hold);
    return cache_none_or_raise(r);
}

static void lock_dealloc(PyObject *object) {
    struct lock *self = (struct lock *)object;
    if (self->is_held) hr_shared_unlock(self->owner->shared, &self->hold);
    Py_DECREF(self->owner);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *lock_recovered(PyObject *object, void *ignored) {
    (void)ignored;
    return PyBool_FromLong(((struct lock *)object)->hold.dead_count != 0);
}

static PyObject *lock_dead(PyObject *object, void *ignored) {
    (void)ignored;
    return list_dead(&((struct lock *)object)->hold);
}

static PyMethodDef lock_methods[] = {
    {"__enter__", lock_enter, METH_NOARGS,
     "__enter__() -> SharedLock\n\nTakes the lock. Raises TimeoutError, and CacheError if this thread has one."},
    {"__exit__", (PyCFunction)(void (*)(void))lock_exit, METH_FASTCALL, "__exit__(*ignored)\n\nEnds the lock."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lock_attributes[] = {
    {"recovered", lock_recovered, NULL, "True if its last holder died with it, so that the data may be half changed.",
     NULL},
    {"dead", lock_dead, NULL, "(pid, is_visible) of each holder that died with it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject SharedLockType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.SharedLock",
    .tp_basicsize = sizeof(struct lock),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "A lock of a shared array, for a with statement. Shared.lock makes it.",
    .tp_dealloc = lock_dealloc,
    .tp_methods = lock_methods,
    .tp_getset = lock_attributes,
};

/* ---- making a lock ---- */

static int read_timeout(PyObject *timeout, double *ret_s) {
    *ret_s = -1;
    if (timeout == Py_None) return 0;
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds >= 0) {
        *ret_s = seconds;
        return 0;
    }
    bool is_number = !PyErr_Occurred();
    if (!is_number && !PyErr_ExceptionMatches(PyExc_TypeError)) return -1;
    PyErr_Format(is_number ? PyExc_ValueError : PyExc_TypeError,
                 "cache: the timeout of a lock is %R; give 0 or more seconds, or None", timeout);
    return -1;
}

static int read_rows(const struct shared *self, PyObject *rows, uint64_t *ret_first, uint64_t *ret_count) {
    struct hr_shared_info info;
    Py_ssize_t first, stop, step;
    *ret_first = 0;
    *ret_count = HR_SHARED_ALL;
    if (rows == Py_None) return 0;
    if (!PySlice_Check(rows)) {
        PyErr_Format(PyExc_TypeError, "cache: the rows of a lock are a slice, such as slice(0, 1000), not %R", rows);
        return -1;
    }
    hr_shared_look(self->shared, &info);
    if (PySlice_Unpack(rows, &first, &stop, &step) < 0) return -1;
    Py_ssize_t count = PySlice_AdjustIndices((Py_ssize_t)info.row_count, &first, &stop, step);
    if (step != 1 || count == 0) {
        PyErr_Format(PyExc_ValueError,
                     "cache: the rows of a lock are %R, of an array of %llu rows; give one or more rows without a step",
                     rows, (unsigned long long)info.row_count);
        return -1;
    }
    *ret_first = (uint64_t)first;
    *ret_count = (uint64_t)count;
    return 0;
}

/* lock(timeout=None, rows=None): parsed by hand, because this is most of what a free lock costs. */
static int read_arguments(PyObject *const *values, Py_ssize_t count, PyObject *names, PyObject **ret_timeout,
                          PyObject **ret_rows) {
    PyObject **const places[] = {ret_timeout, ret_rows};
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    if (count > 2) {
        PyErr_Format(PyExc_TypeError, "lock takes a timeout and rows, not %zd values", count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) *places[i] = values[i];
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        bool is_rows = PyUnicode_CompareWithASCIIString(name, "rows") == 0;
        if ((!is_rows && PyUnicode_CompareWithASCIIString(name, "timeout") != 0) || count > is_rows) {
            PyErr_Format(PyExc_TypeError, "lock takes timeout= and rows= once each, not %R", name);
            return -1;
        }
        *places[is_rows] = values[count + i];
    }
    return 0;
}

static PyObject *shared_lock(PyObject *object, PyObject *const *values, Py_ssize_t count, PyObject *names) {
    struct shared *self = (struct shared *)object;
    PyObject *timeout = Py_None, *rows = Py_None;
    double timeout_s;
    uint64_t first, row_count;
    if (read_arguments(values, count, names, &timeout, &rows) < 0 || read_timeout(timeout, &timeout_s) < 0 ||
        read_rows(self, rows, &first, &row_count) < 0)
        return NULL;
    struct lock *lock = (struct lock *)SharedLockType.tp_alloc(&SharedLockType, 0);
    if (!lock) return NULL;
    lock->owner = (struct shared *)Py_NewRef(object);
    lock->first_row = first;
    lock->row_count = row_count;
    lock->timeout_s = timeout_s;
    return (PyObject *)lock;
}

/* ---- elements ---- */

typedef int (*change)(hr_shared *shared, const uint64_t *elements, uint64_t count, const void *values, int is_one,
                      void *ret_before);

static int check_sizes(const struct shared *self, const Py_buffer *elements, const Py_buffer *values, int is_one,
                       const Py_buffer *before) {
    struct hr_shared_info info;
    hr_shared_look(self->shared, &info);
    uint64_t count = (uint64_t)elements->len / sizeof(uint64_t), bytes = count * info.element_bytes;
    bool fits = (uint64_t)elements->len % sizeof(uint64_t) == 0 && (uint64_t)before->len == bytes &&
                (uint64_t)values->len == (is_one ? info.element_bytes : bytes);
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "cache: the elements, the values and the result differ in their sizes");
    return fits ? 0 : -1;
}

static PyObject *change_elements(struct shared *self, PyObject *arguments, change call) {
    Py_buffer elements, values, before;
    int is_one, r = 0;
    if (!PyArg_ParseTuple(arguments, "y*y*pw*", &elements, &values, &is_one, &before)) return NULL;
    int is_wrong = check_sizes(self, &elements, &values, is_one, &before);
    uint64_t count = (uint64_t)elements.len / sizeof(uint64_t);
    if (!is_wrong && count <= FEW)
        r = call(self->shared, elements.buf, count, values.buf, is_one, before.buf);
    else if (!is_wrong) {
        Py_BEGIN_ALLOW_THREADS;
        r = call(self->shared, elements.buf, count, values.buf, is_one, before.buf);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&elements);
    PyBuffer_Release(&values);
    PyBuffer_Release(&before);
    if (is_wrong) return NULL;
    return cache_none_or_raise(r);
}

static PyObject *shared_add(PyObject *self, PyObject *arguments) {
    return change_elements((struct shared *)self, arguments, hr_shared_add);
}

static PyObject *shared_maximum(PyObject *self, PyObject *arguments) {
    return change_elements((struct shared *)self, arguments, hr_shared_maximum);
}

/* ---- the array ---- */

static PyObject *shared_flush(PyObject *self, PyObject *ignored) {
    int r;
    (void)ignored;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_shared_flush(((struct shared *)self)->shared);
    Py_END_ALLOW_THREADS;
    return cache_none_or_raise(r);
}

static PyObject *shared_plan(PyObject *self, PyObject *ignored) {
    struct hr_shared_info info;
    (void)ignored;
    hr_shared_look(((struct shared *)self)->shared, &info);
    PyObject *shape = PyTuple_New(info.plan.dimension_count);
    for (uint32_t i = 0; shape && i < info.plan.dimension_count; i++) {
        PyObject *size = PyLong_FromUnsignedLongLong(info.plan.dimensions[i]);
        if (!size)
            Py_CLEAR(shape);
        else
            PyTuple_SET_ITEM(shape, i, size);
    }
    return shape ? Py_BuildValue("(sNI)", info.plan.dtype, shape, info.stripe_count) : NULL;
}

static PyObject *shared_address(PyObject *self, void *ignored) {
    struct hr_shared_info info;
    (void)ignored;
    hr_shared_look(((struct shared *)self)->shared, &info);
    return PyLong_FromVoidPtr(info.data);
}

static int shared_get_buffer(PyObject *self, Py_buffer *view, int flags) {
    struct hr_shared_info info;
    hr_shared_look(((struct shared *)self)->shared, &info);
    return PyBuffer_FillInfo(view, self, info.data, (Py_ssize_t)info.bytes, 0, flags);
}

static PyObject *shared_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *cached, *tell;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O!O:Shared", &CachedType, &cached, &tell)) return NULL;
    struct shared *self = (struct shared *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->cached = Py_NewRef(cached);
    self->tell = Py_NewRef(tell);
    int r = hr_shared_open(cached_of(cached), &self->shared);
    if (r == 0) return (PyObject *)self;
    cache_raise(r);
    Py_DECREF(self);
    return NULL;
}

static void shared_dealloc(PyObject *object) {
    struct shared *self = (struct shared *)object;
    if (self->weakrefs) PyObject_ClearWeakRefs(object);
    hr_shared_close(self->shared);
    Py_XDECREF(self->tell);
    Py_XDECREF(self->cached);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef methods[] = {
    {"lock", (PyCFunction)(void (*)(void))shared_lock, METH_FASTCALL | METH_KEYWORDS,
     "lock(timeout=None, rows=None) -> SharedLock\n\nReturns a lock, which a with statement takes. timeout: seconds. "
     "rows: a slice of the first dimension; None: all."},
    {"add", shared_add, METH_VARARGS,
     "add(elements, values, is_one, before)\n\nAdds to elements without a lock; all are buffers. before gets the old "
     "values."},
    {"maximum", shared_maximum, METH_VARARGS,
     "maximum(elements, values, is_one, before)\n\nThe same, but keeps the larger one of the element and the value."},
    {"flush", shared_flush, METH_NOARGS, "flush()\n\nWrites what was changed to the disk."},
    {"plan", shared_plan, METH_NOARGS, "plan() -> (dtype, shape, stripes)\n\nReturns what the array is."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"address", shared_address, NULL, "Where the elements are mapped.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyBufferProcs buffer = {.bf_getbuffer = shared_get_buffer};

PyTypeObject SharedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Shared",
    .tp_basicsize = sizeof(struct shared),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Shared(cached, tell)\n\nAn array that several processes write, in an attached object of a cache; its "
              "elements as a writable buffer. tell: is called when a lock outlived its holder.",
    .tp_new = shared_new,
    .tp_dealloc = shared_dealloc,
    .tp_weaklistoffset = offsetof(struct shared, weakrefs),
    .tp_as_buffer = &buffer,
    .tp_methods = methods,
    .tp_getset = attributes,
};

/* ---- making an array ---- */

static int read_shape(PyObject *shape, struct hr_shared_plan *plan) {
    Py_ssize_t count = PyTuple_Size(shape);
    if (count < 0) return -1;
    plan->dimension_count = (uint32_t)(count < INT32_MAX ? count : INT32_MAX);
    for (Py_ssize_t i = 0; i < count && i < HR_SHARED_MAX_DIMENSIONS; i++) {
        plan->dimensions[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(shape, i));
        if (PyErr_Occurred()) return -1;
    }
    return 0;
}

PyObject *cache_build_shared(PyObject *self, PyObject *arguments) {
    struct hr_shared_plan plan = {0};
    const char *dtype;
    PyObject *shape;
    Py_buffer fill;
    int r;
    hr_cache_build *build = cache_build_of(self);
    if (!build || !PyArg_ParseTuple(arguments, "sOy*:shared", &dtype, &shape, &fill)) return NULL;
    PyOS_snprintf(plan.dtype, sizeof plan.dtype, "%s", dtype); /* one that is cut is not allowed, either */
    unsigned char element[16] = {0};
    memcpy(element, fill.buf, fill.len < (Py_ssize_t)sizeof element ? (size_t)fill.len : sizeof element);
    PyBuffer_Release(&fill);
    if (read_shape(shape, &plan) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_shared_build(build, &plan, element);
    Py_END_ALLOW_THREADS;
    return cache_none_or_raise(r);
}
