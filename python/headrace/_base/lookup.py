# SPDX-License-Identifier: Apache-2.0
"""Finds out what a user's object can do, without asking its `__getattr__`: a proxy, a mock or a stub of a remote object
answers every name. Needs no extension: the fallback uses it too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_NOTHING = object()
# Tests for objects that no copy can stand for, because other processes change them: arrays of headrace.cache.shared.
kept_as_they_are: list[Callable[[Any], bool]] = []


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


def has_state(value: object) -> bool:
    """Returns whether an object has the methods state_dict and load_state_dict, by which it is continued."""
    return all(callable(attribute(value, name)) for name in ("state_dict", "load_state_dict"))


# ---- classes ----


def imported(name: str) -> Any:
    """Returns a module that was imported, or None: also while another thread still imports it."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def own_class(module: str, name: str) -> Any:
    """Returns the class that a module has defined under a name, or None if the module is not imported, or has it no
    more. If another class has been put under that name, in the module or in its package, the module's own is looked for
    among its base classes."""
    for place in (module, module.rpartition(".")[0]):
        for one in getattr(getattr(sys.modules.get(place), name, None), "__mro__", ()):
            if (one.__module__, one.__qualname__) == (module, name):
                return one
    return None


def is_a(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Returns isinstance(value, kinds) by the type alone. isinstance also asks the object for its __class__, which may
    be a property, and a proxy answers with the class of another object."""
    return issubclass(type(value), kinds)


def static_mro(cls: type) -> tuple[type, ...]:
    """Returns the classes in which attributes of an instance are looked up, whatever a metaclass says."""
    mro: tuple[type, ...] = type.__dict__["__mro__"].__get__(cls)
    return mro


def static_name(cls: type) -> str:
    """Returns the package of a class and its name, such as "zipfile.ZipFile", whatever a metaclass says."""
    return f"{static_module(cls).partition('.')[0]}.{type.__dict__['__name__'].__get__(cls)}"


def static_module(cls: type) -> str:
    """Returns the module of a class, whatever a metaclass says."""
    module = static_dict(cls).get("__module__")
    if type(module) is not str:  # a class of a C extension: its descriptor has the name
        module = type.__dict__["__module__"].__get__(cls)
    return module if type(module) is str else "builtins"


def static_dict(cls: type) -> Any:
    """Returns a class's own namespace, whatever a metaclass says."""
    return type.__dict__["__dict__"].__get__(cls)


def static(cls: type, name: str) -> Any:
    """Returns what a class or its bases have under a name, or None. It calls no descriptor and no metaclass."""
    for one in static_mro(cls):
        if name in static_dict(one):
            return static_dict(one)[name]
    return None
