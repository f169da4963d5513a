# SPDX-License-Identifier: Apache-2.0
"""Proves the layers of docs/architecture.md from the #include lines.

A file may include its own folder and lower rows: never upwards, never sideways. Only src/os includes the headers of
raw system calls. A face (the program, the extension, an example) includes headers of include/ and its own folder. Those
in include/headrace/face are not installed: no installed header and no example includes one.
"""

import re
import sys
from pathlib import Path

from common import ROOT, list_files

ROWS = [
    {"base"},
    {"os"},
    {"arena"},
    {"batch", "crew", "board", "remote"},
    {"frozen", "loader", "sampler", "cache", "launch", "image", "source", "record", "verdict"},
]
RANK = {folder: rank for rank, row in enumerate(ROWS) for folder in row}

# The folder that each header of include/ belongs to; headrace.h and face/face.h have them all, and are for faces.
PUBLIC = {"error": "base", "visibility": "base", "version": "base", "arena": "arena", "batch": "batch"}
PUBLIC |= {"crew": "crew", "loader": "loader", "machine": "os", "sampler": "sampler"}
PUBLIC |= {
    "frozen": "frozen",
    "board": "board",
    "image": "image",
    "index": "source",
    "source": "source",
    "tar": "source",
    "tokens": "source",
    "lines": "source",
    "launch": "launch",
    "look": "arena",
    "record": "record",
    "remote": "remote",
    "fetcher": "remote",
    "kept": "remote",
    "objects": "source",
    "recorder": "record",
    "show": "arena",
    "tuner": "loader",
    "verdict": "verdict",
}
PUBLIC |= {"cache": "cache", "cache_files": "cache", "cache_samples": "cache", "cache_shared": "cache"}

NOT_INSTALLED = "includes <{}>, which is not installed"
FACES = ("cli", "python/headrace/_core", "examples/c")
SYSTEM_CALLS = re.compile(r"sys/.+|linux/.+|asm/.+|(fcntl|poll|sched|signal|spawn|unistd)\.h")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def owner(root: Path, path: Path) -> str | None:
    """The folder of src/ that a file or public header belongs to; None when the table does not have it."""
    parts = path.relative_to(root).parts
    if parts[0] == "src":
        folder = parts[1] if len(parts) > 2 else None
    else:
        folder = PUBLIC.get(path.stem) if path.suffix == ".h" else None
    return folder if folder in RANK else None


def resolve(root: Path, source: Path, name: str) -> Path | None:
    """The project's file that an include names, or None when it is a system header."""
    if name.startswith("headrace/"):
        return root / "include" / name
    for folder in (source.parent, root / "src"):
        if (folder / name).exists():
            return (folder / name).resolve()
    return None


def is_private(name: str) -> bool:
    """Returns true for a header that only our own faces can include."""
    return name.startswith("headrace/face/")


def judge_library(root: Path, source: Path, bracket: str, name: str) -> str | None:
    here = owner(root, source)
    if here is None:
        return "is in no folder that the table of layers has"
    target = resolve(root, source, name)
    if target is None:
        if bracket == '"':
            return f'includes "{name}", which does not exist'
        if SYSTEM_CALLS.fullmatch(name) and here != "os":
            return f"includes <{name}>: system calls are in src/os only"
        return None
    relative = source.relative_to(root).as_posix()
    if is_private(name) and relative.startswith("include/") and not is_private(relative.removeprefix("include/")):
        return NOT_INSTALLED.format(name)
    there = owner(root, target)
    if there is None:
        return f"includes {name}, which no layer owns"
    if there != here and RANK[there] >= RANK[here]:
        direction = "sideways" if RANK[there] == RANK[here] else "upwards"
        return f"includes {name} of {there}: {direction} from {here}"
    return None


def judge_face(root: Path, face: Path, source: Path, bracket: str, name: str) -> str | None:
    if name.startswith("headrace/"):
        if is_private(name) and face == root / "examples/c":
            return NOT_INSTALLED.format(name)
        return None if (root / "include" / name).exists() else f"includes <{name}>, which does not exist"
    targets = ((folder / name).resolve() for folder in (source.parent, face))
    if bracket == "<" or any(target.exists() and face in target.parents for target in targets):
        return None
    return f'includes "{name}": a face may include <headrace/*.h> and its own folder only'


def judge(root: Path, source: Path, bracket: str, name: str) -> str | None:
    relative = source.relative_to(root).as_posix()
    for face in FACES:
        if relative.startswith(face + "/"):
            return judge_face(root, root / face, source, bracket, name)
    if relative == "include/headrace/face/face.h":
        return None
    if relative == "include/headrace/headrace.h":
        return NOT_INSTALLED.format(name) if is_private(name) else None
    if relative.startswith(("src/", "include/")):
        return judge_library(root, source, bracket, name)
    return None


def check(root: Path) -> list[str]:
    complaints = []
    for source in list_files(root):
        if source.suffix not in (".c", ".h"):
            continue
        for match in INCLUDE.finditer(source.read_text()):
            if complaint := judge(root, source, *match.groups()):
                complaints.append(f"{source.relative_to(root)}: {complaint}")
    return complaints


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    print("\n".join(found))
    sys.exit(bool(found))
