# SPDX-License-Identifier: Apache-2.0
"""Checks what the documents say about the tree.

Each file of the product has an opening comment, from which tools/list_files.py makes the list of files. In the
documents, a path in backticks is a file or a folder of the tree, a name next to the path of a file is in that file, a
link leads to a file and a heading that exist, and the layers of docs/architecture.md are those that
tools/check_layers.py proves. `make check` calls it as `docs`.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from check_layers import ROWS
from common import ROOT, list_files
from opening import list_opened, read_opening

PAPERS = ("README.md", "CONTRIBUTING.md", "docs/", "src/", "python/", "cli/")
LAYERS = "docs/architecture.md"
SUFFIXES = r"c|h|py|pyi|md|svg|sh|build|toml"
# A file is named by enough of the end of its path; a folder by its name and a slash.
_FILE = rf"[\w.-]*\w(?:/[\w.-]+)*\.(?:{SUFFIXES})"
_PATH = re.compile(rf"`((?:{_FILE})|\w[\w.-]*(?:/[\w.-]+)*/)`")
_NAME = rf"(?!{_FILE}`)[A-Za-z_]\w+(?:\.\w+)*"
_BESIDE = (
    re.compile(rf"`(?P<file>{_FILE})`: (?P<names>`{_NAME}`(?:, `{_NAME}`)*)(?= (?!\()|[,;.)]|$)", re.MULTILINE),
    re.compile(rf"(?P<names>`{_NAME}`) \(`(?P<file>{_FILE})`[,)]"),
    re.compile(rf"\((?P<names>`{_NAME}`), `(?P<file>{_FILE})`\)"),
)
_LINK = re.compile(r"\]\(([^)#\s:]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def list_papers(root: Path) -> list[Path]:
    """Returns the documents of the project, and those in the folders of its code."""
    names = ((path.relative_to(root).as_posix(), path) for path in list_files(root) if path.suffix == ".md")
    return [path for name, path in names if name.startswith(PAPERS)]


class Tree:
    """The files and folders of a tree, found by the ends of their paths."""

    def __init__(self, root: Path) -> None:
        self._files: dict[str, list[Path]] = {}
        self._folders = set[str]()
        for path in list_files(root):
            parts = path.relative_to(root).parts
            for start in range(len(parts)):
                self._files.setdefault("/".join(parts[start:]), []).append(path)
                self._folders |= {"/".join(parts[start:end]) + "/" for end in range(start + 1, len(parts))}

    def has(self, name: str) -> bool:
        return name in self._folders or name in self._files

    def read(self, name: str) -> str:
        return "\n".join(path.read_text() for path in self._files.get(name, ()))


def anchors(text: str) -> set[str]:
    """Returns the anchors of the headings, as GitHub makes them."""
    titles = (re.sub(r"[^\w\- ]", "", title.strip().lower()) for title in _HEADING.findall(text))
    return {title.replace(" ", "-") for title in titles}


def judge_paths(text: str, tree: Tree) -> Iterator[str]:
    for name in _PATH.findall(text):
        if not tree.has(name):
            yield f"`{name}` is no file or folder"


def judge_names(text: str, tree: Tree) -> Iterator[str]:
    for found in (found for pattern in _BESIDE for found in pattern.finditer(text)):
        body = tree.read(found["file"])
        for name in re.findall(r"`([^`]+)`", found["names"]):
            if body and not re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", body):
                yield f"`{name}` is not in `{found['file']}`"


def judge_links(paper: Path, text: str) -> Iterator[str]:
    for target, anchor in _LINK.findall(text):
        path = paper.parent / target if target else paper
        if not path.exists():
            yield f"the link to {target} leads nowhere"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
            yield f"the link to {target}#{anchor} leads to no heading"


def judge_layers(text: str) -> Iterator[str]:
    """Compares the rows of the first picture, which have a name for one row or for two, with the table of the check."""
    lines = [set(line.split()) for line in text.split("```")[1].splitlines()] if "```" in text else []
    for row in ROWS:
        if not any(row <= line for line in lines):
            yield f"the picture of the layers has no row with {', '.join(sorted(row))}"


def judge_paper(root: Path, paper: Path, tree: Tree) -> Iterator[str]:
    text = paper.read_text()
    yield from judge_paths(text, tree)
    yield from judge_names(text, tree)
    yield from judge_links(paper, text)
    if paper == root / LAYERS:
        yield from judge_layers(text)


def check(root: Path) -> list[str]:
    tree = Tree(root)
    found = [(path, "has no opening comment") for path in list_opened(root) if not read_opening(path)]
    found += [(paper, complaint) for paper in list_papers(root) for complaint in judge_paper(root, paper, tree)]
    return [f"{path.relative_to(root).as_posix()}: {complaint}" for path, complaint in found]


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    print("\n".join(found))
    sys.exit(bool(found))
