# SPDX-License-Identifier: Apache-2.0
"""Pauses Python's garbage collector while a worker imports modules and its dataset arrives, and while a trainer imports
headrace.torch.

Without the pause, the collector scans the new objects again and again, although all of them stay. This takes a tenth of
the time to import torch. The pause is a threshold that no other program sets. It contains the threshold from before, so
the code that ends the pause needs to know nothing else, and a script that sets up the collector itself, or turns it
off, is not affected. The fork server, the crew, the worker and headrace.torch call this module.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

# Added to the threshold. Imports make fewer new objects than this, and so many objects do not fill the memory if they
# are garbage.
PAUSE = 1_234_567
MIN_PAUSED = 100_000  # with a threshold from here on, the collector is paused already


def pause() -> bool:
    """Pauses the collector. Returns False if it was paused already, so that another ends the pause."""
    threshold = gc.get_threshold()[0]
    if threshold >= MIN_PAUSED:
        return False
    gc.set_threshold(threshold + PAUSE)
    return True


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pauses the collector while a block imports modules."""
    is_ours = pause()
    try:
        yield
    finally:
        if is_ours:
            resume()


def freeze() -> None:
    """Excludes all existing objects from collections until the process ends, so that no collection reads or writes
    them."""
    gc.freeze()


def resume() -> None:
    """Ends the pause, if there is one."""
    threshold = gc.get_threshold()[0] - PAUSE
    if 0 <= threshold < MIN_PAUSED:
        gc.set_threshold(threshold)


@contextlib.contextmanager
def paused_from_start(process: Any, context: Any) -> Iterator[None]:
    """Starts processes with the collector paused: a process that is spawned in this block pauses it first."""
    name = process.name
    if context.get_start_method() == "spawn":
        process.name = _Name(name)
    try:
        yield
    finally:
        process.name = name


class _Name(str):
    """The name of a process. It is the first object that a spawned process unpickles, before it can import headrace,
    and unpickling it pauses the collector."""

    def __reduce__(self) -> Any:
        return eval, (
            f"(lambda gc, was: was < {MIN_PAUSED} and gc.set_threshold(was + {PAUSE}))"
            f"(__import__('gc'), __import__('gc').get_threshold()[0]) or {str(self)!r}",
        )
