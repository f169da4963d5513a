# SPDX-License-Identifier: Apache-2.0
"""Splits a reduction (the result of __reduce_ex__) into its parts, and finds expressions that lead to them."""

from __future__ import annotations

import pickle
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace import _core
from headrace._base import lookup
from headrace._base.attributes import own_attributes
from headrace._base.lookup import is_a, static
from headrace._pickles import expressions, rules
from headrace._pickles.expressions import Steps

FUNCTION, ARGUMENTS, STATE = _core.PART_FUNCTION, _core.PART_ARGUMENTS, _core.PART_STATE
ITEMS, PAIRS, SETTER = _core.PART_ITEMS, _core.PART_PAIRS, _core.PART_SETTER


class Nonsense(pickle.PicklingError):
    """Raised for a reduction that pickle refuses."""


def check(value: Any, reduction: Any) -> None:
    """Raises Nonsense if the reduction is not one that pickle accepts."""
    if not isinstance(reduction, tuple):
        raise Nonsense(f"its reduction is {type(reduction).__name__}, and should be a string or a tuple")
    if not 2 <= len(reduction) <= 6:
        raise Nonsense(f"its reduction has {len(reduction)} parts, and should have 2 to 6")
    function, arguments, _, items, pairs, setter = reduction + (None,) * (6 - len(reduction))
    if not callable(function):
        raise Nonsense("the first part of its reduction should be a function")
    if not isinstance(arguments, tuple):
        raise Nonsense("the second part of its reduction should be a tuple, the function's arguments")
    for part in (items, pairs):
        if part is not None and not lookup.has_special(part, "__next__"):
            raise Nonsense("the fourth and fifth part of its reduction should be iterators")
    if setter is not None and not callable(setter):
        raise Nonsense("the sixth part of its reduction should be a function")
    if getattr(function, "__name__", "") == "__newobj__":
        if not arguments or not hasattr(arguments[0], "__new__") or arguments[0] is not value.__class__:
            raise Nonsense("its reduction makes an object of another class")


class Parts:
    """The parts of a reduction. A part that is an attribute of the object gets the step to the attribute."""

    def __init__(self, value: Any) -> None:
        self._value = value
        cls = type(value)
        self._dict = _core.Walker.attributes(value) or {}
        is_own = isinstance(static(cls, "__reduce__"), types.FunctionType)
        is_own = is_own and not isinstance(static(cls, "__reduce_ex__"), types.FunctionType)
        self._call = "__reduce__()" if is_own else f"__reduce_ex__({rules.PROTOCOL})"
        self._has_state = isinstance(static(cls, "__getstate__"), types.FunctionType)
        self._names = self._members()

    def _members(self) -> dict[int, str]:
        """Returns id of a value -> name of the attribute that holds it."""
        found: dict[int, str] = {}
        for name, one, slot in own_attributes(self._value):
            if type(name) is str:
                found[id(one)] = name if slot is None else found.get(id(one), name)
        if is_a(self._value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            found[id(self._value.__self__)] = "__self__"
        return found

    def all(
        self,
        function: Any,
        arguments: tuple[Any, ...],
        state: Any = None,
        items: Any = None,
        pairs: Any = None,
        setter: Any = None,
    ) -> Iterator[tuple[Steps, Any]]:
        yield (self._part(FUNCTION),), function
        for number, argument in enumerate(arguments):
            yield self._steps_of(number, argument), argument
        if state is not None:
            yield from self._of_state(state)
        yield from self.of_contents(items or (), pairs or ())
        if setter is not None:
            yield (self._part(SETTER),), setter

    def named(self, steps: Steps, objects: Sequence[Any]) -> tuple[Steps, int]:
        """Returns steps for an expression, and how many of the walker's steps of a reduction they replace.
        `objects`: where each of these steps except the first starts, and where the last one leads."""
        part = steps[0][2]
        if part == ARGUMENTS and len(steps) > 1:
            return self._steps_of(steps[1][2], objects[1]), 2
        if part == STATE:
            return self._named_state(steps, objects)
        if part == ITEMS and len(steps) > 1:
            return self._of_item(steps[1][2]), 2
        if part == PAIRS and len(steps) > 2 and steps[2][0] == expressions.INDEX:
            return self._of_dict(expressions.VALUE if steps[2][2] else expressions.KEY, objects[1][0], steps[1][2]), 3
        return (self._part(part),), 1

    def _named_state(self, steps: Steps, objects: Sequence[Any]) -> tuple[Steps, int]:
        state = objects[0]
        text = self._text_of_state()
        if type(state) is not dict and (named := self._named(state)):
            return named, 1
        if len(steps) > 1 and type(state) is dict:
            return self._of_pair(text, steps[1], objects[1]), 2
        if len(steps) > 2 and _is_two_dicts(state):
            return self._of_pair((*text, steps[1]), steps[2], objects[2]), 3
        if len(steps) > 1 and type(state) in (tuple, list):
            return self._of_state_item(text, steps[1][2], objects[1]), 2
        return text, 1

    def _part(self, part: int) -> expressions.Step:
        return expressions.text(f".{self._call}[{part}]")

    def _named(self, child: Any) -> Steps | None:
        name = self._names.get(id(child))
        return None if name is None else (expressions.attribute(name),)

    def _steps_of(self, number: int, argument: Any) -> Steps:
        value = self._value
        if steps := self._named(argument):
            return steps
        if is_a(value, (set, frozenset)) and isinstance(argument, list):
            return ((expressions.WRAP, "list", 0),)
        if is_a(value, BaseException) and number < len(value.args) and value.args[number] is argument:
            return (expressions.attribute("args"), (expressions.INDEX, None, number))
        if is_a(value, tuple):
            if self._is_contents(argument):
                return ()
            if 0 < number <= len(value) and tuple.__getitem__(value, number - 1) is argument:
                fields = static(type(value), "_fields")
                name = fields[number - 1] if isinstance(fields, tuple) and number <= len(fields) else None
                return (expressions.attribute(name),) if name else ((expressions.INDEX, None, number - 1),)
        return (self._part(1), (expressions.INDEX, None, number))

    def _is_contents(self, argument: Any) -> bool:
        return type(argument) is tuple and len(argument) == len(self._value) and all(map(_is, argument, self._value))

    def _of_state(self, state: Any) -> Iterator[tuple[Steps, Any]]:
        text = self._text_of_state()
        if type(state) is dict:
            yield from self._of_attributes(state, text)
        elif steps := self._named(state):
            yield steps, state
        elif _is_two_dicts(state):
            for number, one in enumerate(state):
                yield from self._of_attributes(one or {}, (*text, (expressions.INDEX, None, number)))
        elif type(state) in (tuple, list):
            for number, one in enumerate(state):
                yield self._of_state_item(text, number, one), one
        else:
            yield text, state

    def _text_of_state(self) -> Steps:
        return (expressions.text(".__getstate__()") if self._has_state else self._part(STATE),)

    def _of_state_item(self, text: Steps, number: int, item: Any) -> Steps:
        return self._named(item) or self._flat(item) or (*text, (expressions.INDEX, None, number))

    def _flat(self, part: Any) -> Steps:
        """Returns the step to the items of an array of objects."""
        numpy = sys.modules.get("numpy")
        is_array = numpy is not None and is_a(self._value, numpy.ndarray) and type(part) is list
        return (expressions.text(".flat"),) if is_array else ()

    def _of_attributes(self, state: dict[Any, Any], text: Steps) -> Iterator[tuple[Steps, Any]]:
        for position, (key, child) in enumerate(state.items()):
            if type(key) is not str:
                yield (*text, (expressions.KEY, key, position)), key
            yield self._of_pair(text, (expressions.VALUE, key, position), child), child

    def _of_pair(self, text: Steps, step: expressions.Step, child: Any) -> Steps:
        """Returns the steps to a value, or a key, of a dict of attributes."""
        kind, key, _ = step
        is_value = kind == expressions.VALUE
        if is_value and (self._own(key) is child or self._names.get(id(child), _NOTHING) == key):
            return (expressions.attribute(key),)
        return (*text, step)

    def _own(self, key: Any) -> Any:
        return (
            self._dict.get(key, _NOTHING) if type(key) is str else _NOTHING
        )  # the __eq__ of another key may run any code

    def of_contents(self, items: Iterable[Any] | None = None, pairs: Iterable[Any] | None = None) -> Any:
        """Yields items and pairs of a reduction; if none are given, those of the object itself."""
        value = self._value
        if items is None:
            items = value if is_a(value, (list, tuple)) else ()
            pairs = dict.items(value) if is_a(value, dict) else ()
        for number, child in enumerate(items):
            yield self._of_item(number), child
        for number, (key, child) in enumerate(pairs or ()):
            yield self._of_dict(expressions.KEY, key, number), key
            yield self._of_dict(expressions.VALUE, key, number), child

    def _of_dict(self, kind: int, key: Any, number: int) -> Steps:
        if is_a(self._value, dict):
            return ((kind, key, number),)
        position = 1 if kind == expressions.VALUE else 0
        return (*self._in_iterator(PAIRS), (expressions.INDEX, None, number), (expressions.INDEX, None, position))

    def _in_iterator(self, part: int) -> Steps:
        return self._part(part), (expressions.WRAP, "list", 0)

    def _of_item(self, number: int) -> Steps:
        is_sequence = is_a(self._value, (list, tuple, deque))
        before = () if is_sequence else self._in_iterator(ITEMS)
        return (*before, (expressions.INDEX, None, number))


_NOTHING = object()


def _is_two_dicts(state: Any) -> bool:
    """Returns True for the state of an instance with slots: (its dict or None, its slots)."""
    return type(state) is tuple and len(state) == 2 and all(type(one) in (dict, type(None)) for one in state)


def _is(one: Any, other: Any) -> bool:
    return one is other
