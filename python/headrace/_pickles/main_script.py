# SPDX-License-Identifier: Apache-2.0
"""Says which names of the main script workers have. spawn and forkserver import it again, under another name."""

from __future__ import annotations

import ast
import functools
import os
import sys
import types

from headrace._pickles import source_lines


def path_of_main() -> str:
    """Returns the file of the main module, "" if workers cannot import it."""
    main = sys.modules.get("__main__")
    path = vars(main).get("__file__") if isinstance(main, types.ModuleType) else None
    spec = vars(main).get("__spec__") if isinstance(main, types.ModuleType) else None
    if getattr(spec, "name", None):
        return str(path or "")
    return str(path) if isinstance(path, str) and os.path.isfile(path) else ""


@functools.lru_cache(maxsize=16)
def _names_of(path: str) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names that a script's top level defines, and those that its main guard defines."""
    tree = source_lines.parse(path)
    plain: set[str] = set()
    guarded: set[str] = set()
    for statement in tree.body if tree else []:
        is_guard = isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test)
        names = guarded if is_guard else plain
        for node in ast.walk(statement):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.alias):
                names.add(node.asname or node.name)
    return frozenset(plain), frozenset(guarded)


def is_guarded(path: str, name: str) -> bool:
    """Returns True if a script defines a name under its main guard only."""
    plain, guarded = _names_of(path)
    return name in guarded and name not in plain and "*" not in plain


def is_whole() -> bool:
    """Returns True if workers have every name of the main module."""
    path = path_of_main()
    plain, guarded = _names_of(path) if path else (frozenset(), frozenset())
    return bool(path) and guarded <= plain
