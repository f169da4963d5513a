# SPDX-License-Identifier: Apache-2.0
"""The random numbers of iterable datasets, whose workers are seeded from the loader's generator."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from headrace.torch import DataLoader

FORK = multiprocessing.get_context("fork")


class Random(torch.utils.data.IterableDataset[int]):
    """Draws its samples from torch's generator, which the loader has seeded in a worker."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(6):
            yield int(torch.randint(1 << 40, ()))


def make(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(Random(), batch_size=2, num_workers=1, generator=generator)


def test_state_after_epoch_gives_the_next_epochs_numbers() -> None:
    loader = make(1)
    list(loader)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in loader]
    resumed = make(2)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == expected


def test_state_before_first_batch_gives_the_epochs_numbers() -> None:
    loader = make(1)
    iterator = iter(loader)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in iterator]
    resumed = make(2)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert [batch.tolist() for batch in resumed] == expected


def test_state_in_mid_epoch_makes_the_same_numbers_again() -> None:
    loader = make(1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in iterator]
    resumed = make(2)
    resumed.load_state_dict(state)
    with pytest.warns(UserWarning, match="the 1 batches that were delivered before are made again and dropped"):
        assert [batch.tolist() for batch in resumed] == expected


class Late(torch.utils.data.IterableDataset[int]):
    """Five numbers of each worker. One worker makes its first number only when `go` is set."""

    def __init__(self, late: int) -> None:
        self.late, self.go = late, FORK.Event()

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        assert info.id != self.late or self.go.wait(60)
        yield from range(5 * info.id, 5 * info.id + 5)


def test_batches_made_again_out_of_order_are_the_right_ones() -> None:
    """Worker 1 is first in one process, and worker 0 in the next one."""
    seen = []
    loader: Any = DataLoader(Late(0), num_workers=2, in_order=False, multiprocessing_context=FORK)
    iterator = iter(loader)
    for _ in range(4):
        seen.append(next(iterator).item())
    assert seen == [5, 6, 7, 8]
    state = loader.state_dict()
    loader.dataset.go.set()
    del iterator
    resumed: Any = DataLoader(Late(1), num_workers=2, in_order=False, multiprocessing_context=FORK)
    resumed.load_state_dict(state)
    with pytest.warns(UserWarning, match="the 4 batches that were delivered before are made again and dropped"):
        iterator = iter(resumed)
    for _ in range(5):
        seen.append(next(iterator).item())
    resumed.dataset.go.set()
    assert sorted([*seen, *(batch.item() for batch in iterator)]) == list(range(10))
