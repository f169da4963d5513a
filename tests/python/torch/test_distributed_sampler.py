# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.DistributedSampler against torch's: all that can be observed is equal, except time and memory."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch.utils.data
from drawn import draws
from headrace.torch import DataLoader, DistributedSampler
from hypothesis import given, settings
from hypothesis import strategies as st

Torch = torch.utils.data.DistributedSampler
SIZES = [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 59, 255, 256, 257, 1000, 4095, 4096, 4097]
WORLDS = [1, 2, 3, 8]


def both(*args: Any, **options: Any) -> tuple[Any, Any]:
    return Torch(*args, **options), DistributedSampler(*args, **options)


def assert_same(theirs: Any, ours: Any) -> None:
    assert {**vars(ours), "dataset": None} == {**vars(theirs), "dataset": None}
    assert len(ours) == len(theirs)
    indices = list(ours)
    assert indices == list(theirs) and all(type(index) is int for index in indices)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("world_size", WORLDS)
def test_indices_are_those_of_torch(n: int, world_size: int) -> None:
    for rank, shuffle, drop_last in itertools.product(range(world_size), (True, False), (True, False)):
        theirs, ours = both(range(n), world_size, rank, shuffle, 11, drop_last)
        assert_same(theirs, ours)
        for epoch in (1, 5):
            theirs.set_epoch(epoch)
            ours.set_epoch(epoch)
            assert_same(theirs, ours)


@given(
    n=st.integers(0, 2000),
    world_size=st.integers(1, 70),
    seed=st.integers(-(2**63), 2**64 - 100),
    epoch=st.integers(0, 99),
    flags=st.tuples(st.booleans(), st.booleans()),
    data=st.data(),
)
@settings(deadline=None, max_examples=draws(200))
def test_drawn_samplers_are_the_same(
    n: int, world_size: int, seed: int, epoch: int, flags: tuple[bool, bool], data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    theirs, ours = both(range(n), num_replicas=world_size, rank=rank, shuffle=flags[0], seed=seed, drop_last=flags[1])
    theirs.set_epoch(epoch)
    ours.set_epoch(epoch)
    assert_same(theirs, ours)


def test_class_is_derived_from_torchs() -> None:
    assert issubclass(DistributedSampler, Torch)
    assert inspect.signature(DistributedSampler) == inspect.signature(Torch)
    assert DistributedSampler.__name__ == Torch.__name__


def change(sampler: Any, **changes: Any) -> Any:
    for name, value in changes.items():
        setattr(sampler, name, value)
    return list(sampler)


ERRORS: list[Callable[[Any], Any]] = [
    lambda kind: kind(range(5), 2, 2),
    lambda kind: kind(range(5), 2, -1),
    lambda kind: kind(range(5), 0, 0),
    lambda kind: kind(iter(range(5)), 2, 0),
    lambda kind: kind(range(5)),
    lambda kind: kind(range(5), 2),
    lambda kind: list(kind(range(5), 2, 0, seed=2**64)),
    lambda kind: list(kind(range(5), 2, 0, seed=-(2**63) - 1)),
    lambda kind: list(kind(range(5), 2, 0, seed=0.5)),
    lambda kind: list(kind(range(5), 2, 0, seed=None)),
    lambda kind: list(kind(range(5), 2, 0, seed="1")),
    lambda kind: change(kind(range(5), 2, 0), epoch=2**64),
    lambda kind: change(kind(range(5), 2, 0), dataset=range(9)),
    lambda kind: change(kind(range(50), 2, 0), dataset=range(5), drop_last=True),
    lambda kind: change(kind(range(50), 2, 0), dataset=iter("no length")),
    lambda kind: change(kind(range(5), 2, 0), num_samples=7),
    lambda kind: change(kind(range(5), 2, 0), total_size=7),
    lambda kind: change(kind(range(5), 2, 0), num_replicas=0),
    lambda kind: change(kind(range(5), 2, 0), num_replicas="2"),
    lambda kind: change(kind(range(5), 2, 0), rank=5),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors_are_those_of_torch(number: int) -> None:
    with pytest.raises(Exception) as theirs:
        ERRORS[number](Torch)
    with pytest.raises(Exception) as ours:
        ERRORS[number](DistributedSampler)
    assert (ours.type, str(ours.value)) == (theirs.type, str(theirs.value))


CHANGES: list[dict[str, Any]] = [
    {"dataset": range(4)},  # padded
    {"rank": 1},
    {"rank": True},
    {"rank": -1},
    {"rank": None},
    {"drop_last": True},
    {"shuffle": 0},
    {"seed": True},
    {"seed": 3, "epoch": -4},
    {"num_replicas": 3},
    {"num_replicas": 1, "num_samples": 5, "total_size": 5},
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_changed_attributes_act_as_in_torch(number: int) -> None:
    def outcome(kind: Any) -> Any:
        try:
            return change(kind(range(5), 2, 0), **CHANGES[number])
        except Exception as error:
            return type(error), str(error)

    assert outcome(DistributedSampler) == outcome(Torch)


def test_random_numbers_are_not_taken_from_the_global_generator() -> None:
    state = torch.get_rng_state()
    list(DistributedSampler(range(100), 2, 0))
    assert torch.equal(torch.get_rng_state(), state)


def test_iterator_is_made_at_once_and_independent() -> None:
    sampler = DistributedSampler(range(1000), 2, 0)
    wanted, iterator = list(sampler), iter(sampler)
    sampler.set_epoch(1)
    assert next(iterator) == wanted[0]
    assert iterator.__length_hint__() == 499  # type: ignore[attr-defined]
    assert list(pickle.loads(pickle.dumps(iterator))) == list(copy.copy(iterator)) == wanted[1:]
    assert list(iterator) == wanted[1:] != list(sampler)[1:]


def test_pickled_sampler_gives_the_same_indices() -> None:
    sampler = DistributedSampler(range(100), 3, 1, seed=4)
    sampler.set_epoch(2)
    assert_same(sampler, pickle.loads(pickle.dumps(sampler)))


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_give_the_same_batches(workers: int) -> None:
    dataset = torch.arange(101) * 2
    for epoch in range(2):
        batches = []
        for kind, loader_kind in ((Torch, torch.utils.data.DataLoader), (DistributedSampler, DataLoader)):
            sampler: Any = kind(dataset, 3, 1, seed=1)  # type: ignore[arg-type]
            sampler.set_epoch(epoch)
            loader: Any = loader_kind(dataset, batch_size=8, sampler=sampler, num_workers=workers)  # type: ignore[arg-type]
            batches.append([batch.tolist() for batch in loader])
            del loader
        assert batches[0] == batches[1]


@pytest.mark.parametrize("shuffle", [True, False])
def test_first_index_costs_four_bytes_a_sample(shuffle: bool) -> None:
    n = 1_000_000
    sampler = DistributedSampler(range(n), 4, 1, shuffle=shuffle)
    list(DistributedSampler(range(10), 4, 1))
    tracemalloc.start()
    try:
        iterator = iter(sampler)
        next(iterator)
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * n * shuffle + 50_000  # torch: 46 bytes
    assert now < n * shuffle + 50_000


FALLBACK = """
import json, warnings
warnings.simplefilter("ignore")
import headrace.torch, torch.utils.data
from headrace.torch import DistributedSampler
kinds = DistributedSampler, torch.utils.data.DistributedSampler
ours, theirs = (list(kind(range(100), 3, 2, seed=1)) for kind in kinds)
print(json.dumps([headrace.torch._reason is None, ours == theirs, DistributedSampler.__iter__.__module__]))
"""


@pytest.mark.parametrize("way", ["disabled", "without extension"])
def test_fallback_has_it_too(way: str) -> None:
    block = 'import sys; sys.modules["headrace._core"] = None\n' if way == "without extension" else ""
    script = block + FALLBACK
    env = {"PATH": "/usr/bin:/bin", **({"HEADRACE_DISABLE": "1"} if way == "disabled" else {})}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == '[false, true, "headrace.torch._samplers.distributed_sampler"]'
