# SPDX-License-Identifier: Apache-2.0
"""Settings of Sphinx for `make docs` (tools/build_docs.py)."""

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import docstrings

project = "headrace"
version = release = metadata.version("headrace")
author = "the headrace developers"
project_copyright = "the headrace developers, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
man_pages = [
    (f"reference/commands/{page.stem}", page.stem, page.read_text().split("\n\n")[1].rstrip("."), author, 1)
    for page in sorted((Path(__file__).parents[2] / "build/docs/source/reference/commands").glob("headrace*.md"))
]
html_theme = "furo"
html_title = "headrace"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", convert_docstring)


def convert_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replaces the lines of a docstring in place, as Sphinx wants it."""
    lines[:] = docstrings.convert(lines)
