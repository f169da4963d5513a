# SPDX-License-Identifier: Apache-2.0
"""Reads the opening comment of a file: the docstring of Python, or the first comment of C that stands alone."""

import re
from pathlib import Path

from common import list_files

FOLDERS = ("cli/", "include/", "python/headrace/", "src/")
SUFFIXES = (".c", ".h", ".py", ".pyi")
# Directives, and the line of the licence, which come before the comment or after it.
_BEFORE = re.compile(r"(?:\s|#(?:\\\n|[^\n])*\n|extern \"C\" \{|/\* SPDX[^\n]*\n)*")
_DOCSTRING = re.compile(r'(?:\s|#[^\n]*\n)*r?"""(.*?)"""', re.DOTALL)
_COMMENT = re.compile(r"/\*(?!\s*----)((?:(?!\*/).)*)\*/", re.DOTALL)
_SENTENCE = re.compile(r"(.+?\.)(?=\s|$)")


def list_opened(root: Path) -> list[Path]:
    """Returns the files that need an opening comment: those of the product, sorted by path."""
    named = ((path.relative_to(root).as_posix(), path) for path in list_files(root))
    return [path for name, path in sorted(named) if name.startswith(FOLDERS) and name.endswith(SUFFIXES)]


def _read_c(text: str) -> str:
    """Returns the text of the first comment. It belongs to the file if it is directly below the licence, or if an empty
    line separates it from what comes after it; other comments belong to a declaration."""
    start = re.match(r"/\* SPDX[^\n]*\n\s*", text)
    if start and (found := _COMMENT.match(text, start.end())):
        return found[1]
    before = _BEFORE.match(text)
    found = before and _COMMENT.match(text, before.end())
    alone = found and re.match(r"[ \t]*(?:\n[ \t]*\n|\s*\Z)", text[found.end() :])
    return found[1] if found and alone else ""


def read_opening(path: Path) -> str:
    """Returns the first sentence of a file's opening comment in one line; an empty text if it has none."""
    text = path.read_text()
    if path.suffix in (".py", ".pyi"):
        found = _DOCSTRING.match(text)
        opening = found[1] if found else ""
    else:
        opening = re.sub(r"^[ \t]*\* ?", "", _read_c(text), flags=re.MULTILINE)
    paragraph = " ".join(re.split(r"\n\s*\n", opening.strip())[0].split())
    sentence = _SENTENCE.match(paragraph)
    return sentence[1] if sentence else paragraph
