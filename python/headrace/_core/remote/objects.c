/* SPDX-License-Identifier: Apache-2.0 */
/* Remote objects that this process knows, and calls of the fetcher. */
#include "remote/remote.h"

/* The library calls this while it waits, without the GIL. Only the main thread runs handlers. An exception of one stays
 * set, and core_raise leaves it. */
static int check_signals(void) {
    if (!PyGILState_GetThisThreadState()) return 0; /* a thread of the library */
    PyGILState_STATE state = PyGILState_Ensure();
    int r = PyErr_CheckSignals();
    PyGILState_Release(state);
    return r;
}

static PyObject *use(PyObject *ignored, PyObject *words) {
    (void)ignored;
    if (!PyTuple_Check(words)) return PyErr_Format(PyExc_TypeError, "headrace: expected a tuple of bytes");
    const char **texts = core_paths(words);
    if (!texts) return NULL;
    int r = hr_remote_use(texts);
    PyMem_Free(texts);
    if (r < 0) return core_raise(r);
    hr_remote_check_signals(check_signals);
    Py_RETURN_NONE;
}

static PyObject *folder(PyObject *ignored, PyObject *none) {
    char path[4096];
    (void)ignored, (void)none;
    int r = hr_remote_folder(path, sizeof path);
    return r < 0 ? core_raise(r) : PyBytes_FromString(path);
}

static PyObject *close_connection(PyObject *ignored, PyObject *none) {
    (void)ignored, (void)none;
    hr_remote_close();
    Py_RETURN_NONE;
}

static PyObject *look(PyObject *ignored, PyObject *arguments) {
    PyObject *urls;
    const char *storage;
    int r;
    (void)ignored;
    if (!PyArg_ParseTuple(arguments, "O!y:remote_look", &PyTuple_Type, &urls, &storage)) return NULL;
    const char **texts = core_paths(urls);
    if (!texts) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_remote_look(texts, (size_t)PyTuple_GET_SIZE(urls), storage);
    Py_END_ALLOW_THREADS;
    PyMem_Free(texts);
    return core_none_or_raise(r);
}

static PyObject *find(PyObject *ignored, PyObject *argument) {
    struct hr_remote_object object;
    const char *path = PyBytes_AsString(argument);
    (void)ignored;
    if (!path) return NULL;
    if (hr_remote_find(path, &object) < 0) Py_RETURN_NONE;
    return Py_BuildValue("(yyyyyK)", object.path, object.url, object.storage, object.name, object.version,
                         (unsigned long long)object.bytes);
}

static PyObject *add(PyObject *ignored, PyObject *arguments) {
    struct hr_remote_object object = {0};
    unsigned long long bytes;
    (void)ignored;
    if (!PyArg_ParseTuple(arguments, "yyyyyK:remote_add", &object.path, &object.url, &object.storage, &object.name,
                          &object.version, &bytes))
        return NULL;
    object.bytes = bytes;
    return core_none_or_raise(hr_remote_add(&object));
}

static PyObject *call(PyObject *ignored, PyObject *argument) {
    char *text, *answer;
    Py_ssize_t bytes;
    size_t answer_bytes;
    int r;
    (void)ignored;
    if (PyBytes_AsStringAndSize(argument, &text, &bytes) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_remote_call(text, (size_t)bytes, &answer, &answer_bytes);
    Py_END_ALLOW_THREADS;
    if (r < 0) return core_raise(r);
    PyObject *result = PyBytes_FromStringAndSize(answer, (Py_ssize_t)answer_bytes);
    hr_remote_free(answer);
    return result;
}

static PyMethodDef functions[] = {
    {"remote_use", use, METH_O,
     "remote_use(words)\n\nSets the command of the fetcher, a tuple of bytes. A wait for the fetcher runs the handlers "
     "of signals."},
    {"remote_folder", folder, METH_NOARGS,
     "remote_folder() -> bytes\n\nReturns the folder of remote objects, which is made. Raises OSError."},
    {"remote_close", close_connection, METH_NOARGS,
     "remote_close()\n\nCloses the connection of this thread to the fetcher."},
    {"remote_look", look, METH_VARARGS,
     "remote_look(urls, storage)\n\nAsks for size and version of objects. urls: a tuple of bytes. storage: JSON. "
     "Raises OSError and ValueError."},
    {"remote_find", find, METH_O,
     "remote_find(path) -> (path, url, storage, name, version, bytes) or None\n\nReturns what is known of an object."},
    {"remote_add", add, METH_VARARGS,
     "remote_add(path, url, storage, name, version, bytes)\n\nMakes an object known. Raises ValueError."},
    {"remote_call", call, METH_O,
     "remote_call(text) -> bytes\n\nCalls the fetcher, and returns its answer. Raises OSError."},
    {NULL, NULL, 0, NULL},
};

int remote_add(PyObject *module) {
    bool is_added = PyModule_AddFunctions(module, functions) >= 0 && PyModule_AddType(module, &FetcherType) >= 0 &&
                    PyModule_AddType(module, &AnnouncerType) >= 0 && PyModule_AddType(module, &FillingType) >= 0;
    return is_added ? 0 : -1;
}
