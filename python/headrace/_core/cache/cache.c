/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Cache: attaches, asks, lists, removes. */
#include "cache/cache.h"

#include <errno.h>

struct core_cache {
    PyObject_HEAD hr_cache *cache;
};

PyObject *CacheError;

void *cache_raise(int code) {
    if (code > -5000 && code != -EBUSY && code != -EDEADLK) return core_raise(code);
    const char *message = hr_error_message();
    PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
    if (text) PyErr_SetObject(CacheError, text);
    Py_XDECREF(text);
    return NULL;
}

PyObject *cache_none_or_raise(int code) {
    if (code < 0) return cache_raise(code);
    Py_RETURN_NONE;
}

static hr_cache *cache_of(PyObject *self) {
    return ((struct core_cache *)self)->cache;
}

static PyObject *cache_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    const char *root;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "z:Cache", &root)) return NULL;
    struct core_cache *self = (struct core_cache *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    int r = hr_cache_open(root, &self->cache);
    if (r >= 0) return (PyObject *)self;
    cache_raise(r);
    Py_DECREF(self);
    return NULL;
}

static void cache_dealloc(PyObject *self) {
    hr_cache_close(cache_of(self));
    Py_TYPE(self)->tp_free(self);
}

static PyObject *cache_attach(PyObject *self, PyObject *arguments) {
    const char *name, *version, *id;
    hr_cached *cached = NULL;
    if (!PyArg_ParseTuple(arguments, "ssz:attach", &name, &version, &id)) return NULL;
    int r = id ? hr_cache_attach_id(cache_of(self), name, version, id, &cached)
               : hr_cache_attach(cache_of(self), name, version, &cached);
    return r < 0 ? cache_raise(r) : cached_new(cached);
}

static PyObject *cache_peek(PyObject *self, PyObject *arguments) {
    const char *name, *version;
    char id[HR_CACHE_ID_CHARACTERS], *stamp = NULL;
    if (!PyArg_ParseTuple(arguments, "ss:peek", &name, &version)) return NULL;
    int r = hr_cache_peek(cache_of(self), name, version, id, &stamp);
    if (r < 0) return cache_raise(r);
    PyObject *result =
        Py_BuildValue("(sN)", id, PyUnicode_DecodeUTF8(stamp, (Py_ssize_t)strlen(stamp), "surrogateescape"));
    hr_cache_free_text(stamp);
    return result;
}

static PyObject *cache_ask(PyObject *self, PyObject *arguments) {
    struct hr_cache_request request = {0};
    hr_cache_ticket *ticket;
    if (!PyArg_ParseTuple(arguments, "sszsI:ask", &request.name, &request.version, &request.stamp, &request.format,
                          &request.keep))
        return NULL;
    int r = hr_cache_ask(cache_of(self), &request, &ticket);
    return r < 0 ? cache_raise(r) : cache_ticket_new(ticket);
}

/* ---- listing ---- */

static PyObject *describe_entry(const struct hr_cache_entry *entry) {
    PyObject *dict = describe_cached(&entry->info);
    PyObject *more =
        dict ? Py_BuildValue("{sIsIsLsN}", "state", entry->state, "claims", entry->claim_count, "attached_ns",
                             (long long)entry->attached_ns, "builder", describe_builder(&entry->builder))
             : NULL;
    if (!more || PyDict_Update(dict, more) < 0) Py_CLEAR(dict);
    Py_XDECREF(more);
    return dict;
}

/* Appends an object, which is taken over, to a list. Returns 1, which ends the listing, with an exception. */
static int append(PyObject *list, PyObject *item) {
    int r = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return r < 0;
}

static int append_entry(void *list, const struct hr_cache_entry *entry) {
    return append(list, describe_entry(entry));
}

static int append_claim(void *list, const struct hr_cache_claim *claim) {
    return append(
        list, Py_BuildValue("(IOLN)", claim->pid, claim->is_visible ? Py_True : Py_False, (long long)claim->since_ns,
                            PyUnicode_DecodeUTF8(claim->command, (Py_ssize_t)strlen(claim->command), "replace")));
}

static PyObject *result_or_raise(PyObject *list, int code) {
    if (code == 0) return list;
    Py_DECREF(list);
    return code < 0 ? cache_raise(code) : NULL;
}

static PyObject *cache_list(PyObject *self, PyObject *ignored) {
    (void)ignored;
    PyObject *list = PyList_New(0);
    return list ? result_or_raise(list, hr_cache_list(cache_of(self), append_entry, list)) : NULL;
}

static PyObject *cache_claims(PyObject *self, PyObject *id) {
    const char *text = PyUnicode_AsUTF8(id);
    PyObject *list = text ? PyList_New(0) : NULL;
    return list ? result_or_raise(list, hr_cache_claims(cache_of(self), text, append_claim, list)) : NULL;
}

/* ---- removing ---- */

static PyObject *cache_remove(PyObject *self, PyObject *arguments) {
    const char *name, *version;
    int force, r;
    if (!PyArg_ParseTuple(arguments, "ssp:remove", &name, &version, &force)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_cache_remove(cache_of(self), name, version, force);
    Py_END_ALLOW_THREADS;
    return cache_none_or_raise(r);
}

static PyObject *cache_collect(PyObject *self, PyObject *arguments) {
    struct hr_cache_collected result;
    long long older_ns;
    unsigned long long quota;
    int r;
    if (!PyArg_ParseTuple(arguments, "LK:collect", &older_ns, &quota)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_cache_collect(cache_of(self), older_ns, quota, NULL, NULL, &result);
    Py_END_ALLOW_THREADS;
    if (r < 0) return cache_raise(r);
    return Py_BuildValue("(KKK)", (unsigned long long)result.objects, (unsigned long long)result.bytes,
                         (unsigned long long)result.bytes_left);
}

static PyObject *cache_root(PyObject *self, void *ignored) {
    (void)ignored;
    return PyUnicode_DecodeFSDefault(hr_cache_root(cache_of(self)));
}

static PyObject *cache_sample_budget(PyObject *self, PyObject *ignored) {
    uint64_t bytes;
    (void)ignored;
    int r = hr_samples_auto_budget(cache_of(self), &bytes);
    return r < 0 ? cache_raise(r) : PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *cache_sweep(PyObject *self, PyObject *ignored) {
    int r;
    (void)ignored;
    Py_BEGIN_ALLOW_THREADS;
    r = hr_cache_sweep(cache_of(self));
    Py_END_ALLOW_THREADS;
    if (r < 0 && r != -EBUSY) return cache_raise(r);
    Py_RETURN_NONE;
}

static PyObject *cache_exists(PyObject *type, PyObject *arguments) {
    const char *root;
    (void)type;
    if (!PyArg_ParseTuple(arguments, "z:exists", &root)) return NULL;
    return PyBool_FromLong(hr_cache_exists(root));
}

static PyMethodDef methods[] = {
    {"exists", cache_exists, METH_VARARGS | METH_STATIC,
     "exists(root) -> bool\n\nReturns True if the cache that Cache(root) would open exists."},
    {"attach", cache_attach, METH_VARARGS,
     "attach(name, version, id) -> Cached\n\nAttaches an object; id None: the one that has the name now. Raises "
     "FileNotFoundError if it does not exist, and CacheError if it is damaged."},
    {"peek", cache_peek, METH_VARARGS,
     "peek(name, version) -> (id, stamp)\n\nReturns which object has a name now, without attaching it."},
    {"ask", cache_ask, METH_VARARGS,
     "ask(name, version, stamp, format, keep) -> CacheTicket\n\nAsks for an object that this process can build."},
    {"entries", cache_list, METH_NOARGS, "entries() -> list[dict]\n\nReturns all objects and builds."},
    {"claims", cache_claims, METH_O,
     "claims(id) -> list[tuple]\n\nReturns (pid, is_visible, since_ns, command) of each process that has the object."},
    {"remove", cache_remove, METH_VARARGS, "remove(name, version, force)\n\nRemoves an object."},
    {"collect", cache_collect, METH_VARARGS,
     "collect(older_ns, quota) -> (objects, bytes, bytes_left)\n\nDeletes what no process has. older_ns: -1 for any "
     "age."},
    {"sweep", cache_sweep, METH_NOARGS, "sweep()\n\nDeletes what jobs that have ended left."},
    {"sample_budget", cache_sample_budget, METH_NOARGS,
     "sample_budget() -> int\n\nReturns a number of bytes for samples that this machine has room for."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"root", cache_root, NULL, "The folder of names and locks.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject CacheType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace._core.Cache",
    .tp_basicsize = sizeof(struct core_cache),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Cache(root)\n\nAn open cache (headrace/cache.h). root: a path, or None for the default.",
    .tp_new = cache_new,
    .tp_dealloc = cache_dealloc,
    .tp_methods = methods,
    .tp_getset = attributes,
};

static PyMethodDef functions[] = {
    {"files_count", files_count, METH_O, "files_count(cached) -> int\n\nReturns the number of arrays of cached files."},
    {"files_find", files_find, METH_VARARGS,
     "files_find(cached, stem) -> (first, count) | None\n\nFinds the arrays of a file."},
    {"files_read", files_read, METH_VARARGS,
     "files_read(cached, number) -> (stem, member, dtype, shape, is_fortran, offset, bytes)\n\nReads one array's "
     "entry."},
    {NULL, NULL, 0, NULL},
};

int cache_add(PyObject *module) {
    CacheError = PyErr_NewExceptionWithDoc(
        "headrace.CacheError",
        "The cache cannot give an object: it is damaged or in use, its builders died, or they wait for each other.",
        PyExc_RuntimeError, NULL);
    if (!CacheError || PyModule_AddObjectRef(module, "CacheError", CacheError) < 0) return -1;
    PyTypeObject *types[] = {&CacheType,   &CacheTicketType, &CacheBuildType, &CachedType, &FilesPlanType,
                             &SamplesType, &SharedType,      &SharedLockType, NULL};
    for (PyTypeObject **type = types; *type; type++)
        if (PyModule_AddType(module, *type) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}
