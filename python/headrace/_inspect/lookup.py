# SPDX-License-Identifier: Apache-2.0
"""Finds out what a user's object can do, without asking its `__getattr__`: a proxy, a mock or a stub of a remote object
answers every name. Needs no extension: the fallback uses it too."""

from __future__ import annotations

from typing import Any

_NOTHING = object()


def attribute(value: object, name: str, default: Any = None) -> Any:
    """Returns an attribute that the instance or its class has, or the default. `__getattr__`, and `__getattribute__` of
    the class's own, are not asked."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return default


def has_attribute(value: object, name: str) -> bool:
    return attribute(value, name, _NOTHING) is not _NOTHING


def has_special(value: object, name: str) -> bool:
    """Returns whether Python finds a special method, which it looks for in the class only. None there says that the
    class has none, as with `__hash__`."""
    for base in type(value).__mro__:
        if name in vars(base):
            return vars(base)[name] is not None
    return False
