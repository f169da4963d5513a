# SPDX-License-Identifier: Apache-2.0
"""Chooses the iterator for each of torch's loaders: headrace's or torch's."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from headrace._base import this_process, tracebacks
from headrace._base.help_key import help_on
from headrace._loader.both.per_loader import UNCOUNTED, WARMED
from headrace._loader.forkserver import client
from headrace._loader.start import contexts
from headrace._ranks import worker_count
from headrace.torch._loader import base, in_process, plain, workers
from headrace.torch._loader.as_any import AsAnyLoader
from headrace.torch._own import classes, loaders, originals, table

_PRELOAD = ["numpy.random", "headrace.torch._batches.worker"]


@functools.cache
def _warn_of_torchs(reason: str) -> None:
    """Warns once per process and reason."""
    warnings.warn(
        f"headrace: using torch's DataLoader instead of headrace's: {reason}" + help_on("disabled"), stacklevel=4
    )


def measured(loader: Any, begin: Callable[[], Any]) -> Any:
    """Returns an iterator over an epoch whose loop is measured."""
    from headrace._loader.headspace import session  # imported only if it is needed

    is_iterable = loaders.is_iterable(loader)
    settings = table.settings_of(loader, is_iterable)
    return session.iterate(loader, table.kept(loader).show_of(settings), begin, is_iterable)


def iter_measured(loader: classes.DataLoader[Any], begin: Callable[[], Any]) -> Any:
    """Iterates over torch's loaders while headrace is installed and loops are measured."""
    return begin() if isinstance(loader, base.DataLoader) else measured(loader, begin)


def uses_engine(loader: classes.DataLoader[Any]) -> bool:
    return loader.num_workers > 0 and not isinstance(loader.dataset, classes.DataPipes)


def why_torchs(loader: classes.DataLoader[Any]) -> str | None:
    """Returns why a loader with workers gets torch's engine, or None if it gets headrace's."""
    if name := contexts.foreign_class(loader.multiprocessing_context):
        return f"its multiprocessing_context starts workers as {name}, which is not a process of multiprocessing"
    return this_process.why_engine_cannot_run()


def get_iterator(loader: classes.DataLoader[Any]) -> Any:
    """Returns the iterator of any torch loader: headrace's if its engine can run, else torch's."""
    try:
        if not uses_engine(loader):
            iterator = _iterator_in_process(loader)
            return iterator if isinstance(iterator, in_process.InProcessIterator) else base.moved(loader, iterator)
        if reason := why_torchs(loader):
            _warn_of_torchs(reason)
            if worker_count.is_auto(loader.num_workers):
                loader.num_workers = worker_count.by_rule()
            return base.moved(loader, _torchs_iterator(loader))
        if not worker_count.is_auto(loader.num_workers):
            loaders.called_by_torch(loader.check_worker_number_rationality)
        return _iterator_over_workers(loader)
    except Exception as error:
        tracebacks.cut(error)
        raise error


def _iterator_in_process(loader: classes.DataLoader[Any]) -> Any:
    if isinstance(loader.dataset, classes.DataPipes):
        return loaders.torchs_iterator(loader)
    any_loader = AsAnyLoader(loader)
    settings = any_loader.settings()
    is_changed = loaders.is_wrapped or (any_loader.is_iterable and not originals.fetches())
    if is_changed and not settings.is_per_sample:  # shortcut: samples-in-process
        return _torchs_iterator(loader)
    any_loader.kept.told.discard(UNCOUNTED)
    return in_process.InProcessIterator(any_loader, settings)


def _torchs_iterator(loader: classes.DataLoader[Any]) -> Any:
    """Returns torch's iterator. It is counted and continued for loaders that have a state: headrace's own."""
    kept = table.kept(loader)
    if isinstance(loader, base.DataLoader) or kept.position.next_start is not None:
        kept.told.discard(UNCOUNTED)
        return plain.get_iterator(loader)
    kept.told.add(UNCOUNTED)
    return loaders.torchs_iterator(loader)


def _iterator_over_workers(loader: classes.DataLoader[Any]) -> Any:
    table.kept(loader).told.discard(UNCOUNTED)
    if WARMED not in table.kept(loader).told:
        warm_up_for(loader)
    return workers.Iterator(loader)


def warm_up_for(loader: classes.DataLoader[Any]) -> None:
    table.kept(loader).told.add(WARMED)
    parts = [loader.dataset, loader.collate_fn, loader.worker_init_fn]
    client.warm_up(loader.multiprocessing_context, _PRELOAD, parts)


def new_iterator(cls: type, *arguments: Any, **named: Any) -> Any:
    """Replaces __new__ of torch's iterator class for workers while headrace is installed. A class that derives from it
    has its own arguments, and is not changed."""
    if cls is not classes.MultiProcessingIterator:
        if not issubclass(cls, workers.Iterator) and arguments and isinstance(arguments[0], classes.DataLoader):
            table.kept(arguments[0]).told.add(UNCOUNTED)
        return loaders.torchs_new(cls)
    return _new_iterator(*arguments, **named)


def _new_iterator(loader: classes.DataLoader[Any]) -> Any:
    if not uses_engine(loader) or why_torchs(loader):
        return loaders.torchs_new(classes.MultiProcessingIterator)
    return _iterator_over_workers(loader)
