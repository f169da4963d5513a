/* SPDX-License-Identifier: Apache-2.0 */
/* Creates the extension module. */
#include "board/board.h"
#include "cache/cache.h"
#include "exchange/encode.h"
#include "exchange/exchange.h"
#include "frozen/frozen.h"
#include "image/image.h"
#include "inspect/inspect.h"
#include "record/record.h"
#include "remote/remote.h"
#include "rows/rows.h"
#include "sampler/sampler.h"
#include "source/source.h"

struct core core;

int core_need_numpy(void) {
    if (core.array_type) return 0;
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (!numpy) return -1;
    core.dtype_type = PyObject_GetAttrString(numpy, "dtype");
    core.array_type = core.dtype_type ? PyObject_GetAttrString(numpy, "ndarray") : NULL;
    Py_DECREF(numpy);
    return core.array_type ? 0 : -1;
}

static void set(PyObject **slot, PyObject *value) {
    PyObject *old = *slot;
    *slot = Py_NewRef(value);
    Py_XDECREF(old);
}

static PyObject *configure(PyObject *module, PyObject *arguments) {
    PyObject *dump, *load;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO:configure", &dump, &load)) return NULL;
    set(&core.dump, dump);
    set(&core.load, load);
    Py_RETURN_NONE;
}

static PyObject *use_numpy(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    if (core_need_numpy() < 0) return NULL;
    Py_RETURN_NONE;
}

static struct dl_exchange *find_table(PyObject *capsule) {
    struct dl_exchange *table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    while (table && table->version.major > DL_MAJOR_VERSION) table = table->previous;
    return table && table->version.major == DL_MAJOR_VERSION && table->describe && table->import_managed ? table : NULL;
}

static PyObject *use_torch(PyObject *module, PyObject *arguments) {
    PyObject *type, *int8, *uint8, *from_capsule, *table;
    struct dl_exchange *exchange = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOO:use_torch", &type, &int8, &uint8, &from_capsule, &table)) return NULL;
    if (table != Py_None) exchange = find_table(table);
    if (PyErr_Occurred()) return NULL;
    core.exchange = exchange;
    set(&core.tensor_type, type);
    set(&core.int8, int8);
    set(&core.uint8, uint8);
    set(&core.tensor_from_capsule, from_capsule);
    return PyBool_FromLong(exchange != NULL);
}

static PyObject *use_images(PyObject *module, PyObject *arguments) {
    PyObject *type, *describe, *has_made;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!OO:use_images", &PyType_Type, &type, &describe, &has_made)) return NULL;
    set(&core.deferred_type, type);
    set(&core.describe_deferred, describe);
    set(&core.has_made, has_made);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS,
     "configure(dump, load)\n\nSets how objects that are not plain trees are pickled: dump(object) -> (bytes, "
     "children) and load(bytes, children) -> object. A child is a tensor or a buffer."},
    {"use_numpy", use_numpy, METH_NOARGS,
     "use_numpy()\n\nMakes numpy arrays leaves of batches. Raises ImportError without numpy."},
    {"use_torch", use_torch, METH_VARARGS,
     "use_torch(Tensor, int8, uint8, from_capsule, exchange_table) -> bool\n\nMakes torch tensors leaves of batches. "
     "exchange_table is the type's DLPack exchange capsule or None. Returns True if this table is used, False if "
     "DLPack capsules are used instead."},
    {"use_images", use_images, METH_VARARGS,
     "use_images(DeferredTensor, describe, has_made)\n\nMakes deferred tensors leaves of batches. describe(list) -> "
     "(dtype code, bits, channels, height, width, recipes), or None if they are to be made by Python. A recipe is as "
     "for run_images, without a target. has_made(count) is called when so many were made."},
    {"private_share", growth_look, METH_VARARGS,
     "private_share(object, paths, seed) -> (bytes, private_bytes, pages, private_pages)\n\nEstimates how much memory "
     "the parts of an object take, and how much of it only this process has. It follows `paths` random paths through "
     "the object, drawn from the seed, and writes to no part of it. Raises OSError without /proc."},
    {"for_sets", walk_for_sets, METH_O,
     "for_sets(called) -> function\n\nReturns a function for pickle.Pickler.persistent_id: it calls `called` with a "
     "set or frozenset, and returns None for any other value."},
    {"machine", machine_look, METH_NOARGS,
     "machine() -> dict\n\nReturns the fields of struct hr_machine. None: no limit, or not known."},
    {"private_bytes", machine_private_bytes, METH_NOARGS,
     "private_bytes() -> int\n\nReturns the size of the memory that only this process has; 0: not known."},
    {"deal", deal_rank, METH_VARARGS,
     "deal(n, position, world_size, rank, drop_last) -> (first, step, count, once)\n\nReturns the part of a rank of "
     "what is left of an order of n samples from `position` on, as positions modulo n; the first `once` of them are no "
     "repeats. See hr_deal_rank."},
    {"deal_machines", deal_machines, METH_VARARGS,
     "deal_machines(table, world_size, machine_ranks, target)\n\nWrites the indices of a table to another one, so that "
     "each machine keeps its samples. Both are buffers of int64. Raises ValueError if the table has not each sample "
     "once. See hr_deal_machines."},
    {"advance", deal_advance, METH_VARARGS,
     "advance(n, position, world_size, batch_size, steps) -> int\n\nReturns the position after so many steps. See "
     "hr_deal_advance."},
    {"plan", (PyCFunction)(void (*)(void))make_plan, METH_VARARGS | METH_KEYWORDS,
     "plan(lengths, width, seed, epoch, tail, max_sum=0, max_padded=0, max_batch=0, pack=0, cost_linear=1, "
     "cost_quadratic=0, window=0, buckets=(), ranks=0) -> (entries, starts, repeats)\n\nPlans the batches of an epoch. "
     "lengths: a buffer of int32. tail: 0 (pad), 1 (drop) or 2 (exact). buckets: pairs (longest, batch_size). entries: "
     "int32 as bytes. starts: int64 as bytes. repeats: how many entries are repeats. See hr_plan_new."},
    {"plan_several", (PyCFunction)(void (*)(void))make_plan_several, METH_VARARGS | METH_KEYWORDS,
     "plan_several(lengths, width, seed, epoch, tail, max_batch=0, window=0, costs=None, ranks=0) -> (entries, starts, "
     "repeats)\n\nDoes the same for samples with several lengths, each a tuple (values, max_sum, max_padded, pack, "
     "cost_linear, cost_quadratic); values is a buffer of int32. costs: a buffer of uint32. See hr_plan_new_several."},
    {"judge", (PyCFunction)(void (*)(void))record_judge, METH_VARARGS | METH_KEYWORDS,
     "judge(*, is_short, is_cause, wait, start, workers, busy, collate, cpu, delay, cores, free, throttled, "
     "first_pass, slow_samples, lag, lag_of_wait) -> (kind, workers, room, is_cold)\n\nReturns why a loop waits. See "
     "struct hr_waits and struct hr_verdict."},
    {"quantile_ns", record_quantile_ns, METH_VARARGS,
     "quantile_ns(buckets, share) -> float\n\nReturns a quantile of a histogram of times. See "
     "hr_times_quantile_ns."},
    {"run_images", images_run, METH_VARARGS,
     "run_images(recipes, threads) -> list[int]\n\nMakes images in several threads, as planes (hr_images_run). A "
     "recipe is (Picture, steps, weights, table, table_channels, item_bytes, target): steps are structs hr_image_step, "
     "weights are floats for them, both as bytes, table is bytes or None, target a writable buffer. Returns 0 or a "
     "negative code for each."},
    {"unregister_kept", sending_unregister_kept, METH_VARARGS,
     "unregister_kept(arena, slot)\n\nDoes what Loader.unregister_slot does, after Loader.detach."},
    {"call_and_undo", core_call_and_undo, METH_VARARGS,
     "call_and_undo(function, undo) -> object\n\nReturns function(), and calls undo() whatever happens, also if a "
     "signal's handler interrupts either of them."},
    {"guard", core_guard, METH_VARARGS,
     "guard(address, size) -> int\n\nNotes, in a build with failpoints, that the memory must not be punched or "
     "unmapped; size 0: it may be again."},
    {"guard_lost", core_guard_lost, METH_NOARGS,
     "guard_lost() -> int\n\nReturns how often guarded memory was punched or unmapped."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace._core",
    .m_doc = "libheadrace for Python. Private: use headrace and headrace.torch.",
    .m_size = -1,
    .m_methods = methods,
};

static int intern_names(void) {
    core.names.requires_grad = PyUnicode_InternFromString("requires_grad");
    core.names.dtype = PyUnicode_InternFromString("dtype");
    core.names.is_conj = PyUnicode_InternFromString("is_conj");
    core.names.is_neg = PyUnicode_InternFromString("is_neg");
    core.names.stride = PyUnicode_InternFromString("stride");
    core.names.untyped_storage = PyUnicode_InternFromString("untyped_storage");
    core.names.data_ptr = PyUnicode_InternFromString("data_ptr");
    core.names.storage_offset = PyUnicode_InternFromString("storage_offset");
    core.names.prepare = PyUnicode_InternFromString("_prepare");
    core.names.is_from_signal = PyUnicode_InternFromString("_is_from_signal");
    core.names.show_step = PyUnicode_InternFromString("show_step");
    core.names.check_end = PyUnicode_InternFromString("check_end");
    return PyErr_Occurred() ? -1 : 0;
}

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    WorkerDied = PyErr_NewExceptionWithDoc("headrace._core.WorkerDied", "A worker process died; args[0] is its number.",
                                           PyExc_RuntimeError, NULL);
    Unsettled = PyErr_NewExceptionWithDoc(
        "headrace._core.Unsettled",
        "Copies to a device hold memory that is needed; args[0]: and its registered memory is needed too.", NULL, NULL);
    if (!WorkerDied || !Unsettled || PyModule_AddObjectRef(module, "Unsettled", Unsettled) < 0 || intern_names() < 0 ||
        PyModule_AddObjectRef(module, "WorkerDied", WorkerDied) < 0 || PyModule_AddType(module, &LoaderType) < 0 ||
        PyModule_AddType(module, &PortType) < 0 || PyModule_AddType(module, &TasksType) < 0 ||
        PyModule_AddType(module, &ShowType) < 0 || PyModule_AddType(module, &TunerType) < 0 ||
        PyModule_AddType(module, &IteratorType) < 0 || PyType_Ready(&NotingType) < 0 ||
        PyType_Ready(&ExpansionType) < 0 || PyModule_AddType(module, &LeaseType) < 0 ||
        PyModule_AddType(module, &OriginalsType) < 0 || PyModule_AddType(module, &WalkerType) < 0 ||
        PyModule_AddType(module, &OrderType) < 0 || PyType_Ready(&OrderIteratorType) < 0 ||
        PyModule_AddType(module, &BoardType) < 0 || PyModule_AddType(module, &BoardEntryType) < 0 ||
        PyModule_AddType(module, &PictureType) < 0 || PyModule_AddType(module, &ColumnsType) < 0 ||
        PyModule_AddType(module, &RowsType) < 0 || PyModule_AddType(module, &TokensType) < 0 ||
        PyModule_AddType(module, &IndexType) < 0 || PyModule_AddType(module, &IndexingType) < 0 ||
        PyModule_AddType(module, &LinesType) < 0 || PyModule_AddType(module, &TarType) < 0 ||
        PyModule_AddType(module, &ObjectsType) < 0 || PyModule_AddType(module, &RecordingType) < 0 ||
        PyModule_AddType(module, &RecordThreadType) < 0 || frozen_add(module) < 0 || remote_add(module) < 0 ||
        cache_add(module) < 0 || core_add_constants(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
