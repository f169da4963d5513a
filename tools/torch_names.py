# SPDX-License-Identifier: Apache-2.0
"""Says which of the private names that headrace uses are in a build of torch, without importing or installing it.

    torch_names.py WHEEL|FOLDER...: a .whl, or the folder of an installed torch

Python's files are parsed; names of C code are looked for in the stubs (.pyi), and then in the strings of
libtorch_python.so. Only these files are read from a wheel. The exit status is 1 if a required name is missing.
"""

import ast
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from check_names import TABLE, load_table
from common import ROOT

LIBRARY = "lib/libtorch_python.so"
PIECE = 1 << 20


class Build:
    """The files of a torch, by their paths below its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive = zipfile.ZipFile(path) if path.is_file() else None
        self.version = self._find_version()
        self.parse = cache(self._parse)
        self.has_string = cache(self._has_string)

    def _open(self, name: str) -> Any:
        """Returns a stream of a file, or None."""
        try:
            return self._archive.open(f"torch/{name}") if self._archive else (self.path / name).open("rb")
        except (KeyError, FileNotFoundError):
            return None

    def _read(self, name: str) -> str | None:
        stream = self._open(name)
        if stream is None:
            return None
        with stream:
            return str(stream.read().decode())

    def _find_version(self) -> str:
        for line in (self._read("version.py") or "").splitlines():
            if line.startswith("__version__ = "):
                return str(ast.literal_eval(line.partition(" = ")[2]))
        sys.exit(f"torch_names.py: {self.path}: no torch (no version.py)")

    def is_package(self, module: str) -> bool:
        return self._open("/".join([*module.split(".")[1:], "__init__.py"])) is not None

    def _parse(self, module: str) -> ast.Module | None:
        """Returns the tree of a module by its dotted name, or of its stub, or None."""
        place = "/".join(module.split(".")[1:])
        names = [f"{place}/__init__", place] if place else ["__init__"]
        for name in (f"{one}{suffix}" for suffix in (".py", ".pyi") for one in names):
            text = self._read(name)
            if text is not None:
                return ast.parse(text)
        return None

    def _has_string(self, name: str) -> bool:
        """Returns True if the library of torch's C code for Python has a name as a string."""
        stream, wanted, kept = self._open(LIBRARY), b"\0" + name.encode() + b"\0", b""
        if stream is None:
            return False
        with stream:
            while piece := stream.read(PIECE):
                if wanted in kept + piece:
                    return True
                kept = piece[-len(wanted) :]
        return False


def list_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or class, also those below `if`, `try` and `with`."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            for field in ("body", "orelse", "finalbody"):
                yield from list_statements(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from list_statements(handler.body)


def list_targets(node: ast.stmt) -> Iterator[str]:
    """The names that a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        yield from (one.id for one in ast.walk(target) if isinstance(one, ast.Name))


def defines(build: Build, module: str, name: str) -> Any:
    """Returns the class that a module has under a name, True for anything else, or None. Follows imports."""
    tree = build.parse(module)
    for node in list_statements(tree.body if tree else []):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return True
        if name in list_targets(node):
            return True
        if isinstance(node, ast.ImportFrom):
            origin = origin_of(build, module, node)
            for one in node.names:
                if (one.asname or one.name) == name and origin != module:
                    return defines(build, origin, one.name) or has_module(build, f"{origin}.{one.name}")
    return None


def origin_of(build: Build, module: str, node: ast.ImportFrom) -> str:
    """Returns the module that an import names, which may be relative to its own."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    package = parts[: len(parts) - node.level + build.is_package(module)]
    return ".".join([*package, *([node.module] if node.module else [])])


def has_module(build: Build, name: str) -> bool | None:
    return True if build.parse(name) else None


def has_member(build: Build, place: tuple[str, ast.ClassDef], name: str) -> bool:
    """Returns True if a class of a module or one of its bases has a member, or an attribute that its functions set."""
    module, kind = place
    for node in ast.walk(kind):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node is not kind and node.name == name:
            return True
        if isinstance(node, ast.Attribute) and node.attr == name and ast.unparse(node.value) == "self":
            return True
    if any(name in list_targets(node) for node in list_statements(kind.body)):
        return True
    return any(has_in_base(build, module, ast.unparse(base), name) for base in kind.bases)


def has_in_base(build: Build, module: str, base: str, name: str) -> bool:
    if base.startswith("torch._C."):
        return has_c_name(build, base, name)
    found = defines(build, module, base.partition("[")[0])
    return isinstance(found, tuple) and has_member(build, found, name)


def has_c_name(build: Build, owner: str, name: str) -> bool:
    """Returns True if a module or class of C code has a name, by its stub or by the strings of the library."""
    module, _, kind = owner.rpartition(".")
    found = defines(build, owner, name) or defines(build, module, kind)
    if found is True or (isinstance(found, tuple) and has_member(build, found, name)):
        return True
    return build.has_string(name)


def has(build: Build, path: str) -> bool:
    owner, _, name = path.rpartition(".")
    if owner.startswith("torch._C"):
        return has_c_name(build, owner, name)
    if build.parse(owner):
        return defines(build, owner, name) is not None
    module, _, kind = owner.rpartition(".")
    found = defines(build, module, kind)
    return isinstance(found, tuple) and has_member(build, found, name)


def show(table: Any, build: Build) -> bool:
    """Prints which names a build has. Returns True if it has all that are required."""
    print(f"torch {build.version}: {build.path}")
    lacking = [one for one in table.NAMES if not has(build, one.path)]
    for one in table.NAMES:
        state = "missing" if one in lacking else "there"
        print(f"  {state:8}{one.need or 'optional':10}since {one.since:6}{one.path}")
    for one in lacking:
        print(f"  lost without {one.path}: {one.lost}")
    required = [one for one in lacking if one.need]
    print(
        f"{len(table.NAMES) - len(lacking)} of {len(table.NAMES)} names; {len(required)} of those missing are required"
    )
    return not required


def main(paths: list[str]) -> int:
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    table = load_table(ROOT / "python" / TABLE)
    results = [show(table, Build(Path(path))) for path in paths]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
