# SPDX-License-Identifier: Apache-2.0
"""InProcess: the base of both loaders' iterators with num_workers=0. It knows where the samples come from."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from headrace._loader.both.any_loader import AnyLoader
from headrace._loader.both.beginning import note_drawn
from headrace._loader.trainer import in_process, shown
from headrace._loader.trainer.announcing import announcing_of
from headrace._options import Settings
from headrace._samples import draw
from headrace._samples.last_state import LastState
from headrace._samples.rows import Gatherer
from headrace.sampling._epoch import Epoch
from headrace.sampling._position import EpochPosition
from headrace.sampling._watch import EpochIterator, Watch

_THREADS_END_S = 1.0  # threads without samples end at once


class InProcess(EpochIterator, in_process.InProcessIterator):
    """See above. `_made_by` makes the batch of what was drawn."""

    is_over = False  # the iterator has raised StopIteration
    _gatherer: Gatherer | None = None  # gathers the rows of the dataset, if it has such
    _from: draw.FromIterable | draw.FromSampler
    _end_samples: Callable[[float], object] | None = None  # ends the threads of the samples, see InProcessSamples.end
    _made_by: Callable[[Any], Any] | None  # None: the loader's iterator does that

    def _use_samples(
        self,
        iterator: Any,
        batch_size: int,
        drop_last: bool,
        settings: Settings,
        collate: Any,
        seed: int,
        last: LastState | None,
    ) -> None:
        """Takes the samples of an iterable dataset. batch_size: 0 gives them one by one. last: its last state, if that
        is needed for further tries."""
        self._from = draw.FromIterable(iterator, batch_size, drop_last, settings, None, last)
        self._made_by = collate
        if settings.is_per_sample:
            self._here = in_process.InProcessEpoch(self._from.tasks, seed, self._from.take_bad, self._from.take_retried)
            self._made_by = functools.partial(self._here.noting, collate)

    def _use_indices(
        self,
        epoch: Epoch,
        drawn: Callable[[], None],
        fetch: Callable[[Any], Any] | None,
        settings: Settings,
        **samples: Any,
    ) -> None:
        """Takes the indices of a map-style dataset. drawn: is called after the first ones were drawn. fetch: see
        _made_by. samples: arguments of InProcessSamples, which is used instead if the settings ask for it."""
        announcing = announcing_of(samples["dataset"])
        self._from = draw.FromSampler(epoch.tasks, drawn, None if announcing is None else announcing.step)
        self._made_by = fetch
        if settings.is_per_sample:
            made = in_process.InProcessSamples(
                settings=settings, epoch=epoch.number, tasks=epoch.tasks, count_draws=epoch.count_draws, **samples
            )
            self._here, self._made_by = made.here, made.fetch
            if settings.sample_threads > 1:
                self._end_samples = made.end
                weakref.finalize(self, made.end, 0.0)

    def _is_ready(self, loader: AnyLoader) -> None:
        """Called when the samples are known: next() can be called."""
        self._keeper = self._from.tasks
        if self._here is not None:
            loader.kept.engine = self._here

    def _begin_show(self, loader: AnyLoader, settings: Settings, number: int, began_ns: int) -> None:
        self._show = loader.kept.show_of(settings)
        self._show.page()
        self._show.begin(number, began_ns)

    def _end(self) -> None:
        """Called when no more batches come."""
        self.is_over = True
        shown.end_epoch(self._show)
        self._has_ended()
        if self._end_samples is not None:
            self._end_samples(_THREADS_END_S)

    def _fetch(self, drawn: Any) -> Any:
        """Returns the batch of what was drawn."""
        raise NotImplementedError


def drawn_of(position: EpochPosition, epoch: Epoch, watch: Watch | None, note: Any = None) -> Callable[[], None]:
    """Returns a function that calls note_drawn."""
    return functools.partial(note_drawn, position, epoch, watch, note)
