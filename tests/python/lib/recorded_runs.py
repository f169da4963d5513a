# SPDX-License-Identifier: Apache-2.0
"""Recordings of made-up runs: columns that are the same in each second."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from headrace import _core
from headrace._report.recorded import Hour, Recorded, Rows, Slow

S = 10**9
MS = 10**6
OPENED = 1000 * S
KEPT = 1 << 16  # steps and batches
REAL = 1_700_000_000 * S
NAMES = (
    "at_ns", "real_ns", "length_ns", "epoch", "step", "batches", "samples", "bytes", "errors", "inside_ns", "start_ns",
    "starts", "wait_ns", "pin_ns", "draw_ns", "rebuild_ns", "restarts", "bad_samples", "queue_count", "used_bytes",
    "cores_busy", "cores_allowed", "throttled_ns", "memory_available", "used_workers",
    "trainer_cpu_ns", "trainer_delay_ns", "network_ns", "hit_count", "wait_count", "fetched_bytes", "requests",
    "retries",
)  # fmt: skip


def rows_of(count: int, length_s: float = 1, end_ns: int | None = None, **values: Any) -> Rows:
    """Makes rows of equal length. A value is a number for each row, or a list. `workers`: as many times `worker`."""
    length_ns = int(length_s * S)
    first = OPENED if end_ns is None else end_ns - count * length_ns
    workers, worker = values.pop("workers", 0), values.pop("worker", {})
    columns: dict[str, Any] = {name: [0] * count for name in NAMES}
    columns |= {name: value if isinstance(value, list) else [int(value)] * count for name, value in values.items()}
    columns["at_ns"] = [first + (at + 1) * length_ns for at in range(count)]
    columns["real_ns"] = [at_ns - OPENED + REAL for at_ns in columns["at_ns"]]
    columns["length_ns"] = [length_ns] * count
    if "step" not in values:
        columns["step"] = list(itertools.accumulate(columns["batches"]))
    of_workers = [
        {name: value if isinstance(value, list) else [int(value)] * count for name, value in worker.items()}
        for _ in range(workers)
    ]
    return Rows(columns, of_workers)


def run(
    *,
    count: int = 60,
    length_s: float = 1,
    wait: float = 0.3,
    start: float = 0.0,
    per_s: float = 20,
    workers: int = 4,
    busy: float = 0.95,
    cpu: float = 0.95,
    delay: float = 0.0,
    collate: float = 0.1,
    cores: float = 16,
    used: float = 5,
    throttled: float = 0.0,
    private: Any = 400 << 20,
    available: int = 32 << 30,
    rank: int = -1,
    world_size: int = 1,
    slow_every: int = 0,
    trainer_cpu: float = 0,
    trainer_delay: float = 0,
    network: float = 0,
    trainer_network: float = 0,
    more: dict[str, Any] | None = None,
    **fields: Any,
) -> Recorded:
    """Makes a recording. Shares are of the time: `wait` of the loop, `start` of first batches; `busy` of a worker;
    `cpu`, `delay`, `network` and `collate` of the busy time. `used`: cores of the machine. Each `slow_every`th batch
    has a slow sample, and is waited for. `trainer_cpu`, `trainer_delay`: cores that the training process uses, or waits
    for; `trainer_network`: its share of all time."""
    ns = length_s * S
    worker = {"fetch_ns": ns * busy * (1 - collate), "collate_ns": ns * busy * collate, "wait_ns": ns * (1 - busy),
              "cpu_ns": ns * busy * cpu, "delay_ns": ns * busy * delay, "private_bytes": private,
              "network_ns": ns * busy * network}  # fmt: skip
    values = {"batches": per_s * length_s, "samples": 8 * per_s * length_s, "bytes": MS * per_s * length_s,
              "inside_ns": wait * ns, "wait_ns": wait * ns, "start_ns": start * ns, "starts": int(start > 0),
              "queue_count": 1, "cores_busy": 1000 * used, "cores_allowed": 1000 * cores,
              "throttled_ns": throttled * ns, "memory_available": available, "used_workers": workers,
              "trainer_cpu_ns": trainer_cpu * ns, "trainer_delay_ns": trainer_delay * ns,
              "network_ns": trainer_network * ns, **(more or {})}  # fmt: skip
    rows = rows_of(count, length_s, workers=workers, worker=worker, **values)
    steps, batches, slowest = _steps(rows, per_s, workers, wait, slow_every)
    samples = [0] * _core.LOOK_BUCKETS
    samples[21] = 1000  # 2 to 4 ms
    known = {
        "path": "run1/one.hrr", "name": "train.py:88", "pid": 4187, "loader": 0, "rank": rank, "world_size": world_size,
        "workers": workers, "queue_room": 8, "opened_real_ns": REAL,
        "host": "node07", "command": "python train.py",
        "cores": int(cores), "version": "0.1.0", "ended": "the job ended", "seconds": rows, "minutes": rows_of(0),
        "hours": [Hour(OPENED, samples, samples)], "slowest": slowest, "batches": batches, "steps": steps,
    }  # fmt: skip
    return Recorded(**{**known, **fields})


def _steps(rows: Rows, per_s: float, workers: int, wait: float, slow_every: int) -> tuple[Any, Any, Any]:
    total = int(sum(rows["batches"]))
    kept = range(max(0, total - KEPT), total)
    step_ns = int(S / per_s)
    at = [OPENED + (number + 1) * step_ns for number in kept]
    is_slow = [bool(slow_every) and number % slow_every == 0 for number in kept]
    usual_us = 0 if slow_every else int(wait * step_ns / 1000)
    wait_us = [int(slow_every * wait * step_ns / 1000) if slow else usual_us for slow in is_slow]
    count = len(kept)
    steps = {"at_ns": at, "epoch": [0] * count, "step": [number + 1 for number in kept], "inside_us": wait_us}
    batches = {
        "worker": [number % max(workers, 1) for number in kept], "number": [number + 1 for number in kept],
        "task": list(kept), "began_ns": [ns - step_ns for ns in at], "fetch_ns": [step_ns // 2] * count,
        "collate_ns": [step_ns // 10] * count, "bytes": [MS] * count, "slowest_index": [8 * n for n in kept],
        "slowest_ns": [1000 * us if slow else 3 * MS for us, slow in zip(wait_us, is_slow, strict=True)],
    }  # fmt: skip
    slowest = [Slow(400 * MS, 8 * n, 0, ns) for n, ns, slow in zip(kept, at, is_slow, strict=True) if slow][:256]
    return steps, batches, slowest


def week() -> Recorded:
    """Makes the recording of a week: minutes, and seconds of the last two hours; nothing is even."""
    minutes = 7 * 24 * 60
    uneven = [int((0.2 + 0.6 * (at * 7919 % 1000) / 1000) * 60 * S) for at in range(minutes)]
    seconds = [int((at * 104729 % 1000) / 1000 * S) for at in range(7200)]
    growing = [(400 << 20) + at * (1 << 18) * 3 for at in range(minutes)]
    one = run(count=minutes, length_s=60, per_s=9, workers=16, private=growing, more={"inside_ns": uneven})
    end_ns = OPENED + minutes * 60 * S
    worker = {
        "fetch_ns": S // 2,
        "collate_ns": S // 10,
        "wait_ns": 2 * S // 5,
        "cpu_ns": S // 2,
        "delay_ns": 0,
        "private_bytes": growing[-1],
        "network_ns": 0,
    }
    newest = rows_of(7200, 1, end_ns, workers=16, worker=worker, batches=9, samples=72, inside_ns=seconds,
                     cores_allowed=16000, memory_available=32 << 30, queue_count=3,
                     used_workers=16)  # fmt: skip
    return replace(one, minutes=one.seconds, seconds=newest)
