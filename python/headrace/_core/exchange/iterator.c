/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Iterator: the base of the iterators, which loses no batch if next() is interrupted. */
#include "exchange/exchange.h"

#include <structmember.h>

/*
 * _core.Iterator: the base of the loaders' iterators. It makes sure that no batch is lost if an exception is raised
 * anywhere in next(), for example by a signal handler.
 *
 * next() begins here, and these are its steps in order. A function calls those that are indented more below it, one
 * after the other. Each step before hand_on can be interrupted: the next call of next() begins at the top again, and a
 * step that has kept what it made gives the same again. docs/architecture.md says more of that.
 *
 * With workers:
 *
 *     iterator_next                      exchange/iterator.c            refuses a second thread. Around the rest:
 *                                                                       hr_show_enter, hr_show_leave
 *       prepare                          exchange/iterator.c
 *         _prepare                       torch/_loader/checked.py       torch's profiler, a warning of a wrong length
 *           _next_data                   torch/_loader/workers.py       warns if the user's StopIteration ended it
 *             _next_value                torch/_loader/workers.py       with pin_memory or device: Ahead.next
 *         _prepare                       _numpy/iterator.py             headrace.Loader: calls the engine itself
 *               warn_of_copies           _loader/trainer/engine.py      if batches are copied: memory is short
 *               Engine.next              _loader/trainer/engine.py      None: the epoch is over, see below
 *                 submit_owed            _loader/trainer/engine.py      what is still due from an earlier call
 *                   loader_submit        exchange/loader/submit.c       until no task is due
 *                     tasks_draw         exchange/tasks.c               asks the sampler. Kept: indices, by thread
 *                     pack_task          exchange/loader/submit.c       calls `wrap` (on_bad_sample, rng), pickles
 *                     hr_loader_submit   src/loader/loader.c            grants the task: it is not due any more
 *                 _wait                  _loader/trainer/engine.py      replaces a worker that has died, names a stall
 *                   loader_wait          exchange/loader/wait.c         waits. Kept: the delivery, and one task is due
 *                 submit_owed            _loader/trainer/engine.py      this task, before the batch is rebuilt
 *               Engine.answer            _loader/trainer/engine.py
 *                 loader_answer          exchange/loader/answer.c       rebuilds the batch. Kept: its objects
 *                 _note_place            _loader/trainer/engine.py      of an iterable dataset, once for an answer
 *                 _keep_notes            _loader/trainer/engine.py      bad samples, by the number of the answer
 *                 reraise                _loader/trainer/engine.py      an exception that a worker sent, after py_fail
 *               _reraise                 torch/_loader/workers.py       an exception that a dataset has returned
 *         show_step                      exchange/iterator.c            to other ranks; check_end if one has ended
 *       hand_on                          exchange/iterator.c            no Python from here on
 *         tasks_answered                 exchange/tasks.c               a state that is taken now has this batch
 *         loader_drop                    exchange/loader/open.c         the keeper drops the value
 *       loader_tune                      exchange/loader/workers.c      num_workers="auto": more or fewer get tasks
 *
 * At the end of an epoch Engine.next returns None. The workers are ended, unless they persist; _has_ended (of
 * EpochIterator) tells the other ranks; and _prepare raises StopIteration, each time that it is called.
 *
 * With pin_memory the keeper is the dict of Pinner (torch/_device/pinning.py). _put of Ahead (torch/_loader/ahead.py)
 * gives it each batch that has arrived, with a number, and drops it from the loader: what is interrupted in between is
 * put again under the same number. With `device` the Sender (torch/_device/sender.py) has that part: Sender.begin comes
 * first, and Engine.answer calls Sender.send, which may be called again for an answer that is not rebuilt yet.
 *
 * With num_workers=0 the keeper is the Tasks, and several threads may be in next(), each with a task of its own:
 *
 *     iterator_next                      exchange/iterator.c
 *       prepare                          exchange/iterator.c
 *         _prepare                       torch/_loader/checked.py       then _next_data of in_process.py
 *         _prepare                       _numpy/in_process.py           of headrace.Loader
 *           _make                        _loader/trainer/in_process.py
 *             FromSampler.draw           _samples/draw.py               the first time the ranks are compared
 *               tasks_draw               exchange/tasks.c               Kept: the indices, by thread
 *             fetch                      _loader/trainer/in_process.py  asks the dataset. What it raises is the answer,
 *             is_from_signal             _base/signals.py               unless the handler of a signal raised it
 *         show_step                      exchange/iterator.c
 *       hand_on                          exchange/iterator.c
 *         tasks_done                     exchange/tasks.c               the next call draws the next task
 *
 * An exception of _prepare is handed on in the same way if it is the answer itself (is_answer: _core.Loader.fail was
 * called, and no handler of a signal has raised another one since).
 */
struct iterator {
    PyObject_HEAD PyObject *keeper;    /* a Loader, Tasks, or a dict: number of an answer -> value */
    PyObject *loader;                  /* the Loader that gives the answers; NULL with num_workers=0 */
    PyObject *tasks;                   /* the Tasks of this epoch, which count what was returned; NULL: not counted */
    PyObject *watch;                   /* the Watch that compares the ranks; NULL or None: they are not compared */
    PyObject *show;                    /* the Show of the loader; NULL or None: nothing is shown to observers */
    PyObject *task_numbers;            /* if `keeper` is a dict: a dict: number of an answer -> number of its task */
    unsigned long long answered_count; /* values and failures that were returned, in all epochs */
    unsigned long long yielded_count;  /* values of this epoch */
    bool is_busy;                      /* a thread is in next() */
};

/* 1: deleted; 0: it does not exist, because the answer has not been made yet. */
static int delete_answer(PyObject *answers, unsigned long long number) {
    PyObject *key = PyLong_FromUnsignedLongLong(number);
    int r = key && PyDict_Contains(answers, key) > 0 && PyDict_DelItem(answers, key) == 0;
    PyErr_Clear();
    Py_XDECREF(key);
    return r;
}

static void count_answer(struct iterator *iterator, unsigned long long task) {
    if (iterator->tasks && Py_IS_TYPE(iterator->tasks, &TasksType)) tasks_answered(iterator->tasks, task);
}

/* Counts the answer that was just deleted from the dict. */
static void count_deleted(struct iterator *iterator) {
    PyObject *numbers = iterator->task_numbers;
    PyObject *key = PyLong_FromUnsignedLongLong(iterator->answered_count);
    PyObject *task = key && numbers && PyDict_CheckExact(numbers) ? PyDict_GetItemWithError(numbers, key) : NULL;
    unsigned long long number = task ? PyLong_AsUnsignedLongLong(task) : 0;
    if (task && PyDict_DelItem(numbers, key) == 0) count_answer(iterator, number);
    if (PyErr_Occurred()) PyErr_Clear();
    Py_XDECREF(key);
}

/* Drops the loader's answer, which is being returned. */
static void drop_answer(struct iterator *iterator, PyObject *loader) {
    count_answer(iterator, loader_task(loader));
    loader_drop(loader);
}

static PyObject *loader_of(struct iterator *iterator) {
    return iterator->loader && Py_IS_TYPE(iterator->loader, &LoaderType) ? iterator->loader : NULL;
}

/* Runs with the current exception saved. */
static void hand_on(struct iterator *iterator) {
    PyObject *type, *error, *trace;
    PyObject *keeper = iterator->keeper;
    PyErr_Fetch(&type, &error, &trace);
    if (keeper && Py_IS_TYPE(keeper, &LoaderType)) drop_answer(iterator, keeper);
    if (keeper && Py_IS_TYPE(keeper, &TasksType)) tasks_done(keeper);
    if (keeper && PyDict_CheckExact(keeper)) {
        if (delete_answer(keeper, iterator->answered_count))
            count_deleted(iterator);
        else if (loader_of(iterator))
            drop_answer(iterator, iterator->loader);
    }
    iterator->answered_count++;
    PyErr_Restore(type, error, trace);
}

/* Is the exception that is set the answer? Keeps it set, unless a handler of a signal raises another one here. */
static bool is_answer(struct iterator *iterator) {
    PyObject *type, *error, *trace;
    PyObject *loader = loader_of(iterator);
    if (!loader || !*loader_has_failed(loader)) return false;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    PyObject *is_from_signal = PyObject_CallMethodOneArg((PyObject *)iterator, core.names.is_from_signal, error);
    if (!is_from_signal) {
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return false;
    }
    bool is_answer = is_from_signal == Py_False;
    Py_DECREF(is_from_signal);
    PyErr_Restore(type, error, trace);
    return is_answer;
}

/* Shows the other ranks a step. Returns (rank, steps) of one that is at its end with fewer, or None. */
static PyObject *find_ended(PyObject *watch, PyObject *steps) {
    PyObject *show = PyObject_GetAttr(watch, core.names.show_step); /* None: nothing is compared in this epoch */
    if (!show || show == Py_None) return show;
    PyObject *ended = PyObject_CallOneArg(show, steps);
    Py_DECREF(show);
    return ended;
}

/* Calls watch.check_end, which raises if that rank may not have ended yet. */
static bool check_end(PyObject *watch, PyObject *steps, PyObject *ended) {
    PyObject *r = PyObject_CallMethodObjArgs(watch, core.names.check_end, steps, ended, NULL);
    Py_XDECREF(r);
    return r != NULL;
}

/* Tells the other ranks now and then how long this one waits. */
static bool show_wait(struct iterator *iterator, PyObject *watch) {
    hr_show *show = show_of(iterator->show);
    if (!show || !hr_show_is_due(show)) return true;
    struct hr_arena_look look;
    hr_show_read_epoch(show, &look);
    PyObject *r = PyObject_CallMethod(watch, "show_wait", "KL", (unsigned long long)look.inside_ns,
                                      (long long)hr_show_elapsed_ns(show));
    Py_XDECREF(r);
    return r != NULL;
}

/* Shows the other ranks the step that is taken when the next value is returned. Returns false with an exception. */
static bool show_step(struct iterator *iterator) {
    if (!iterator->watch || iterator->watch == Py_None) return true;
    PyObject *watch = Py_NewRef(iterator->watch);
    PyObject *steps = PyLong_FromUnsignedLongLong(iterator->yielded_count + 1);
    PyObject *ended = steps ? find_ended(watch, steps) : NULL;
    bool may_go_on = ended && (ended == Py_None || check_end(watch, steps, ended)) && show_wait(iterator, watch);
    Py_XDECREF(ended);
    Py_XDECREF(steps);
    Py_DECREF(watch);
    return may_go_on;
}

/* Returns the next value, or NULL with an exception. It is made again by the next call, until it is handed on. */
static PyObject *prepare(struct iterator *iterator) {
    PyObject *value = PyObject_CallMethodNoArgs((PyObject *)iterator, core.names.prepare);
    if (value && !show_step(iterator)) Py_CLEAR(value);
    return value;
}

/* The Tasks that count what the loop gets. */
static PyObject *tasks_of(struct iterator *iterator) {
    PyObject *tasks = iterator->keeper && Py_IS_TYPE(iterator->keeper, &TasksType) ? iterator->keeper : iterator->tasks;
    return tasks && Py_IS_TYPE(tasks, &TasksType) ? tasks : NULL;
}

static unsigned long long samples_of(struct iterator *iterator) {
    PyObject *tasks = tasks_of(iterator);
    return tasks ? tasks_sample_count(tasks) : 0;
}

/* Batches that are pinned and that the loop does not have yet. */
static uint64_t count_ahead(const struct iterator *iterator) {
    return iterator->keeper && PyDict_CheckExact(iterator->keeper) ? (uint64_t)PyDict_GET_SIZE(iterator->keeper) : 0;
}

/* Shows observers what a call of next() has given. An exception of num_workers=0 has counted its task, too. */
static void show_result(struct iterator *iterator, hr_show *show, const struct hr_show_visit *visit, bool has_value,
                        bool is_answer, unsigned long long samples) {
    bool is_error = !has_value && (is_answer || samples);
    hr_show_leave(show, visit,
                  has_value  ? HR_SHOW_BATCH
                  : is_error ? HR_SHOW_ERROR
                             : HR_SHOW_NOTHING,
                  has_value ? samples : 0, count_ahead(iterator));
}

static PyObject *iterator_next(PyObject *self) {
    struct iterator *iterator = (struct iterator *)self;
    bool is_shared = iterator->keeper && Py_IS_TYPE(iterator->keeper, &TasksType); /* each thread has its own task */
    if (iterator->is_busy && !is_shared) return loader_refuse_busy();
    if (loader_of(iterator)) *loader_has_failed(loader_of(iterator)) = false;
    iterator->is_busy = true;
    PyObject *show = Py_XNewRef(iterator->show);
    hr_show *shown = show_of(show);
    struct hr_show_visit visit;
    unsigned long long samples = samples_of(iterator);
    if (shown) hr_show_enter(shown, &visit);
    PyObject *value = prepare(iterator);
    iterator->is_busy = false;
    bool is_done = value || is_answer(iterator);
    if (is_done) hand_on(iterator);
    if (shown) show_result(iterator, shown, &visit, value != NULL, is_done, samples_of(iterator) - samples);
    if (shown && is_done && loader_of(iterator))
        loader_tune(loader_of(iterator), visit.began_ns ? hr_show_timed_ns(shown) : 0);
    Py_XDECREF(show);
    iterator->yielded_count += value != NULL;
    return value;
}

static int iterator_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((struct iterator *)self)->keeper);
    Py_VISIT(((struct iterator *)self)->loader);
    Py_VISIT(((struct iterator *)self)->tasks);
    Py_VISIT(((struct iterator *)self)->watch);
    Py_VISIT(((struct iterator *)self)->show);
    Py_VISIT(((struct iterator *)self)->task_numbers);
    return 0;
}

static int iterator_clear(PyObject *self) {
    Py_CLEAR(((struct iterator *)self)->keeper);
    Py_CLEAR(((struct iterator *)self)->loader);
    Py_CLEAR(((struct iterator *)self)->tasks);
    Py_CLEAR(((struct iterator *)self)->watch);
    Py_CLEAR(((struct iterator *)self)->show);
    Py_CLEAR(((struct iterator *)self)->task_numbers);
    return 0;
}

static void iterator_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    iterator_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef iterator_members[] = {
    {"_keeper", T_OBJECT, offsetof(struct iterator, keeper), 0, "Keeps the next value until next() has returned it."},
    {"_loader", T_OBJECT, offsetof(struct iterator, loader), 0, "The Loader that gives the answers."},
    {"tasks", T_OBJECT, offsetof(struct iterator, tasks), 0, "The Tasks of this epoch."},
    {"watch", T_OBJECT, offsetof(struct iterator, watch), 0, "Compares the ranks in this epoch, or None."},
    {"_show", T_OBJECT, offsetof(struct iterator, show), 0, "Shows observers how the loop gets its batches, or None."},
    {"_task_numbers", T_OBJECT, offsetof(struct iterator, task_numbers), 0,
     "The numbers of the tasks of the values in `_keeper`, if that is a dict."},
    {"_answered", T_ULONGLONG, offsetof(struct iterator, answered_count), 0,
     "Number of values and failures that were returned."},
    {"_num_yielded", T_ULONGLONG, offsetof(struct iterator, yielded_count), 0,
     "Number of values of this epoch that were returned."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject IteratorType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Iterator",
    .tp_basicsize = sizeof(struct iterator),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_doc = "The base of a loader's iterator: next() returns the result of its method _prepare(). If _prepare() "
              "raises, nothing is lost: the next call of next() calls it again.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = iterator_dealloc,
    .tp_traverse = iterator_traverse,
    .tp_clear = iterator_clear,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = iterator_next,
    .tp_members = iterator_members,
};
