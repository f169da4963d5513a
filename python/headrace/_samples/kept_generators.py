# SPDX-License-Identifier: Apache-2.0
"""Finds all random number generators that a dataset and its transforms have of their own, and puts them back.

own_generators.py searches often, in workers, and looks at the first entries of large containers only. Here a proof
depends on it, so everything is looked at, once for each table of samples. The checks of cached samples make samples
more than once. Afterwards each generator must be as it was, or the first worker would load other samples than without
a cache; and two ways to make a sample can only be compared if both draw the same numbers. The default generators that
all code shares are those of random_numbers.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from headrace._inspect import lookup, users_code
from headrace._inspect.attributes import own_attributes
from headrace._samples import generator_kinds

_CONTAINERS = (list, tuple, set, frozenset, deque)
_LEAVES = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, types.ModuleType})
_MISSING = object()


def _kind_of(value: Any) -> generator_kinds.Kind | None:
    return next((kind for cls, kind in generator_kinds.kinds() if lookup.is_a(value, cls)), None)


def is_generator(value: Any) -> bool:
    """Returns True for a random.Random, a generator of numpy of any kind, and a torch.Generator. The numbers of
    random.SystemRandom have no state."""
    return _kind_of(value) is not None and not lookup.is_a(value, random.SystemRandom)


def state_of(generator: Any) -> Any:
    """Returns the state of a generator as values that can be compared. restore takes it."""
    kind = _kind_of(generator)
    assert kind is not None
    return kind.state(generator)


def restore(generator: Any, state: Any) -> None:
    """Sets a generator to a state that state_of has returned."""
    kind = _kind_of(generator)
    assert kind is not None
    kind.restore(generator, state)


def is_same(one: Any, other: Any) -> bool:
    """Compares what state_of has returned, or lists of that."""
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
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # so that no id is used twice
        self._holders: list[dict[Any, Any]] = []  # the attributes of instances, which may get a generator later
        self._found: dict[int, Any] = {}
        wave: list[Any] = list(roots)
        while wave:
            wave = [part for value in wave if type(value) not in _LEAVES for part in self._parts_of(value)]
        self._seen.clear()
        self._alive.clear()

    def _parts_of(self, value: Any) -> Iterable[Any]:
        if id(value) in self._seen:
            return ()
        self._seen.add(id(value))
        self._alive.append(value)
        if is_generator(value):
            self._found[id(value)] = value
            return ()
        if _is_plain(value):
            return ()
        if isinstance(value, _CONTAINERS):
            return [*value, *self._attributes_of(value)]
        if isinstance(value, dict):
            return [*value.values(), *self._attributes_of(value)]
        if isinstance(value, functools.partial):
            return value.func, value.args, value.keywords
        if isinstance(value, types.MethodType):
            return value.__self__, value.__func__
        if isinstance(value, types.BuiltinMethodType):  # such as the method random of a generator
            return (value.__self__,)
        if isinstance(value, types.FunctionType):
            return _used_by(value)
        if isinstance(value, type):
            return _of_class(value)
        return [*self._attributes_of(value), type(value)]

    def _attributes_of(self, value: Any) -> list[Any]:
        found = list(own_attributes(value))
        variables = lookup.attribute(value, "__dict__")
        if type(variables) is dict:
            self._holders.append(variables)
        return [held for _, held, _ in found]

    def generators(self) -> list[Any]:
        """Returns the generators, with those that instances have got since."""
        found = dict(self._found)
        for variables in self._holders:
            found |= {id(value): value for value in list(variables.values()) if is_generator(value)}
        return list(found.values())

    def states(self, ignored: Own | None = None) -> dict[int, Any]:
        """Returns the states of the generators, by identity, without those that others have, too."""
        left_out = set() if ignored is None else set(map(id, ignored.generators()))
        return {id(one): state_of(one) for one in self.generators() if id(one) not in left_out}

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Restores the generators at the end of the block to what they were at its start. One that the block has made
        or replaced in an attribute is taken away again."""
        before = [(one, state_of(one)) for one in self.generators()]
        attributes = [(variables, dict(variables)) for variables in self._holders]
        try:
            yield
        finally:
            for variables, old in attributes:
                _put_back(variables, old)
            for generator, state in before:
                restore(generator, state)


def _is_plain(value: Any) -> bool:
    """Returns True for a list or tuple of texts and numbers, and for a list of such tuples: a dataset may have a
    million file names with their classes."""
    if type(value) not in (list, tuple):
        return False
    types_of = set(map(type, value)) - _LEAVES
    if types_of == {tuple}:
        inner = itertools.chain.from_iterable(part for part in value if type(part) is tuple)
        types_of = set(map(type, inner)) - _LEAVES
    return not types_of


def _put_back(variables: dict[Any, Any], old: dict[Any, Any]) -> None:
    for name, value in list(variables.items()):
        was = old.get(name, _MISSING)
        if value is was or not is_generator(value):
            continue
        if was is _MISSING:
            del variables[name]
        else:
            variables[name] = was


def _used_by(function: types.FunctionType) -> list[Any]:
    """Returns what a function of the user refers to: its closure, its defaults, and the global variables that its code
    names, also in functions within it."""
    if not users_code.is_users(function.__code__.co_filename):
        return []
    used: list[Any] = [function.__defaults__, function.__kwdefaults__, vars(function)]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # the variable is not set yet
            used.append(cell.cell_contents)
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        used += _named_in(code, function.__globals__)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return used


def _named_in(code: types.CodeType, variables: dict[str, Any]) -> list[Any]:
    """Returns the global variables that code names, and those of the user's modules that it may name."""
    named = [variables[name] for name in code.co_names if name in variables]
    for module in named[:]:
        if isinstance(module, types.ModuleType) and users_code.is_users(getattr(module, "__file__", None)):
            named += [vars(module)[name] for name in code.co_names if name in vars(module)]
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
