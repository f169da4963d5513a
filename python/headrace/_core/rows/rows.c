/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Rows: the rows of a batch. They are gathered where the batch has its memory. */
#include "rows/rows.h"

#include <stdlib.h>
#include <string.h>

/* A column of the batch. */
struct part {
    struct hr_column column; /* of lists: its shape is `length` */
    int64_t length;          /* of each list in this batch */
    uint64_t place;          /* in the batch that is being written */
    void *target;            /* where it is gathered to */
};

struct rows {
    PyObject_HEAD struct columns *columns;
    int64_t *indices;
    uint64_t count;
    struct part *parts; /* one for each column */
};

/* ---- making them ---- */

static bool take_indices(struct rows *self, PyObject *indices) {
    for (uint64_t i = 0; i < self->count; i++) {
        PyObject *index = PyList_GET_ITEM(indices, (Py_ssize_t)i);
        int overflow;
        if (!PyLong_CheckExact(index)) return false;
        self->indices[i] = PyLong_AsLongLongAndOverflow(index, &overflow);
        if (overflow || self->indices[i] < 0 || (uint64_t)self->indices[i] >= self->columns->row_count) return false;
    }
    return true;
}

/* The lists of a batch have one length. hr_gather checks each. */
static bool take_columns(struct rows *self) {
    for (uint32_t i = 0; i < self->columns->count; i++) {
        struct part *part = &self->parts[i];
        part->column = self->columns->items[i];
        if (!part->column.pieces || !part->column.pieces->offsets) continue;
        if (hr_list_length(&part->column, self->indices[0], &part->length) < 0) return false;
        part->column.shape = &part->length;
    }
    return true;
}

PyObject *rows_new(PyObject *columns, PyObject *indices) {
    if (!PyList_CheckExact(indices) || !PyList_GET_SIZE(indices)) Py_RETURN_NONE;
    struct rows *self = PyObject_New(struct rows, &RowsType);
    if (!self) return NULL;
    self->columns = (struct columns *)Py_NewRef(columns);
    self->count = (uint64_t)PyList_GET_SIZE(indices);
    self->indices = PyMem_Calloc((size_t)self->count, sizeof *self->indices);
    self->parts = PyMem_Calloc(self->columns->count, sizeof *self->parts);
    bool has_room = self->indices && self->parts;
    if (has_room && take_indices(self, indices) && take_columns(self)) return (PyObject *)self;
    Py_DECREF(self);
    if (!has_room) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static void rows_dealloc(PyObject *object) {
    struct rows *self = (struct rows *)object;
    Py_DECREF(self->columns);
    PyMem_Free(self->indices);
    PyMem_Free(self->parts);
    PyObject_Free(object);
}

bool is_rows(PyObject *object) {
    return Py_IS_TYPE(object, &RowsType);
}

/* ---- gathering them into a batch ---- */

static int add_array(struct rows *self, struct part *part, hr_batch *batch, enum hr_flavor flavor) {
    const struct hr_column *column = &part->column;
    int64_t shape[HR_BATCH_MAX_NDIM] = {(int64_t)self->count};
    for (uint32_t d = 0; d < column->ndim; d++) shape[d + 1] = column->shape[d];
    return hr_batch_add_reserved(batch, flavor, column->to, column->ndim + 1, shape, &part->place);
}

static int add_name(struct rows *self, uint32_t i, hr_batch *batch) {
    Py_ssize_t length;
    const char *name = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(self->columns->names, i), &length);
    return name ? hr_batch_add_text(batch, name, (size_t)length) : -1;
}

static bool fits_flavor(const struct rows *self, enum hr_flavor flavor) {
    enum { COMPLEX = 5 };
    if (flavor == HR_FLAVOR_NUMPY) return !self->columns->has_tensors;
    for (uint32_t i = 0; i < self->columns->count; i++) {
        struct hr_dtype to = self->parts[i].column.to; /* torch has no longer floats */
        if (to.bits > (to.code == COMPLEX ? 128 : 64)) return false;
    }
    return true;
}

enum found rows_add(PyObject *object, hr_batch *batch, enum hr_flavor flavor) {
    struct rows *self = (struct rows *)object;
    uint32_t count = self->columns->count;
    PyObject *names = self->columns->names;
    int r = 0;
    for (uint32_t i = 0; i < count; i++)
        if (self->parts[i].column.ndim + 1 > HR_BATCH_MAX_NDIM) return FOUND_NOT;
    if (!fits_flavor(self, flavor) || self->count > INT32_MAX) return FOUND_NOT;
    if (!self->columns->is_alone) r = hr_batch_open(batch, names ? HR_NODE_DICT : HR_NODE_LIST, count);
    for (uint32_t i = 0; r == 0 && i < count; i++) {
        if (names) r = add_name(self, i, batch);
        if (r == 0) r = add_array(self, &self->parts[i], batch, flavor);
    }
    if (r == 0) return FOUND;
    if (!PyErr_Occurred()) core_raise(r);
    return FOUND_ERROR;
}

/* Gathers the columns to their targets. */
static int gather_all(const struct rows *self, uint32_t threads) {
    const struct part *parts = self->parts;
    uint32_t count = self->columns->count;
    int r = 0;
    if (self->columns->tokens)
        return hr_tokens_gather(self->columns->tokens, self->indices, self->count, parts[0].target,
                                count > 1 ? parts[1].target : NULL);
    for (uint32_t i = 0; r == 0 && i < count; i++)
        r = hr_gather(&parts[i].column, self->indices, self->count, threads, parts[i].target);
    return r;
}

int rows_run(PyObject *object, hr_batch *batch, void *data, uint32_t threads) {
    struct rows *self = (struct rows *)object;
    for (uint32_t i = 0; i < self->columns->count; i++) {
        uint64_t offset;
        if (hr_batch_place(batch, self->parts[i].place, &offset) < 0) return 1;
        self->parts[i].target = (char *)data + offset;
    }
    return gather_all(self, threads) < 0;
}

/* ---- gathering them into arrays of the caller ---- */

static bool takes_rows(const struct rows *self, const struct hr_column *column, const struct hr_array *array) {
    bool takes = array->ndim == column->ndim + 1 && array->shape[0] == (int64_t)self->count &&
                 array->dtype.code == column->to.code && array->dtype.bits == column->to.bits &&
                 array_is_c_order(array);
    for (uint32_t i = 0; takes && i < column->ndim; i++) takes = array->shape[i + 1] == column->shape[i];
    return takes;
}

static int find_targets(struct rows *self, PyObject *arrays, struct inputs *inputs) {
    if (PyTuple_GET_SIZE(arrays) != (Py_ssize_t)self->columns->count) {
        PyErr_SetString(PyExc_ValueError, "headrace: give one array for each column");
        return -1;
    }
    for (uint32_t i = 0; i < self->columns->count; i++) {
        PyObject *object = PyTuple_GET_ITEM(arrays, i);
        struct hr_array array;
        enum found found =
            is_tensor(object) ? input_tensor(inputs, object, &array) : input_array(inputs, object, &array);
        if (found == FOUND_ERROR) return -1;
        if (found == FOUND_NOT || !takes_rows(self, &self->parts[i].column, &array)) {
            PyErr_Format(PyExc_ValueError, "headrace: array %u has another dtype or shape than the rows", i);
            return -1;
        }
        self->parts[i].target = (void *)(uintptr_t)array.data;
    }
    return 0;
}

/* Returns the batch of these arrays, as a default collate function makes it. */
static PyObject *arrange(const struct columns *columns, PyObject *arrays) {
    if (columns->is_alone) return Py_NewRef(PyTuple_GET_ITEM(arrays, 0));
    if (!columns->names) return PySequence_List(arrays);
    PyObject *batch = PyDict_New();
    for (uint32_t i = 0; batch && i < columns->count; i++)
        if (PyDict_SetItem(batch, PyTuple_GET_ITEM(columns->names, i), PyTuple_GET_ITEM(arrays, i)) < 0)
            Py_CLEAR(batch);
    return batch;
}

static PyObject *rows_into(PyObject *object, PyObject *arguments) {
    struct rows *self = (struct rows *)object;
    struct inputs inputs = {0};
    PyObject *arrays;
    unsigned int threads;
    if (!PyArg_ParseTuple(arguments, "O!I:into", &PyTuple_Type, &arrays, &threads)) return NULL;
    PyObject *result = NULL;
    if (find_targets(self, arrays, &inputs) == 0) {
        int r;
        Py_BEGIN_ALLOW_THREADS;
        r = gather_all(self, threads);
        Py_END_ALLOW_THREADS;
        result = r < 0 ? Py_NewRef(Py_None) : arrange(self->columns, arrays);
    }
    inputs_free(&inputs);
    return result;
}

static PyObject *rows_shapes(PyObject *object, void *ignored) {
    struct rows *self = (struct rows *)object;
    (void)ignored;
    PyObject *shapes = PyTuple_New(self->columns->count);
    for (uint32_t i = 0; shapes && i < self->columns->count; i++) {
        const struct hr_column *column = &self->parts[i].column;
        int64_t shape[HR_BATCH_MAX_NDIM + 1] = {(int64_t)self->count};
        memcpy(shape + 1, column->shape, column->ndim * sizeof *shape);
        PyObject *numbers = numbers_tuple(shape, column->ndim + 1, 1);
        if (!numbers) Py_CLEAR(shapes);
        if (shapes) PyTuple_SET_ITEM(shapes, i, numbers);
    }
    return shapes;
}

static PyObject *dtype_name(struct hr_dtype dtype) {
    static const char *const kinds[] = {"int", "uint", "float", NULL, "bfloat", "complex", "bool"};
    enum { BOOL = 6 };
    if (dtype.code == BOOL) return PyUnicode_FromString(kinds[BOOL]);
    const char *kind = dtype.code < BOOL ? kinds[dtype.code] : NULL;
    return kind ? PyUnicode_FromFormat("%s%d", kind, dtype.bits) : PyUnicode_FromString("");
}

static PyObject *rows_dtypes(PyObject *object, void *ignored) {
    struct rows *self = (struct rows *)object;
    (void)ignored;
    PyObject *names = PyTuple_New(self->columns->count);
    for (uint32_t i = 0; names && i < self->columns->count; i++) {
        PyObject *name = dtype_name(self->parts[i].column.to);
        if (!name) Py_CLEAR(names);
        if (names) PyTuple_SET_ITEM(names, i, name);
    }
    return names;
}

static PyMethodDef methods[] = {
    {"into", rows_into, METH_VARARGS,
     "into(arrays, threads) -> batch | None\n\nGathers the rows into a tuple of new arrays or tensors, one for each "
     "column, of the given `shapes` and `dtypes`, in C order, and returns the batch that has them. None: this failed "
     "(a damaged file or table), and their contents are undefined."},
    {NULL, NULL, 0, NULL},
};

static PyObject *rows_have_tensors(PyObject *object, void *ignored) {
    (void)ignored;
    return PyBool_FromLong(((struct rows *)object)->columns->has_tensors);
}

/* Adds the strides of the rows of a piece to the numbers of a layout; 0: they are in C order. */
static PyObject *add_strides(PyObject *layout, const struct hr_piece *piece, uint32_t ndim) {
    if (!piece->strides) return layout;
    PyObject *strides = PyBytes_FromStringAndSize((const char *)piece->strides, (Py_ssize_t)(ndim * sizeof(int64_t)));
    if (strides) PyBytes_ConcatAndDel(&layout, strides);
    if (!strides) Py_CLEAR(layout);
    return layout;
}

static PyObject *rows_layout(PyObject *object, void *ignored) {
    struct rows *self = (struct rows *)object;
    const struct columns *columns = self->columns;
    struct {
        uint64_t kind;
        int64_t shape[HR_BATCH_MAX_NDIM];
    } head;
    (void)ignored;
    PyObject *layout =
        PyBytes_FromFormat("%u%d%d%d", columns->count, columns->is_alone, columns->names != NULL, self->count == 1);
    for (uint32_t i = 0; layout && i < columns->count; i++) {
        const struct hr_column *column = &self->parts[i].column;
        memset(&head, 0, sizeof head);
        head.kind = (uint64_t)column->dtype.code << 24 | (uint64_t)column->dtype.bits << 16 | column->ndim << 8 |
                    (uint64_t)(column->to.code << 4 | (column->to.bits == column->dtype.bits));
        memcpy(head.shape, column->shape, column->ndim * sizeof *head.shape);
        PyObject *numbers = PyBytes_FromStringAndSize(
            (const char *)&head, (Py_ssize_t)(sizeof head.kind + column->ndim * sizeof *head.shape));
        if (numbers) PyBytes_ConcatAndDel(&layout, numbers);
        if (!numbers) Py_CLEAR(layout);
        for (uint32_t k = 0; layout && column->pieces && k < column->piece_count; k++)
            layout = add_strides(layout, &column->pieces[k], column->ndim);
    }
    return layout;
}

static PyGetSetDef properties[] = {
    {"layout", rows_layout, NULL,
     "Bytes that are equal for rows of the same dtypes, shapes and strides, in batches of the same form.", NULL},
    {"has_tensors", rows_have_tensors, NULL, "Whether a column is made of tensors of torch.", NULL},
    {"shapes", rows_shapes, NULL, "The shapes of the arrays of the batch.", NULL},
    {"dtypes", rows_dtypes, NULL, "The names of their dtypes, which are those of numpy and torch; \"\": not known.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject RowsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Rows",
    .tp_basicsize = sizeof(struct rows),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The rows of a batch that have not been gathered yet. Port.collate gathers them into the batch.",
    .tp_dealloc = rows_dealloc,
    .tp_methods = methods,
    .tp_getset = properties,
};
