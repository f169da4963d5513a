# SPDX-License-Identifier: Apache-2.0
"""Epochs of so many steps (steps_per_epoch) of headrace.torch.DataLoader and of the fallback; see
headrace.sampling._windows. _base.py, _loader.py and _fallback.py use it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from headrace._base.help_key import help_on
from headrace.sampling._windows import Begun, Windows
from headrace.torch._own import classes, iterators
from headrace.torch._own.table import position_of
from headrace.torch._state import resume


class _Passes(resume.AsPositionOwner):
    """The passes of a loader. make: begins one, as torch's __iter__ does."""

    def __init__(self, loader: Any, make: Callable[[], Iterator[Any]]) -> None:
        super().__init__(loader)
        self._make = make

    def begin(self, number: int) -> Begun:
        position = position_of(self._loader)
        position.number = number
        self.set_parts(number)
        iterator, progress = self._make(), position.progress
        if progress is None or not isinstance(iterator, classes.BaseIterator):
            raise RuntimeError(
                f"headrace: another tool makes torch's DataLoader return a {type(iterator).__name__}, whose batches "
                "are not counted; use headrace.torch without that tool, or leave out steps_per_epoch"
            )
        has_lost_workers = functools.partial(iterators.has_lost_workers, iterator)
        return Begun(iterator, progress, position.number, has_lost_workers)


def begin(loader: Any, windows: Windows, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Returns an iterator over the next epoch of a loader. make: see _Passes."""
    return windows.begin(_Passes(loader, make))


def check_before_prepare(loader: Any) -> None:
    """Raises RuntimeError if accelerate is about to replace a loader by one whose epochs are the passes."""
    windows = position_of(loader).windows
    if windows is not None:
        raise RuntimeError(
            f"headrace: accelerate's prepare() would make this loader again, without steps_per_epoch={windows.steps}; "
            "do not give it to prepare(): deal its sampler with headrace.torch.per_rank, and move its batches to the "
            "device" + help_on("accelerate")
        )
