# SPDX-License-Identifier: Apache-2.0
"""Announces to the fetcher of remote objects what the loop will read, so that it is there when a worker needs it.

Nothing is drawn for that. The order after the drawn tasks is known if what gives it can be copied: iterators over a
list, a range or an array, the rest of a list that a sampler has drawn, a headrace.Order, a Mixture and a Plan. Of other
samplers only the drawn tasks are announced, which workers have in their queues. A worker may have read these already:
what is not kept of them is fetched only when it asks for it, so that nothing is fetched twice.

A position is the number of a sample in its pass. What is announced belongs to a connection, and is withdrawn if another
pass begins, if the engine ends, or if the connection does. The fetcher limits the bytes (src/remote/announced.c).
"""

from __future__ import annotations

import array
import copy
import itertools
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace import _core
from headrace._base import signals
from headrace._base.warn import warn_user
from headrace.sampling._plan_indices import BatchIterator

if TYPE_CHECKING:
    from headrace.sources._reads import Reads

AHEAD_S = 5.0  # of delivery
LEAST, MOST = 256, 1 << 16  # samples that are announced ahead
_CHUNK = 64  # samples that have one position
_MEASURED_S = 0.2  # a rate is measured for so long at least
_ALL = 2**64 - 1
_LISTS = {list, tuple, range}
_COPIED = {
    *map(type, (iter([]), iter(()), iter(range(1)), iter(range(2**70)), iter(array.array("q")))),
    type(_core.Order.sequential(1).iterate(0, 1, 1)),
    BatchIterator,
}


def rest_of(tasks: _core.Tasks) -> Iterator[Any] | None:
    """Returns an iterator over what comes after the tasks that were drawn: indices, or lists of them. None: it is not
    known. Draws nothing, and runs no code of a user."""
    iterator, picks = tasks.iterator, tasks.picks
    if iterator is not None:
        return copy.copy(iterator) if type(iterator) in _COPIED else None
    if picks is None:
        rest: Iterator[Any] = tasks.rest_of_list()
        return rest
    indices = vars(picks).get("indices")
    return map(indices.__getitem__, tasks.rest_of_list()) if type(indices) in _LISTS else None


class _Rest:
    """Gives the samples that come after the drawn tasks. position: that of the next one."""

    def __init__(self, items: Iterator[Any], position: int) -> None:
        self._samples = itertools.chain.from_iterable(map(_samples_of, items))
        self.position = position

    def take(self, first: int, count: int) -> list[Any]:
        """Returns so many samples from a position on, which is not before that of the last call; fewer at the end."""
        skipped = first - self.position
        found = list(itertools.islice(self._samples, skipped, skipped + count))
        self.position = first + len(found)
        return found


def _samples_of(item: Any) -> Any:
    return item if isinstance(item, (list, tuple)) else (item,)


class Announcing:
    """Announces for one engine, or one iterator without workers."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._announcer = _core.Announcer()
        self._tasks: _core.Tasks | None = None  # those of the pass
        self._drawn = 0  # samples of the tasks that were drawn, as `step` has seen it
        self._announced = 0  # all before this position were announced, or are read
        self._rest: _Rest | None = None
        self._sent_end = (
            0  # nothing from here on was sent to the fetcher, which has to be told what is delivered before
        )
        self._known_end = 0  # the order from here on is not known before this position is drawn
        self._rate = 0.0  # samples that are delivered in a second; 0: not known
        self._measured = (0.0, 0)  # when it was measured last, and what was delivered then
        self._is_off = False

    def step(self, tasks: _core.Tasks) -> None:
        """Called after tasks were drawn. Announces what comes within AHEAD_S, and withdraws what was delivered."""
        if self._is_off or (tasks is self._tasks and tasks.drawn_samples == self._drawn):
            return
        try:
            self._step(tasks)
        except Exception as error:
            if signals.is_from_signal(error):
                raise
            self._is_off = True
            warn_user(
                f"headrace: what comes is not announced any more, because of {type(error).__name__}: {error}; remote "
                "samples are fetched when they are needed, which is slower"
            )

    def end(self) -> None:
        """Withdraws all: the pass is over."""
        if self._tasks is not None:
            self._tasks = self._rest = None
            self._announcer.withdraw(_ALL, _ALL)

    def _step(self, tasks: _core.Tasks) -> None:
        is_new = self._announcer.begin()
        if is_new is None:
            return
        delivered, drawn = tasks.answered_samples, tasks.drawn_samples
        if tasks is not self._tasks or is_new:
            if not self._announcer.withdraw(_ALL, drawn):
                return
            if tasks is not self._tasks:
                self._measured = time.monotonic(), delivered
            self._tasks, self._drawn, self._announced = tasks, delivered, delivered
            self._rest, self._known_end, self._sent_end = None, 0, 0
        most = 4 * (drawn - self._drawn + _CHUNK)  # of one step, which the loop waits for
        self._drawn = drawn
        if self._sent_end and self._announcer.withdraw(delivered, drawn) and delivered >= self._sent_end:
            self._sent_end = 0
        if self._announced < drawn and not self._announce_drawn(tasks, drawn):
            return
        end = min(self._announced + most, delivered + self._ahead(delivered))
        self._announce_rest(tasks, drawn, end)

    def _ahead(self, delivered: int) -> int:
        """Returns how many samples may be announced after the delivered ones."""
        now = time.monotonic()
        since, before = self._measured
        if now - since >= _MEASURED_S:
            rate = (delivered - before) / (now - since)
            self._rate = (self._rate + rate) / 2 if self._rate else rate
            self._measured = now, delivered
        return min(MOST, max(LEAST, int(AHEAD_S * self._rate)))

    def _announce(self, samples: list[Any]) -> bool:
        """Announces samples, the first of which has the position self._announced. Returns False if the fetcher is
        busy."""
        for first in range(0, len(samples), _CHUNK):
            some = samples[first : first + _CHUNK]
            self._reads.ask(some, self._announcer)
            sent = self._announcer.send(self._announced + len(some) - 1)
            if sent < 0:
                return False
            self._announced += len(some)
            if sent:
                self._sent_end = self._announced
        return True

    def _announce_drawn(self, tasks: _core.Tasks, drawn: int) -> bool:
        """Announces drawn tasks that no worker has answered. Those of an iterator without workers are read now."""
        samples: list[Any] = []
        for number in sorted(tasks.sent, reverse=True):
            if len(samples) >= drawn - self._announced:
                break
            samples[:0] = _samples_of(tasks.sent[number])
        missing = drawn - self._announced - len(samples)  # delivered already
        if missing >= 0:
            self._announced += missing
        return self._announce(samples[max(0, -missing) :])

    def _announce_rest(self, tasks: _core.Tasks, drawn: int, end: int) -> None:
        if self._rest is None and drawn >= self._known_end:
            items = rest_of(tasks)
            self._rest = None if items is None else _Rest(items, drawn)
        while self._rest is not None and self._announced < end:
            samples = self._rest.take(self._announced, min(_CHUNK, end - self._announced))
            if samples and self._announce(samples):
                continue
            self._rest = None  # it is copied again, later
            self._known_end = 0 if samples else self._announced


def announcing_of(dataset: Any) -> Announcing | None:
    """Returns what announces the samples of a dataset, if it reads remote files."""
    if "headrace.sources" not in sys.modules:
        return None
    from headrace.sources._reads import reads_of  # imported only if it is needed

    reads = reads_of(dataset)
    return None if reads is None else Announcing(reads)
