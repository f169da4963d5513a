# SPDX-License-Identifier: Apache-2.0
"""headrace.Order as a sequence: positions, slices, epochs, and what it refuses."""

from __future__ import annotations

import copy
import pickle
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
import pytest
from drawn import draws
from headrace import Order
from hypothesis import given, settings
from hypothesis import strategies as st

KINDS = ["stream", "torch", "sequential"]
SIZES = [0, 1, 2, 3, 59, 255, 256, 257, 1000, 4096, 4097, 4**7 - 1, 4**7, 4**7 + 1]
BILLION = 10**9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_order_has_each_index_once(kind: str, n: int) -> None:
    order = Order(n, kind=kind, seed=3, epoch=1)
    indices = list(order)
    assert len(order) == n and sorted(indices) == list(range(n))
    assert all(type(index) is int for index in indices[:10])
    assert np.array_equal(np.asarray(order), indices)
    if n > 3:
        assert (indices == list(range(n))) == (kind == "sequential")


@given(data=st.data(), kind=st.sampled_from(KINDS), n=st.integers(0, 5000), seed=st.integers(-(2**63), 2**64 - 10))
@settings(deadline=None, max_examples=draws(150))
def test_order_is_read_like_its_list(data: st.DataObject, kind: str, n: int, seed: int) -> None:
    order: Any = Order(n, kind=kind, seed=seed, epoch=data.draw(st.integers(0, 9)))
    indices = list(order)
    for _ in range(3):
        key = data.draw(st.slices(len(order)))
        order, indices = order[key], indices[key]
        assert list(order) == indices and list(reversed(order)) == indices[::-1]
        assert np.asarray(order).tolist() == indices
        assert len(order) == len(indices)
        assert pickle.loads(pickle.dumps(order)) == order
        if not indices:
            return
        position = data.draw(st.integers(-len(indices), len(indices) - 1))
        index = order[position]
        assert index == indices[position]
        assert index in order and order.index(index) == indices.index(index) and order.count(index) == 1
        other = data.draw(st.integers(-1, n))
        assert (other in order) == (other in indices)
    assert list(eval(repr(order), {"headrace": headrace})) == indices


def test_orders_of_a_billion_cost_no_memory() -> None:
    tracemalloc.start()
    try:
        order = Order(BILLION, seed=1)
        part = order[3:BILLION:8]
        assert len(part) == BILLION // 8 and part[-1] == order[BILLION - 5]
        assert order[-1] in order and order.index(order[777_777_777]) == 777_777_777
        iterator = iter(part)
        assert [next(iterator) for _ in range(1000)] == np.asarray(part[:1000]).tolist()
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_torch_order_costs_four_bytes_a_sample() -> None:
    n = 1_000_000
    tracemalloc.start()
    try:
        order = Order(n, kind="torch")
        parts = [order[rank::2] for rank in range(2)]
        assert parts[0][0] == order[0] and parts[1][0] == order[1]
        assert 4 * n <= tracemalloc.get_traced_memory()[1] < 4 * n + 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["stream", "torch"])
def test_epoch_and_seed_change_the_order(kind: str) -> None:
    n = 5000
    order = Order(n, kind=kind, seed=4)
    first, part = list(order), order[1::2]
    started = iter(order)
    next(started)
    order.set_epoch(1)
    assert list(order) != first and order.epoch == 1
    assert list(part) == first[1::2] and part.epoch == 0
    assert list(started) == first[1:]
    assert list(part.with_epoch(1)) == list(order)[1::2] and part.epoch == 0
    order.set_epoch(0)
    assert list(order) == first
    assert list(Order(n, kind=kind, seed=5)) != first


def test_stream_order_tells_seed_from_epoch() -> None:
    """With "torch", as in torch, the next seed in one epoch is this seed in the next epoch."""
    assert list(Order(100, seed=0, epoch=1)) != list(Order(100, seed=1, epoch=0))
    assert list(Order(100, kind="torch", seed=0, epoch=1)) == list(Order(100, kind="torch", seed=1, epoch=0))


def test_orders_are_equal_if_all_their_settings_are() -> None:
    order = Order(10, seed=1)
    assert order == Order(10, seed=1) and order[2:5] == Order(10, seed=1)[2:5] and order[:] == order
    different = [Order(11, seed=1), Order(10, seed=2), Order(10, seed=1, epoch=1), Order(10, kind="torch", seed=1)]
    assert all(order != other for other in [*different, order[1:], list(order)])
    with pytest.raises(TypeError):
        hash(order)


@pytest.mark.parametrize("kind", KINDS)
def test_pickles_and_copies_are_small_and_equal(kind: str) -> None:
    order = Order(100_000, kind=kind, seed=2**64 - 8, epoch=7)
    list(order)
    part = order[5:1000:3]
    for one in (order, part):
        assert len(pickle.dumps(one)) < 300
        for other in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
            assert other == one and list(other) == list(one)
    changed = copy.copy(order)
    changed.set_epoch(3)
    assert order.epoch == 7


def test_iterator_knows_what_is_left_and_can_be_copied() -> None:
    order = Order(1000, seed=1)
    indices, iterator = list(order), iter(order)
    for taken in range(1000):
        if taken % 97 == 0:
            assert iterator.__length_hint__() == 1000 - taken  # type: ignore[attr-defined]
            assert list(copy.copy(iterator)) == indices[taken:]
            assert list(pickle.loads(pickle.dumps(iterator))) == indices[taken:]
        assert next(iterator) == indices[taken]
    assert next(iterator, None) is None and next(iterator, None) is None
    assert iterator.__length_hint__() == 0  # type: ignore[attr-defined]


def test_repr_shows_the_slice() -> None:
    order = Order(10, seed=1, epoch=2)
    assert repr(order) == "headrace.Order(10, kind='stream', seed=1, epoch=2)"
    assert repr(order[2:5]) == repr(order) + "[2:5]"
    assert repr(order[1::4]) == repr(order) + "[1:10:4]"
    assert repr(order[::-1]) == repr(order) + "[9::-1]"


def test_array_has_the_dtype_that_is_asked_for() -> None:
    order = Order(10)[2:8]
    assert np.asarray(order).dtype == np.int64 and np.asarray(order).shape == (6,)
    assert np.asarray(order, dtype=np.int32).tolist() == list(order)
    assert np.arange(10)[order].tolist() == list(order)
    with pytest.raises(ValueError, match="always new"):
        order.__array__(copy=False)


def test_membership_follows_equality_of_numbers() -> None:
    part = Order(10, kind="sequential")[:5]
    assert 3.0 in part and np.int64(3) in part and True in part
    assert not any(value in part for value in (3.5, float("inf"), "3", None, -1, 5, 10, 2**70))
    assert 5 in Order(10) and 10 not in Order(10) and "5" not in Order(10) and 0 not in Order(0)
    for value, bounds in ((7, ()), ("3", ()), (3, (4,)), (3, (0, 3)), (3, (0, -2))):
        with pytest.raises(ValueError, match="is not among its 5 samples"):
            part.index(value, *bounds)
    assert part.index(3, -3) == 3


BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: Order(-1), ValueError, "n should be from 0 to 2**63 - 1 samples, but got -1"),
    (lambda: Order(2**63), ValueError, "but got 9223372036854775808"),
    (lambda: Order(1.5), TypeError, "n should be the number of samples, an int such as len(dataset), but got 1.5"),
    (lambda: Order([1, 2]), TypeError, "an int such as len(dataset), but got a list"),
    (lambda: Order(3, kind="random"), ValueError, "one of 'stream', 'torch', 'sequential', but got 'random'"),
    (lambda: Order(3, kind=None), ValueError, "but got None"),
    (lambda: Order(3, seed=None), TypeError, "seed should be an int, but got None"),
    (lambda: Order(3, epoch="1"), TypeError, "epoch should be an int, but got '1'"),
    (lambda: Order(3, seed=2**64), ValueError, "seed should fit into 64 bits"),
    (lambda: Order(3, seed=2**64 - 1, epoch=1), ValueError, "seed + epoch should fit into 64 bits"),
    (lambda: Order(3, seed=-(2**63), epoch=-1), ValueError, "choose a smaller seed"),
    (lambda: Order(3, seed=2**64 - 1).set_epoch(1), ValueError, "epoch=1 give 18446744073709551616"),
    (lambda: Order(3).with_epoch(0.5), TypeError, "epoch should be an int, but got 0.5"),
    (lambda: Order(3)[3], IndexError, "position 3 is out of range, there are 3 samples"),
    (lambda: Order(9)[:3][-4], IndexError, "position -4 is out of range, there are 3 samples"),
    (lambda: Order(9)["0"], TypeError, "positions should be ints or slices, but got '0'"),
    (lambda: Order(0)[0], IndexError, "there are 0 samples"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input_is_explained(number: int) -> None:
    call, kind, text = BAD[number]
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith("Order: ") and text in str(caught.value)


def test_order_with_a_bad_epoch_stays_as_it_was() -> None:
    order = Order(100, seed=2**64 - 1)
    indices = list(order)
    with pytest.raises(ValueError):
        order.set_epoch(1)
    assert order.epoch == 0 and list(order) == indices


def test_torch_order_without_memory_names_the_other_kind() -> None:
    with pytest.raises(MemoryError, match='kind="stream" needs no table'):
        list(Order(sys.maxsize, kind="torch"))


@pytest.mark.parametrize("kind", ["stream", "sequential"])
def test_largest_orders_have_random_access(kind: str) -> None:
    order = Order(sys.maxsize, kind=kind, seed=-5)
    part = order[:: 2**61 - 1]
    assert list(part) == [order[i * (2**61 - 1)] for i in range(5)]
    assert list(part[::-1]) == list(part)[::-1] and np.asarray(part).tolist() == list(part)
    assert [order.index(index) for index in part] == [i * (2**61 - 1) for i in range(5)]
    with pytest.raises(IndexError):
        order[sys.maxsize]


def test_order_is_a_sampler_of_a_loader() -> None:
    dataset, order = np.arange(100) * 3, Order(100, seed=1, epoch=4)
    loader = headrace.Loader(dataset, batch_size=7, sampler=order[1::2])
    assert np.concatenate(list(loader)).tolist() == [index * 3 for index in list(order)[1::2]]
