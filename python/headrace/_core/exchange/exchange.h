/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CORE_EXCHANGE_EXCHANGE_H
#define HEADRACE_CORE_EXCHANGE_EXCHANGE_H

#include "core.h"

/*
 * Batches between a worker and the trainer: the types that module.c adds to the module, and what they call of each
 * other.
 *
 *     port.c      _core.Port, a worker's end       encode.c    an object as a batch
 *     loader/     _core.Loader, the trainer's end  collate.c   a list of samples as a batch
 *     crew.c      its worker processes             decode.c    a batch as an object
 *     packed.c    a list of documents as one row   recipes.c   images that are made in the batch
 *     sending.c   batches that a device copies
 *     tasks.c     _core.Tasks, the next tasks      array_in.c  tensors and arrays as struct hr_array
 *     iterator.c  _core.Iterator, the loop's end   array_out.c struct hr_array as tensors and arrays, with their leases
 *     show.c      _core.Show, what observers see of a loader
 *     tuner.c     _core.Tuner, how many workers get tasks
 *     indices.c   a task's indices as bytes and back
 */

extern PyTypeObject LoaderType;
extern PyTypeObject PortType;
extern PyTypeObject TasksType;
extern PyTypeObject IteratorType;
extern PyTypeObject ShowType;
extern PyTypeObject TunerType;
extern PyTypeObject NotingType; /* the iterator that _core.Port.noting returns */
extern PyObject *WorkerDied;    /* _core.WorkerDied, an exception */

/* The step of Loader.submit that failed: drawing the task, or sending it. */
enum submit_step { SUBMIT_NONE, SUBMIT_DRAW, SUBMIT_SEND };
extern PyObject *Unsettled; /* _core.Unsettled, an exception */

/* ---- indices.c ---- */

/* The bytes of a task's indices: a list of int as int64, anything else as a pickle. New reference. */
PyObject *core_pack_indices(PyObject *indices);
PyObject *core_unpack_indices(const void *bytes, uint64_t length);

/* ---- tasks.c ---- */

/* See _core.Tasks.draw. tasks_handed_on marks this thread's task, so that draw returns the next one. tasks_draw returns
 * a new reference, or NULL without an exception at the end. */
PyObject *tasks_draw(PyObject *tasks);
void tasks_handed_on(PyObject *tasks);
void tasks_done(PyObject *tasks);

/* The consumer has the batch, or the exception, of task number `number`. */
void tasks_answered(PyObject *tasks, unsigned long long number);

/* Samples in the batches, and exceptions, that the consumer has. */
unsigned long long tasks_sample_count(PyObject *tasks);

/* ---- show.c ---- */

/* The show of a _core.Show; NULL for any other object and for NULL. */
hr_show *show_of(PyObject *show);

/* ---- tuner.c ---- */

/* The tuner of a _core.Tuner; NULL for any other object and for NULL. */
hr_tuner *tuner_of(PyObject *tuner);

/* ---- loader.c ---- */

/* The loader of a _core.Loader; NULL with an exception if it is closed. Any thread, at any time. */
hr_loader *core_open_loader(PyObject *self);
/* Raises the exception for a thread that uses a loader while another thread waits for its next batch. */
void *loader_refuse_busy(void);
/* See _core.Loader.drop and fail. */
void loader_drop(PyObject *loader);
bool *loader_has_failed(PyObject *loader);
/* The number of the task of the answer that was waited for last. */
unsigned long long loader_task(PyObject *loader);
/* The loop has got an answer, at now_ns (0: no clock was read): the tuner may change how many workers get tasks. */
void loader_tune(PyObject *loader, int64_t now_ns);
/* The delivery of the answer that was waited for and is not rebuilt yet, borrowed, or NULL. */
struct hr_delivery *loader_received(PyObject *loader);

/* ---- sending.c: the methods of _core.Loader for devices ---- */

PyObject *sending_sources(PyObject *self, PyObject *ignored);
PyObject *sending_span(PyObject *self, PyObject *arguments);
PyObject *sending_slot(PyObject *self, PyObject *ignored);
PyObject *sending_register(PyObject *self, PyObject *arguments);
PyObject *sending_unregister(PyObject *self, PyObject *slot);
/* An object that closes the arena when it is freed, and the arena of one, which does not close it then. */
PyObject *sending_keep_arena(hr_arena *arena);
hr_arena *sending_take_arena(PyObject *kept);
PyObject *sending_unregister_kept(PyObject *module, PyObject *arguments);
PyObject *core_call_and_undo(PyObject *module, PyObject *arguments);
PyObject *core_guard(PyObject *module, PyObject *arguments);
PyObject *core_guard_lost(PyObject *module, PyObject *ignored);

/* ---- crew.c: the methods of _core.Loader for its worker processes ---- */

PyObject *crew_adopt(PyObject *self, PyObject *arguments);
PyObject *crew_guard(PyObject *module, PyObject *arguments);
PyObject *crew_ignore_others(PyObject *module, PyObject *arguments);
PyObject *crew_snapshot(PyObject *self, PyObject *worker);
PyObject *crew_posted_status(PyObject *self, PyObject *worker);
PyObject *crew_signal(PyObject *self, PyObject *arguments);
PyObject *crew_stop(PyObject *self, PyObject *timeout);

#endif
