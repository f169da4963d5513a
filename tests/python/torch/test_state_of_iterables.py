# SPDX-License-Identifier: Apache-2.0
"""The random numbers of iterable datasets, whose workers are seeded from the loader's generator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from headrace.torch import DataLoader


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
