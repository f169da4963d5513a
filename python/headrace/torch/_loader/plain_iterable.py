# SPDX-License-Identifier: Apache-2.0
"""The state of loaders with an iterable dataset on torch's own iterators; see _plain.py. The dataset's own state is not
used: to continue an epoch, the batches that were delivered are made again and dropped."""

from __future__ import annotations

import contextlib
from typing import Any

from headrace._base.warn import warn_user
from headrace._ranks import where
from headrace.sampling import _iterable
from headrace.sampling._epoch import Last
from headrace.sampling._next_start import NextStart
from headrace.sampling._state import State, StateError
from headrace.torch._own import classes, iterators, loaders, table
from headrace.torch._samplers import generators
from headrace.torch._state import beginning


class PlainIterableEpoch:
    """Does what IterableEpoch does, without the dataset's own state. It does not keep torch's iterator alive."""

    def __init__(self, loader: Any, number: int, start: NextStart | None) -> None:
        self._order = _iterable.order_of(loader.dataset, loader.num_workers)
        self._number = number
        state = None if start is None else start.state
        self._seeds = {} if state is None else {name: one for name, one in state.seeds.items() if name == "base"}
        self.is_continued = state is not None and (state.steps > 0 or "base" in self._seeds)
        self._dropped = (0 if start is None else start.skipped) + (0 if state is None else state.steps)
        self._delivered = 0  # with those that are dropped
        self._is_over = False
        self._is_counted = True

    @property
    def base_seed(self) -> int | None:
        """The seed of the workers, if the epoch was begun before."""
        return self._seeds.get("base")

    def start(self, loader: Any, iterator: Any) -> None:
        """Starts the epoch with torch's iterator: drops the batches that are made again. Raises StateError if the
        dataset has fewer."""
        self._warn_of_drop(loader)
        self._is_counted = is_torchs(iterator)
        if self._is_counted:
            self._seeds["base"] = iterators.base_seed(iterator)
            iterators.call_after_next(iterator, self._note)
        for number in range(self._dropped):
            if next(iterator, self) is self:
                raise StateError(
                    f"headrace: this epoch is to go on after {self._dropped} batches, but the dataset gives only "
                    f"{number}; use the dataset that the state was taken with, or skip fewer batches"
                )
        position = table.kept(loader).position
        position.has_begun(self, self._number, position.next_start)

    def _warn_of_drop(self, loader: Any) -> None:
        if self._dropped:
            is_unordered = loader.num_workers > 1 and not loaders.is_in_order(loader)
            order = ", and with in_order=False they may not be the same ones" if is_unordered else ""
            warn_user(f"headrace: without headrace's engine, {self._dropped} batches are made again and dropped{order}")

    def _note(self, _: Any, error: Exception | None) -> None:
        """Called after each batch, or the exception in its place."""
        self._delivered += error is None
        self._is_over |= isinstance(error, StopIteration)

    @property
    def has_changed(self) -> bool:
        """Returns False: it cannot be divided in another way."""
        return False

    def steps_done(self) -> int:
        """Returns how many batches the consumer has."""
        return self._delivered

    def has_delivered(self) -> bool:
        """Returns True if the consumer has a batch of it from this process or that is not known, or if no more come."""
        return not self._is_counted or self._is_over or self._delivered > self._dropped

    def steps_left(self) -> int | None:
        """Returns None: the end is not known."""
        return None

    def last(self) -> Last | None:
        """Returns the batch that was delivered last, or None before the first one."""
        if self._delivered <= self._dropped:
            return None
        return Last(self._number, self._delivered - 1, None, [], None)

    def state(self, held_back: int) -> State:
        """Returns the state, or that of the next epoch if the iterator has come to its end, when nothing is held back
        any more."""
        rank = where.rank_or_zero()
        if self._is_over:
            return _iterable.state_at_start(self._number + 1, self._order, rank)
        steps = max(0, self._delivered - held_back)
        segment, seeds = _iterable.segment(steps), dict(self._seeds)
        return State(self._number, steps, -1, self._order, [segment], seeds=seeds, rank=rank, by=rank)


def is_torchs(iterator: Any) -> bool:
    """Returns True if an iterator is torch's. Otherwise a warning says that it cannot be counted."""
    found = isinstance(iterator, classes.BaseIterator)
    if not found:
        warn_user(
            f"headrace: another tool makes torch's DataLoader return a {type(iterator).__name__}, so the state of this "
            "loader does not count its batches; use headrace.torch without that tool to save states"
        )
    return found


def get_iterator(loader: Any) -> Any:
    """Returns torch's iterator of a loader with an iterable dataset, whose epoch is counted and may be continued."""
    epoch = _next_epoch(loader)
    with generators.kept_with(loader.generator) if epoch.is_continued else contextlib.nullcontext():
        iterator = iterators.iterator_with_seed(loader, epoch.base_seed)
    epoch.start(loader, iterator)
    if loader.persistent_workers:
        iterators.call_after_reset(iterator, _start_next_epoch)
    return iterator


def _start_next_epoch(iterator: Any, loader: Any) -> None:
    _next_epoch(loader).start(loader, iterator)


def _next_epoch(loader: Any) -> PlainIterableEpoch:
    position = table.kept(loader).position
    start = position.next_start
    if start is not None and start.state is not None:
        beginning.set_loaders_generator(loader, start.state.seeds)
    return PlainIterableEpoch(loader, position.number_of_next(start), start)
