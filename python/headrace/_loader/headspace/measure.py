# SPDX-License-Identifier: Apache-2.0
"""The stages of a measurement, and the times of their steps. A session has one for each loader, and Steps calls it.

A step lasts from one call of next() to the following one in the same epoch. The first step of an epoch does not count,
because its wait has the start of the workers; nor does the time between epochs.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple, Protocol

from headrace import _core
from headrace._base import this_process
from headrace._loader.headspace.kept import MOST, Kept

_WARM_UP, _LEAD = 20, 5  # steps that are not timed: at the beginning, and after each change
_STILL_S, _LOOK_S, _STILL_LOOKS = 60.0, 0.005, 3  # how long workers may take until they stand still


class _Stage(NamedTuple):
    steps: int
    is_free: bool = False


class Times(NamedTuple):
    """Seconds of a step: with data before and after, and with free data."""

    before: float
    free: float
    after: float

    @property
    def with_data(self) -> float:
        return (self.before + self.after) / 2

    @property
    def cost(self) -> float:
        """The share of a step that loading costs."""
        return max(0.0, 1 - self.free / self.with_data) if self.with_data > 0 else 0.0


class Iteration(Protocol):
    """The epoch of a loop, as a measurement sees it: Steps."""

    is_counted: bool  # the loop has a batch whose step counts

    def drop(self, count: int) -> None:
        """Takes batches that the loop does not get."""


class Observer(Protocol):
    """Learns how far a measurement is: the session."""

    def has_warmed_up(self, measure: Measure) -> None: ...

    def begins_free(self, measure: Measure) -> None: ...

    def has_ended(self, measure: Measure) -> None: ...


def _synchronize() -> None:
    """Waits until the GPU has done what it was given, so that its time is in the right stage."""
    if this_process.uses_accelerator():
        sys.modules["torch"].cuda.synchronize()


class Measure:
    """The measurement of the loop over one loader. name: the line that made it. steps: of each timed stage."""

    def __init__(self, name: str, steps: int, show: _core.Show, observer: Observer) -> None:
        self.name = name
        self.kept = Kept()
        self.done = 0  # steps that have counted
        self._steps = steps
        self.show = show  # of the newest loader of this line
        self._observer = observer
        self._stages = [
            _Stage(_WARM_UP),
            _Stage(steps),
            _Stage(_LEAD, is_free=True),
            _Stage(steps, is_free=True),
            _Stage(_LEAD),
            _Stage(steps),
        ]
        self._stage = self._done_here = 0
        self._seconds = [0.0] * len(self._stages)
        self._entry = self._left_out = 0.0  # when next() was called last; what does not count of this step
        self._queue = 0  # batches that were ready when the stage before the free ones ended

    @property
    def steps_needed(self) -> int:
        return sum(stage.steps for stage in self._stages)

    @property
    def steps_left(self) -> int:
        return self.steps_needed - self.done

    @property
    def is_free(self) -> bool:
        """True while the loop gets batches again."""
        return self._stages[self._stage].is_free

    @property
    def has_repeated(self) -> bool:
        """True if the loop got batches again."""
        return self._stage > 1

    def times(self) -> Times:
        before, free, after = (self._seconds[stage] / self._steps for stage in (1, 3, 5))
        return Times(before, free, after)

    # ---- a step ----

    def arrive(self, iteration: Iteration) -> None:
        """The loop asks for a batch."""
        is_pause = self._needs_pause(iteration)
        if is_pause:
            _synchronize()
        now = time.perf_counter()
        if iteration.is_counted:
            iteration.is_counted = False
            self._count(now - self._entry - self._left_out, iteration)
        if not self._stage or self.is_free:
            self.kept.check()
        self._left_out = 0.0
        self._entry = time.perf_counter() if is_pause else now

    def _needs_pause(self, iteration: Iteration) -> bool:
        """Returns True if work of the measurement comes before the next step, whose time does not count. Where a GPU
        works on meanwhile, it has to be waited for, and so that is done only if it takes long."""
        is_last = iteration.is_counted and self._done_here + 1 == self._stages[self._stage].steps
        return is_last or (self.is_free and (self.kept.is_dear or not this_process.uses_accelerator()))

    def _count(self, seconds: float, iteration: Iteration) -> None:
        self.done += 1
        self._done_here += 1
        self._seconds[self._stage] += seconds
        if self._done_here == self._stages[self._stage].steps:
            self._advance(iteration)

    def _advance(self, iteration: Iteration) -> None:
        if self._stage == 0:
            self.kept.check()
            self._observer.has_warmed_up(self)
        was_free, self._done_here = self.is_free, 0
        if self._stage + 1 == len(self._stages):
            self._observer.has_ended(self)
            return
        self._stage += 1
        if self.is_free and not was_free:
            self._queue = self._workers()["queue"]
            self._observer.begins_free(self)
            self._await_still_workers()
        elif was_free and not self.is_free:
            # What was made while the data was free would make the first steps with data faster than they are.
            iteration.drop(self._workers()["queue"] - self._queue)

    def take(self, batch: Any) -> None:
        """The loop gets a batch of its loader."""
        if self._stage == 0 and self._done_here >= _WARM_UP - MOST:
            self.kept.keep(batch)

    def give(self) -> Any:
        """Returns a batch again."""
        if not self.kept.is_dear and this_process.uses_accelerator():
            return self.kept.give()
        _synchronize()
        began = time.perf_counter()
        batch = self.kept.give()
        self._left_out += time.perf_counter() - began
        return batch

    # ---- the workers ----

    def _workers(self) -> dict[str, Any]:
        return self.show.numbers()[1]

    def _await_still_workers(self) -> None:
        """Waits until the workers have made all that they were asked for, so that they take no cores from the loop."""
        deadline, still = time.monotonic() + _STILL_S, 0
        while still < _STILL_LOOKS and time.monotonic() < deadline:
            numbers = self._workers()
            if not numbers["workers"]:
                return
            still = still + 1 if numbers["idle"] == numbers["workers"] else 0
            time.sleep(_LOOK_S)
