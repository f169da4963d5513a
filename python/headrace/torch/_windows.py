# SPDX-License-Identifier: Apache-2.0
"""Epochs of so many steps (steps_per_epoch) of headrace.torch.DataLoader and of the fallback; see
headrace.sampling._windows. _base.py, _loader.py and _fallback.py use it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

from headrace import _options
from headrace.sampling import _windows
from headrace.sampling._pending import Pending
from headrace.sampling._windows import Begun, Windows
from headrace.torch import _internals, _per_loader, _resume


class _Passes:
    """The passes of a loader. make: begins one, as torch's __iter__ does."""

    def __init__(self, loader: Any, make: Callable[[], Iterator[Any]]) -> None:
        self._loader, self._make = loader, make

    def set_epoch(self, number: int) -> None:
        _resume.pass_on(self._loader, number)

    def begin(self, number: int) -> Begun:
        loader = self._loader
        _per_loader.epochs.set(loader, number)
        self.set_epoch(number)
        iterator, progress = self._make(), _per_loader.progress.get(loader)
        if progress is None or not isinstance(iterator, _internals.BaseIterator):
            raise RuntimeError(
                f"headrace: another tool makes torch's DataLoader return a {type(iterator).__name__}, whose batches "
                "are not counted; use headrace.torch without that tool, or leave out steps_per_epoch"
            )
        is_closed = functools.partial(_internals.is_shut_down, iterator)
        return Begun(iterator, progress, _per_loader.epochs.get(loader) or 0, is_closed)

    def go_on_from_state(self) -> None:
        _go_on_from_state(self._loader)


def _go_on_from_state(loader: Any) -> None:
    """Lets the newest pass go on from its state, as another process would."""
    _resume.load(loader, _resume.state_dict(loader))


def begin(loader: Any, windows: Windows, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Returns an iterator over the next epoch of a loader. make: see _Passes."""
    return windows.begin(_Passes(loader, make))


def set_epoch(loader: Any, epoch: int) -> None:
    """Sets the number of a loader's next epoch. With steps_per_epoch it goes to the place of that epoch in the stream,
    if it is not the one that comes next. Raises ValueError if that place is not known."""
    windows = _per_loader.windows.get(loader)
    if windows is None:
        _resume.set_epoch(loader, epoch)
    elif not windows.is_next(operator.index(epoch)):
        _go_to(loader, windows, _options.check_count("epoch", epoch))


def _go_to(loader: Any, windows: Windows, epoch: int) -> None:
    source = None if _internals.is_iterable(loader) else _resume.source_of(loader)[0]
    number, steps = _windows.pass_of(source, epoch * windows.steps, f"set_epoch({epoch})")
    _windows.warn_of_discarded(_per_loader.pending_of(loader), epoch)
    windows.go_to(epoch, number)
    _place(loader, number, steps)


def skip(loader: Any, steps: int) -> None:
    """Lets the next iterator begin some steps later. Raises ValueError if the epoch has fewer, or if it goes on in a
    pass that is not known."""
    windows = _per_loader.windows.get(loader)
    if windows is None:
        _resume.skip(loader, steps)
        return
    windows.check_skip(steps, _internals.is_iterable(loader))
    windows.finish_epoch()
    if windows.is_running():
        _go_on_from_state(loader)
    source, pending = _resume.source_of(loader)[0], _per_loader.pending_of(loader) or Pending(None)
    later, rest = _windows.after_skip(source, pending, steps)
    if later:
        _place(loader, windows.following + later, rest)
    else:
        _per_loader.pending.set(loader, Pending(pending.state, pending.skipped + steps))
    windows.skip(steps, windows.following + later)


def check_before_prepare(loader: Any) -> None:
    """Raises RuntimeError if accelerate is about to replace a loader by one whose epochs are the passes."""
    windows = _per_loader.windows.get(loader)
    if windows is not None:
        raise RuntimeError(
            f"headrace: accelerate's prepare() would make this loader again, without steps_per_epoch={windows.steps}; "
            "do not give it to prepare(): deal its sampler with headrace.torch.per_rank, and move its batches to the "
            "device"
        )


def _place(loader: Any, number: int, steps: int) -> None:
    """Lets the next pass be the one with this number, without its first steps."""
    _per_loader.epochs.set(loader, number)
    _per_loader.progress.drop(loader)
    _per_loader.pending.set(loader, Pending(None, steps))
