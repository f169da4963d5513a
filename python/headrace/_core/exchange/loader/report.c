/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Loader: its counters. */
#include "exchange/loader/loader.h"

PyObject *loader_report(PyObject *self, PyObject *ignored) {
    static const char *const memories[] = {"memfd", "shm", "tmp"};
    struct hr_arena_report r;
    hr_loader *loader = core_open_loader(self);
    (void)ignored;
    if (!loader) return NULL;
    hr_arena_report(hr_loader_arena(loader), &r);
    uint64_t waited_ns = r.waited_ns - ((struct loader *)self)->begin_waited_ns;
    if (show_of(((struct loader *)self)->show)) waited_ns += hr_show_pinned_ns(show_of(((struct loader *)self)->show));
    return Py_BuildValue("{s:s,s:I,s:I,s:K,s:K,s:K,s:K,s:I,s:K,s:K,s:K,s:K,s:K,s:K,s:d,s:K,s:I,s:K}", "memory",
                         memories[r.memory], "workers", r.worker_count, "slots", r.slot_count, "limit_bytes",
                         (unsigned long long)r.limit_bytes, "window_bytes", (unsigned long long)r.window_bytes,
                         "used_bytes", (unsigned long long)r.used_bytes, "held_bytes", (unsigned long long)r.held_bytes,
                         "held", r.held_count, "batches", ((struct loader *)self)->batch_count, "bytes",
                         (unsigned long long)r.delivered_bytes, "copied", (unsigned long long)r.copied_count, "asked",
                         (unsigned long long)r.asked_count, "trimmed", (unsigned long long)r.trimmed_count, "waits",
                         (unsigned long long)r.waited_count, "waited_s", (double)waited_ns / 1e9, "sleeps",
                         (unsigned long long)r.slept_count, "restarts", r.restart_count, "skipped",
                         (unsigned long long)r.skipped_count);
}

PyObject *loader_copied(PyObject *self, PyObject *ignored) {
    struct hr_arena_report report = {0};
    hr_loader *loader = ((struct loader *)self)->loader;
    (void)ignored;
    if (loader) hr_arena_report(hr_loader_arena(loader), &report);
    return PyLong_FromUnsignedLongLong(report.copied_count);
}

PyObject *loader_count_skipped(PyObject *self, PyObject *argument) {
    struct hr_arena_report report;
    hr_loader *loader = core_open_loader(self);
    unsigned long long count = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred() || !loader) return NULL;
    hr_arena_report(hr_loader_arena(loader), &report);
    return core_none_or_raise(hr_arena_count(hr_loader_arena(loader), 0, count - report.skipped_count));
}
