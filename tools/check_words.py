# SPDX-License-Identifier: Apache-2.0
"""Finds words and beginnings of sentences that CONTRIBUTING.md rules out; `make check` calls it.

It knows the cheap half of the rules: words that have a modern one, docstrings that do not begin with a verb or a noun,
and the names of tests.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from common import ROOT, list_files

# These have the words themselves.
NOT_CHECKED = ("tools/check_words.py", "tests/tools/test_check_words.py", "fuzz/corpus/", "LICENSE")
SUFFIXES = {".c", ".h", ".py", ".pyi", ".sh", ".md", ".build", ".toml", ".txt", ""}


class Rule(NamedTuple):
    pattern: re.Pattern[str]
    advice: str


def rule(pattern: str, advice: str) -> Rule:
    return Rule(re.compile(pattern), advice)


RULES = [
    rule(r"\b[Dd]ata sets?\b", "dataset"),
    rule(r"\b[Aa]new\b", "again, or a new ..."),
    rule(r"\b(?:[Nn]obody|[Ss]omebody|[Aa]nybody)\b", "no process, no caller, another process ..."),
    rule(r"\b[Ww]hom\b|\b[Ww]hoever\b", "the process, thread or user that ..."),
    rule(r"\b[Ll]ikewise\b", "repeat the noun"),
    rule(r"\bto be had\b|\bto spare\b", "available"),
    rule(r"\bfor nothing\b|\bin vain\b|\bfor want of\b", "without a result; because ... ran out"),
    rule(r"(?i)culprit", "the object that cannot be pickled"),
    rule(r"\bbeside\b", "next to, with, at the same time as"),
    rule(r"\bheed(?:ed|s)?\b", "followed, respected"),
    rule(r"(?i)stillb|\bunborn\b|\bat_birth\b|\bfrom birth\b", "hung at start, from its start"),
    rule(r"\bmend(?:s|ed)?\b", "fix, repair"),
    rule(r"\b(?:is|are) none\b", "does not exist, has no ..."),
    rule(r"\bheld against\b", "compared with"),
    rule(r'"""(?:What|Who|Whose|Where|As|Of|Is|Has|Are|For|By|To|Also|Whether)\b', "start with a verb or a noun"),
    rule(r"/\* (?:What|Who|Whose|Where|As|Of|Whether) ", "start with a verb or a noun"),
    rule(r"def test_\w{56,}", "a name of 60 characters or fewer, and a docstring"),
    rule(r"def test_(?:what|who|where|it|that|nothing|whatever)_\w+", "test_<subject>_<result>"),
]

# A file, a text in it, and why it stays.
ALLOWED: list[tuple[str, str, str]] = []


def is_checked(name: str) -> bool:
    return not name.startswith(NOT_CHECKED)


def is_allowed(name: str, line: str) -> bool:
    return any(name == file and text in line for file, text, _ in ALLOWED)


def check_line(line: str) -> list[str]:
    return [f'"{match.group()}": {one.advice}' for one in RULES for match in one.pattern.finditer(line)]


def check(root: Path) -> list[str]:
    complaints = []
    for path in list_files(root):
        name = path.relative_to(root).as_posix()
        if not is_checked(name) or path.suffix not in SUFFIXES:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if not is_allowed(name, line):
                complaints += [f"{name}:{number}: {complaint}" for complaint in check_line(line)]
    return complaints


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    print("\n".join(found))
    sys.exit(bool(found))
