# SPDX-License-Identifier: Apache-2.0
"""Documents that messages, helps and comments of the product name exist, and so do the headings in them."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["python/headrace", "src", "include", "cli", ".github"]
MOVED = ["docs/moving.md"]  # a document that is in pieces now; what links to it finds the pieces
_PATH = re.compile(r"(?<![/\w])(docs/[\w/-]+\.(?:md|svg))(?:#([\w-]+))?")


def list_paths() -> set[tuple[str, str]]:
    """Returns the documents that files of the product name, each with a heading or ""."""
    files = (
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix != ".pyc" and path.is_file()
    )
    return {match for file in files for match in _PATH.findall(file.read_text())}


def anchors_of(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name, anchor", [*sorted(list_paths()), *((name, "") for name in MOVED)])
def test_named_document_exists(name: str, anchor: str) -> None:
    assert (ROOT / name).is_file(), name
    assert not anchor or anchor in anchors_of((ROOT / name).read_text()), f"{name} has no heading {anchor}"
