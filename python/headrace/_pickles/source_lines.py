# SPDX-License-Identifier: Apache-2.0
"""Finds the line that set or defined an object, by reading source files. It runs no code."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
import sysconfig
import types
from typing import Any

from headrace._base.lookup import static_dict, static_mro

_Assigned = dict[
    tuple[str, str], int
]  # (qualified name of the class, attribute) -> line; attribute "" is the class itself


def place(path: str, line: int) -> str:
    """Returns file:line, relative to the current directory if the file is below it."""
    try:
        here = os.getcwd() + os.sep
    except OSError:  # the directory was deleted
        return f"{path}:{line}"
    return f"{path.removeprefix(here)}:{line}"


class _Finder(ast.NodeVisitor):
    """Collects the lines of classes, and the lines in which their methods and bodies assign attributes."""

    def __init__(self) -> None:
        self.assigned: _Assigned = {}
        self._names: list[str] = []
        self._class = ""
        self._self = ""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, outer_self = self._class, self._self
        self._names.append(node.name)
        self._class = ".".join(self._names)
        self.assigned.setdefault((self._class, ""), node.lineno)
        self._self = ""
        self.generic_visit(node)
        self._names.pop()
        self._class, self._self = outer, outer_self

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer_class, outer_self = self._class, self._self
        arguments = [*node.args.posonlyargs, *node.args.args]
        if self._class and self._class == ".".join(self._names) and arguments:
            self._self = arguments[0].arg
        self._names += [node.name, "<locals>"]
        self.generic_visit(node)
        del self._names[-2:]
        self._class, self._self = outer_class, outer_self

    visit_AsyncFunctionDef = visit_FunctionDef

    def _note(self, target: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for one in target.elts:
                self._note(one)
        elif isinstance(target, ast.Starred):
            self._note(target.value)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            if self._self and target.value.id == self._self:
                self.assigned.setdefault((self._class, target.attr), target.lineno)
        elif isinstance(target, ast.Name) and self._class and self._class == ".".join(self._names):
            self.assigned.setdefault((self._class, target.id), target.lineno)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._note(target)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._note(node.target)
        self.generic_visit(node)

    visit_AugAssign = visit_AnnAssign  # type: ignore[assignment]
    visit_NamedExpr = visit_AnnAssign  # type: ignore[assignment]

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            if item.optional_vars is not None:
                self._note(item.optional_vars)
        self.generic_visit(node)

    visit_AsyncWith = visit_With


@functools.lru_cache(maxsize=64)
def parse(path: str) -> ast.Module | None:
    """Returns the syntax tree of a source file; None if it cannot be read or parsed."""
    text = "".join(linecache.getlines(path))
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=64)
def _assigned_in(path: str) -> _Assigned:
    tree = parse(path)
    if tree is None:
        return {}
    finder = _Finder()
    finder.visit(tree)
    return finder.assigned


def file_of(module_name: str) -> str:
    """Returns the source file of a module, "" if it has none."""
    module = sys.modules.get(module_name)
    path = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
    return path if isinstance(path, str) else ""


def _class_names(cls: type) -> tuple[str, str]:
    names = static_dict(cls)
    module = names.get("__module__")
    qualified = type.__dict__["__qualname__"].__get__(cls)
    return (module if isinstance(module, str) else ""), qualified


def of_class(cls: type) -> str:
    """Returns the line that defines a class, as text."""
    module, name = _class_names(cls)
    path = file_of(module)
    line = _assigned_in(path).get((name, "")) if path else None
    return f"defined in {place(path, line)}" if line else ""


def of_code(code: types.CodeType, qualified: str) -> str:
    """Returns the line that defines a function, and the function or class around it."""
    outer = qualified.removesuffix("." + qualified.rpartition(".")[2]).removesuffix(".<locals>")
    inside = f", in {outer}" if "." in qualified and outer else ""
    return f"defined in {place(code.co_filename, code.co_firstlineno)}{inside}"


_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = ("site-packages", "dist-packages")


def is_users(cls: type) -> bool:
    """Returns True if a class is not from Python's standard library."""
    path = file_of(_class_names(cls)[0])
    return bool(path) and (not path.startswith(_LIBRARY) or any(name in path for name in _INSTALLED))


def of_attribute(owner: Any, name: str) -> str:
    """Returns the line in which the class of an object, or one of its bases, assigns an attribute."""
    for cls in static_mro(type(owner)):
        module, qualified = _class_names(cls)
        path = file_of(module)
        line = _assigned_in(path).get((qualified, name)) if path else None
        if line:
            return f"set in {place(path, line)}"
    return ""
