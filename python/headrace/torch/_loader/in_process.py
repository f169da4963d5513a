# SPDX-License-Identifier: Apache-2.0
"""Iterates over a DataLoader with num_workers=0."""

from __future__ import annotations

import functools
import time
from typing import Any

from headrace import _core, _options
from headrace._loader.trainer import in_process, shown
from headrace._loader.worker.batch_maker import count_local_trainers
from headrace._samples import deferred, draw, prepared
from headrace._samples.rows import Gatherer
from headrace.sampling._epoch import Epoch
from headrace.sampling._position import EpochPosition
from headrace.sampling._watch import Watch
from headrace.torch._batches import early_end, rows
from headrace.torch._device import choose, move
from headrace.torch._loader import options as _loader_options
from headrace.torch._loader.checked import CheckedIterator
from headrace.torch._own import classes, loaders, workers
from headrace.torch._own.table import position_of
from headrace.torch._ranks import agree
from headrace.torch._state import beginning as _beginning
from headrace.torch._state import iterable


class InProcessIterator(CheckedIterator, in_process.InProcessIterator, classes.SingleProcessIterator):  # type: ignore[misc]
    """torch's iterator for num_workers=0, with two additions: an exception of a signal's handler loses no batch, and
    samples are made one by one if the settings need that."""

    _is_over = False
    _collate_fn: Any
    _gatherer: Gatherer | None = None  # gathers the rows of the dataset, if it has such

    def __init__(self, loader: classes.DataLoader[Any], settings: _options.Settings) -> None:
        began_ns = time.monotonic_ns()
        self._device = None if settings.device is None else choose.resolved(settings.device)
        is_iterable = loaders.is_iterable(loader)
        beginning = None if is_iterable else _beginning.Beginning(loader)
        if beginning is not None:
            beginning.sampler_will_be_iterated()
        self._iterable_epoch = iterable.begin(loader) if is_iterable else None
        with iterable.generators_kept(loader, self._iterable_epoch):
            loaders.called_by_torch(super().__init__, loader if beginning is None else beginning.shown())
        dataset = _loader_options.dataset_of(loader, settings)
        if not is_iterable:
            self._dataset = self._dataset_fetcher.dataset = dataset
            prepared.begin(dataset, True)
        finishing: Any = _finishing(self._dataset_fetcher.collate_fn, settings)
        self._collate_fn = self._dataset_fetcher.collate_fn = finishing
        self._profile_name = f"enumerate(DataLoader)#{classes.SingleProcessIterator.__name__}.__next__"
        if beginning is None:
            self._use_samples(loader, settings)
        else:
            beginning.iterator_was_made(self)
            self._use_indices(loader, settings, beginning)
        self._keeper = self._from.tasks
        if self._here is not None:
            _loader_options.engines.set(loader, self._here)
        if self._iterable_epoch is not None:
            iterable.start(loader, self, self._iterable_epoch, lambda: self._is_over)
        self._show = _loader_options.show_of(loader)
        self._show.page()
        begun: Any = self.epoch if self._iterable_epoch is None else self._iterable_epoch
        self._show.begin(begun.number, began_ns)

    def _use_samples(self, loader: Any, settings: _options.Settings) -> None:
        batch_size = loader.batch_size if self._auto_collation else 0
        self._from: Any = draw.FromIterable(
            self._dataset_fetcher.dataset_iter, batch_size, bool(self._drop_last), settings, None
        )
        self._made_by = self._collate_fn
        if settings.is_per_sample:
            seed = settings.seed_or(self._base_seed)
            self._here = in_process.InProcessEpoch(self._from.tasks, seed, self._from.take_bad)
            self._made_by = functools.partial(self._here.noting, self._collate_fn)

    def _use_indices(self, loader: Any, settings: _options.Settings, beginning: _beginning.Beginning) -> None:
        epoch = beginning.epoch(self)
        beginning.has_begun(epoch)
        tasks = epoch.tasks
        self.epoch = epoch
        self.watch = agree.watch_of(loader, epoch)
        self._from = draw.FromSampler(tasks, functools.partial(_has_drawn, position_of(loader), epoch, self.watch))
        self._made_by = self._dataset_fetcher.fetch
        self._gatherer = _loader_options.gatherer_of(loader)
        self._threads = self._collate_fn.threads
        if settings.is_per_sample:
            seed = settings.seed_or(self._base_seed)
            samples = in_process.InProcessSamples(
                self._dataset,
                settings,
                seed,
                epoch.number,
                self._auto_collation,
                self._collate_fn,
                tasks,
                loader.collate_fn,
                epoch.count_draws,
            )
            self._here, self._made_by = samples.here, samples.fetch

    def _next_data(self) -> Any:
        try:
            data = deferred.read(self._make_next, None)
        except StopIteration:
            self._is_over = True
            shown.end_epoch(self._show)
            self._has_ended()
            raise
        if self._iterable_epoch is not None:
            self._iterable_epoch.made_in_process(data)
        return data

    def _make_next(self, _: None) -> Any:
        return self._make(self._from, self._fetch)

    def _handle_stop(self, error: StopIteration, drawn: Any) -> None:
        is_iterable = self._dataset_kind == classes.DatasetKind.Iterable
        early_end.warn_here(self, error, None if is_iterable else drawn)

    def _fetch(self, drawn: Any) -> Any:
        data = None if self._gatherer is None else rows.batch_of(self._gatherer, drawn, self._threads)
        if data is None:
            data = self._made_by(drawn)
        if self._device is not None:
            return move.move(data, self._device)
        return workers.pin(data, self._pin_memory_device) if self._pin_memory else data


def _finishing(collate_fn: Any, settings: _options.Settings) -> deferred.Finishing:
    """Returns the collate function, which makes deferred images first, with the threads of this process."""
    threads = settings.threads
    if threads == _options.AUTO:
        machine = _core.machine()
        quota = machine["cgroup_millicores"]
        cores = machine["core_count"] if quota is None else min(machine["core_count"], max(1, quota // 1000))
        threads = deferred.count_threads(threads, cores // count_local_trainers())
    return deferred.Finishing(collate_fn, int(threads), keeps=True)


def _has_drawn(position: EpochPosition, epoch: Epoch, watch: Watch | None) -> None:
    """Called after the first indices of an epoch were drawn. It is not given the loader, which its own position would
    keep then: with steps_per_epoch a position has the iterator, and the iterator has this function."""
    epoch.indices.was_drawn()
    _beginning.warn_of_same_order(position, epoch)
    if watch is not None:
        watch.begin()
