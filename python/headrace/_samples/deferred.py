# SPDX-License-Identifier: Apache-2.0
"""Connects the loaders with headrace.images, which neither of them imports.

While a loader reads the samples of a batch, native transforms return tensors without values. The loader has them made,
all of the batch together and in several threads, before the samples are collated. In programs without native
transforms nothing is connected, and nothing happens here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from headrace._options import AUTO

DATASETS = "headrace.sources."  # modules of datasets whose functions pass deferred values on


class _Reading(threading.local):
    is_on = False  # this thread reads the samples of a batch
    is_forced = False  # the caller answers for it that nothing looks at them


reading = _Reading()
_make: Callable[[Any, int, bool], bool] | None = None
_settle_kept: Callable[[], None] | None = None


def connect(make: Callable[[Any, int, bool], bool], settle_kept: Callable[[], None]) -> None:
    """Sets the functions of headrace.images. make: makes the deferred values in samples, (samples, threads, may be kept
    after the batch), and returns True if there were any. settle_kept: makes those of the batch before that still
    exist."""
    global _make, _settle_kept
    _make, _settle_kept = make, settle_kept


def settle_kept() -> None:
    """Makes the deferred values of a batch that is over and whose samples were dropped, where something else has kept
    them."""
    if _settle_kept is not None:
        _settle_kept()


def finish(samples: Any, threads: int, keeps: bool) -> bool:
    """Makes the deferred values in samples. Returns True if there were any."""
    return _make is not None and _make(samples, threads, keeps)


def read(fetch: Callable[[Any], Any], task: Any) -> Any:
    """Returns fetch(task), which reads samples and collates them with a Finishing function."""
    settle_kept()
    reading.is_on = True
    try:
        return fetch(task)
    finally:
        reading.is_on = False


@contextlib.contextmanager
def made_at_once() -> Iterator[None]:
    """While it is active, native transforms return tensors with their values."""
    was_on, reading.is_on = reading.is_on, False
    try:
        yield
    finally:
        reading.is_on = was_on


class Passing:
    """A collate function that returns the samples as they are, with deferred values, for _core.Port.collate."""

    def __call__(self, samples: Any) -> Any:
        reading.is_on = False
        return samples


def _nothing() -> None:
    pass


class Finishing:
    """A collate function that makes the deferred values first. `keeps`: the result may contain the samples themselves;
    otherwise it is copied before the next batch is read. `begin`: called when they are made."""

    def __init__(
        self, collate: Callable[[Any], Any], threads: int, keeps: bool, begin: Callable[[], None] = _nothing
    ) -> None:
        self._collate = collate
        self._begin = begin
        self.threads = threads
        self._keeps = keeps

    def __call__(self, samples: Any) -> Any:
        reading.is_on = False
        finish(samples, self.threads, self._keeps)
        self._begin()
        return self._collate(samples)


def count_threads(threads: int | str, core_share: int) -> int:
    """Returns the option `threads` as a number. `core_share`: the cores of each worker, if all ranks and workers of
    this machine get as many."""
    return max(1, core_share) if threads == AUTO else int(threads)
