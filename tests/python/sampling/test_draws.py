# SPDX-License-Identifier: Apache-2.0
"""The permutations of the extension are torch's, bit for bit."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from headrace import Order, _core
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, SubsetRandomSampler

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


def test_buffers_of_other_types_are_refused() -> None:
    order = _core.Order.stream(5, 0, 0)
    with pytest.raises(TypeError, match="indices are int64, and this buffer has format 'i'"):
        order.fill(0, 1, np.empty(3, np.int32))
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
