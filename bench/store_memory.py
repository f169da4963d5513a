# SPDX-License-Identifier: Apache-2.0
"""What workers' memory does while they read, and how long they take to start, each in a process of its own."""

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

from measure import ROUNDS
from store_data import annotations, paths, scans

WORKERS, EPOCHS = 4, 3


def private_bytes() -> int:
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))


WARM_SAMPLES = 5000  # of a worker, until what its interpreter and allocator need of their own is there


class Records:
    """Touches a whole record for each sample; says now and then how much memory its process has of its own."""

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
    """Touches all points of a scan for each sample."""

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


def _grow(data: Any, batch_size: int) -> float:
    """The most that a worker's private memory has grown since it first looked, in bytes."""
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
    last: dict[int, int] = {}
    for _ in range(EPOCHS):
        for looks in loader:
            for pid, private in looks:
                first.setdefault(pid, private)
                last[pid] = private
    return float(max(last[pid] - first[pid] for pid in first))


def _first_batch(items: Any) -> float:
    from headrace.torch import DataLoader

    data = Paths(items)
    start = time.perf_counter()
    loader = iter(DataLoader(data, batch_size=8, num_workers=1, multiprocessing_context="spawn"))  # type: ignore[arg-type]
    next(loader)
    return time.perf_counter() - start


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def _peak_of(work: Callable[[], object]) -> float:
    """By how much memory (shared memory included) grew at most meanwhile."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status_bytes("VmRSS")
    work()
    return float(_status_bytes("VmHWM") - before)


def _child(what: str, rival: str, count: int) -> float:
    import headrace

    if what == "peak":
        headrace.freeze([1])  # imports what it needs
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


def _run(what: str, rival: str, count: int) -> float:
    done = subprocess.run([sys.executable, __file__, what, rival, str(count)], stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout))


def growth(what: str, count: int) -> dict[str, float]:
    """By rival, in bytes. `what`: "growth", of records (1 million are 1.5 GB of Python objects), or "scans"."""
    return {rival: _run(what, rival, count) for rival in ("built-in", "headrace")}


def peak_of_building(count: int) -> float:
    """Bytes beside the records, while an image is made of so many."""
    return _run("peak", "headrace", count)


def first_batches(count: int) -> dict[str, float]:
    """By dataset, in seconds: the first batch of one worker that is spawned."""
    found: dict[str, list[float]] = {"an empty dataset": [], "built-in": [], "headrace": []}
    for _ in range(ROUNDS):
        for name, seconds in found.items():
            seconds.append(_run("start", name, count))
    return {name: statistics.median(seconds) for name, seconds in found.items()}


if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
