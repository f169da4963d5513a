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

from headrace._loader.worker.batch_maker import BatchNotes
from headrace._samples.start_state import StartState
from headrace.sampling import _values
from headrace.sampling._state import StateError


class _Answer(NamedTuple):
    worker: int
    notes: BatchNotes | None
    is_end: bool = False  # it is no batch, but the end of the worker's data


@dataclasses.dataclass
class _WorkerPosition:
    state: bytes | None = None  # pickled
    made: int = 0  # batches that the dataset had given by then
    done: int = 0  # batches of this worker that the consumer has
    is_ended: bool = False  # the dataset has no more for this worker
    error: str = ""  # what the dataset's state_dict raised last
    digest: tuple[int, int] | None = None  # of some batch of a dataset without a state: see Repeated

    def take(self, notes: BatchNotes) -> None:
        """Takes what a worker has sent with a batch."""
        self.is_ended |= notes.is_end
        self.error = notes.error
        if notes.digest:
            self.digest = notes.made, notes.digest
        if notes.state is not None:
            self.state, self.made = notes.state, notes.made

    def start(self, epoch: int) -> StartState:
        """Returns where the worker starts."""
        if self.is_ended:
            return StartState(epoch=epoch, is_ended=True, made=self.done)
        discard = self.done - self.made
        return StartState(epoch=epoch, state=self.state, made=self.made, discard=discard, digest=self.digest)

    def saved(self) -> list[Any]:
        """Returns the place as a state contains it. Raises StateError."""
        if self.error:
            raise StateError(f"headrace: the dataset's state_dict failed in a worker: {self.error}")
        state = None if self.state is None or self.is_ended else _values.encode(pickle.loads(self.state))
        made = self.done if self.is_ended else self.made
        return [state, made, self.done, self.is_ended, *(self.digest or ())]


class WorkerPositions:
    """The places of the workers in one epoch. saved: what `saved` has returned, for an epoch that is continued."""

    def __init__(self, workers: int, saved: list[Any] | None = None) -> None:
        self._places = [_WorkerPosition() for _ in range(workers)]
        self._answers: collections.deque[_Answer] = collections.deque()  # that came after the places
        self._ended: set[int] = set()  # workers whose end was noted
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

    def note_ends(self, workers: list[int]) -> None:
        """Notes the workers that have no more data, after all of their answers."""
        for worker in workers:
            if worker not in self._ended:
                self._ended.add(worker)
                self._answers.append(_Answer(worker, None, is_end=True))

    def _include(self, delivered: int) -> None:
        while self._answers and (self._count < delivered or self._answers[0].is_end):
            answer = self._answers.popleft()
            place = self._places[answer.worker]
            if answer.is_end:
                place.is_ended = True
                continue
            place.done += 1
            if answer.notes is not None:
                place.take(answer.notes)
            self._next_worker = (answer.worker + 1) % len(self._places)
            self._count += 1

    @property
    def next_worker(self) -> int:
        """The worker whose batch comes next."""
        return self._next_worker

    def starts(self, epoch: int) -> list[StartState]:
        """Returns where the workers start in an epoch that is continued."""
        return [one.start(epoch) for one in self._places]

    def are_ended(self, delivered: int) -> bool:
        """Returns True if no worker has more after so many answers."""
        self._include(delivered)
        return all(one.is_ended for one in self._places)

    def saved(self, delivered: int) -> list[Any]:
        """Returns the places after so many answers as a state contains them: the next worker, and for each worker its
        dataset's state, the batches that it had made then, those that the consumer has, and whether it has no more.
        Raises StateError."""
        self._include(delivered)
        return [self._next_worker, *(one.saved() for one in self._places)]


def _read(saved: Any) -> _WorkerPosition:
    try:
        text, made, done, is_ended, *digest = saved
        is_good = type(made) is type(done) is int and 0 <= made <= done and type(is_ended) is bool
        is_good = is_good and [type(one) for one in digest] in ([], [int, int])
    except (TypeError, ValueError):
        is_good = False
    if not is_good:
        raise StateError(f"headrace: this state is damaged: a worker's part is {saved!r}")
    state = None if text is None else pickle.dumps(_values.decode(text))
    return _WorkerPosition(state, made, done, is_ended, digest=tuple(digest) or None)
