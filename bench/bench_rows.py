# SPDX-License-Identifier: Apache-2.0
"""Measures batches of rows: a TensorDataset, token files, tables. The rivals are torch's loader, datasets' own reading,
and what people write by hand. Values are the CPU time of the trainer for a batch; with workers, the time that passes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import headrace.torch
import torch
import torch.utils.data
from measure import QUICK, ROUNDS, Case, Goal, Key, Row, in_words, run_all
from torch.utils.data import TensorDataset

BATCH = 256
STEPS = 40 if QUICK else 120
TORCH, OURS, BY_HAND = "torch", "headrace", "by hand"

Batches = Callable[[], Iterator[Any]]


def each_us(batches: Batches, workers: int) -> float:
    """Returns the time of a batch in the middle of an epoch. As in a loop, a batch is kept until the next one came."""
    iterator = batches()
    for _ in range(8):
        batch = next(iterator)
    clock = time.perf_counter if workers else time.thread_time
    start = clock()
    for _ in range(STEPS):
        batch = next(iterator)
    del batch
    return 1e6 * (clock() - start) / STEPS


def compare(work: str, workers: int, ways: dict[str, Batches]) -> list[Row]:
    """Measures the ways in turn."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, batches in ways.items():
            found[name].append(each_us(batches, workers))
    return [Row(work, name, workers, statistics.median(values), "us") for name, values in found.items()]


# ---- a TensorDataset ----


def name_of(floats: int) -> str:
    return f"TensorDataset, {BATCH} rows of {floats} float32 and a label, shuffled"


def select(x: torch.Tensor, y: torch.Tensor) -> Iterator[Any]:
    """The loop that many scripts have in place of a loader."""
    order = torch.randperm(len(x))
    for at in range(0, len(x), BATCH):
        indices = order[at : at + BATCH]
        yield x.index_select(0, indices), y.index_select(0, indices)


def of_tensors(floats: int, rows: int) -> list[Row]:
    x, y = torch.randn(rows, floats), torch.randint(0, 10, (rows,))

    def loader(kind: Any, workers: int) -> Iterator[Any]:
        return iter(kind(TensorDataset(x, y), BATCH, shuffle=True, num_workers=workers))

    found = []
    for workers in (0, 2):
        ways: dict[str, Batches] = {
            TORCH: partial(loader, torch.utils.data.DataLoader, workers),
            OURS: partial(loader, headrace.torch.DataLoader, workers),
        }
        found += compare(name_of(floats), workers, ways if workers else {**ways, BY_HAND: partial(select, x, y)})
    return found


def goals() -> list[Goal]:
    wide, narrow = name_of(784), name_of(8)
    return [
        Goal("784 floats, of index_select by hand", Key(wide, OURS), 1.15, Key(wide, BY_HAND)),
        Goal("784 floats, of torch", Key(wide, OURS), 1 / 8, Key(wide, TORCH)),
        Goal("8 floats, of torch", Key(narrow, OURS), 1 / 30, Key(narrow, TORCH)),
        Goal("784 floats, 2 workers, of torch", Key(wide, OURS, 2), 1 / 6, Key(wide, TORCH, 2)),
        Goal("8 floats, 2 workers, of torch", Key(narrow, OURS, 2), 1 / 10, Key(narrow, TORCH, 2)),
    ]


CASES = [
    Case("tensors of 784", partial(of_tensors, 784, 60_000)),
    Case("tensors of 8", partial(of_tensors, 8, 400_000)),
]


def show(rows: list[Row]) -> None:
    theirs = {(row.work, row.workers): row.value for row in rows if row.rival == TORCH}
    for row in rows:
        base = theirs.get((row.work, row.workers))
        ratio = in_words(row.value / base) if base else ""
        print(f"{row.work:70} {row.workers} {row.rival:17} {row.value:12.1f} {row.unit:3} {ratio}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    run_all(__doc__ or "", CASES, lambda case: case.run(), show, goals)


if __name__ == "__main__":
    main()
