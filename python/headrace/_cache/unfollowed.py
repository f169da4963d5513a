# SPDX-License-Identifier: Apache-2.0
"""Names what a function does to reach code that a digest cannot find: eval, imports by a computed name."""

from __future__ import annotations

import builtins
import types
from collections.abc import Iterable
from typing import Any

from headrace._base import code, lookup, warn

GLOBALS = "globals"  # reaches any global variable of its module
_REACHING: tuple[Any, ...] = (eval, exec, compile, __import__)
_MODULES = {"importlib": ("import_module", "reload"), "runpy": ("run_path", "run_module"), "sys": ("modules",)}
_told: set[str] = set()


def reached_by(function: types.CodeType, variables: dict[str, Any]) -> list[str]:
    """Returns by what a function, or a function inside it, may reach code that it does not name."""
    inner = list(code.codes(function))
    imports = [one for each in inner for one in code.imports(each)]
    read = code.attributes_read(function)
    found = []
    for name in {name: None for each in inner for name in code.globals_read(each)}:
        value = variables.get(name, vars(builtins).get(name))
        if any(value is one for one in (globals, eval, exec)):
            found.append(GLOBALS)
        is_named = lookup.attribute(value, "__name__") in _MODULES.get(str(lookup.attribute(value, "__module__")), ())
        if is_named or any(value is one for one in _REACHING):
            found.append(f"{name}()")
        module = _MODULES.get(value.__name__, ()) if isinstance(value, types.ModuleType) else ()
        found += [f"{name}.{one}" for one in module if (name, one) in read]
    for one in imports:
        names = {name for name, _ in one.names} | {name for variable, name in read if variable == one.variable}
        found += [f"{one.module}.{name}" for name in _MODULES.get(one.module, ()) if name in names]
    if "__subclasses__" in code.names(function):
        found.append("__subclasses__()")
    return list(dict.fromkeys(found))


def say(reached: Iterable[str]) -> None:
    """Says once for each part that it is not watched."""
    for one in reached:
        if one not in _told:
            _told.add(one)
            warn.say(f"cache: a change of {one} is not seen; give version=, and another one with each such change")
