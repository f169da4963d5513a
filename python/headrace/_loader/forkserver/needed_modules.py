# SPDX-License-Identifier: Apache-2.0
"""Finds the modules that a pickle of a loader's dataset will name, without pickling it. The fork server imports them
before the workers are forked."""

from __future__ import annotations

import itertools
import sys
import types
from collections import deque
from typing import Any

MAX_OBJECTS = 1000  # the first objects name nearly all modules, and a dataset may have millions


def list_modules(parts: list[Any]) -> list[str]:
    """Returns the names of the modules that define the classes and functions which are found in `parts`, or in their
    attributes and items. It looks at MAX_OBJECTS objects, and calls no code of theirs."""
    found: dict[str, None] = {}
    seen: set[int] = set()
    ahead = deque(parts)
    while ahead and len(seen) < MAX_OBJECTS:
        one = ahead.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        owner = one if isinstance(one, (type, types.FunctionType, types.BuiltinFunctionType)) else type(one)
        name = owner.__dict__.get("__module__") if isinstance(owner, type) else owner.__module__
        if isinstance(name, str) and name in sys.modules:
            found[name] = None
        ahead.extend(_members(one))
    return [name for name in found if name not in ("builtins", "__main__", "__mp_main__")]


def _members(one: Any) -> list[Any]:
    if type(one) in (list, tuple, set, frozenset):
        return list(itertools.islice(one, MAX_OBJECTS))
    if type(one) is dict:
        return list(itertools.islice(one.values(), MAX_OBJECTS))
    if isinstance(one, types.MethodType):
        return [one.__func__, one.__self__]
    if isinstance(one, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
        return []
    try:
        attributes = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return []
    return list(attributes.values()) if type(attributes) is dict else []
