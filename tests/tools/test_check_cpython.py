# SPDX-License-Identifier: Apache-2.0
"""The check of CPython's API pairing finds each mistake that it is for, and passes what pairs."""

import pytest

GOOD = """
static PyObject *first(PyObject *self, PyObject *list) {
    PyObject *item = PyList_GetItem(list, 0); /* Py_DECREF(item) would be wrong */
    if (!item) return NULL;
    PyObject *text = PyObject_Str(item);
    if (!text || PyList_Append(list, text) < 0) Py_CLEAR(text);
    return text;
}

static int look_up(PyObject *dict, PyObject *key, long *ret_value) {
    PyObject *value = PyDict_GetItemWithError(dict, key);
    if (!value) return PyErr_Occurred() ? -1 : 0;
    *ret_value = PyLong_AsLong(value);
    return *ret_value == -1 && PyErr_Occurred() ? -1 : 1;
}
"""

BAD = [
    ("PyObject *item = PyList_GetItem(list, 0);\n    Py_DECREF(item);\n    return item;", "released: item"),
    (
        "PyObject *item = PyDict_GetItemWithError(list, list);\n    Py_XDECREF(item);\n    return item;",
        "released: item",
    ),
    ("PyObject_CallNoArgs(list);\n    return list;", "dropped: nothing releases what PyObject_CallNoArgs"),
    ("if (list) PyObject_Repr(list);\n    return list;", "dropped: nothing releases what PyObject_Repr"),
    ("PyList_Append(list, PyLong_FromLong(1));\n    return list;", "dropped: PyList_Append"),
    ("if (!PyList_Check(list)) return NULL;\n    return Py_NewRef(list);", "silent: NULL is returned"),
    ("return NULL;", "silent: NULL is returned"),
    ("long value = PyLong_AsLong(list);\n    return PyLong_FromLong(value + 1);", "unasked: what PyLong_AsLong"),
    ("PyErr_Fetch(&type, &error, &trace);\n    return Py_NewRef(list);", "unpaired: PyErr_Fetch"),
    ("Py_BEGIN_ALLOW_THREADS\n    return Py_NewRef(list);", "unpaired: Py_BEGIN_ALLOW_THREADS"),
]


def test_paired_calls_pass(run_tool, write_files):
    result = run_tool("check_cpython.py", write_files({"a.c": GOOD}))
    assert (result.returncode, result.stdout.strip()) == (0, "")


@pytest.mark.parametrize(("body", "complaint"), BAD)
def test_unpaired_call_is_named_with_its_line(run_tool, write_files, body, complaint):
    code = f"static PyObject *bad(PyObject *self, PyObject *list) {{\n    {body}\n}}\n"
    result = run_tool("check_cpython.py", write_files({"room/a.c": code}))
    assert result.returncode == 1
    assert result.stdout.startswith("room/a.c:")
    assert f"bad: {complaint}" in result.stdout
    assert len(result.stdout.splitlines()) == 1
