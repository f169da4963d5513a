# SPDX-License-Identifier: Apache-2.0
"""The state of loaders with samplers that draw random numbers: torch's and the user's own."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from headrace.torch import DataLoader, per_rank
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

N = 20


class Own(torch.utils.data.Sampler[int]):
    """A sampler of the user's, with a random number generator of its own or of Python's."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        yield from self.generator.sample(range(N), N)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(range(N)),
    "random with a generator": lambda: RandomSampler(range(N), generator=torch.Generator().manual_seed(3)),
    "weighted": lambda: WeightedRandomSampler([1.0] * N, N),
    "subset with a generator": lambda: SubsetRandomSampler(range(N), generator=torch.Generator().manual_seed(3)),
    "per_rank of a generator": lambda: per_rank(RandomSampler(range(N), generator=torch.Generator().manual_seed(3))),
    "own with a generator": lambda: Own(random.Random(3)),
    "own with Python's generator": lambda: Own(random),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", SAMPLERS)
def test_state_before_first_batch_repeats_the_epoch(name: str, workers: int) -> None:
    """With num_workers=0, torch's samplers draw their random numbers when the first batch is made."""
    loader = DataLoader(range(N), 3, sampler=SAMPLERS[name](), num_workers=workers)
    iterator = iter(loader)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in iterator]
    loader.load_state_dict(state)
    iterator = iter(loader)
    assert loader.state_dict() == state
    assert [batch.tolist() for batch in iterator] == expected


def test_state_before_first_batch_draws_no_number() -> None:
    loader = DataLoader(range(N), 3, shuffle=True)
    iterator = iter(loader)
    before = torch.get_rng_state()
    loader.state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    seed = int(torch.empty((), dtype=torch.int64).random_().item())
    torch.set_rng_state(before)
    expected = torch.randperm(N, generator=torch.Generator().manual_seed(seed)).tolist()
    assert [index for batch in iterator for index in batch.tolist()] == expected


@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("workers", [0, 1])
def test_users_sampler_with_generator_continues_in_mid_epoch(workers: int, batch_size: int | None) -> None:
    def make(seed: int) -> Any:
        return DataLoader(range(N), batch_size, sampler=Own(random.Random(seed)), num_workers=workers)

    loader = make(3)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    expected = list(map(str, iterator))
    resumed = make(4)
    resumed.load_state_dict(state)
    assert list(map(str, resumed)) == expected


class Part(Own):
    """The part of a rank in an order that all ranks shuffle alike."""

    def __init__(self, generator: Any, rank: int) -> None:
        super().__init__(generator)
        self.rank = rank

    def __iter__(self) -> Any:
        return itertools.islice(super().__iter__(), self.rank, None, 2)

    def __len__(self) -> int:
        return N // 2


def test_end_state_of_another_rank_is_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has taken all batches, but the sampler has not come to its end."""
    monkeypatch.setenv("WORLD_SIZE", "2")

    def made(rank: int) -> Any:
        monkeypatch.setenv("RANK", str(rank))
        return DataLoader(range(N), 5, sampler=Part(random.Random(3), rank))

    loader = made(0)
    for _ in zip(range(len(loader)), loader, strict=False):
        pass
    state = loader.state_dict()
    whole = made(1)
    list(whole)
    other = made(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_state_dict(state)
        assert [batch.tolist() for batch in other] == [batch.tolist() for batch in whole]


def test_start_state_of_users_sampler_is_refused_by_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank may have given its sampler other random numbers."""
    loader = DataLoader(range(N), 3, sampler=Own(random.Random(3)))
    iterator = iter(loader)
    state = loader.state_dict()
    del iterator
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    other = DataLoader(range(N), 3, sampler=Own(random.Random(3)))
    with pytest.raises(ValueError, match="this state is that of rank 0, and this is rank 1"):
        other.load_state_dict(state)
