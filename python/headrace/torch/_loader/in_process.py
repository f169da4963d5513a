# SPDX-License-Identifier: Apache-2.0
"""Iterates over a DataLoader with num_workers=0."""

from __future__ import annotations

import functools
import time
from typing import Any

from headrace import _core, _options
from headrace._loader.both import iterable as both_iterable
from headrace._loader.both import ranks
from headrace._loader.both.in_process import InProcess, drawn_of
from headrace._loader.worker.batch_maker import count_local_trainers
from headrace._samples import deferred, prepared, shareable
from headrace.torch._batches import early_end, rows
from headrace.torch._device import choose, move
from headrace.torch._loader.as_any import AsAnyLoader
from headrace.torch._loader.checked import CheckedIterator
from headrace.torch._own import classes, iterators, loaders, workers
from headrace.torch._samplers import iterables
from headrace.torch._state import iterable, past_draws
from headrace.torch._state.beginning import Beginning


class InProcessIterator(CheckedIterator, InProcess, classes.SingleProcessIterator):  # type: ignore[misc]
    """torch's iterator for num_workers=0, with two additions: an exception of a signal's handler loses no batch, and
    samples are made one by one if the settings need that."""

    _collate_fn: Any

    def __init__(self, any_loader: AsAnyLoader, settings: _options.Settings) -> None:
        began_ns = time.monotonic_ns()
        loader = any_loader.loader
        self._device = None if settings.device is None else choose.resolved(settings.device)
        shareable.check(loader.dataset, settings)
        beginning = None if any_loader.is_iterable else Beginning(any_loader)
        if beginning is not None:
            beginning.sampler_will_be_iterated()
        self._iterable_epoch = both_iterable.begin(any_loader) if beginning is None else None
        with iterable.generators_kept(loader, self._iterable_epoch):
            loaders.called_by_torch(super().__init__, loader if beginning is None else beginning.shown())
        dataset = any_loader.kept.dataset_of(any_loader, settings)
        if beginning is not None:
            self._dataset = self._dataset_fetcher.dataset = dataset
            prepared.begin(dataset, True)
        finishing: Any = _finishing(self._dataset_fetcher.collate_fn, settings)
        self._collate_fn = self._dataset_fetcher.collate_fn = finishing
        self._profile_name = f"enumerate(DataLoader)#{classes.SingleProcessIterator.__name__}.__next__"
        if beginning is None:
            seed, samples = self._seed(settings), self._dataset_fetcher.dataset_iter
            self._samples = samples
            collate = finishing if settings.is_per_sample else None
            last = None if self._iterable_epoch is None else self._iterable_epoch.last_state
            self._use_samples(samples, 0, bool(self._drop_last), settings, collate, seed, last)
            lists, drop_last = iterators.iterator_of_sampler(self), bool(self._drop_last)
            index_sampler = loaders.index_sampler(loader)
            self._from.tasks.begin_by(functools.partial(_begin, index_sampler, lists, samples, drop_last))
        else:
            beginning.iterator_was_made(self)
            self._begin_epoch(any_loader, settings, beginning)
        self._is_ready(any_loader)
        if self._iterable_epoch is not None:
            iterable.start(any_loader, self, self._iterable_epoch, lambda: self.is_over)
        begun: Any = self.epoch if self._iterable_epoch is None else self._iterable_epoch
        self._begin_show(any_loader, settings, begun.number, began_ns)

    def _begin_epoch(self, any_loader: AsAnyLoader, settings: _options.Settings, beginning: Beginning) -> None:
        epoch = beginning.epoch(self)
        beginning.has_begun(epoch)
        self.epoch = epoch
        self.watch = ranks.watch_of(any_loader, epoch)
        self._gatherer = any_loader.gatherer()
        self._threads = self._collate_fn.threads
        self._use_indices(
            epoch,
            drawn_of(any_loader.kept.position, epoch, self.watch, past_draws.note),
            None,
            settings,
            dataset=self._dataset,
            seed=self._seed(settings),
            batched=self._auto_collation,
            collate_fn=self._collate_fn,
            users_collate=any_loader.collate_fn,
        )

    def _seed(self, settings: _options.Settings) -> int:
        """Returns the seed of samples that are made one by one. The option is not read otherwise: a subclass may use
        its name for something else."""
        return settings.seed_or(self._base_seed) if settings.is_per_sample else 0

    def _next_data(self) -> Any:
        try:
            data = deferred.read(self._make_next, None)
        except StopIteration:
            self._end()
            raise
        if self._iterable_epoch is not None:
            self._iterable_epoch.made_in_process(data)
        return data

    def _make_next(self, _: None) -> Any:
        return self._make(self._from, self._fetch)

    def _handle_stop(self, error: StopIteration, drawn: Any) -> None:
        is_iterable = self._dataset_kind == classes.DatasetKind.Iterable
        early_end.warn_here(self, error, None if is_iterable else drawn)

    def _make_batch(self, drawn: Any) -> Any:
        """Returns the batch of what was drawn. The fetcher is looked up each time, as torch's iterator does."""
        fetcher, gathered = iterators.fetcher_of(self), None
        if self._gatherer is not None and iterators.fetches_as_made(fetcher, self._dataset, self._collate_fn):
            gathered = self._gatherer.rows(drawn)
        proof = None if self._gatherer is None or gathered is None else self._gatherer.proof(gathered)
        data = rows.batch_of(gathered, self._threads) if gathered is not None and proof is None else None
        if data is not None:
            return data
        if self._made_by is not None:
            data = self._made_by(drawn)
        elif self._iterable_epoch is not None:
            data = iterators.collate_samples(self, self._samples, drawn)
        else:
            data = fetcher.fetch(drawn)
        if proof is not None:
            proof.compare(data)
        return data

    def _fetch(self, drawn: Any) -> Any:
        data = self._make_batch(drawn)
        if self._device is not None:
            return move.move(data, self._device)
        return workers.pin(data, self._pin_memory_device) if self._pin_memory else data


def _begin(index_sampler: Any, lists: Any, samples: Any, drop_last: bool) -> tuple[Any, ...]:
    """Returns the arguments of _core.Tasks for an iterable dataset, when its first sample is drawn."""
    sizes = iterables.sizes_of(index_sampler)
    return samples, iterables.SizesOfLists(lists) if sizes is None else sizes, drop_last, False, True


def _finishing(collate_fn: Any, settings: _options.Settings) -> deferred.Finishing:
    """Returns the collate function, which makes deferred images first, with the threads of this process."""
    threads = settings.threads
    if threads == _options.AUTO:
        machine = _core.machine()
        quota = machine["cgroup_millicores"]
        cores = machine["core_count"] if quota is None else min(machine["core_count"], max(1, quota // 1000))
        threads = deferred.count_threads(threads, cores // count_local_trainers())
    return deferred.Finishing(collate_fn, int(threads), keeps=True)
