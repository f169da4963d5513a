# SPDX-License-Identifier: Apache-2.0
"""Proves that no two packages of python/headrace need each other, nor two of its rooms (the folders directly in it);
`make check` calls it.

An edge leads from the package of a module to the package that it imports: at its top, inside a function, or by the name
in a string (`import_module("headrace.frozen")`, a table of names). A module next to `headrace/__init__.py` counts as a
package of its own. A message may name what users import from the package around a module (`headrace.torch.per_rank`).

A text with a private name that ends with a point is the beginning of the names of modules ("headrace._samples."). There
has to be such a module: code that knows modules by such a text would only become slow when they are moved.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from common import ROOT

PACKAGES = ROOT / "python"
TOP = "headrace"
DOTTED = re.compile(rf"{TOP}(\.\w+)+")
BEGINNING = re.compile(rf"{TOP}(\.\w+)*\._\w+(\.\w+)*\.")
# Each room of headrace.torch may import those before it.
ORDER = {
    "headrace.torch": ("_own", "_frameworks", "_samplers", "_ranks", "_state", "_batches", "_device", "_loader"),
}

# Edges of circles that are still there, and what makes them: each must go. An edge here that no longer exists is a
# failure too, so that the table shrinks.
KNOWN: dict[tuple[str, str], str] = {
    ("headrace.frozen.types", "headrace.frozen"): "a part of headrace.frozen: what is frozen alone is frozen by it",
}

Edges = dict[tuple[str, str], str]


def name_of(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str, is_package: bool) -> str:
    """The package that a module counts to: its folder, or the module itself in the top folder."""
    parent = module if is_package else module.rpartition(".")[0]
    return module if parent == TOP else parent


def list_modules(root: Path) -> dict[str, Path]:
    """The modules of a tree; a stub (.pyi) is used instead of an extension, which has no imports here."""
    return {name_of(root, path): path for path in sorted([*root.rglob("*.py"), *root.rglob("*.pyi")])}


def list_names(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """The dotted names that a module's code imports or has in strings, their lines, and True for a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((f"{node.module}.{alias.name}", node.lineno, False) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            yield node.value, node.lineno, True


def find_module(modules: dict[str, Path], name: str) -> str | None:
    """The longest beginning of a dotted name that is a module."""
    while name not in modules:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return None
    return name


def list_edges(root: Path) -> Edges:
    """The edges between packages, each with the first place that makes it."""
    modules = list_modules(root)
    rooms = {name: room_of(name, path.name == "__init__.py") for name, path in modules.items()}
    edges: Edges = {}
    for module, path in modules.items():
        for name, line, is_text in list_names(ast.parse(path.read_text())):
            target = find_module(modules, name)
            is_message = is_text and target != name and module.startswith(f"{target}.")
            if target and rooms[target] != rooms[module] and not is_message:
                place = f"{path.relative_to(root)}:{line} names {name}"
                edges.setdefault((rooms[module], rooms[target]), place)
    return edges


def can_reach(edges: Edges, start: str, end: str) -> bool:
    seen, ahead = {start}, [start]
    while ahead:
        here = ahead.pop()
        if here == end:
            return True
        following = {to for origin, to in edges if origin == here} - seen
        seen |= following
        ahead += following
    return False


def top_of(package: str) -> str:
    """Returns the room that a package is in: headrace.torch for headrace.torch._own."""
    return ".".join(package.split(".")[:2])


def find_circles(edges: Edges) -> list[str]:
    """Returns a complaint for each edge that is part of a circle."""
    circles = {(a, b): place for (a, b), place in edges.items() if can_reach(edges, b, a)}
    return [f"{place}: {a} needs {b}, which needs {a}" for (a, b), place in circles.items()]


def find_order(edges: Edges) -> list[str]:
    """Returns a complaint for each edge against ORDER."""
    places = {f"{top}.{room}": (top, number) for top, rooms in ORDER.items() for number, room in enumerate(rooms)}
    found = []
    for (origin, target), place in edges.items():
        one, other = places.get(origin), places.get(target)
        if one and other and one[0] == other[0] and other[1] > one[1]:
            found.append(f"{place}: {target} comes after {origin} in ORDER of tools/check_imports.py")
    return found


def find_beginnings(root: Path) -> list[str]:
    """Returns a complaint for each beginning of module names that no module has."""
    modules = list_modules(root)
    found = []
    for path in modules.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and BEGINNING.fullmatch(node.value):
                if not any(name.startswith(node.value) for name in modules):
                    place = f"{path.relative_to(root)}:{node.lineno}"
                    found.append(f"{place}: no module has a name that begins with {node.value}")
    return found


def check(root: Path, known: dict[tuple[str, str], str]) -> list[str]:
    edges = list_edges(root)
    complaints = [f"{a} -> {b} no longer exists: remove it from KNOWN" for a, b in known if (a, b) not in edges]
    rest = {edge: place for edge, place in edges.items() if edge not in known}
    rooms = {(top_of(a), top_of(b)): place for (a, b), place in edges.items() if top_of(a) != top_of(b)}
    rooms = {(a, b): place for (a, b), place in rooms.items() if TOP not in (a, b)}
    complaints += find_circles(rest) + find_circles(rooms) + find_order(edges) + find_beginnings(root)
    return list(dict.fromkeys(complaints))


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).resolve(), {}) if len(sys.argv) > 1 else check(PACKAGES, KNOWN)
    print("\n".join(found))
    sys.exit(bool(found))
