# SPDX-License-Identifier: Apache-2.0
"""Finds the containers of a dataset that are no attributes: the variables that its functions use, and what objects of
classes made in C hold. freeze_attributes can put nothing in their place, and names them (headrace.frozen._search).
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from headrace import _core
from headrace._base import code, growth, lookup, users_code
from headrace._base.lookup import is_a

_KNOWN_IN_C = ("numpy", "pandas", "torch", "pyarrow", "headrace")  # their objects are no containers of Python objects
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_CALLED = (FunctionType, MethodType, partial)
_MOST = 1000  # objects that are looked at behind one


def in_c(owner: Any, shown: list[Any], kinds: tuple[type, ...]) -> list[Any]:
    """Returns the containers, of these kinds, that an object of a class made in C holds, but does not show as
    attributes. It goes through iterators, because cycle, zip and the like hold iterators over the containers."""
    if type(owner).__module__.partition(".")[0] in _KNOWN_IN_C or is_a(owner, (*kinds, *_CALLED)):
        return []
    found: list[Any] = []
    left, seen = [owner], {id(one) for one in (owner, *shown, _core.Walker.attributes(owner))}
    while left and len(seen) < _MOST:
        for one in gc.get_referents(left.pop()):
            if id(one) in seen:
                continue
            seen.add(id(one))
            if type(one) in kinds:
                found.append(one)
            if lookup.has_special(one, "__next__") or (type(one) is tuple and len(one) < _MOST):  # zip has a tuple
                left.append(one)
    return found


def in_code(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names and values of the variables that a function uses, or the methods of an object: those of its
    closure, its defaults and attributes, and the global variables that it reads, if it is the user's."""
    for function in growth.functions_of(owner):
        place, module = f"{function.__module__}.{function.__qualname__}", function.__globals__.get("__name__")
        for name, value in (*code.cells(function), *_defaults(function)):
            yield f"{place}: {name}", value
        for name, value in list(vars(function).items()):
            yield f"{place}.{name}", value
        if users_code.is_users(function.__code__.co_filename):
            names = {name: None for one in code.codes(function.__code__) for name in code.globals_read(one)}
            for name in names:
                yield f"{module}.{name}", function.__globals__.get(name)


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    names, defaults = function.__code__.co_varnames[: function.__code__.co_argcount], function.__defaults__ or ()
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def leads_on(value: Any) -> bool:
    """Returns True for what is searched if a variable of code holds it: functions, their arguments, and datasets and
    the like. Other objects of the program are left out."""
    if is_a(value, _CALLED):
        return True
    return lookup.has_special(value, "__getitem__") and not growth.is_opaque(type(value))


def base_of(value: Any) -> Any:
    """Returns the container of Python's that a value is, or that its class is derived from; None for others."""
    return next((base for base in _CONTAINERS if is_a(value, base)), None)
