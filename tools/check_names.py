# SPDX-License-Identifier: Apache-2.0
"""Proves that python/headrace uses private names of torch in one folder only; `make check` calls it.

The table of names is python/headrace/_tensors/torch_names.py; the files of torch/_own have functions for the other
files. There it refuses: imports and dotted names of torch with a private part; attributes that the table has, except
those of `self`, and such names in getattr and its like. In the table and that folder, and in classes that derive from
torch's, each private name has to be in the table.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from common import ROOT

TABLE = "headrace/_tensors/torch_names.py"
ROOM = "headrace/torch/_own/"
TOP = "headrace"
ASKING = {"getattr", "hasattr", "setattr", "delattr", "attribute", "has_attribute", "static"}
BASES = ("classes.", "torch.")  # of a class that derives from one of torch's
# Attributes that other classes have under the same name.
KNOWN = {
    ("headrace/doctor/run/measure.py", "_iterator"): "headrace.Loader has the attribute too",
    ("headrace/_loader/worker/main.py", "_shutdown"): "a function of threading",
}
# Private names there that are not torch's.
OTHERS = {"_registry": "weakref's", "_kind": "a parameter"}


class Found(NamedTuple):
    """A private name at a place."""

    name: str
    line: int
    is_self: bool = False


def load_table(path: Path) -> Any:
    """Imports the table, which needs neither torch nor headrace."""
    spec = importlib.util.spec_from_file_location("torch_names", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["torch_names"] = module
    spec.loader.exec_module(module)
    return module


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def dotted(node: ast.expr) -> str:
    """Returns a name such as a.b.c, or ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (rest := dotted(node.value)):
        return f"{rest}.{node.attr}"
    return ""


def list_imports(tree: ast.Module) -> Iterator[Found]:
    """The private modules and names that are imported from torch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "torch" and any(map(is_private, rest)):
                yield Found(name, node.lineno)


def modules_of_torch(tree: ast.Module) -> dict[str, str]:
    """The names that a file gives torch and its modules: {"torch": "torch", "data": "torch.utils.data"}."""
    found = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.asname: one.name for one in node.names if one.asname and one.name.startswith("torch.")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def list_dotted(tree: ast.Module) -> Iterator[Found]:
    """The dotted names below torch with a private part."""
    modules = modules_of_torch(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            first, _, rest = dotted(node).partition(".")
            if rest and first in modules:
                yield Found(f"{modules[first]}.{rest}", node.lineno)


def list_attributes(tree: ast.Module) -> Iterator[Found]:
    """The private attributes of any object, also those that are asked for by a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = node.value
            is_self = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
            is_super = isinstance(owner, ast.Call) and dotted(owner.func) == "super"
            yield Found(node.attr, node.lineno, is_self or is_super)
        elif isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in ASKING and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and is_private(name.value):
                yield Found(name.value, node.lineno)


def list_defined(body: ast.AST) -> set[str]:
    """The names that classes define and the attributes that they set."""
    found = set()
    for node in ast.walk(body):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def bases_of(root: Path, tree: ast.Module, kind: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """The classes of the package from which a class derives, in its own file and in those that this one imports."""
    files: dict[str, list[Path]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == TOP:
            path = root / node.module.replace(".", "/")
            files |= {one.asname or one.name: [path / one.name, path] for one in node.names}
    for base in kind.bases:
        first, _, name = dotted(base if not isinstance(base, ast.Subscript) else base.value).partition(".")
        paths = [path.with_suffix(suffix) for path in files.get(first, []) for suffix in (".py", ".pyi")]
        trees = [parse(path) for path in paths if path.is_file()] or [tree]
        for other in trees:
            for one in other.body:
                if isinstance(one, ast.ClassDef) and one.name == (name or first) and one is not kind:
                    yield one
                    yield from bases_of(root, other, one)


def list_inherited(root: Path, tree: ast.Module) -> Iterator[Found]:
    """The private attributes of `self` that a class has from torch's class."""
    for kind in tree.body:
        if not isinstance(kind, ast.ClassDef):
            continue
        bases = list(bases_of(root, tree, kind))
        names = [ast.unparse(base) for one in (kind, *bases) for base in one.bases]
        if any(name.startswith(BASES) for name in names):
            defined = set().union(*map(list_defined, (kind, *bases)))
            for one in list_attributes(ast.Module([kind], [])):
                if one.is_self and one.name not in defined:
                    yield one


def judge(root: Path, path: Path, table: set[str]) -> Iterator[str]:
    name = path.relative_to(root).as_posix()
    is_user = name == TABLE or name.startswith(ROOM)
    tree = parse(path)
    members = {one.rpartition(".")[2] for one in table}
    for one in [*list_imports(tree), *list_dotted(tree)]:
        if not is_user or not any(f"{one.name}.".startswith(f"{path}.") for path in table):
            yield f"{name}:{one.line}: {one.name} is private to torch: use {TABLE} or {ROOM}"
    for one in list_attributes(tree):
        if is_user:
            if not one.is_self and one.name not in members and one.name not in OTHERS:
                yield f"{name}:{one.line}: {one.name} is not in the table of {TABLE}"
        elif not one.is_self and one.name in members and is_private(one.name) and (name, one.name) not in KNOWN:
            yield f"{name}:{one.line}: {one.name} is private to torch: use a function of {ROOM}"
    for one in list_inherited(root, tree):
        if one.name not in members:
            yield f"{name}:{one.line}: self.{one.name} is torch's, and not in the table of {TABLE}"


def check(root: Path) -> list[str]:
    table = {one.path for one in load_table(root / TABLE).NAMES}
    return [complaint for path in sorted((root / TOP).rglob("*.py")) for complaint in judge(root, path, table)]


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "python")
    print("\n".join(found))
    sys.exit(bool(found))
