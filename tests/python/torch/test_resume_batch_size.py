# SPDX-License-Identifier: Apache-2.0
"""A program changes `batch_sampler.batch_size` while a loop runs, as schedules do. A state that is taken then continues
after the batch that was delivered last."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from headrace.torch import DataLoader, DistributedSampler
from loaders import only_headrace
from torch.utils.data import RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler, TensorDataset

pytestmark = only_headrace

LENGTH = 83
DATA = TensorDataset(torch.arange(LENGTH))
CHANGED_AFTER = 2  # batches


class Own(Sampler[int]):
    """headrace does not know its order."""

    def __iter__(self) -> Iterator[int]:
        return iter([index * 7 % LENGTH for index in range(LENGTH)])

    def __len__(self) -> int:
        return LENGTH


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(DATA),
    "random": lambda: RandomSampler(DATA, generator=torch.Generator().manual_seed(3)),
    "subset": lambda: SubsetRandomSampler(range(LENGTH), generator=torch.Generator().manual_seed(3)),
    "distributed": lambda: DistributedSampler(DATA, 2, 1),
    "own": Own,
}


def _loader(name: str, workers: int) -> Any:
    options = {"multiprocessing_context": "fork", "prefetch_factor": 1} if workers else {}
    return DataLoader(DATA, 4, sampler=SAMPLERS[name](), num_workers=workers, **options)


def _take(iterator: Iterator[Any]) -> list[int]:
    found: list[int] = next(iterator)[0].tolist()
    return found


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", SAMPLERS)
def test_state_after_a_change_goes_on_with_the_next_batch(name: str, workers: int) -> None:
    loader = _loader(name, workers)
    iterator = iter(loader)
    batches, states = [], []
    for step in range(4 + CHANGED_AFTER):
        try:
            batches.append(_take(iterator))
        except StopIteration:
            break
        states.append(loader.state_dict())
        if step == CHANGED_AFTER - 1:
            loader.batch_sampler.batch_size = 7
    sizes = [len(one) for one in batches]
    assert sizes[0] == 4 and sizes.count(7) > 0, sizes
    for step, state in enumerate(states[:-1]):
        other = _loader(name, workers)
        other.batch_sampler.batch_size = sizes[step]
        other.load_state_dict(state)
        other.batch_sampler.batch_size = sizes[step] if sizes[step + 1] == sizes[step] else 7
        if name == "own" and other.batch_sampler.batch_size != sizes[step]:
            continue  # an order that is not known is not divided again
        assert _take(iter(other)) == batches[step + 1], step


@pytest.mark.parametrize("workers", [0, 1])
def test_steps_and_weights_follow_a_changed_size(workers: int) -> None:
    loader = _loader("sequential", workers)
    iterator = iter(loader)
    for _ in range(2):
        _take(iterator)
    loader.batch_sampler.batch_size = 10
    left = []
    while True:
        left.append(loader.steps_left)
        try:
            _take(iterator)
        except StopIteration:
            break
    drawn_ahead = workers  # batches of 4, before the change
    entries = LENGTH - 4 * (2 + drawn_ahead)
    assert len(left) - 1 == drawn_ahead + -(-entries // 10)
    assert left[-1] == 0 and left[-2] == 1


def test_state_is_not_at_the_end_while_batches_come() -> None:
    """RandomSampler reads its number of samples again for the last list: data that have grown belong to the epoch."""
    data = list(range(10))
    loader = DataLoader(data, batch_size=5, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    data += range(10, 15)
    next(iterator)
    state = json.loads(loader.state_dict()["headrace"])
    left = len(list(iterator))
    assert (state["is_end"], left) in ((False, 1), (True, 0))
