/* SPDX-License-Identifier: Apache-2.0 */
#include "frozen/freeze.h"

#include <string.h>

/*
 * Freezes an object into frozen data with a work list: a frame per container that is being written, so that deep
 * nesting cannot overflow the stack. A container is made, with room for its items, before its items, so that a cycle
 * finds its value in the memo.
 *
 * The memo contains only objects with more than one reference, because no other object can refer to the rest. So
 * building frozen data takes little more memory than the frozen data itself. The memo has a reference to each of its
 * objects: otherwise the address of one could become that of another object.
 */

enum { TICK_ITEMS = 4096, PROGRESS_TICKS = 16, PROGRESS_BYTES = 16 << 20, FIRST_FRAMES = 64 };

int freeze_changed(struct freezer *freezer) {
    PyObject *path = freeze_path(freezer);
    if (path)
        PyErr_Format(PyExc_RuntimeError,
                     "headrace.freeze: %U was changed while it was being frozen; let no thread write to it", path);
    Py_XDECREF(path);
    return -1;
}

int freeze_tick(struct freezer *freezer, uint64_t items) {
    uint64_t before = freezer->done_count / TICK_ITEMS, now = (freezer->done_count += items) / TICK_ITEMS;
    uint64_t bytes = hr_builder_bytes(freezer->builder) - freezer->ahead_bytes;
    bool has_grown = bytes - freezer->reported_bytes >= PROGRESS_BYTES;
    if (now == before && !has_grown) return 0;
    if (has_grown) freezer->reported_bytes = bytes;
    if (PyErr_CheckSignals() < 0) return -1;
    if (!freezer->progress || (!has_grown && now / PROGRESS_TICKS == before / PROGRESS_TICKS)) return 0;
    PyObject *answer = PyObject_CallFunction(freezer->progress, "K", (unsigned long long)bytes);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

void freeze_count(struct freezer *freezer, enum hr_kind kind, uint64_t bytes_before) {
    freezer->counts[kind]++;
    freezer->bytes[kind] += hr_builder_bytes(freezer->builder) - bytes_before;
}

int freeze_memo(struct freezer *freezer, PyObject *object, hr_value value) {
    uint64_t *known = map_find(&freezer->memo, (uintptr_t)object);
    if (known) {
        *known = value;
        return 0;
    }
    if (map_add(&freezer->memo, (uintptr_t)object, value) < 0) return -1;
    Py_INCREF(object);
    return 0;
}

/* ---- frames ---- */

int freeze_push(struct freezer *freezer, struct freeze_frame frame) {
    if (freezer->frame_count == freezer->frame_room) {
        size_t room = freezer->frame_room ? 2 * freezer->frame_room : FIRST_FRAMES;
        struct freeze_frame *frames = PyMem_Realloc(freezer->frames, room * sizeof *frames);
        if (!frames) {
            PyErr_NoMemory();
            return -1;
        }
        freezer->frames = frames;
        freezer->frame_room = room;
    }
    Py_INCREF(frame.object);
    Py_XINCREF(frame.names);
    Py_XINCREF(frame.extra);
    frame.mark = hr_builder_bytes(freezer->builder);
    freezer->frames[freezer->frame_count++] = frame;
    return 0;
}

static void pop(struct freezer *freezer) {
    struct freeze_frame frame = freezer->frames[--freezer->frame_count];
    Py_DECREF(frame.object);
    Py_XDECREF(frame.names);
    Py_XDECREF(frame.extra);
    Py_XDECREF(frame.key);
}

/* ---- containers that are not packed ---- */

static int make(struct freezer *freezer, enum hr_kind kind, Py_ssize_t count, hr_value *ret_value) {
    uint64_t before = hr_builder_bytes(freezer->builder);
    int r = hr_builder_container(freezer->builder, kind, (uint64_t)count, ret_value);
    freeze_count(freezer, kind, before);
    return frozen_result(r);
}

static int begin_sequence(struct freezer *freezer, PyObject *sequence, hr_value *ret_value) {
    enum hr_kind kind = PyList_CheckExact(sequence) ? HR_KIND_LIST : HR_KIND_TUPLE;
    int packed = freeze_packed(freezer, sequence, ret_value);
    if (packed) return packed < 0 ? -1 : 0;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
    if (make(freezer, kind, count, ret_value) < 0) return -1;
    return freeze_push(
        freezer,
        (struct freeze_frame){.kind = FRAME_LIST, .object = sequence, .value = *ret_value, .count = (uint64_t)count});
}

/* 1: started as a record; 0: its keys cannot be field names. */
static int begin_record(struct freezer *freezer, PyObject *dict, hr_value *ret_value) {
    uint32_t shape;
    PyObject *names = names_of(dict);
    if (!names) return PyErr_Occurred() ? -1 : 0;
    int r = freeze_shape(freezer, NULL, NULL, HR_SHAPE_DICT, names, &shape);
    uint64_t before = hr_builder_bytes(freezer->builder);
    if (r > 0 && frozen_result(hr_builder_record(freezer->builder, shape, ret_value)) < 0) r = -1;
    if (r > 0) {
        freeze_count(freezer, HR_KIND_RECORD, before);
        struct freeze_frame frame = {.kind = FRAME_RECORD, .object = dict, .names = names, .value = *ret_value};
        frame.count = (uint64_t)PyTuple_GET_SIZE(names);
        if (freeze_push(freezer, frame) < 0) r = -1;
    }
    Py_DECREF(names);
    return r;
}

static int begin_dict(struct freezer *freezer, PyObject *dict, hr_value *ret_value) {
    int r = begin_record(freezer, dict, ret_value);
    if (r) return r < 0 ? -1 : 0;
    if (make(freezer, HR_KIND_DICT, PyDict_GET_SIZE(dict), ret_value) < 0) return -1;
    struct freeze_frame frame = {.kind = FRAME_DICT, .object = dict, .value = *ret_value};
    frame.count = (uint64_t)PyDict_GET_SIZE(dict);
    return freeze_push(freezer, frame);
}

static int begin_set(struct freezer *freezer, PyObject *set, hr_value *ret_value) {
    enum hr_kind kind = PyFrozenSet_CheckExact(set) ? HR_KIND_FROZEN_SET : HR_KIND_SET;
    PyObject *iterator = PyObject_GetIter(set);
    if (!iterator || make(freezer, kind, PySet_GET_SIZE(set), ret_value) < 0) {
        Py_XDECREF(iterator);
        return -1;
    }
    struct freeze_frame frame = {.kind = FRAME_SET, .object = set, .extra = iterator, .value = *ret_value};
    frame.count = (uint64_t)PySet_GET_SIZE(set);
    int r = freeze_push(freezer, frame);
    Py_DECREF(iterator);
    return r;
}

static int begin(struct freezer *freezer, PyObject *object, bool is_shared, hr_value *ret_value) {
    if (PyList_CheckExact(object) || PyTuple_CheckExact(object)) return begin_sequence(freezer, object, ret_value);
    if (PyDict_CheckExact(object)) return begin_dict(freezer, object, ret_value);
    if (PyAnySet_CheckExact(object)) return begin_set(freezer, object, ret_value);
    int r = freeze_bytes(freezer, object, ret_value);
    if (r == 0) r = freeze_array(freezer, object, ret_value);
    if (r) return r < 0 ? -1 : 0;
    return freeze_other(freezer, object, is_shared, ret_value);
}

int freeze_object(struct freezer *freezer, PyObject *object, bool is_shared, hr_value *ret_value) {
    int r = freeze_scalar(freezer, object, ret_value);
    if (r) return r < 0 ? -1 : 0;
    if (!is_shared) return begin(freezer, object, false, ret_value);
    const uint64_t *known = map_find(&freezer->memo, (uintptr_t)object);
    if (known && *known) {
        *ret_value = *known;
        return 0;
    }
    if (begin(freezer, object, true, ret_value) < 0) return -1;
    return freeze_memo(freezer, object, *ret_value);
}

/* ---- the work ---- */

/* Writes an item of the container of frame `top`, and puts it. Steals the item. 1: it pushed a frame. */
static int put(struct freezer *freezer, size_t top, PyObject *item, Py_ssize_t own_count, uint64_t index) {
    hr_value value, container = freezer->frames[top].value;
    int r = freeze_object(freezer, item, !is_lone(item, own_count), &value);
    Py_DECREF(item);
    if (r == 0) r = frozen_result(hr_builder_put(freezer->builder, container, index, value));
    if (r < 0 || freeze_tick(freezer, 1) < 0) return -1;
    return freezer->frame_count != top + 1;
}

static int advance_list(struct freezer *freezer, size_t top, Py_ssize_t own_count) {
    for (;;) {
        struct freeze_frame *frame = &freezer->frames[top];
        if (freezer->paths && freeze_account(freezer, top) < 0) return -1;
        if ((uint64_t)PySequence_Fast_GET_SIZE(frame->object) != frame->count) return freeze_changed(freezer);
        if (frame->next == frame->count) return 0;
        uint64_t index = frame->next++;
        PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(frame->object, (Py_ssize_t)index));
        int r = put(freezer, top, item, own_count, index);
        if (r) return r;
    }
}

static int push_instance_row(struct freezer *freezer, PyObject *item, const PyObject *type, struct freeze_frame row) {
    PyObject *values = NULL;
    if ((PyObject *)Py_TYPE(item) != type) return freeze_changed(freezer);
    PyObject *known = freeze_class(freezer, Py_TYPE(item));
    int r = known ? freeze_match(known, item, row.names, &values) : -1;
    if (r == 0) r = freeze_changed(freezer);
    row.kind = FRAME_FIELDS;
    row.object = values;
    if (r > 0) r = freeze_push(freezer, row);
    Py_XDECREF(values);
    return r;
}

static int push_row(struct freezer *freezer, const struct freeze_frame *rows, uint64_t index) {
    struct freeze_frame row = {.kind = FRAME_RECORD, .names = rows->names, .is_object = rows->is_object};
    row.count = (uint64_t)PyTuple_GET_SIZE(rows->names);
    if (frozen_result(hr_builder_row(freezer->builder, rows->value, index, &row.value)) < 0) return -1;
    PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(rows->object, (Py_ssize_t)index));
    int r = is_lone(item, 2) ? 0 : freeze_memo(freezer, item, row.value);
    if (r == 0 && row.is_object) {
        r = push_instance_row(freezer, item, rows->extra, row);
    } else if (r == 0) {
        row.object = item;
        r = PyDict_CheckExact(item) && has_names(item, row.names) ? freeze_push(freezer, row) : freeze_changed(freezer);
    }
    Py_DECREF(item);
    freezer->counts[HR_KIND_RECORD]++;
    return r < 0 ? -1 : 1;
}

static int advance_rows(struct freezer *freezer, size_t top) {
    struct freeze_frame *frame = &freezer->frames[top];
    if (freezer->paths && freeze_account(freezer, top) < 0) return -1;
    if ((uint64_t)PySequence_Fast_GET_SIZE(frame->object) != frame->count) return freeze_changed(freezer);
    if (frame->next == frame->count) return 0;
    frame->next++;
    struct freeze_frame rows = *frame; /* a push may move it */
    return push_row(freezer, &rows, rows.next - 1);
}

static int advance_record(struct freezer *freezer, size_t top) {
    for (;;) {
        PyObject *key, *item;
        struct freeze_frame *frame = &freezer->frames[top];
        if (freezer->paths && freeze_account(freezer, top) < 0) return -1;
        if ((uint64_t)PyDict_GET_SIZE(frame->object) != frame->count) return freeze_changed(freezer);
        if (frame->next == frame->count) return 0;
        if (!PyDict_Next(frame->object, &frame->at, &key, &item)) return freeze_changed(freezer);
        PyObject *name = PyTuple_GET_ITEM(frame->names, (Py_ssize_t)frame->next);
        if (key != name && !(PyUnicode_CheckExact(key) && PyUnicode_Compare(key, name) == 0))
            return freeze_changed(freezer);
        uint64_t index = frame->next++;
        int r = put(freezer, top, Py_NewRef(item), 2, index);
        if (r) return r;
    }
}

static int advance_set(struct freezer *freezer, size_t top) {
    for (;;) {
        struct freeze_frame *frame = &freezer->frames[top];
        if (freezer->paths && freeze_account(freezer, top) < 0) return -1;
        PyObject *item = PyIter_Next(frame->extra);
        if (!item && PyErr_Occurred()) return -1;
        if (!item) return frame->next == frame->count ? 0 : freeze_changed(freezer);
        if (frame->next == frame->count) {
            Py_DECREF(item);
            return freeze_changed(freezer);
        }
        uint64_t index = frame->next++;
        int r = put(freezer, top, item, 2, index);
        if (r) return r;
    }
}

/* 1: a frame was pushed; 0: done. */
static int put_key(struct freezer *freezer, size_t top) {
    PyObject *key, *value;
    struct freeze_frame *frame = &freezer->frames[top];
    if (!PyDict_Next(frame->object, &frame->at, &key, &value)) return freeze_changed(freezer);
    frame->extra = Py_NewRef(value);
    Py_XSETREF(frame->key, Py_NewRef(key));
    frame = &freezer->frames[top];
    frame->has_key = true;
    return put(freezer, top, Py_NewRef(key), 3, frame->next);
}

static int put_value(struct freezer *freezer, size_t top) {
    struct freeze_frame *frame = &freezer->frames[top];
    PyObject *item = frame->extra;
    hr_value value, dict = frame->value;
    uint64_t index = frame->next++;
    frame->extra = NULL;
    frame->has_key = false;
    int r = freeze_object(freezer, item, !is_lone(item, 2), &value);
    Py_DECREF(item);
    if (r == 0) r = frozen_result(hr_builder_put_entry(freezer->builder, dict, index, value));
    return r < 0 ? -1 : freezer->frame_count != top + 1;
}

static int advance_dict(struct freezer *freezer, size_t top) {
    for (;;) {
        const struct freeze_frame *frame = &freezer->frames[top];
        if (freezer->paths && freeze_account(freezer, top) < 0) return -1;
        if ((uint64_t)PyDict_GET_SIZE(frame->object) != frame->count) return freeze_changed(freezer);
        if (frame->next == frame->count && !frame->has_key) return 0;
        int r = frame->has_key ? put_value(freezer, top) : put_key(freezer, top);
        if (r) return r;
    }
}

static int advance(struct freezer *freezer, size_t top) {
    switch (freezer->frames[top].kind) {
    case FRAME_LIST:
        return advance_list(freezer, top, 2);
    case FRAME_FIELDS:
        return advance_list(freezer, top, 3);
    case FRAME_ROWS:
        return advance_rows(freezer, top);
    case FRAME_RECORD:
        return advance_record(freezer, top);
    case FRAME_SET:
        return advance_set(freezer, top);
    case FRAME_DICT:
        return advance_dict(freezer, top);
    }
    return -1;
}

static int finish(struct freezer *freezer, size_t top) {
    const struct freeze_frame *frame = &freezer->frames[top];
    uint64_t before = hr_builder_bytes(freezer->builder);
    int r = 0;
    if (frame->kind == FRAME_DICT || frame->kind == FRAME_SET)
        r = frozen_result(hr_builder_index(freezer->builder, frame->value));
    freezer->bytes[HR_KIND_DICT] += hr_builder_bytes(freezer->builder) - before;
    pop(freezer);
    return r;
}

int freezer_run(struct freezer *freezer, PyObject *object, hr_value *ret_root) {
    int r = freeze_object(freezer, object, true, ret_root);
    while (r == 0 && freezer->frame_count) {
        size_t top = freezer->frame_count - 1;
        r = advance(freezer, top);
        if (r == 0) r = finish(freezer, top);
        if (r > 0) r = 0; /* another frame is the top now */
    }
    return r;
}

/* ---- opening, closing ---- */

int freezer_open(struct freezer *freezer, PyObject *path, PyObject *progress, bool keeps_pickles) {
    *freezer = (struct freezer){.keeps_pickles = keeps_pickles};
    freezer->progress = progress == Py_None ? NULL : Py_NewRef(progress);
    freezer->shapes = PyDict_New();
    freezer->classes = PyDict_New();
    freezer->fields = PyDict_New();
    freezer->dtypes = PyDict_New();
    freezer->pickles = PyList_New(0);
    if (!freezer->shapes || !freezer->classes || !freezer->fields || !freezer->dtypes || !freezer->pickles) return -1;
    if (path != Py_None && !PyBytes_Check(path)) {
        PyErr_SetString(PyExc_TypeError, "headrace: the path has to be bytes");
        return -1;
    }
    if (path != Py_None && strlen(PyBytes_AS_STRING(path)) != (size_t)PyBytes_GET_SIZE(path)) {
        PyErr_SetString(PyExc_ValueError, "headrace: the path contains a null character");
        return -1;
    }
    return frozen_result(hr_builder_open(path == Py_None ? NULL : PyBytes_AS_STRING(path), &freezer->builder));
}

void freezer_forget(struct freezer *freezer) {
    while (freezer->frame_count) pop(freezer);
    Py_CLEAR(freezer->strided);
    struct map memo = freezer->memo;
    freezer->memo = (struct map){0};
    for (size_t i = 0; i < memo.room; i++)
        if (memo.entries[i].key) Py_DECREF((PyObject *)(uintptr_t)memo.entries[i].key);
    map_free(&memo);
}

void freezer_close(struct freezer *freezer) {
    freezer_forget(freezer);
    PyMem_Free(freezer->frames);
    freezer->frames = NULL;
    freezer->frame_room = 0;
    Py_CLEAR(freezer->progress);
    Py_CLEAR(freezer->paths);
    Py_CLEAR(freezer->shapes);
    Py_CLEAR(freezer->classes);
    Py_CLEAR(freezer->fields);
    Py_CLEAR(freezer->dtypes);
    Py_CLEAR(freezer->pickles);
    inputs_free(&freezer->inputs);
    freezer->inputs = (struct inputs){0};
    PyMem_Free(freezer->scratch);
    freezer->scratch = NULL;
    freezer->builder = hr_builder_close(freezer->builder);
}
