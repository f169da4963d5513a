# SPDX-License-Identifier: Apache-2.0
"""Adds text to exceptions: notes, or a longer message on Python 3.10.

It does not import the extension, because the fallback to torch's DataLoader uses it too.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any


class ForkWarning(UserWarning):
    """The category of the warning that workers are forked from a process which is not safe to fork, for example because
    other threads run or CUDA is initialised. Its name for filters is headrace.ForkWarning."""


ForkWarning.__module__ = "headrace"


def add_note(error: BaseException, note: str) -> bool:
    """Adds a note to an exception, and returns True if that worked: some exception classes refuse to be changed."""
    if sys.version_info >= (3, 11) and note:
        with contextlib.suppress(Exception):
            error.add_note(note)
            return True
    return False


def in_words(error: BaseException) -> str:
    """Returns the class and the message of an exception, and never raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ raised it
        return f"{type(error).__name__}, which cannot be printed"


def remark(error: BaseException, name: str) -> Any:
    """Returns an attribute that headrace gave an exception, or None. It does not use getattr, because the class of the
    exception may answer for any name."""
    with contextlib.suppress(Exception):  # the class has something else under the name __dict__
        return object.__getattribute__(error, "__dict__").get(name)
    return None


def add_text(error: BaseException, text: str) -> None:
    """Adds text to an exception: as a note, or to its message if there are no notes (Python 3.10)."""
    if sys.version_info >= (3, 11):
        add_note(error, text)
    else:
        with contextlib.suppress(Exception):
            error.args = (f"{error}\n{text}", *error.args[1:])
