# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector rests while a worker imports and its data set arrives: it would look again and again at
what stays anyway, which is a tenth of torch's import.

It rests by a threshold that nobody else sets, and that has the one of before in it: whoever ends the rest needs to
know nothing of how it began, and a script that sets the collector up for itself, or turns it off, is left alone.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

# Added: more new objects than imports make, and not so many that garbage among them fills the memory.
RESTING = 1_234_567
RESTFUL = 100_000  # a threshold from here on is a rest already


def rest() -> None:
    threshold = gc.get_threshold()[0]
    if threshold < RESTFUL:
        gc.set_threshold(threshold + RESTING)


def keep() -> None:
    """All that is there now stays until the process ends: no collection looks at it, nor writes to it."""
    gc.freeze()


def work() -> None:
    """Ends the rest, if there is one."""
    threshold = gc.get_threshold()[0] - RESTING
    if 0 <= threshold < RESTFUL:
        gc.set_threshold(threshold)


@contextlib.contextmanager
def resting_at_birth(process: Any, context: Any) -> Iterator[None]:
    """A process that is spawned in this block is born with the collector at rest."""
    name = process.name
    if context.get_start_method() == "spawn":
        process.name = _Name(name)
    try:
        yield
    finally:
        process.name = name


class _Name(str):
    """A process' name. It is the first of all that a spawned process unpickles, before it can import anything of ours,
    and makes the collector rest there."""

    def __reduce__(self) -> Any:
        return eval, (
            f"(lambda gc, was: was < {RESTFUL} and gc.set_threshold(was + {RESTING}))"
            f"(__import__('gc'), __import__('gc').get_threshold()[0]) or {str(self)!r}",
        )
