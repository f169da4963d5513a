/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Tasks: draws the indices of batches from a sampler, and keeps them until they are used. */
#include "exchange/exchange.h"

#include <structmember.h>

/* _core.Tasks: the indices of one batch after the other, drawn from a sampler. A drawn task is kept until it has been
 * handed on, so an exception in between (for example of a signal handler) loses nothing. */
struct tasks {
    PyObject_HEAD PyObject *iterable; /* NULL: the iterator was given */
    PyObject *iterator;
    PyObject *list; /* where the iterator gives lists of items: the newest, and how many of it were taken */
    Py_ssize_t list_taken;
    Py_ssize_t batch_size; /* 0: items are handed on as they come */
    bool drop_last, has_lists, is_over;
    char reads_batches;              /* a task that can be read only once is read into a list */
    char keeps_sent;                 /* tasks are kept in `sent` and `last` */
    PyObject *batch;                 /* list: items of a batch that is not complete */
    PyObject *ahead;                 /* list: drawn by look, oldest first */
    PyObject *error;                 /* that the sampler raised after those, in look */
    PyObject *held;                  /* dict: thread -> what it has drawn and not handed on */
    PyObject *sent;                  /* dict: number -> task that was handed on and not answered */
    PyObject *last;                  /* the task that was answered last */
    Py_ssize_t skipped_count;        /* items that are left out of that batch */
    unsigned long long item_count;   /* items that the iterator gave */
    unsigned long long handed_count; /* tasks that were handed on */
    unsigned long long sample_count; /* in the tasks that were answered */
    unsigned long long lost_count;   /* tasks that were handed on and that no worker got; they have no number */
    unsigned long long answered_count, last_number; /* tasks that were answered, and the number of the last of them */
};

static PyObject *tasks_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"iterable", "batch_size", "drop_last", "lists", "is_iterator", NULL};
    PyObject *iterable;
    Py_ssize_t batch_size = 0;
    int drop_last = 0, has_lists = 0, is_iterator = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|nppp:Tasks", names, &iterable, &batch_size, &drop_last,
                                     &has_lists, &is_iterator))
        return NULL;
    if (is_iterator && !PyIter_Check(iterable))
        return PyErr_Format(PyExc_TypeError, "headrace: %.200s is not an iterator", Py_TYPE(iterable)->tp_name);
    struct tasks *tasks = (struct tasks *)type->tp_alloc(type, 0);
    if (!tasks) return NULL;
    *(is_iterator ? &tasks->iterator : &tasks->iterable) = Py_NewRef(iterable);
    tasks->batch_size = batch_size;
    tasks->drop_last = drop_last;
    tasks->has_lists = has_lists;
    tasks->batch = PyList_New(0);
    tasks->ahead = PyList_New(0);
    tasks->held = PyDict_New();
    tasks->sent = PyDict_New();
    if (!tasks->batch || !tasks->ahead || !tasks->held || !tasks->sent) Py_CLEAR(tasks);
    return (PyObject *)tasks;
}

static int tasks_traverse(PyObject *self, visitproc visit, void *arg) {
    struct tasks *tasks = (struct tasks *)self;
    Py_VISIT(tasks->iterable);
    Py_VISIT(tasks->iterator);
    Py_VISIT(tasks->list);
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
    Py_CLEAR(tasks->iterable);
    Py_CLEAR(tasks->iterator);
    Py_CLEAR(tasks->list);
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

/* Makes the iterator when the first item is drawn, like a generator around the sampler. */
static int need_iterator(struct tasks *tasks) {
    if (tasks->iterator) return 0;
    PyObject *iterator = PyObject_GetIter(tasks->iterable);
    if (!iterator) return -1;
    Py_XSETREF(tasks->iterator, iterator); /* code of the iterable may have drawn from these tasks too */
    return 0;
}

static PyObject *next_of_iterator(struct tasks *tasks) {
    PyObject *iterator = Py_NewRef(tasks->iterator);
    PyObject *item = PyIter_Next(iterator);
    Py_DECREF(iterator);
    return item;
}

/* The next item of the list, or of the next one that is not empty. */
static PyObject *next_of_list(struct tasks *tasks) {
    while (!tasks->list || tasks->list_taken >= PyList_GET_SIZE(tasks->list)) {
        PyObject *list = next_of_iterator(tasks);
        if (!list) return NULL;
        if (!PyList_CheckExact(list)) {
            Py_DECREF(list);
            return PyErr_Format(PyExc_TypeError, "headrace: Tasks with lists should be given an iterator over lists");
        }
        Py_XSETREF(tasks->list, list);
        tasks->list_taken = 0;
    }
    return Py_NewRef(PyList_GET_ITEM(tasks->list, tasks->list_taken++));
}

/* Returns the next item, a new reference; NULL without an exception: the sampler is exhausted, and stays so, as with
 * the generator that torch makes batches by. */
static PyObject *next_item(struct tasks *tasks) {
    if (tasks->is_over || need_iterator(tasks) < 0) return NULL;
    PyObject *item = tasks->has_lists ? next_of_list(tasks) : next_of_iterator(tasks);
    tasks->item_count += item != NULL;
    if (!item && !PyErr_Occurred()) tasks->is_over = true;
    return item;
}

static PyObject *take_batch(struct tasks *tasks) {
    PyObject *empty = PyList_New(0);
    PyObject *batch = empty ? tasks->batch : NULL;
    if (batch) tasks->batch = empty;
    if (batch) tasks->skipped_count = 0;
    return batch;
}

/* Returns true if the batch is complete: it has at least one item, and as many as the batch size minus those that were
 * left out. */
static bool is_complete(const struct tasks *tasks) {
    Py_ssize_t count = PyList_GET_SIZE(tasks->batch);
    return count > 0 && count + tasks->skipped_count >= tasks->batch_size;
}

/* Returns the next batch, or the next item if there are no batches. NULL without an exception: the end. */
static PyObject *next_task(struct tasks *tasks) {
    if (!tasks->batch_size) return next_item(tasks);
    while (!is_complete(tasks)) {
        PyObject *item = next_item(tasks);
        if (!item) {
            bool is_last = !PyErr_Occurred() && PyList_GET_SIZE(tasks->batch) > 0 && !tasks->drop_last;
            return is_last ? take_batch(tasks) : NULL;
        }
        int r = PyList_Append(tasks->batch, item);
        Py_DECREF(item);
        if (r < 0) return NULL;
    }
    return take_batch(tasks);
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

PyObject *tasks_draw(PyObject *self) {
    struct tasks *tasks = (struct tasks *)self;
    PyObject *thread = this_thread();
    PyObject *task = thread ? Py_XNewRef(PyDict_GetItemWithError(tasks->held, thread)) : NULL;
    if (!task && !PyErr_Occurred()) {
        task = PyList_GET_SIZE(tasks->ahead) ? take_first(tasks->ahead) : next_after_ahead(tasks);
        if (task && tasks->reads_batches && PyIter_Check(task)) Py_SETREF(task, PySequence_List(task));
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

static void count_samples(struct tasks *tasks, PyObject *task) {
    tasks->sample_count += PyList_CheckExact(task) ? (unsigned long long)PyList_GET_SIZE(task) : 1;
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
        count_samples(tasks, task);
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
    count_samples(tasks, task);
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

static PyObject *py_keep_error(PyObject *self, PyObject *error) {
    if (!PyExceptionInstance_Check(error)) return PyErr_Format(PyExc_TypeError, "headrace: not an exception");
    Py_XSETREF(((struct tasks *)self)->error, Py_NewRef(error));
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

static PyObject *py_end_if_batched(PyObject *self, PyObject *ignored) {
    struct tasks *tasks = (struct tasks *)self;
    (void)ignored;
    if (PyList_SetSlice(tasks->batch, 0, PY_SSIZE_T_MAX, NULL) < 0) return NULL;
    tasks->is_over = tasks->batch_size > 0;
    Py_RETURN_NONE;
}

static PyObject *tasks_is_held(PyObject *self, void *ignored) {
    PyObject *thread = this_thread();
    (void)ignored;
    int r = thread ? PyDict_Contains(((struct tasks *)self)->held, thread) : -1;
    Py_XDECREF(thread);
    return r < 0 ? NULL : PyBool_FromLong(r);
}

static PyObject *py_is_ended(PyObject *self, PyObject *ignored) {
    struct tasks *tasks = (struct tasks *)self;
    (void)ignored;
    return PyBool_FromLong(tasks->is_over || (tasks->iterator && PyGen_CheckExact(tasks->iterator)));
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
     "look(count) -> list\n\nReturns up to `count` tasks that come after those that were drawn. What the sampler "
     "raises."},
    {"keep_error", py_keep_error, METH_O,
     "keep_error(error)\n\nKeeps an exception that look raised for the draw whose turn it is."},
    {"skip_item", py_skip_item, METH_NOARGS,
     "skip_item()\n\nLeaves an item out: the current batch gets one item less, but at least one."},
    {"drop_batch", py_drop_batch, METH_NOARGS, "drop_batch()\n\nDrops the items of an incomplete batch."},
    {"end_if_batched", py_end_if_batched, METH_NOARGS,
     "end_if_batched()\n\nEnds the tasks if items are grouped into batches: no more items are drawn from the sampler, "
     "and an incomplete batch is dropped. A generator that makes batches would end with an exception in the same way."},
    {"is_ended_by_exceptions", py_is_ended, METH_NOARGS,
     "is_ended_by_exceptions() -> bool\n\nReturns True if an exception of the sampler ends them: it is a generator, or "
     "end_if_batched has ended them."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"reads_batches", T_BOOL, offsetof(struct tasks, reads_batches), 0,
     "Whether a task that can be read only once is read into a list. It is False at first."},
    {"keeps_sent", T_BOOL, offsetof(struct tasks, keeps_sent), 0,
     "Whether tasks are kept in `sent` and `last`. It is False at first."},
    {"item_count", T_ULONGLONG, offsetof(struct tasks, item_count), READONLY, "How many items the iterator gave."},
    {"handed_count", T_ULONGLONG, offsetof(struct tasks, handed_count), READONLY, "How many tasks were handed on."},
    {"is_over", T_BOOL, offsetof(struct tasks, is_over), READONLY, "True if the iterator has come to its end."},
    {"lost_count", T_ULONGLONG, offsetof(struct tasks, lost_count), READONLY,
     "How many of them no worker got. They have no number."},
    {"answered_count", T_ULONGLONG, offsetof(struct tasks, answered_count), READONLY,
     "How many of them were answered."},
    {"sent", T_OBJECT_EX, offsetof(struct tasks, sent), READONLY,
     "The tasks that were handed on and not answered, by number."},
    {"last", T_OBJECT, offsetof(struct tasks, last), READONLY, "The task that was answered last, or None."},
    {"last_number", T_ULONGLONG, offsetof(struct tasks, last_number), READONLY, "The number of that task."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"is_held", tasks_is_held, NULL, "True if this thread has drawn a task and not handed it on.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject TasksType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Tasks",
    .tp_basicsize = sizeof(struct tasks),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc =
        "What a loader is to make, drawn from a sampler: Tasks(iterable, batch_size=0, drop_last=False, "
        "lists=False, is_iterator=False). With a batch size, items are put together to lists of that many. lists: "
        "the iterable gives lists of items. is_iterator: it is an iterator, whose __iter__ is not called again.",
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
