# SPDX-License-Identifier: Apache-2.0
"""Measures for bench_frozen.py how the workers' memory grows while they read, and how long workers take to start.

Each measurement runs in a new process, which is this file run as a script.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measure
from frozen_data import annotations, paths, scans
from measure import ROUNDS

WORKERS, EPOCHS = 4, 3


def private_bytes() -> int:
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))


WARM_SAMPLES = (
    5000  # After so many samples a worker's interpreter and allocator have the memory that they need themselves.
)


class Records:
    """Reads a whole record for each sample, and returns now and then how much private memory the process has."""

    def __init__(self, records: Any) -> None:
        self.records = records
        self.read = 0

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[float, int, int]:
        record = self.records[index]
        total = record["area"] + sum(record["bbox"]) + sum(record["segmentation"][0]) + record["id"]
        self.read += 1
        return total, os.getpid(), private_bytes() if self.read % WARM_SAMPLES == 0 else 0


class Scenes:
    """Reads all points of a scan for each sample."""

    def __init__(self, scans: Any) -> None:
        self.scans = scans
        self.names = sorted(scans)
        self.read = 0

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[float, int, int]:
        scan = self.scans[self.names[index]]
        total = float(scan.points.sum()) + sum(one["id"] for one in scan.objects.values())
        self.read += 1
        return total, os.getpid(), private_bytes() if self.read % 50 == 0 else 0


class Paths:
    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return max(len(self.items), 64)

    def __getitem__(self, index: int) -> int:
        return len(self.items[index]) if len(self.items) else index


def _looks(samples: Sequence[tuple[float, int, int]]) -> list[tuple[int, int]]:
    return [(pid, private) for _, pid, private in samples if private]


def _grow(data: Any, batch_size: int) -> list[float]:
    """Returns how far a worker's private memory has grown since its first look, in bytes.

    There is one number for each half of an epoch, of the worker that has grown most by then.
    """
    from headrace.torch import DataLoader

    loader = DataLoader(
        data,
        batch_size=batch_size,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        multiprocessing_context="fork",
        collate_fn=_looks,
    )
    first: dict[int, int] = {}
    grown: dict[int, int] = {}
    found: list[float] = []
    for _ in range(EPOCHS):
        for number, looks in enumerate(loader, start=1):
            for pid, private in looks:
                grown[pid] = private - first.setdefault(pid, private)
            if number in (len(loader) // 2, len(loader)):
                found.append(float(max(grown.values(), default=0)))
    return found


def _first_batch(items: Any) -> float:
    from headrace.torch import DataLoader

    data = Paths(items)
    start = time.perf_counter()
    loader = iter(DataLoader(data, batch_size=8, num_workers=1, multiprocessing_context="spawn"))  # type: ignore[arg-type]
    next(loader)
    return time.perf_counter() - start


def _peak_of(work: Callable[[], object]) -> float:
    """Returns by how much memory, shared memory included, has grown at the highest point while `work` ran."""
    measure.reset_peak()
    before = measure.status_bytes("VmRSS")
    work()
    return float(measure.status_bytes("VmHWM") - before)


def _child(what: str, rival: str, count: int) -> float | list[float]:
    """Makes one measurement in this process."""
    import headrace

    if what == "peak":
        headrace.freeze([1])  # The first call imports modules, whose memory is not counted.
        built: Any = annotations(count)
        return _peak_of(lambda: headrace.freeze(built))
    if what == "growth":
        records: Any = annotations(count)
        return _grow(Records(headrace.freeze(records) if rival == "headrace" else records), 256)
    if what == "scans":
        scenes: Any = scans(count)
        return _grow(Scenes(headrace.freeze(scenes) if rival == "headrace" else scenes), 8)
    items: Any = [] if rival == "an empty dataset" else paths(count)
    if rival == "headrace":
        items = headrace.freeze(items)
    return _first_batch(items)


def _run(what: str, rival: str, count: int) -> Any:
    """Makes one measurement in a new process."""
    done = subprocess.run([sys.executable, __file__, what, rival, str(count)], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def growth(what: str, count: int) -> dict[str, list[float]]:
    """Returns the growth after each half of an epoch, in bytes, by rival.

    `what` is "growth", which reads records (1 million are 1.5 GB of Python objects), or "scans".
    """
    return {rival: _run(what, rival, count) for rival in ("built-in", "headrace")}


def peak_of_building(count: int) -> float:
    """Returns the memory that building frozen data of `count` records takes in addition to the records, in bytes."""
    return float(_run("peak", "headrace", count))


def first_batches(count: int) -> dict[str, float]:
    """Returns the seconds until the first batch of one spawned worker, by dataset."""
    found: dict[str, list[float]] = {"an empty dataset": [], "built-in": [], "headrace": []}
    for _ in range(ROUNDS):
        for name, seconds in found.items():
            seconds.append(float(_run("start", name, count)))
    return {name: statistics.median(seconds) for name, seconds in found.items()}


if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
