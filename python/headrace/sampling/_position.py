# SPDX-License-Identifier: Apache-2.0
"""How far a loader is in its epochs, and what its next iterator continues. Each loader has one EpochPosition: that of
headrace.torch (by headrace.torch._own.table), its fallback, and headrace.Loader.

A loader answers what only it knows as a PositionOwner below. So what skip(), set_epoch(), len() and steps_left mean is
written once, here.
"""

from __future__ import annotations

from typing import Any, Protocol

from headrace._ranks.loader_identity import LoaderIdentity
from headrace.sampling import _next_start, _windows
from headrace.sampling._epoch import Last, Progress
from headrace.sampling._epoch_indices import EpochIndices
from headrace.sampling._next_start import NextStart
from headrace.sampling._state import State
from headrace.sampling._windows import Windows


class PositionOwner(Protocol):
    """A loader, as its position sees it."""

    @property
    def is_iterable(self) -> bool:
        """True if the dataset gives no samples by index."""

    def indices(self) -> tuple[EpochIndices, int]:
        """Returns what gives the indices of the next epoch, and how many steps its sampler leaves out at the beginning.
        Not for an iterable dataset."""

    def state_to_begin(self, start: NextStart) -> State:
        """Returns the state before the next iterator, which continues `start`."""

    def set_parts(self, epoch: int) -> None:
        """Sets the samplers and the dataset to an epoch, if they have set_epoch."""

    def go_on_from_state(self) -> None:
        """Loads the state of now, as another process would."""


class EpochPosition:
    """The position of one loader. What an interrupted step of iter() has set is set again by the next one, so each
    attribute is set in one assignment.

    number: of the next epoch. progress: the newest epoch. windows: the epochs with steps_per_epoch, or None. initial:
    the state of an iterable dataset before another one was loaded into it, pickled. made_by: the lines that made the
    loader. agreement: how it is compared with those of other ranks. has_warned: of a set_epoch that was forgotten.
    overlap_looks: in how many epochs the parts of ranks were compared. past_draws: what its epochs were drawn from. The
    last two are headrace.torch's. continued_workers: the number of workers that the loaded state has, until
    an iterator has begun with it.
    """

    def __init__(self) -> None:
        self.number = 0
        self.progress: Progress | None = None
        self.windows: Windows | None = None
        self.initial: bytes | None = None
        self.made_by: LoaderIdentity | None = None
        self.agreement: Any = None
        self.has_warned = False
        self.overlap_looks = 0
        self.past_draws: Any = None
        self.continued_workers: int | None = None
        self._next_start: NextStart | None = None

    def copy(self, number: int) -> EpochPosition:
        """Returns the position of a copy of the loader, which continues the same state, and has begun no epoch. number:
        of its next epoch, if it continues no state."""
        other, start = type(self)(), self.next_start
        other.number, other.continued_workers = number, self.continued_workers
        if start is not None:
            other.next_start = NextStart(start.state, start.skipped)
            other.number = number if start.state is None else start.state.epoch
        if self.windows is not None:
            other.windows = self.windows.copied(start)
            other.number = other.windows.following
        return other

    # ---- what comes next ----

    @property
    def next_start(self) -> NextStart | None:
        """The state and the steps that the next iterator continues, or None."""
        if self._next_start is not None and self._next_start.is_used:
            self._next_start = None
        return self._next_start

    @next_start.setter
    def next_start(self, value: NextStart | None) -> None:
        self._next_start = value

    def number_of_next(self, continued: NextStart | None) -> int:
        """Returns the number of the next epoch. continued: what it continues."""
        state = None if continued is None else continued.state
        return self.number if state is None else state.epoch

    def has_begun(self, epoch: Progress, number: int, continued: NextStart | None) -> None:
        """Notes an epoch that has begun, as the last step of iter(): if it is interrupted, the next one does it
        again."""
        if continued is not None:
            continued.begun = epoch
        self.progress = epoch
        self.number = number + 1

    def will_continue(self, state: State, window: dict[str, Any]) -> None:
        """Notes that the next iterator continues a state, which fits the loader. window: that of the state as it was
        given."""
        self.next_start, self.progress = NextStart(state), None
        self.continued_workers = state.seeds.get("workers")
        if self.windows is not None:
            self.windows.load(window, state.epoch)
        self.number = state.epoch

    def will_begin(self, number: int, skipped: int) -> None:
        """Lets the next iterator begin an epoch, without its first steps."""
        self.number, self.progress, self.next_start = number, None, NextStart(None, skipped)

    def skip(self, loader: PositionOwner, steps: int) -> None:
        """Lets the next iterator begin some steps later. Raises ValueError if the epoch has fewer, or if with
        steps_per_epoch it would begin in a pass that is not known."""
        if self.windows is not None:
            self._skip_in(self.windows, loader, steps)
            return
        start = self.next_start or NextStart(None)
        if loader.is_iterable:
            self.next_start = NextStart(start.state, start.skipped + steps)
        else:
            self.next_start = _next_start.with_skip(start, steps, loader.indices()[0])

    def _skip_in(self, windows: Windows, loader: PositionOwner, steps: int) -> None:
        windows.check_skip(steps, loader.is_iterable)
        windows.finish_epoch()
        if windows.is_running():
            loader.go_on_from_state()
        start = self.next_start or NextStart(None)
        later, rest = _windows.after_skip(loader.indices()[0], start, steps)
        if later:
            self.will_begin(windows.following + later, rest)
        else:
            self.next_start = NextStart(start.state, start.skipped + steps)
        windows.skip(steps, windows.following + later)

    def set_epoch(self, loader: PositionOwner, epoch: int) -> None:
        """Sets the number of the next epoch, and that of the samplers and the dataset. A state of another epoch is
        discarded, with a warning. With steps_per_epoch it goes to the place of that epoch in the stream, if it is not
        the one that comes next. Raises ValueError if that place is not known."""
        if self.windows is not None:
            self._go_to(self.windows, loader, epoch)
            return
        loader.set_parts(epoch)
        if _next_start.discards(self.next_start, epoch):
            self.next_start = None
        self.number = epoch

    def _go_to(self, windows: Windows, loader: PositionOwner, epoch: int) -> None:
        if windows.is_next(epoch):
            return
        indices = None if loader.is_iterable else loader.indices()[0]
        number, steps = _windows.pass_of(indices, epoch * windows.steps, f"set_epoch({epoch})")
        _windows.warn_of_discarded(self.next_start, epoch)
        windows.go_to(epoch, number)
        self.will_begin(number, steps)

    # ---- how far it is ----

    def held_back(self, option: int) -> int:
        """Returns how many batches are held back. option: held_back of the loader."""
        return option if self.windows is None else self.windows.held_back(option)

    def last(self) -> Last | None:
        """Returns the batch that was delivered last, or None before the first one."""
        found = None if self.progress is None else self.progress.last()
        return found if self.windows is None else self.windows.last(found)

    def steps_left(self, loader: PositionOwner) -> int | None:
        """Returns how many batches the running epoch has left, or the next one if none runs; None if that is not
        known."""
        if self.windows is not None:
            return self.windows.steps_left()
        start = self.next_start
        if start is None and self.progress is not None:
            return self.progress.steps_left()
        if loader.is_iterable:
            return None
        indices, skipped = loader.indices()
        return _next_start.count_left(indices, None if start is None else loader.state_to_begin(start), skipped)

    def length(self, loader: PositionOwner, count: int) -> int:
        """Returns the number of batches of the running epoch, or of the one that is continued next: those that are
        done, before a resume too, and those left. count: of any other epoch."""
        start = self.next_start
        if start is None or start.state is None or loader.is_iterable:
            return _next_start.length_of(None if start is not None else self.progress, count)
        return _next_start.length_to_be(start.state, loader.indices()[0], count)
