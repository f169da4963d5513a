# SPDX-License-Identifier: Apache-2.0
"""Knows the classes whose instances only hold what they are made of: those of dicts, lists, tuples and named tuples."""

from __future__ import annotations

from collections import namedtuple
from functools import cache
from types import CodeType, FunctionType
from typing import Any


def only_holds(cls: Any) -> bool:
    """Returns True if a call of this object makes a dict, list, tuple or named tuple of the arguments, and runs no code
    of the user's."""
    return cls is dict or cls is list or cls is tuple or (type(cls) is type and _is_named_tuple(cls))


def _is_named_tuple(cls: type) -> bool:
    space = vars(cls)
    new, fields = getattr(space.get("__new__"), "__func__", None), space.get("_fields")  # a staticmethod
    if cls.__bases__ != (tuple,) or "__init__" in space or type(new) is not FunctionType or type(fields) is not tuple:
        return False
    is_pure = new.__globals__.get("_tuple_new") is tuple.__new__ and new.__closure__ is None
    return is_pure and new.__code__ == _code_of_new(fields)


@cache
def _code_of_new(fields: tuple[str, ...]) -> CodeType | None:
    try:
        made: Any = namedtuple("Fields", fields)  # type: ignore[misc]
    except (TypeError, ValueError):
        return None
    code: CodeType = made.__new__.__code__
    return code
