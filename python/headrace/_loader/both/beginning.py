# SPDX-License-Identifier: Apache-2.0
"""Begins the epochs of loaders with a map-style dataset, or continues one.

1. `Beginning` finds the EpochIndices of the loader, and takes the state that is kept, if there is one.
2. `Beginning.begin` begins the epoch or continues it.
3. `Beginning.has_begun` is the last step of iter(). If iter() is interrupted before, the next one does the same again.

torch/_state/beginning.py adds what torch has: base seeds and generators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace._base.warn import warn_user
from headrace._loader.both.any_loader import AnyLoader
from headrace._ranks.callers import called_by_framework
from headrace.sampling import _next_start
from headrace.sampling._epoch import Epoch, warn_of_same_order
from headrace.sampling._epoch_indices import EpochIndices, check_division
from headrace.sampling._next_start import NextStart
from headrace.sampling._position import EpochPosition
from headrace.sampling._state import State, StateError

if TYPE_CHECKING:
    from headrace.sampling._watch import Watch  # it needs the extension

_Note = Callable[[EpochPosition, Epoch], None]


class Beginning:
    """The beginning of an epoch of a loader. Raises StateError if the state that was loaded does not fit any more."""

    def __init__(self, loader: AnyLoader) -> None:
        self._any = loader
        self._position = loader.kept.position
        start = self._position.next_start
        self._position.number = self._position.number_of_next(start)  # an interrupted iter() has counted it already
        self.indices, skipped = loader.indices()
        if start is None and skipped:
            start = NextStart(None, skipped)
        self._next_start = start
        self._state = None if start is None else self._state_to_continue(start)

    def _state_to_continue(self, start: NextStart) -> State | None:
        """Returns the state that the epoch continues."""
        state = None if start.state is None else self._fit(start.state)
        if state is not None and state.steps:
            self.indices = self.indices.going_on(state)
        if not start.skipped:
            return state
        return _next_start.skipped(state or self._fresh(), start.skipped, self.indices)

    def _fresh(self) -> State:
        """Returns the state of an epoch that continues nothing."""
        return self._any.fresh_state(self.indices)

    def _fit(self, state: State) -> State | None:
        """Chooses the EpochIndices for a state. Returns None if it is not continued, because the samplers were set to
        another epoch."""
        self.indices.check_order(state)
        if state.steps and state.order["n"] == self.indices.order["n"]:
            check_division(state, self.indices)
        epoch = self.indices.order.get("epoch")
        if epoch is not None and epoch != state.order.get("epoch"):
            return self._set_to_other_epoch(state, epoch)
        if state.is_end and epoch is not None and not self.indices.counts_epochs:
            warn_user(
                f"headrace: the state that was loaded was taken after the last batch of epoch {epoch}, and the sampler "
                f"is in epoch {epoch} again, so that epoch is read a second time; begin the loop over epochs at "
                f"{epoch + 1}"
            )
        if state.steps and state.order["n"] != self.indices.order["n"]:
            self.indices = self.indices.with_size(state.order["n"])
        return state

    def _set_to_other_epoch(self, state: State, epoch: int) -> State | None:
        """Decides what becomes of a state if set_epoch was called on the sampler after it was loaded."""
        then = state.order.get("epoch", 0)
        if state.is_end and epoch > then:
            return state  # the sampler goes on, and may have generators and a state of its own
        if epoch < then and called_by_framework():
            warn_user(
                f"headrace: a framework set the sampler to epoch {epoch} after a state of epoch {then} was loaded; "
                f"epoch {then} goes on"
            )
            self.indices = self._indices_of(state)
            return state
        if state.steps:
            warn_user(
                f"headrace: set_epoch({epoch}) discards the state that was loaded, of epoch {then} after {state.steps} "
                f"steps; to go on with it, begin the loop over epochs at {then}"
            )
        return None

    def begin(self, new_tasks: Any) -> Epoch:
        """Returns the epoch. new_tasks: see Epoch."""
        before = self._position.progress
        number = self._position.number_of_next(self._next_start)
        if isinstance(before, Epoch):
            self.indices.follows(before.indices)
        epoch = self._begin(number, self._state, new_tasks)
        if isinstance(before, Epoch) and before.steps_left() == 0:
            epoch.order_before = dict(before.indices.order)
        return epoch

    def _begin(self, number: int, state: State | None, new_tasks: Any) -> Epoch:
        try:
            return Epoch(self.indices, number, state, new_tasks)
        except StateError:
            if state is None or self._any.option("on_changed") != "next_epoch":
                raise
        following = _next_start.next_epoch(state)
        self.indices = self._indices_of(following)
        return Epoch(self.indices, following.epoch, None, new_tasks)

    def _indices_of(self, state: State) -> EpochIndices:
        """Returns the EpochIndices of the epoch that a state begins."""
        self._any.go_to(state)
        return self._any.indices()[0]

    def has_begun(self, epoch: Epoch) -> None:
        """Notes that the epoch has begun. Until then, the next iter() does the same again."""
        self._position.has_begun(epoch, epoch.number, self._next_start)


def note_drawn(position: EpochPosition, epoch: Epoch, watch: Watch | None, note: _Note | None = None) -> None:
    """Called after the first indices of an epoch were drawn: compares it with those of other ranks, and warns, once, if
    nothing has called set_epoch. It is not given the loader, which its own position would keep then: with
    steps_per_epoch a position has the iterator, and the iterator calls this. note: is called, too. Raises
    RanksDisagree."""
    epoch.indices.was_drawn()
    if note is not None:
        note(position, epoch)
    if not position.has_warned:
        position.has_warned = warn_of_same_order(epoch)
    if watch is not None:
        watch.begin()
