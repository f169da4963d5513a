# SPDX-License-Identifier: Apache-2.0
"""Adds torch's seeds to the epochs of loaders with an iterable dataset (headrace._loader.both.iterable)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from headrace._loader.both import iterable
from headrace._loader.both.any_loader import AnyLoader
from headrace._loader.trainer.iterable_epoch import IterableEpoch
from headrace.torch._own import iterators
from headrace.torch._samplers import generators


def generators_kept(loader: Any, epoch: IterableEpoch | None) -> contextlib.AbstractContextManager[None]:
    """While torch's iterator class is initialised, which draws a base seed: keeps the generators as they are, if the
    epoch is continued."""
    is_continued = epoch is not None and epoch.is_continued
    return generators.kept_with(loader.generator) if is_continued else contextlib.nullcontext()


def start(loader: AnyLoader, iterator: Any, epoch: IterableEpoch, is_over: Callable[[], bool]) -> None:
    """Starts an epoch whose iterator is ready: it drops the batches that are made again."""
    epoch.seeds["base"] = iterators.base_seed(iterator)
    tasks = iterator._keeper if iterators.worker_count(iterator) == 0 else iterator.tasks
    iterable.start(loader, iterator, epoch, tasks, is_over)
    iterators.set_yielded(iterator, 0)
