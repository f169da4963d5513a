# SPDX-License-Identifier: Apache-2.0
"""Fetches batches from an iterable dataset in a worker. The batch makers of both loaders use it like one of torch's
fetchers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace._loader.worker.batch_maker import EndOfData
from headrace._options import Settings
from headrace._samples.draw import FromIterable
from headrace._samples.last_state import LastState
from headrace._samples.maker import BadSample
from headrace._samples.retry import RetriedSample


class _Sizes:
    """The size of the next batch, for _core.Tasks."""

    batch_size = 0


class IterableFetcher:
    """Takes the samples of a batch from an iterable dataset. `batched`: False gives samples one by one."""

    ended = False  # an attribute of torch's fetchers; here a StopIteration out of fetch is never the end of the dataset

    def __init__(
        self,
        dataset: Any,
        batched: bool,
        drop_last: bool,
        settings: Settings,
        worker: int,
        collate_fn: Callable[[Any], Any] | None = None,
        last: LastState | None = None,
    ) -> None:
        self._iterator = iter(dataset)
        self._batched = batched
        self._drop_last = drop_last
        self._settings = settings
        self._worker = worker
        self._collate = collate_fn
        self._last = last
        self._from: FromIterable | None = None
        self._sizes = _Sizes()

    @property
    def is_exhausted(self) -> bool:
        """Returns True if the dataset has come to its end."""
        return self._from is not None and bool(self._from.tasks.is_over)

    def take_bad(self) -> list[BadSample]:
        """Returns the bad samples of the batch that was fetched last, once."""
        return [] if self._from is None else self._from.take_bad()

    def take_retried(self) -> list[RetriedSample]:
        """Returns the further tries of that batch, once."""
        return [] if self._from is None else self._from.take_retried()

    def fetch(self, indices: Any) -> Any:
        """Returns the next batch, as large as `indices`, or the next sample. Raises EndOfData at the end."""
        if self._batched:
            self._sizes.batch_size = len(indices)
        if self._from is None:
            size: Any = self._sizes if self._batched else 0
            self._from = FromIterable(self._iterator, size, self._drop_last, self._settings, self._worker, self._last)
        try:
            samples = self._from.draw()
        except StopIteration:
            raise EndOfData from None
        self._from.tasks.done()
        return samples if self._collate is None else self._collate(samples)
