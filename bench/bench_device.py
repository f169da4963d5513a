# SPDX-License-Identifier: Apache-2.0
"""Measures what the option `device` costs the trainer's CPU for each batch, without what the device itself does.

bench_device.py [--json FILE]    The device does nothing, so no GPU is needed. tools/test_gpu.py measures on one.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from headrace.torch import DataLoader
from headrace.torch._device import choose
from measure import ROUNDS, Case, Goal, Key, Row, run_all, show_against

OURS = "headrace"
CALLS = 5_000


class Idle:
    """A device that does nothing."""

    def register(self, address: int, size: int) -> str | None:
        return None

    def unregister(self, address: int) -> str | None:
        return None

    def run(self, function: Any) -> Any:
        return function()

    def allocate(self, sources: list[Any]) -> list[Any]:
        return sources

    def copy(self, targets: list[Any], sources: list[Any]) -> None:
        pass

    def record(self) -> Any:
        return self

    def query(self, event: Any) -> bool:
        return True

    def wait(self, event: Any) -> None:
        pass

    def synchronize(self, event: Any, timeout: float | None) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False


class Samples(torch.utils.data.Dataset[Any]):
    def __init__(self, tensors: int) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, index: int) -> Any:
        return [torch.full((1_000,), float(index)) for _ in range(self.tensors)]


@contextmanager
def idle_device() -> Iterator[None]:
    before = choose.resolved, choose.opened
    choose.resolved, choose.opened = lambda given: torch.device("cpu"), lambda given: Idle()
    try:
        yield
    finally:
        choose.resolved, choose.opened = before


def name_of(tensors: int) -> str:
    return f"send and deliver a batch of {tensors} tensors, CPU of the trainer"


def of_protocol(tensors: int) -> list[Row]:
    with idle_device(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        iterator: Any = iter(DataLoader(Samples(tensors), 8, num_workers=1, device="cuda"))
        for _ in range(10):
            next(iterator)
        iterator._wait()  # an answer that is not rebuilt yet: it is sent again and again
        core, sender = iterator._engine.keeper, iterator._memory.sender
        times = [1e6 * _time(core, sender, CALLS * one) / CALLS for one in range(1, ROUNDS + 1)]
        del iterator
    return [Row(name_of(tensors), OURS, 0, min(times), "us")]


def _time(core: Any, sender: Any, first: int) -> float:
    start = time.thread_time()
    for number in range(first, first + CALLS):
        sender.begin()
        sender.put(number, sender.send(core), False)
        sender.take(number)
    return time.thread_time() - start


def goals() -> list[Goal]:
    return [Goal("2 tensors, us", Key(name_of(2), OURS), 5)]


CASES = [Case(f"{count} tensors", partial(of_protocol, count)) for count in (2, 114)]


def main() -> None:
    torch.set_num_threads(1)
    run_all(__doc__ or "", CASES, lambda case: case.run(), show_against(), goals)


if __name__ == "__main__":
    main()
