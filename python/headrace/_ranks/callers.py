# SPDX-License-Identifier: Apache-2.0
"""Looks at the code that calls headrace: the lines of the user's program, and whether a framework is between."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from headrace._ranks.loader_identity import LoaderIdentity

_FRAMEWORKS = ("accelerate", "transformers", "lightning", "pytorch_lightning", "lightning_fabric")
_INSIDE = ("headrace", "torch", *_FRAMEWORKS)  # their lines do not name a loader
_LINES = 3  # so many of the lines that make a loader name it


def _frames() -> Iterator[tuple[str, Any]]:
    """Yields the top package and the frame of each caller, the innermost one first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        yield frame.f_globals.get("__name__", "").partition(".")[0], frame
        frame = frame.f_back


def called_by_framework() -> bool:
    """Returns True if a framework iterates the loader. It may have called set_epoch with its own count of epochs, which
    starts at 0 in each process."""
    return any(package in _FRAMEWORKS for package, _ in _frames())


def epoch_was_ended() -> bool:
    """Returns True if the framework that asks for a state has ended the epoch, which may have more batches: Lightning,
    which counts them, with limit_train_batches or at the last one."""
    for package, frame in _frames():
        if package in ("lightning", "pytorch_lightning") and frame.f_code.co_name == "on_save_checkpoint":
            loop = getattr(frame.f_locals.get("self"), "epoch_loop", None)
            is_at_end = getattr(loop, "_num_ready_batches_reached", None)
            if callable(is_at_end):
                return bool(is_at_end())
    return False


def line_of_caller() -> str:
    """Returns the innermost line outside of headrace, torch and frameworks. It counts nothing."""
    for package, frame in _frames():
        if package not in _INSIDE:
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    return "?"


def place_of_caller(kind: str = "") -> LoaderIdentity:
    """Returns the place of a loader that the calling lines outside of headrace, torch and frameworks make. kind: see
    LoaderIdentity."""
    lines: list[str] = []
    for package, frame in _frames():
        if package not in _INSIDE:
            lines.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        if len(lines) == _LINES:
            break
    return LoaderIdentity(lines, kind)
