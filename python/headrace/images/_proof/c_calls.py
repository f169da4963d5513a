# SPDX-License-Identifier: Apache-2.0
"""Tells whether a frame was called by the one above it, or by code in C that the frame above called: map, reduce, next.

A stack of frames does not show functions in C. One of them gets the result first, and may give it to further functions,
which are not on the stack. So the call in the bytecode is looked at: what it calls is found by its name.
"""

from __future__ import annotations

import dis
import functools
from inspect import CO_GENERATOR
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from headrace._base import lookup
from headrace.images._proof.stack import effect, taken_by_call

_MOST_CODES = 4096
_NOTHING = object()
_known: dict[int, tuple[CodeType, dict[int, tuple[str, tuple[str, ...]]]]] = {}


def is_called_directly(frame: FrameType, below: FrameType) -> bool:
    """Returns False if a function in C, which the instruction of a frame calls, has called the frame below. What is
    called is not always known, as in `steps[0](image)`: then it counts as a function in Python."""
    operation, names = _call_of(frame.f_code, frame.f_lasti)
    if operation == "FOR_ITER":
        return bool(below.f_code.co_flags & CO_GENERATOR) or below.f_code.co_name == "__next__"
    if operation.startswith("BINARY_"):
        return below.f_code.co_name == "__getitem__"
    if not names or names[-1] == below.f_code.co_name:
        return True
    called = _find(frame, names)
    return called is _NOTHING or _is_python(called)


def _is_python(called: Any) -> bool:
    """Returns True if the call of an object runs a function in Python, whose result is that of the call."""
    while type(called) is functools.partial:
        called = called.func
    if isinstance(called, (FunctionType, MethodType)):
        return True
    if isinstance(called, type):  # its result is an instance
        return any(isinstance(lookup.static(called, name), FunctionType) for name in ("__new__", "__init__"))
    return isinstance(lookup.static(type(called), "__call__"), FunctionType)


def _find(frame: FrameType, names: tuple[str, ...]) -> Any:
    """Returns the object with these names, an attribute of an attribute of a variable, without running code."""
    first, *others = names
    places = (frame.f_locals, frame.f_globals, frame.f_builtins)
    found = next((place[first] for place in places if first in place), _NOTHING)
    for name in others:
        found = _attribute(found, name)
    return found


def _attribute(value: Any, name: str) -> Any:
    if isinstance(value, ModuleType):
        return vars(value).get(name, _NOTHING)
    own = lookup.attribute(value, "__dict__")
    spaces = [own, own.get("_modules")] if type(own) is dict else []  # where a module of torch has its submodules
    for space in spaces:
        if type(space) is dict and name in space:
            return space[name]
    found = lookup.static(value if isinstance(value, type) else type(value), name)
    return found if isinstance(found, FunctionType) else _NOTHING


def _call_of(code: CodeType, last: int) -> tuple[str, tuple[str, ...]]:
    found = _known.get(id(code))
    if found is None:
        if len(_known) >= _MOST_CODES:
            _known.clear()
        found = _known[id(code)] = (code, {})  # keeps the code, so that no other one gets its id
    if last not in found[1]:
        found[1][last] = _read(code, last)
    return found[1][last]


def _read(code: CodeType, last: int) -> tuple[str, tuple[str, ...]]:
    """Returns the name of the instruction at an offset, and the names by which the code finds what it calls; none, if
    they are not known."""
    instructions = list(dis.get_instructions(code))
    place = max(at for at, one in enumerate(instructions) if one.offset <= last)
    if instructions[place].opname == "PRECALL":
        place += 1
    return instructions[place].opname, tuple(_callee(instructions, place))


def _callee(instructions: list[Any], place: int) -> list[str]:
    call = instructions[place]
    missing = taken_by_call(call) or (1 - effect(call, False) if call.opname == "CALL_METHOD" else 0)
    missing -= 1 if call.opname.startswith("CALL_FUNCTION") else 2  # itself, and NULL or the object of a method
    while missing > 0 and place > 0:
        place -= 1
        one = instructions[place]
        if one.opcode in dis.hasjrel or one.is_jump_target:
            return []
        taken = taken_by_call(one)
        missing -= 1 - taken if taken else 0 if one.opname == "PRECALL" else effect(one, False)
    return _names(instructions, place - 1) if missing == 0 else []


def _names(instructions: list[Any], place: int) -> list[str]:
    names: list[str] = []
    while place >= 0:
        one = instructions[place]
        place -= 1
        if one.opname in ("PUSH_NULL", "CACHE"):
            continue
        if not isinstance(one.argval, str):
            return []
        names.insert(0, one.argval)
        if one.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            return names if one.opname.startswith(("LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME")) else []
    return []
