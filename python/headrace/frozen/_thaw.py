# SPDX-License-Identifier: Apache-2.0
"""thaw: makes ordinary Python objects of frozen data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from headrace import _core
from headrace._base import lookup
from headrace.frozen.types import classes, tables


def _is_over_frozen(value: Any) -> bool:
    """Returns True if the memory of an array is in frozen data."""
    while value is not None and not isinstance(value, _core.Frozen):
        value = lookup.attribute(value, "base")
    return value is not None


def _fields(value: Any, known: tuple[Any, ...]) -> Iterator[tuple[Any, str, Any]]:
    """Yields (slot descriptor or None, name, value) for the attributes of an instance that are set."""
    slots = known[2]
    for i in range(0, len(slots), 2):
        try:
            yield slots[i + 1], slots[i], slots[i + 1].__get__(value)
        except AttributeError:  # the slot is not set
            pass
    held = _core.Walker.attributes(value) or {}
    yield from ((None, name, field) for name, field in held.items())


def _shared_array(value: Any) -> Any:
    """Returns a key that is equal for two reads of one array of frozen data. Each read makes a new array object."""
    where = value.__array_interface__["data"][0]
    return ("array", where, value.dtype, value.shape, value.strides) if value.size else id(value)


def _shared_tensor(value: Any) -> Any:
    return ("tensor", value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else id(value)


def _reach(value: Any, strides: Any) -> int:
    """Returns the distance between the outermost elements of an array, in the unit of the strides."""
    return sum((count - 1) * abs(step) for count, step in zip(value.shape, strides, strict=True))


def _copy_array(value: Any) -> Any:
    """Copies an array. Elements that share memory, as in a broadcast array, share it in the copy too."""
    size = value.dtype.itemsize
    reach = _reach(value, value.strides)
    if reach + size >= value.nbytes or any(step % size for step in value.strides):
        return value.copy()
    tricks = sys.modules["numpy"].lib.stride_tricks
    lowest = value[tuple(slice(-1, None) if step < 0 else slice(0, 1) for step in value.strides)]
    memory = tricks.as_strided(lowest, (reach // size + 1,), (size,)).copy()
    below = sum((count - 1) * -step for count, step in zip(value.shape, value.strides, strict=True) if step < 0)
    return tricks.as_strided(memory[below // size :], value.shape, value.strides)


def _copy_tensor(value: Any) -> Any:
    """Copies a tensor in the same way as _copy_array."""
    reach = _reach(value, value.stride())
    if reach + 1 >= value.numel():
        return value.clone()
    return value.as_strided((reach + 1,), (1,)).clone().as_strided(value.shape, value.stride())


class _Thawing:
    """One call of thaw for instances that were read from frozen data. It does not recurse.

    It first finds everything that they hold, then thaws all views together, so that shared objects stay shared.
    """

    def __init__(self) -> None:
        self.made: dict[Any, Any] = {}  # by id, or by the key of a shared array
        self.kept: list[Any] = []  # keeps objects alive whose ids are in `made`
        self.views: dict[int, Any] = {}
        self.instances: dict[int, Any] = {}
        self.known: dict[type, tuple[Any, ...]] = {}

    def classify(self, cls: type) -> tuple[Any, ...]:
        if cls not in self.known:
            self.known[cls] = tables.classify(cls)
        return self.known[cls]

    # ---- finding ----

    def find(self, value: Any) -> None:
        """Finds all views and instances that a value leads to."""
        todo = [value]
        while todo:
            here = todo.pop()
            if type(here) in _VIEWS:
                self.views[id(here)] = here
            elif classes.is_made_by_statement(type(here)) and id(here) not in self.instances:
                self.instances[id(here)] = here
                known = self.classify(type(here))
                if known[0] == "tuple":
                    todo += here
                elif known[0] == "object":
                    todo += [field for _, _, field in _fields(here, known)]

    def thaw_views(self) -> None:
        opened: dict[int, list[Any]] = {}
        for view in self.views.values():
            frozen, _, part = _core.where(view)
            if part is None:
                opened.setdefault(id(frozen), []).append(view)
            else:
                self.keep(view, _core.thaw(view))
        for views in opened.values():
            for view, thawed in zip(views, _core.thaw_together(tuple(views)), strict=True):
                self.keep(view, thawed)

    # ---- making ----

    def value(self, value: Any) -> Any:
        cls = type(value)
        if id(value) in self.made:
            return self.made[id(value)]
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and cls is numpy.ndarray:
            return self.array(value, _shared_array(value), _copy_array) if _is_over_frozen(value) else value
        if torch is not None and cls is torch.Tensor:
            return self.array(value, _shared_tensor(value), _copy_tensor)
        if not classes.is_made_by_statement(cls):
            return value
        return self.instance(value, self.classify(cls))

    def keep(self, value: Any, made: Any) -> Any:
        self.made[id(value)] = made
        self.kept.append(value)
        return made

    def array(self, value: Any, name: Any, copy: Callable[[Any], Any]) -> Any:
        if name not in self.made:
            self.made[name] = copy(value)
        return self.keep(value, self.made[name])

    def instance(self, value: Any, known: tuple[Any, ...]) -> Any:
        if known[0] == "tuple":
            return self.keep(value, tuple.__new__(type(value), map(self.value, value)))
        return self.keep(value, object.__new__(type(value))) if known[0] == "object" else value

    def run(self, value: Any) -> Any:
        self.find(value)
        self.thaw_views()
        result = self.value(value)
        for one in self.instances.values():
            known = self.classify(type(one))
            if known[0] == "object":
                self.fill(one, self.value(one), known)
        return result

    def fill(self, value: Any, made: Any, known: tuple[Any, ...]) -> None:
        held = _core.Walker.attributes(made)
        for slot, name, field in _fields(value, known):
            if slot is not None:
                slot.__set__(made, self.value(field))
            elif held is not None:
                held[name] = self.value(field)


_VIEWS = (_core.FrozenList, _core.FrozenTuple, _core.FrozenDict, _core.FrozenSet)


def thaw(view: Any) -> Any:
    """Returns an ordinary Python copy of frozen data that can be changed. Shared objects and circles stay as they were.

    An instance becomes a new one with thawed attributes. A tensor is cloned, because a tensor does not say whether its
    memory is in frozen data. Any other object that is not frozen is returned as it is.
    """
    if type(view) in _VIEWS:
        return _core.thaw(view)
    return _Thawing().run(view)
