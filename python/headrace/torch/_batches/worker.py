# SPDX-License-Identifier: Apache-2.0
"""The batch maker of a worker of headrace.torch.DataLoader. It does what torch's worker does, in the same order.

headrace._loader.worker.main runs it in the worker process.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

from headrace import _core
from headrace._base import raising
from headrace._loader.trainer import restart_state
from headrace._loader.worker import diagnostics, inherited
from headrace._loader.worker.batch_maker import DatasetBatchMaker, EndOfData, count_local_trainers
from headrace._loader.worker.iterable_fetcher import IterableFetcher
from headrace._loader.worker.library_threads import limit_library_threads
from headrace._options import Settings
from headrace._samples import dataset_epochs, deferred, image_counts, prepared
from headrace._samples.maker import SampleMaker
from headrace._samples.start_state import StartState
from headrace._tensors import extension, torch_names
from headrace.torch._batches import default_collate, early_end
from headrace.torch._batches import rows as _rows
from headrace.torch._batches.packed import names_of
from headrace.torch._own import classes, originals, workers
from headrace.torch._own import collate as _collate

_TENSORS = {torch.Tensor}
_default_convert = _collate.default_convert


def _convert(data: Any) -> Any:
    """Does what torch's default_convert does, but returns a list of tensors as it is: torch checks each tensor, which
    takes 0.3 us, and copies the list."""
    if type(data) is list and set(map(type, data)) == _TENSORS:
        return data
    return _default_convert(data)


@dataclass
class BatchMaker(DatasetBatchMaker):
    """Implements the protocol BatchMaker. The fields are the arguments of torch's worker loop."""

    dataset_kind: int
    dataset: Any
    auto_collation: bool
    collate_fn: Any
    drop_last: bool
    base_seed: int
    init_fn: Any
    worker: int
    num_workers: int
    settings: Settings
    seed: int  # seeds the samples for rng="sample"

    flavor: int | tuple[str, ...] = _core.FLAVOR_TENSOR

    def prepare(self, port: _core.Port, start: StartState) -> None:
        extension.use_torch()
        with inherited.keeping_sigterm():
            workers.report_signals()
        diagnostics.record_stacks_and_stderr(port)
        workers.set_thread_name("pt_data_worker")
        workers.forget_library_finalizers()
        _collate.collate_in_private_memory()
        limit_library_threads()
        self._seed()
        self.notes = None
        self.collates_in_c = False
        self._port = port
        port.threads = deferred.count_threads(self.settings.threads, port.core_share(count_local_trainers()))
        self._state_is_wanted = False
        self._made = start.made
        self._is_ended = start.is_ended
        self._maker: SampleMaker | None = None
        self._is_plain = False
        self._state = start.state
        if self.dataset_kind == classes.DatasetKind.Map:
            self._maker = SampleMaker(
                port,
                self.dataset,
                self.settings,
                start,
                self.seed,
                self.worker,
                self.auto_collation,
                self.collate_fn,
            )
            self._take_bad = self._maker.take_bad
        try:
            if self.init_fn is not None:
                self.init_fn(self.worker)
            prepared.begin(self.dataset, self.worker == 0, self._port.note)
            self._begin(start)
        except Exception:
            self._note_failure()

    def _begin(self, start: StartState) -> None:
        if self._maker is None:
            self._state_is_wanted = restart_state.restart_mode_of(self.dataset, True) == restart_state.STATE
        self._begin_iterable(start)
        if self._state is None:
            self._fetcher = self._new_fetcher()

    def _seed(self) -> None:
        seed = self.base_seed + self.worker
        random.seed(seed)
        torch.manual_seed(seed)
        if torch_names.has_numpy():
            import numpy as np

            np.random.seed(workers.numpy_seed(self.base_seed, self.worker))
        workers.set_worker_info(
            id=self.worker, num_workers=self.num_workers, seed=seed, dataset=prepared.shown(self.dataset)
        )

    def _new_fetcher(self) -> Any:
        packed = names_of(self.collate_fn)
        self.flavor = _core.FLAVOR_TENSOR if packed is None else packed
        is_known = packed is not None or default_collate.is_torchs(self.collate_fn)
        if not self.auto_collation and _default_convert is not None and self.collate_fn is _default_convert:
            self.collate_fn = _convert
        self._collate_in_c(self.auto_collation and is_known and originals.fetches())
        if self._maker is None and self.settings.is_per_sample:
            return self._new_iterable_fetcher(self._finishing)
        fetcher = classes.DatasetKind.create_fetcher(
            self.dataset_kind, self.dataset, self.auto_collation, self._finishing, self.drop_last
        )
        is_idle = self._maker is not None and self._maker.is_idle
        self._is_plain = is_idle and self._failure is None and self._takes_each()
        if self._maker is not None and self.auto_collation:
            self._gatherer = _rows.gatherer_of(self.dataset, self.collate_fn)
        return fetcher

    def _collate_in_c(self, collates_in_c: bool) -> None:
        """Chooses what the fetcher calls with the samples of a batch."""
        self.collates_in_c = collates_in_c
        self._finishing: Any = deferred.Passing()
        if not collates_in_c:
            self._finishing = deferred.Finishing(
                self.collate_fn, self._port.threads, keeps=True, begin=self._port.begin_collate
            )

    def _call_replaced(self) -> None:
        """Lets torch's fetcher collate, because a program has replaced its `fetch` in this worker."""
        if isinstance(self._fetcher, (classes.MapFetcher, classes.IterableFetcher)):
            self._collate_in_c(False)
            self._fetcher.collate_fn = self._finishing

    def _new_iterable_fetcher(self, collate_fn: Any) -> Any:
        fetcher = IterableFetcher(
            self.dataset, self.auto_collation, self.drop_last, self.settings, self.worker, collate_fn, self._last
        )
        self._take_bad, self._take_retried = fetcher.take_bad, fetcher.take_retried
        return fetcher

    def _takes_each(self) -> bool:
        """Returns True if the fetcher takes the samples of a map-style dataset one by one."""
        return self.auto_collation and prepared.takes_each(self.dataset)

    def begin_epoch(self, start: StartState) -> None:
        self._made = 0
        self._is_ended = False
        self._state = self._fetcher = None
        self._is_plain = False
        try:
            self._begin_iterable(start)
            if self._maker is not None:
                self._maker.begin_epoch(start)
            dataset_epochs.set_epochs(self.dataset, start.epochs)
            prepared.begin(self.dataset, self.worker == 0, self._port.note)
            self._fetcher = self._new_fetcher()
        except Exception:
            self._note_failure()

    def fetch(self, task: Any) -> Any:
        return deferred.read(self._fetch_task, task)

    def _fetch_task(self, task: Any) -> Any:
        if self.collates_in_c and not originals.fetches():
            self._call_replaced()
        if not self._is_plain:
            return self._fetch_and_note(task)
        rows = self._gather(task)  # the usual case: samples by index, without options
        return self._fetch_samples(task) if rows is None else rows

    def _fetch_samples(self, indices: Any) -> Any:  # shortcut: plain-fetch
        """Returns what the fetcher makes of indices. It is told which sample is being made, if it takes them one by
        one: a program may have replaced it, or have given the dataset __getitems__."""
        takes_each = originals.fetches() and self._takes_each()
        samples = self._fetcher.fetch(self._port.noting(indices) if takes_each else indices)
        self._prove(samples)
        return samples

    def _fetch(self, task: Any) -> Any:
        indices = task
        if self._maker is not None:
            indices = self._maker.receive(task)
            rows = None if self._maker.has_bans else self._gather(indices)
            if rows is not None:
                return rows
            if self._maker.makes(indices):
                samples = self._finishing(self._maker.make(indices))
                self._prove(samples)  # rows that can be gathered have no bad samples
                return samples
        try:
            return self._fetcher.fetch(indices) if self._maker is None else self._fetch_samples(indices)
        except StopIteration as error:
            if self.dataset_kind != classes.DatasetKind.Iterable:
                raise
            if self.auto_collation and not early_end.has_ended(self._fetcher):
                early_end.warn_of_collate(error, self.worker)
            raise EndOfData from None

    def still_collates_in_c(self) -> bool:
        return type(self.flavor) is tuple or default_collate.is_as_ever()

    def finish(self, samples: Any) -> bool:
        has_made = deferred.finish(samples, self._port.threads, keeps=False)
        image_counts.post()
        return has_made

    def collate(self, samples: Any) -> Any:
        self.finish(samples)
        return self.collate_fn(samples)

    def wrap_exception(self) -> raising.Sent:
        wrapped = workers.wrap_exception(f"in DataLoader worker process {self.worker}")
        return raising.Sent.of(wrapped, workers.text_of_wrapped(wrapped))
