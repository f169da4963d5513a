# SPDX-License-Identifier: Apache-2.0
"""Finds all random number generators that a dataset and its transforms have of their own, and puts them back.

own_generators.py searches often, in workers, and looks at the first entries of large containers only. Here a check
depends on it, so everything is looked at, once for each table of samples. The checks of cached samples make samples
more than once. Afterwards each generator must be as it was, or the first worker would load other samples than without
a cache. The default generators that all code shares are those of random_numbers.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from headrace._base import code, lookup, users_code
from headrace._base.attributes import own_attributes
from headrace._samples import generator_kinds

_CONTAINERS = frozenset({list, tuple, dict, set, frozenset, deque})
_AT_ONCE = 10_000
_LEAVES = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, types.ModuleType})
_MISSING = object()


def is_generator(value: Any) -> bool:
    """Returns True for a random.Random, a generator of numpy of any kind, and a torch.Generator. The numbers of
    random.SystemRandom have no state."""
    return generator_kinds.kind_of(value) is not None and not lookup.is_a(value, random.SystemRandom)


def is_same(one: Any, other: Any) -> bool:
    """Compares what generator_kinds.state_of has returned, or lists of that."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool((one == other).all()) if hasattr(one, "dtype") else bool(one == other)


class Own:
    """The generators that some objects have of their own: as attributes at any depth, in lists and dicts, and in what
    the user's functions and classes name."""

    def __init__(self, *roots: Any) -> None:
        self._types: dict[type, bool] = {}  # whether instances of a class are generators
        self._no_generators: set[type] = set(_LEAVES)
        self._holders: list[_Holder] = []  # which may get a generator later
        self._found: dict[int, Any] = {}
        self._search(list(roots))

    def _search(self, wave: list[Any]) -> None:
        seen: set[int] = set()
        alive: list[Any] = []  # so that no id is used twice
        while wave:
            new = {id(value): value for value in wave if id(value) not in seen and type(value) not in _LEAVES}
            seen.update(new)
            alive.append(new)
            plain = [value for value in new.values() if type(value) in _CONTAINERS]
            others = (value for value in new.values() if type(value) not in _CONTAINERS)
            wave = [part for value in others for part in self._parts_of(value)]
            for at in range(0, len(plain), _AT_ONCE):  # in C, because a dataset may have millions of them
                parts = gc.get_referents(*plain[at : at + _AT_ONCE])
                wave += [part for part in parts if type(part) not in _LEAVES]

    def _is_generator(self, value: Any) -> bool:
        known = self._types.get(type(value))
        if known is None:
            known = self._types[type(value)] = is_generator(value)
            if not known:
                self._no_generators.add(type(value))
        return known

    def _parts_of(self, value: Any) -> Iterable[Any]:
        if self._is_generator(value):
            self._found[id(value)] = value
            return ()
        if isinstance(value, functools.partial):
            return value.func, value.args, value.keywords
        if isinstance(value, types.MethodType):
            return value.__self__, value.__func__
        if isinstance(value, types.BuiltinMethodType):  # such as the method random of a generator
            return (value.__self__,)
        if isinstance(value, types.FunctionType):
            return self._used_by(value)
        if isinstance(value, type):
            return _of_class(value)
        return [*_entries_of(value), *self._attributes_of(value), type(value)]

    def _attributes_of(self, value: Any) -> list[Any]:
        found = [held for _, held, _ in own_attributes(value)]
        variables = lookup.attribute(value, "__dict__")
        held = [variables, *found] if type(variables) is dict else found
        self._holders += [_Holder(one, None) for one in held if type(one) is dict]
        return found

    def _used_by(self, function: types.FunctionType) -> list[Any]:
        """Returns what a function of the user refers to: its closure, its defaults, and the global variables that its
        code names, also in functions within it."""
        if not users_code.is_users(function.__code__.co_filename):
            return []
        used: list[Any] = [function.__defaults__, function.__kwdefaults__, vars(function)]
        used += [value for _, value in code.cells(function)]
        for one in code.codes(function.__code__):
            used += _named_in(one.co_names, function.__globals__)
            self._holders.append(_Holder(function.__globals__, one.co_names))
        return used

    def generators(self) -> list[Any]:
        """Returns the generators, with those that holders have got since."""
        found = dict(self._found)
        for holder in self._holders:
            values = holder.values()
            if not self._no_generators.issuperset(map(type, values)):
                found |= {id(value): value for value in values if self._is_generator(value)}
        return list(found.values())

    def states(self) -> dict[int, Any]:
        """Returns the states of the generators, by identity."""
        return {id(one): generator_kinds.state_of(one) for one in self.generators()}

    def seed(self, key: int) -> None:
        """Seeds the generators with 64 bits. Those that cannot be seeded stay as they are."""
        for one in self.generators():
            kind = generator_kinds.kind_of(one)
            if kind is not None and not generator_kinds.why_not(one, kind):
                kind.seed(one, key)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Restores the generators at the end of the block to what they were at its start. One that the block has made
        or replaced in an attribute, a global variable, or a dict that is an attribute is taken away again."""
        before = [(one, generator_kinds.state_of(one)) for one in self.generators()]
        held = [(holder, holder.copy()) for holder in self._holders]
        try:
            yield
        finally:
            for holder, old in held:
                holder.put_back(old)
            for generator, state in before:
                generator_kinds.restore(generator, state)


class _Holder(NamedTuple):
    """A dict that has variables, of which only some count, unless names is None."""

    variables: dict[Any, Any]
    names: tuple[str, ...] | None

    def copy(self) -> dict[Any, Any]:
        if self.names is None:
            return dict(self.variables)
        return {name: self.variables[name] for name in self.names if name in self.variables}

    def values(self) -> list[Any]:
        return list(self.variables.values() if self.names is None else self.copy().values())

    def put_back(self, old: dict[Any, Any]) -> None:
        """Takes generators away that have come since the copy `old` was made."""
        for name, value in self.copy().items():
            was = old.get(name, _MISSING)
            if value is was or not is_generator(value):
                continue
            if was is _MISSING:
                del self.variables[name]
            else:
                self.variables[name] = was


def _entries_of(value: Any) -> list[Any]:
    """Returns the entries of a container of a class of its own, and of an array of objects."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    numpy = sys.modules.get("numpy")
    return list(value.flat) if numpy is not None and lookup.is_a(value, numpy.ndarray) and value.dtype.hasobject else []


def _named_in(names: tuple[str, ...], variables: dict[str, Any]) -> list[Any]:
    """Returns the global variables of these names, and those of the user's modules among them."""
    named = [variables[name] for name in names if name in variables]
    for module in named[:]:
        if isinstance(module, types.ModuleType) and users_code.is_users_module(module):
            named += [vars(module)[name] for name in names if name in vars(module)]
    return named


def _of_class(cls: type) -> list[Any]:
    """Returns what the classes of the user among a class and its bases contain."""
    bases = [base for base in lookup.static_mro(cls) if users_code.is_users(users_code.file_of(base))]
    members = [member for base in bases for member in list(lookup.static_dict(base).values())]
    return [
        part
        for member in members
        for part in ((member.fget, member.fset) if isinstance(member, property) else (_function_of(member),))
    ]


def _function_of(member: Any) -> Any:
    return member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
