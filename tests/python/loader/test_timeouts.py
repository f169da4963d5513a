# SPDX-License-Identifier: Apache-2.0
"""The timeouts of a loader: which waits they end, and values that no clock has."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import Any

import datasets as d
import pytest
from loaders import Headrace, only_headrace, unbatched
from processes import until


@only_headrace
@pytest.mark.timeout(30)
def test_timeout_ends_a_second_epochs_wait_for_a_stuck_worker() -> None:
    event = multiprocessing.get_context("fork").Event()
    loader = unbatched(Headrace, d.Gate(4, 1, event), persistent_workers=True, timeout=1)
    iterator = iter(loader)
    assert until(lambda: iterator.report()["per_worker"][0]["batches"] == 1, 20)  # what its start takes is no wait
    assert next(iterator) == 0
    timer = threading.Timer(8, event.set)  # ends the test in any case
    timer.start()
    try:
        with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
            iter(loader)
    finally:
        event.set()
        timer.cancel()


class Finishes:
    """A worker that is told to end needs a while; its exit code says whether it was let."""

    def __init__(self, busy: Any) -> None:
        self.busy = busy

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index:
            self.busy.set()
            threading.Event().wait(0.5)
        return index


@only_headrace
@pytest.mark.parametrize("timeout", [1e10, 1e300])
def test_a_shutdown_timeout_beyond_all_clocks_is_no_short_one(timeout: float) -> None:
    busy = multiprocessing.get_context("fork").Event()
    iterator: Any = iter(unbatched(Headrace, Finishes(busy), shutdown_timeout=timeout))
    next(iterator)
    assert busy.wait(60)
    (worker,) = iterator._workers
    del iterator
    assert worker.exitcode == 0


class Slow:
    def __init__(self, gate: Any) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        assert self.gate.wait(60)
        return index


def test_timeout_that_is_not_a_number_is_no_timeout() -> None:
    gate = multiprocessing.get_context("fork").Event()
    iterator = iter(unbatched(Headrace, Slow(gate), timeout=float("nan")))
    used_s = time.thread_time()
    threading.Timer(1.0, gate.set).start()
    assert next(iterator) == 0
    assert time.thread_time() - used_s < 0.3  # the thread slept
