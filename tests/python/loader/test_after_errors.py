# SPDX-License-Identifier: Apache-2.0
"""After an exception of a loader: once it is handled and the loader is dropped, the workers are gone, without the
cyclic garbage collector, which trainings turn off."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import datasets as d
import headrace
import numpy as np
import pytest
from loaders import Headrace, only_headrace
from processes import alive, until

pytestmark = only_headrace
COUNT = 24


class RaisingSampler:
    """Gives 9 indices, and raises. each: what an index is given as."""

    def __init__(self, each: Any = int) -> None:
        self.each = each

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Any:
        yield from map(self.each, range(9))
        raise IndexError("of the sampler")


class RaisingNext(RaisingSampler):
    """A sampler that is its own iterator, and no generator. It begins once, because torch's BatchSampler calls iter()
    for each batch."""

    given = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self.given += 1
        if self.given > 9:
            raise IndexError("of the sampler")
        return self.given


class Large:
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return np.zeros(1 << 24)


def raise_of_worker(*_: Any) -> Any:
    raise ValueError("of the worker")


def in_list(index: int) -> list[int]:
    return [index]


def stuck() -> Any:
    """A dataset whose workers wait at sample 9."""
    return d.Gate(COUNT, 9, multiprocessing.get_context("fork").Event())


# Each makes a dataset, and options of a loader that raises.
FAILURES: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "timeout": lambda: (stuck(), {"timeout": 0.2}),
    "timeout of persistent workers": lambda: (stuck(), {"timeout": 0.2, "persistent_workers": True}),
    "stall": lambda: (stuck(), {"stall_after": 0.2, "on_stall": "raise"}),
    "sample": lambda: (d.Failing(COUNT, (9,)), {}),
    "sampler": lambda: (range(COUNT), {"sampler": RaisingSampler()}),
    "sampler with __next__": lambda: (range(COUNT), {"sampler": RaisingNext()}),
    "batch sampler": lambda: (range(COUNT), {"batch_sampler": RaisingSampler(in_list), "batch_size": 1}),
    "death": lambda: (d.Failing(COUNT, (9,), "exit"), {"max_restarts": 0}),
    "sample that is dropped": lambda: (d.Failing(COUNT, tuple(range(COUNT))), {"on_bad_sample": "refill"}),
    "collate": lambda: (range(COUNT), {"collate_fn": raise_of_worker}),
    "init": lambda: (range(COUNT), {"worker_init_fn": raise_of_worker}),
    "memory": lambda: (Large(), {"arena_limit": 1 << 22}),
    "iterable": lambda: (d.FailingIter(4), {}),
}


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [headrace.Loader, Headrace])
@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.filterwarnings("ignore")
def test_workers_are_gone_with_the_error(kind: Any, how: str) -> None:
    workers: list[int] = []
    loaders: list[Any] = []

    def attempt() -> str:
        dataset, options = FAILURES[how]()
        options = {"batch_size": 2, "shutdown_timeout": 0.5, **options}
        loader = kind(dataset, num_workers=2, multiprocessing_context="fork", **options)
        loaders.append(weakref.ref(loader))
        try:
            iterator = iter(loader)
            workers.extend(one.pid for one in iterator._engine.processes)
            for _ in iterator:
                pass
        except Exception as error:
            return type(error).__name__
        return ""

    with without_collector():
        assert attempt()
        assert loaders[0]() is None
        assert workers and until(lambda: not any(map(alive, workers)))


@pytest.mark.filterwarnings("ignore")
def test_workers_are_gone_with_the_error_of_a_second_epoch() -> None:
    """iter() raises it, while it waits for the persistent workers."""
    workers: list[int] = []

    def attempt() -> str:
        options: dict[str, Any] = {"persistent_workers": True, "timeout": 0.2, "shutdown_timeout": 0.5}
        loader = Headrace(stuck(), 2, num_workers=2, multiprocessing_context="fork", **options)
        iterator = iter(loader)
        workers.extend(one.pid for one in iterator._engine.processes)
        next(iterator)
        del iterator
        try:
            iter(loader)
        except RuntimeError as error:
            return str(error)
        return ""

    with without_collector():
        assert "timed out" in attempt()
        assert workers and until(lambda: not any(map(alive, workers)))
