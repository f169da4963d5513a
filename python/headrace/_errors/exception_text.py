# SPDX-License-Identifier: Apache-2.0
"""What is said beside an exception. Needs no extension: the fallback says it too."""

from __future__ import annotations

import contextlib
import sys
from typing import Any


class ForkWarning(UserWarning):
    """The category of the warning that workers are forked from a process which is not safe to fork: other threads run,
    or CUDA is initialised. Its name for filters is headrace.ForkWarning."""


ForkWarning.__module__ = "headrace"


def add_note(error: BaseException, note: str) -> bool:
    """Adds a note to an exception, where that can be: some classes refuse to be changed. Returns whether it has it."""
    if sys.version_info >= (3, 11) and note:
        with contextlib.suppress(Exception):
            error.add_note(note)
            return True
    return False


def in_words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # of its own __str__
        return f"{type(error).__name__}, which cannot be printed"


def remark(error: BaseException, name: str) -> Any:
    """The attribute that headrace gave an exception, or None: its class may answer for any name."""
    with contextlib.suppress(Exception):  # a class that has something else under the name __dict__
        return object.__getattribute__(error, "__dict__").get(name)
    return None


def add_text(error: BaseException, text: str) -> None:
    """Says more with an exception: as a note, or in its message where there are no notes (Python 3.10)."""
    if sys.version_info >= (3, 11):
        add_note(error, text)
    else:
        with contextlib.suppress(Exception):
            error.args = (f"{error}\n{text}", *error.args[1:])
