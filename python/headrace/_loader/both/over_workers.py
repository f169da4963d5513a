# SPDX-License-Identifier: Apache-2.0
"""OverWorkers: the base of both loaders' iterators over workers. It starts an Engine and asks it for batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from headrace import _core
from headrace._base import exception_text, lookup, signals
from headrace._loader.both.any_loader import AnyLoader
from headrace._loader.start import fork_hazards
from headrace._loader.trainer import engine, restart_state, shown, start_errors
from headrace._loader.trainer.worker_positions import WorkerPositions
from headrace._options import Settings
from headrace._samples import own_generators, refill, shareable, threaded
from headrace.sampling._watch import EpochIterator


class OverWorkers(EpochIterator):
    """See above. The loaders' iterators derive from it and from _core.Iterator. They have the methods that an
    EngineClient has, and set these attributes: `_wait_s` (most seconds that next() waits, or None), `_keeps_workers`
    (for another epoch), `_is_batched`."""

    tasks: _core.Tasks
    wrap: Callable[[Any], Any] | None
    _wait_s: float | None
    _keeps_workers: bool
    _is_batched: bool
    _engine: engine.Engine
    _is_torchs = True  # the worker info of the workers is torch's
    _is_repaired = False  # what cannot be pickled is made again in the workers
    _is_from_signal = staticmethod(signals.is_from_signal)

    def _prepare_start(self, loader: AnyLoader, settings: Settings, seed: int) -> Any:
        """Does what comes before the workers start. Returns the dataset that they get."""
        self._settings, self._seed = settings, seed
        if settings.freeze:
            loader.kept.freeze(loader.dataset)
        dataset = loader.kept.dataset_of(loader, settings)
        shareable.check(dataset, settings)
        if settings.rng == "sample":
            own_generators.warn_of_unreachable(own_generators.roots_of(loader.dataset, loader.collate_fn))
        method, parts = start_errors.start_method_of(loader.context), start_errors.parts_of_loader(loader.loader)
        fork_hazards.warn_of_shared_files(method, parts, loader.num_workers, self._is_torchs)
        self._show = loader.kept.show_of(settings)
        return dataset

    def _open_engine(
        self,
        loader: AnyLoader,
        epoch: int,
        places: WorkerPositions | None,
        for_device: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """Starts the workers. for_device: returns arguments of Engine, for each try."""
        tuning = loader.kept.tuning_of(loader, self._settings)
        size = lookup.attribute(loader.loader, "batch_size") if self._is_batched else 1
        threads = threaded.describe(self._settings.sample_threads, size, loader.prefetch_factor)

        def start(is_repaired: bool) -> engine.Engine:
            self._is_repaired = is_repaired
            return engine.Engine(
                self,  # type: ignore[arg-type] # it has these methods
                workers=loader.num_workers,
                prefetch_factor=loader.prefetch_factor,
                in_order=loader.in_order,
                limit_bytes=self._settings.limit_bytes,
                context=loader.processes,
                settings=self._settings,
                restart_mode=restart_state.restart_mode_of(loader.dataset, loader.is_iterable),
                seed=self._seed,
                show=self._show,
                sample_deaths=loader.kept.deaths,
                epoch=epoch,
                places=places,
                tuning=tuning,
                threads=threads,
                **for_device(),
            )

        parts, method = start_errors.parts_of_loader(loader.loader), start_errors.start_method_of(loader.context)
        self._engine = loader.kept.engine = start_errors.started(start, parts, method, self._settings.repair)

    def _begin_tasks(self, epoch: int, count_draws: Callable[[Any], Sequence[int]] | None) -> None:
        """Begins an epoch of the engine with the `tasks` of this iterator. count_draws: see refill.wrap_of."""
        self.wrap = refill.wrap_of(self._settings, self.tasks, self._is_batched, self._seed, epoch, count_draws)
        try:
            self._engine.begin(self, epoch, self._wait_s, self._keeps_workers)  # type: ignore[arg-type]
        except engine.Timeout as timeout:
            self._raise_timeout(timeout)

    def _wait(self) -> int:
        """Waits for the next answer, and returns its status. Raises StopIteration at the end of the epoch."""
        try:
            status = self._engine.next(self, self._wait_s)  # type: ignore[arg-type]
        except engine.Timeout as timeout:
            self._raise_timeout(timeout)
        if status is None:
            if not self._keeps_workers:
                self.close()
            shown.end_epoch(self._show)
            self._has_ended()
            raise StopIteration
        return status

    def _raise_timeout(self, timeout: engine.Timeout) -> NoReturn:
        error = self._timeout_error()
        exception_text.add_note(error, f"headrace: {timeout}")
        try:
            raise error from None
        finally:
            del error  # this frame is in its traceback: a cycle would keep the iterator and its workers

    def _timeout_error(self) -> BaseException:
        """Returns the exception for a batch that did not arrive in time."""
        raise NotImplementedError

    def batch_maker_of(self, worker: int) -> Any:
        """Returns the batch maker of worker number `worker`, to be sent to it."""
        maker = self._batch_maker_of(worker)
        return start_errors.repaired_pickle(maker) if self._is_repaired else maker

    def _batch_maker_of(self, worker: int) -> Any:
        raise NotImplementedError

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
        opened = getattr(self, "_engine", None)
        if opened is not None and not is_finalizing():  # at exit it is closed already, and modules are being cleared
            with signals.raised_later():
                opened.close()
