/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_EXCHANGE_LOADER_H
#define CORE_EXCHANGE_LOADER_H

/* _core.Loader, for the files of this folder: the struct, and the methods that type.c names. */

#include "exchange/decode.h"
#include "exchange/exchange.h"

/* _core.Loader: the trainer's side of a loader. */
struct loader {
    PyObject_HEAD hr_loader *loader;
    bool is_busy;                 /* a thread is inside, without the GIL */
    struct hr_delivery *received; /* it was waited for and is not decoded yet; used only with the GIL */
    PyObject *answer;             /* it is decoded and not dropped yet */
    long status;                  /* status of `received` or `answer` */
    bool has_failed;              /* the answer is the exception that is being raised */
    unsigned long long serial;    /* number of answers that were waited for */
    unsigned long long task;      /* number of the task of the last of them */
    uint32_t worker;              /* the worker that answered it */
    unsigned long long owed;      /* number of tasks that still have to be submitted */
    unsigned long long submitted; /* tasks that were submitted in this epoch */
    int failed_step;              /* enum submit_step: the step at which the last submit failed */
    uint32_t worker_count;
    bool keeps_workers; /* workers without data wait for another epoch */
    bool has_others;    /* the answer has objects that may have to be moved to a device */
    PyObject *types;    /* see decode */
    PyObject *show;     /* the Show in which observers see this loader, or NULL */
    unsigned long long batch_count;
    uint64_t begin_waited_ns; /* the time that beginnings of epochs have waited */
    PyObject *tuner;          /* the Tuner that says how many workers get tasks, or NULL */
    bool may_tune;            /* within an epoch */
    uint32_t prefetch_factor;
    uint32_t used_count;             /* workers that get tasks */
    uint32_t expected_count;         /* workers that were started */
    uint32_t fitting_count;          /* workers that had room in memory; 0: not known */
    int64_t fitting_ns;              /* when */
    unsigned long long surplus;      /* answers after which no task is owed, because fewer workers get tasks */
    unsigned long long worker_bytes; /* private memory that a further worker takes, about */
};

/* open.c */
int loader_to_count(PyObject *object, void *ret_count);
int loader_init(PyObject *self, PyObject *arguments, PyObject *keywords);
void loader_dealloc(PyObject *self);
hr_loader *loader_idle(PyObject *self);
PyObject *loader_show(PyObject *self, PyObject *show);
PyObject *loader_open_worker_fds(PyObject *self, PyObject *argument);
PyObject *loader_close(PyObject *self, PyObject *ignored);
PyObject *loader_detach(PyObject *self, PyObject *ignored);

/* wait.c */
PyObject *loader_begin(PyObject *self, PyObject *arguments);
PyObject *loader_wait(PyObject *self, PyObject *timeout);

/* submit.c */
PyObject *loader_submit(PyObject *self, PyObject *arguments);

/* workers.c */
PyObject *loader_has_data(PyObject *self, PyObject *argument);
PyObject *loader_start_at(PyObject *self, PyObject *argument);
PyObject *loader_set_tuner(PyObject *self, PyObject *arguments);
PyObject *loader_tune_begin(PyObject *self, PyObject *argument);
PyObject *loader_tune_end(PyObject *self, PyObject *ignored);
PyObject *loader_use(PyObject *self, PyObject *argument);
PyObject *loader_expect(PyObject *self, PyObject *argument);
PyObject *loader_lacks_worker(PyObject *self, void *ignored);
PyObject *loader_waited_s(PyObject *self, void *ignored);
PyObject *loader_replace(PyObject *self, PyObject *argument);
PyObject *loader_tasks(PyObject *self, PyObject *argument);
PyObject *loader_awaited(PyObject *self, PyObject *ignored);

/* answer.c */
PyObject *loader_answer(PyObject *self, PyObject *arguments);
PyObject *loader_fail(PyObject *self, PyObject *ignored);
PyObject *loader_has_answer(PyObject *self, void *ignored);
PyObject *loader_drop_answer(PyObject *self, PyObject *ignored);

/* report.c */
PyObject *loader_report(PyObject *self, PyObject *ignored);
PyObject *loader_copied(PyObject *self, PyObject *ignored);
PyObject *loader_count_skipped(PyObject *self, PyObject *argument);

#endif
