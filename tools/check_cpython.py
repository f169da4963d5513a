# SPDX-License-Identifier: Apache-2.0
"""Looks in the extension for calls of CPython's API that do not pair; `make check` calls it.

It reads one function at a time, as text, so it finds the plain mistakes only: a borrowed reference that is released, a
new reference that is dropped, NULL without an exception, an error that is fetched and not restored, a result that can
mean an error and is not asked for one, a lock or buffer that is not given back.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from common import ROOT

EXTENSION = ROOT / "python/headrace/_core"

# The function, and the first word of the complaint: why the function is right.
ALLOWED: dict[tuple[str, str], str] = {
    ("set_tuple_item", "released"): "it takes the reference that the tuple had",
    ("hash_of", "unpaired"): "raises another exception instead",
    ("take_exception", "unpaired"): "returns the exception to its caller",
    ("names_of", "silent"): "NULL without an exception: the dict's keys are no row's names",
    ("part_thaw", "silent"): "NULL without an exception: the object is no part of a view",
    ("iterator_next", "silent"): "tp_iternext: NULL without an exception is the end",
    ("next_item", "silent"): "NULL without an exception: there are no more items",
    ("next_batch", "silent"): "NULL without an exception: there are no more batches",
    ("row_holds", "unasked"): "its caller asks PyErr_Occurred once, for all rows",
    ("pack_ints", "unasked"): "width_of has found that every int fits",
    ("tuple_hash", "unasked"): "passes on -1 and the exception",
    ("set_hash", "unasked"): "passes on -1 and the exception",
}

TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
FUNCTION = re.compile(r"^(?![\s#}/]|typedef)([^\n;={]*?\b(\w+)\([^;{]*?\)) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
BORROWED = (
    r"Py(?:List|Tuple|Dict)_GetItem\w*|Py(?:List|Tuple)_GET_ITEM|PySequence_Fast_GET_ITEM|PyImport_AddModule"
    r"|PySys_GetObject"
)
NEW = (
    r"Py(?:Object_(?:Call\w*|Get(?:Attr|Item|Iter)\w*|Repr|Str|RichCompare)|Vectorcall\w*"
    r"|(?:Long|Float|Bool|Unicode|Bytes)_From\w+|(?:List|Tuple|Dict|Set|FrozenSet|Slice|ByteArray)_New|Tuple_Pack|Sequence_(?:Fast|List|Tuple|GetItem)"
    r"|Number_\w+|Import_Import\w*|Iter_Next|MemoryView_From\w+)|Py_BuildValue|Py_X?NewRef"
)
KEEPS_ITS_OWN = r"PyList_Append|PyDict_SetItem(?:String)?|PyObject_SetAttr(?:String)?|PySet_Add|PyObject_SetItem"
NEVER_RAISES = re.compile(r"Py\w+_Check(?:Exact)?|Py_IS_TYPE|Py_TYPE|Py\w*_GET_SIZE|Py_Is\w*|PyType_HasFeature|sizeof")
CALL = re.compile(r"\b(\w+)\(")
NO_CALL = {"if", "for", "while", "switch", "return", "sizeof"}
# A result that can mean an error and a value: -1, or NULL. A function that returns an object may pass NULL on.
AMBIGUOUS_NUMBERS = r"PyLong_As(?!VoidPtr|Long(?:Long)?AndOverflow)\w+|PyFloat_AsDouble"
AMBIGUOUS = rf"{AMBIGUOUS_NUMBERS}|PyDict_GetItemWithError|PyIter_Next"
RETURNS_OBJECT = re.compile(r"(?:static )?(?:inline )?PyObject \*")
PAIRS = [
    (r"PyErr_Fetch|PyErr_GetRaisedException", r"PyErr_Restore|PyErr_SetRaisedException|_PyErr_ChainExceptions"),
    (r"PyGILState_Ensure", r"PyGILState_Release"),
    (r"Py_BEGIN_ALLOW_THREADS", r"Py_END_ALLOW_THREADS"),
    (r"PyEval_SaveThread", r"PyEval_RestoreThread"),
    (r"Py_EnterRecursiveCall", r"Py_LeaveRecursiveCall"),
]


class Function(NamedTuple):
    name: str
    head: str
    body: str
    line: int

    def line_of(self, offset: int) -> int:
        return self.line + self.body.count("\n", 0, offset)


Finding = tuple[int, str]


def blank(match: re.Match[str]) -> str:
    """Replaces a comment or a string by spaces, so that lines and columns stay."""
    return re.sub(r"[^\n]", " ", match.group())


def list_functions(text: str) -> Iterator[Function]:
    for match in FUNCTION.finditer(TOKEN.sub(blank, text)):
        line = text.count("\n", 0, match.start(3)) + 1
        yield Function(match.group(2), match.group(1), match.group(3), line)


def find_released(function: Function) -> Iterator[Finding]:
    for match in re.finditer(rf"\b(\w+) = (?:{BORROWED})\(", function.body):
        name = match.group(1)
        assigned = len(re.findall(rf"\b{name} = ", function.body))
        is_owned = re.search(rf"Py_X?(?:INCREF|NewRef)\({name}\)", function.body)
        if assigned == 1 and not is_owned and re.search(rf"Py_(?:X?DECREF|CLEAR)\({name}\)", function.body):
            yield match.start(), f"released: {name} is a borrowed reference"


def find_dropped(function: Function) -> Iterator[Finding]:
    for match in re.finditer(rf"(?:^|[;{{}}]|\)\s|else)\s*(?:\(void\)\s*)?({NEW})\([^;]*\);", function.body):
        yield match.start(1), f"dropped: nothing releases what {match.group(1)} returns"
    for match in re.finditer(rf"\b({KEEPS_ITS_OWN})\([^;]*?[ ,(]({NEW})\(", function.body):
        yield match.start(), f"dropped: {match.group(1)} takes a reference of its own to what {match.group(2)} returns"


def list_calls(text: str) -> list[str]:
    return [name for name in CALL.findall(text) if name not in NO_CALL]


def find_silent(function: Function) -> Iterator[Finding]:
    """NULL is returned before any call that could have set an exception, or because of a check that sets none."""
    if not RETURNS_OBJECT.match(function.head):
        return
    for match in re.finditer(r"(?:if \(((?:[^;{}])*)\) )?return NULL;", function.body):
        condition = match.group(1)
        calls = list_calls(condition or "")
        before = [name for name in list_calls(function.body[: match.start()]) if not NEVER_RAISES.fullmatch(name)]
        can_raise = [name for name in calls if not NEVER_RAISES.fullmatch(name)]
        if (calls and not can_raise) or (not calls and not before):
            yield match.start(), "silent: NULL is returned, and no exception is set"


def find_unasked(function: Function) -> Iterator[Finding]:
    if "PyErr_Occurred()" in function.body:
        return
    calls = AMBIGUOUS_NUMBERS if RETURNS_OBJECT.match(function.head) else AMBIGUOUS
    for match in re.finditer(rf"\b({calls})\(", function.body):
        yield match.start(), f"unasked: what {match.group(1)} returns means an error only if PyErr_Occurred() says so"


def find_unpaired(function: Function) -> Iterator[Finding]:
    for first, second in PAIRS:
        match = re.search(rf"\b(?:{first})\b", function.body)
        if match and not re.search(rf"\b(?:{second})\b", function.body):
            yield match.start(), f"unpaired: {match.group()} without {second.split('|')[0]}"


RULES: list[Callable[[Function], Iterator[Finding]]] = [
    find_released,
    find_dropped,
    find_silent,
    find_unasked,
    find_unpaired,
]


def check_text(text: str, allowed: dict[tuple[str, str], str]) -> list[Finding]:
    findings = []
    for function in list_functions(text):
        for rule in RULES:
            for offset, complaint in rule(function):
                if (function.name, complaint.partition(":")[0]) not in allowed:
                    findings.append((function.line_of(offset), f"{function.name}: {complaint}"))
    return sorted(findings)


def check(root: Path, allowed: dict[tuple[str, str], str]) -> list[str]:
    return [
        f"{path.relative_to(root)}:{line}: {complaint}"
        for path in sorted(root.rglob("*.c"))
        for line, complaint in check_text(path.read_text(), allowed)
    ]


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).resolve(), {}) if len(sys.argv) > 1 else check(EXTENSION, ALLOWED)
    print("\n".join(found))
    sys.exit(bool(found))
