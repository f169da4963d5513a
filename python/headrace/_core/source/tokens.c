/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Tokens: token files that are open. */
#include "source/source.h"

#include <string.h>

struct core_tokens {
    PyObject_HEAD hr_tokens *tokens;
    uint64_t length; /* of windows */
};

static hr_tokens *open_tokens(PyObject *self) {
    return ((struct core_tokens *)self)->tokens;
}

const hr_tokens *tokens_of(PyObject *self) {
    return open_tokens(self);
}

/* ---- opening ---- */

static int open_paths(struct core_tokens *self, PyObject *paths, const struct hr_tokens_options *options) {
    const char **texts = core_paths(paths);
    int r;
    if (!texts) return -1;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_tokens_open(texts, (size_t)PyTuple_GET_SIZE(paths), options, &self->tokens);
    Py_END_ALLOW_THREADS;
    PyMem_Free(texts);
    if (r < 0) core_raise(r);
    return r < 0 ? -1 : 0;
}

static PyObject *tokens_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"paths",  "code",      "bits",       "unit",       "length",
                            "stride", "separator", "vocab_size", "has_labels", NULL};
    PyObject *paths;
    unsigned char code, bits;
    int unit, has_labels;
    unsigned long long length, stride, separator, vocab_size;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!bbiKKKKp:Tokens", names, &PyTuple_Type, &paths, &code,
                                     &bits, &unit, &length, &stride, &separator, &vocab_size, &has_labels))
        return NULL;
    struct hr_tokens_options options = {.dtype = {code, bits, 1},
                                        .unit = (enum hr_tokens_unit)unit,
                                        .length = length,
                                        .stride = stride,
                                        .separator = separator,
                                        .vocab_size = vocab_size,
                                        .has_labels = has_labels};
    struct core_tokens *self = (struct core_tokens *)type->tp_alloc(type, 0);
    if (self) self->length = length;
    if (self && open_paths(self, paths, &options) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static void tokens_dealloc(PyObject *self) {
    hr_tokens_close(open_tokens(self));
    Py_TYPE(self)->tp_free(self);
}

/* ---- buffers ---- */

int core_get_numbers(PyObject *object, int flags, Py_ssize_t count, Py_buffer *ret_buffer) {
    if (PyObject_GetBuffer(object, ret_buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) < 0) return -1;
    const char *format = ret_buffer->format ? ret_buffer->format : "B";
    bool is_right = ret_buffer->itemsize == sizeof(int64_t) && strchr("lqLQ", *format) && *format;
    if (is_right && (count < 0 || ret_buffer->len / (Py_ssize_t)sizeof(int64_t) == count)) return 0;
    PyErr_Format(PyExc_ValueError, "headrace: expected %zd 64-bit integers, but got %zd bytes of format '%s'", count,
                 ret_buffer->len, format);
    PyBuffer_Release(ret_buffer);
    return -1;
}

/* The arrays that tokens are read to. */
struct targets {
    Py_buffer tokens, labels;
    bool has_labels;
};

static int get_targets(PyObject *tokens, PyObject *labels, Py_ssize_t count, struct targets *ret_targets) {
    ret_targets->has_labels = labels != Py_None;
    if (core_get_numbers(tokens, PyBUF_WRITABLE, count, &ret_targets->tokens) < 0) return -1;
    if (!ret_targets->has_labels || core_get_numbers(labels, PyBUF_WRITABLE, count, &ret_targets->labels) == 0)
        return 0;
    PyBuffer_Release(&ret_targets->tokens);
    return -1;
}

static void release(struct targets *targets) {
    PyBuffer_Release(&targets->tokens);
    if (targets->has_labels) PyBuffer_Release(&targets->labels);
}

/* ---- separators ---- */

static PyObject *tokens_scan(PyObject *self, PyObject *argument) {
    unsigned long long most_bytes = PyLong_AsUnsignedLongLong(argument);
    int r;
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_tokens_scan(open_tokens(self), most_bytes);
    Py_END_ALLOW_THREADS;
    return r < 0 ? core_raise(r) : PyBool_FromLong(r);
}

static PyObject *tokens_ends(PyObject *self, PyObject *ignored) {
    uint64_t count;
    const uint64_t *ends = hr_tokens_ends(tokens_of(self), &count);
    (void)ignored;
    return PyBytes_FromStringAndSize((const char *)ends, (Py_ssize_t)(count * sizeof *ends));
}

static PyObject *tokens_set_ends(PyObject *self, PyObject *object) {
    Py_buffer ends;
    if (core_get_numbers(object, 0, -1, &ends) < 0) return NULL;
    int r = hr_tokens_set_ends(open_tokens(self), ends.buf, (uint64_t)ends.len / sizeof(uint64_t));
    PyBuffer_Release(&ends);
    return core_none_or_raise(r);
}

/* ---- what there is ---- */

static PyObject *tokens_look(PyObject *self, PyObject *ignored) {
    struct hr_tokens_info info;
    (void)ignored;
    hr_tokens_look(tokens_of(self), &info);
    return Py_BuildValue("(KKKk)", (unsigned long long)info.sample_count, (unsigned long long)info.token_count,
                         (unsigned long long)info.used_count, (unsigned long)info.file_count);
}

static PyObject *tokens_file(PyObject *self, PyObject *argument) {
    struct hr_tokens_file file;
    unsigned long number = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred()) return NULL;
    int r = hr_tokens_look_file(tokens_of(self), (uint32_t)number, &file);
    if (r < 0) return core_raise(r);
    return Py_BuildValue("(yiiiKKKK)", file.path, (int)file.kind, (int)file.dtype.code, (int)file.dtype.bits,
                         (unsigned long long)file.data_at, (unsigned long long)file.token_count,
                         (unsigned long long)file.sample_count, (unsigned long long)file.stamp);
}

/* ---- samples ---- */

static PyObject *tokens_find(PyObject *self, PyObject *argument) {
    struct hr_tokens_sample sample;
    unsigned long long index = PyLong_AsUnsignedLongLong(argument);
    int r;
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_tokens_find(tokens_of(self), index, &sample);
    Py_END_ALLOW_THREADS;
    if (r < 0) return core_raise(r);
    return Py_BuildValue("(kKKK)", (unsigned long)sample.file, (unsigned long long)sample.at,
                         (unsigned long long)sample.count, (unsigned long long)sample.length);
}

static PyObject *tokens_read(PyObject *self, PyObject *arguments) {
    unsigned long long index, count, length;
    PyObject *tokens, *labels;
    struct targets targets;
    int r;
    if (!PyArg_ParseTuple(arguments, "KKKOO:read", &index, &count, &length, &tokens, &labels)) return NULL;
    if (get_targets(tokens, labels, (Py_ssize_t)length, &targets) < 0) return NULL;
    struct hr_tokens_sample sample = {.count = count, .length = length};
    Py_BEGIN_ALLOW_THREADS;
    r = hr_tokens_read(tokens_of(self), index, &sample, targets.tokens.buf,
                       targets.has_labels ? targets.labels.buf : NULL);
    Py_END_ALLOW_THREADS;
    release(&targets);
    return core_none_or_raise(r);
}

static PyObject *tokens_gather(PyObject *self, PyObject *arguments) {
    PyObject *object, *tokens, *labels;
    struct targets targets;
    Py_buffer indices;
    Py_ssize_t total;
    if (!PyArg_ParseTuple(arguments, "OOO:gather", &object, &tokens, &labels)) return NULL;
    if (core_get_numbers(object, 0, -1, &indices) < 0) return NULL;
    Py_ssize_t count = indices.len / (Py_ssize_t)sizeof(int64_t);
    if (__builtin_mul_overflow(count, ((struct core_tokens *)self)->length, &total)) total = PY_SSIZE_T_MAX;
    int r = get_targets(tokens, labels, total, &targets);
    if (r == 0) {
        Py_BEGIN_ALLOW_THREADS;
        r = hr_tokens_gather(tokens_of(self), indices.buf, (uint64_t)count, targets.tokens.buf,
                             targets.has_labels ? targets.labels.buf : NULL);
        Py_END_ALLOW_THREADS;
        release(&targets);
    }
    PyBuffer_Release(&indices);
    return PyErr_Occurred() ? NULL : core_none_or_raise(r);
}

static PyObject *tokens_lengths(PyObject *self, PyObject *arguments) {
    unsigned long long first;
    PyObject *object;
    Py_buffer lengths;
    int r;
    if (!PyArg_ParseTuple(arguments, "KO:lengths", &first, &object)) return NULL;
    if (core_get_numbers(object, PyBUF_WRITABLE, -1, &lengths) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_tokens_lengths(tokens_of(self), first, (uint64_t)lengths.len / sizeof(int64_t), lengths.buf);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&lengths);
    return core_none_or_raise(r);
}

static PyObject *tokens_ask(PyObject *self, PyObject *arguments) {
    struct source_asked asked;
    if (source_read_asked(arguments, &asked) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    hr_tokens_ask(open_tokens(self), asked.indices, asked.count, asked.announcer);
    Py_END_ALLOW_THREADS;
    PyMem_Free(asked.indices);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"scan", tokens_scan, METH_O,
     "scan(most_bytes) -> bool\n\nReads so many bytes at most to find separators. Returns True when all are found."},
    {"ends", tokens_ends, METH_NOARGS,
     "ends() -> bytes\n\nReturns where documents end, as uint64, which a scan has found."},
    {"set_ends", tokens_set_ends, METH_O,
     "set_ends(ends)\n\nTakes the ends of an earlier scan of the same files, a buffer of 64-bit integers. Raises "
     "ValueError."},
    {"look", tokens_look, METH_NOARGS, "look() -> (samples, tokens, used_tokens, files)"},
    {"file", tokens_file, METH_O,
     "file(number) -> (path, kind, code, bits, data_at, tokens, samples, stamp)\n\nReturns the fields of struct "
     "hr_tokens_file."},
    {"find", tokens_find, METH_O,
     "find(index) -> (file, at, count, length)\n\nReturns the fields of struct hr_tokens_sample. Raises OSError and "
     "ValueError."},
    {"read", tokens_read, METH_VARARGS,
     "read(index, count, length, tokens, labels)\n\nReads a sample, of which `find` gives count and length, to one or "
     "two contiguous buffers of int64; labels: None without labels. Raises OSError and ValueError."},
    {"gather", tokens_gather, METH_VARARGS,
     "gather(indices, tokens, labels)\n\nReads windows to rows. All arrays are contiguous "
     "buffers of int64; labels: None without labels. Raises OSError and ValueError."},
    {"ask", tokens_ask, METH_VARARGS, SOURCE_ASK_DOC},
    {"lengths", tokens_lengths, METH_VARARGS,
     "lengths(first, target)\n\nWrites the lengths of samples from `first` on to a buffer of int64."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject TokensType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Tokens",
    .tp_basicsize = sizeof(struct core_tokens),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Tokens(paths, code, bits, unit, length, stride, separator, vocab_size, has_labels)\n\nToken files that "
              "are open (headrace/tokens.h). paths: a tuple of bytes. code, bits: of the dtype, 0 bits: not given.",
    .tp_new = tokens_new,
    .tp_dealloc = tokens_dealloc,
    .tp_methods = methods,
};
