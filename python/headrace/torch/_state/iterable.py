# SPDX-License-Identifier: Apache-2.0
"""Begins and continues the epochs of torch loaders with an iterable dataset. Both iterators use it."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import Any

from headrace._loader.trainer.iterable_epoch import IterableEpoch
from headrace._ranks import where
from headrace.torch._own import iterators, table
from headrace.torch._samplers import generators
from headrace.torch._state import beginning


def begin(loader: Any) -> IterableEpoch:
    """Returns the next epoch of a loader, or the one that it continues. Raises StateError."""
    start = table.position_of(loader).next_start
    if start is not None and start.state is not None:
        beginning.set_loaders_generator(loader, start.state.seeds)
    if loader.num_workers == 0:
        _put_back(loader)
    number = table.position_of(loader).number_of_next(start)
    held_back = table.option(loader, "held_back")
    epoch = IterableEpoch(loader.dataset, loader.num_workers, where.rank_or_zero(), number, start, held_back)
    if loader.num_workers == 0 and (before := epoch.load_in_process()) is not None:
        table.position_of(loader).initial = before
    return epoch


def _put_back(loader: Any) -> None:
    """Puts the dataset back to its beginning, if a state was loaded into it for the epoch before: it may keep the state
    for each further iteration."""
    position = table.position_of(loader)
    if position.initial is not None:
        loader.dataset.load_state_dict(pickle.loads(position.initial))
        position.initial = None


def generators_kept(loader: Any, epoch: IterableEpoch | None) -> contextlib.AbstractContextManager[None]:
    """While torch's iterator class is initialised, which draws a base seed: keeps the generators as they are, if the
    epoch is continued."""
    is_continued = epoch is not None and epoch.is_continued
    return generators.kept_with(loader.generator) if is_continued else contextlib.nullcontext()


def start(loader: Any, iterator: Any, epoch: IterableEpoch, is_over: Callable[[], bool]) -> None:
    """Starts an epoch whose iterator is ready: it drops the batches that are made again."""
    epoch.load_into_iterator()
    epoch.tasks, epoch.is_over = iterator._keeper if iterators.worker_count(iterator) == 0 else iterator.tasks, is_over
    epoch.seeds["base"] = iterators.base_seed(iterator)
    epoch.warn_of_drop()
    for _ in range(epoch.to_drop):
        next(iterator)
    iterators.set_yielded(iterator, 0)
    position = table.position_of(loader)
    position.has_begun(epoch, epoch.number, position.next_start)
