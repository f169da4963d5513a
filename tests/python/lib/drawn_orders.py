# SPDX-License-Identifier: Apache-2.0
"""Samplers that draw their orders in many ways, for tests of states: each way is a combination of how the sampler is
written, of where it has its random numbers, and of what is around it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import numpy as np
import torch
from headrace.torch import DataLoader, DistributedSampler, per_rank
from resumed import Numbers
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SubsetRandomSampler, distributed

N = 24
MODULES_OWN = random.Random(11)  # a generator that a sampler uses as a global variable


def _of_torch(generator: torch.Generator | None) -> Callable[[list[int]], list[int]]:
    return lambda items: [items[at] for at in torch.randperm(len(items), generator=generator).tolist()]


def _of_python(generator: Any) -> Callable[[list[int]], list[int]]:
    return lambda items: generator.sample(items, len(items))  # type: ignore[no-any-return]


def _of_numpy(generator: Any) -> Callable[[list[int]], list[int]]:
    return lambda items: generator.permutation(items).tolist()  # type: ignore[no-any-return]


def _of_module(items: list[int]) -> list[int]:
    return MODULES_OWN.sample(items, len(items))


# How a sampler shuffles, by where its random numbers are. The closures hold the generators.
SHUFFLES: dict[str, Callable[[], Callable[[list[int]], list[int]]]] = {
    "torch": lambda: _of_torch(None),
    "python": lambda: _of_python(random),
    "numpy": lambda: _of_numpy(np.random),
    "torch.Generator": lambda: _of_torch(torch.Generator().manual_seed(3)),
    "random.Random": lambda: _of_python(random.Random(3)),
    "numpy.Generator": lambda: _of_numpy(np.random.default_rng(3)),
    "numpy.Philox": lambda: _of_numpy(np.random.Generator(np.random.Philox(3))),
    "numpy.RandomState": lambda: _of_numpy(np.random.RandomState(3)),
    "global variable": lambda: _of_module,
    "operating system": lambda: _of_python(random.SystemRandom()),
}
SHARED = ("torch", "python", "numpy")  # those that all code of the process draws from


class Shuffled(Sampler[int]):
    """Draws an order in each epoch."""

    def __init__(self, shuffle: Callable[[list[int]], list[int]]) -> None:
        self.how = {"shuffle": [shuffle]}

    def __iter__(self) -> Iterator[int]:
        yield from self.how["shuffle"][0](list(range(N)))

    def __len__(self) -> int:
        return N


class ShuffledInPlace(Shuffled):
    """Shuffles the order of the epoch before."""

    def __init__(self, shuffle: Callable[[list[int]], list[int]]) -> None:
        super().__init__(shuffle)
        self.indices = list(range(N))

    def __iter__(self) -> Iterator[int]:
        self.indices[:] = self.how["shuffle"][0](self.indices)
        yield from self.indices


class Counting(Shuffled):
    """Counts its epochs, at the end of each, and has no state."""

    def __init__(self, shuffle: Callable[[list[int]], list[int]]) -> None:
        super().__init__(shuffle)
        self.number = 0

    def __iter__(self) -> Iterator[int]:
        yield from (5 * (at + self.number) % N for at in range(N))
        self.number += 1


class CountingWithState(Counting):
    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


class ItsOwnIterator(Shuffled):
    """An iterator whose __iter__ begins an epoch and returns itself."""

    def __init__(self, shuffle: Callable[[list[int]], list[int]]) -> None:
        super().__init__(shuffle)
        self.left: list[int] = []

    def __iter__(self) -> Iterator[int]:
        self.left = self.how["shuffle"][0](list(range(N)))
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop()


class GoesOn(ItsOwnIterator):
    """An iterator that begins an epoch only if the one before is over, as those of lhotse after a load_state_dict."""

    def __iter__(self) -> Iterator[int]:
        return self if self.left else super().__iter__()


class GoesOnWithState(GoesOn):
    def state_dict(self) -> dict[str, Any]:
        return {"left": list(self.left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = list(state["left"])


class Batches(Sampler[Any]):
    """A batch sampler of the user's around a sampler, which it has under a name of its own."""

    def __init__(self, inner: Any, size: int) -> None:
        self.inner, self.size = inner, size

    def __iter__(self) -> Iterator[list[int]]:
        batch = []
        for index in self.inner:
            batch.append(index)
            if len(batch) == self.size:
                yield batch
                batch = []
        if batch:
            yield batch

    def __len__(self) -> int:
        return -(-len(self.inner) // self.size)


USERS = (Shuffled, ShuffledInPlace, Counting, CountingWithState, ItsOwnIterator, GoesOn, GoesOnWithState)
KNOWN: dict[str, Callable[[Any], Any]] = {
    "RandomSampler": lambda generator: RandomSampler(Numbers(N), generator=generator),
    "SubsetRandomSampler": lambda generator: SubsetRandomSampler(range(N), generator=generator),
    "Order": lambda generator: headrace.Order(N, seed=4),
    "list": lambda generator: list(range(N)),
}


def make_sampler(kind: str, shuffle: str) -> Any:
    """Returns a sampler by the name of its class and of what it shuffles by."""
    for one in USERS:
        if one.__name__ == kind:
            return one(SHUFFLES[shuffle]())
    generator = None if shuffle in SHARED else torch.Generator().manual_seed(3)
    return KNOWN[kind](generator)


def make_loader(kind: str, shuffle: str, wrapper: str, world: int, rank: int, batch: int, **options: Any) -> Any:
    """Returns a loader of one rank. Some wrappers ignore the rank, and give each one the whole order."""
    dataset = Numbers(N)
    if wrapper == "distributed":
        return DataLoader(dataset, batch, sampler=DistributedSampler(dataset, world, rank, seed=2), **options)
    if wrapper == "torch's distributed":
        sampler = distributed.DistributedSampler(dataset, world, rank, seed=2)
        return DataLoader(dataset, batch, sampler=sampler, **options)
    inner = make_sampler(kind, shuffle)
    if wrapper == "per_rank":
        seed = 7 if shuffle in SHARED else None
        dealt = per_rank(inner, num_replicas=world, rank=rank, seed=seed)
        return DataLoader(dataset, batch, sampler=dealt, **options)
    if wrapper == "BatchSampler":
        return DataLoader(dataset, batch_sampler=BatchSampler(inner, batch, False), **options)
    if wrapper == "batches":
        return DataLoader(dataset, batch_sampler=Batches(inner, batch), **options)
    if wrapper == "none":
        return DataLoader(dataset, None, sampler=inner, **options)
    assert wrapper == "sampler"
    return DataLoader(dataset, batch, sampler=inner, **options)


def is_refused(kind: str, shuffle: str, wrapper: str) -> bool:
    """Returns True if there is no loader of such parts: per_rank takes no such sampler, or torch's BatchSampler begins
    an iterator again for each batch, so an epoch never ends."""
    if kind in ("ItsOwnIterator", "GoesOn", "GoesOnWithState"):
        return wrapper in ("sampler", "BatchSampler", "per_rank")
    is_random = kind in ("Shuffled", "ShuffledInPlace", "Counting", "CountingWithState")
    return wrapper == "per_rank" and is_random and shuffle == "operating system"


WRAPPERS = ("sampler", "BatchSampler", "batches", "none", "per_rank", "distributed", "torch's distributed")
KINDS = (*(one.__name__ for one in USERS), *KNOWN)


def seed_all(seed: int) -> None:
    """Seeds what all code of the process draws from, as the beginning of a script does."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    MODULES_OWN.seed(11)


def shared_states() -> Any:
    """Returns what a careful checkpoint has of the shared generators."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def set_shared_states(states: Any) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
