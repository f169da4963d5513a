# SPDX-License-Identifier: Apache-2.0
"""Threads that make the samples of batches, for datasets whose samples wait for a disk or a network
(`sample_threads`).

The maker of samples begins a batch, waits until its samples are made, and takes them in their order
(headrace._samples.maker). A thread of concurrent.futures would hold a process until its sample has ended, so these are
threads of our own.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headrace._base.lookup import imported

NO_SAMPLE = -1
_Outcome = tuple[Any, BaseException | None, int]  # a sample, or its exception, and how long it took in nanoseconds


def _modes() -> tuple[bool, bool] | None:
    """Returns torch's grad and inference modes of this thread, or None if a new thread has the same."""
    torch = imported("torch")
    found = (True, False) if torch is None else (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    return None if found == (True, False) else found


@contextlib.contextmanager
def _entered(modes: tuple[bool, bool]) -> Iterator[None]:
    torch = sys.modules["torch"]
    with torch.inference_mode(modes[1]), torch.set_grad_enabled(modes[0]):
        yield


class Batch:
    """The samples of a batch that threads make. A thread sees the context variables, and torch's grad and inference
    modes, that the thread which makes this object has now.

    make: makes the sample at a place of indices. goes_on: after an exception, which is kept, further samples are begun.
    retried: a list for each sample, to which `make` adds records of further tries.
    """

    def __init__(self, make: Callable[[int], Any], indices: list[Any], goes_on: bool, retried: list[list[Any]]) -> None:
        self.indices = indices
        self.retried = retried
        # The thread that waits does not take the lock: an exception of a signal's handler could leave it taken.
        self.lock = threading.Lock()
        self.running = 0  # samples that threads make now; goes up before `next` does
        self.next = 0  # the place of the sample that is begun next
        self.oldest = 0  # of the samples in work, the place of that which was begun first; `next`: none is in work
        self.is_cut = False  # no samples are begun any more
        self._make = make
        self._goes_on = goes_on
        self._outcomes: list[_Outcome | None] = [None] * len(indices)
        self._context = contextvars.copy_context()
        self._modes = _modes()

    @property
    def is_over(self) -> bool:
        """True if all samples that are begun have ended."""
        return (self.is_cut or self.next >= len(self.indices)) and not self.running

    def cut(self) -> None:
        """From now on no samples are begun."""
        self.is_cut = True

    def make(self, place: int) -> None:
        """Makes a sample, in the thread that calls this."""
        began_ns = time.perf_counter_ns()
        try:
            sample = self._context.copy().run(self._make if self._modes is None else self._make_in_modes, place)
            self._outcomes[place] = sample, None, time.perf_counter_ns() - began_ns
        except BaseException as error:
            self._outcomes[place] = None, error, time.perf_counter_ns() - began_ns
            if not (self._goes_on and isinstance(error, Exception)):
                self.cut()

    def _make_in_modes(self, place: int) -> Any:
        assert self._modes is not None
        with _entered(self._modes):
            return self._make(place)

    def pass_ended(self) -> None:
        """Lets `oldest` pass the samples that have ended."""
        while self.oldest < self.next and self._outcomes[self.oldest] is not None:
            self.oldest += 1

    def took_ns(self, place: int) -> int:
        """Returns how long a sample took."""
        outcome = self._outcomes[place]
        return 0 if outcome is None else outcome[2]

    def take(self, place: int) -> Any:
        """Returns a sample, or raises its exception, once. They are begun in their order, so one that was not begun is
        behind an exception."""
        outcome, self._outcomes[place] = self._outcomes[place], None
        assert outcome is not None
        try:
            if outcome[1] is not None:
                raise outcome[1]
            return outcome[0]
        finally:
            del outcome  # the traceback of the exception has this frame


class Notes(Protocol):
    """Takes notes of what threads make of the batch that is shown. A sample is its place in the batch, or NO_SAMPLE."""

    def note_making(self, thread: int, sample: int, /) -> None:
        """Notes the sample that a thread makes. Threads have numbers from 1."""

    def note_oldest(self, sample: int, index: object, /) -> None:
        """Notes which of the samples that are made was begun first."""


class _Shared:
    """The state that the threads share with SampleThreads. They must not refer to that, because its end is theirs."""

    def __init__(self, count: int, ended: Callable[[], None], notes: Notes | None) -> None:
        self.queue: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self.ended = ended
        self.notes = notes
        self.current: Batch | None = None  # the batch whose samples are noted
        self.noted: int | None = None  # the place that was noted last as the oldest
        self.at: list[tuple[Batch, int] | None] = [None] * count  # what each thread makes

    def make_some(self, thread: int, batch: Batch) -> None:
        """Makes samples of a batch until all are begun."""
        place = self._next_place(thread, batch, False)
        while place is not None:
            batch.make(place)
            place = self._next_place(thread, batch, True)

    def _next_place(self, thread: int, batch: Batch, has_made: bool) -> int | None:
        """Begins a sample, and returns its place, or None if no more are begun. has_made: the thread has made one."""
        is_over = False
        with batch.lock:
            place = None if batch.is_cut or batch.next >= len(batch.indices) else batch.next
            if place is not None:
                batch.running += not has_made
                batch.next += 1
                self.at[thread] = batch, place
            if has_made:
                batch.pass_ended()
            if self.notes is not None and batch is self.current and (has_made or place is not None):
                self.notes.note_making(thread + 1, NO_SAMPLE if place is None else place)
                self._note_oldest(self.notes, batch)
            if has_made and place is None:
                self.at[thread] = None
                batch.running -= 1  # last: then another batch may be shown
                is_over = batch.is_over
        if is_over:
            self.ended()
        return place

    def _note_oldest(self, notes: Notes, batch: Batch) -> None:
        place = batch.oldest if batch.oldest < batch.next else NO_SAMPLE
        if place != self.noted:
            self.noted = place
            notes.note_oldest(place, None if place == NO_SAMPLE else batch.indices[place])

    def show(self, batch: Batch) -> None:
        """From now on the samples of this batch are noted. All those of the one before have ended."""
        if self.notes is None:
            return
        with batch.lock:
            self.current = batch
            for thread, at in enumerate(self.at):
                if at is not None and at[0] is batch:
                    self.notes.note_making(thread + 1, at[1])
            self.noted = None
            self._note_oldest(self.notes, batch)


class _Thread(threading.Thread):
    """Makes samples of one batch after the other."""

    headrace_has_no_sample = True  # it waits for a batch, so this process may fork (headrace._base.this_process)

    def __init__(self, shared: _Shared, number: int) -> None:
        super().__init__(name=f"headrace-sample-{number}", daemon=True)
        self._shared = shared
        self._number = number

    def run(self) -> None:
        if (torch := imported("torch")) is not None:
            torch.get_num_threads()  # gives OpenMP in this thread the number of threads of this process
        while (batch := self._shared.queue.get()) is not None:
            self.headrace_has_no_sample = False
            self._shared.make_some(self._number, batch)
            del batch  # so that a thread that waits keeps no samples
            self.headrace_has_no_sample = True


class SampleThreads:
    """So many threads. ended: called, in a thread, when all samples of a batch that were begun have ended."""

    def __init__(self, count: int, ended: Callable[[], None], notes: Notes | None = None) -> None:
        self._count = count
        self._ended = ended
        self._notes = notes
        self._pid = 0  # of the process that has the threads
        self._threads: list[_Thread] = []
        self._shared = _Shared(count, ended, notes)

    @property
    def are_here(self) -> bool:
        """True if this process has the threads: a forked child does not."""
        return self._pid == os.getpid()

    def begin(self, batch: Batch) -> None:
        """Lets the threads make the samples of a batch, after those of batches that were begun before."""
        if not self.are_here:
            self._start()
        for _ in range(min(self._count, len(batch.indices))):
            self._shared.queue.put(batch)

    def show(self, batch: Batch) -> None:
        """From now on the samples of this batch are noted."""
        self._shared.show(batch)

    def _start(self) -> None:
        self._let_go()  # of a start that was interrupted
        self._shared = _Shared(self._count, self._ended, self._notes)
        self._threads = [_Thread(self._shared, number) for number in range(self._count)]
        for one in self._threads:
            try:
                one.start()
            except RuntimeError as error:
                self._let_go()
                raise RuntimeError(
                    f"headrace: cannot start {self._count} threads for samples: {error}; lower sample_threads, or look "
                    "at the limits on processes (ulimit -u, the cgroup's pids.max)"
                ) from error
        self._pid = os.getpid()

    def end(self, seconds: float) -> None:
        """Ends the threads. Waits at most so long for samples that have begun."""
        self._let_go()
        deadline = time.monotonic() + seconds
        for one in self._threads if self.are_here else ():
            one.join(max(0.0, deadline - time.monotonic()))
        self._threads, self._pid = [], 0  # `begin` starts new ones

    def _let_go(self) -> None:
        for _ in self._threads:
            self._shared.queue.put(None)

    def __del__(self) -> None:
        self._let_go()
