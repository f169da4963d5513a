# SPDX-License-Identifier: Apache-2.0
"""Finds what the order of a user's sampler may depend on: its random number generators, wherever it has them, and the
numbers and words in its attributes. It needs no torch, no extension, and runs no code of the sampler.

It goes a few levels deep and past what holds data, because it runs at the start of each epoch. Its paths are written
into states; those of _samples/own_generators.py decide random numbers, so neither search can do the work of the other.
"""

from __future__ import annotations

import array
import collections
import functools
import random
import sys
import types
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace._base import lookup
from headrace._base.code import cells, globals_named
from headrace._base.help_key import help_on
from headrace._samples.generator_kinds import kind_of, shared_generators, state_of

_LEVELS = 8  # of attributes and containers that the walk goes through
_MOST_PARTS = 20_000  # objects that it looks at
_MOST_ENTRIES = 1024  # containers with more entries hold data
_OPAQUE = ("numpy", "torch", "pandas", "pyarrow", "polars", "builtins", "threading", "logging", "multiprocessing")
_MOST_BYTES = 1 << 24  # of an array whose checksum is taken
_PLAIN = (type(None), bool, int, float, str, bytes)
_CONTAINERS = (list, tuple, collections.deque)
_COUNTS = (int, float, str)
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinMethodType, functools.partial)


class SamplerParts:
    """Parts of a sampler, by the paths of attributes, such as "batch_sampler.sampler.generator".

    generators: they are kept in a state. stateful: samplers with state_dict and load_state_dict, of which the outermost
    ones are listed; their states are kept too. lawless: generators that have no state, such as random.SystemRandom.
    values: numbers and words, by which a sampler may count its epochs, and checksums of arrays and lists, which it may
    shuffle in place; only with `reads_values`. iterators: the identities of the iterators that it holds, whose places
    are not known. ours: objects of headrace's classes, and loaders.
    """

    def __init__(self, sampler: Any, reads_values: bool = False) -> None:
        self._reads_values = reads_values
        self.generators: dict[str, Any] = {}
        self.stateful: dict[str, Any] = {}
        self.lawless: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.iterators: dict[str, int] = {}
        self.ours: dict[str, Any] = {}
        self._seen: dict[int, Any] = {}  # by identity; the values keep what was made for the walk alive
        self._add("", sampler, 0, False)

    def _add(self, path: str, value: Any, level: int, is_inside: bool) -> None:
        """is_inside: a part of a sampler that has a state."""
        if type(value) in _PLAIN:
            if self._reads_values and type(value) in _COUNTS:
                self.values[path] = value
            return
        if id(value) in self._seen or len(self._seen) >= _MOST_PARTS:
            return
        self._seen[id(value)] = value
        if type(value).__module__.startswith("headrace.") or is_loader(value):
            self.ours[path] = value
        if level and _ends_walk(value):
            return
        if kind_of(value):
            if any(value is one for one in shared_generators()):
                return
            (self.lawless if isinstance(value, random.SystemRandom) else self.generators)[path] = value
            return
        if self._reads_values and (checksum := _checksum_of(value)) is not None:
            self.values[path] = _Checksum(checksum, value)
            if type(checksum) is int:
                return
        if level < _LEVELS and not _holds_data(value, level):
            if level and lookup.has_special(value, "__next__"):
                self.iterators[path] = id(value)
            if not is_inside and _has_state(value):
                self.stateful[path] = value
                is_inside = True
            for name, part in _parts_of(value):
                self._add(f"{path}.{name}" if path else name, part, level + 1, is_inside)

    def states(self) -> dict[str, Any]:
        """Returns the states of the generators."""
        return {path: state_of(one) for path, one in self.generators.items()}

    def changed_since(self, before: SamplerParts) -> dict[str, str]:
        """Returns the values that have changed since another walk, as texts, and _UNKNOWN for those that cannot be
        compared with those of another process: iterators that were there then, and objects in another sequence."""
        found = {
            path: _text_of(value)
            for path, value in self.values.items()
            if path in before.values and not _is_same(value, before.values[path])
        }
        kept = [path for path, known in self.iterators.items() if before.iterators.get(path) == known]
        return {**found, **dict.fromkeys(kept, _UNKNOWN)}

    def differing(self, then: dict[str, str]) -> list[str]:
        """Returns the paths of the values that changed_since has returned and that are others here."""
        now = {path: _text_of(self.values[path]) if path in self.values else _UNKNOWN for path in then}
        return [path for path, text in then.items() if text == _UNKNOWN or now[path] != text]


_UNKNOWN = "unknown"


def _has_state(value: Any) -> bool:
    """Returns True for a sampler with a state that its order depends on. That of a headrace.Mixture comes from its
    settings and from set_epoch."""
    has_order = lookup.static(type(value), "headrace_order_by_epoch") is True
    return not has_order and lookup.has_state(value) and lookup.has_special(value, "__iter__")


class _Entries(int):
    """A checksum of the identities of entries."""


class _Checksum(NamedTuple):
    """A checksum of an array or a list, which may be shuffled in place."""

    checksum: int
    held: Any


def _text_of(value: Any) -> str:
    if not isinstance(value, _Checksum):
        return repr(value)[:80]
    return _UNKNOWN if type(value.checksum) is _Entries else f"{value.checksum:08x}"


def _checksum_of(value: Any) -> int | None:
    """Returns a checksum of an array or a list, or None for other objects and for those that are too large."""
    if is_of(value, "torch", "Tensor") and value.device.type == "cpu" and not value.is_sparse:
        try:
            value = value.detach().numpy()
        except (TypeError, RuntimeError):  # bfloat16, quantised and others that NumPy has not
            return None
    if is_of(value, "numpy", "ndarray") and not value.dtype.hasobject:
        return zlib.crc32(value.tobytes()) if value.nbytes <= _MOST_BYTES else None
    if type(value) not in (list, array.array, collections.deque) or not 0 < len(value) <= _MOST_BYTES // 8:
        return None
    try:
        return zlib.crc32(array.array("q", value).tobytes())
    except Exception:  # the entries are no indices, or their __index__ raises
        return _Entries(zlib.crc32(array.array("Q", map(id, value)).tobytes()))


def _is_same(one: Any, other: Any) -> bool:
    """Returns True if a value has not changed. A new array counts as the same: it is not shuffled in
    place."""
    if isinstance(one, _Checksum) and isinstance(other, _Checksum):
        return one.held is not other.held or one.checksum == other.checksum
    return bool(type(one) is type(other) and (one == other or one != one))


def describe_lawless(sampler: Any, lawless: dict[str, Any]) -> str:
    """Returns the text of the error for a sampler whose order cannot be drawn again."""
    names = ", ".join(map(repr, lawless))
    return (
        f"headrace: the {type(sampler).__name__} draws from the operating system ({names}), so its order cannot be "
        "drawn again, and its epoch cannot be continued; give it a random.Random with a seed, or state_dict and "
        "load_state_dict" + help_on("order-changed")
    )


def is_of(value: Any, module: str, name: str) -> bool:
    """Returns True if a value is of a class that a module has, which may not be imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and lookup.is_a(value, kind)


def is_loader(value: Any) -> bool:
    """Returns True for a loader of torch, or for headrace's, which is one."""
    return is_of(value, "torch.utils.data", "DataLoader")


def _ends_walk(value: Any) -> bool:
    """Returns True for what a sampler may hold and its order does not depend on: a loader, which has the sampler
    itself, and a model."""
    return is_loader(value) or is_of(value, "headrace._options.table", "Options") or is_of(value, "torch.nn", "Module")


# ---- the parts of an object ----


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields what an object holds: attributes, entries, and what functions were made with."""
    if lookup.is_a(value, dict):
        entries = list(dict.items(value)) if dict.__len__(value) <= _MOST_ENTRIES else []
        yield from ((repr(key)[:40], part) for key, part in entries)
    elif type(value) in _CONTAINERS:
        yield from ((str(at), part) for at, part in enumerate(value)) if len(value) <= _MOST_ENTRIES else ()
    elif lookup.is_a(value, _FUNCTIONS):
        yield from _parts_of_function(value)
    else:
        yield from _attributes_of(value)
        yield from _of_class(type(value))


def _holds_data(value: Any, level: int) -> bool:
    """Returns True for modules, classes, arrays and datasets, which no order depends on."""
    kind = type(value)
    if kind in _CONTAINERS or lookup.is_a(value, (dict, *_FUNCTIONS)):
        return False
    top, _, rest = kind.__module__.partition(".")
    if lookup.is_a(value, (type, types.ModuleType)) or (top in _OPAQUE and not rest.startswith("utils.data")):
        return True
    is_dataset = is_of(value, "torch.utils.data", "Dataset") or not lookup.has_special(value, "__iter__")
    return level > 0 and lookup.has_special(value, "__getitem__") and is_dataset


def _attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    held = lookup.attribute(value, "__dict__", {})
    yield from list(held.items()) if isinstance(held, dict) else ()
    for cls in lookup.static_mro(type(value)):
        for name, slot in list(lookup.static_dict(cls).items()):
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield name, slot.__get__(value)
                except AttributeError:  # the slot is not set
                    continue


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the generators that a class has as attributes, or that its methods use as global variables."""
    for cls in lookup.static_mro(kind):
        if cls.__module__.partition(".")[0] in (*_OPAQUE, "headrace"):
            continue
        for name, value in list(lookup.static_dict(cls).items()):
            if kind_of(value):
                yield name, value
            elif isinstance(value, types.FunctionType):
                yield from _globals_of(value)


def _globals_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the generators, and the functions of the same module, that a function uses as global variables."""
    for name, value in globals_named(function):
        is_helper = isinstance(value, types.FunctionType) and value.__module__ == function.__module__
        if is_helper or kind_of(value):
            yield f"<global>.{name}", value


def _parts_of_function(value: Any) -> Iterator[tuple[str, Any]]:
    if lookup.is_a(value, functools.partial):
        yield from {"func": value.func, "args": value.args, "keywords": value.keywords}.items()
    elif isinstance(value, types.FunctionType):
        yield from _globals_of(value)
        yield "defaults", value.__defaults__ or ()
        yield from cells(value)
    else:
        yield "__self__", value.__self__
