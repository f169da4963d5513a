/* SPDX-License-Identifier: Apache-2.0 */
/* Returns the results of hr_machine_look as a dict. */
#include "inspect/inspect.h"

#include <headrace/face/machine.h>

/* Returns None if there is no limit, or it is not known. */
static PyObject *number(uint64_t value) {
    return value == HR_NO_LIMIT ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(value);
}

PyObject *machine_look(PyObject *module, PyObject *ignored) {
    struct hr_machine m;
    (void)module, (void)ignored;
    hr_machine_look(&m);
    return Py_BuildValue(
        "{s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:I,s:O,s:O,s:O,s:O}", "memory_bytes", number(m.memory_bytes), "available_bytes",
        number(m.available_bytes), "cgroup_limit_bytes", number(m.cgroup_limit_bytes), "cgroup_headroom_bytes",
        number(m.cgroup_headroom_bytes), "spare_bytes", number(m.spare_bytes), "cgroup_millicores",
        number(m.cgroup_millicores), "process_room", number(m.process_room), "core_count", m.core_count, "has_pidfd",
        m.has_pidfd ? Py_True : Py_False, "has_memfd", m.has_memfd ? Py_True : Py_False, "has_end_signals",
        m.has_end_signals ? Py_True : Py_False, "gives_holes_back", m.gives_holes_back ? Py_True : Py_False);
}

PyObject *machine_private_bytes(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    return PyLong_FromUnsignedLongLong(hr_machine_private_bytes());
}
