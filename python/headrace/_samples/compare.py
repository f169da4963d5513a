# SPDX-License-Identifier: Apache-2.0
"""Compares two samples to the last bit, and says where they differ.

What a cache or a worker sends of an object is its pickle, so objects are compared by what pickle takes of them: their
reduction. It leaves out what an object fills in while it is used, and refers to other objects as they are.
"""

from __future__ import annotations

import copyreg
import pickle
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from headrace._samples import tensor_parts

_Pair = tuple[Any, Any, str]  # two values, and their place
_Found = str | Iterable[_Pair] | None  # what differs, or parts that have to be compared
_ATOMS = (type(None), bool, int, str, bytes, type(...), type(NotImplemented))


class NotComparable(Exception):
    """Raised for an object without a reduction, which cannot be kept either."""


def difference(one: Any, other: Any, place: str = "sample") -> str | None:
    """Returns what differs between two samples, such as "sample['image'][0]: values of a float32 tensor", or None if
    they have the same classes, shapes, dtypes and values. Parts that cannot be pickled count as equal."""
    return _Comparison().find(one, other, place)


class _Comparison:
    def __init__(self) -> None:
        self._met: set[tuple[int, int]] = set()  # pairs that are equal, or that are being compared: samples have cycles
        self._alive: list[Any] = []  # so that no id is used twice

    def find(self, one: Any, other: Any, place: str) -> str | None:
        """Compares one part after the other, with a stack of its own, because samples may be nested deeply."""
        left: list[Iterator[_Pair]] = [iter([(one, other, place)])]
        while left:
            pair = next(left[-1], None)
            if pair is None:
                left.pop()
                continue
            found = self._compare(*pair)
            if isinstance(found, str):
                return found
            if found is not None:
                left.append(iter(found))
        return None

    def _compare(self, one: Any, other: Any, place: str) -> _Found:
        if type(one) is not type(other):
            return f"{place}: a {type(one).__name__}, and a {type(other).__name__}"
        if one is other or (id(one), id(other)) in self._met:
            return None
        if isinstance(one, (*_ATOMS, float, complex)) and type(one).__module__ == "builtins":
            return None if _bits_of(one) == _bits_of(other) else f"{place}: values of a {type(one).__name__}"
        self._met.add((id(one), id(other)))
        self._alive += (one, other)
        return self._find_in(one, other, place)

    def _find_in(self, one: Any, other: Any, place: str) -> _Found:
        kind, np = type(one), sys.modules.get("numpy")
        if kind in (list, tuple):
            return self._of_parts(one, other, range(len(one)), range(len(other)), place)
        if kind is dict:
            return self._of_parts(one, other, one.keys(), other.keys(), place)
        if kind in (set, frozenset):
            return None if one == other or _pickles_of(one) == _pickles_of(other) else f"{place}: elements of a set"
        if _is_plain_named_tuple(one):
            return zip(one, other, (f"{place}.{name}" for name in kind._fields), strict=True)
        if np is not None and (kind is np.ndarray or isinstance(one, np.generic)):
            return self._of_arrays(one, other, place)
        if hasattr(one, "untyped_storage"):
            return self._of_tensors(one, other, place)
        return self._of_reductions(one, other, place)

    def _of_parts(self, one: Any, other: Any, keys: Any, others: Any, place: str) -> _Found:
        if keys != others:
            return f"{place}: its keys" if isinstance(one, dict) else f"{place}: {len(one)} parts, and {len(other)}"
        return ((one[key], other[key], f"{place}[{key!r}]") for key in keys)

    def _of_arrays(self, one: Any, other: Any, place: str) -> _Found:
        if one.shape != other.shape:
            return f"{place}: an array of shape {one.shape}, and one of {other.shape}"
        if one.dtype != other.dtype:
            return f"{place}: an array of {one.dtype}, and one of {other.dtype}"
        if one.dtype.hasobject:
            return [(list(one.flat), list(other.flat), place)]
        return None if one.tobytes() == other.tobytes() else f"{place}: values of a {one.dtype} array"

    def _of_tensors(self, one: Any, other: Any, place: str) -> _Found:
        parts, others = tensor_parts.parts_of(one), tensor_parts.parts_of(other)
        for name, text in parts.description.items():
            if text != others.description[name]:
                return f"{place}: a tensor of {name} {text}, and one of {others.description[name]}"
        if len(parts.values) != len(others.values):
            return f"{place}: parts of a tensor"
        for a, b in zip(parts.values, others.values, strict=True):
            if a.shape != b.shape or a.tobytes() != b.tobytes():
                return f"{place}: values of a {one.dtype} tensor"
        return [(parts.more, others.more, place)]

    def _of_reductions(self, one: Any, other: Any, place: str) -> str | None:
        try:
            a, b = _reduction_of(one), _reduction_of(other)
        except NotComparable:
            return None
        self._alive += (a, b)
        if isinstance(a, str) or isinstance(b, str):
            return None if a == b else f"{place}: {a!r}, and {b!r}"
        if len(a) != len(b):
            return f"{place}: values of a {type(one).__name__}"
        pairs = [(x, y) for x, y in zip(a, b, strict=True) if not _is_same_callable(x, y)]
        found = (self.find(x, y, f"{place}, in a {type(one).__name__}") for x, y in pairs)
        text = next((text for text in found if text is not None), None)
        return None if text is None else f"{place}: values of a {type(one).__name__} ({text.rpartition(': ')[2]})"


def _bits_of(value: Any) -> Any:
    """Returns the bits of a number with a fraction, because -0.0 == 0.0, and a NaN is not itself."""
    if isinstance(value, complex):
        return struct.pack("<dd", value.real, value.imag)
    return struct.pack("<d", value) if isinstance(value, float) else value


def _pickles_of(elements: Any) -> list[bytes]:
    try:
        return sorted(map(pickle.dumps, elements))
    except Exception:  # it cannot be kept either
        return []


def _is_plain_named_tuple(value: Any) -> bool:
    is_named = isinstance(value, tuple) and hasattr(value, "_fields")
    return is_named and not getattr(value, "__dict__", None) and len(value._fields) == len(value)


def _is_same_callable(one: Any, other: Any) -> bool:
    """Returns True for the same function. A bound method is another object each time."""
    return callable(one) and type(one) is type(other) and bool(one == other)


def _reduction_of(value: Any) -> Any:
    """Returns what pickle takes of an object, with lists in the place of iterators. Raises NotComparable."""
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(reduced, str):
            return reduced
        return [list(part) if at in (3, 4) and part is not None else part for at, part in enumerate(reduced)]
    except Exception as error:
        raise NotComparable(str(error)) from None
