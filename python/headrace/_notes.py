# SPDX-License-Identifier: Apache-2.0
"""What is said beside an exception. Needs no extension: the fallback says it too."""

from __future__ import annotations

import contextlib
import sys


def add_note(error: BaseException, note: str) -> None:
    """Adds a note to an exception, where that can be: some classes refuse to be changed."""
    if sys.version_info >= (3, 11) and note:
        with contextlib.suppress(Exception):
            error.add_note(note)


def add_text(error: BaseException, text: str) -> None:
    """Says more with an exception: as a note, or in its message where there are no notes (Python 3.10)."""
    if sys.version_info >= (3, 11):
        add_note(error, text)
    else:
        with contextlib.suppress(Exception):
            error.args = (f"{error}\n{text}", *error.args[1:])
