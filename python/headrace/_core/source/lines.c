/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Lines: text files that are open, and their lines. */
#include "source/source.h"

#include <string.h>

struct core_lines {
    PyObject_HEAD hr_lines *lines;
    PyObject *index; /* a _core.Index, which the lines borrow */
};

static const hr_lines *lines_of(PyObject *self) {
    return ((struct core_lines *)self)->lines;
}

/* ---- opening ---- */

static int open_lines(struct core_lines *self, PyObject *paths) {
    const char **texts = core_paths(paths);
    const hr_index *index = index_of(self->index);
    int r;
    if (!texts) return -1;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_lines_open(texts, (size_t)PyTuple_GET_SIZE(paths), index, &self->lines);
    Py_END_ALLOW_THREADS;
    PyMem_Free(texts);
    if (r < 0) core_raise(r);
    return r < 0 ? -1 : 0;
}

static PyObject *lines_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"paths", "index", NULL};
    PyObject *paths, *index;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O!:Lines", names, &PyTuple_Type, &paths, &IndexType,
                                     &index))
        return NULL;
    struct core_lines *self = (struct core_lines *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->index = Py_NewRef(index);
    if (open_lines(self, paths) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static void lines_dealloc(PyObject *self) {
    hr_lines_close(((struct core_lines *)self)->lines);
    Py_XDECREF(((struct core_lines *)self)->index);
    Py_TYPE(self)->tp_free(self);
}

/* ---- a line ---- */

/* A line that was read. */
struct line {
    const char *bytes;
    Py_ssize_t count;
    char *memory; /* to free; NULL: it is in `small` */
    char small[4096];
};

static int read_found(const hr_lines *lines, uint64_t index, const struct hr_line *found, struct line *line) {
    bool is_small = found->bytes + HR_LINE_ROOM <= sizeof line->small;
    line->count = (Py_ssize_t)found->bytes;
    line->memory = is_small ? NULL : PyMem_RawMalloc(found->bytes + HR_LINE_ROOM);
    if (!is_small && !line->memory) return -ENOMEM;
    int r = hr_lines_read(lines, index, found, is_small ? line->small : line->memory, &line->bytes);
    if (r < 0) PyMem_RawFree(line->memory);
    return r;
}

/* Returns -1 with an exception. The caller frees line->memory. */
static int read_line(PyObject *self, PyObject *argument, struct line *line) {
    unsigned long long index = PyLong_AsUnsignedLongLong(argument);
    struct hr_line found;
    int r;
    if (PyErr_Occurred()) return -1;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_lines_find(lines_of(self), index, &found);
    if (r == 0) r = read_found(lines_of(self), index, &found, line);
    Py_END_ALLOW_THREADS;
    if (r == -ENOMEM)
        PyErr_NoMemory();
    else if (r < 0)
        core_raise(r);
    return r < 0 ? -1 : 0;
}

static PyObject *lines_read(PyObject *self, PyObject *argument) {
    struct line line = {0};
    if (read_line(self, argument, &line) < 0) return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(line.bytes, line.count);
    PyMem_RawFree(line.memory);
    return bytes;
}

static PyObject *lines_text(PyObject *self, PyObject *argument) {
    struct line line = {0};
    if (read_line(self, argument, &line) < 0) return NULL;
    PyObject *text = PyUnicode_DecodeUTF8(line.bytes, line.count, NULL);
    PyMem_RawFree(line.memory);
    return text;
}

static PyObject *lines_find(PyObject *self, PyObject *argument) {
    struct hr_line line;
    unsigned long long index = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return NULL;
    int r = hr_lines_find(lines_of(self), index, &line);
    if (r < 0) return core_raise(r);
    return Py_BuildValue("(yKK)", line.path, (unsigned long long)line.at, (unsigned long long)line.bytes);
}

static PyObject *lines_number(PyObject *self, PyObject *argument) {
    unsigned long long index = PyLong_AsUnsignedLongLong(argument);
    uint64_t number;
    int r;
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_lines_number(lines_of(self), index, &number);
    Py_END_ALLOW_THREADS;
    return r < 0 ? core_raise(r) : PyLong_FromUnsignedLongLong(number);
}

/* ---- several lines ---- */

static PyObject *lines_lengths(PyObject *self, PyObject *arguments) {
    unsigned long long first;
    PyObject *object;
    Py_buffer lengths;
    if (!PyArg_ParseTuple(arguments, "KO:lengths", &first, &object)) return NULL;
    if (core_get_numbers(object, PyBUF_WRITABLE, -1, &lengths) < 0) return NULL;
    int r = hr_lines_lengths(lines_of(self), first, (uint64_t)lengths.len / sizeof(int64_t), lengths.buf);
    PyBuffer_Release(&lengths);
    return core_none_or_raise(r);
}

static PyObject *lines_ask(PyObject *self, PyObject *arguments) {
    struct source_asked asked;
    if (source_read_asked(arguments, &asked) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    hr_lines_ask(lines_of(self), asked.indices, asked.count, asked.announcer);
    Py_END_ALLOW_THREADS;
    PyMem_Free(asked.indices);
    Py_RETURN_NONE;
}

/* ---- JSON ---- */

/* Says whether there are `run` digits in a row, by a look at every `run`th byte. */
static bool has_digits(const char *bytes, Py_ssize_t count, Py_ssize_t run) {
    for (Py_ssize_t last = run - 1; last < count;) {
        Py_ssize_t at = last;
        while (at > last - run && bytes[at] >= '0' && bytes[at] <= '9') at--;
        if (at == last - run) return true;
        last = at + run;
    }
    return false;
}

static PyObject *has_long_integer(PyObject *self, PyObject *object) {
    enum { INT64_DIGITS = 19 };
    char *bytes;
    Py_ssize_t count;
    (void)self;
    if (PyBytes_AsStringAndSize(object, &bytes, &count) < 0) return NULL;
    return PyBool_FromLong(has_digits(bytes, count, INT64_DIGITS));
}

static PyMethodDef methods[] = {
    {"read", lines_read, METH_O, "read(index) -> bytes\n\nReturns a line without its end. Raises OSError."},
    {"text", lines_text, METH_O, "text(index) -> str\n\nThe same, decoded as UTF-8. Raises UnicodeDecodeError."},
    {"find", lines_find, METH_O,
     "find(index) -> (path, at, bytes)\n\nReturns the fields of struct hr_line, without the number of the file."},
    {"number", lines_number, METH_O, "number(index) -> int\n\nReturns the number of a line in its file, from 1 on."},
    {"lengths", lines_lengths, METH_VARARGS,
     "lengths(first, target)\n\nWrites the lengths of lines in bytes to a buffer of int64."},
    {"ask", lines_ask, METH_VARARGS, SOURCE_ASK_DOC},
    {"has_long_integer", has_long_integer, METH_O | METH_STATIC,
     "has_long_integer(bytes) -> bool\n\nReturns True if there are 19 digits in a row, as in an integer that may not "
     "fit into 64 bits."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject LinesType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Lines",
    .tp_basicsize = sizeof(struct core_lines),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc =
        "Lines(paths, index)\n\nText files that are open (headrace/lines.h). paths: a tuple of bytes, the files of "
        "the index in its order.",
    .tp_new = lines_new,
    .tp_dealloc = lines_dealloc,
    .tp_methods = methods,
};
