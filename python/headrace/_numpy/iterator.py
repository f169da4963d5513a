# SPDX-License-Identifier: Apache-2.0
"""The iterator of a headrace.Loader with workers. The loader creates it, and keeps it with persistent workers."""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from headrace import _core, _options
from headrace._base import exception_text, signals
from headrace._base.help_key import help_on
from headrace._loader.trainer import engine as _engine
from headrace._loader.trainer import restart_state, shown, start_errors
from headrace._loader.trainer.worker_positions import WorkerPositions
from headrace._numpy.batch_maker import BatchMaker
from headrace._numpy.worker_error import reraise
from headrace._samples import own_generators, refill
from headrace.sampling._watch import EpochIterator

if TYPE_CHECKING:
    from headrace._numpy.loader import Loader


class WorkerIterator(EpochIterator, _core.Iterator):
    """Iterates over a Loader with workers: for one epoch, or for several with persistent workers."""

    _is_from_signal = staticmethod(signals.is_from_signal)

    def __init__(self, loader: Loader, epoch: int, places: WorkerPositions | None) -> None:
        self._began_ns = time.monotonic_ns()
        self._show = loader._show_of()
        self._places = places
        self._timeout = loader.timeout or None
        self._batch_size = loader.batch_size
        self._keep_workers = loader.persistent_workers
        settings = _options.Settings.of(_options.own_values(loader), {}, loader._is_iterable)
        if settings.freeze:
            from headrace.frozen._attributes import Freezer  # imported only if it is needed

            loader.__dict__.setdefault("_freezer", Freezer()).freeze(loader.dataset)
        if settings.rng == "sample":
            own_generators.warn_of_unreachable(own_generators.roots_of(loader.dataset, loader.collate_fn))
        self._batch_maker = BatchMaker(
            dataset=loader._dataset_of(settings),
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
        self._is_repaired = False
        self._samplers = loader.batch_sampler, loader.sampler
        parts = start_errors.parts_of_loader(loader)
        method = start_errors.start_method_of(loader.multiprocessing_context)
        start = functools.partial(self._start, loader, settings, epoch)
        self._engine = loader._engine = start_errors.started(start, parts, method, settings.repair)
        self._keeper = self._loader = self._engine.keeper

    def _start(self, loader: Loader, settings: _options.Settings, epoch: int, is_repaired: bool) -> _engine.Engine:
        self._is_repaired = is_repaired
        return _engine.Engine(
            self,
            workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            in_order=loader.in_order,
            limit_bytes=settings.limit_bytes,
            context=loader.multiprocessing_context or multiprocessing,
            settings=settings,
            restart_mode=restart_state.restart_mode_of(loader.dataset, loader._is_iterable),
            seed=loader.seed,
            show=self._show,
            sample_deaths=loader._blame,
            epoch=epoch,
            places=self._places,
            tuning=loader._tuning_of(settings),
        )

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
        self.wrap = refill.wrap_of(
            self._batch_maker.settings, tasks, self._batch_maker.batched, self._batch_maker.seed, epoch, count_draws
        )
        try:
            self._engine.begin(self, epoch, self._timeout, self._keep_workers)
        except _engine.Timeout as timeout:
            self._raise_timeout(timeout)
        self._show.begin(epoch, began_ns)

    def _raise_timeout(self, timeout: _engine.Timeout) -> NoReturn:
        error = TimeoutError(
            f"headrace: no batch arrived within {self._timeout} seconds; increase timeout, or set stall_after below it "
            "to see where the worker is" + help_on("worker-stalled")
        )
        exception_text.add_note(error, f"headrace: {timeout}")
        raise error from None

    @property
    def dataset(self) -> Any:
        """The dataset of the workers, as this process has it."""
        return self._batch_maker.dataset

    def name_sampler(self) -> str:
        """Returns the argument that the indices come from, and its class, for messages."""
        return start_errors.name_sampler(*self._samplers)

    def batch_maker_of(self, worker: int) -> BatchMaker:
        """Returns the batch maker of worker number `worker`, to be sent to it."""
        maker = dataclasses.replace(self._batch_maker, worker=worker)
        return start_errors.repaired_pickle(maker) if self._is_repaired else maker

    def reraise(self, wrapped: Any, note: str) -> NoReturn:
        reraise(wrapped, note)

    def _prepare(self) -> Any:
        self._engine.warn_of_copies(stacklevel=3)
        try:
            status = self._engine.next(self, self._timeout)
        except _engine.Timeout as timeout:
            self._raise_timeout(timeout)
        if status is None:
            if not self._keep_workers:
                self._engine.close()
            shown.end_epoch(self._show)
            self._has_ended()
            raise StopIteration
        return self._engine.answer(self, status, self._batch_size)

    def report(self) -> dict[str, Any]:
        """Returns counters: see headrace.Loader.report."""
        return self._engine.report()

    @property
    def is_closed(self) -> bool:
        """Returns True if the workers have been ended."""
        return self._engine.is_closed

    @property
    def has_lost_workers(self) -> bool:
        """True if the workers have been ended, or if one has died and was not replaced."""
        return self._engine.has_lost_workers

    def close(self) -> None:
        """Ends the workers now. Batches that the program keeps stay readable."""
        self._engine.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not is_finalizing():  # at exit it is closed already, and modules are being cleared
            with signals.raised_later():
                engine.close()
