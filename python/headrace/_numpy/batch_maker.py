# SPDX-License-Identifier: Apache-2.0
"""The batch maker of a worker of headrace.Loader: takes samples from the dataset and makes batches of them.

headrace._loader.worker.main runs it in the worker process. The fork server imports this module before it forks workers.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace import _core, _options
from headrace._base import raising
from headrace._loader.trainer import restart_state
from headrace._loader.worker import diagnostics
from headrace._loader.worker.batch_maker import DatasetBatchMaker
from headrace._loader.worker.iterable_fetcher import IterableFetcher
from headrace._loader.worker.library_threads import limit_library_threads
from headrace._numpy.collate import default_collate
from headrace._numpy.worker_error import WorkerError
from headrace._samples import dataset_epochs, prepared
from headrace._samples import rows as sample_rows
from headrace._samples.maker import SampleMaker
from headrace._samples.start_state import StartState


@dataclass(frozen=True)
class WorkerInfo:
    """Describes a worker process: its number `id` from 0 to `num_workers` - 1, its `seed`, and its copy of the dataset.

    seed: that of the loader, so it is the same in all workers and epochs. A generator of a worker's own is seeded in
    worker_init_fn with random.getrandbits(32), which differs in each worker and epoch.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


_worker_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Returns the WorkerInfo in a worker of a headrace.Loader, and None in other processes. An iterable dataset uses
    it to give each worker its own part of the samples."""
    return _worker_info


class Fetcher:
    """Takes the samples of given indices from a map-style dataset."""

    def __init__(self, dataset: Any, batched: bool) -> None:
        self._dataset = dataset
        self._batched = batched
        self._is_prepared = isinstance(dataset, prepared.PreparedDataset)

    def fetch(self, indices: Any) -> Any:
        """Returns the samples of a batch, or the one sample without batches."""
        if not self._batched:
            return self._dataset[indices]
        if self._is_prepared:
            return self._dataset.__getitems__(indices)
        return [self._dataset[index] for index in indices]


def _seed_all(seed: int, epoch: int, worker: int) -> None:
    """Seeds random, and numpy if it is imported already, from the loader's seed, the epoch and the worker's number."""
    random.seed(f"{seed} {epoch} {worker}")
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed(np.random.SeedSequence([seed, epoch, worker]).generate_state(8))


@dataclass
class BatchMaker(DatasetBatchMaker):
    """Implements headrace._loader.worker.batch_maker.BatchMaker."""

    dataset: Any
    is_iterable: bool
    batched: bool
    drop_last: bool
    collate_fn: Callable[[list[Any]], Any] | None
    init_fn: Callable[[int], None] | None
    seed: int
    worker: int
    num_workers: int
    settings: _options.Settings

    flavor: int | tuple[str, ...] = _core.FLAVOR_NUMPY

    def prepare(self, port: _core.Port, start: StartState) -> None:
        global _worker_info
        diagnostics.record_stacks_and_stderr(port)
        _core.use_numpy()
        limit_library_threads()
        _worker_info = WorkerInfo(self.worker, self.num_workers, self.seed, prepared.shown(self.dataset))
        self._port = port
        self.notes = None
        self.collates_in_c = self.batched and self.collate_fn is None
        self._maker: SampleMaker | None = None
        if not self.is_iterable:
            self._maker = SampleMaker(
                port,
                self.dataset,
                self.settings,
                start,
                self.seed,
                self.worker,
                self.batched,
                self.collate_fn,
            )
            self._take_bad = self._maker.take_bad
        mode = restart_state.restart_mode_of(self.dataset, self.is_iterable)
        self._state_is_wanted = mode == restart_state.STATE
        self._begin(start, self.init_fn)

    def begin_epoch(self, start: StartState) -> None:
        if self._maker is not None:
            self._maker.begin_epoch(start)
        self._begin(start, None)

    def _begin(self, start: StartState, init_fn: Callable[[int], None] | None) -> None:
        self._made = start.made
        self._is_ended = start.is_ended
        self._state = start.state
        _seed_all(self.seed, start.epoch, self.worker)
        self._fetcher = None
        try:
            if init_fn is not None:
                init_fn(self.worker)
            self._begin_iterable(start)
            dataset_epochs.set_epochs(self.dataset, start.epochs)
            prepared.begin(self.dataset, self.worker == 0, self._port.note)
            if self._state is None:
                self._fetcher = self._new_fetcher()
        except Exception:
            self._note_failure()

    def _new_fetcher(self) -> Any:
        if not self.is_iterable:
            self._gatherer = sample_rows.gatherer_of_source(self.dataset) if self.collates_in_c else None
            return Fetcher(self.dataset, self.batched)
        fetcher = IterableFetcher(
            self.dataset, self.batched, self.drop_last, self.settings, self.worker, last=self._last
        )
        self._take_bad, self._take_retried = fetcher.take_bad, fetcher.take_retried
        return fetcher

    def fetch(self, task: Any) -> Any:
        samples = self._fetch_and_note(task)
        if self.collate_fn is None or not self.batched:
            return samples
        self._port.begin_collate()
        return self.collate_fn(samples)

    def _fetch(self, task: Any) -> Any:
        if self._maker is None:
            return self._fetcher.fetch(task)
        indices = self._maker.receive(task)
        rows = None if self._maker.has_bans else self._gather(indices)
        if rows is not None:
            return rows
        if self._maker.makes(indices):
            return self._maker.make(indices)
        return self._fetcher.fetch(self._port.noting(indices) if self.batched else indices)

    def collate(self, samples: Any) -> Any:
        return default_collate(samples)

    def wrap_exception(self) -> raising.Sent:
        error = sys.exc_info()[1]
        assert error is not None
        origin = f"Caught {type(error).__name__} in Loader worker process {self.worker}."
        text = f"{origin}\nOriginal {raising.traceback_of(error)}"
        return raising.Sent.of(WorkerError(type(error), text), text)
