/* SPDX-License-Identifier: Apache-2.0 */
/* The methods of _core.Loader that watch, signal and stop worker processes. */
#include "exchange/exchange.h"

static hr_crew *open_crew(PyObject *self) {
    hr_loader *loader = core_open_loader(self);
    return loader ? hr_loader_crew(loader) : NULL;
}

PyObject *crew_adopt(PyObject *self, PyObject *arguments) {
    unsigned worker;
    int pid, sentinel;
    hr_crew *crew = open_crew(self);
    if (!crew || !PyArg_ParseTuple(arguments, "Iii:adopt", &worker, &pid, &sentinel)) return NULL;
    return core_none_or_raise(hr_crew_adopt(crew, worker, pid, sentinel));
}

PyObject *crew_guard(PyObject *module, PyObject *arguments) {
    struct hr_worker_fds fds = {0};
    int pid;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "ii:guard", &fds.life_fd, &pid)) return NULL;
    return PyBool_FromLong(hr_worker_fds_guard(&fds, pid) == 0);
}

PyObject *crew_ignore_others(PyObject *module, PyObject *arguments) {
    int trainer, interrupts;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "ip:ignore_others", &trainer, &interrupts)) return NULL;
    return core_none_or_raise(hr_worker_ignore_others(trainer, interrupts));
}

/* A worker may have written any bytes. */
static PyObject *text_of(const char *text, size_t bytes) {
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)bytes, "replace");
}

static PyObject *sample_of(const struct hr_worker_status *status) {
    return status->sample == HR_NO_SAMPLE ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(status->sample);
}

static bool is_there_before(const struct hr_worker_status *status, int at) {
    for (int i = 0; i < at; i++)
        if (status->making[i] == status->making[at]) return true;
    return false;
}

/* The samples at which the worker's threads are, as a list. */
static PyObject *making_of(const struct hr_worker_status *status) {
    PyObject *list = PyList_New(0);
    for (int i = 0; i < HR_MAKING_THREADS && list; i++) {
        if (status->making[i] == HR_NO_SAMPLE || is_there_before(status, i)) continue;
        PyObject *sample = PyLong_FromUnsignedLongLong(status->making[i]);
        if (!sample || PyList_Append(list, sample) < 0) Py_CLEAR(list);
        Py_XDECREF(sample);
    }
    return list;
}

PyObject *crew_snapshot(PyObject *self, PyObject *argument) {
    struct hr_worker_report r;
    const char *stack = "", *said = "";
    size_t stack_bytes = 0, said_bytes = 0;
    hr_crew *crew = open_crew(self);
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (!crew || PyErr_Occurred()) return NULL;
    int code = hr_crew_look(crew, (uint32_t)worker, &r);
    if (code == 0) code = hr_crew_stack(crew, (uint32_t)worker, &stack, &stack_bytes);
    if (code == 0) code = hr_crew_stderr(crew, (uint32_t)worker, &said, &said_bytes);
    if (code < 0) return core_raise(code);
    const struct hr_worker_status *v = &r.status;
    char state[2] = {r.state, 0};
    return Py_BuildValue(
        "{s:I,s:i,s:O,s:O,s:i,s:i,s:K,s:K,s:I,s:I,s:i,s:L,s:K,s:N,s:N,s:K,s:d,s:d,s:d,s:s,s:I,s:I,s:N,s:N,s:O,s:s,s:s,"
        "s:K,s:O}",
        "worker", r.worker, "pid", r.pid, "is_alive", r.is_alive ? Py_True : Py_False, "is_end_known",
        r.is_end_known ? Py_True : Py_False, "signal", r.signal, "exit_code", r.exit_code, "oom_kills",
        (unsigned long long)r.oom_kills, "rss_bytes", (unsigned long long)r.rss_bytes, "starts", v->starts, "own_pid",
        v->pid, "phase", (int)v->phase, "phase_since_ns", (long long)v->phase_since_ns, "task",
        (unsigned long long)v->task, "sample", sample_of(v), "making", making_of(v), "batches",
        (unsigned long long)v->done_count, "waiting_s", (double)v->phase_ns[HR_PHASE_WAIT] / 1e9, "fetching_s",
        (double)v->phase_ns[HR_PHASE_FETCH] / 1e9, "collating_s", (double)v->phase_ns[HR_PHASE_COLLATE] / 1e9, "state",
        state, "threads", r.thread_count, "tracer_pid", r.tracer_pid, "stack", text_of(stack, stack_bytes), "said",
        text_of(said, said_bytes), "stack_is_cut", stack_bytes == HR_DIAGNOSTICS_STACK_BYTES ? Py_True : Py_False,
        "kernel_function", r.kernel_function, "system_call", r.system_call, "caught_signals",
        (unsigned long long)r.caught_signals, "is_deadlocked", r.is_deadlocked ? Py_True : Py_False);
}

PyObject *crew_posted_status(PyObject *self, PyObject *argument) {
    const char *text = "";
    size_t bytes = 0;
    hr_crew *crew = open_crew(self);
    unsigned long worker = PyLong_AsUnsignedLong(argument);
    if (!crew || PyErr_Occurred()) return NULL;
    int r = hr_crew_posted_status(crew, (uint32_t)worker, &text, &bytes);
    return r < 0 ? core_raise(r) : PyBytes_FromStringAndSize(text, (Py_ssize_t)bytes);
}

PyObject *crew_signal(PyObject *self, PyObject *arguments) {
    unsigned worker;
    int number;
    hr_crew *crew = open_crew(self);
    if (!crew || !PyArg_ParseTuple(arguments, "Ii:signal", &worker, &number)) return NULL;
    return core_none_or_raise(hr_crew_signal(crew, worker, number));
}

PyObject *crew_stop(PyObject *self, PyObject *timeout) {
    hr_crew *crew = open_crew(self);
    double seconds = PyFloat_AsDouble(timeout);
    if (!crew || PyErr_Occurred()) return NULL;
    int running;
    Py_BEGIN_ALLOW_THREADS;
    running = hr_crew_stop(crew, core_ns_of(seconds));
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(running);
}
