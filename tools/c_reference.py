# SPDX-License-Identifier: Apache-2.0
"""Writes the C reference: a page of Markdown for each public header, made from its comments, and a table of them.

c_reference.py [INCLUDE_FOLDER [TARGET_FOLDER]]

A declaration is explained by the comment above it, behind it or in it. Declarations without a blank line in between
share a comment. One without a comment is named, and the exit status is 1.
"""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from common import ROOT

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
SECTION = re.compile(r"/\* ---- (.+) ---- \*/")
FRAME = re.compile(
    r'#ifdef __cplusplus\n(?:extern "C" \{|\})\n#endif\n|#endif\n*\Z'
    r"|^#include .*\n|^#(?:ifndef|define) HEADRACE_\w+_H\n|^/\* SPDX-.*\n",
    re.MULTILINE,
)


@dataclass
class Entry:
    """A comment, and the declarations that it is about, as they are in the header."""

    comment: str = ""
    code: list[str] = field(default_factory=list)


def split(block: str) -> list[str]:
    """Splits text without blank lines into comments that begin a line, and the declarations between them."""
    pieces, depth, is_comment = [""], 0, False
    for line in block.splitlines():
        begins_comment = not depth and not is_comment and line.startswith("/*")
        if begins_comment:
            pieces.append("")
        pieces[-1] += line + "\n"
        is_comment = (is_comment or "/*" in line) and "*/" not in line.rpartition("/*")[2]
        if depth == 0 and pieces[-1].startswith("/*") and line.endswith("*/"):
            pieces.append("")
        code = COMMENT.sub("", line)
        depth += code.count("{") - code.count("}")
    return [piece.rstrip("\n") for piece in pieces if piece.strip()]


def read_blocks(text: str) -> list[str]:
    """Returns the parts of a header between blank lines that are in no comment, struct or enum."""
    text = FRAME.sub("", text)
    blocks, depth = [""], 0
    for piece in re.split(r"(/\*.*?\*/|\n)", text, flags=re.DOTALL):
        is_comment = piece.startswith("/*")
        if piece == "\n" and depth == 0 and blocks[-1].endswith("\n"):
            blocks.append("")
        else:
            blocks[-1] += piece
        depth += 0 if is_comment else piece.count("{") - piece.count("}")
    return [block for block in blocks if block.strip()]


def read_entries(text: str) -> list[Entry]:
    entries: list[Entry] = []
    for block in read_blocks(text):
        is_new = True
        for piece in split(block):
            is_comment = piece.startswith("/*")
            if is_comment or is_new:
                entries.append(Entry())
            if is_comment:
                entries[-1].comment = piece
            else:
                entries[-1].code.append(piece)
            is_new = False
    return entries


def is_explained(entry: Entry) -> bool:
    return not entry.code or bool(entry.comment) or "/*" in "".join(entry.code)


def plain(comment: str) -> str:
    """The text of a comment as Markdown: what is indented by four characters is a picture or code."""
    lines = [re.sub(r"^ ?\*? ?", "", line).rstrip() for line in comment[2:-2].splitlines()]
    paragraphs = "\n".join(lines).strip("\n").split("\n\n")
    return "\n\n".join(part if part.startswith("    ") else escape(part) for part in paragraphs)


def escape(text: str) -> str:
    """Keeps Markdown from reading stars and brackets; what is in backticks is as it is."""
    parts = text.split("`")
    parts[::2] = [part.replace("*", "\\*").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def write_entry(entry: Entry) -> str:
    if section := SECTION.fullmatch(entry.comment):
        heading = section[1]
        return f"## {heading[0].upper()}{heading[1:]}"
    code = "\n".join(entry.code)
    return "\n\n".join(part for part in (plain(entry.comment), code and f"```c\n{code}\n```") if part)


def write_page(name: str, entries: list[Entry]) -> str:
    return "\n\n".join([f"# headrace/{name}", f"`#include <headrace/{name}>`", *map(write_entry, entries)]) + "\n"


def first_sentence(entries: list[Entry]) -> str:
    """Returns the purpose of a header: the first sentence of the first comment that is about no single declaration."""
    text = next(
        (plain(entry.comment) for entry in entries if entry.comment and not SECTION.fullmatch(entry.comment)), ""
    )
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]


def main(include: Path, target: Path) -> int:
    complaints, rows = [], []
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(include.glob("headrace/*.h")):
        entries = read_entries(path.read_text())
        complaints += [
            f"{path.name}: no comment: {entry.code[0].splitlines()[0]}" for entry in entries if not is_explained(entry)
        ]
        (target / f"{path.stem}.md").write_text(write_page(path.name, entries))
        rows.append(f"| [{path.name}]({path.stem}.md) | {first_sentence(entries)} |")
    table = ["# The C API", "", "| header | what it is for |", "|---|---|", *rows]
    (target / "README.md").write_text("\n".join(table) + "\n")
    print("\n".join(complaints))
    return 1 if complaints or not rows else 0


if __name__ == "__main__":
    paths = [Path(word) for word in sys.argv[1:]]
    sys.exit(main(*[*paths, *[ROOT / "include", ROOT / "build/c-reference"][len(paths) :]]))
