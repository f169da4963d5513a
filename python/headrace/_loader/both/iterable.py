# SPDX-License-Identifier: Apache-2.0
"""Begins and continues the epochs of loaders with an iterable dataset."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from headrace._loader.both.any_loader import AnyLoader
from headrace._loader.trainer.iterable_epoch import IterableEpoch
from headrace._ranks import where
from headrace._samples.last_state import LastState


def begin(loader: AnyLoader) -> IterableEpoch:
    """Returns the next epoch of a loader, or the one that it continues. Raises StateError."""
    position, workers = loader.kept.position, loader.num_workers
    start = position.next_start
    if start is not None and start.state is not None:
        loader.take_seeds(start.state)
    if position.initial is not None:  # the dataset may keep a state that was loaded for each further iteration
        loader.dataset.load_state_dict(pickle.loads(position.initial))
        position.initial = None
    last = _last_state_of(loader)
    number, held_back = position.number_of_next(start), loader.option("held_back")
    epoch = IterableEpoch(loader.dataset, workers, where.rank_or_zero(), number, start, held_back)
    if not workers and (before := epoch.load_in_process()) is not None:
        position.initial = before
    if last is not None:
        last.begin_with(epoch.loaded)
    epoch.last_state = last
    return epoch


def _last_state_of(loader: AnyLoader) -> LastState | None:
    """Returns the last state of the dataset of a loader without workers, before an epoch; None: the option retries is
    not set."""
    if loader.num_workers or not loader.settings().retries:
        return None
    if loader.kept.last_state is None or loader.kept.last_state.dataset is not loader.dataset:
        loader.kept.last_state = LastState(loader.dataset, 1)
    else:
        loader.kept.last_state.begin_epoch()
    return loader.kept.last_state


def start(loader: AnyLoader, iterator: Any, epoch: IterableEpoch, tasks: Any, is_over: Callable[[], bool]) -> None:
    """Starts an epoch whose iterator is ready: it drops the batches that are made again. tasks: count the batches that
    the consumer has."""
    epoch.load_into_iterator()
    epoch.tasks, epoch.is_over = tasks, is_over
    epoch.warn_of_drop()
    for _ in range(epoch.to_drop):
        next(iterator)
    position = loader.kept.position
    position.has_begun(epoch, epoch.number, position.next_start)
