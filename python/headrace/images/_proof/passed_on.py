# SPDX-License-Identifier: Apache-2.0
"""Proves that a function passes the result of a call on, and does nothing else with it.

headrace.images uses it. A tensor whose values are not made yet looks like an ordinary one to most code, but not to all:
its type is another one. So it may be seen only by functions that put it into tuples, named tuples, lists and dicts, and
return or yield it. The bytecode says whether a function does. Instructions that are not known to do no more count as a
use. One that keeps its name and changes its meaning would make the proof wrong, so on versions of Python to which it
was not ported every function counts as a use.
"""

from __future__ import annotations

import dis
import sys
from bisect import bisect_right
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FrameType
from typing import Any, NamedTuple

from headrace._base.containers import only_holds
from headrace.images._proof import c_calls
from headrace.images._proof.stack import SUBSCRIPT, Used, at, effect, move, pop, taken_by_call

_PORTED = frozenset((3, minor) for minor in range(10, 16))
VERSION = sys.version_info[:2]
_MOST_STATES = 2000
_MOST_CODES = 4096
_LOOKS_INTO_FRAMES = frozenset(("locals", "vars", "eval", "exec", "_getframe", "currentframe"))

# Instructions after which the result of Python code that they called is the top of the stack.
_CALLS = frozenset(
    "CALL CALL_FUNCTION CALL_FUNCTION_KW CALL_FUNCTION_EX CALL_METHOD CALL_KW BINARY_SUBSCR FOR_ITER".split()
)
# Instructions that end a path. What they take is gone, or is the caller's.
_ENDS = frozenset(("RETURN_VALUE", "RETURN_CONST", "RERAISE"))
_MAKES_CONTAINER = frozenset("BUILD_MAP BUILD_CONST_KEY_MAP BUILD_LIST DICT_UPDATE".split())
_JUMPS = frozenset((*dis.hasjrel, *getattr(dis, "hasjabs", ())))
_ALWAYS = frozenset(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD_NO_INTERRUPT"))


class _State(NamedTuple):
    """The knowledge before an instruction: which values of the stack are or contain the result, from the lowest such
    one to the top, and which local variables."""

    stack: tuple[bool, ...]
    names: frozenset[str]


def is_known() -> bool:
    """Returns True if the meaning of this Python's instructions is known here."""
    return VERSION in _PORTED


_known: dict[int, tuple[CodeType, dict[int, frozenset[str] | None]]] = {}


def is_passed_on(frame: FrameType, below: FrameType | None = None) -> bool:
    """Returns True if the function of the frame only passes on the result of the call that it has begun. below: the
    frame that runs in this call. Code in C between both, such as map or functools.reduce, may do more with the result
    of that frame."""
    if not is_known() or (below is not None and not c_calls.is_called_directly(frame, below)):
        return False
    code, last = frame.f_code, frame.f_lasti
    found = _known.get(id(code))
    if found is None:
        if len(_known) >= _MOST_CODES:
            _known.clear()
        found = _known[id(code)] = (code, {})  # keeps the code, so that no other one gets its id
    if last not in found[1]:
        found[1][last] = _prove(code, last)
    classes = found[1][last]
    if not classes:
        return classes is not None
    return all(only_holds(frame.f_globals.get(name, frame.f_builtins.get(name))) for name in classes)


def _prove(code: CodeType, last: int) -> frozenset[str] | None:
    """Returns the global variables that have to be classes of containers, so that the result is only passed on; None if
    it may be used."""
    if not _LOOKS_INTO_FRAMES.isdisjoint(code.co_names):
        return None
    try:
        function = _Function(code)
        function.follow(last)
    except Used:
        return None
    return frozenset(function.classes)


class _Function:
    def __init__(self, code: CodeType) -> None:
        self._instructions = list(dis.get_instructions(code))
        self._offsets = [one.offset for one in self._instructions]
        self._handlers = _handlers_of(code, self._instructions)
        self._own = _own_containers(code, self._instructions)
        self.classes: set[str] = set()  # global variables that are called with the result
        self._todo: list[tuple[int, _State]] = []
        self._seen: set[tuple[int, _State]] = set()

    def follow(self, last: int) -> None:
        """Raises Used if the result is used on any path from the call on."""
        place = self._place_of(last)
        if self._instructions[place].opname == "PRECALL":  # does the work of the CALL after it
            place += 1
        one = self._instructions[place]
        if one.opname not in _CALLS and not (one.opname == "BINARY_OP" and one.arg == SUBSCRIPT):
            raise Used  # such as another operator, or an attribute, that called Python code
        self._go(place + 1, _State((True,), frozenset()))
        while self._todo:
            place, state = self._todo.pop()
            self._step(place, state)

    def _go(self, place: int, state: _State) -> None:
        stack = state.stack
        while stack and not stack[0]:
            stack = stack[1:]
        item = (place, _State(stack, state.names))
        if (not stack and not state.names) or item in self._seen:
            return  # nothing is left of the result, or the path is known
        if len(self._seen) >= _MOST_STATES or place >= len(self._instructions):
            raise Used
        self._seen.add(item)
        self._todo.append(item)

    def _step(self, place: int, state: _State) -> None:
        one = self._instructions[place]
        for start, end, target in self._handlers:
            if start <= one.offset < end:
                self._go(self._place_of(target), _State((), state.names))
        if one.opname in _ENDS:
            return
        if one.opcode in _JUMPS:
            jumped = _after(one, state, True)
            self._go(self._place_of(one.argval), jumped)
            if one.opname in _ALWAYS:
                return
        if one.opname == "RAISE_VARARGS":
            if any(state.stack):
                raise Used
            return
        self._go(place + 1, self._after(place, state))

    def _after(self, place: int, state: _State) -> _State:
        one = self._instructions[place]
        if one.opname == "STORE_SUBSCR" and (name := self._container_at(place)) in self._own:
            is_result = at(list(state.stack), 3)
            return _State(state.stack[:-3], state.names | {name} if is_result else state.names)
        taken = taken_by_call(one)
        if any(state.stack[-taken:]) and taken and (name := self._callee_at(place)):
            self.classes.add(name)
            return _State((*state.stack[:-taken], True), state.names)
        if self._adds_a_tuple(place) and at(list(state.stack), 2):
            return _State((*state.stack[:-2], True), state.names)
        return _after(one, state, False)

    def _adds_a_tuple(self, place: int) -> bool:
        """Returns True for x + (y, ...): if x has the result, it is a tuple or a list, or a tensor, which knows it."""
        before, one = self._instructions[place - 1], self._instructions[place]
        is_plus = one.opname == "BINARY_ADD" or (one.opname == "BINARY_OP" and one.argrepr == "+")
        return is_plus and before.opname == "BUILD_TUPLE" and not one.is_jump_target

    def _container_at(self, place: int) -> str:
        """Returns the local variable to whose container a STORE_SUBSCR with a constant key adds, or ""."""
        loads, key, store = self._instructions[place - 2 : place + 1]
        if key.opname not in ("LOAD_CONST", "LOAD_SMALL_INT") or key.is_jump_target or store.is_jump_target:
            return ""
        local = _locals_of(loads)
        return local[-1][1] if local and local[-1][0] == "LOAD" else ""

    def _callee_at(self, place: int) -> str:
        """Returns the global variable that the call at this place calls; "" if the instructions before it do not say
        that without jumps."""
        call = self._instructions[place]
        callee = 1 if call.opname.startswith("CALL_FUNCTION") else 2  # itself, and NULL since Python 3.11
        missing = taken_by_call(call) - callee
        while missing > 0 and place > 0 and not self._instructions[place].is_jump_target:
            place -= 1
            one = self._instructions[place]
            if one.opcode in _JUMPS:
                return ""
            taken = taken_by_call(one)
            missing -= 1 - taken if taken else 0 if one.opname == "PRECALL" else effect(one, False)
        found = self._instructions[place - 1]
        is_global = found.opname == "LOAD_GLOBAL" and effect(found, False) == callee
        return str(found.argval) if missing == 0 and is_global and not self._instructions[place].is_jump_target else ""

    def _place_of(self, offset: int) -> int:
        return bisect_right(self._offsets, offset) - 1


def _handlers_of(code: CodeType, instructions: list[Any]) -> list[tuple[int, int, int]]:
    """Returns where exceptions go: from the instruction at the first offset to that before the second one, to that at
    the third. An expression in which the result is on the stack when an exception comes is left for good."""
    if not getattr(code, "co_exceptiontable", b""):
        if any(one.opname.startswith("SETUP_") for one in instructions):  # as before Python 3.11
            raise Used
        return []
    parse = getattr(dis, "_parse_exception_table", None)
    if parse is None:
        raise Used
    return [(entry.start, entry.end, entry.target) for entry in parse(code)]


def _own_containers(code: CodeType, instructions: list[Any]) -> set[str]:
    """Returns the local variables that are always a dict or a list that this function made, and which it only writes
    to, reads from by a constant key, and returns: nothing else refers to the container."""
    own: set[str] = set()
    extra = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    others = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + extra])
    for place, one in enumerate(instructions):
        local = _locals_of(one)
        for number, (action, name) in enumerate(local):
            is_made = number == 0 and place > 0 and instructions[place - 1].opname in _MAKES_CONTAINER
            if action == "STORE" and is_made and not one.is_jump_target:
                own.add(name)
            elif action != "LOAD" or number < len(local) - 1 or not _stays(*instructions[place + 1 : place + 3]):
                others.add(name)
    return own - others


def _stays(first: Any, second: Any = None) -> bool:
    """Returns True if the two instructions after that which loads a container do not make another reference to it."""
    if first.opname == "RETURN_VALUE":
        return True
    is_subscript = second is not None and (
        second.opname in ("STORE_SUBSCR", "BINARY_SUBSCR") or (second.opname, second.arg) == ("BINARY_OP", SUBSCRIPT)
    )
    return is_subscript and first.opname in ("LOAD_CONST", "LOAD_SMALL_INT")


def _locals_of(one: Any) -> list[tuple[str, str]]:
    """Returns what LOAD_FAST, STORE_FAST and the instructions that stand for two of them do with which local variables;
    nothing for other instructions."""
    if not one.opname.startswith(("LOAD_FAST", "STORE_FAST", "DELETE_FAST")):
        return []
    variables = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    actions = [part for part in one.opname.split("_") if part in ("LOAD", "STORE", "DELETE")]
    if len(actions) != len(variables):
        raise Used
    return list(zip(actions, variables, strict=True))


def _after(one: Any, state: _State, jumps: bool) -> _State:
    """Returns the state after an instruction. Raises Used."""
    stack, names = list(state.stack), state.names
    if local := _locals_of(one):
        return _after_local(one, local, stack, names)
    if any(stack):
        move(one, stack, jumps)
    return _State(tuple(stack), names)


def _after_local(one: Any, local: list[tuple[str, str]], stack: list[bool], names: frozenset[str]) -> _State:
    for action, variable in local:
        if action == "LOAD":
            stack.append(variable in names)
        is_result = action == "STORE" and pop(stack)
        if action != "LOAD" or one.opname == "LOAD_FAST_AND_CLEAR":
            names = names | {variable} if is_result else names - {variable}
    return _State(tuple(stack), names)
