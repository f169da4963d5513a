# SPDX-License-Identifier: Apache-2.0
"""The iterator of a headrace.Loader with workers. The loader creates it, and keeps it with persistent workers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from headrace import _core
from headrace._base import tracebacks
from headrace._base.help_key import help_on
from headrace._loader.both.over_workers import OverWorkers
from headrace._loader.trainer import start_errors
from headrace._loader.trainer.worker_positions import WorkerPositions
from headrace._numpy.as_any import AsAnyLoader
from headrace._numpy.batch_maker import BatchMaker
from headrace._numpy.worker_error import reraise


class WorkerIterator(OverWorkers, _core.Iterator):
    """Iterates over a Loader with workers: for one epoch, or for several with persistent workers."""

    _is_torchs = False

    def __init__(self, any_loader: AsAnyLoader, epoch: int, places: WorkerPositions | None) -> None:
        self._began_ns = time.monotonic_ns()
        loader, settings = any_loader.loader, any_loader.settings()
        self._wait_s = loader.timeout or None
        self._batch_size, self._is_batched = loader.batch_size, loader._batched
        self._keeps_workers = loader.persistent_workers
        self._samplers = loader.batch_sampler, loader.sampler
        self._batch_maker = BatchMaker(
            dataset=self._prepare_start(any_loader, settings, loader.seed),
            is_iterable=loader._is_iterable,
            batched=loader._batched,
            drop_last=loader.drop_last,
            collate_fn=loader.collate_fn,
            init_fn=loader.worker_init_fn,
            seed=loader.seed,
            worker=-1,
            num_workers=int(loader.num_workers),
            settings=settings,
        )
        self._open_engine(any_loader, epoch, places)
        self._keeper = self._loader = self._engine.keeper

    def begin(
        self,
        tasks: _core.Tasks,
        epoch: int,
        places: WorkerPositions | None,
        count_draws: Callable[[Any], Sequence[int]] | None,
    ) -> None:
        """Starts an epoch with these tasks. places: notes where the workers are in an iterable dataset. count_draws:
        see refill.wrap_of."""
        began_ns, self._began_ns = self._began_ns or time.monotonic_ns(), 0
        self.tasks, self.epoch, self.watch = tasks, None, None
        self._num_yielded = 0
        self._engine.use_places(places)
        self._begin_tasks(epoch, count_draws)
        self._show.begin(epoch, began_ns)

    @property
    def dataset(self) -> Any:
        """The dataset of the workers, as this process has it."""
        return self._batch_maker.dataset

    def name_sampler(self) -> str:
        """Returns the argument that the indices come from, and its class, for messages."""
        return start_errors.name_sampler(*self._samplers)

    def _batch_maker_of(self, worker: int) -> BatchMaker:
        return dataclasses.replace(self._batch_maker, worker=worker)

    def reraise(self, wrapped: Any, note: str) -> NoReturn:
        """Raises the exception that a worker sent, with a note."""
        reraise(wrapped, note)

    def _timeout_error(self) -> BaseException:
        return TimeoutError(
            f"headrace: no batch arrived within {self._wait_s} seconds; increase timeout, or set stall_after below it "
            "to see where the worker is" + help_on("worker-stalled")
        )

    def _prepare(self) -> Any:
        try:
            self._engine.warn_of_copies(stacklevel=3)
            return self._engine.answer(self, self._wait(), self._batch_size)
        except Exception as error:
            tracebacks.cut(error)
            raise error
