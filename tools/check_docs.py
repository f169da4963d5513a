# SPDX-License-Identifier: Apache-2.0
"""Checks what the documents say about the tree.

Each file of the product has an opening comment, from which tools/list_files.py makes the list of files. In the
documents, a path in backticks is a file or a folder of the tree (in code: a path from the root, with or without
backticks), a name next to the path of a file is in that file (in comments of C: in the rows of a picture), a link leads
to a file and a heading that exist, the Makefile has the targets that are named, and the layers of docs/architecture.md
are those that tools/check_layers.py proves. `make check` calls it as `docs`.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from check_layers import ROWS
from common import ROOT, list_files
from opening import list_opened, read_opening

USERS_PAPERS = ("README.md", "CHANGELOG.md", "SECURITY.md", "docs/", "examples/", "bench/")
OUR_PAPERS = ("CONTRIBUTING.md", "docs/architecture.md", "src/", "python/", "cli/")
LAYERS = "docs/architecture.md"
MOST_LINES = 350  # of that page: what it says about one subsystem goes to the README.md of its folder
CODE = (".c", ".h", ".py", ".pyi", ".sh", ".build", ".toml")
COMMANDS = ("Makefile", ".ci/run")
NOT_READ = ("tools/", "tests/tools/")  # they name files of no tree
SUFFIXES = r"c|h|py|pyi|md|svg|sh|build|toml"
# A file is named by enough of the end of its path; a folder by its name and a slash.
_FILE = rf"[\w.-]*\w(?:/[\w.-]+)*\.(?:{SUFFIXES})"
_PATH = re.compile(rf"`((?:{_FILE})|\w[\w.-]*(?:/[\w.-]+)*/)`")
_NAME = rf"(?!{_FILE}`)[A-Za-z_]\w+(?:\.\w+)*"
_IN_COMMENT = re.compile(rf"^ \* +(?P<names>{_NAME}) {{3,}}(?P<file>{_FILE})(?=\s)", re.MULTILINE)  # a row of a picture
_NEXT_TO = (
    re.compile(rf"`(?P<file>{_FILE})`: (?P<names>`{_NAME}`(?:, `{_NAME}`)*)(?= (?!\()|[,;.)]|$)", re.MULTILINE),
    re.compile(rf"(?P<names>`{_NAME}`) \(`(?P<file>{_FILE})`[,)]"),
    re.compile(rf"\((?P<names>`{_NAME}`), `(?P<file>{_FILE})`\)"),
    re.compile(rf"(?P<names>\b{_NAME}) {{3,}}(?P<file>{_FILE})"),  # in a picture
)
_ROOTED = re.compile(
    r"(?<![\w./<-])(?:cli|docs|examples|fuzz|include|python|src|tests|tools)(?:/[\w.-]*\w)+(?![\w<*-]|/[\w<]|\.\w)"
)
_OWN_NAME = re.compile(rf"`({_NAME})(?:\(\))?`")
_MAKE = re.compile(r"(?:`|^)make ([a-z][a-z-]*)(?![a-z./-])", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#\s:]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def list_papers(root: Path) -> list[Path]:
    """Returns the documents of the project, and those in the folders of its code."""
    names = ((path.relative_to(root).as_posix(), path) for path in list_files(root) if path.suffix == ".md")
    return [path for name, path in names if name.startswith((*USERS_PAPERS, *OUR_PAPERS))]


class Tree:
    """The files and folders of a tree, found by the ends of their paths."""

    def __init__(self, root: Path) -> None:
        self._files: dict[str, list[Path]] = {}
        self._folders = set[str]()
        self.code: dict[Path, str] = {}
        self.words = set[str]()  # of the code
        for path in list_files(root):
            name = path.relative_to(root).as_posix()
            if path.suffix in CODE or name in COMMANDS:
                self.code[path] = path.read_text()
                self.words |= set(re.findall(r"\w+", self.code[path]))
            parts = name.split("/")
            for start in range(len(parts)):
                self._files.setdefault("/".join(parts[start:]), []).append(path)
                self._folders |= {"/".join(parts[start:end]) + "/" for end in range(start + 1, len(parts))}

    def has(self, name: str) -> bool:
        """Returns True if the name is the end of the path of a file or a folder, or if paths begin with it."""
        is_end = name in self._files or f"{name.rstrip('/')}/" in self._folders
        return is_end or ("/" in name and any(path.startswith(name) for path in self._files))

    def read(self, name: str) -> str:
        """Returns the text of the files whose paths end so."""
        return "\n".join(path.read_text() for path in self._files.get(name, ()))


def anchors(text: str) -> set[str]:
    """Returns the anchors of the headings, as GitHub makes them."""
    titles = (re.sub(r"[^\w\- ]", "", title.strip().lower()) for title in _HEADING.findall(text))
    return {title.replace(" ", "-") for title in titles}


def judge_paths(names: list[str], tree: Tree) -> Iterator[str]:
    for name in names:
        if not tree.has(name):
            yield f"`{name}` is no file or folder"


def judge_names(text: str, tree: Tree, patterns: Iterable[re.Pattern[str]] = _NEXT_TO) -> Iterator[str]:
    for found in (found for pattern in patterns for found in pattern.finditer(text)):
        body = tree.read(found["file"])
        for name in re.findall(_NAME, found["names"]):
            if body and not re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", body):
                yield f"`{name}` is not in `{found['file']}`"


def judge_own_names(text: str, tree: Tree) -> Iterator[str]:
    for name in _OWN_NAME.findall(text):
        if not all(part in tree.words for part in name.split(".")):
            yield f"`{name}` is nowhere in the code"


def judge_targets(root: Path, text: str) -> Iterator[str]:
    makefile = (root / "Makefile").read_text() if (root / "Makefile").exists() else ""
    for target in _MAKE.findall(text):
        if not re.search(rf"^{target}:", makefile, re.MULTILINE):
            yield f"the Makefile has no target {target}"


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
    text, name = paper.read_text(), paper.relative_to(root).as_posix()
    yield from judge_paths([*_PATH.findall(text), *_ROOTED.findall(text)], tree)
    yield from judge_names(text, tree)
    yield from judge_targets(root, text)
    yield from judge_links(paper, text)
    if name.startswith(OUR_PAPERS):
        yield from judge_own_names(text, tree)
    if name == LAYERS:
        yield from judge_layers(text)
        if (count := len(text.splitlines())) > MOST_LINES:
            yield f"has {count} lines, more than {MOST_LINES}"


def check(root: Path) -> list[str]:
    tree = Tree(root)
    found = [(path, "has no opening comment") for path in list_opened(root) if not read_opening(path)]
    found += [(paper, complaint) for paper in list_papers(root) for complaint in judge_paper(root, paper, tree)]
    for path, text in tree.code.items():
        if not path.relative_to(root).as_posix().startswith(NOT_READ):
            names = [*_ROOTED.findall(text), *(one["file"] for one in _IN_COMMENT.finditer(text))]
            found += [(path, complaint) for complaint in judge_paths(names, tree)]
            found += [(path, complaint) for complaint in judge_names(text, tree, [_IN_COMMENT])]
    return [f"{path.relative_to(root).as_posix()}: {complaint}" for path, complaint in found]


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    print("\n".join(found))
    sys.exit(bool(found))
