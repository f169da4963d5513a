# SPDX-License-Identifier: Apache-2.0
"""Compares the register of shortcuts (docs/shortcuts.md) with the code.

Each row names functions by a comment in them: `shortcut: NAME`. A function that compares the class of an object with
one of another library, or the globals of a function, recognises something, so it has such a comment.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from common import ROOT, list_files

PAGE = "docs/shortcuts.md"
PACKAGE = "python/headrace/"
# These rooms write reports about objects, or keep their values; they do no work in place of a loop.
OTHER_ROOMS = ("doctor/", "frozen/", "_commands/", "_cache/")
FOREIGN = ("torch", "numpy", "PIL", "datasets", "pyarrow", "accelerate", "lightning", "headrace.torch._own.classes")
# Functions that compare classes for another reason.
REASONS = {
    ("torch/_loader/workers.py", "name_sampler"): "the words of a warning",
    ("torch/_loader/workers.py", "_next_value"): "torch's own messages between processes",
    ("torch/_own/originals.py", "_code_row"): "what the shortcuts ask",
    ("sampling/_values.py", "reducer_override"): "what a state may contain",
}
_ROW = re.compile(r"^\| `([a-z-]+)` \|", re.MULTILINE)
_MARKER = re.compile(r"shortcut: ([a-z-]+)")


def foreign_names(tree: ast.Module) -> set[str]:
    """Returns the names under which a module has classes of other libraries, or modules of them."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module.startswith(FOREIGN):
                names |= {one.asname or one.name for one in node.names}
            elif node.module == "headrace.torch._own":
                names |= {"classes"} & {one.name for one in node.names}
        elif isinstance(node, ast.Import):
            names |= {one.asname or one.name.partition(".")[0] for one in node.names if one.name.startswith(FOREIGN)}
    return names


def _root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _recognises(node: ast.Compare, foreign: set[str]) -> bool:
    sides = [node.left, *node.comparators]
    if any(isinstance(side, ast.Attribute) and side.attr == "__globals__" for side in sides):
        return True
    is_type = any(isinstance(side, ast.Call) and _root_of(side.func) == "type" for side in sides)
    return is_type and any(_root_of(side) in foreign for side in sides)


def find_unmarked(path: Path, name: str) -> Iterator[str]:
    text = path.read_text()
    tree = ast.parse(text)
    foreign = foreign_names(tree)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        recognises = any(isinstance(node, ast.Compare) and _recognises(node, foreign) for node in ast.walk(function))
        if recognises and (name, function.name) not in REASONS:
            if not _MARKER.search(ast.get_source_segment(text, function) or ""):
                yield (
                    f"{PACKAGE}{name}:{function.lineno}: {function.name} compares a class of another library and has "
                    f"no comment `shortcut: NAME`, whose row in {PAGE} says what it claims"
                )


def main(root: Path) -> int:
    complaints, markers = list[str](), dict[str, str]()
    for path in list_files(root):
        name = path.relative_to(root).as_posix()
        if not name.startswith((PACKAGE, "src/")) or path.suffix not in (".py", ".c", ".h"):
            continue
        markers |= dict.fromkeys(_MARKER.findall(path.read_text()), name)
        name = name.removeprefix(PACKAGE)
        if path.suffix == ".py" and not name.startswith(OTHER_ROOMS):
            complaints += find_unmarked(path, name)
    rows = set(_ROW.findall((root / PAGE).read_text()))
    complaints += [f"{PAGE}: no function has the comment `shortcut: {name}`" for name in sorted(rows - {*markers})]
    complaints += [f"{markers[name]}: {PAGE} has no row `{name}`" for name in sorted({*markers} - rows)]
    print(*complaints, sep="\n", end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
