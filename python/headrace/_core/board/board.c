/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Board: the board of this process. */
#include "board/board.h"

#include <stdio.h>

struct core_board {
    PyObject_HEAD hr_board *board;
};

static hr_board *board_of(PyObject *self) {
    return ((struct core_board *)self)->board;
}

static void board_dealloc(PyObject *self) {
    hr_board_close(board_of(self));
    Py_TYPE(self)->tp_free(self);
}

/* Called in the thread of the board, without the GIL, which a thread in a collective operation may hold. */
static void print_report(const char *text) {
    fputs(text, stderr);
    fflush(stderr);
}

static PyObject *board_join(PyObject *type, PyObject *arguments) {
    struct hr_board_options options = {.report = print_report};
    PyObject *seconds;
    int64_t deadline_ns;
    int r;
    (void)type;
    if (!PyArg_ParseTuple(arguments, "sIIiO:join", &options.key, &options.world_size, &options.local_size, &options.fd,
                          &seconds))
        return NULL;
    if (core_deadline(seconds, &deadline_ns) < 0) return NULL;
    struct core_board *self = (struct core_board *)BoardType.tp_alloc(&BoardType, 0);
    if (!self) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_board_open(&options, deadline_ns, &self->board);
    Py_END_ALLOW_THREADS;
    return core_new_or_raise(self, r);
}

static PyObject *board_process_count(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromUnsignedLong(hr_board_process_count(board_of(self)));
}

static PyObject *board_page(PyObject *self, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromUnsignedLong(hr_board_page(board_of(self)));
}

static PyObject *board_finish(PyObject *self, PyObject *ignored) {
    (void)ignored;
    hr_board_finish(board_of(self));
    Py_RETURN_NONE;
}

static PyObject *board_enter(PyObject *self, PyObject *arguments) {
    return entry_new(self, board_of(self), arguments);
}

static PyMethodDef methods[] = {
    {"join", board_join, METH_VARARGS | METH_STATIC,
     "join(key, world_size, local_size, fd, timeout_s) -> Board\n\nJoins the board of a job, or makes it. local_size: "
     "0 if it is not known. fd: -1 if it was not inherited. Raises an exception with the reason if there can be no "
     "board."},
    {"process_count", board_process_count, METH_NOARGS,
     "process_count() -> int\n\nReturns the number of running processes that have joined."},
    {"page", board_page, METH_NOARGS, "page() -> int\n\nReturns the number of this process's page."},
    {"finish", board_finish, METH_NOARGS, "finish()\n\nSays that the main program of this process is over."},
    {"enter", board_enter, METH_VARARGS,
     "enter(where, place, rank, world_size) -> BoardEntry\n\nTakes an entry for a loader. Raises OSError if all are "
     "taken."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject BoardType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Board",
    .tp_basicsize = sizeof(struct core_board),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The board between the ranks of this machine (headrace/board.h). Board.join makes it.",
    .tp_dealloc = board_dealloc,
    .tp_methods = methods,
};
