# SPDX-License-Identifier: Apache-2.0
"""Proves from the built files that names keep to the rules.

Every global symbol of libheadrace.a is public, hr_... and declared in include/headrace, or internal, hr__...; what the
headers declare is there, and something uses it: a face, an example or a test, and a face if only faces can see it; the
extension exports PyInit__core and nothing else.

check_symbols.py LIBRARY EXTENSION [INCLUDE_FOLDER]
"""

import re
import subprocess
import sys
from pathlib import Path

from common import ROOT

DECLARATION = re.compile(r"^HR_API\b[^;{]*?\b(\w+)\s*\(", re.MULTILINE)


def list_symbols(path: Path, *options: str) -> set[str]:
    command = ["nm", "--defined-only", "--extern-only", "--format=posix", *options, str(path)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[0] for line in lines if " " in line.strip()}


def list_declared(include: Path) -> set[str]:
    return {name for header in include.rglob("*.h") for name in DECLARATION.findall(header.read_text())}


def list_words(root: Path, *folders: str) -> set[str]:
    """The names in the C files of these folders."""
    paths = [path for folder in folders for path in (root / folder).rglob("*.[ch]")]
    return {word for path in paths for word in re.findall(r"\bhr_\w+", path.read_text())}


def judge_users(include: Path) -> list[str]:
    faces = list_words(include.parent, "cli", "python")
    users = faces | list_words(include.parent, "examples/c", "tests")
    private = list_declared(include / "headrace/face")
    complaints = [f"{name}: declared for the faces, which do not use it" for name in private - faces]
    return sorted(
        complaints + [f"{name}: public, and nothing uses it" for name in list_declared(include) - users - private]
    )


def judge_library(defined: set[str], declared: set[str]) -> list[str]:
    complaints = [f"{name}: a global symbol starts with hr_" for name in defined if not name.startswith("hr_")]
    public = {name for name in defined if re.match(r"hr_[^_]", name)}
    complaints += [f"{name}: not in a public header; an internal name starts with hr__" for name in public - declared]
    complaints += [f"{name}: declared in a public header, defined nowhere" for name in declared - defined]
    return sorted(complaints)


def judge_extension(exported: set[str]) -> list[str]:
    complaints = [f"{name}: exported by the extension" for name in sorted(exported - {"PyInit__core"})]
    return complaints if "PyInit__core" in exported else [*complaints, "PyInit__core: not exported by the extension"]


def main(library: str, extension: str, include: str = str(ROOT / "include")) -> int:
    complaints = judge_library(list_symbols(Path(library)), list_declared(Path(include)))
    complaints += judge_users(Path(include))
    complaints += judge_extension(list_symbols(Path(extension), "--dynamic"))
    print("\n".join(complaints))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
