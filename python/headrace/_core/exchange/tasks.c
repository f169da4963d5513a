/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Tasks: draws the indices of batches from a sampler, and keeps them until they are used. */
#include "exchange/exchange.h"

#include <structmember.h>

/* _core.Tasks: the indices of one batch after the other, drawn from a sampler. A drawn task is kept until it has been
 * handed on, so an exception in between (for example of a signal handler) loses nothing. It reads what torch's samplers
 * read at the moments at which those read it. */
struct tasks {
    PyObject_HEAD PyObject *begin; /* is called before the first item is drawn; NULL: nothing has to be called */
    PyObject *iterable;            /* NULL: the iterator was given */
    PyObject *iterator;
    PyObject *lists; /* has a method `at` that gives lists of items; NULL: the iterator gives the items */
    PyObject *picks; /* its attribute `indices` is indexed by the items of those lists; NULL: they are the items */
    PyObject *kept;  /* an item that keep_item has drawn; it comes next */
    PyObject *list;  /* the newest of the lists, its number, and how many of it were taken */
    Py_ssize_t list_number, list_taken;
    PyObject *sizes;       /* its attribute batch_size is read when a batch begins; NULL: batch_size */
    Py_ssize_t batch_size; /* of the newest batch; 0: items are handed on as they come */
    PyObject *changes;     /* list: tuples of the number of a task and of the batch size from there on */
    bool is_batched, drop_last;
    bool is_dataset;                  /* the iterator is that of a dataset, which has ended when it has said so once */
    bool has_size;                    /* the batch size of the next batch was read */
    bool is_over;                     /* the iterator has come to its end */
    bool has_ended;                   /* no more tasks come */
    char reads_batches;               /* a task that can be read only once is read into a list */
    char keeps_sent;                  /* tasks are kept in `sent` and `last` */
    unsigned long long drawn_count;   /* tasks that were drawn, without those of skip */
    PyObject *batch;                  /* list: items of a batch that is not complete */
    PyObject *ahead;                  /* list: drawn by look, oldest first */
    PyObject *error;                  /* that the sampler raised after those, in look */
    PyObject *held;                   /* dict: thread -> what it has drawn and not handed on */
    PyObject *sent;                   /* dict: number -> task that was handed on and not answered */
    PyObject *last;                   /* the task that was answered last */
    Py_ssize_t skipped_count;         /* items that are left out of that batch */
    unsigned long long item_count;    /* items that the iterator gave */
    unsigned long long handed_count;  /* tasks that were handed on */
    unsigned long long sample_count;  /* in the tasks that were answered */
    unsigned long long drawn_samples; /* in the tasks that were drawn, without those of skip */
    unsigned long long lost_count;    /* tasks that were handed on and that no worker got; they have no number */
    unsigned long long answered_count, last_number; /* tasks that were answered, and the number of the last of them */
};

/* Takes what is iterated. `items`: an iterable, an iterator if `is_iterator`, or an object with lists. `size`: a batch
 * size, or an object that has one. is_dataset: the iterator gives samples. */
static int use_items(struct tasks *tasks, PyObject *items, PyObject *size, bool drop_last, bool has_lists,
                     bool is_iterator, bool is_dataset) {
    Py_ssize_t batch_size = 0;
    bool is_size = PyLong_Check(size);
    PyObject *now = is_size ? Py_NewRef(size) : PyObject_GetAttrString(size, "batch_size");
    if (now && PyLong_CheckExact(now)) batch_size = PyLong_AsSsize_t(now);
    Py_XDECREF(now);
    if (!now || (batch_size == -1 && PyErr_Occurred())) return -1;
    PyObject *picks = has_lists ? PyObject_GetAttrString(items, "picks") : NULL;
    if (has_lists && !picks) return -1;
    if (picks == Py_None) Py_CLEAR(picks);
    Py_XSETREF(tasks->picks, picks);
    Py_CLEAR(tasks->lists);
    Py_CLEAR(tasks->iterator);
    Py_CLEAR(tasks->iterable);
    *(has_lists ? &tasks->lists : is_iterator ? &tasks->iterator : &tasks->iterable) = Py_NewRef(items);
    Py_XSETREF(tasks->sizes, is_size ? NULL : Py_NewRef(size));
    tasks->batch_size = batch_size;
    tasks->is_batched = !is_size || batch_size > 0;
    tasks->drop_last = drop_last;
    tasks->is_dataset = is_dataset;
    return 0;
}

static PyObject *tasks_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"items", "batch_size", "drop_last", "lists", "is_iterator", NULL};
    PyObject *items, *size = NULL;
    int drop_last = 0, has_lists = 0, is_iterator = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|Oppp:Tasks", names, &items, &size, &drop_last, &has_lists,
                                     &is_iterator))
        return NULL;
    if (is_iterator && !PyIter_Check(items))
        return PyErr_Format(PyExc_TypeError, "headrace: %.200s is not an iterator", Py_TYPE(items)->tp_name);
    struct tasks *tasks = (struct tasks *)type->tp_alloc(type, 0);
    if (!tasks) return NULL;
    tasks->batch = PyList_New(0);
    tasks->ahead = PyList_New(0);
    tasks->changes = PyList_New(0);
    tasks->held = PyDict_New();
    tasks->sent = PyDict_New();
    PyObject *none = PyLong_FromLong(0);
    bool is_made = tasks->batch && tasks->ahead && tasks->changes && tasks->held && tasks->sent && none;
    if (!is_made || use_items(tasks, items, size ? size : none, drop_last, has_lists, is_iterator, is_iterator) < 0)
        Py_CLEAR(tasks);
    Py_XDECREF(none);
    return (PyObject *)tasks;
}

static int tasks_traverse(PyObject *self, visitproc visit, void *arg) {
    struct tasks *tasks = (struct tasks *)self;
    Py_VISIT(tasks->begin);
    Py_VISIT(tasks->iterable);
    Py_VISIT(tasks->iterator);
    Py_VISIT(tasks->lists);
    Py_VISIT(tasks->picks);
    Py_VISIT(tasks->kept);
    Py_VISIT(tasks->list);
    Py_VISIT(tasks->sizes);
    Py_VISIT(tasks->changes);
    Py_VISIT(tasks->batch);
    Py_VISIT(tasks->ahead);
    Py_VISIT(tasks->error);
    Py_VISIT(tasks->held);
    Py_VISIT(tasks->sent);
    Py_VISIT(tasks->last);
    return 0;
}

static int tasks_clear(PyObject *self) {
    struct tasks *tasks = (struct tasks *)self;
    Py_CLEAR(tasks->begin);
    Py_CLEAR(tasks->iterable);
    Py_CLEAR(tasks->iterator);
    Py_CLEAR(tasks->lists);
    Py_CLEAR(tasks->picks);
    Py_CLEAR(tasks->kept);
    Py_CLEAR(tasks->list);
    Py_CLEAR(tasks->sizes);
    Py_CLEAR(tasks->changes);
    Py_CLEAR(tasks->batch);
    Py_CLEAR(tasks->ahead);
    Py_CLEAR(tasks->error);
    Py_CLEAR(tasks->held);
    Py_CLEAR(tasks->sent);
    Py_CLEAR(tasks->last);
    return 0;
}

static void tasks_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    tasks_clear(self);
    Py_TYPE(self)->tp_free(self);
}

/* ---- items ---- */

/* Calls `begin`, once: it says what is iterated, as it is now. If it raises, the next draw calls it again. */
static int need_begin(struct tasks *tasks) {
    PyObject *items, *size;
    int drop_last, has_lists, is_iterator;
    if (!tasks->begin) return 0;
    PyObject *begin = Py_NewRef(tasks->begin), *found = PyObject_CallNoArgs(begin);
    Py_DECREF(begin);
    int r = found && PyArg_ParseTuple(found, "OOppp:begin", &items, &size, &drop_last, &has_lists, &is_iterator)
                ? use_items(tasks, items, size, drop_last, has_lists, is_iterator, tasks->is_dataset)
                : -1;
    Py_XDECREF(found);
    if (r == 0) Py_CLEAR(tasks->begin);
    return r;
}

/* Makes the iterator when the first item is drawn, like a generator around the sampler. */
static int need_iterator(struct tasks *tasks) {
    if (tasks->iterator) return 0;
    PyObject *iterator = PyObject_GetIter(tasks->iterable);
    if (!iterator) return -1;
    Py_XSETREF(tasks->iterator, iterator); /* code of the iterable may have drawn from these tasks too */
    return 0;
}

static PyObject *next_of_iterator(struct tasks *tasks) {
    PyObject *kept = tasks->kept;
    tasks->kept = NULL;
    if (kept || need_iterator(tasks) < 0) return kept;
    PyObject *iterator = Py_NewRef(tasks->iterator);
    PyObject *item = PyIter_Next(iterator);
    Py_DECREF(iterator);
    return item;
}

/* Has the next list that is not empty. Returns 1, 0 at the end, or -1 with an exception. */
static int need_list(struct tasks *tasks) {
    while (!tasks->list || tasks->list_taken >= PyList_GET_SIZE(tasks->list)) {
        PyObject *list = PyObject_CallMethod(tasks->lists, "at", "n", tasks->list_number);
        if (!list) return -1;
        if (list == Py_None) {
            Py_DECREF(list);
            return 0;
        }
        if (!PyList_CheckExact(list)) {
            Py_DECREF(list);
            PyErr_Format(PyExc_TypeError, "headrace: Tasks with lists should be given lists");
            return -1;
        }
        Py_XSETREF(tasks->list, list);
        tasks->list_number++;
        tasks->list_taken = 0;
    }
    return 1;
}

static PyObject *next_of_list(struct tasks *tasks) {
    if (need_list(tasks) < 1) return NULL;
    PyObject *item = Py_NewRef(PyList_GET_ITEM(tasks->list, tasks->list_taken));
    if (tasks->picks) {
        PyObject *indices = PyObject_GetAttrString(tasks->picks, "indices");
        Py_SETREF(item, indices ? PyObject_GetItem(indices, item) : NULL);
        Py_XDECREF(indices);
    }
    if (item) tasks->list_taken++;
    return item;
}

/* Returns the next item, a new reference; NULL without an exception: there are no more. */
static PyObject *next_item(struct tasks *tasks) {
    if (tasks->has_ended) return NULL;
    PyObject *item = tasks->lists ? next_of_list(tasks) : next_of_iterator(tasks);
    tasks->item_count += item != NULL;
    if (!item && !PyErr_Occurred()) tasks->is_over = true;
    return item;
}

/* ---- batches ---- */

/* Converts a batch size as itertools.islice does, which torch's BatchSampler makes its batches by: None means all that
 * is left. Returns -1 with islice's exception. */
static Py_ssize_t to_size(PyObject *value) {
    if (value == Py_None) return PY_SSIZE_T_MAX;
    Py_ssize_t size = PyIndex_Check(value) ? PyNumber_AsSsize_t(value, PyExc_OverflowError) : -1;
    if (size >= 0) return size;
    PyErr_Clear();
    PyObject *itertools = PyImport_ImportModule("itertools");
    PyObject *empty = itertools ? PyTuple_New(0) : NULL;
    PyObject *slice = empty ? PyObject_CallMethod(itertools, "islice", "OO", empty, value) : NULL;
    if (slice) PyErr_Format(PyExc_ValueError, "headrace: %R is no batch size", value);
    Py_XDECREF(slice);
    Py_XDECREF(empty);
    Py_XDECREF(itertools);
    return -1;
}

/* Reads the size of the batch that begins, and notes if it is another one. */
static int read_size(struct tasks *tasks) {
    PyObject *value = PyObject_GetAttrString(tasks->sizes, "batch_size");
    Py_ssize_t size = value ? to_size(value) : -1;
    Py_XDECREF(value);
    tasks->has_ended |= size <= 0; /* after an error, too: a generator that makes batches would have ended */
    if (size < 0) return -1;
    if (size != tasks->batch_size) {
        PyObject *change = Py_BuildValue("Kn", tasks->drawn_count - tasks->lost_count, size);
        int r = change ? PyList_Append(tasks->changes, change) : -1;
        Py_XDECREF(change);
        if (r < 0) return -1;
    }
    tasks->batch_size = size;
    return 0;
}

static PyObject *take_batch(struct tasks *tasks) {
    PyObject *empty = PyList_New(0);
    PyObject *batch = empty ? tasks->batch : NULL;
    if (batch) tasks->batch = empty;
    if (batch) tasks->skipped_count = 0;
    if (batch) tasks->has_size = false;
    return batch;
}

/* Returns true if the batch is complete: it has at least one item, and as many as the batch size minus those that were
 * left out. */
static bool is_complete(const struct tasks *tasks) {
    Py_ssize_t count = PyList_GET_SIZE(tasks->batch);
    return count > 0 && count >= tasks->batch_size - tasks->skipped_count;
}

/* No item is left for the batch. A generator that makes batches gives what it has, and has ended if it has nothing; one
 * that drops the last batch has ended at once. */
static PyObject *last_batch(struct tasks *tasks) {
    if (PyErr_Occurred()) return NULL;
    bool is_short = PyList_GET_SIZE(tasks->batch) > 0 && !tasks->drop_last;
    tasks->has_ended = !is_short || tasks->is_dataset;
    return is_short ? take_batch(tasks) : NULL;
}

static PyObject *next_batch(struct tasks *tasks) {
    if (tasks->has_ended && !tasks->is_dataset) return NULL;
    if (tasks->sizes && !tasks->has_size && read_size(tasks) < 0) return NULL;
    if (tasks->has_ended) return NULL;
    tasks->has_size = true;
    while (!is_complete(tasks)) {
        PyObject *item = next_item(tasks);
        if (!item) return last_batch(tasks);
        int r = PyList_Append(tasks->batch, item);
        Py_DECREF(item);
        if (r < 0) return NULL;
    }
    return take_batch(tasks);
}

/* Returns the next batch, or the next item if there are no batches. NULL without an exception: the end. */
static PyObject *next_task(struct tasks *tasks) {
    if (need_begin(tasks) < 0) return NULL;
    PyObject *task = tasks->is_batched ? next_batch(tasks) : next_item(tasks);
    tasks->drawn_count += task != NULL;
    return task;
}

/* The next task after those in `ahead`. */
static PyObject *next_after_ahead(struct tasks *tasks) {
    if (!tasks->error) return next_task(tasks);
    PyObject *error = tasks->error;
    tasks->error = NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return NULL;
}

static PyObject *take_first(PyObject *list) {
    PyObject *first = Py_NewRef(PyList_GET_ITEM(list, 0));
    if (PyList_SetSlice(list, 0, 1, NULL) < 0) Py_CLEAR(first);
    return first;
}

static PyObject *this_thread(void) {
    return PyLong_FromUnsignedLong(PyThread_get_thread_ident());
}

static unsigned long long samples_in(PyObject *task) {
    return PyList_CheckExact(task) ? (unsigned long long)PyList_GET_SIZE(task) : 1;
}

PyObject *tasks_draw(PyObject *self) {
    struct tasks *tasks = (struct tasks *)self;
    PyObject *thread = this_thread();
    PyObject *task = thread ? Py_XNewRef(PyDict_GetItemWithError(tasks->held, thread)) : NULL;
    if (!task && !PyErr_Occurred()) {
        task = PyList_GET_SIZE(tasks->ahead) ? take_first(tasks->ahead) : next_after_ahead(tasks);
        if (task && tasks->reads_batches && PyIter_Check(task)) Py_SETREF(task, PySequence_List(task));
        if (task) tasks->drawn_samples += samples_in(task);
        if (task && PyDict_SetItem(tasks->held, thread, task) < 0) Py_CLEAR(task);
    }
    Py_XDECREF(thread);
    return task;
}

/* Keeps a task that was handed on until it is answered. Without memory for that, it cannot be named later. */
static void keep_sent(struct tasks *tasks, PyObject *task) {
    PyObject *number = PyLong_FromUnsignedLongLong(tasks->handed_count - tasks->lost_count);
    if (number) PyDict_SetItem(tasks->sent, number, task);
    Py_XDECREF(number);
}

/* Removes this thread's task from those that are held. Returns it, or NULL if it holds none. */
static PyObject *take_held(struct tasks *tasks) {
    PyObject *thread = this_thread();
    PyObject *task = thread ? Py_XNewRef(PyDict_GetItemWithError(tasks->held, thread)) : NULL;
    if (task && PyDict_DelItem(tasks->held, thread) < 0) Py_CLEAR(task);
    PyErr_Clear();
    Py_XDECREF(thread);
    return task;
}

void tasks_handed_on(PyObject *self) {
    struct tasks *tasks = (struct tasks *)self;
    PyObject *task = take_held(tasks);
    if (!task) return;
    if (tasks->keeps_sent) keep_sent(tasks, task);
    tasks->handed_count++;
    Py_DECREF(task);
    PyErr_Clear();
}

unsigned long long tasks_sample_count(PyObject *tasks) {
    return ((struct tasks *)tasks)->sample_count;
}

void tasks_answered(PyObject *self, unsigned long long number) {
    struct tasks *tasks = (struct tasks *)self;
    PyObject *key = PyLong_FromUnsignedLongLong(number);
    PyObject *task = key ? Py_XNewRef(PyDict_GetItemWithError(tasks->sent, key)) : NULL;
    if (task) {
        PyDict_DelItem(tasks->sent, key);
        tasks->sample_count += samples_in(task);
        Py_XSETREF(tasks->last, task);
    }
    tasks->answered_count++;
    tasks->last_number = number;
    if (PyErr_Occurred()) PyErr_Clear(); /* without memory for the number, the task stays among those that are open */
    Py_XDECREF(key);
}

/* For a batch that was made in this process: it is handed on and answered at once. */
void tasks_done(PyObject *self) {
    struct tasks *tasks = (struct tasks *)self;
    PyObject *task = take_held(tasks);
    if (!task) return;
    tasks->last_number = tasks->handed_count - tasks->lost_count;
    tasks->handed_count++;
    tasks->answered_count++;
    tasks->sample_count += samples_in(task);
    if (tasks->keeps_sent)
        Py_XSETREF(tasks->last, task);
    else
        Py_DECREF(task);
}

static PyObject *py_draw(PyObject *self, PyObject *ignored) {
    (void)ignored;
    PyObject *task = tasks_draw(self);
    if (!task && !PyErr_Occurred()) PyErr_SetNone(PyExc_StopIteration);
    return task;
}

static PyObject *tasks_next(PyObject *self) {
    PyObject *task = tasks_draw(self);
    if (task) tasks_done(self);
    return task;
}

static PyObject *py_done(PyObject *self, PyObject *ignored) {
    (void)ignored;
    tasks_done(self);
    Py_RETURN_NONE;
}

static PyObject *py_lose(PyObject *self, PyObject *ignored) {
    struct tasks *tasks = (struct tasks *)self;
    PyObject *task = take_held(tasks);
    (void)ignored;
    tasks->handed_count += task != NULL;
    tasks->lost_count += task != NULL;
    Py_XDECREF(task);
    Py_RETURN_NONE;
}

static PyObject *py_skip(PyObject *self, PyObject *argument) {
    struct tasks *tasks = (struct tasks *)self;
    Py_ssize_t count = PyLong_AsSsize_t(argument), skipped = 0;
    PyObject *last = NULL;
    if (count == -1 && PyErr_Occurred()) return NULL;
    while (skipped < count) {
        PyObject *task = next_task(tasks);
        if (!task) break;
        Py_XSETREF(last, task);
        tasks->drawn_count--;
        skipped++;
    }
    if (PyErr_Occurred()) {
        Py_XDECREF(last);
        return NULL;
    }
    return Py_BuildValue("nN", skipped, last ? last : Py_NewRef(Py_None));
}

static PyObject *py_look(PyObject *self, PyObject *argument) {
    struct tasks *tasks = (struct tasks *)self;
    Py_ssize_t count = PyLong_AsSsize_t(argument);
    if (count == -1 && PyErr_Occurred()) return NULL;
    while (PyList_GET_SIZE(tasks->ahead) < count && !tasks->error) {
        PyObject *task = next_task(tasks);
        if (!task && PyErr_Occurred()) return NULL;
        if (!task) break;
        int r = PyList_Append(tasks->ahead, task);
        Py_DECREF(task);
        if (r < 0) return NULL;
    }
    return PyList_GetSlice(tasks->ahead, 0, count);
}

static PyObject *py_rest_of_list(PyObject *self, PyObject *ignored) {
    struct tasks *tasks = (struct tasks *)self;
    (void)ignored;
    PyObject *list = tasks->list ? Py_NewRef(tasks->list) : PyList_New(0);
    PyObject *rest = list ? PyObject_GetIter(list) : NULL;
    PyObject *none = rest ? PyObject_CallMethod(rest, "__setstate__", "n", tasks->list_taken) : NULL;
    if (!none) Py_CLEAR(rest);
    Py_XDECREF(none);
    Py_XDECREF(list);
    return rest;
}

static PyObject *py_keep_error(PyObject *self, PyObject *error) {
    if (!PyExceptionInstance_Check(error)) return PyErr_Format(PyExc_TypeError, "headrace: not an exception");
    Py_XSETREF(((struct tasks *)self)->error, Py_NewRef(error));
    Py_RETURN_NONE;
}

static PyObject *py_keep_item(PyObject *self, PyObject *ignored) {
    struct tasks *tasks = (struct tasks *)self;
    (void)ignored;
    if (!tasks->kept && need_begin(tasks) == 0) {
        PyObject *item = next_of_iterator(tasks);
        Py_XSETREF(tasks->kept, item); /* code of the iterator may have called this too */
    }
    return PyErr_Occurred() ? NULL : PyBool_FromLong(tasks->kept != NULL);
}

static PyObject *py_use_iterator(PyObject *self, PyObject *iterator) {
    if (!PyIter_Check(iterator))
        return PyErr_Format(PyExc_TypeError, "headrace: %.200s is not an iterator", Py_TYPE(iterator)->tp_name);
    Py_XSETREF(((struct tasks *)self)->iterator, Py_NewRef(iterator));
    Py_RETURN_NONE;
}

static PyObject *py_skip_item(PyObject *self, PyObject *ignored) {
    (void)ignored;
    ((struct tasks *)self)->skipped_count++;
    Py_RETURN_NONE;
}

static PyObject *py_drop_batch(PyObject *self, PyObject *ignored) {
    struct tasks *tasks = (struct tasks *)self;
    (void)ignored;
    tasks->skipped_count = 0;
    if (PyList_SetSlice(tasks->batch, 0, PY_SSIZE_T_MAX, NULL) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *py_end_after_error(PyObject *self, PyObject *ignored) {
    struct tasks *tasks = (struct tasks *)self;
    (void)ignored;
    if (tasks->begin) Py_RETURN_NONE; /* what was called before the first item is called again */
    if (PyList_SetSlice(tasks->batch, 0, PY_SSIZE_T_MAX, NULL) < 0) return NULL;
    tasks->has_ended = tasks->is_batched || tasks->lists;
    Py_RETURN_NONE;
}

static PyObject *py_begin_by(PyObject *self, PyObject *begin) {
    Py_XSETREF(((struct tasks *)self)->begin, Py_NewRef(begin));
    Py_RETURN_NONE;
}

static PyObject *tasks_is_held(PyObject *self, void *ignored) {
    PyObject *thread = this_thread();
    (void)ignored;
    int r = thread ? PyDict_Contains(((struct tasks *)self)->held, thread) : -1;
    Py_XDECREF(thread);
    return r < 0 ? NULL : PyBool_FromLong(r);
}

static PyObject *tasks_is_over(PyObject *self, void *ignored) {
    const struct tasks *tasks = (const struct tasks *)self;
    (void)ignored;
    return PyBool_FromLong(tasks->is_over || tasks->has_ended);
}

static PyObject *py_is_ended(PyObject *self, PyObject *ignored) {
    struct tasks *tasks = (struct tasks *)self;
    (void)ignored;
    return PyBool_FromLong(tasks->is_over || tasks->has_ended ||
                           (tasks->iterator && PyGen_CheckExact(tasks->iterator)));
}

static PyMethodDef methods[] = {
    {"draw", py_draw, METH_NOARGS,
     "draw() -> object\n\nReturns the next task, the same one for this thread until it is handed on. Raises "
     "StopIteration at the end, and any exception of the sampler."},
    {"done", py_done, METH_NOARGS,
     "done()\n\nMarks this thread's task as handed on and answered, for a batch that was made in this process."},
    {"lose", py_lose, METH_NOARGS, "lose()\n\nMarks this thread's task as one that cannot be sent to a worker."},
    {"skip", py_skip, METH_O,
     "skip(count) -> (int, object)\n\nDraws up to `count` tasks and drops them, before the first one is handed on. "
     "Returns how many there were, and the last one or None. Raises any exception of the sampler."},
    {"look", py_look, METH_O,
     "look(count) -> list\n\nReturns up to `count` tasks that come after those that were drawn. Raises what the "
     "sampler raises."},
    {"rest_of_list", py_rest_of_list, METH_NOARGS,
     "rest_of_list() -> iterator\n\nReturns an iterator over what is left of the newest of the lists. Draws nothing."},
    {"keep_error", py_keep_error, METH_O,
     "keep_error(error)\n\nKeeps an exception that look raised for the draw whose turn it is."},
    {"keep_item", py_keep_item, METH_NOARGS,
     "keep_item() -> bool\n\nDraws the next item from the iterator, and keeps it: it comes next. Returns False at "
     "its end. Raises any exception of the iterator."},
    {"use_iterator", py_use_iterator, METH_O,
     "use_iterator(iterator)\n\nTakes the items that follow from another iterator."},
    {"skip_item", py_skip_item, METH_NOARGS,
     "skip_item()\n\nLeaves an item out: the current batch gets one item less, but at least one."},
    {"drop_batch", py_drop_batch, METH_NOARGS, "drop_batch()\n\nDrops the items of an incomplete batch."},
    {"begin_by", py_begin_by, METH_O,
     "begin_by(begin)\n\nLets a function say what is iterated when the first item is drawn: begin() -> (items, "
     "batch_size, drop_last, lists, is_iterator), as the arguments of Tasks. If it raises, the next draw calls it "
     "again."},
    {"end_after_error", py_end_after_error, METH_NOARGS,
     "end_after_error()\n\nEnds the tasks, and drops an incomplete batch, if items are grouped into batches or come in "
     "lists: the generators of torch's samplers, which these stand for, would have ended with the exception."},
    {"is_ended_by_exceptions", py_is_ended, METH_NOARGS,
     "is_ended_by_exceptions() -> bool\n\nReturns True if an exception of the sampler ends them: it is a generator, or "
     "end_after_error has ended them."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"reads_batches", T_BOOL, offsetof(struct tasks, reads_batches), 0,
     "Whether a task that can be read only once is read into a list. It is False at first."},
    {"keeps_sent", T_BOOL, offsetof(struct tasks, keeps_sent), 0,
     "Whether tasks are kept in `sent` and `last`. It is False at first."},
    {"iterator", T_OBJECT, offsetof(struct tasks, iterator), READONLY,
     "What gives the items, or None if nothing was drawn, or if they come in lists."},
    {"picks", T_OBJECT, offsetof(struct tasks, picks), READONLY,
     "Its attribute `indices` is indexed by what is in the lists, or None."},
    {"item_count", T_ULONGLONG, offsetof(struct tasks, item_count), READONLY, "How many items the iterator gave."},
    {"handed_count", T_ULONGLONG, offsetof(struct tasks, handed_count), READONLY, "How many tasks were handed on."},
    {"changes", T_OBJECT_EX, offsetof(struct tasks, changes), READONLY,
     "The changes of the batch size: tuples of the number of a task, and of the size from there on."},
    {"lost_count", T_ULONGLONG, offsetof(struct tasks, lost_count), READONLY,
     "How many tasks were handed on and no worker got. They have no number."},
    {"drawn_samples", T_ULONGLONG, offsetof(struct tasks, drawn_samples), READONLY,
     "How many samples the tasks have that were drawn, without those of skip."},
    {"answered_samples", T_ULONGLONG, offsetof(struct tasks, sample_count), READONLY,
     "How many samples the tasks have that were answered."},
    {"answered_count", T_ULONGLONG, offsetof(struct tasks, answered_count), READONLY, "How many tasks were answered."},
    {"sent", T_OBJECT_EX, offsetof(struct tasks, sent), READONLY,
     "The tasks that were handed on and not answered, by number."},
    {"last", T_OBJECT, offsetof(struct tasks, last), READONLY, "The task that was answered last, or None."},
    {"last_number", T_ULONGLONG, offsetof(struct tasks, last_number), READONLY, "The number of that task."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"is_over", tasks_is_over, NULL, "True if the iterator has come to its end, or if no more tasks come.", NULL},
    {"is_held", tasks_is_held, NULL, "True if this thread has drawn a task and not handed it on.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject TasksType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Tasks",
    .tp_basicsize = sizeof(struct tasks),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc =
        "What a loader is to make, drawn from a sampler: Tasks(items, batch_size=0, drop_last=False, lists=False, "
        "is_iterator=False). items: an iterable; with is_iterator an iterator, whose __iter__ is not called again; "
        "with lists an object with at(number), which returns a list of items or None at the end, and `picks`: None, or "
        "an object whose attribute `indices` is indexed by what is in the lists. batch_size: so many items make a "
        "task; 0: an item is one; an object with the attribute batch_size: it is read when a batch begins.",
    .tp_new = tasks_new,
    .tp_dealloc = tasks_dealloc,
    .tp_traverse = tasks_traverse,
    .tp_clear = tasks_clear,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = tasks_next,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = properties,
};
