# SPDX-License-Identifier: Apache-2.0
"""The state of loaders on torch's own iterators, where headrace's engine cannot run. It needs no extension.

torch's iterator gets an index sampler that draws from the same EpochIndices as the engine. After each batch it says
which tasks the consumer has. All that a state needs is in the epoch, because torch's iterator is gone after a `break`.
_plain_iterable.py does the same for iterable datasets.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from headrace.sampling._epoch import Epoch
from headrace.sampling._epoch_indices import Drawn
from headrace.torch._loader import plain_iterable
from headrace.torch._loader.as_any import AsAnyLoader
from headrace.torch._own import classes, iterators, loaders
from headrace.torch._own.table import kept
from headrace.torch._state import beginning as _beginning
from headrace.torch._state import past_draws


class PlainTasks:
    """Does what _core.Tasks does for an epoch.

    sent: the tasks that were handed out and not delivered, by number. last, last_number: the task that was delivered
    last, or None and -1.
    """

    lost_count = 0

    def __init__(self, drawn: Drawn) -> None:
        self._begin: Callable[[], tuple[Any, ...]] | None = None
        self._use(drawn)
        self._ahead: list[Any] = []
        self.is_over = False
        self.handed_count = 0
        self.sent: dict[int, Any] = {}
        self.last: Any = None
        self.last_number = -1

    def _use(self, drawn: Drawn) -> None:
        self._tasks, self.changes = drawn.tasks(), drawn.changes

    def begin_by(self, begin: Callable[[], tuple[Any, ...]]) -> None:
        """Lets a function say what is iterated when the first task is drawn. See _core.Tasks."""
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        """Draws the tasks that are left, without counting them."""
        return iter(self._next, None)

    def _next(self) -> Any:
        if self._begin is not None:
            self._use(Drawn(*self._begin()))
            self._begin = None
        found = self._ahead.pop(0) if self._ahead else next(self._tasks, None)
        self.is_over = found is None
        return found

    def hand_out(self) -> Any:
        """Returns the next task, which is sent then, or None at the end."""
        task = self._next()
        if task is not None:
            self.sent[self.handed_count] = task
            self.handed_count += 1
        return task

    def deliver_all_but(self, numbers: Any) -> None:
        """Notes that the consumer has all tasks that were sent, except those with these numbers."""
        for number in sorted(self.sent.keys() - numbers):
            self.last, self.last_number = self.sent.pop(number), number

    def look(self, count: int) -> list[Any]:
        """Returns up to `count` tasks that come next."""
        self._ahead += itertools.islice(self._tasks, count - len(self._ahead))
        return self._ahead[:count]

    def skip(self, count: int) -> tuple[int, Any]:
        """Draws and drops tasks. Returns how many there were, and the last one."""
        skipped, last = 0, None
        while skipped < count and (found := self._next()) is not None:
            skipped, last = skipped + 1, found
        return skipped, last

    @property
    def answered_count(self) -> int:
        """How many tasks the consumer has."""
        return self.handed_count - len(self.sent)


class Indices:
    """An index sampler for torch's iterators: begins an epoch of a loader each time that it is iterated."""

    def __init__(self, loader: Any, beginning: _beginning.Beginning) -> None:
        self._loader, self._position = weakref.ref(loader), kept(loader).position
        self._beginning: _beginning.Beginning | None = beginning
        self._length = loaders.index_sampler(loader)
        self._base_seed: int | None = None
        self._epoch: Epoch | None = None  # the newest one
        self._begun: Epoch | None = None  # the same, until it is iterated

    def __len__(self) -> int:
        return len(self._length)

    def __iter__(self) -> Iterator[Any]:
        """Yields the tasks of an epoch, which begins when the first one is needed: torch's iterator with workers calls
        iter() twice for its first epoch."""
        epoch, self._begun = self._begun or self._new_epoch(), None
        is_first = True
        while (task := epoch.tasks.hand_out()) is not None:
            epoch.indices.was_drawn()
            if is_first:
                past_draws.note(self._position, epoch)
            is_first = False
            yield task

    def _new_epoch(self) -> Epoch:
        """Begins an epoch: the one of the first beginning, or another one of persistent workers."""
        beginning = self._beginning or _beginning.Beginning(AsAnyLoader(self._loader()))
        beginning.put_generators_back()
        beginning.sampler_will_be_iterated()
        epoch = self._epoch = beginning.begin(PlainTasks)
        if self._beginning is None:
            self._note_begun(beginning, epoch)
        return epoch

    def iterator_was_made(self, iterator: Any) -> None:
        """Takes torch's iterator over these indices. With workers it has drawn the first ones; otherwise the epoch is
        begun now, so that a state before the first batch has the base seed."""
        if self._epoch is None:
            self._begun = self._new_epoch()
        if plain_iterable.is_torchs(iterator):
            self._base_seed = iterators.base_seed(iterator)
            iterators.call_after_next(iterator, self._note_delivered)
        elif self._epoch is not None:
            self._epoch.is_counted = False
        beginning, self._beginning = self._beginning, None
        if beginning is not None and self._epoch is not None:
            self._note_begun(beginning, self._epoch)

    def _note_begun(self, beginning: _beginning.Beginning, epoch: Epoch) -> None:
        if self._base_seed is not None:
            epoch.indices.seeds["base"] = self._base_seed
        beginning.has_begun(epoch)

    def _note_delivered(self, iterator: Any, error: Exception | None) -> None:
        """Called after each batch, or the exception in its place."""
        if self._epoch is not None:
            self._epoch.tasks.deliver_all_but(iterators.open_tasks(iterator))
            self._epoch.has_ended |= isinstance(error, StopIteration)


def get_iterator(loader: Any) -> Any:
    """Returns torch's iterator of a loader, whose epoch is counted and may be continued."""
    if isinstance(loader.dataset, classes.DataPipes):
        return loaders.torchs_iterator(loader)
    return plain_iterable.get_iterator(loader) if loaders.is_iterable(loader) else _over_indices(loader)


def _over_indices(loader: Any) -> Any:
    beginning = _beginning.Beginning(AsAnyLoader(loader))
    indices = Indices(loader, beginning)
    iterator = iterators.iterator_with_seed(_beginning.Shown(loader, indices), beginning.base_seed)
    indices.iterator_was_made(iterator)
    beginning.put_generators_back()
    return iterator
