# SPDX-License-Identifier: Apache-2.0
"""The permutations and draws of the extension are torch's, bit for bit."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from drawn import draws
from headrace import Order, _core
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

SIZES = [0, 1, 2, 3, 59, 623, 624, 625, *(4**k + d for k in range(1, 10) for d in (-1, 0, 1)), 131_071, 10**6]
SEEDS = [0, 1, 42, 2**31 - 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
MOST_SEED = 2**64 - 1


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def permuted(n: int, seed: int, item_bytes: int = 0) -> np.ndarray[Any, Any]:
    indices = np.empty(n, np.int64)
    _core.Order.torch(n, seed, item_bytes=item_bytes).fill(0, 1, indices)
    return indices


@pytest.mark.parametrize("n", SIZES)
def test_order_is_that_of_randperm(n: int) -> None:
    for seed in SEEDS if n < 10**5 else SEEDS[:2]:
        wanted = torch.randperm(n, generator=seeded(seed)).numpy()
        assert np.array_equal(permuted(n, seed, 4), wanted)
        assert np.array_equal(permuted(n, seed, 8), wanted)


@given(n=st.integers(0, 3000), seed=st.integers(-(2**63), MOST_SEED), epoch=st.integers(0, 1000))
@settings(deadline=None)
def test_drawn_orders_are_those_of_randperm(n: int, seed: int, epoch: int) -> None:
    if seed + epoch > MOST_SEED:
        seed -= 1000
    wanted = torch.randperm(n, generator=seeded(seed + epoch))
    assert list(Order(n, kind="torch", seed=seed, epoch=epoch)) == wanted.tolist()


@pytest.mark.parametrize("n", [214_748_363, 214_748_364])
@pytest.mark.skipif(os.environ.get("HEADRACE_LARGE") != "1", reason="6 GB, a minute: HEADRACE_LARGE=1")
def test_order_is_that_of_randperm_where_torch_changes(n: int) -> None:
    """From 214,748,364 on torch uses another algorithm, with 64 bits for each draw."""
    wanted = torch.randperm(n, generator=seeded(7)).numpy()
    for item_bytes in (4, 8):
        order = _core.Order.torch(n, 7, item_bytes=item_bytes)
        part = np.empty(10_000_000, np.int64)
        for first in range(0, n, len(part)):
            count = min(len(part), n - first)
            order.fill(first, 1, part[:count])
            assert np.array_equal(part[:count], wanted[first : first + count])
        del order


def test_random_sampler_is_the_order_of_its_seed() -> None:
    n = 1000
    assert list(RandomSampler(range(n), generator=seeded(5))) == list(Order(n, kind="torch", seed=5))
    subset = [7 * i for i in range(n)]
    shuffled = SubsetRandomSampler(subset, generator=seeded(5))
    assert list(shuffled) == [subset[i] for i in Order(n, kind="torch", seed=5)]


def drawn(seed: int, n: int, count: int) -> list[int]:
    indices = np.empty(count, np.int64)
    _core.draw_indices(seed, n, indices)
    return indices.tolist()


@pytest.mark.parametrize("n", [1, 2, 59, 2**28 - 1, 2**28, 2**28 + 1, 2**32, 2**62, 2**63 - 1])
def test_draws_with_replacement_are_those_of_torch(n: int) -> None:
    for seed in SEEDS:
        assert drawn(seed, n, 1000) == torch.randint(n, (1000,), generator=seeded(seed)).tolist()


def test_random_sampler_with_replacement_draws_the_same() -> None:
    sampler = RandomSampler(range(77), replacement=True, num_samples=1001, generator=seeded(3))
    assert list(sampler) == drawn(3, 77, 1001)


def weighted(seed: int, weights: Any, count: int) -> list[int]:
    indices = np.empty(count, np.int64)
    _core.draw_weighted(seed, np.asarray(weights, np.float64), indices)
    return indices.tolist()


WEIGHTS = st.lists(
    st.one_of(st.just(0.0), st.floats(0, 1), st.floats(0, 1e300), st.integers(0, 10).map(float)), min_size=1
)


@given(weights=WEIGHTS, count=st.integers(2, 100), seed=st.integers(0, MOST_SEED))
@settings(deadline=None, max_examples=draws(200))
def test_weighted_draws_are_those_of_torch(weights: list[float], count: int, seed: int) -> None:
    if not 0 < sum(weights) < float("inf"):
        return
    sampler = WeightedRandomSampler(weights, count, generator=seeded(seed))
    assert weighted(seed, weights, count) == list(sampler)


def test_many_weighted_draws_are_those_of_torch() -> None:
    weights = np.random.default_rng(1).lognormal(0, 3, 100_000)
    weights[::7] = 0
    assert weighted(9, weights, 50_000) == list(WeightedRandomSampler(weights.tolist(), 50_000, generator=seeded(9)))


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1, -1e-300], "weight 1 is -1e-300; weights must be finite and not negative"),
        ([float("nan")], "weight 0 is"),
        ([1, 2, float("inf")], "weight 2 is inf"),
        ([0, 0, 0], "all 3 weights are 0"),
        ([], "there are no weights"),
    ],
)
def test_weights_that_torch_refuses_are_refused(weights: list[float], text: str) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        torch.multinomial(torch.tensor(weights, dtype=torch.double), 5, True)
    with pytest.raises(ValueError, match="sampler: ") as caught:
        weighted(0, weights, 5)
    assert text in str(caught.value)


def test_more_weights_than_torch_takes_are_refused() -> None:
    weights = np.ones(2**24 + 1)
    with pytest.raises(RuntimeError, match="2\\^24"):
        torch.multinomial(torch.from_numpy(weights), 5, True)
    with pytest.raises(ValueError, match="at most 2\\^24"):
        weighted(0, weights, 5)
    assert len(weighted(0, weights[:-1], 5)) == 5


def test_buffers_of_other_types_are_refused() -> None:
    order = _core.Order.stream(5, 0, 0)
    with pytest.raises(TypeError, match="written as int64, and this buffer has format 'i'"):
        order.fill(0, 1, np.empty(3, np.int32))
    with pytest.raises(TypeError, match="read as float64, and this buffer has format 'f'"):
        _core.draw_weighted(0, np.ones(3, np.float32), np.empty(3, np.int64))
    with pytest.raises((BufferError, ValueError)):
        order.fill(0, 1, np.empty(6, np.int64)[::2])
    with pytest.raises(ValueError, match="position 5 is not in an order of 5 samples"):
        order.iterate(5, 1, 1)
    with pytest.raises(ValueError, match="the count is -1"):
        order.iterate(0, 1, -1)
    with pytest.raises(ValueError, match="rank is 3"):
        _core.Order.torch(5, 0, 3, 3)
    with pytest.raises(ValueError, match="give 4 or 8"):
        _core.Order.torch(5, 0, item_bytes=2)
