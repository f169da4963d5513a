# SPDX-License-Identifier: Apache-2.0
"""The places of the workers in an iterable dataset, after the batches that the consumer has.

Each worker has its own copy of the dataset, and takes its state_dict after some of its batches. A state of the loader
has the newest one that the consumer has reached, and how many batches of the worker came after it: these are made
again.
"""

from __future__ import annotations

import collections
import dataclasses
import pickle
from typing import Any, NamedTuple

from headrace._start.start_state import StartState
from headrace._worker.job import BatchNotes
from headrace.sampling import _values
from headrace.sampling._state import StateError


class _Answer(NamedTuple):
    worker: int
    notes: BatchNotes | None


@dataclasses.dataclass
class _Place:
    state: bytes | None = None  # pickled
    made: int = 0  # batches that the dataset had given by then
    done: int = 0  # batches of this worker that the consumer has


class WorkerPlaces:
    """The places of the workers in one epoch. saved: what `saved` has returned, for an epoch that is continued."""

    def __init__(self, workers: int, saved: list[Any] | None = None) -> None:
        self._places = [_Place() for _ in range(workers)]
        self._answers: collections.deque[_Answer] = collections.deque()  # that came after the places
        self._count = 0  # answers that the places include
        self._next_worker = 0
        if saved:
            self._next_worker, places = saved[0], saved[1:]
            self._places = [_read(one) for one in places]
            if len(places) != workers or not 0 <= self._next_worker < workers:
                raise StateError("headrace: this state is damaged: its workers do not fit each other")

    def note(self, worker: int, notes: BatchNotes | None, delivered: int) -> None:
        """Notes an answer that has arrived. delivered: how many answers of this epoch the consumer can do without."""
        self._answers.append(_Answer(worker, notes))
        self._include(delivered)

    def _include(self, delivered: int) -> None:
        while self._count < delivered and self._answers:
            answer = self._answers.popleft()
            place = self._places[answer.worker]
            place.done += 1
            if answer.notes is not None and answer.notes.state is not None:
                place.state, place.made = answer.notes.state, answer.notes.made
            self._next_worker = (answer.worker + 1) % len(self._places)
            self._count += 1

    @property
    def next_worker(self) -> int:
        """The worker whose batch comes next."""
        return self._next_worker

    def starts(self, epoch: int) -> list[StartState]:
        """Returns where the workers start in an epoch that is continued."""
        return [
            StartState(epoch=epoch, state=one.state, made=one.made, discard=one.done - one.made) for one in self._places
        ]

    def saved(self, delivered: int) -> list[Any]:
        """Returns the places after so many answers as a state contains them: the next worker, and for each worker its
        dataset's state, and the batches that it had made then and those that the consumer has. Raises StateError."""
        self._include(delivered)
        states = [None if one.state is None else _values.encode(pickle.loads(one.state)) for one in self._places]
        places = zip(states, self._places, strict=True)
        return [self._next_worker, *([state, one.made, one.done] for state, one in places)]


def _read(saved: Any) -> _Place:
    try:
        text, made, done = saved
        is_good = type(made) is type(done) is int and 0 <= made <= done
    except (TypeError, ValueError):
        is_good = False
    if not is_good:
        raise StateError(f"headrace: this state is damaged: a worker's part is {saved!r}")
    return _Place(None if text is None else pickle.dumps(_values.decode(text)), made, done)
