# SPDX-License-Identifier: Apache-2.0
"""Compares the texts with docs/glossary.md, and finds docstrings and names of tests that CONTRIBUTING.md rules out.

Each of headrace's own words is used in its home, and no text uses a word that the glossary replaces, in any text or
below the path that the glossary names. `make check` calls it as `words`.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from common import ROOT, list_files

GLOSSARY = "docs/glossary.md"
NOT_USED = "## Words that we do not use"
# The first has the words themselves, the second the names of its tests.
NOT_CHECKED = ("tests/tools/test_check_words.py", "tests/chosen.txt", "fuzz/corpus/", "LICENSE")
SUFFIXES = {".c", ".h", ".py", ".pyi", ".sh", ".md", ".build", ".toml", ".txt", ""}

OWN_ROW = re.compile(r"^\| ([^|`]+) \| ([^|]+) \| `([^`]+)` \|$", re.MULTILINE)
NOT_USED_ROW = re.compile(r"^\| (`.+`) \| ([^|]+) \| (?:`([^`]+)` )?\|$", re.MULTILINE)


class Rule(NamedTuple):
    pattern: re.Pattern[str]
    advice: str
    where: str = ""  # the beginning of the path of the files that it is for


def read_rows(glossary: str) -> list[tuple[str, str, str]]:
    """Returns pattern, advice and path for each pattern of the table of words that are not used."""
    rows = NOT_USED_ROW.findall(glossary.partition(NOT_USED)[2])
    return [
        (pattern.replace(" ", "[ _]"), advice, where)
        for patterns, advice, where in rows
        for pattern in re.findall(r"`([^`]+)`", patterns.replace(r"\|", "|"))
    ]


def word(pattern: str) -> str:
    """Returns a pattern for whole words, in any case. An underscore separates words, as a space does."""
    return rf"(?i:(?<![^\W_])(?:{pattern})(?![^\W_]))"


def rule(pattern: str, advice: str) -> Rule:
    return Rule(re.compile(pattern), advice)


ROWS = read_rows((ROOT / GLOSSARY).read_text())
WORDS = [Rule(re.compile(word(pattern)), advice, where) for pattern, advice, where in ROWS]
ANY_WORD = re.compile("|".join(pattern for pattern, _, _ in ROWS))  # much faster, for a line in lower case
STYLE = [
    rule(r'"""(?:What|Who|Whose|Where|As|Of|Is|Has|Are|For|By|To|Also|Whether)\b', "start with a verb or a noun"),
    rule(r"/\* (?:What|Who|Whose|Where|As|Of|Whether) ", "start with a verb or a noun"),
    rule(r"def test_\w{56,}", "a name of 60 characters or fewer, and a docstring"),
    rule(r"def test_(?:what|who|where|it|that|nothing|whatever)_\w+", "test_<subject>_<result>"),
]


def is_checked(name: str) -> bool:
    return not name.startswith(NOT_CHECKED)


def check_line(line: str, name: str = "") -> list[str]:
    """Returns a complaint for each word in a line of the file `name` that is not to be used there."""
    rules = STYLE
    if ANY_WORD.search(line.lower()):
        rules = STYLE + [one for one in WORDS if name.startswith(one.where)]
    return [f'"{match.group()}": {one.advice}' for one in rules for match in one.pattern.finditer(line)]


def check_own_words(root: Path, glossary: str) -> list[str]:
    """Returns a complaint for each own word that has two rows, is not in its place, or is not used in its home."""
    rows = OWN_ROW.findall(glossary.partition("\n## ")[2].partition("\n## ")[0])
    words = [row[0] for row in rows]
    complaints = [f'"{one}" has more than one row' for one in sorted(set(words)) if words.count(one) > 1]
    if words != sorted(words):
        complaints.append("the own words are not sorted")
    for own, _, home in rows:
        pattern = word(own.replace(" ", "[ _]?") + "s?")
        if not (root / home).is_file():
            complaints.append(f'"{own}": its home {home} does not exist')
        elif not re.search(pattern, " ".join((root / home).read_text().split())):
            complaints.append(f'"{own}" is not used in its home {home}')
    return [f"{GLOSSARY}: {complaint}" for complaint in complaints]


def check(root: Path) -> list[str]:
    complaints = []
    for path in list_files(root):
        name = path.relative_to(root).as_posix()
        if not is_checked(name) or path.suffix not in SUFFIXES:
            continue
        text = path.read_text(errors="replace")
        if name == GLOSSARY:
            complaints += check_own_words(root, text)
            text = text.partition(NOT_USED)[0]
        for number, line in enumerate(text.splitlines(), 1):
            complaints += [f"{name}:{number}: {complaint}" for complaint in check_line(line, name)]
    return complaints


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    print("\n".join(found))
    sys.exit(bool(found))
