# SPDX-License-Identifier: Apache-2.0
"""Reads and sets what torch's iterators know, and calls functions after their steps. With private names of torch."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data

from headrace._base import signals
from headrace.torch._own import loaders, originals
from headrace.torch._own.classes import BaseIterator, IterableFetcher, MultiProcessingIterator

profiler: Any = torch.autograd.profiler


def show_index_sampler(iterator: Any, loader: Any) -> None:
    """Gives an iterator the index sampler of a loader."""
    iterator._index_sampler = loader._index_sampler


def base_seed(iterator: Any) -> int:
    """Returns the number from which an iterator seeds its workers."""
    seed: int = iterator._base_seed
    return seed


def set_base_seed(iterator: Any, seed: int) -> None:
    iterator._base_seed = seed


def yielded(iterator: Any) -> int:
    """Returns how many batches one of headrace's iterators has delivered, which it counts under torch's name."""
    count: int = iterator._num_yielded
    return count


def set_yielded(iterator: Any, count: int) -> None:
    iterator._num_yielded = count


def worker_count(iterator: Any) -> int:
    """Returns how many workers an iterator has."""
    count: int = iterator._num_workers
    return count


def iterator_of_sampler(iterator: Any) -> Any:
    """Returns the iterator of the sampler that one of torch's iterators draws from."""
    return iterator._sampler_iter


def fetcher_of(iterator: Any) -> Any:
    """Returns what fetches the batches of torch's iterator without workers, or what a program has put in its place."""
    return iterator._dataset_fetcher


def fetches_as_made(fetcher: Any, dataset: Any, collate_fn: Any) -> bool:  # shortcut: fetcher-in-process
    """Returns True if a fetcher is still what an iterator has made it of."""
    is_same = fetcher.dataset is dataset and fetcher.collate_fn is collate_fn
    return is_same and "fetch" not in vars(fetcher)


def collate_samples(iterator: Any, taken_from: Any, samples: Any) -> Any:  # shortcut: samples-in-process
    """Returns the batch of samples, or of one sample, that were taken from an iterable dataset, where torch would call
    the fetcher of an iterator: what a program has put in the place of its `fetch` gets them. Raises RuntimeError for
    another fetcher or source."""
    fetcher = fetcher_of(iterator)
    if type(fetcher) is not IterableFetcher or fetcher.dataset_iter is not taken_from:
        raise RuntimeError(
            "headrace: _dataset_fetcher of this iterator, or its dataset_iter, was replaced after iter(loader), and "
            "samples were taken from the old one already; wrap the dataset, or replace torch's fetcher before iter()"
        )
    if originals.fetches() and "fetch" not in vars(fetcher):
        return fetcher.collate_fn(samples)
    is_batch = iterator._auto_collation
    fetcher.dataset_iter = itertools.chain(samples if is_batch else [samples], taken_from)
    try:
        return fetcher.fetch([None] * iterator._index_sampler.batch_size if is_batch else None)
    finally:
        fetcher.dataset_iter = taken_from


class _SeededIterator(MultiProcessingIterator or object):  # type: ignore[misc]
    """torch's iterator for workers with a base seed that is known. torch's __init__ draws another one and starts the
    workers with it, so the attribute is a property that stays as it is."""

    def __init__(self, loader: Any, seed: int) -> None:
        self._known_seed = seed
        super().__init__(loader)
        self._profile_name = f"enumerate(DataLoader)#{MultiProcessingIterator.__name__}.__next__"

    @property
    def _base_seed(self) -> int:
        return self._known_seed

    @_base_seed.setter
    def _base_seed(self, drawn: int) -> None:
        """Drops the seed that torch has drawn."""


def iterator_with_seed(loader: Any, seed: int | None) -> Any:
    """Returns torch's iterator of a loader with a base seed; None: torch draws it. If another tool has wrapped torch's
    function, that is called, and workers are started with the seed that torch draws."""
    if seed is not None and loader.num_workers > 0 and not loaders.is_wrapped:
        loaders.called_by_torch(loader.check_worker_number_rationality)
        return loaders.called_by_torch(_SeededIterator, loader, seed)
    iterator = loaders.torchs_iterator(loader)
    if seed is not None and isinstance(iterator, BaseIterator):
        set_base_seed(iterator, seed)
    return iterator


def open_tasks(iterator: Any) -> Any:
    """Returns the numbers of the tasks that torch's iterator has drawn in this epoch and not returned."""
    return getattr(iterator, "_task_info", {}).keys()  # an iterator without workers has no such attribute


def has_lost_workers(iterator: Any) -> bool:
    """Returns True if the workers of an iterator, torch's or headrace's, have been ended, or if one has died."""
    own = getattr(iterator, "has_lost_workers", None)  # of headrace's
    if own is not None:
        return bool(own)
    is_shut_down = bool(getattr(iterator, "_shutdown", False))
    return is_shut_down or any(one.exitcode not in (None, 0) for one in getattr(iterator, "_workers", ()))


def call_after_next(iterator: Any, note: Callable[[Any, Exception | None], None]) -> None:
    """Calls note(iterator, None) after each batch of one of torch's iterators, or note(iterator, error) after the
    exception in its place. The iterator must not keep itself alive, because its end stops the workers."""
    next_data, weak = type(iterator)._next_data, weakref.ref(iterator)

    def noted() -> Any:
        itself = weak()
        try:
            data = next_data(itself)
        except Exception as error:
            if not signals.is_from_signal(error):  # after a signal, the consumer does not have the batch
                note(itself, error)
            raise
        note(itself, None)
        return data

    iterator._next_data = noted


def change_each(iterator: Any, change: Callable[[Any], Any]) -> Any:
    """Makes one of torch's iterators return change(batch) for each batch. Returns the iterator, which must not keep
    itself alive."""
    weak = weakref.ref(iterator)
    before = vars(iterator).get("_next_data")  # what call_after_next has put there
    next_data = type(iterator)._next_data if before is None else lambda _: before()
    iterator._next_data = lambda: change(next_data(weak()))
    return iterator


def call_after_reset(iterator: Any, begin: Callable[[Any, Any], None]) -> None:
    """Calls begin(iterator, loader) after persistent workers of one of torch's iterators have begun another epoch."""
    reset, weak = type(iterator)._reset, weakref.ref(iterator)

    def noted(loader: Any, first_iter: bool = False) -> None:
        itself = weak()
        reset(itself, loader, first_iter)
        begin(itself, loader)

    iterator._reset = noted


def profiler_is_on() -> bool:
    """Returns True if a profiler records, or if torch does not say."""
    return bool(getattr(profiler, "_is_profiler_enabled", True))
