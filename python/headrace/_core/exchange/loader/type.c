/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Loader as a type: its methods and members, with their texts. */
#include "exchange/loader/loader.h"

#include <structmember.h>

static PyMethodDef loader_methods[] = {
    {"open_worker_fds", loader_open_worker_fds, METH_O,
     "open_worker_fds(worker) -> (worker, memory_fd, trainer_bell_fd, worker_bell_fd, life_fd, "
     "diagnostics_fd)\n\nOpens the descriptors that a worker needs for its Port. The caller owns and closes them."},
    {"show", loader_show, METH_O,
     "show(show)\n\nShows observers this loader in a Show, before its workers start. It keeps a reference."},
    {"replace", loader_replace, METH_O,
     "replace(worker) -> (delivered, published, granted)\n\nGrants the tasks of a dead worker to its successor. See "
     "struct hr_succession."},
    {"awaited", loader_awaited, METH_NOARGS,
     "awaited() -> int | None\n\nReturns the worker whose answer is the next in order; None: any worker."},
    {"tasks", loader_tasks, METH_O,
     "tasks(worker) -> dict\n\nReturns a worker's outstanding tasks: number -> indices."},
    {"adopt", crew_adopt, METH_VARARGS,
     "adopt(worker, pid, sentinel)\n\nWatches process `pid` as a worker; `sentinel` is a descriptor that becomes "
     "readable when it ends, for a kernel without pidfd."},
    {"guard", crew_guard, METH_VARARGS | METH_STATIC,
     "guard(life_fd, pid) -> bool\n\nHas process `pid` killed when the write end of the pipe of this descriptor is "
     "closed; with the one of open_worker_fds, when the trainer dies. Returns False if the process has ended, or "
     "the system refuses."},
    {"ignore_others", crew_ignore_others, METH_VARARGS | METH_STATIC,
     "ignore_others(trainer, interrupts)\n\nIgnores SIGTERM, SIGUSR1 and SIGUSR2 in this process unless process "
     "`trainer` or this process has sent them. Signals that are handled or ignored are left. interrupts: SIGINT too, "
     "whose handler gets those that are not ignored. See hr_worker_ignore_others."},
    {"snapshot", crew_snapshot, METH_O,
     "snapshot(worker) -> dict\n\nReturns the fields of struct hr_worker_report by their names, and the texts of "
     "the worker's diagnostics file: `stack` and `said` (the end of its stderr)."},
    {"posted_status", crew_posted_status, METH_O,
     "posted_status(worker) -> bytes\n\nReturns the last status text of a worker, which may have written any bytes."},
    {"signal", crew_signal, METH_VARARGS, "signal(worker, number)\n\nSends a worker a signal. OSError."},
    {"stop", crew_stop, METH_O,
     "stop(timeout) -> int\n\nEnds all workers within `timeout` seconds: stops the arena, then sends SIGTERM, then "
     "SIGKILL. Returns how many still run."},
    {"begin", loader_begin, METH_VARARGS,
     "begin(epoch, owed, keeps_workers, timeout)\n\nBegins an epoch, with `owed` tasks to be submitted; workers "
     "that go on from an earlier one are sent `epoch`, any object. keeps_workers: those without data wait for "
     "another epoch. See hr_loader_begin. WorkerDied, TimeoutError."},
    {"has_data", loader_has_data, METH_O,
     "has_data(worker) -> bool\n\nReturns True while a worker has data in this epoch, as far as is known."},
    {"start_at", loader_start_at, METH_O,
     "start_at(worker)\n\nGives the first task of the epoch that has begun to this worker."},
    {"submit", loader_submit, METH_VARARGS,
     "submit(tasks, wrap) -> bool\n\nSubmits the next of the Tasks. `wrap` is None, or a callable that returns what "
     "is sent for the task. Returns False if there is no task. If it raises, the task stays drawn, and owed."},
    {"tune", loader_set_tuner, METH_VARARGS,
     "tune(tuner, within_epochs, worker_bytes)\n\nLets a Tuner say how many workers get tasks, within epochs too or "
     "only between them. worker_bytes: the private memory that a further worker takes, about."},
    {"tune_begin", loader_tune_begin, METH_O,
     "tune_begin(since_ns)\n\nAn epoch begins. As many workers get tasks as the Tuner wants and as are expected."},
    {"tune_end", loader_tune_end, METH_NOARGS, "tune_end()\n\nThe epoch has ended, for the Tuner."},
    {"use", loader_use, METH_O, "use(count)\n\nLets only the first workers get tasks. See hr_loader_use."},
    {"expect", loader_expect, METH_O, "expect(count)\n\nSays how many workers were started. See hr_loader_expect."},
    {"wait", loader_wait, METH_O,
     "wait(timeout) -> int | None\n\nWaits for the next answer in the loader's order, and returns its status, the "
     "same until it is dropped; None if nothing is outstanding. STATUS_END: a worker has no more data, there is no "
     "answer. One more task is owed then. WorkerDied, TimeoutError."},
    {"answer", loader_answer, METH_VARARGS,
     "answer([tensors]) -> object\n\nReturns the answer that was waited for, the same until it is dropped. "
     "STATUS_TOO_BIG: the number of bytes that the batch needs. Raises any exception that occurs while the answer "
     "is rebuilt. tensors: a list that takes the place of the tensors of sources(); nothing of the answer has a "
     "lease then."},
    {"sources", sending_sources, METH_NOARGS,
     "sources() -> list | None\n\nReturns the tensors of the answer that a device can copy, over its slot. They are "
     "kept until the copies have ended. None: it was rebuilt already."},
    {"span", sending_span, METH_VARARGS,
     "span(address, size) -> tensor\n\nReturns bytes of the slot, as a tensor, for the same use."},
    {"slot", sending_slot, METH_NOARGS,
     "slot() -> (slot, size, registered, times) | None\n\nReturns the slot of the answer, how many bytes the answer "
     "has, how many of the slot are registered, and how often something was received in it. None: it is a private "
     "copy."},
    {"register_slot", sending_register, METH_VARARGS,
     "register_slot(slot, size, has_grown) -> (address, size) | None | False\n\nMarks memory as registered: see "
     "hr_arena_register. None: as much is registered as may be. False: not this slot."},
    {"unregister_slot", sending_unregister, METH_O, "unregister_slot(slot)\n\nEnds that."},
    {"detach", loader_detach, METH_NOARGS,
     "detach() -> arena\n\nCloses the loader, and returns its memory for the next one. All workers have ended."},
    {"fail", loader_fail, METH_NOARGS,
     "fail()\n\nDeclares that the next exception is the answer. (An exception of answer() is the answer too.)"},
    {"drop", loader_drop_answer, METH_NOARGS, "drop()\n\nDrops the answer: the next wait is for the next one."},
    {"close", loader_close, METH_NOARGS,
     "close()\n\nCloses the loader; received batches stay readable. May be called several times."},
    {"copied", loader_copied, METH_NOARGS,
     "copied() -> int\n\nReturns the number of batches that were delivered as copies; 0 after close()."},
    {"count_skipped", loader_count_skipped, METH_O,
     "count_skipped(count)\n\nSets how many bad samples were left out or replaced, for the report."},
    {"report", loader_report, METH_NOARGS, "report() -> dict\n\nReturns the counts of struct hr_arena_report."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef loader_members[] = {
    {"owed", T_ULONGLONG, offsetof(struct loader, owed), READONLY, "Number of tasks that still have to be submitted."},
    {"submitted", T_ULONGLONG, offsetof(struct loader, submitted), READONLY,
     "Number of tasks that were submitted in this epoch."},
    {"failed_step", T_INT, offsetof(struct loader, failed_step), READONLY,
     "The step at which the last submit failed. 0: it did not fail; 1: drawing the task; 2: sending it."},
    {"has_others", T_BOOL, offsetof(struct loader, has_others), READONLY,
     "True if the answer that was rebuilt last has objects that may have to be moved to a device."},
    {"used", T_UINT, offsetof(struct loader, used_count), READONLY, "How many workers get tasks."},
    {"expected", T_UINT, offsetof(struct loader, expected_count), READONLY, "How many workers were started."},
    {"worker", T_UINT, offsetof(struct loader, worker), READONLY, "The worker that gave that answer."},
    {"task", T_ULONGLONG, offsetof(struct loader, task), READONLY,
     "The number of the task of the answer that was waited for last."},
    {"serial", T_ULONGLONG, offsetof(struct loader, serial), READONLY, "Number of answers that were waited for."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef loader_properties[] = {
    {"has_answer", loader_has_answer, NULL, "True if an answer was waited for and not dropped.", NULL},
    {"lacks_worker", loader_lacks_worker, NULL, "True if the Tuner wants more workers than are expected.", NULL},
    {"waited_s", loader_waited_s, NULL, "How long the loop has waited for workers, since its Show was made.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject LoaderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Loader",
    .tp_basicsize = sizeof(struct loader),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "The trainer's side: Loader(workers, prefetch_factor (per worker), in_order, limit_bytes (0: chosen by "
              "the library)).",
    .tp_new = PyType_GenericNew,
    .tp_init = loader_init,
    .tp_dealloc = loader_dealloc,
    .tp_methods = loader_methods,
    .tp_members = loader_members,
    .tp_getset = loader_properties,
};
