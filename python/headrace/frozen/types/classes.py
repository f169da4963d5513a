# SPDX-License-Identifier: Apache-2.0
"""Says which classes are plain: their instances consist of attributes and slots, or of a tuple's items, and of nothing
else."""

from __future__ import annotations

import copyreg
import inspect
import types
from typing import Any

from headrace import _core
from headrace.frozen.types import names

Known = tuple[Any, ...]
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class _Ordinary:
    """An ordinary class. Its deallocator is the one that every class made by a class statement has."""


REDUCERS = ("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
_CUSTOM = (*REDUCERS, "__setstate__", "__del__")
_MADE = ("dataclasses", "collections")  # frozen dataclasses with slots and named tuples have some of these as well


def _is_generated(cls: type, function: object) -> bool:
    """Returns True if a class generator (dataclasses, collections, attrs) wrote this function, and it handles only what
    the slots hold. For a class that caches its hash, attrs' function does more: the hash differs between processes."""
    module = getattr(function, "__module__", "")
    has_slots = "__getstate__" in cls.__dict__ and "_attrs_cached_hash" not in cls.__dict__
    return module in _MADE or (module == "attr._make" and has_slots)


def _why_not_plain(cls: type, base: type) -> str | None:
    if not _core.is_python_class(cls, _Ordinary, base):
        return f"{cls.__name__} keeps its data in a form that only its own code can read"
    for here in cls.__mro__[: cls.__mro__.index(base)]:
        for name in _CUSTOM:
            found = here.__dict__.get(name)
            if found is not None and not _is_generated(here, found):
                return f"{here.__name__} has its own {name}, so its attributes may not be all of its data"
    if cls in copyreg.dispatch_table:
        return f"{cls.__name__} has its own reduction in copyreg"
    if names.name_of(cls) is None:
        where = "a function" if "<locals>" in cls.__qualname__ else "a place that cannot be imported"
        return f"{cls.__name__} is defined in {where}; define it at its module's top"
    return None


def slots_of(cls: type) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for here in reversed(cls.__mro__):
        own = here.__dict__.values()
        found += [(value.__name__, value) for value in own if isinstance(value, types.MemberDescriptorType)]
    return found


def classify_object(cls: type) -> Known:
    why = _why_not_plain(cls, object)
    slots = [] if why else slots_of(cls)
    if len({name for name, _ in slots}) < len(slots):
        why = f"{cls.__name__} has two slots with the same name"
    hidden = [name for name, slot in slots if inspect.getattr_static(cls, name) is not slot]
    if why is None and hidden:
        why = f"{cls.__name__} replaces the slot {hidden[0]!r} of a base class by something else"
    return ("unknown", why) if why else ("object", names.name_of(cls), tuple(part for slot in slots for part in slot))


def classify_tuple(cls: type) -> Known:
    why = _why_not_plain(cls, tuple)
    fields = getattr(cls, "_fields", None)
    if why is None and not (isinstance(fields, tuple) and all(type(name) is str for name in fields)):
        why = f"{cls.__name__} is a tuple without the _fields of a named tuple"
    return ("unknown", why) if why else ("tuple", names.name_of(cls), fields)


def is_made_by_statement(cls: type) -> bool:
    """Returns True if a class statement made the class. Some classes of C extensions look the same."""
    return bool(cls.__flags__ & _HEAP_TYPE)
