# SPDX-License-Identifier: Apache-2.0
"""Measures sample_threads: samples that wait, made by threads of a worker, next to one at a time and to torch's loader.

A sample sleeps for 20 ms, as one that waits for a server. A number is the time for one sample, after the first batch.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import headrace.torch
import torch.utils.data
from measure import QUICK, ROUNDS, Case, Goal, Key, Row, in_turn, in_words, run_all

WAIT_S = 0.02
SECONDS = 0.6 if QUICK else 2.0  # of each turn
COUNT = 1 << 30
TORCH_WORKERS = 8
MANY = 64  # samples at a time, for memory
THREADS, ALONE, TORCH = "headrace, threads", "headrace", f"torch, {TORCH_WORKERS} workers"


class Waiting(torch.utils.data.Dataset[int]):
    """Gives the index after a wait."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        if self.seconds:
            time.sleep(self.seconds)
        return index


@dataclass(frozen=True)
class Work:
    """A loader with threads. least: how many times as fast it is to be as the same one without."""

    batch: int
    workers: int
    threads: int
    least: float

    @property
    def name(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"20 ms of sleep, batch {self.batch}, {workers}, {self.threads} threads"


WORKS = [Work(32, 1, 32, 28), Work(4, 4, 8, 7), Work(32, 1, 64, 55)]
COST, MEMORY = "a sample that does not wait, batch 64, 1 worker, 8 threads", f"memory of {MANY} samples at a time"
MORE = f"{COST}, less one thread's"


def goals() -> list[Goal]:
    speeds = [
        Goal(f"{one.name}, of one at a time", Key(one.name, THREADS), 1 / one.least, Key(one.name, ALONE))
        for one in WORKS
    ]
    return [
        *speeds,
        Goal(MORE, Key(MORE, THREADS), 5, unit="us"),
        Goal(f"{MEMORY}, of {MANY} workers", Key(MEMORY, THREADS), 0.1, Key(MEMORY, ALONE)),
    ]


def us_of(kind: Any, seconds: float, batch: int, workers: int, **options: Any) -> float:
    """Returns the time of a sample. Whole rounds of all workers are counted, whose batches may come together."""
    iterator = iter(kind(Waiting(seconds), batch, num_workers=workers, multiprocessing_context="fork", **options))
    for _ in range(2 * workers):
        next(iterator)
    start, taken = time.perf_counter(), 0
    while taken < workers or time.perf_counter() - start < SECONDS:
        for _ in range(workers):
            next(iterator)
        taken += workers
    spent = time.perf_counter() - start
    del iterator
    gc.collect()
    return 1e6 * spent / (taken * batch)


def of_waits(work: Work) -> list[Row]:
    ours, theirs = headrace.torch.DataLoader, torch.utils.data.DataLoader
    return in_turn(
        work.name,
        {
            TORCH: partial(us_of, theirs, WAIT_S, work.batch, TORCH_WORKERS),
            ALONE: partial(us_of, ours, WAIT_S, work.batch, work.workers),
            THREADS: partial(us_of, ours, WAIT_S, work.batch, work.workers, sample_threads=work.threads),
        },
        "us",
        min(ROUNDS, 3),
    )


def of_cost() -> list[Row]:
    """Includes the difference. One at a time the samples are made one by one, too, because of on_bad_sample."""
    ours = headrace.torch.DataLoader
    rows = in_turn(
        COST,
        {
            ALONE: partial(us_of, ours, 0, 64, 1, on_bad_sample="skip"),
            THREADS: partial(us_of, ours, 0, 64, 1, on_bad_sample="skip", sample_threads=8),
        },
        "us",
    )
    return [*rows, Row(MORE, THREADS, 0, rows[1].value - rows[0].value, "us")]


def own_mib(pid: int) -> float:
    """Returns the memory that only this process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines[1:])}
    return (int(fields["Private_Clean"][0]) + int(fields["Private_Dirty"][0])) / 1024


def mib_of(workers: int, **options: Any) -> float:
    """Returns the memory of all workers, once each has made batches."""
    batch = MANY // workers
    loader = headrace.torch.DataLoader(
        Waiting(WAIT_S), batch, num_workers=workers, multiprocessing_context="fork", **options
    )
    iterator = iter(loader)
    for _ in range(4 * workers):
        next(iterator)
    found = sum(own_mib(worker["pid"]) for worker in loader.report()["per_worker"])
    del iterator
    gc.collect()
    return found


def of_memory() -> list[Row]:
    ways = {ALONE: partial(mib_of, MANY), THREADS: partial(mib_of, 1, sample_threads=MANY)}
    return in_turn(MEMORY, ways, "MiB", 1 if QUICK else 3)


CASES = [
    *(Case(work.name, partial(of_waits, work)) for work in WORKS),
    Case("cost", of_cost),
    Case("memory", of_memory),
]


def show(rows: list[Row]) -> None:
    base = next((row.value for row in rows if row.rival == ALONE), 0.0)
    for row in rows:
        ratio = in_words(row.value / base) if base and row.rival != ALONE and row.work != MORE else ""
        print(f"{row.work:66} {row.rival:17} {row.value:12.1f} {row.unit:3} {ratio}", flush=True)


def main() -> None:
    run_all(__doc__ or "", CASES, lambda case: case.run(), show, goals)


if __name__ == "__main__":
    main()
