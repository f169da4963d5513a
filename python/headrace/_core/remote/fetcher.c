/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Fetcher: the fetcher of remote objects, without its network code. */
#include "remote/remote.h"

static const double NS_PER_S = 1e9;

struct core_fetcher {
    PyObject_HEAD hr_fetcher *fetcher;
};

static hr_fetcher *fetcher_of(PyObject *self) {
    return ((struct core_fetcher *)self)->fetcher;
}

static PyObject *fetcher_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"folder", NULL};
    const char *folder;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "y:Fetcher", names, &folder)) return NULL;
    struct core_fetcher *self = (struct core_fetcher *)type->tp_alloc(type, 0);
    int r = self ? hr_fetcher_open(folder, &self->fetcher) : 0;
    return core_new_or_raise(self, r);
}

static void fetcher_dealloc(PyObject *self) {
    Py_BEGIN_ALLOW_THREADS;
    hr_fetcher_close(fetcher_of(self));
    Py_END_ALLOW_THREADS;
    Py_TYPE(self)->tp_free(self);
}

static PyObject *fetcher_start(PyObject *self, PyObject *arguments) {
    unsigned long long quota, left;
    unsigned int idle_ms, threads;
    if (!PyArg_ParseTuple(arguments, "KKII:start", &quota, &left, &idle_ms, &threads)) return NULL;
    struct hr_fetcher_options options = {
        .quota_bytes = quota, .free_bytes = left, .idle_ms = idle_ms, .threads = threads};
    return core_none_or_raise(hr_fetcher_start(fetcher_of(self), &options));
}

static PyObject *wrap(const struct hr_fetcher_job *job) {
    if (job->kind == HR_FETCHER_CALL)
        return Py_BuildValue("(Ky#)", (unsigned long long)job->id, job->text, (Py_ssize_t)job->text_bytes);
    return Py_BuildValue("(KyyyKKKd)", (unsigned long long)job->id, job->url, job->version, job->storage,
                         (unsigned long long)job->object_bytes, (unsigned long long)job->at,
                         (unsigned long long)job->bytes, (double)job->asked_ns / NS_PER_S);
}

static PyObject *fetcher_take(PyObject *self, PyObject *seconds) {
    struct hr_fetcher_job job = {0};
    int64_t deadline_ns;
    int r;
    if (core_deadline(seconds, &deadline_ns) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_fetcher_take(fetcher_of(self), deadline_ns, &job);
    Py_END_ALLOW_THREADS;
    if (r == 1) return wrap(&job);
    if (r == 0) return PyTuple_New(0);
    if (r == HR_E_END) Py_RETURN_NONE;
    return core_raise(r);
}

static PyObject *fetcher_give(PyObject *self, PyObject *arguments) {
    unsigned long long id;
    Py_buffer data;
    int r;
    if (!PyArg_ParseTuple(arguments, "Ky*:give", &id, &data)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_fetcher_give(fetcher_of(self), id, data.buf, (size_t)data.len);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&data);
    return core_none_or_raise(r);
}

static PyObject *fetcher_keep(PyObject *self, PyObject *arguments) {
    struct hr_fetcher_object object = {0};
    unsigned long long bytes;
    Py_buffer data;
    int r;
    if (!PyArg_ParseTuple(arguments, "yyyyKy*:keep", &object.name, &object.url, &object.version, &object.storage,
                          &bytes, &data))
        return NULL;
    object.bytes = bytes;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_fetcher_keep(fetcher_of(self), &object, data.buf, (size_t)data.len);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&data);
    return core_none_or_raise(r);
}

static PyObject *fetcher_fail(PyObject *self, PyObject *arguments) {
    unsigned long long id;
    const char *text;
    int code, r;
    if (!PyArg_ParseTuple(arguments, "Kiy:fail", &id, &code, &text)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_fetcher_fail(fetcher_of(self), id, code, text);
    Py_END_ALLOW_THREADS;
    return core_none_or_raise(r);
}

static PyObject *fetcher_remove(PyObject *self, PyObject *arguments) {
    const char *name;
    int force, r;
    if (!PyArg_ParseTuple(arguments, "yp:remove", &name, &force)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_fetcher_remove(fetcher_of(self), name, force);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(r);
}

static PyObject *fetcher_save(PyObject *self, PyObject *ignored) {
    (void)ignored;
    Py_BEGIN_ALLOW_THREADS;
    hr_fetcher_save(fetcher_of(self));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *fetcher_show(PyObject *self, PyObject *arguments) {
    unsigned long long requests, retries;
    if (!PyArg_ParseTuple(arguments, "KK:show", &requests, &retries)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    hr_fetcher_show(fetcher_of(self), requests, retries);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *fetcher_look(PyObject *self, PyObject *ignored) {
    struct hr_fetcher_info info;
    (void)ignored;
    hr_fetcher_look(fetcher_of(self), &info);
    return Py_BuildValue("{sK sK sK sK sK sK sK sN}", "kept_bytes", (unsigned long long)info.kept_bytes, "quota_bytes",
                         (unsigned long long)info.quota_bytes, "fetched_bytes", (unsigned long long)info.fetched_bytes,
                         "sent_bytes", (unsigned long long)info.sent_bytes, "connections",
                         (unsigned long long)info.connections, "jobs", (unsigned long long)info.jobs, "announced",
                         (unsigned long long)info.announced, "is_ending", PyBool_FromLong(info.is_ending));
}

static PyMethodDef methods[] = {
    {"start", fetcher_start, METH_VARARGS,
     "start(quota_bytes, free_bytes, idle_ms, threads)\n\nStarts the thread that answers readers. See struct "
     "hr_fetcher_options."},
    {"take", fetcher_take, METH_O,
     "take(seconds) -> tuple or None\n\nReturns a job: (id, text) of a call, or (id, url, version, storage, "
     "object_bytes, at, bytes, asked) of a part, with the seconds of time.monotonic() when it was asked for; (): none "
     "came in time; None: the fetcher ends."},
    {"give", fetcher_give, METH_VARARGS,
     "give(id, data)\n\nBrings what a job is for. Raises ValueError if it has another size."},
    {"keep", fetcher_keep, METH_VARARGS,
     "keep(name, url, version, storage, bytes, data)\n\nKeeps the first unit of an object. Raises OSError."},
    {"fail", fetcher_fail, METH_VARARGS,
     "fail(id, code, text)\n\nEnds a job with a negative errno and a text, as bytes, without secrets."},
    {"remove", fetcher_remove, METH_VARARGS,
     "remove(name, force) -> int\n\nRemoves what is kept of an object. Returns 0 or a negative errno: see "
     "hr_fetcher_remove."},
    {"save", fetcher_save, METH_NOARGS, "save()\n\nBrings what was kept to the disk."},
    {"show", fetcher_show, METH_VARARGS,
     "show(requests, retries)\n\nShows the figures to observers, with requests that were made since the start."},
    {"look", fetcher_look, METH_NOARGS, "look() -> dict\n\nReturns the fields of struct hr_fetcher_info."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject FetcherType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Fetcher",
    .tp_basicsize = sizeof(struct core_fetcher),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Fetcher(folder)\n\nThe fetcher of a folder (headrace/face/fetcher.h). Raises BlockingIOError if another "
              "process is it.",
    .tp_new = fetcher_new,
    .tp_dealloc = fetcher_dealloc,
    .tp_methods = methods,
};
