/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Columns: tensors, arrays and lists of Arrow as columns of rows (headrace/source.h). */
#include "rows/rows.h"
#include "source/source.h"

/* ---- pieces ---- */

/* A column while its pieces are read. */
struct reading {
    struct columns *columns;
    struct hr_column *column;
    struct hr_piece *pieces;
};

/* The first piece decides how the rows of the column look. */
static bool fits_column(struct reading *reading, const struct hr_array *row) {
    struct hr_column *column = reading->column;
    if (!column->piece_count) {
        column->dtype = row->dtype;
        column->ndim = row->ndim;
        column->shape = row->shape;
        return true;
    }
    bool fits = column->ndim == row->ndim && column->dtype.code == row->dtype.code &&
                column->dtype.bits == row->dtype.bits && column->dtype.lanes == row->dtype.lanes;
    for (uint32_t i = 0; fits && i < row->ndim; i++) fits = column->shape[i] == row->shape[i];
    return fits;
}

static bool has_strides(const int64_t *strides, const int64_t *others, uint32_t ndim) {
    if (!strides || !others) return strides == others;
    return memcmp(strides, others, ndim * sizeof *strides) == 0;
}

/* Returns the strides of a row, NULL: C order. torch.stack chooses the memory format of its result by all strides, also
 * those of dimensions of size 1. */
static const int64_t *strides_of(const struct hr_array *row, bool is_of_torch) {
    int64_t expected = 1;
    bool is_exact = true;
    for (uint32_t i = row->ndim; i-- > 0;) {
        is_exact = is_exact && row->strides[i] == expected;
        expected *= row->shape[i] > 0 ? row->shape[i] : 1;
    }
    return is_exact || (!is_of_torch && array_is_c_order(row)) ? NULL : row->strides;
}

static enum found add_piece(struct reading *reading, const struct hr_array *row, struct hr_piece piece) {
    struct hr_column *column = reading->column;
    const struct hr_piece *first = column->piece_count ? reading->pieces : &piece;
    if (!fits_column(reading, row)) return FOUND_NOT;
    if (reading->columns->has_tensors && !has_strides(first->strides, piece.strides, row->ndim)) return FOUND_NOT;
    piece.first_row = column->row_count;
    column->row_count += piece.row_count;
    reading->pieces[column->piece_count++] = piece;
    return FOUND;
}

/* A program may have shrunk the storage of a tensor. torch looks at that when it makes a view, and the last row is the
 * one that ends last. */
static enum found is_in_storage(PyObject *tensor, const struct hr_array *array) {
    if (!array->shape[0]) return FOUND;
    PyObject *number = PyLong_FromLongLong(array->shape[0] - 1);
    PyObject *row = number ? PyObject_GetItem(tensor, number) : NULL;
    Py_XDECREF(number);
    Py_XDECREF(row);
    if (row) return FOUND;
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return FOUND_ERROR;
    PyErr_Clear();
    return FOUND_NOT;
}

/* The rows of an array are its items along the first dimension. */
static enum found read_array(struct reading *reading, PyObject *object) {
    struct hr_array array;
    bool is_of_torch = is_tensor(object);
    if (!is_of_torch && !is_array(object)) return FOUND_NOT;
    reading->columns->has_tensors |= is_of_torch;
    enum found found = is_of_torch ? input_tensor(&reading->columns->inputs, object, &array)
                                   : input_array(&reading->columns->inputs, object, &array);
    if (found != FOUND) return found;
    if (!array.ndim) return FOUND_NOT;
    if (is_of_torch) found = is_in_storage(object, &array);
    if (found != FOUND) return found;
    struct hr_array row = {.data = array.data,
                           .dtype = array.dtype,
                           .ndim = array.ndim - 1,
                           .shape = array.shape + 1,
                           .strides = array.strides + 1};
    int64_t item_bytes = (int64_t)array.dtype.bits * array.dtype.lanes / 8;
    struct hr_piece piece = {.data = array.data,
                             .row_count = (uint64_t)array.shape[0],
                             .stride_bytes = array.strides[0] * item_bytes,
                             .strides = strides_of(&row, is_of_torch)};
    return add_piece(reading, &row, piece);
}

static bool is_line(const struct hr_array *array) {
    return array->ndim == 1 && (array->shape[0] < 2 || array->strides[0] == 1);
}

/* Lists of numbers: (values, offsets), both arrays of one dimension. The length of a row is not known yet. */
static enum found read_lists(struct reading *reading, PyObject *pair) {
    enum { INT = 0 };
    static const int64_t unknown[] = {0};
    struct hr_array values, offsets;
    struct inputs *inputs = &reading->columns->inputs;
    if (PyTuple_GET_SIZE(pair) != 2 || !is_array(PyTuple_GET_ITEM(pair, 0)) || !is_array(PyTuple_GET_ITEM(pair, 1)))
        return FOUND_NOT;
    enum found found = input_array(inputs, PyTuple_GET_ITEM(pair, 0), &values);
    if (found == FOUND) found = input_array(inputs, PyTuple_GET_ITEM(pair, 1), &offsets);
    if (found != FOUND) return found;
    bool is_int = offsets.dtype.code == INT && (offsets.dtype.bits == 32 || offsets.dtype.bits == 64);
    if (!is_line(&values) || !is_line(&offsets) || !is_int || offsets.shape[0] < 1) return FOUND_NOT;
    struct hr_array row = {.dtype = values.dtype, .ndim = 1, .shape = unknown};
    struct hr_piece piece = {.data = values.data,
                             .row_count = (uint64_t)offsets.shape[0] - 1,
                             .offsets = offsets.data,
                             .offset_bytes = offsets.dtype.bits / 8,
                             .element_count = (uint64_t)values.shape[0]};
    return add_piece(reading, &row, piece);
}

/* ---- columns ---- */

/* The dtype in which Hugging Face's datasets give numbers to torch: int64, float32, bool. FOUND_NOT: no conversion. */
static enum found widen(struct hr_column *column) {
    enum { INT = 0, UINT = 1, FLOAT = 2, BOOL = 6 };
    struct hr_dtype dtype = column->dtype;
    bool is_int = dtype.code == INT || (dtype.code == UINT && dtype.bits < 64);
    if (is_int)
        column->to = (struct hr_dtype){INT, 64, 1};
    else if (dtype.code == FLOAT && (dtype.bits == 32 || dtype.bits == 64))
        column->to = (struct hr_dtype){FLOAT, 32, 1};
    else if (dtype.code != BOOL)
        return FOUND_NOT;
    return FOUND;
}

static enum found read_column(struct columns *columns, PyObject *pieces, struct hr_column *column, bool widens) {
    if (!PyTuple_Check(pieces) || !PyTuple_GET_SIZE(pieces)) return FOUND_NOT;
    Py_ssize_t count = PyTuple_GET_SIZE(pieces);
    struct reading reading = {.columns = columns, .column = column};
    reading.pieces = inputs_room(&columns->inputs, (size_t)count * sizeof *reading.pieces);
    if (!reading.pieces) return FOUND_ERROR;
    column->pieces = reading.pieces;
    enum found found = FOUND;
    for (Py_ssize_t i = 0; found == FOUND && i < count; i++) {
        PyObject *piece = PyTuple_GET_ITEM(pieces, i);
        found = PyTuple_Check(piece) ? read_lists(&reading, piece) : read_array(&reading, piece);
    }
    column->to = column->dtype;
    if (found == FOUND && widens) found = widen(column);
    uint64_t row_bytes;
    if (found == FOUND && hr_column_check(column, &row_bytes) < 0) found = FOUND_NOT;
    return found;
}

static enum found read_columns(struct columns *self, PyObject *columns, bool widens) {
    Py_ssize_t count = PyTuple_GET_SIZE(columns);
    if (!count || (self->names && PyTuple_GET_SIZE(self->names) != count) || (self->is_alone && count != 1))
        return FOUND_NOT;
    self->items = inputs_room(&self->inputs, (size_t)count * sizeof *self->items);
    if (!self->items) return FOUND_ERROR;
    for (; self->count < count; self->count++) {
        struct hr_column *column = &self->items[self->count];
        *column = (struct hr_column){.ndim = 0};
        enum found found = read_column(self, PyTuple_GET_ITEM(columns, self->count), column, widens);
        if (found != FOUND) return found;
        if (self->count && column->row_count != self->row_count) return FOUND_NOT;
        self->row_count = column->row_count;
    }
    return FOUND;
}

static PyObject *columns_of(PyObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"columns", "names", "is_alone", "widens", NULL};
    PyObject *columns, *given = Py_None;
    int is_alone = 0, widens = 0;
    (void)type;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!|Opp:of", names, &PyTuple_Type, &columns, &given,
                                     &is_alone, &widens))
        return NULL;
    if (given != Py_None && !PyTuple_Check(given))
        return PyErr_Format(PyExc_TypeError, "headrace: names are a tuple or None, not %s", Py_TYPE(given)->tp_name);
    struct columns *self = (struct columns *)ColumnsType.tp_alloc(&ColumnsType, 0);
    if (!self) return NULL;
    self->names = given == Py_None ? NULL : Py_NewRef(given);
    self->is_alone = is_alone;
    enum found found = read_columns(self, columns, widens);
    if (found == FOUND) return (PyObject *)self;
    Py_DECREF(self);
    if (found == FOUND_ERROR) return NULL;
    Py_RETURN_NONE;
}

/* Windows of token files: one column, or two if they have labels. */
static int describe_windows(struct columns *self, PyObject *tokens, long long length, bool has_labels) {
    enum { INT = 0 };
    int64_t *shape = inputs_room(&self->inputs, sizeof *shape);
    struct hr_tokens_info info;
    self->count = has_labels ? 2 : 1;
    self->items = shape ? inputs_room(&self->inputs, self->count * sizeof *self->items) : NULL;
    if (!self->items || inputs_keep(&self->inputs, tokens) < 0) return -1;
    self->tokens = tokens_of(tokens);
    hr_tokens_look(self->tokens, &info);
    self->row_count = info.sample_count;
    self->is_alone = !has_labels;
    *shape = length;
    for (uint32_t i = 0; i < self->count; i++)
        self->items[i] = (struct hr_column){
            .dtype = {INT, 64, 1}, .to = {INT, 64, 1}, .ndim = 1, .shape = shape, .row_count = self->row_count};
    return 0;
}

static PyObject *columns_of_windows(PyObject *type, PyObject *arguments) {
    PyObject *tokens;
    long long length;
    int has_labels;
    (void)type;
    if (!PyArg_ParseTuple(arguments, "O!Lp:of_windows", &TokensType, &tokens, &length, &has_labels)) return NULL;
    struct columns *self = (struct columns *)ColumnsType.tp_alloc(&ColumnsType, 0);
    if (self && describe_windows(self, tokens, length, has_labels) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

static void columns_dealloc(PyObject *object) {
    struct columns *self = (struct columns *)object;
    inputs_free(&self->inputs);
    Py_XDECREF(self->names);
    Py_TYPE(object)->tp_free(object);
}

static Py_ssize_t columns_length(PyObject *self) {
    return (Py_ssize_t)((struct columns *)self)->row_count;
}

static PyMethodDef methods[] = {
    {"of", (PyCFunction)(void (*)(void))columns_of, METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "of(columns, names=None, is_alone=False, widens=False) -> Columns | None\n\nReturns columns of as many rows each. "
     "A column is a tuple of pieces that follow each other: tensors or arrays, whose rows are along the first "
     "dimension, or pairs (values, offsets) of lists as Arrow stores them. names: a batch is a dict with these keys, "
     "else a list, or with is_alone the column itself. widens: integers become int64, float64 becomes float32. None: "
     "they cannot be gathered, because they have other kinds, or not all the same dtype and shape. A tensor must not "
     "be resized while this object is used."},
    {"of_windows", columns_of_windows, METH_VARARGS | METH_STATIC,
     "of_windows(tokens, length, has_labels) -> Columns\n\nReturns the windows of token files, which have this length, "
     "as a column; has_labels: as two, of which the second has the labels."},
    {"rows", rows_new, METH_O,
     "rows(indices) -> Rows | None\n\nReturns the batch of a list of indices, which is gathered later. None: an index "
     "is not an exact int, or negative, or out of range; or lists have several lengths; or there are no indices."},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods as_sequence = {.sq_length = columns_length};

PyTypeObject ColumnsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Columns",
    .tp_basicsize = sizeof(struct columns),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "Columns of rows of numbers, see headrace/source.h. Columns.of makes one.",
    .tp_dealloc = columns_dealloc,
    .tp_as_sequence = &as_sequence,
    .tp_methods = methods,
};
