# SPDX-License-Identifier: Apache-2.0
"""Runs a loader for some batches, with a given number of workers, and measures it."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace._base import lookup
from headrace._loader.trainer import shown
from headrace._tensors import torch_names


@contextlib.contextmanager
def with_workers(loader: Any, count: int) -> Iterator[None]:
    """Gives the loader another number of workers, and no persistent workers of an earlier run."""
    names = ["num_workers", "prefetch_factor", *(["on_stall"] if lookup.has_attribute(loader, "on_stall") else [])]
    kept = {name: getattr(loader, name) for name in names}
    loader._iterator = None
    loader.num_workers = count
    if loader.prefetch_factor is None:
        loader.prefetch_factor = 2
    if "on_stall" in kept:
        loader.on_stall = "raise"
    try:
        yield
    finally:
        loader._iterator = None
        for name, value in kept.items():
            setattr(loader, name, value)


def method_of(loader: Any) -> str:
    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    return str(context.get_start_method())


@dataclass
class Run:
    """The measurements of one pass over a loader. Times of the workers are sums over all workers."""

    workers: int
    batches: int
    counted: int  # of these: those in whole rounds of all workers, without the first round
    seconds: float  # for these
    first_s: float
    report: dict[str, Any]
    slow_sample: tuple[int | None, float, float] = (None, 0.0, 0.0)  # its index, its seconds, the median of all

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.counted / self.seconds if self.seconds > 0 else 0.0


def _engine_report(iterator: Any) -> dict[str, Any]:
    report = lookup.attribute(iterator, "report")
    return dict(report()) if callable(report) else {}


def close(iterator: Any) -> None:
    """Ends the workers of an iterator."""
    end = lookup.attribute(iterator, "close") or lookup.attribute(iterator, torch_names.SHUTDOWN)
    if callable(end):
        end()


def run(loader: Any, workers: int, batches: int, least_s: float = 0.0, most_s: float = float("inf")) -> Run:
    """Runs one pass until it has `batches` and took `least_s`, or until it took `most_s`, after the first round of all
    workers. With `least_s` it ends with a whole round, because the batches of a round may arrive at the same time."""
    round_count = max(1, workers)
    with with_workers(loader, workers):
        start = time.monotonic()
        iterator = iter(loader)
        first = begun = counted_until = start
        count = 0
        for _ in iterator:
            now = time.monotonic()
            count += 1
            first = now if count == 1 else first
            begun = now if count <= round_count else begun
            counted_until = now if count % round_count == 0 else counted_until
            is_enough = now - begun > most_s or (count >= batches and now - begun >= least_s)
            if is_enough and (not least_s or counted_until == now):
                break
        report = _engine_report(iterator)
        show = lookup.attribute(iterator, "_show")
        slow_sample = (None, 0.0, 0.0) if show is None else shown.slow_sample(show)
        close(iterator)
    counted = max(0, count // round_count - 1) * round_count
    return Run(workers, count, counted, counted_until - begun, first - start, report, slow_sample)
