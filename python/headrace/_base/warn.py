# SPDX-License-Identifier: Apache-2.0
"""Gives the user a warning that names the line which iterates over the loader, or a line on stderr.

All packages call it. Most run below next(), so a fixed stacklevel would name a
line of headrace or of torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_TORCHS = os.path.join("torch", "utils", "data", "dataloader.py")
log = logging.getLogger("headrace")


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Raises a warning, and logs its text with the logger `headrace`."""
    log.info(text)
    warnings.warn(text, category, stacklevel=_level_of_user())


def say(text: str) -> None:
    """Prints a line on stderr, and logs it."""
    log.info(text)
    with contextlib.suppress(Exception):  # the object that replaces stderr may be closed, or not a file
        print(f"headrace: {text}", file=sys.stderr, flush=True)


def _level_of_user() -> int:
    """Returns the stacklevel that makes a warning of warn_user name the line that iterates over a loader."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and _is_inside(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def _is_inside(path: str) -> bool:
    return path.startswith(_PACKAGE) or path.endswith(_TORCHS)
