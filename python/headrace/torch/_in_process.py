# SPDX-License-Identifier: Apache-2.0
"""The iterator of a DataLoader with num_workers=0, and the warning about too many samples, which both iterators
give."""

from __future__ import annotations

import functools
import time
import warnings
from typing import Any

from headrace import _core, _options
from headrace._loader.trainer import in_process, shown
from headrace._loader.worker.batch_maker import count_local_trainers
from headrace._samples import deferred, draw, prepared
from headrace._samples.rows import Gatherer
from headrace.sampling._epoch import Epoch
from headrace.sampling._position import EpochPosition
from headrace.sampling._watch import EpochIterator, Watch
from headrace.torch import _agree, _beginning, _early_end, _internals, _iterable, _loader_options, _rows, _torchs
from headrace.torch._device import choose, move
from headrace.torch._per_loader import position_of

# In torch's words, so that users' warning filters match.
_LONGER = (
    "Length of IterableDataset {} was reported to be {}(when accessing len(dataloader)), but {} samples have been "
    "fetched. "
)
_LONGER_WITH_WORKERS = (
    "For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset replica at "
    "each worker. Please see https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
)


class CheckedIterator(EpochIterator):
    """A base of both iterators: does what torch's iterators do in __next__ before and after _next_data."""

    _warned_at = 0  # the number of the last batch that caused a warning
    # torch's own values, if its iterator has them.
    _IterableDataset_len_called: int | None = None
    _pin_memory_device: Any = None
    _profile_name = "enumerate(DataLoader)"

    def _prepare(self: Any) -> Any:
        # All in one frame, so that warnings name the caller's line. A profiler's record is opened only if a profiler
        # is on, because opening it takes longer than making a small batch.
        if _internals.profiler_is_on():
            with _internals.profiler.record_function(self._profile_name):
                data = self._next_data()
        else:
            data = self._next_data()
        length, number = self._IterableDataset_len_called, self._num_yielded + 1
        if length is not None and number > length and number != self._warned_at:
            self._warned_at = number  # set first: if warnings are errors, the next call returns the batch
            warnings.warn(
                (_LONGER + _LONGER_WITH_WORKERS * (self._num_workers > 0)).format(self._dataset, length, number),
                stacklevel=2,
            )
        return data


class InProcessIterator(CheckedIterator, in_process.InProcessIterator, _internals.SingleProcessIterator):  # type: ignore[misc]
    """torch's iterator for num_workers=0, with two additions: an exception of a signal's handler loses no batch, and
    samples are made one by one if the policy needs that."""

    _is_over = False
    _collate_fn: Any
    _gatherer: Gatherer | None = None  # gathers the rows of the dataset, if it has such

    def __init__(self, loader: _torchs.DataLoader[Any], policy: _options.Policy) -> None:
        began_ns = time.monotonic_ns()
        options = choose.given(loader)
        self._device = None if options is None else choose.resolved(options[0])
        is_iterable = _internals.is_iterable(loader)
        beginning = None if is_iterable else _beginning.Beginning(loader)
        if beginning is not None:
            beginning.sampler_will_be_iterated()
        self._iterable_epoch = _iterable.begin(loader) if is_iterable else None
        with _iterable.generators_kept(loader, self._iterable_epoch):
            _internals.called_by_torch(super().__init__, loader if beginning is None else beginning.shown())
        dataset = _loader_options.dataset_of(loader, policy)
        if not is_iterable:
            self._dataset = self._dataset_fetcher.dataset = dataset
            prepared.begin(dataset, True)
        finishing: Any = _finishing(self._dataset_fetcher.collate_fn, policy)
        self._collate_fn = self._dataset_fetcher.collate_fn = finishing
        self._profile_name = f"enumerate(DataLoader)#{_internals.SingleProcessIterator.__name__}.__next__"
        if beginning is None:
            self._use_samples(loader, policy)
        else:
            beginning.iterator_was_made(self)
            self._use_indices(loader, policy, beginning)
        self._keeper = self._from.tasks
        if self._here is not None:
            _loader_options.engines.set(loader, self._here)
        if self._iterable_epoch is not None:
            _iterable.start(loader, self, self._iterable_epoch, lambda: self._is_over)
        self._show = _loader_options.show_of(loader)
        self._show.page()
        begun: Any = self.epoch if self._iterable_epoch is None else self._iterable_epoch
        self._show.begin(begun.number, began_ns)

    def _use_samples(self, loader: Any, policy: _options.Policy) -> None:
        batch_size = loader.batch_size if self._auto_collation else 0
        self._from: Any = draw.FromIterable(
            self._dataset_fetcher.dataset_iter, batch_size, bool(self._drop_last), policy, None
        )
        self._made_by = self._collate_fn
        if policy.is_per_sample:
            seed = _loader_options.seed_of(loader, self._base_seed)
            self._here = in_process.InProcessEpoch(self._from.tasks, seed, self._from.take_bad)
            self._made_by = functools.partial(self._here.noting, self._collate_fn)

    def _use_indices(self, loader: Any, policy: _options.Policy, beginning: _beginning.Beginning) -> None:
        epoch = beginning.epoch(self)
        beginning.has_begun(epoch)
        tasks = epoch.tasks
        self.epoch = epoch
        self.watch = _agree.watch_of(loader, epoch)
        self._from = draw.FromSampler(tasks, functools.partial(_has_drawn, position_of(loader), epoch, self.watch))
        self._made_by = self._dataset_fetcher.fetch
        self._gatherer = _loader_options.gatherer_of(loader)
        self._threads = self._collate_fn.threads
        if policy.is_per_sample:
            seed = _loader_options.seed_of(loader, self._base_seed)
            samples = in_process.InProcessSamples(
                self._dataset,
                policy,
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
        is_iterable = self._dataset_kind == _internals.DatasetKind.Iterable
        _early_end.warn_here(self, error, None if is_iterable else drawn)

    def _fetch(self, drawn: Any) -> Any:
        data = None if self._gatherer is None else _rows.batch_of(self._gatherer, drawn, self._threads)
        if data is None:
            data = self._made_by(drawn)
        if self._device is not None:
            return move.move(data, self._device)
        return _internals.pin(data, self._pin_memory_device) if self._pin_memory else data


def _finishing(collate_fn: Any, policy: _options.Policy) -> deferred.Finishing:
    """Returns the collate function, which makes deferred images first, with the threads of this process."""
    threads = policy.threads
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
