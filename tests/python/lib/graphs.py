# SPDX-License-Identifier: Apache-2.0
"""Nested data of every kind, with what is shared and what goes in circles, and how to compare two such."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import fractions
import math
import pathlib
import struct
import types
import uuid
from collections.abc import Callable
from typing import Any

import frozen_types as ft
import numpy as np
from headrace import _core
from hypothesis import strategies as st

try:
    import torch
except ImportError:  # tests/other_pythons.sh
    torch = None  # type: ignore[assignment]

# ---- drawing ----

NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**55, -(2**55) - 1, 2**63, -(2**63), 2**70, True, False]),
    st.sampled_from([0.0, -0.0, 1.0, 0.1, 2.0**63, math.inf, math.nan]),
)
KEYS = st.one_of(
    NUMBERS,
    st.none(),
    st.text("ab\u00e9\ud800", max_size=9),
    st.binary(max_size=3),
    st.builds(complex, NUMBERS.filter(lambda x: abs(x) < 9 or x != x), st.sampled_from([0.0, -0.0, math.nan])),
    st.sampled_from([ft.Colour.RED, ft.Level.HIGH, decimal.Decimal("1"), fractions.Fraction(1, 2)]),
    st.sampled_from([datetime.date(2024, 2, 29), pathlib.PurePosixPath("a/b"), uuid.UUID(int=5)]),
)
LEAVES = st.one_of(
    KEYS,
    st.sampled_from([range(3), slice(1, None), ..., datetime.timedelta(-1, 2), int, len, "x" * 100]),
    st.builds(lambda: ft.MyStr("kept as a pickle")),
)


def _array(number: int) -> Any:
    return np.arange(number)


def _tensor(number: int) -> Any:
    return torch.arange(number) if torch else np.ones(number)


# What is made empty and filled when all are there: they may refer to each other, and to themselves.
MUTABLE: dict[str, Callable[[], Any]] = {
    "list": list,
    "dict": dict,
    "record": dict,
    "set": set,
    "deque": collections.deque,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": lambda: collections.defaultdict(list),
    "namespace": types.SimpleNamespace,
    "Node": lambda: object.__new__(ft.Node),
    "Scan": lambda: object.__new__(ft.Scan),
    "Slotted": lambda: object.__new__(ft.Slotted),
    "Both": lambda: object.__new__(ft.Both),
}
IMMUTABLE: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "Point": lambda items: ft.Point(*[*items, 0, 0][:2]),
    "Key": lambda items: ft.Key(*[*items, 0][:2]),
    "objects": lambda items: _objects(items),
}
SINGLE: dict[str, Callable[[int], Any]] = {
    "array": _array,
    "tensor": _tensor,
    "bytearray": lambda number: bytearray(number),
    "array.array": lambda number: array.array("i", range(number)),
    "text": lambda number: "long" * 30 + str(number),
    "bytes": lambda number: b"b" * number,
}
NAMES = ["value", "next", "a", "b", "name", "points", "tags", "\u00e9"]


def _objects(items: list[Any]) -> Any:
    made = np.empty(len(items), object)
    for at, item in enumerate(items):
        made[at] = item
    return made


def _set_fields(made: Any, kind: str, names: list[str], items: list[Any]) -> None:
    allowed = {"Slotted": ("a", "b"), "Both": NAMES, "Scan": NAMES, "Node": NAMES, "namespace": NAMES}[kind]
    for name, item in zip(names, items, strict=False):
        if name in allowed:
            object.__setattr__(made, name, item)


def _fill(made: Any, kind: str, names: list[str], keys: list[Any], items: list[Any]) -> None:
    if kind in ("list", "deque"):
        made.extend(items)
    elif kind == "set":
        made.update(keys)
        made.update(item for item in items if type(item) is ft.Node)  # these hash by identity
    elif kind == "record":
        made.update(zip(names, items, strict=False))
    elif kind in ("dict", "OrderedDict", "defaultdict"):
        made.update(zip(keys, items, strict=False))
        made.update({item: 1 for item in items if type(item) is ft.Node})
    else:
        _set_fields(made, kind, names, items)


class Drawn:
    """A class whose repr always works: a dataclass with a field that was never set has none."""

    def __init__(self, kinds: list[str], value: list[Any]) -> None:
        self.kinds, self.value = kinds, value

    def __repr__(self) -> str:
        try:
            return repr(self.value)
        except AttributeError:
            return f"<values of {self.kinds}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


@st.composite
def values(draw: Any) -> Drawn:
    """A list of values that refer to each other in any way."""
    kinds = draw(st.lists(st.sampled_from([*MUTABLE, *IMMUTABLE, *SINGLE, "frozenset"]), min_size=1, max_size=9))
    made: list[Any] = []
    for kind in kinds:
        if kind in MUTABLE:
            made.append(MUTABLE[kind]())
        elif kind in SINGLE:
            made.append(SINGLE[kind](draw(st.integers(0, 4))))
        elif kind == "frozenset":
            made.append(frozenset(draw(st.lists(KEYS, max_size=4))))
        else:
            made.append(IMMUTABLE[kind](draw(_items(made))))
    for kind, one in zip(kinds, made, strict=True):
        if kind in MUTABLE:
            names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=5))
            _fill(one, kind, names, draw(st.lists(KEYS, max_size=5)), draw(_items(made)))
            if kind in ("Node", "Scan", "Both", "namespace") and draw(st.booleans()):
                vars(one)  # creates its __dict__
    repeat = draw(st.sampled_from([1, 1, 1, 2]))
    return Drawn(kinds, made * repeat)


def _items(made: list[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(made) | LEAVES if made else LEAVES, max_size=5)


# ---- comparing ----

_SCALARS = (type(None), bool, int, str, bytes, range, slice, type(...), type, types.BuiltinFunctionType)


def _bits(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("d", value)
    return (_bits(value.real), _bits(value.imag))


def _fields(value: Any) -> list[tuple[str, Any]]:
    slots = [
        (name, getattr(value, name)) for name in ("a", "b") if isinstance(value, ft.Slotted) and hasattr(value, name)
    ]
    return slots + list(getattr(value, "__dict__", {}).items())


def _order(value: Any) -> Any:
    """Returns a sort key for the items of a set that does not depend on their addresses."""
    return sorted(_key(item) for item in value)


def _key(value: Any) -> str:
    if isinstance(value, ft.Node):
        return f"Node{[name for name, _ in _fields(value)]}"
    if isinstance(value, (set, frozenset)) or type(value) is _core.FrozenSet:
        return repr(_order(value))
    return f"{type(value).__name__} {value!r}" if not isinstance(value, (float, complex)) else repr(_bits(value))


class Comparison:
    """Compares what was frozen with what came back. views: the result has views, each read a new one; else what is one
    object here must be one there."""

    def __init__(self, views: bool) -> None:
        self.views = views
        self.here: dict[int, Any] = {}
        self.there: dict[int, Any] = {}
        self.todo: list[tuple[Any, Any, str]] = []

    def run(self, original: Any, back: Any) -> None:
        self.todo.append((original, back, "obj"))
        while self.todo:
            self.one(*self.todo.pop())

    def one(self, a: Any, b: Any, at: str) -> None:
        if isinstance(a, (float, complex)):
            assert type(a) is type(b) and _bits(a) == _bits(b), (at, a, b)
        elif isinstance(a, _SCALARS) and type(a) is not ft.MyStr:
            assert type(a) is type(b) and a == b, (at, a, b)
        elif self.is_new(a, b, at):
            self.compound(a, b, at)

    def is_new(self, a: Any, b: Any, at: str) -> bool:
        is_known = id(a) in self.here
        if self.views:
            self.here[id(a)] = a
            return not is_known
        has_identity = not isinstance(a, (tuple, frozenset)) or len(a)
        if has_identity and _is_kept(a):
            assert is_known == (id(b) in self.there), (at, "shared", a, b)
            if is_known:
                assert self.here[id(a)] is b, (at, "another object", a, b)
        self.here[id(a)] = b
        self.there[id(b)] = b
        return not is_known

    def compound(self, a: Any, b: Any, at: str) -> None:
        if not self.views or not _is_view(b):
            assert type(a) is type(b) or type(a) is np.ndarray, (at, type(a), type(b))
        if isinstance(a, np.ndarray) and not a.dtype.hasobject:
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), at
        elif torch and isinstance(a, torch.Tensor):
            assert torch.equal(a, b), at
        elif isinstance(a, (list, tuple, collections.deque, np.ndarray)):
            assert len(a) == len(b) and getattr(a, "maxlen", None) == getattr(b, "maxlen", None), at
            self.todo += [(x, y, f"{at}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))]
        elif isinstance(a, dict):
            self.mapping(a, b, at)
        elif isinstance(a, (set, frozenset)):
            assert len(a) == len(b) and _order(a) == _order(b), at
        elif isinstance(a, (ft.Node, ft.Scan, ft.Slotted, ft.Key, types.SimpleNamespace)):
            here, there = _fields(a), _fields(b)
            assert [name for name, _ in here] == [name for name, _ in there], (at, here, there)
            self.todo += [(x, y, f"{at}.{name}") for (name, x), (_, y) in zip(here, there, strict=True)]
        else:
            assert a == b, (at, a, b)

    def mapping(self, a: Any, b: Any, at: str) -> None:
        assert len(a) == len(b), at
        for (key, x), (other, y) in zip(a.items(), b.items(), strict=True):
            self.one(key, other, f"{at}[a key]")
            self.todo.append((x, y, f"{at}[{other!r}]" if not isinstance(other, ft.Node) else f"{at}[a node]"))
        for key in a:
            if _can_be_asked_for(key):
                assert key in b, (at, key)
                self.todo.append((a[key], b[key], f"{at}[{key!r}]"))
        for key in (0.5, "none", None, 1, 1.0, True, -0.0, 2**70, (1,), b"?", float("nan"), ft.Node()):
            assert (key in a) == (key in b), (at, key)


def _can_be_asked_for(key: Any) -> bool:
    return not isinstance(key, ft.Node) and key == key


def _is_view(value: Any) -> bool:
    return type(value) in (_core.FrozenList, _core.FrozenTuple, _core.FrozenDict, _core.FrozenSet)


def _is_kept(value: Any) -> bool:
    """Must what is one object stay one?"""
    return isinstance(
        value,
        (list, tuple, dict, set, frozenset, collections.deque, np.ndarray, bytearray, types.SimpleNamespace)
        + (ft.Node, ft.Scan, ft.Slotted, ft.Key, ft.MyStr)
        + ((torch.Tensor,) if torch else ()),
    )
