# SPDX-License-Identifier: Apache-2.0
"""The iterator of a headrace.Loader with num_workers=0: makes the batches in this process."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from headrace._base import tracebacks
from headrace._loader.both.in_process import InProcess, drawn_of
from headrace._numpy.as_any import AsAnyLoader
from headrace._numpy.batch_maker import Fetcher
from headrace._numpy.collate import default_collate
from headrace._samples import prepared
from headrace._samples.last_state import LastState
from headrace.sampling._epoch import Epoch
from headrace.sampling._watch import Watch


class InProcessIterator(InProcess):
    """Iterates over one epoch of a Loader with num_workers=0. epoch: None for an iterable dataset. watch: compares it
    with that of other ranks. last: see _use_samples. was_made: is called after each batch."""

    was_made: Callable[[Any], None] | None = None

    def __init__(
        self,
        any_loader: AsAnyLoader,
        number: int,
        epoch: Epoch | None = None,
        watch: Watch | None = None,
        last: LastState | None = None,
    ) -> None:
        began_ns = time.monotonic_ns()
        loader, settings = any_loader.loader, any_loader.settings()
        collate = (loader.collate_fn or default_collate) if loader._batched else _as_is
        if epoch is None:
            size = (loader.batch_size or 0) if loader._batched else 0
            self._use_samples(iter(loader.dataset), size, loader.drop_last, settings, collate, loader.seed, last)
        else:
            dataset = any_loader.kept.dataset_of(any_loader, settings)
            prepared.begin(dataset, True)
            self._gatherer = any_loader.gatherer()
            self._use_indices(
                epoch,
                drawn_of(any_loader.kept.position, epoch, watch),
                functools.partial(_fetch_and_collate, Fetcher(dataset, loader._batched), collate),
                settings,
                dataset=dataset,
                seed=loader.seed,
                batched=loader._batched,
                collate_fn=collate,
                users_collate=loader.collate_fn,
            )
        self._is_ready(any_loader)
        self._begin_show(any_loader, settings, number, began_ns)

    def _prepare(self) -> Any:
        try:
            data = self._make(self._from, self._fetch)
        except StopIteration:
            self._end()
            raise
        except Exception as error:
            tracebacks.cut(error)
            raise error
        if self.was_made is not None:
            self.was_made(data)
        return data

    def _fetch(self, drawn: Any) -> Any:
        batch = None if self._gatherer is None else self._gather(drawn)
        assert self._made_by is not None
        return self._made_by(drawn) if batch is None else batch

    def _gather(self, indices: Any) -> Any:
        """Returns the batch of these indices, or None if its rows cannot be gathered."""
        rows = None if self._gatherer is None else self._gatherer.rows(indices)
        if rows is None or rows.has_tensors:
            return None
        import numpy as np

        arrays = [np.empty(shape, dtype) for shape, dtype in zip(rows.shapes, rows.dtypes, strict=True)]
        return rows.into(tuple(arrays), 1)


def _fetch_and_collate(fetcher: Fetcher, collate: Callable[[Any], Any], indices: Any) -> Any:
    return collate(fetcher.fetch(indices))


def _as_is(samples: Any) -> Any:
    return samples
