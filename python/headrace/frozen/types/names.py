# SPDX-License-Identifier: Apache-2.0
"""Imports what frozen data stores as "module:qualified.name": classes, functions and the members of enums."""

from __future__ import annotations

import enum
import importlib
import sys
import types
from typing import Any

from headrace._base.help_key import help_on
from headrace._core import FrozenError

BY_NAME = (types.FunctionType, types.BuiltinFunctionType, type)  # types whose values are stored by their names


def _find(module: str, qualname: str, may_import: bool) -> Any:
    """Returns the object with this name, or None. Without `may_import`, no user code runs."""
    here: Any = sys.modules.get(module)
    if here is None and may_import:
        try:
            here = importlib.import_module(module)
        except ImportError:
            return None
    for part in qualname.split("."):
        if here is None:
            return None
        here = getattr(here, part, None) if may_import else getattr(here, "__dict__", {}).get(part)
    return here


def name_of(value: Any) -> str | None:
    """Returns "module:qualified.name" of a class or function, or None if that name does not lead to the value."""
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or "<" in qualname:
        return None
    return f"{module}:{qualname}" if _find(module, qualname, False) is value else None


def resolve(name: Any, trusted: bool) -> Any:
    """Returns the object with this name; imports its module only if `trusted`. Raises FrozenError."""
    module, colon, qualname = str(name).partition(":")
    found = _find(module, qualname, trusted) if colon else None
    if found is None and module == "__main__":
        raise FrozenError(
            f"headrace: this frozen data names {qualname!r}, which the script that froze it defined itself; move it "
            "into a module that both can import, and freeze again" + help_on("frozen-names")
        )
    if found is None:
        more = "" if trusted else ", or open the frozen data with trust=True, which imports what it names"
        raise FrozenError(
            f"headrace: this frozen data names {name!r}, which is not loaded; import {module!r} first{more}"
            + help_on("frozen-names")
        )
    return found


def make_named(name: Any, trusted: bool) -> Any:
    """Returns the class or function with this name. Raises FrozenError."""
    if not trusted:
        raise FrozenError(
            f"headrace: this frozen data refers to {name!r} by its name; open it with trust=True if you trust it"
            + help_on("frozen-names")
        )
    return resolve(name, trusted)


def enum_parts(member: Any) -> Any:
    cls = name_of(type(member))
    name = member._name_  # a class may have its own `name` and `value`
    has_name = name in type(member).__members__  # if not, the member is a combination of flags
    return (cls, name if has_name else None, None if has_name else member._value_) if cls else None


def make_enum(parts: Any, trusted: bool) -> Any:
    """Returns the member of an enum. Raises FrozenError."""
    name, member, value = parts
    cls = resolve(name, trusted)
    if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
        raise FrozenError(f"headrace: this frozen data uses {name} as an Enum, but {name} is not one")
    return cls(value) if member is None else cls[member]
