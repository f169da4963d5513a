# SPDX-License-Identifier: Apache-2.0
"""num_workers=0: batches that are made in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from headrace import _core
from headrace._engine import crew, reports, restart_state
from headrace._options import Policy
from headrace._samples.draw import FromIterable, FromSampler
from headrace._samples.maker import SampleMaker
from headrace._samples.random_numbers import generators_kept
from headrace._samples.refill import Refills
from headrace._start import signals


class HereIterator(_core.Iterator):
    """The base of iterators that make their batches in this process."""

    _here: Here | None = None  # where the policy asks for one

    def _make(self, source: FromSampler | FromIterable, fetch: Callable[[Any], Any]) -> Any:
        """Returns what fetch makes of what is drawn next. StopIteration at the end. What it raises is the answer, as a
        batch would be; but where a signal's handler raised it, the next call makes the same again."""
        try:
            drawn = source.draw()
        except StopIteration:
            if self._here is not None:
                self._here.end_epoch()
            raise
        try:
            return fetch(drawn)
        except BaseException as error:
            if not signals.is_from_signal(error):
                source.tasks.handed_on()
            if isinstance(error, StopIteration):
                self._handle_stop(error, drawn)
            raise

    def _handle_stop(self, error: StopIteration, drawn: Any) -> None:
        """Called with a StopIteration of the dataset or of collate_fn, which would end the loop in silence."""
        raise RuntimeError("headrace: the dataset or collate_fn raised StopIteration") from error


class Here:
    """The batches of one epoch, and what was bad in them. `bad_of`: takes the bad samples of the last batch."""

    def __init__(self, tasks: _core.Tasks, seed: int, bad_of: Callable[[], list[Any]]) -> None:
        self._tasks = tasks
        self._seed = seed
        self._bad_of = bad_of
        self._bad: dict[int, list[Any]] = {}  # by the task's number
        self._failed: set[int] = set()  # numbers of tasks that raised
        self._is_over = False

    def noting(self, make: Callable[[Any], Any], drawn: Any) -> Any:
        """Returns make(drawn), and notes what was bad in it."""
        number = self._tasks.handed_count
        try:
            batch = make(drawn)
        except BaseException as error:
            if not signals.is_from_signal(error):
                self._failed.add(number)
                self._keep_bad(number)
            raise
        self._keep_bad(number)
        return batch

    def _keep_bad(self, number: int) -> None:
        if bad := self._bad_of():
            self._bad[number] = bad

    def end_epoch(self) -> None:
        """Lists what was bad, once."""
        is_over, self._is_over = self._is_over, True
        if self._bad and not is_over:
            crew.tell(reports.of_bad_samples(self._bad_samples()))

    def _bad_samples(self) -> list[Any]:
        return [one for bad in self._bad.values() for one in bad]

    def report(self) -> dict[str, Any]:
        """See headrace.Loader.report: of its counters, those of a loader without workers."""
        bad = self._bad_samples()
        return {
            "seed": self._seed,
            "workers": 0,
            "batches": self._tasks.handed_count - len(self._failed),
            "skipped": len(bad),
            "bad_samples": bad,
            "per_worker": [],
        }


class SamplesHere:
    """Makes batches sample by sample, where the policy asks for that, to the bit as workers do. The random numbers of
    this process are left alone: what rng="sample" seeds is undone after each batch. `collate_fn`: None leaves samples
    as they are."""

    def __init__(
        self,
        dataset: Any,
        policy: Policy,
        seed: int,
        epoch: int,
        batched: bool,
        collate_fn: Callable[[Any], Any] | None,
        tasks: _core.Tasks,
    ) -> None:
        self._maker = SampleMaker(iter, dataset, policy, restart_state.Beginning(epoch=epoch), seed, None)
        self._keep = generators_kept if policy.rng == "sample" else contextlib.nullcontext
        self._make = self._maker.make if batched else self._maker.make_one
        self._collate = collate_fn
        self._refills = Refills(tasks, batched, seed, epoch) if policy.on_bad_sample != "raise" else None
        self.here = Here(tasks, seed, self._maker.take_bad)

    def fetch(self, indices: Any) -> Any:
        """Returns the batch of these indices, or without batches the sample of this one."""
        return self.here.noting(self._fetch, indices)

    def _fetch(self, indices: Any) -> Any:
        with self._keep():
            task = indices if self._refills is None else self._refills.wrap(indices)
            batch = self._make(self._maker.receive(task))
            return batch if self._collate is None else self._collate(batch)
