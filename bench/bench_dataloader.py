# SPDX-License-Identifier: Apache-2.0
"""Measures what a batch costs through headrace's loader, through others, and in-process.

The samples are made beforehand, so that collating and crossing are measured; in one case the dataset converts them, as
most datasets do. The loaders take turns in each round; a number is the median of the rounds.
"""

from __future__ import annotations

import functools
import multiprocessing
from dataclasses import astuple, replace
from typing import Any

import headrace
import numpy as np
import torch
from measure import QUICK, ROUNDS, Cost, Goal, Key, Row, in_words, measure, medians, run_all
from rivals import MIB, RIVALS, Case, Converted, New, Ready, Rival

SECONDS = 0.08 if QUICK else 0.5
WARM_COUNT = 32
KIB = 1 << 10


def stack(samples: list[Any]) -> Any:
    """Collates as a user's own collate_fn does."""
    return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


def images(dtype: torch.dtype, side: int = 224, count: int = 64) -> list[torch.Tensor]:
    return [torch.ones(3, side, side, dtype=dtype) for _ in range(count)]


def floats(bytes_each: int, count: int = 1, samples: int = 4) -> New:
    """Makes samples of `count` float32 tensors."""
    made = [[np.ones(bytes_each // 4, np.float32) for _ in range(count)] for _ in range(samples)]
    return New(made if count > 1 else [sample[0] for sample in made])


def tensors(bytes_each: int, count: int, samples: int = 4) -> Ready:
    """Makes samples of `count` float32 tensors that exist before the measurement."""
    return Ready([[torch.ones(bytes_each // 4) for _ in range(count)] for _ in range(samples)])


def arrays(bytes_each: int, samples: int = 4) -> Ready:
    """Makes samples of one NumPy array each."""
    return Ready([np.ones(bytes_each // 4, np.float32) for _ in range(samples)])


TINY = "2 samples of 4 floats and an int"
KEPT = "64 x 3x224x224 uint8, 50 batches kept"
ARRAYS = {"64 B numpy array": 64, "2 MiB numpy array": 2 * MIB, "32 MiB numpy array": 32 * MIB}
UINT8, FLOAT32 = "64 x 3x224x224 uint8", "64 x 3x224x224 float32"
MANY, FEW = "114 float32 tensors, 16 MiB", "4 float32 tensors, 16 MiB"
MANY_THERE, FEW_THERE = f"{MANY}, there already", f"{FEW}, there already"
PART = 16 * MIB // 114 // 4 * 4
LARGE_PART = 114 * PART // 16 * 4
IMAGES_BYTES = 64 * 3 * 224 * 224


def many_with_few(many: Case, few: Case) -> Case:
    common: dict[str, Any] = {"options": {"batch_size": None}, "bytes": 114 * PART, "in_quick": True}
    return replace(many, reference=replace(few, **common), **common)


CASES = [
    Case(TINY, lambda: Ready([(torch.ones(4), i) for i in range(64)]), {"batch_size": 2}, in_quick=True),
    Case(UINT8, lambda: Ready(images(torch.uint8)), {"batch_size": 64}, bytes=IMAGES_BYTES, in_quick=True),
    Case(FLOAT32, lambda: Ready(images(torch.float32)), {"batch_size": 64}, bytes=4 * IMAGES_BYTES, in_quick=True),
    Case(
        f"{FLOAT32}, made of uint8",
        lambda: Converted(images(torch.uint8)),
        {"batch_size": 64},
        bytes=4 * IMAGES_BYTES,
    ),
    many_with_few(
        Case(MANY, lambda: floats(PART, 114)),
        Case(FEW, lambda: floats(LARGE_PART, 4)),
    ),
    many_with_few(
        Case(MANY_THERE, lambda: tensors(PART, 114)),
        Case(FEW_THERE, lambda: tensors(LARGE_PART, 4)),
    ),
    Case("8 KiB tensor", lambda: floats(8 * KIB), {"batch_size": None}, bytes=8 * KIB),
    Case("64 KiB tensor", lambda: floats(64 * KIB), {"batch_size": None}, bytes=64 * KIB),
    Case("1 MiB tensor", lambda: floats(MIB), {"batch_size": None}, bytes=MIB),
    Case("38 MB tensor", lambda: floats(38_000_000), {"batch_size": None}, bytes=38_000_000),
    Case(
        "64 x (3x32x32 float32, int), own collate_fn",
        lambda: Ready([(image, i) for i, image in enumerate(images(torch.float32, 32))]),
        {"batch_size": 64, "collate_fn": stack},
    ),
    Case(KEPT, lambda: Ready(images(torch.uint8)), {"batch_size": 64}, keep=50, bytes=IMAGES_BYTES),
    *(
        Case(
            name,
            lambda size=size: arrays(size),
            {"batch_size": None},
            bytes=size,
            loader=headrace.Loader,
            in_quick=True,
        )
        for name, size in ARRAYS.items()
    ),
]


def at_most(bound: float, work: str, workers: int, against: str, text: str = "") -> Goal:
    at = Key(work, against, 0 if against in ("in-process", "memcpy") else workers)
    text = text or f"{work}, {workers} worker{'s' * (workers > 1)}, of {against}"
    return Goal(text, Key(work, "headrace", workers), bound, at)


def counted(name: str, what: str, bound: float, unit: str, works: list[str]) -> list[Goal]:
    return [
        Goal(f"{work}, {workers} worker{'s' * (workers > 1)}, {what}", Key(work, "headrace", workers, name), bound,
             unit=unit)
        for work in works
        for workers in (1, 2)
    ]  # fmt: skip


def many_of_few(many: str, few: str, workers: int, text: str) -> Goal:
    """Compares 114 tensors with 4 that have the same number of bytes."""
    name = f"114 tensors, {workers} worker{'s' * (workers > 1)}, of 4 tensors, {text}"
    return Goal(name, Key(many, "headrace", workers), 1.1, Key(few, "headrace", workers))


GOALS = [
    at_most(1 / 60, TINY, 1, "torch"),
    at_most(1 / 50, TINY, 2, "torch"),
    at_most(1, TINY, 1, "in-process", f"{TINY}, 1 worker, of in-process (the aim)"),
    at_most(1, TINY, 2, "in-process", f"{TINY}, 2 workers, of in-process (the aim)"),
    *counted("cpu_us", "trainer's CPU", 15, "us", [TINY]),
    at_most(1.3, UINT8, 1, "in-process"),
    at_most(1 / 4, FLOAT32, 1, "torch"),
    at_most(1.3, FLOAT32, 1, "memcpy"),
    *(many_of_few(MANY_THERE, FEW_THERE, workers, "there already") for workers in (1, 2)),
    *(
        many_of_few(MANY, FEW, workers, "made again for each batch, which takes the dataset 60 us")
        for workers in (1, 2)
    ),
    *(at_most(bound, work, 1, "SPDL pool") for work, bound in zip(ARRAYS, (1 / 20, 1 / 4, 1 / 1.7), strict=True)),
    # The bound is one fault in 50 batches, because an allocator, a timer or a log may touch a page from time to time.
    *counted("faults", "page faults in the trainer", 0.02, "", [TINY, UINT8, FLOAT32, MANY]),
    *counted("worker_faults", "page faults in workers", 0.02, "", [TINY, UINT8, FLOAT32, MANY]),
]


def run_one(rival: Rival, case: Case, data: Ready, workers: int) -> Cost:
    before = {process.pid for process in multiprocessing.active_children()}
    batches = rival.open(case, data, workers)
    next(batches)  # Some loaders start their workers only now.
    pids = [process.pid for process in multiprocessing.active_children() if process.pid not in before]
    return measure(batches, pids, seconds=SECONDS, warm_count=WARM_COUNT + case.keep, keep=case.keep)


@functools.cache
def rivals_here() -> list[Rival]:
    """Returns the loaders to measure, and prints why the others are not measured."""
    rivals = [rival for rival in RIVALS if rival.in_quick or not QUICK]
    reasons = {rival.name: rival.why_not() for rival in rivals}
    for name, reason in reasons.items():
        if reason:
            print(f"{name} is not measured: {reason}")
    return [rival for rival in rivals if not reasons[rival.name]]


def run_case(case: Case) -> list[Row]:
    cases = {one.name: one for one in (case, case.reference) if one}
    data = {name: one.make() for name, one in cases.items()}
    costs: dict[tuple[str, Rival, int], list[Cost]] = {
        (name, rival, workers): []
        for workers in (0, 1, 2)
        for rival in rivals_here()
        for name, one in cases.items()
        if workers in rival.workers and rival.takes(one)
    }
    for _ in range(ROUNDS):
        for (name, rival, workers), of_turn in costs.items():
            of_turn.append(run_one(rival, cases[name], data[name], workers))
    found = {key: medians(of_turn) for key, of_turn in costs.items()}
    return [Row(name, rival.name, workers, cost.us, "us", cost) for (name, rival, workers), cost in found.items()]


COLUMNS = "{:12}{:>8}{:>11}{:>8} {:>9}{:>8}{:>9} {:>12}{:>8}{:>9}"
HEADS = ("", "workers", "us", "ratio", "CPU us", "faults", "switches", "worker CPU", "faults", "switches")


def show(rows: list[Row]) -> None:
    for work in dict.fromkeys(row.work for row in rows):
        show_work([row for row in rows if row.work == work])


def show_work(rows: list[Row]) -> None:
    print(rows[0].work)
    print(COLUMNS.format(*HEADS))
    torch_us = {row.workers: row.value for row in rows if row.rival == "torch"}
    for row in rows:
        ratio = in_words(row.value / torch_us[row.workers]) if row.rival == "headrace" else ""
        us, *costs = astuple(row.cost) if row.cost else ()
        numbers = [f"{us:.1f}", ratio, *(f"{cost:.{2 if i % 3 else 1}f}" for i, cost in enumerate(costs))]
        print(COLUMNS.format(row.rival, row.workers or "", *numbers), flush=True)


def main() -> None:
    run_all(__doc__ or "", CASES, run_case, show, lambda: GOALS)


if __name__ == "__main__":
    main()
