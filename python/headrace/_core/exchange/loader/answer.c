/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Loader: rebuilds the answer that was waited for, and keeps it until it is dropped. */
#include "exchange/loader/loader.h"

PyObject *loader_answer(PyObject *self, PyObject *arguments) {
    struct loader *loader = (struct loader *)self;
    struct hr_delivery *delivery = loader->received;
    PyObject *tensors = NULL;
    if (!PyArg_ParseTuple(arguments, "|O!:answer", &PyList_Type, &tensors)) return NULL;
    if (loader->answer) return Py_NewRef(loader->answer);
    if (!loader_idle(self)) return NULL;
    if (!delivery) return PyErr_Format(PyExc_RuntimeError, "headrace: no answer was waited for");
    loader->received = NULL; /* decoding may run code that closes this loader, or waits */
    int64_t began_ns = show_of(loader->show) ? hr_show_part_begin(show_of(loader->show)) : 0;
    struct origin origin = {.data = delivery->data,
                            .bytes = delivery->bytes,
                            .delivery = delivery,
                            .leased = tensors ? LEASED_NONE : LEASED_LARGE};
    struct moved moved = {.tensors = tensors};
    PyObject *answer = delivery->status == HR_STATUS_TOO_BIG && delivery->bytes == sizeof(uint64_t)
                           ? PyLong_FromUnsignedLongLong(*(const uint64_t *)delivery->data)
                           : decode(&origin, loader->types, tensors ? &moved : NULL);
    if (show_of(loader->show)) hr_show_part_end(show_of(loader->show), HR_SHOW_REBUILD, began_ns);
    loader->has_failed = !answer;
    loader->has_others = moved.has_others;
    if (!answer && loader->loader && !loader->received) {
        loader->received = delivery;
        return NULL;
    }
    hr_delivery_done(delivery);
    if (answer) Py_XSETREF(loader->answer, Py_NewRef(answer));
    return answer;
}

PyObject *loader_fail(PyObject *self, PyObject *ignored) {
    (void)ignored;
    ((struct loader *)self)->has_failed = true;
    Py_RETURN_NONE;
}

PyObject *loader_has_answer(PyObject *self, void *ignored) {
    (void)ignored;
    return PyBool_FromLong(((struct loader *)self)->received || ((struct loader *)self)->answer);
}

PyObject *loader_drop_answer(PyObject *self, PyObject *ignored) {
    (void)ignored;
    loader_drop(self);
    Py_RETURN_NONE;
}
