# SPDX-License-Identifier: Apache-2.0
"""Begins and continues the epochs of loaders with an iterable dataset."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from headrace._loader.both.any_loader import AnyLoader
from headrace._loader.trainer.iterable_epoch import IterableEpoch
from headrace._ranks import where


def begin(loader: AnyLoader) -> IterableEpoch:
    """Returns the next epoch of a loader, or the one that it continues. Raises StateError."""
    position, workers = loader.kept.position, loader.num_workers
    start = position.next_start
    if start is not None and start.state is not None:
        loader.take_seeds(start.state)
    if position.initial is not None:  # the dataset may keep a state that was loaded for each further iteration
        loader.dataset.load_state_dict(pickle.loads(position.initial))
        position.initial = None
    number, held_back = position.number_of_next(start), loader.option("held_back")
    epoch = IterableEpoch(loader.dataset, workers, where.rank_or_zero(), number, start, held_back)
    if not workers and (before := epoch.load_in_process()) is not None:
        position.initial = before
    return epoch


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
