# SPDX-License-Identifier: Apache-2.0
"""num_workers=0: makes the batches in the training process itself.

The iterators without workers of both loaders (headrace.torch._loader.in_process, headrace._numpy.in_process) use it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace import _core
from headrace._base import signals
from headrace._base.warn import warn_user
from headrace._options import Settings
from headrace._samples import epoch_reports, own_generators, prepared
from headrace._samples.draw import FromIterable, FromSampler
from headrace._samples.maker import SampleMaker
from headrace._samples.random_numbers import generators_kept
from headrace._samples.refill import wrap_of
from headrace._samples.start_state import StartState


class InProcessIterator(_core.Iterator):
    """The base class of iterators that make their batches in this process."""

    _here: InProcessEpoch | None = None  # if the settings ask for one

    def _make(self, tasks: FromSampler | FromIterable, fetch: Callable[[Any], Any]) -> Any:
        """Draws the next task, and returns the batch that fetch makes of it. Raises StopIteration at the end. An
        exception takes the place of the batch, except if the handler of a signal raised it: then the next call makes
        the batch again."""
        try:
            drawn = tasks.draw()
        except StopIteration:
            if self._here is not None:
                self._here.end_epoch()
            raise
        try:
            return fetch(drawn)
        except BaseException as error:
            if not signals.is_from_signal(error):
                tasks.tasks.done()
            if isinstance(error, StopIteration):
                self._handle_stop(error, drawn)
            raise

    def _handle_stop(self, error: StopIteration, drawn: Any) -> None:
        """Handles a StopIteration of the dataset or of collate_fn, which would end the loop without an error."""
        raise RuntimeError("headrace: the dataset or collate_fn raised StopIteration") from error


class InProcessEpoch:
    """Counts the batches of one epoch and keeps their bad samples. `bad_of` takes the bad samples of the last batch,
    and `retried_of` its further tries."""

    def __init__(
        self,
        tasks: _core.Tasks,
        seed: int,
        bad_of: Callable[[], list[Any]],
        retried_of: Callable[[], list[Any]] = list,
    ) -> None:
        self._tasks = tasks
        self._seed = seed
        self._bad_of = bad_of
        self._retried_of = retried_of
        self._retried: list[Any] = []
        self._bad: dict[int, list[Any]] = {}  # bad samples by the number of their task
        self._failed: set[int] = set()  # the numbers of tasks that raised
        self._is_over = False

    def noting(self, make: Callable[[Any], Any], drawn: Any) -> Any:
        """Returns make(drawn), and keeps the bad samples of that batch."""
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
        self._retried += self._retried_of()

    def end_epoch(self) -> None:
        """Warns of the bad samples of the epoch, once."""
        is_over, self._is_over = self._is_over, True
        self._retried += self._retried_of()
        if self._bad and not is_over:
            warn_user(epoch_reports.describe_bad_samples(self._bad_samples()))
        if self._retried and not is_over:
            warn_user(epoch_reports.describe_retried_samples(self._retried))

    def _bad_samples(self) -> list[Any]:
        return [one for bad in self._bad.values() for one in bad]

    def report(self) -> dict[str, Any]:
        """Returns those counters of headrace.Loader.report that a loader without workers has."""
        bad = self._bad_samples()
        self._retried += self._retried_of()  # of a batch that could not be drawn
        return {
            "seed": self._seed,
            "workers": 0,
            "batches": self._tasks.handed_count - len(self._failed),
            "skipped": len(bad),
            "bad_samples": bad,
            "retried": len(self._retried),
            "per_worker": [],
        }


class InProcessSamples:
    """Makes batches sample by sample, if the settings ask for that, with exactly the values that workers would give.
    The random numbers of this process do not change: what rng="sample" seeds is restored after each batch.
    `collate_fn`: None leaves samples as they are. users_collate: the function of the user's in it. count_draws: see
    wrap_of."""

    def __init__(
        self,
        dataset: Any,
        settings: Settings,
        seed: int,
        epoch: int,
        batched: bool,
        collate_fn: Callable[[Any], Any] | None,
        tasks: _core.Tasks,
        users_collate: Callable[..., Any] | None = None,
        count_draws: Callable[[Any], Sequence[int]] | None = None,
    ) -> None:
        self._maker = SampleMaker(None, dataset, settings, StartState(epoch=epoch), seed, None, batched, users_collate)
        self._is_seeded = settings.rng == "sample"
        if self._is_seeded:
            own_generators.warn_of_unreachable(own_generators.roots_of(prepared.shown(dataset), users_collate))
        self._collate = collate_fn
        self._wrap = wrap_of(settings, tasks, batched, seed, epoch, count_draws)
        self.here = InProcessEpoch(tasks, seed, self._maker.take_bad, self._maker.take_retried)
        self._turn, self._pid = threading.RLock(), os.getpid()
        self._has_ended = False

    def end(self, seconds: float) -> None:
        """Ends the threads of the samples, and waits for them at most so long. If another thread makes a batch now, it
        ends them afterwards."""
        self._has_ended = True
        if self._turn.acquire(blocking=False):
            try:
                self._maker.leave(seconds)
            finally:
                self._turn.release()

    def fetch(self, indices: Any) -> Any:
        """Returns the batch of these indices, or, in a loader without batches, the sample of this index."""
        return self.here.noting(self._fetch, indices)

    @contextlib.contextmanager
    def _keep(self) -> Iterator[None]:
        if not self._is_seeded:
            yield
            return
        own = self._maker.own or self._maker.search()
        with generators_kept(), own.kept():
            yield

    def _fetch(self, indices: Any) -> Any:
        if self._pid != os.getpid():  # a thread that is not in this forked process may have the lock
            self._turn, self._pid = threading.RLock(), os.getpid()
        with self._turn, self._keep():  # several threads of the program take turns
            try:
                task = indices if self._wrap is None else self._wrap(indices)
                batch = self._maker.make(self._maker.receive(task))
                return batch if self._collate is None else self._collate(batch)
            finally:
                if self._has_ended:
                    self._maker.leave(0)
