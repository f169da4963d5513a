/* SPDX-License-Identifier: Apache-2.0 */
/* _core.BoardEntry: a loader's entry on the board. */
#include "board/board.h"

#include <errno.h>

struct core_entry {
    PyObject_HEAD PyObject *owner; /* the _core.Board */
    hr_board_entry *entry;
    unsigned long long steps_before; /* steps of the epoch before those that step and end are called with */
};

static hr_board_entry *entry_of(PyObject *self) {
    return ((struct core_entry *)self)->entry;
}

static void entry_dealloc(PyObject *self) {
    hr_board_leave(entry_of(self));
    Py_XDECREF(((struct core_entry *)self)->owner);
    Py_TYPE(self)->tp_free(self);
}

PyObject *entry_new(PyObject *owner, hr_board *board, PyObject *arguments) {
    const char *where;
    unsigned long long place;
    unsigned int rank, world_size;
    if (!PyArg_ParseTuple(arguments, "sKII:enter", &where, &place, &rank, &world_size)) return NULL;
    struct core_entry *self = (struct core_entry *)BoardEntryType.tp_alloc(&BoardEntryType, 0);
    if (!self) return NULL;
    self->owner = Py_NewRef(owner);
    int r = hr_board_enter(board, where, place, rank, world_size, &self->entry);
    return core_new_or_raise(self, r);
}

static PyObject *entry_publish(PyObject *self, PyObject *arguments) {
    long long length, steps, seed, epoch, digest, samples;
    if (!PyArg_ParseTuple(arguments, "LLLLLL:publish", &length, &steps, &seed, &epoch, &digest, &samples)) return NULL;
    struct hr_board_facts facts = {length, steps, seed, epoch, digest, samples};
    return core_none_or_raise(hr_board_publish(entry_of(self), &facts));
}

static PyObject *entry_wait(PyObject *self, PyObject *arguments) {
    unsigned int process_count;
    PyObject *seconds;
    int64_t deadline_ns;
    int r;
    if (!PyArg_ParseTuple(arguments, "IO:wait", &process_count, &seconds)) return NULL;
    if (core_deadline(seconds, &deadline_ns) < 0) return NULL;
    do {
        Py_BEGIN_ALLOW_THREADS;
        r = hr_board_await(entry_of(self), process_count, deadline_ns);
        Py_END_ALLOW_THREADS;
        if (r == -EINTR && PyErr_CheckSignals() < 0) return NULL;
    } while (r == -EINTR);
    if (r < 0 && r != -ETIMEDOUT) return core_raise(r);
    return PyBool_FromLong(r == 0);
}

static PyObject *describe_peer(const struct hr_board_peer *peer) {
    const struct hr_board_facts *facts = &peer->facts;
    return Py_BuildValue("II(LLLLLL)", peer->page, peer->rank, (long long)facts->length, (long long)facts->steps,
                         (long long)facts->seed, (long long)facts->epoch, (long long)facts->digest,
                         (long long)facts->samples);
}

static PyObject *entry_peers(PyObject *self, PyObject *ignored) {
    struct hr_board_peer peers[HR_BOARD_MAX_PROCESSES];
    (void)ignored;
    int count = hr_board_peers(entry_of(self), peers);
    PyObject *list = PyList_New(count);
    for (int i = 0; list && i < count; i++) {
        PyObject *item = describe_peer(&peers[i]);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyObject *entry_show_first(PyObject *self, PyObject *argument) {
    uint64_t digests[HR_BOARD_MAX_FIRST];
    PyObject *items = PySequence_Fast(argument, "show_first() needs a list of ints");
    if (!items) return NULL;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
    if (count > HR_BOARD_MAX_FIRST) count = HR_BOARD_MAX_FIRST;
    for (Py_ssize_t i = 0; i < count; i++)
        digests[i] = PyLong_AsUnsignedLongLongMask(PySequence_Fast_GET_ITEM(items, i));
    Py_DECREF(items);
    if (PyErr_Occurred()) return NULL;
    hr_board_show_first(entry_of(self), digests, (uint32_t)count);
    Py_RETURN_NONE;
}

static PyObject *describe_first(const struct hr_board_first *first) {
    PyObject *digests = PyList_New(first->count);
    for (uint32_t i = 0; digests && i < first->count; i++) {
        PyObject *digest = PyLong_FromUnsignedLongLong(first->digests[i]);
        if (!digest)
            Py_CLEAR(digests);
        else
            PyList_SET_ITEM(digests, i, digest);
    }
    return digests ? Py_BuildValue("IN", first->rank, digests) : NULL;
}

static PyObject *entry_first(PyObject *self, PyObject *ignored) {
    (void)ignored;
    struct hr_board_first *first = PyMem_Malloc(HR_BOARD_MAX_PROCESSES * sizeof *first);
    if (!first) return PyErr_NoMemory();
    int count = hr_board_first(entry_of(self), first);
    PyObject *list = PyList_New(count);
    for (int i = 0; list && i < count; i++) {
        PyObject *item = describe_first(&first[i]);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    PyMem_Free(first);
    return list;
}

static PyObject *entry_known(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromUnsignedLong(hr_board_known(entry_of(self)));
}

static PyObject *entry_count_from(PyObject *self, PyObject *argument) {
    unsigned long long steps = PyLong_AsUnsignedLongLong(argument);
    if (steps == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    ((struct core_entry *)self)->steps_before = steps;
    Py_RETURN_NONE;
}

static PyObject *entry_allow(PyObject *self, PyObject *argument) {
    unsigned long long difference = PyLong_AsUnsignedLongLong(argument);
    if (difference == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    hr_board_allow(entry_of(self), difference);
    Py_RETURN_NONE;
}

/* Shows steps by hr_board_step or hr_board_end. Returns (rank, steps) of another rank if it is told of one. */
static PyObject *show_steps(PyObject *self, PyObject *argument,
                            int (*show)(hr_board_entry *, uint64_t, struct hr_board_ended *)) {
    struct hr_board_ended ended;
    unsigned long long steps = PyLong_AsUnsignedLongLong(argument);
    if (steps == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    steps += ((struct core_entry *)self)->steps_before;
    if (!show(entry_of(self), steps, &ended)) Py_RETURN_NONE;
    return Py_BuildValue("IK", ended.rank, (unsigned long long)ended.steps);
}

static PyObject *entry_step(PyObject *self, PyObject *argument) {
    return show_steps(self, argument, hr_board_step);
}

static PyObject *entry_end(PyObject *self, PyObject *argument) {
    return show_steps(self, argument, hr_board_end);
}

static PyObject *entry_show_wait(PyObject *self, PyObject *arguments) {
    unsigned long long inside_ns, elapsed_ns;
    if (!PyArg_ParseTuple(arguments, "KK:show_wait", &inside_ns, &elapsed_ns)) return NULL;
    hr_board_show_wait(entry_of(self), inside_ns, elapsed_ns);
    Py_RETURN_NONE;
}

static PyObject *entry_waits(PyObject *self, PyObject *ignored) {
    struct hr_board_wait waits[HR_BOARD_MAX_PROCESSES];
    (void)ignored;
    int count = hr_board_waits(entry_of(self), waits);
    PyObject *list = PyList_New(count);
    for (int i = 0; list && i < count; i++) {
        PyObject *item = Py_BuildValue("IKK", waits[i].rank, (unsigned long long)waits[i].inside_ns,
                                       (unsigned long long)waits[i].elapsed_ns);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyMethodDef methods[] = {
    {"show_wait", entry_show_wait, METH_VARARGS,
     "show_wait(inside_ns, elapsed_ns)\n\nShows how long the loop of this rank was inside next() in this epoch."},
    {"waits", entry_waits, METH_NOARGS,
     "waits() -> list\n\nReturns (rank, inside_ns, elapsed_ns) of each running process of this loader, with this one."},
    {"publish", entry_publish, METH_VARARGS,
     "publish(length, steps, seed, epoch, digest, samples)\n\nShows the facts of the next epoch; -1: not known."},
    {"wait", entry_wait, METH_VARARGS,
     "wait(process_count, timeout_s) -> bool\n\nWaits until all processes on the board, and at least process_count, "
     "have published the same epoch. Returns False if some have not in time."},
    {"peers", entry_peers, METH_NOARGS,
     "peers() -> list\n\nReturns (page, rank, facts) of each other running process that is in the same epoch."},
    {"show_first", entry_show_first, METH_O,
     "show_first(digests)\n\nShows digests of the first indices of the epoch that was published last, 64 at most."},
    {"first", entry_first, METH_NOARGS,
     "first() -> list\n\nReturns (rank, digests) of each other process that has shown them in the same epoch."},
    {"known", entry_known, METH_NOARGS,
     "known() -> int\n\nReturns the number of running processes that have begun any epoch of this loader."},
    {"count_from", entry_count_from, METH_O,
     "count_from(steps)\n\nSets how many batches of the epoch were taken before those that step and end count."},
    {"allow", entry_allow, METH_O,
     "allow(difference)\n\nLets the thread of the board report an END only if this rank has taken so many more "
     "batches."},
    {"step", entry_step, METH_O,
     "step(steps) -> tuple | None\n\nShows how many batches were taken. Returns (rank, steps) of a rank that is at its "
     "end with fewer, with all steps of its epoch."},
    {"end", entry_end, METH_O,
     "end(steps) -> tuple | None\n\nShows that this rank is at its end. Returns (rank, steps) of a rank that has taken "
     "more batches, or is at its end with fewer, with all steps of its epoch."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject BoardEntryType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.BoardEntry",
    .tp_basicsize = sizeof(struct core_entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The entry of a loader on the board between ranks. Board.enter makes it.",
    .tp_dealloc = entry_dealloc,
    .tp_methods = methods,
};
