# SPDX-License-Identifier: Apache-2.0
"""Small rules for every file of the repository.

A source file says its licence in one line near its top; no file names a place of one developer's machine; every file
that meson builds, installs or runs is in the meson.build that lists its kind; a name has plain characters only; no two
files of Python tests have the same name, because pytest imports them by it; a file is text, and not large: a scratch
file that `git add` took along stays in the history of every clone.
"""

import re
import sys
from pathlib import Path

from common import ROOT, list_files

SOURCE_SUFFIXES = {".c", ".h", ".py", ".pyi", ".sh"}
SOURCE_NAMES = {"Makefile", "meson.build"}
LICENCE = "SPDX-License-Identifier: Apache-2.0"
LICENCE_WITHIN_LINES = 3
MOST_BYTES = 300 << 10
PLAIN_NAME = re.compile(r"[\w.+/-]+", re.ASCII)
MACHINE_PATH = re.compile(r"(?<![\w.*/-])/(?:work|root|home|Users)/\w+")

# The file that lists other files, the pattern of their paths, and of their line in it, with the groups of the path.
WHOLE = r"'\1'"
LISTED = [
    ("src/meson.build", r"src/(.+\.c)", WHOLE),
    ("include/headrace/meson.build", r"include/headrace/([^/]+\.h)", WHOLE),
    ("include/headrace/headrace.h", r"include/headrace/((?!headrace\.h)[^/]+\.h)", r"#include <headrace/\1>"),
    ("include/headrace/face/face.h", r"include/headrace/(face/(?!face\.h).+\.h)", r"#include <headrace/\1>"),
    ("cli/meson.build", r"cli/(.+\.c)", WHOLE),
    ("python/meson.build", r"python/(.+\.(?:c|py|pyi|typed))", WHOLE),
    ("tests/meson.build", r"tests/c/(\w+)/test_(\w+)\.c", r"'\1': \[[^]]*'\2'"),
    ("tests/meson.build", r"tests/soak/soak_(\w+)\.c", r"c_soaks = \[[^]]*'\1'"),
    ("tests/meson.build", r"examples/c/(\w+)\.c", r"c_examples = \[[^]]*'\1'"),
    ("fuzz/meson.build", r"fuzz/fuzz_(\w+)\.c", WHOLE),
    ("bench/meson.build", r"bench/bench_(\w+)\.c", WHOLE),
]


def read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""  # the file does not exist, or is not text


def judge_content(path: Path) -> list[str]:
    size = path.stat().st_size
    if size > MOST_BYTES:
        return [f"{size:,} bytes, but no file has more than {MOST_BYTES:,}"]
    data = path.read_bytes()
    return ["not text"] if b"\0" in data or (data and not read(path)) else []


def judge_licence(path: Path, text: str) -> list[str]:
    is_source = path.suffix in SOURCE_SUFFIXES or path.name in SOURCE_NAMES
    if not is_source or not text:
        return []
    head = text.splitlines()[:LICENCE_WITHIN_LINES]
    return [] if any(LICENCE in line for line in head) else [f"no line '{LICENCE}' near the top"]


def judge_name(name: str) -> list[str]:
    return [] if PLAIN_NAME.fullmatch(name) else ["a name with other characters than letters, digits and _.+-"]


def judge_paths(text: str) -> list[str]:
    return [f"names a place of one machine: {found}" for found in MACHINE_PATH.findall(text)]


def judge_listing(root: Path, path: Path) -> list[str]:
    name, complaints = path.relative_to(root).as_posix(), []
    for build, pattern, wanted in LISTED:
        match = re.fullmatch(pattern, name)
        if match and not re.search(match.expand(wanted), read(root / build)):
            complaints.append(f"not listed in {build}")
    return complaints


def judge_test_name(path: Path, others: list[Path]) -> list[str]:
    same = [one for one in others if one.name == path.name and one < path]
    is_test = path.match("test_*.py") and same
    return [f"a test of the same name as {same[0].name} in {same[0].parent.name}/"] if is_test else []


def check(root: Path) -> list[str]:
    complaints = []
    files = list_files(root)
    for path in files:
        name = path.relative_to(root).as_posix()
        if found := judge_content(path):
            complaints += [f"{name}: {complaint}" for complaint in found]
            continue
        text = read(path)
        found = judge_name(name) + judge_licence(path, text) + judge_paths(text) + judge_listing(root, path)
        found += judge_test_name(path, files)
        complaints += [f"{name}: {complaint}" for complaint in found]
    return complaints


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    print("\n".join(found))
    sys.exit(bool(found))
