# SPDX-License-Identifier: Apache-2.0
"""The state of loaders on torch's own iterators, where headrace's engine cannot run. It needs no extension.

torch's iterator gets an index sampler that draws from the same sources as the engine, and counts what the consumer has.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from headrace._errors.warn import warn_user
from headrace._ranks import where
from headrace.sampling import _iterable
from headrace.sampling._epoch import Epoch, Last
from headrace.sampling._source import Drawn
from headrace.sampling._state import Segment, State
from headrace.torch import _internals, _per_loader, _resume


class PlainTasks:
    """Does what _core.Tasks does for an epoch. count_delivered: returns how many tasks the consumer has."""

    lost_count = 0

    def __init__(self, drawn: Drawn, count_delivered: Callable[[PlainTasks], int]) -> None:
        self._tasks = drawn.tasks()
        self._count_delivered = count_delivered
        self._drawn: dict[int, Any] = {}  # the tasks that are not delivered, and the last one that is
        self._ahead: list[Any] = []
        self.is_over = False
        self.handed_count = 0

    def __iter__(self) -> Iterator[Any]:
        while (task := self._next()) is not None:
            self._drawn[self.handed_count] = task
            self.handed_count += 1
            self._forget()
            yield task

    def _next(self) -> Any:
        found = self._ahead.pop() if self._ahead else next(self._tasks, None)
        self.is_over = found is None
        return found

    def look(self, count: int) -> list[Any]:
        """Returns the next task in a list, which is empty at the end; `count` is 1."""
        if not self._ahead and (found := self._next()) is not None:
            self._ahead.append(found)
        return self._ahead

    def _forget(self) -> None:
        for number in [one for one in self._drawn if one < self.answered_count - 1]:
            del self._drawn[number]

    def skip(self, count: int) -> tuple[int, Any]:
        """Draws and drops tasks. Returns how many there were, and the last one."""
        skipped, last = 0, None
        while skipped < count and (found := self._next()) is not None:
            skipped, last = skipped + 1, found
        return skipped, last

    @property
    def answered_count(self) -> int:
        """How many tasks the consumer has."""
        return self._count_delivered(self)

    @property
    def sent(self) -> dict[int, Any]:
        """The tasks that were drawn and not delivered."""
        return {number: task for number, task in self._drawn.items() if number >= self.answered_count}

    @property
    def last_number(self) -> int:
        """The number of the task that was delivered last."""
        return self.answered_count - 1

    @property
    def last(self) -> Any:
        """The task that was delivered last, or None."""
        return self._drawn.get(self.last_number)


class Indices:
    """An index sampler for torch's iterators: begins an epoch of a loader each time that it is iterated."""

    def __init__(self, loader: Any, beginning: _resume.Beginning) -> None:
        self._loader = weakref.ref(loader)
        self._beginning: _resume.Beginning | None = beginning
        self._epoch: Epoch | None = None
        self._length = loader._index_sampler
        self._iterator: Any = lambda: None  # a weak reference to torch's

    def __len__(self) -> int:
        return len(self._length)

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader()
        beginning, self._beginning = self._beginning, None
        if beginning is None:
            beginning = _resume.Beginning(loader)
        beginning.put_generators_back()
        beginning.sampler_will_be_iterated()
        epoch = self._epoch = beginning.begin(self._tasks_of)
        beginning.has_begun(epoch)
        self._note_seed(epoch)
        for task in epoch.tasks:
            epoch.source.was_drawn()
            yield task

    def iterator_was_made(self, iterator: Any) -> None:
        """Takes torch's iterator over these indices, which may have drawn the first ones already."""
        self._iterator = weakref.ref(iterator)
        if self._epoch is not None:
            self._note_seed(self._epoch)

    def _note_seed(self, epoch: Epoch) -> None:
        iterator = self._iterator()
        if iterator is not None:
            epoch.source.seeds["base"] = iterator._base_seed

    def _tasks_of(self, drawn: Drawn) -> PlainTasks:
        return PlainTasks(drawn, self._count_delivered)

    def _count_delivered(self, tasks: PlainTasks) -> int:
        """Returns how many tasks the consumer has: with workers, those that torch's iterator has returned; without, all
        that were drawn."""
        iterator = self._iterator()
        if self._is_in_process():
            return tasks.handed_count
        return 0 if iterator is None else int(iterator._rcvd_idx)

    def _is_in_process(self) -> bool:
        loader = self._loader()
        return loader is None or loader.num_workers == 0


class PlainIterableEpoch:
    """Does what IterableEpoch does, without the dataset's own state: the batches that were delivered are made again."""

    def __init__(self, loader: Any, number: int) -> None:
        self._order = _iterable.order_of(loader.dataset, loader.num_workers)
        self._number = number
        self._iterator: Any = None
        self._dropped = 0

    def begin(self, iterator: Any, steps: int) -> None:
        """Drops so many batches."""
        self._iterator, self._dropped = weakref.ref(iterator), steps
        for _ in range(steps):
            next(iterator)

    @property
    def has_changed(self) -> bool:
        """Returns False: it cannot be divided in another way."""
        return False

    def steps_done(self) -> int:
        """Returns how many batches the consumer has."""
        iterator = self._iterator()
        return 0 if iterator is None else int(iterator._num_yielded)

    def has_delivered(self) -> bool:
        """Returns True if the consumer has a batch of it from this process, or if no more come."""
        return self._iterator() is None or self.steps_done() > self._dropped

    def steps_left(self) -> int | None:
        """Returns None: the end is not known."""
        return None

    def last(self) -> Last | None:
        """Returns the batch that was delivered last."""
        return Last(self._number, self.steps_done() - 1, None, [], None) if self.steps_done() else None

    def state(self, held_back: int) -> State:
        """Returns the state, or that of the next epoch if the iterator has ended."""
        rank = where.rank_or_zero()
        if self._iterator() is None:
            return State(self._number + 1, 0, -1, self._order, [Segment(1, 1, False, "pad")], rank=rank)
        steps = max(0, self.steps_done() - held_back)
        segment = Segment(1, 1, False, "pad", steps)
        return State(self._number, steps, -1, self._order, [segment], rank=rank, by=rank)


def get_iterator(loader: Any) -> Any:
    """Returns torch's iterator of a loader, whose epoch is counted and may be continued."""
    if isinstance(loader.dataset, _internals.DataPipes):
        return _internals.torchs_iterator(loader)
    return _over_samples(loader) if _resume.is_iterable(loader) else _over_indices(loader)


def _over_indices(loader: Any) -> Any:
    beginning = _resume.Beginning(loader)
    indices = Indices(loader, beginning)
    iterator = _internals.torchs_iterator(_resume.Shown(loader, indices))
    indices.iterator_was_made(iterator)
    beginning.put_generators_back()
    return iterator


def _over_samples(loader: Any) -> Any:
    pending, steps = _per_loader.pending_of(loader), 0
    if pending is not None:
        steps = pending.skipped + (0 if pending.state is None else pending.state.steps)
    if steps:
        warn_user(f"headrace: without headrace's engine, {steps} batches are made again and dropped")
    number = _per_loader.number_of_next(loader, pending)
    epoch = PlainIterableEpoch(loader, number)
    iterator = _internals.torchs_iterator(loader)
    epoch.begin(iterator, steps)
    _per_loader.has_begun(loader, epoch, number, pending)
    return iterator
