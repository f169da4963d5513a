# SPDX-License-Identifier: Apache-2.0
"""Finds the tests of what has changed (`make test CHANGED=1`).

A changed file is looked up in the table "Where is ...?" of CONTRIBUTING.md, in what the tests import or name, and among
the tests that have its name or its folder's. This is a choice for work in between, not a proof: all tests run before a
change is taken.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from common import ROOT

PACKAGE = "python/headrace/"
HELPERS = "tests/python/lib/"
_ROW = re.compile(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_NAME = re.compile(r"`([\w/.]+\.(?:c|h|py)|[\w/]+/)`")


def changed_files(since: str) -> list[str]:
    """Returns the files that differ from a commit, and the new ones."""
    diff = ["git", "diff", "--name-only", "-z", since]
    new = ["git", "ls-files", "-z", "-o", "--exclude-standard"]
    outputs = [subprocess.run(c, cwd=ROOT, check=True, capture_output=True, text=True).stdout for c in (diff, new)]
    return sorted({name for output in outputs for name in output.split("\0") if name})


def read_table(text: str) -> list[tuple[list[str], list[str]]]:
    """Returns the files and the names of the tests of each row of "Where is ...?"."""
    section = text.partition("### Where is")[2].partition("\n## ")[0]
    return [(_NAME.findall(files), _NAME.findall(tests)) for files, tests in _ROW.findall(section)]


def names_file(name: str, file: str) -> bool:
    """Returns True if a name of the table is this file or its folder."""
    path = name if name.startswith(("src/", "include/", "cli/", "docs/", "tools/")) else PACKAGE + name
    return file.startswith(path) if path.endswith("/") else file == path


def _in_table(file: str, table: list[tuple[list[str], list[str]]]) -> set[str]:
    rows = [tests for names, tests in table if any(names_file(name, file) for name in names)]
    folder = file.rpartition("/")[0]
    if not rows:  # those of its neighbours
        rows = [tests for names, tests in table if any(PACKAGE + n.rpartition("/")[0] == folder for n in names)]
    return {Path(name).stem for tests in rows for name in tests}


def _module(file: str) -> str:
    return (
        file.removeprefix("python/")
        .removeprefix(HELPERS)
        .removesuffix(".py")
        .removesuffix("/__init__")
        .replace("/", ".")
    )


def imports_module(text: str, module: str) -> bool:
    """Returns True if a text imports a module, or a name of it."""
    package, _, name = module.rpartition(".")
    whole = rf"(?:from|import) {re.escape(module)}\b"
    part = rf"from {re.escape(package)} import [^\n]*\b{re.escape(name)}\b" if package else whole
    return re.search(rf"^\s*(?:{whole}|{part})", text, re.MULTILINE) is not None


def _using(file: str, texts: dict[str, str]) -> set[str]:
    """Returns the names of the tests that import a Python file, or run it by its name, also by the modules that tests
    share."""
    found, files = set[str](), [file]
    while files:
        module, name = _module(files[-1]), re.compile(rf"[\"'/]{re.escape(Path(files.pop()).name)}[\"']")
        for path, text in texts.items():
            if path in found or not (imports_module(text, module) or name.search(text)):
                continue
            found.add(path)
            if path.startswith(HELPERS):
                files.append(path)
    return {Path(path).stem for path in found}


def _find_neighbours(path: Path, texts: dict[str, str]) -> set[str]:
    """Returns the names of the tests in the folder of a file of the tests, or in the first one above that has some."""
    folders = ({Path(name).stem for name in texts if Path(name).parent == folder} for folder in path.parents)
    return next(filter(None, folders), set())


def tests_of(
    file: str, table: list[tuple[list[str], list[str]]], texts: dict[str, str], programs: list[str]
) -> set[str]:
    """Returns the stems of the tests of one file: test_<subject>."""
    path = Path(file)
    if path.name.startswith("test_"):
        return {path.stem}
    if path.name == "conftest.py":
        return {one.stem for one in map(Path, texts) if path.parent in one.parents and one.name.startswith("test_")}
    found = _in_table(file, table)
    if path.suffix == ".py":
        found |= _using(file, texts)
    noun, room = path.stem.strip("_"), path.parent.name.strip("_")
    found |= {f"test_{name}" for name in programs if path.suffix in (".c", ".h") and noun in name.split("_")}
    found |= {stem for stem in (Path(name).stem for name in texts) if stem == f"test_{noun}"}
    if not found and path.parts[0] == "tests":
        found = _find_neighbours(path, texts)
    elif not found:
        rooms = {room, noun.partition("_")[0]}  # cli/run_plan.c
        found = {Path(name).stem for name in texts if Path(name).parent.name in rooms}
        found |= {f"test_{name}" for name in programs if rooms & {*name.split("_")}}
    return {stem for stem in found if stem.startswith("test_")}


def select(since: str, programs: list[str], files: list[str]) -> tuple[list[str], list[str]]:
    """Returns the C programs and the files of Python tests for what differs from a commit. Prints why."""
    table = read_table((ROOT / "CONTRIBUTING.md").read_text())
    helpers = [path.relative_to(ROOT).as_posix() for path in (ROOT / HELPERS).glob("*.py")]
    texts = {name: (ROOT / name).read_text() for name in [*files, *helpers]}
    stems = set[str]()
    for file in changed_files(since):
        found = tests_of(file, table, texts, programs)
        print(f"{file}: {', '.join(sorted(found)) or 'no tests are known'}")
        stems |= found
    chosen = [name for name in programs if f"test_{name}" in stems]
    return chosen, [file for file in files if Path(file).stem in stems]
