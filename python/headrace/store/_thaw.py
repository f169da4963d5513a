# SPDX-License-Identifier: Apache-2.0
"""Frozen data back to ordinary Python."""

from __future__ import annotations

import sys
from typing import Any

from headrace import _core
from headrace.store import _types


def _is_over_image(value: Any) -> bool:
    """Does an array look into an image?"""
    while value is not None and not isinstance(value, _core.Image):
        value = getattr(value, "base", None)
    return value is not None


def _fields(value: Any, known: tuple[Any, ...]) -> list[tuple[Any, str]]:
    """The fields of an instance that are set, with the slot's descriptor or None."""
    slots = known[2]
    pairs = [(slots[i + 1], slots[i]) for i in range(0, len(slots), 2)]
    found = [(slot, name) for slot, name in pairs if hasattr(slot, "__get__") and _is_set(slot, value)]
    return found + [(None, name) for name in getattr(value, "__dict__", {})]


def _is_set(slot: Any, value: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


class _Thawing:
    """One call of thaw: instances that came out of an image, made ordinary without recursion."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.kept: list[Any] = []  # the ids in `made` stay theirs
        self.todo: list[tuple[Any, Any, tuple[Any, ...]]] = []

    def value(self, value: Any) -> Any:
        cls = type(value)
        if cls in _VIEWS:
            return _core.thaw(value)
        if id(value) in self.made:
            return self.made[id(value)]
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and cls is numpy.ndarray:
            return self.keep(value, value.copy() if _is_over_image(value) else value)
        if torch is not None and cls is torch.Tensor:
            return self.keep(value, value.clone())
        if not cls.__flags__ & (1 << 9):  # no class statement made it
            return value
        return self.instance(value, _types.classify(cls))

    def keep(self, value: Any, made: Any) -> Any:
        self.made[id(value)] = made
        self.kept.append(value)
        return made

    def instance(self, value: Any, known: tuple[Any, ...]) -> Any:
        if known[0] == "tuple":
            return self.keep(value, tuple.__new__(type(value), map(self.value, value)))
        if known[0] != "object":
            return value
        made = self.keep(value, object.__new__(type(value)))
        self.todo.append((value, made, known))
        return made

    def run(self, value: Any) -> Any:
        result = self.value(value)
        while self.todo:
            value, made, known = self.todo.pop()
            for slot, name in _fields(value, known):
                if slot is None:
                    made.__dict__[name] = self.value(value.__dict__[name])
                else:
                    slot.__set__(made, self.value(slot.__get__(value)))
        return result


_VIEWS = (_core.FrozenList, _core.FrozenTuple, _core.FrozenDict, _core.FrozenSet)


def thaw(view: Any) -> Any:
    """An ordinary Python copy of frozen data, to change or to keep, with what was shared and what went in circles.

    Of an instance: a new one, with its fields thawed. What is not frozen comes back as it is.
    """
    if type(view) in _VIEWS:
        return _core.thaw(view)
    return _Thawing().run(view)
