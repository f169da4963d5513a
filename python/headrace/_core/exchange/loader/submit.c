/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Loader: draws the next task and submits it. */
#include "exchange/loader/loader.h"

static PyObject *pack_task(PyObject *task, PyObject *wrap) {
    if (wrap == Py_None) return core_pack_indices(task);
    PyObject *wrapped = PyObject_CallOneArg(wrap, task);
    PyObject *payload = wrapped ? core_pack_indices(wrapped) : NULL;
    Py_XDECREF(wrapped);
    return payload;
}

PyObject *loader_submit(PyObject *self, PyObject *arguments) {
    struct loader *loader = (struct loader *)self;
    PyObject *tasks, *wrap;
    loader->failed_step = SUBMIT_NONE;
    if (!PyArg_ParseTuple(arguments, "O!O:submit", &TasksType, &tasks, &wrap) || !loader_idle(self)) return NULL;
    loader->failed_step = SUBMIT_DRAW;
    int64_t began_ns = show_of(loader->show) ? hr_show_part_begin(show_of(loader->show)) : 0;
    PyObject *task = tasks_draw(tasks);
    if (!task && PyErr_Occurred()) return NULL;
    if (!task) {
        loader->failed_step = SUBMIT_NONE;
        loader->owed = loader->owed ? loader->owed - 1 : 0;
        Py_RETURN_FALSE;
    }
    loader->failed_step = SUBMIT_SEND;
    PyObject *payload = pack_task(task, wrap);
    Py_DECREF(task);
    hr_loader *open_loader =
        payload ? loader_idle(self) : NULL; /* pickling the task may have run code that closed the loader */
    int r =
        open_loader ? hr_loader_submit(open_loader, PyBytes_AS_STRING(payload), (size_t)PyBytes_GET_SIZE(payload)) : 0;
    Py_XDECREF(payload);
    if (!open_loader) return NULL;
    if (r < 0) return core_raise(r);
    loader->failed_step = SUBMIT_NONE;
    tasks_handed_on(tasks);
    loader->owed--;
    loader->submitted++;
    if (show_of(loader->show)) hr_show_part_end(show_of(loader->show), HR_SHOW_DRAW, began_ns);
    Py_RETURN_TRUE;
}
