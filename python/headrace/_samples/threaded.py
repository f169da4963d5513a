# SPDX-License-Identifier: Apache-2.0
"""How a maker of samples uses threads: in a worker, and with num_workers=0.

A worker begins the samples of the batches behind the one that it makes, as far as they were granted. With
num_workers=0 nothing is begun early, because the loop may change the dataset between two batches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from headrace import _core
from headrace._base import signals
from headrace._samples.threads import Batch, SampleThreads

_Begin = Callable[[Any], Batch]
# CPython notices a signal that arrives just before a wait at the end of the wait only. Samples may never end.
_SIGNAL_S = 0.5


class Stopped(BaseException):
    """Raised when the trainer has stopped the loader while a worker waits for samples."""


class Threaded(Protocol):
    """Makes batches in threads."""

    def make(self, task: Any, begin: _Begin) -> Batch:
        """Returns the batch of a task, all of whose samples have ended. begin: makes a Batch of a task."""

    def end(self, seconds: float) -> None:
        """Ends the threads. Waits at most so long for samples that have begun."""


class InProcess:
    """With num_workers=0."""

    def __init__(self, count: int) -> None:
        self._event = threading.Event()
        self._threads = SampleThreads(count, self._event.set)
        self._unfinished: Batch | None = None  # if not None, the handler of a signal has raised in `make`

    def make(self, task: Any, begin: _Begin) -> Batch:
        if (unfinished := self._unfinished) is not None:
            unfinished.cut()
            if self._threads.are_here:
                self._wait(unfinished)
        batch = self._unfinished = begin(task)
        self._threads.begin(batch)
        self._wait(batch)
        self._unfinished = None
        return batch

    def _wait(self, batch: Batch) -> None:
        while not batch.is_over:
            self._event.wait(_SIGNAL_S)
            self._event.clear()

    def end(self, seconds: float) -> None:
        if self._unfinished is not None:
            self._unfinished.cut()
        self._threads.end(seconds)


class InWorker:
    """In a worker. Waits for the samples of a batch and for the next tasks at the same time."""

    def __init__(self, count: int, port: _core.Port) -> None:
        self._port = port
        self._threads = SampleThreads(count, port.ring, port)
        # Tasks behind the one that is made, with their numbers. None: it could not be begun, and raises in its turn.
        self._begun: deque[tuple[int, Batch | None]] = deque()
        self._is_at_end = False  # what comes behind these is no batch
        self._current: Batch | None = None

    def make(self, task: Any, begin: _Begin) -> Batch:
        batch = self._begun_before()
        if batch is None:
            batch = self._begin(task, begin)
        self._current = batch
        self._threads.show(batch)
        self._is_at_end = False
        while self._look(begin, False):
            pass
        while not batch.is_over:
            self._look(begin, True)
        return batch

    def _begun_before(self) -> Batch | None:
        """Returns the batch of the current task, if it was begun early. Those of tasks before it were not made here:
        their rows were gathered."""
        while self._begun and self._begun[0][0] <= self._port.number:
            number, batch = self._begun.popleft()
            if number == self._port.number:
                return batch
            if batch is not None:
                batch.cut()
        return None

    def _look(self, begin: _Begin, waits: bool) -> bool:
        """Begins the next task that was granted. Returns False if there is no such task, or if the wait was
        ended because the samples of a batch have ended."""
        found = self._port.look(len(self._begun) + self._is_at_end, waits)
        if found is None:
            return False
        if isinstance(found, bool):
            raise Stopped
        kind, number, task = found
        if kind != _core.TASK_MAKE:
            self._is_at_end = True
            return True
        try:
            batch = self._begin(task, begin)
        except Exception as error:
            if signals.is_from_signal(error):
                raise
            batch = None
        self._begun.append((number, batch))
        return True

    def _begin(self, task: Any, begin: _Begin) -> Batch:
        batch = begin(task)
        try:
            self._threads.begin(batch)
        except BaseException:
            batch.cut()
            raise
        return batch

    def end(self, seconds: float) -> None:
        for batch in (self._current, *(batch for _, batch in self._begun)):
            if batch is not None:
                batch.cut()
        self._threads.end(seconds)


def threaded(count: int, port: _core.Port | None) -> Threaded | None:
    """Returns what makes samples in so many threads; None for one. port: of the worker; None in the trainer."""
    if count == 1:
        return None
    return InProcess(count) if port is None else InWorker(count, port)


def describe(count: int, batch_size: int | None, prefetch_factor: int) -> dict[str, Any]:
    """Returns what report() says of the threads of each worker. batch_size: None if it is not known.

    threads: the option. at_a_time: the most samples that a worker has, with those of the batches that it was given.
    advice: what to change, or "".
    """
    most = None if batch_size is None else batch_size * prefetch_factor
    advice = ""
    if batch_size is not None and most is not None and most < count:
        advice = f"raise prefetch_factor to {-(-count // batch_size)}: a worker has at most {most} samples to make"
    return {"threads": count, "at_a_time": most, "advice": advice}
