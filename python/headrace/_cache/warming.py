# SPDX-License-Identifier: Apache-2.0
"""Fills the cache of a dataset's samples with worker processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from headrace import _core
from headrace._base.cores import check_workers, usable_cores
from headrace._base.progress import Progress

_PARTS = 50  # for each worker, so that all end at about the same time
_MOST = 256  # samples of a part
_dataset: Any = None  # of this worker


def _start(dataset: Any) -> None:
    global _dataset
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits for the workers ends them
    _dataset = dataset


def _check() -> None:
    _dataset.begin(True)


def _fill(first: int, end: int) -> int:
    return int(_dataset.fill(range(first, end)))


def warm(dataset: Any, workers: int, is_shown: bool | None) -> None:
    """Makes all samples of a CachedSamples."""
    count, total = check_workers(workers, "warm"), len(dataset)
    if count == -1:
        count = usable_cores(_core.machine())
    with Progress("samples", total, is_shown) as shown:
        for made in _made_here(dataset) if count == 0 else _made_by(dataset, count):
            shown.add(made)


def _made_here(dataset: Any) -> Iterator[int]:
    for number in range(len(dataset)):
        yield dataset.fill([number])


def _made_by(dataset: Any, count: int) -> Iterator[int]:
    total = len(dataset)
    size = max(1, min(_MOST, total // (count * _PARTS)))
    with ProcessPoolExecutor(count, initializer=_start, initargs=(dataset,)) as pool:
        try:
            pool.submit(_check).result()
            parts = [pool.submit(_fill, first, min(first + size, total)) for first in range(0, total, size)]
            for part in as_completed(parts):
                yield part.result()
        except BrokenProcessPool:
            raise RuntimeError(_describe_death(dataset.unfinished())) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _describe_death(unfinished: list[int]) -> str:
    samples = ", ".join(map(str, unfinished)) or "that are compared first"
    return (
        f"headrace: a worker died while the workers made samples {samples}; most often the kernel kills one because "
        "memory ran out (dmesg says so): use fewer workers. To see one alone: headrace replay SOURCE INDEX"
    )
