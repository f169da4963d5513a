# SPDX-License-Identifier: Apache-2.0
"""headrace.torch.per_rank over samplers that draw: the order is the same on each rank, or there is an error."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
import torch.utils.data
from headrace.torch import per_rank
from headrace.torch._samplers import whole_order
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

RANDOM: list[Callable[[Any], Any]] = [
    lambda generator: RandomSampler(range(50), generator=generator),
    lambda generator: RandomSampler(range(50), replacement=True, num_samples=70, generator=generator),
    lambda generator: RandomSampler(range(50), num_samples=120, generator=generator),
    lambda generator: SubsetRandomSampler(range(7, 50), generator=generator),
    lambda generator: WeightedRandomSampler(torch.arange(50.0), 40, generator=generator),  # type: ignore[arg-type]
    lambda generator: WeightedRandomSampler([1.0] * 50, 40, replacement=False, generator=generator),
    lambda generator: BatchSampler(RandomSampler(range(50), generator=generator), 4, False),
]


@pytest.mark.parametrize("make", RANDOM)
def test_unseeded_random_sampler_is_refused_when_it_is_given(make: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"draws from the random numbers of the process \(torch\).*give seed="):
        per_rank(make(None), num_replicas=2, rank=0)


def numpys_state() -> bytes:
    state: Any = numpy.random.get_state()
    return bytes(state[1].tobytes())


class Shuffled:
    """A sampler that shuffles with random numbers of the process."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        return iter([int(index) for index in self.draw()])


SHUFFLES = {
    "random": lambda: random.sample(range(20), 20),
    "numpy": lambda: numpy.random.permutation(20),
    "torch": lambda: torch.randperm(20),
}


@pytest.mark.parametrize("name", SHUFFLES)
def test_sampler_that_uses_process_random_state_is_refused(name: str) -> None:
    sampler = per_rank(Shuffled(SHUFFLES[name]), num_replicas=2, rank=0)
    before = random.getstate(), torch.get_rng_state(), numpys_state()
    with pytest.raises(ValueError, match=rf"Shuffled draws from the random numbers of the process \({name}\)"):
        next(iter(sampler))
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert numpys_state() == before[2]


@pytest.mark.parametrize("make", [*RANDOM, *(lambda _, draw=draw: Shuffled(draw) for draw in SHUFFLES.values())])
def test_seed_makes_ranks_draw_the_same_order(make: Callable[[Any], Any]) -> None:
    """Whatever the random numbers of the ranks' processes are; they are as before afterwards."""
    orders = []
    for rank in range(3):
        for seed_one in (random.seed, numpy.random.seed, torch.manual_seed):
            seed_one(rank)
        before = random.getstate(), torch.get_rng_state(), numpys_state()
        sampler = per_rank(make(None), num_replicas=3, rank=rank, seed=5)
        orders.append(list(sampler.draw()))
        sampler.set_epoch(1)
        assert list(sampler.draw()) != orders[-1]
        sampler.set_epoch(0)
        assert list(sampler.draw()) == orders[-1]
        assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
        assert numpys_state() == before[2]
    assert orders[0] == orders[1] == orders[2]
    assert list(per_rank(make(None), num_replicas=3, rank=0, seed=6).draw()) != orders[0]


@pytest.mark.parametrize("make", RANDOM)
def test_generator_of_the_sampler_is_used_as_it_is(make: Callable[[Any], Any]) -> None:
    """Each epoch draws once from it, whether draw() and len() were called before or not."""
    plain = make(torch.Generator().manual_seed(3))
    wanted = [list(plain) for _ in range(3)]
    sampler = per_rank(make(torch.Generator().manual_seed(3)), num_replicas=1, rank=0)
    got = [list(sampler)]
    sampler.draw()
    got.append(list(sampler))
    sampler.set_epoch(9)
    len(sampler)
    assert list(sampler.draw()) == got[1]  # the order of the newest epoch, until the next one begins
    got.append(list(sampler))
    assert got == wanted


class WithEpochs:
    """A sampler whose order depends on its epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(range(12))
        random.Random(self.epoch).shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return 12


def test_epoch_is_passed_on_to_the_sampler_and_its_sampler() -> None:
    wanted = []
    for epoch in range(2):
        inner = WithEpochs()
        inner.set_epoch(epoch)
        wanted.append(list(inner))
    for make in (lambda: WithEpochs(), lambda: BatchSampler(WithEpochs(), 1, False)):  # type: ignore[arg-type]
        for epoch in range(2):
            drawn = []
            for rank in range(2):
                sampler = per_rank(make(), num_replicas=2, rank=rank)
                sampler.set_epoch(epoch)
                drawn.append([entry if isinstance(entry, int) else entry[0] for entry in sampler])
            assert [index for step in zip(*drawn, strict=True) for index in step] == wanted[epoch]
    assert wanted[0] != wanted[1]


# ---- samplers that cannot be drawn ----

WEIGHTS: list[tuple[Any, dict[str, Any], str]] = [
    ([0.0, 0.0], {}, "the sum of the weights of WeightedRandomSampler is 0.0"),
    ([], {}, "the sum of the weights of WeightedRandomSampler is 0.0"),
    ([1.0, float("nan")], {}, "weight 1 of WeightedRandomSampler is nan"),
    ([float("inf"), 1.0], {}, "weight 0 of WeightedRandomSampler is inf"),
    ([1.0, -0.5], {}, "weight 1 of WeightedRandomSampler is -0.5"),
    ([1e308, 1e308], {}, "the sum of the weights of WeightedRandomSampler is inf"),
    ([1.0, 0.0], {"replacement": False}, "only 1 have a weight above 0"),
]


@pytest.mark.parametrize(("weights", "options", "message"), WEIGHTS)
def test_weights_without_a_draw_are_named(weights: Any, options: dict[str, Any], message: str) -> None:
    sampler = per_rank(WeightedRandomSampler(weights, 2, **options), num_replicas=2, rank=0, seed=0)
    with pytest.raises(ValueError) as error:
        next(iter(sampler))
    assert message in str(error.value)


class Endless:
    def __iter__(self) -> Iterator[Any]:
        return itertools.count()


class EndlessBatches(Endless):
    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat([1, 2])


class EndlessWithLength(Endless):
    def __len__(self) -> int:
        return 10


@pytest.mark.parametrize("kind", [Endless, EndlessBatches, EndlessWithLength])
def test_sampler_without_end_is_an_error(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_order, "_MOST_INDICES", 100_000)
    monkeypatch.setattr(whole_order, "_MOST_OTHERS", 100_000)
    with pytest.raises(ValueError, match=f"{kind.__name__} gave more than .* entries .* and seems to have no end"):
        next(iter(per_rank(kind(), num_replicas=2, rank=0)))
