# SPDX-License-Identifier: Apache-2.0
"""Datasets, samplers and loaders for tests of states: what is left of a run that was stopped is compared with the run
that was never stopped."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import torch
from headrace.torch import DataLoader, DistributedSampler, per_rank
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    distributed,
    get_worker_info,
)

N = 23
EPOCHS = 3


class Numbers(Dataset[int]):
    """Sample i is i."""

    def __init__(self, n: int = N) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


class Noisy(Numbers):
    """A sample has random numbers of torch and of Python."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, random.random(), torch.rand(()).item()], dtype=torch.float64)


class GlobalShuffle(Sampler[int]):
    """Draws from torch's generator, which all code shares."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(N).tolist()

    def __len__(self) -> int:
        return N


class OwnShuffle(Sampler[Any]):
    """A batch sampler with a generator of its own."""

    def __init__(self) -> None:
        self.random = random.Random(3)

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(N))
        self.random.shuffle(order)
        for start in range(0, N, 5):
            yield order[start : start + 5]

    def __len__(self) -> int:
        return 5


class Stateful(Sampler[int]):
    """Counts its epochs, and has a state."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        start = self.epoch * 7
        yield from ((start + i) % N for i in range(N))
        self.epoch += 1

    def __len__(self) -> int:
        return N

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def mixture(length: int = N) -> headrace.Mixture:
    """Returns a mixture, of which the second source comes to a second pass in the first epoch of N samples."""
    return headrace.Mixture({"a": range(15), "b": range(15, 22)}, {"a": 2, "b": 1}, seed=6, length=length)


LENGTHS = [1 + i * i % 9 for i in range(N)]
WEIGHTS = [1.0, 2.0, 3.0] * 7 + [1.0, 1.0]
# What makes a loader, by name. Each is called with the options of the loader.
MAKERS: dict[str, Callable[..., Any]] = {
    "sequential": lambda **o: DataLoader(Numbers(), batch_size=4, **o),
    "drop_last": lambda **o: DataLoader(Numbers(), batch_size=4, drop_last=True, shuffle=True, **o),
    "shuffle": lambda **o: DataLoader(Numbers(), batch_size=4, shuffle=True, **o),
    "shuffle, generator": lambda **o: DataLoader(Numbers(), batch_size=4, shuffle=True, generator=seeded(), **o),
    "no batches": lambda **o: DataLoader(Numbers(), batch_size=None, shuffle=True, **o),
    "replacement": lambda **o: DataLoader(Numbers(), 4, sampler=RandomSampler(Numbers(), True, 50), **o),
    "more than n": lambda **o: DataLoader(Numbers(), 4, sampler=RandomSampler(Numbers(), False, 50), **o),
    "subset": lambda **o: DataLoader(Numbers(), 4, sampler=SubsetRandomSampler(range(3, 20)), **o),
    "weighted": lambda **o: DataLoader(Numbers(), 4, sampler=WeightedRandomSampler(WEIGHTS, N), **o),
    "weighted, generator": lambda **o: DataLoader(
        Numbers(), 4, sampler=WeightedRandomSampler(WEIGHTS, N, generator=seeded()), **o
    ),
    "distributed": lambda **o: DataLoader(Numbers(), 4, sampler=DistributedSampler(Numbers(), 2, 1), **o),
    "torch's distributed": lambda **o: DataLoader(
        Numbers(), 4, sampler=distributed.DistributedSampler(Numbers(), 2, 1, drop_last=True), **o
    ),
    "per_rank": lambda **o: DataLoader(
        Numbers(), 4, sampler=per_rank(RandomSampler(Numbers()), num_replicas=2, rank=1, seed=5, tail="exact"), **o
    ),
    "per_rank of batches": lambda **o: DataLoader(
        Numbers(), batch_sampler=per_rank(OwnShuffle(), num_replicas=2, rank=1), **o
    ),
    "plan": lambda **o: DataLoader(
        Numbers(), batch_sampler=headrace.Plan(LENGTHS, max_batch=3, world_size=2, rank=1, tail="exact", seed=2), **o
    ),
    "order": lambda **o: DataLoader(Numbers(), 4, sampler=headrace.Order(N, seed=4), **o),
    "slice of an order": lambda **o: DataLoader(Numbers(), 4, sampler=headrace.Order(N, seed=4)[1::2], **o),
    "mixture": lambda **o: DataLoader(mixture().dataset, 4, sampler=mixture(), **o),
    "slice of a mixture": lambda **o: DataLoader(mixture().dataset, 4, sampler=mixture()[1::2], **o),
    "per_rank of a mixture": lambda **o: DataLoader(
        mixture().dataset, 4, sampler=per_rank(mixture(), num_replicas=2, rank=1, tail="exact"), **o
    ),
    "plan of a mixture": lambda **o: DataLoader(
        mixture().dataset,
        batch_sampler=headrace.Plan(LENGTHS[:22], order=mixture(), pack=12, world_size=2, rank=1, tail="exact"),
        **o,
    ),
    "global generator": lambda **o: DataLoader(Numbers(), 4, sampler=GlobalShuffle(), **o),
    "own generator": lambda **o: DataLoader(Numbers(), batch_sampler=OwnShuffle(), **o),
    "own state": lambda **o: DataLoader(Numbers(), batch_sampler=BatchSampler(Stateful(), 4, False), **o),
    "list": lambda **o: DataLoader(Numbers(), 4, sampler=[3, 1, 2] * 7, **o),
}


NUMPY_MAKERS: dict[str, Callable[..., Any]] = {
    "sequential": lambda **o: headrace.Loader(Numbers(), 4, seed=7, **o),
    "shuffle": lambda **o: headrace.Loader(Numbers(), 4, shuffle=True, seed=7, **o),
    "drawn seed": lambda **o: headrace.Loader(Numbers(), 4, shuffle=True, **o),
    "drop_last": lambda **o: headrace.Loader(Numbers(), 4, shuffle=True, drop_last=True, seed=7, **o),
    "no batches": lambda **o: headrace.Loader(Numbers(), None, shuffle=True, seed=7, **o),
    "order": lambda **o: headrace.Loader(Numbers(), 4, sampler=headrace.Order(N, seed=1), **o),
    "slice of an order": lambda **o: headrace.Loader(Numbers(), 4, sampler=headrace.Order(N, seed=1)[1::2], **o),
    "mixture": lambda **o: headrace.Loader(mixture().dataset, 4, sampler=mixture(20), **o),
    "slice of a mixture": lambda **o: headrace.Loader(mixture().dataset, 4, sampler=mixture()[1::2], **o),
    "list": lambda **o: headrace.Loader(Numbers(), 4, sampler=[3, 2, 1] * 7, **o),
    "batches": lambda **o: headrace.Loader(Numbers(), batch_sampler=[[1, 2], [3], [4, 5, 6]] * 2, **o),
    "own state": lambda **o: headrace.Loader(Numbers(), 4, sampler=Stateful(), **o),
}


def set_epoch(loader: Any, epoch: int) -> None:
    """Does what users do before each epoch, if their sampler has epochs."""
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)


def plain(batch: Any) -> Any:
    return batch.tolist() if hasattr(batch, "tolist") else batch


def run(loader: Any, first_epoch: int = 0, epochs: int = EPOCHS) -> list[list[Any]]:
    """Returns the batches of epochs."""
    found = []
    for epoch in range(first_epoch, epochs):
        set_epoch(loader, epoch)
        found.append([plain(batch) for batch in loader])
    return found


def stop(loader: Any, batches: int) -> tuple[dict[str, str], Any]:
    """Runs until so many batches came, in all epochs. Returns the state, and that of torch's generator, as checkpoints
    contain both."""
    left = batches
    for epoch in range(EPOCHS):
        set_epoch(loader, epoch)
        for _ in loader:
            left -= 1
            if left == 0:
                return loader.state_dict(), torch.get_rng_state()
    raise AssertionError(f"there are fewer than {batches} batches")


class Counting(IterableDataset[int]):
    """An iterable dataset with a state. Worker 1 has half as many samples as the others."""

    def __init__(self, n: int = 41) -> None:
        self.n = n
        self.next = 0
        self.start: int | None = None

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info() or headrace.get_worker_info()
        number, count = (info.id, info.num_workers) if info else (0, 1)
        self.next, self.start = number if self.start is None else self.start, None
        while self.next < (self.n // 2 if number == 1 else self.n):
            self.next += count
            yield self.next - count

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["next"]


class Stateless(IterableDataset[int]):
    """An iterable dataset without a state."""

    def __init__(self, n: int = 41) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info() or headrace.get_worker_info()
        yield from range(info.id if info else 0, self.n, info.num_workers if info else 1)
