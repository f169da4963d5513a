# SPDX-License-Identifier: Apache-2.0
"""Follows values through Python's stack: what each instruction takes, moves and gives.

passed_on.py uses it. A stack is a list of bools from the lowest known value to the top, True for those that are or
contain the result that is followed. Values below it are others.
"""

from __future__ import annotations

import dis
from typing import Any

# They take one value and drop it, or ask only whether it is None, which no tensor is.
_DROPS = frozenset(
    "POP_TOP POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE "
    "POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE POP_ITER".split()
)
# They change neither values nor their places, except that they add values that are not the result.
_ADDS = frozenset(
    "NOP CACHE RESUME NOT_TAKEN EXTENDED_ARG PRECALL KW_NAMES JUMP_FORWARD JUMP_BACKWARD JUMP_ABSOLUTE "
    "JUMP_BACKWARD_NO_INTERRUPT LOAD_CONST LOAD_SMALL_INT LOAD_GLOBAL LOAD_NAME LOAD_DEREF LOAD_CLASSDEREF PUSH_NULL "
    "LOAD_CLOSURE LOAD_ASSERTION_ERROR LOAD_COMMON_CONSTANT IMPORT_FROM".split()
)
# They take some values, none of which may be the result, and give one.
_MAKES_ONE = frozenset(
    "CALL_FUNCTION CALL_FUNCTION_KW CALL_FUNCTION_EX CALL_METHOD CALL_KW BINARY_OP COMPARE_OP CONTAINS_OP UNARY_NOT "
    "UNARY_NEGATIVE UNARY_INVERT TO_BOOL BUILD_STRING BUILD_SLICE BUILD_SET FORMAT_VALUE FORMAT_SIMPLE "
    "FORMAT_WITH_SPEC CONVERT_VALUE MAKE_FUNCTION IMPORT_NAME BINARY_SUBTRACT BINARY_ADD BINARY_MULTIPLY "
    "BINARY_TRUE_DIVIDE BINARY_FLOOR_DIVIDE BINARY_MODULO BINARY_SLICE".split()
)
_TESTS = frozenset(  # they take one value, and look at it
    "POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_BACKWARD_IF_TRUE "
    "POP_JUMP_BACKWARD_IF_FALSE".split()
)
SUBSCRIPT = 26  # NB_SUBSCR, the argument of BINARY_OP for x[y] from Python 3.14 on


class Used(Exception):
    """Raised if the result is used, or may be used."""


def move(one: Any, stack: list[bool], jumps: bool) -> None:
    """Changes the stack as an instruction does. Raises Used if it does more with the result than to move it."""
    _MOVES.get(one.opname, _move_other)(one, stack, jumps)


def taken_by_call(one: Any) -> int:
    """Returns how many values a call takes from the stack; 0 for other instructions, and for calls of which that is not
    known."""
    if one.opname == "CALL":
        return int(one.arg) + 2  # the function, and its object or NULL
    if one.opname in ("CALL_KW", "CALL_FUNCTION", "CALL_FUNCTION_KW"):
        return 1 - effect(one, False)
    return 0


def pop(stack: list[bool]) -> bool:
    return stack.pop() if stack else False


def _take(stack: list[bool], count: int) -> list[bool]:
    return [pop(stack) for _ in range(count)]


def _take_others(stack: list[bool], count: int) -> None:
    if any(_take(stack, count)):
        raise Used


def at(stack: list[bool], depth: int) -> bool:
    return depth <= len(stack) and stack[-depth]


def _deepen(stack: list[bool], depth: int) -> None:
    stack[:0] = [False] * (depth - len(stack))


def effect(one: Any, jumps: bool) -> int:
    return dis.stack_effect(one.opcode, one.arg, jump=jumps)


def _move_other(one: Any, stack: list[bool], jumps: bool) -> None:
    if one.opname in _ADDS:
        stack += [False] * (0 if one.opname == "PRECALL" else max(0, effect(one, jumps)))
    elif one.opname in _DROPS:
        pop(stack)
    elif one.opname in _TESTS:
        _take_others(stack, 1)
    elif one.opname in _MAKES_ONE:
        _take_others(stack, 1 - effect(one, jumps))
        stack.append(False)
    else:
        raise Used


def _move_call(one: Any, stack: list[bool], jumps: bool) -> None:
    _take_others(stack, taken_by_call(one))
    stack.append(False)


def _move_attribute(one: Any, stack: list[bool], jumps: bool) -> None:
    _take_others(stack, 1)
    stack += [False] * (1 + effect(one, jumps))


def _move_sequence(one: Any, stack: list[bool], jumps: bool) -> None:
    stack.append(any(_take(stack, one.arg)))


def _move_map(one: Any, stack: list[bool], jumps: bool) -> None:
    parts = _take(stack, 2 * one.arg)  # the last value, its key, and so on
    if any(parts[1::2]):
        raise Used
    stack.append(any(parts))


def _move_constant_map(one: Any, stack: list[bool], jumps: bool) -> None:
    _take_others(stack, 1)
    _move_sequence(one, stack, jumps)


def _move_append(one: Any, stack: list[bool], jumps: bool) -> None:
    value = pop(stack)
    _deepen(stack, one.arg)
    stack[-one.arg] |= value


def _move_intrinsic(one: Any, stack: list[bool], jumps: bool) -> None:
    if one.argrepr != "INTRINSIC_LIST_TO_TUPLE":
        _take_others(stack, 1)
        stack.append(False)


def _move_add(one: Any, stack: list[bool], jumps: bool) -> None:
    value = pop(stack)
    _take_others(stack, 1)
    _deepen(stack, one.arg)
    stack[-one.arg] |= value


def _move_unpack(one: Any, stack: list[bool], jumps: bool) -> None:
    stack += [pop(stack)] * one.arg


def _move_subscript(one: Any, stack: list[bool], jumps: bool) -> None:
    _take_others(stack, 1)
    stack.append(pop(stack))


def _move_store(one: Any, stack: list[bool], jumps: bool) -> None:
    """STORE_SUBSCR: nothing else refers to a container that has the result. Others may be anywhere."""
    _take_others(stack, 1)
    container, value = _take(stack, 2)
    if value and not container:
        raise Used


def _move_binary(one: Any, stack: list[bool], jumps: bool) -> None:
    if one.arg == SUBSCRIPT:
        _move_subscript(one, stack, jumps)
    else:
        _take_others(stack, 2)
        stack.append(False)


def _move_copy(one: Any, stack: list[bool], jumps: bool) -> None:
    stack.append(at(stack, one.arg))


def _move_swap(one: Any, stack: list[bool], jumps: bool) -> None:
    _deepen(stack, one.arg)
    stack[-1], stack[-one.arg] = stack[-one.arg], stack[-1]


def _move_twice(one: Any, stack: list[bool], jumps: bool) -> None:
    stack.append(at(stack, 1))


def _move_rotate(depth: int) -> Any:
    def move(one: Any, stack: list[bool], jumps: bool) -> None:
        count = depth or one.arg
        _deepen(stack, count)
        stack.insert(len(stack) - count, stack.pop())

    return move


def _move_next(one: Any, stack: list[bool], jumps: bool) -> None:
    """FOR_ITER, of an iterator over what contains the result."""
    change = effect(one, jumps)
    if not jumps:
        stack.append(at(stack, 1))
    elif change < 0:
        _take(stack, -change)
    else:
        stack += [False] * change


def _move_end(one: Any, stack: list[bool], jumps: bool) -> None:
    _take(stack, -effect(one, jumps))


def _move_yield(one: Any, stack: list[bool], jumps: bool) -> None:
    pop(stack)
    stack.append(False)


def _move_identity(one: Any, stack: list[bool], jumps: bool) -> None:
    _take(stack, 2)
    stack.append(False)


def _keep(one: Any, stack: list[bool], jumps: bool) -> None:
    """GET_ITER: an iterator over a list has what the list has; a tensor is asked for its rows, and knows it."""


_MOVES = {
    "CALL": _move_call,
    "LOAD_ATTR": _move_attribute,
    "LOAD_METHOD": _move_attribute,
    "BUILD_TUPLE": _move_sequence,
    "BUILD_LIST": _move_sequence,
    "BUILD_MAP": _move_map,
    "BUILD_CONST_KEY_MAP": _move_constant_map,
    "LIST_APPEND": _move_append,
    "LIST_EXTEND": _move_append,
    "DICT_UPDATE": _move_append,
    "LIST_TO_TUPLE": _keep,
    "CALL_INTRINSIC_1": _move_intrinsic,
    "MAP_ADD": _move_add,
    "UNPACK_SEQUENCE": _move_unpack,
    "BINARY_SUBSCR": _move_subscript,
    "STORE_SUBSCR": _move_store,
    "BINARY_OP": _move_binary,
    "COPY": _move_copy,
    "SWAP": _move_swap,
    "DUP_TOP": _move_twice,
    "ROT_TWO": _move_rotate(2),
    "ROT_THREE": _move_rotate(3),
    "ROT_FOUR": _move_rotate(4),
    "ROT_N": _move_rotate(0),
    "GET_ITER": _keep,
    "FOR_ITER": _move_next,
    "END_FOR": _move_end,
    "YIELD_VALUE": _move_yield,
    "IS_OP": _move_identity,
}
