# SPDX-License-Identifier: Apache-2.0
"""Small rules for every file of the repository.

A source file says its licence in one line near its top; no file names a place of one developer's machine; every file
that meson builds, installs or runs is in the meson.build that lists its kind.
"""

import re
import sys
from pathlib import Path

from common import ROOT, list_files

SOURCE_SUFFIXES = {".c", ".h", ".py", ".pyi", ".sh"}
SOURCE_NAMES = {"Makefile", "meson.build"}
LICENCE = "SPDX-License-Identifier: Apache-2.0"
LICENCE_WITHIN_LINES = 3
MACHINE_PATH = re.compile(r"(?<![\w.*/-])/(?:work|root|home|Users)/\w+")

# Which meson.build lists a file: a pattern of paths, with one group for the name that the list has.
LISTED = {
    "src/meson.build": r"src/(.+\.c)",
    "include/headrace/meson.build": r"include/headrace/(.+\.h)",
    "python/meson.build": r"python/(.+\.(?:c|py|pyi|typed))",
    "tests/meson.build": r"(?:tests/\w+/(?:test|soak)_|examples/c/)(\w+)\.c",
    "fuzz/meson.build": r"fuzz/fuzz_(\w+)\.c",
    "bench/meson.build": r"bench/bench_(\w+)\.c",
}


def read(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return ""  # no text


def judge_licence(path: Path, text: str) -> list[str]:
    is_source = path.suffix in SOURCE_SUFFIXES or path.name in SOURCE_NAMES
    if not is_source or not text:
        return []
    head = text.splitlines()[:LICENCE_WITHIN_LINES]
    return [] if any(LICENCE in line for line in head) else [f"no line '{LICENCE}' near the top"]


def judge_paths(text: str) -> list[str]:
    return [f"names a place of one machine: {found}" for found in MACHINE_PATH.findall(text)]


def judge_listing(root: Path, path: Path) -> list[str]:
    for build, pattern in LISTED.items():
        match = re.fullmatch(pattern, path.relative_to(root).as_posix())
        if not match:
            continue
        if not (root / build).exists() or f"'{match[1]}'" not in (root / build).read_text():
            return [f"not listed in {build}"]
    return []


def check(root: Path) -> list[str]:
    complaints = []
    for path in list_files(root):
        text = read(path)
        found = judge_licence(path, text) + judge_paths(text) + judge_listing(root, path)
        complaints += [f"{path.relative_to(root)}: {complaint}" for complaint in found]
    return complaints


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    print("\n".join(found))
    sys.exit(bool(found))
