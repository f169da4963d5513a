# SPDX-License-Identifier: Apache-2.0
"""Measures the state of a loader: how long it takes to save it and to resume from it, and what it costs each batch.

torchdata's StatefulDataLoader is measured next to headrace's loader. The dataset gives the indices themselves, so that
the time is the loader's.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import headrace
import headrace.torch
import torch.utils.data
from measure import QUICK, ROUNDS, Case, Goal, Key, Row, in_turn, run_all, show_against

try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:
    StatefulDataLoader = None

COUNT, BATCH = (100_000, 64) if QUICK else (1_000_000, 64)
RESUMED_AT = int(0.896 * COUNT) // BATCH  # steps
SNAPSHOTS = 100
STEPS = 500 if QUICK else 5000

SNAPSHOT = "state_dict in mid-epoch"
RESTORE = f"load_state_dict to the first batch, at {RESUMED_AT * BATCH:.3g} of {COUNT:.0e} samples"
EACH, MORE = "a batch", "a batch, less torch's"
STREAM, TORCHS = "headrace, stream", "headrace"


class Indices(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Gives the list of indices that it is asked for."""

    def __len__(self) -> int:
        return COUNT

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


def as_it_is(batch: Any) -> Any:
    return batch


def make(kind: Any, workers: int = 0, **order: Any) -> Any:
    """Returns a loader in the order of torch's RandomSampler, unless `order` is another."""
    return kind(Indices(), BATCH, num_workers=workers, collate_fn=as_it_is, **(order or {"shuffle": True}))


def make_stream(kind: Any, workers: int = 0) -> Any:
    return make(kind, workers, sampler=headrace.Order(COUNT, seed=1))


Make = Callable[[int], Any]
KINDS: dict[str, Make] = {
    **({"torchdata": lambda workers: make(StatefulDataLoader, workers)} if StatefulDataLoader else {}),
    TORCHS: lambda workers: make(headrace.torch.DataLoader, workers),
    STREAM: lambda workers: make_stream(headrace.torch.DataLoader, workers),
}


def goals() -> list[Goal]:
    return [
        *(Goal(f"{SNAPSHOT}, {w} workers", Key(SNAPSHOT, TORCHS, w), 20, unit="us") for w in (0, 2)),
        Goal(f"{RESTORE}: torch's order", Key(RESTORE, TORCHS), 300, unit="ms"),
        Goal(f"{RESTORE}: stream", Key(RESTORE, STREAM), 1, unit="ms"),
        *(Goal(f"{MORE}, {w} workers", Key(MORE, TORCHS, w), 1, unit="us") for w in (0, 2)),
    ]


def snapshot_us(make_loader: Make, workers: int) -> float:
    loader = make_loader(workers)
    batches = iter(loader)
    deque(islice(batches, 10), maxlen=0)
    times = []
    for _ in range(SNAPSHOTS):
        next(batches)
        start = time.perf_counter()
        loader.state_dict()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def with_workers(rows: list[Row], workers: int) -> list[Row]:
    return [Row(row.work, row.rival, workers, row.value, row.unit) for row in rows]


def of_snapshot() -> list[Row]:
    rows: list[Row] = []
    for workers in (0, 2):
        ways = {name: partial(snapshot_us, one, workers) for name, one in KINDS.items()}
        rows += with_workers(in_turn(SNAPSHOT, ways, "us"), workers)
    return rows


def state_at(make_loader: Make) -> Any:
    loader = make_loader(0)
    deque(islice(iter(loader), RESUMED_AT), maxlen=0)
    return loader.state_dict()


def first_batch_ms(make_loader: Make, state: Any) -> float:
    """Returns the time to the first batch, with a state or, if it is None, of a new epoch."""
    loader = make_loader(0)
    start = time.perf_counter()
    if state is not None:
        loader.load_state_dict(state)
    next(iter(loader))
    return 1e3 * (time.perf_counter() - start)


def of_restore() -> list[Row]:
    """torch's row is the first batch of a new epoch."""
    states = {name: state_at(one) for name, one in KINDS.items()}
    ways = {name: partial(first_batch_ms, one, states[name]) for name, one in KINDS.items()}
    return in_turn(RESTORE, {"torch": partial(first_batch_ms, make_torchs, None), **ways}, "ms")


def make_torchs(workers: int) -> Any:
    return make(torch.utils.data.DataLoader, workers)


def batch_us(batches: Iterator[Any]) -> float:
    deque(islice(batches, 50), maxlen=0)
    start = time.perf_counter()
    deque(islice(batches, STEPS), maxlen=0)
    return 1e6 * (time.perf_counter() - start) / STEPS


def of_each() -> list[Row]:
    """Includes the differences from torch's time, in the same rounds."""
    rows: list[Row] = []
    ways = {"torch": make_torchs, **KINDS}
    for workers in (0, 2):
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, one in ways.items():
                found[name].append(batch_us(iter(one(workers))))
        for name, values in found.items():
            more = [ours - theirs for ours, theirs in zip(values, found["torch"], strict=True)]
            rows.append(Row(EACH, name, workers, statistics.median(values), "us"))
            if name != "torch":
                rows.append(Row(MORE, name, workers, statistics.median(more), "us"))
    return rows


CASES = [Case("snapshot", of_snapshot), Case("restore", of_restore), Case("each", of_each)]


def main() -> None:
    run_all(__doc__ or "", CASES, lambda case: case.run(), show_against("torchdata"), goals)


if __name__ == "__main__":
    main()
