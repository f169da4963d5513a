/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict on a loop that waits, and quantiles of histograms: for reports. */
#include "record/record.h"

PyObject *record_judge(PyObject *self, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"is_short",  "is_cause",   "wait",         "start", "workers",     "busy",
                            "collate",   "network",    "cpu",          "delay", "cores",       "free",
                            "throttled", "first_pass", "slow_samples", "lag",   "lag_of_wait", NULL};
    struct hr_waits waits;
    int is_short, is_cause;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(
            arguments, keywords, "$ppddIdddddddddddd:judge", names, &is_short, &is_cause, &waits.wait, &waits.start,
            &waits.workers, &waits.busy, &waits.collate, &waits.network, &waits.cpu, &waits.delay, &waits.cores,
            &waits.free, &waits.throttled, &waits.first_pass, &waits.slow_samples, &waits.lag, &waits.lag_of_wait))
        return NULL;
    waits.is_short = is_short;
    waits.is_cause = is_cause;
    struct hr_verdict verdict = hr_judge(&waits);
    return Py_BuildValue("sIINNN", hr_verdict_name(verdict.kind), verdict.workers, verdict.room,
                         PyBool_FromLong(verdict.is_cold), PyBool_FromLong(verdict.is_storage),
                         PyBool_FromLong(verdict.is_network));
}

PyObject *record_quantile_ns(PyObject *self, PyObject *arguments) {
    uint64_t buckets[HR_LOOK_BUCKETS];
    PyObject *counts;
    double share;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "Od:quantile_ns", &counts, &share)) return NULL;
    PyObject *items = PySequence_Fast(counts, "headrace: a histogram is a list of counts");
    if (!items) return NULL;
    bool fits = PySequence_Fast_GET_SIZE(items) == HR_LOOK_BUCKETS;
    for (Py_ssize_t i = 0; fits && i < HR_LOOK_BUCKETS; i++) {
        buckets[i] = PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(items, i));
        if (PyErr_Occurred()) break;
    }
    Py_DECREF(items);
    if (!fits) return PyErr_Format(PyExc_ValueError, "headrace: a histogram has %d counts", HR_LOOK_BUCKETS);
    return PyErr_Occurred() ? NULL : PyFloat_FromDouble(hr_times_quantile_ns(buckets, share));
}
