# SPDX-License-Identifier: Apache-2.0
"""The iterator of a headrace.Loader with num_workers=0: makes the batches in this process."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace import _core, _options
from headrace._loader.trainer import in_process, shown
from headrace._numpy.batch_maker import Fetcher
from headrace._samples import draw, prepared
from headrace._samples.rows import Gatherer
from headrace.sampling._watch import EpochIterator

if TYPE_CHECKING:
    from headrace._numpy.loader import Loader


class InProcessIterator(EpochIterator, in_process.InProcessIterator):
    """Iterates over one epoch of a Loader with num_workers=0. was_drawn: is called after the first indices of a
    map-style dataset were drawn. was_made: is called after each batch. count_draws: see refill.wrap_of."""

    is_over = False
    was_made: Callable[[Any], None] | None = None

    def __init__(
        self,
        loader: Loader,
        tasks: _core.Tasks,
        epoch: int,
        was_drawn: Callable[[], None] | None = None,
        count_draws: Callable[[Any], Sequence[int]] | None = None,
    ) -> None:
        began_ns = time.monotonic_ns()
        settings = _options.Settings.of(_options.own_values(loader), {}, loader._is_iterable)
        self._is_batched = loader._batched
        self._collate = loader._batch_function() if self._is_batched else _as_is
        if loader._is_iterable:
            batch_size = (loader.batch_size or 0) if self._is_batched else 0
            self._from: Any = draw.FromIterable(iter(loader.dataset), batch_size, loader.drop_last, settings, None)
            self._fetch: Any = self._collate
            if settings.is_per_sample:
                self._here = in_process.InProcessEpoch(self._from.tasks, loader.seed, self._from.take_bad)
                self._fetch = functools.partial(self._here.noting, self._collate)
        else:
            self._from = draw.FromSampler(tasks, was_drawn)
            dataset = loader._dataset_of(settings)
            prepared.begin(dataset, True)
            fetcher = Fetcher(dataset, self._is_batched)
            self._fetch = functools.partial(_fetch_and_collate, fetcher, self._collate)
            gatherer = loader._gatherer()
            if settings.is_per_sample:
                samples = in_process.InProcessSamples(
                    dataset,
                    settings,
                    loader.seed,
                    epoch,
                    self._is_batched,
                    self._collate,
                    tasks,
                    loader.collate_fn,
                    count_draws,
                )
                self._here, self._fetch = samples.here, samples.fetch
            if gatherer is not None:
                self._fetch = functools.partial(_gather, gatherer, self._fetch)
        self._keeper = self._from.tasks
        if self._here is not None:
            loader._engine = self._here
        self._show = loader._show_of()
        self._show.page()
        self._show.begin(epoch, began_ns)

    def _prepare(self) -> Any:
        try:
            data = self._make(self._from, self._fetch)
        except StopIteration:
            self.is_over = True
            shown.end_epoch(self._show)
            self._has_ended()
            raise
        if self.was_made is not None:
            self.was_made(data)
        return data


def _fetch_and_collate(fetcher: Fetcher, collate: Callable[[Any], Any], indices: Any) -> Any:
    return collate(fetcher.fetch(indices))


def _gather(gatherer: Gatherer, fetch: Callable[[Any], Any], indices: Any) -> Any:
    """Returns the batch of these indices. fetch: makes a batch whose rows cannot be gathered."""
    rows = gatherer.rows(indices)
    if rows is None or rows.has_tensors:
        return fetch(indices)
    import numpy as np

    arrays = [np.empty(shape, dtype) for shape, dtype in zip(rows.shapes, rows.dtypes, strict=True)]
    batch = rows.into(tuple(arrays), 1)
    return fetch(indices) if batch is None else batch


def _as_is(samples: Any) -> Any:
    return samples
