/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/freeze.h"
#include "frozen/opened.h"

/*
 * _core.freeze, which freezes one object, and _core.Builder, which takes records one by one, for data that is larger
 * than memory: it keeps only a value of 8 bytes for each.
 */

/* ---- finishing frozen data ---- */

static PyObject *report(struct freezer *freezer) {
    static const char *const names[HR_KIND_COUNT] = {
        [HR_KIND_INT] = "int",         [HR_KIND_BIG_INT] = "int",   [HR_KIND_FLOAT] = "float",
        [HR_KIND_COMPLEX] = "complex", [HR_KIND_TEXT] = "str",      [HR_KIND_BYTES] = "bytes",
        [HR_KIND_LIST] = "list",       [HR_KIND_TUPLE] = "tuple",   [HR_KIND_DICT] = "dict",
        [HR_KIND_SET] = "set",         [HR_KIND_ARRAY] = "array",   [HR_KIND_BYTE_ARRAY] = "bytearray",
        [HR_KIND_RECORD] = "record",   [HR_KIND_PICKLE] = "pickle", [HR_KIND_FROZEN_SET] = "frozenset",
        [HR_KIND_TYPED] = "other",
    };
    PyObject *kinds = PyDict_New();
    for (int kind = 0; kinds && kind < HR_KIND_COUNT; kind++) {
        if (!names[kind] || !freezer->counts[kind]) continue;
        PyObject *pair =
            Py_BuildValue("KK", (unsigned long long)freezer->counts[kind], (unsigned long long)freezer->bytes[kind]);
        if (!pair || PyDict_SetItemString(kinds, names[kind], pair) < 0) Py_CLEAR(kinds);
        Py_XDECREF(pair);
    }
    return kinds ? Py_BuildValue("NO", kinds, freezer->pickles) : NULL;
}

static PyObject *finish_frozen(struct freezer *freezer, hr_value root) {
    hr_frozen *data = NULL;
    PyObject *summary = report(freezer);
    if (!summary) return NULL;
    hr_builder *builder = freezer->builder;
    freezer->builder = NULL;
    int r;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_builder_finish(builder, root, &data);
    Py_END_ALLOW_THREADS;
    PyObject *frozen = r < 0 ? frozen_raise(r) : frozen_new(data, true);
    PyObject *result = frozen ? PyTuple_Pack(2, frozen, summary) : NULL;
    Py_XDECREF(frozen);
    Py_DECREF(summary);
    return result;
}

/* ---- _core.freeze ---- */

PyObject *core_freeze(PyObject *module, PyObject *arguments, PyObject *keywords) {
    static char *words[] = {"object", "path", "keeps_pickles", "progress", "paths", NULL};
    PyObject *object, *path = Py_None, *progress = Py_None, *paths = Py_None, *result = NULL;
    int keeps_pickles = 0;
    struct freezer freezer;
    hr_value root;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|OpOO:freeze", words, &object, &path, &keeps_pickles,
                                     &progress, &paths))
        return NULL;
    int r = freezer_open(&freezer, path, progress, keeps_pickles);
    if (PyDict_Check(paths)) freezer.paths = Py_NewRef(paths);
    if (r == 0 && freezer_run(&freezer, object, &root) == 0) result = finish_frozen(&freezer, root);
    freezer_close(&freezer);
    return result;
}

/* ---- _core.Builder ---- */

struct builder {
    PyObject_HEAD struct freezer freezer;
    hr_value *values;
    uint64_t count, room;
    bool is_at_work; /* code of an object, or another thread, may call the builder while the object is being frozen */
};

static PyObject *builder_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *words[] = {"path", "keeps_pickles", "progress", NULL};
    PyObject *path = Py_None, *progress = Py_None;
    int keeps_pickles = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|OpO:Builder", words, &path, &keeps_pickles, &progress))
        return NULL;
    struct builder *self = (struct builder *)type->tp_alloc(type, 0);
    if (self && freezer_open(&self->freezer, path, progress, keeps_pickles) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static void builder_dealloc(PyObject *object) {
    struct builder *self = (struct builder *)object;
    freezer_close(&self->freezer);
    PyMem_Free(self->values);
    Py_TYPE(object)->tp_free(object);
}

static int check_open(const struct builder *self) {
    if (self->freezer.builder && !self->is_at_work) return 0;
    PyErr_SetString(PyExc_ValueError, self->is_at_work ? "headrace: a builder freezes one record at a time"
                                                       : "headrace: this builder is closed; make a new one");
    return -1;
}

static int make_room(struct builder *self) {
    if (self->count < self->room) return 0;
    uint64_t room = self->room + self->room / 16 + 4096; /* grows slowly, because it adds to the peak of memory */
    hr_value *values = PyMem_Realloc(self->values, room * sizeof *values);
    if (!values) {
        PyErr_NoMemory();
        return -1;
    }
    self->values = values;
    self->room = room;
    return 0;
}

/* If freezing a record fails, its bytes stay in the frozen data, and nothing refers to them. */
static PyObject *builder_append(PyObject *object, PyObject *record) {
    struct builder *self = (struct builder *)object;
    hr_value value;
    if (check_open(self) < 0 || make_room(self) < 0) return NULL;
    self->is_at_work = true;
    int r = freezer_run(&self->freezer, record, &value);
    freezer_forget(&self->freezer); /* the objects that it knows by address may be freed before the next record */
    if (r == 0) r = freeze_tick(&self->freezer, 1);
    self->is_at_work = false;
    if (r < 0) return NULL;
    self->values[self->count++] = value;
    Py_RETURN_NONE;
}

static int make_list(struct builder *self, hr_value *ret_list) {
    hr_builder *builder = self->freezer.builder;
    int r = hr_builder_container(builder, HR_KIND_LIST, self->count, ret_list);
    for (uint64_t i = 0; r == 0 && i < self->count; i++) r = hr_builder_put(builder, *ret_list, i, self->values[i]);
    return frozen_result(r);
}

static PyObject *builder_finish(PyObject *object, PyObject *ignored) {
    struct builder *self = (struct builder *)object;
    hr_value list;
    (void)ignored;
    if (check_open(self) < 0) return NULL;
    PyObject *result = make_list(self, &list) < 0 ? NULL : finish_frozen(&self->freezer, list);
    freezer_close(&self->freezer);
    return result;
}

static PyObject *builder_close(PyObject *object, PyObject *ignored) {
    struct builder *self = (struct builder *)object;
    (void)ignored;
    if (self->is_at_work) return check_open(self) < 0 ? NULL : Py_NewRef(Py_None);
    freezer_close(&self->freezer);
    Py_RETURN_NONE;
}

static Py_ssize_t builder_length(PyObject *object) {
    return (Py_ssize_t)((struct builder *)object)->count;
}

static PyObject *builder_bytes(PyObject *object, void *ignored) {
    const struct builder *self = (struct builder *)object;
    (void)ignored;
    return PyLong_FromUnsignedLongLong(self->freezer.builder ? hr_builder_bytes(self->freezer.builder) : 0);
}

static PyMethodDef builder_methods[] = {
    {"append", builder_append, METH_O, "append(record)\n\nFreezes one more record."},
    {"finish", builder_finish, METH_NOARGS,
     "finish() -> (Frozen, (kinds, pickles))\n\nFinishes the frozen data and closes the builder."},
    {"close", builder_close, METH_NOARGS,
     "close()\n\nCloses the builder. Frozen data that is not finished is dropped."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef builder_getset[] = {
    {"bytes", builder_bytes, NULL, "Number of bytes that were written so far.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PySequenceMethods builder_sequence = {.sq_length = builder_length};

PyTypeObject BuilderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Builder",
    .tp_doc =
        "Builder(path=None, keeps_pickles=False, progress=None)\n\nMakes frozen data of a list, record by record.",
    .tp_basicsize = sizeof(struct builder),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = builder_new,
    .tp_dealloc = builder_dealloc,
    .tp_methods = builder_methods,
    .tp_getset = builder_getset,
    .tp_as_sequence = &builder_sequence,
};
