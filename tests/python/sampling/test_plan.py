# SPDX-License-Identifier: Apache-2.0
"""headrace.Plan: each sample once, limits kept, and the same steps on every rank."""

from __future__ import annotations

import array
import copy
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from drawn import draws
from headrace import Order, Plan
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import LENGTHS, assert_limits, assert_once, batches_of, lognormal, plan_settings, samples_of

# ---- what holds for all plans ----


@given(lengths=LENGTHS, own=plan_settings(), world_size=st.integers(1, 6), seed=st.integers(-(2**63), 2**63))
@settings(deadline=None, max_examples=draws(300))
def test_plan_has_each_sample_once_within_limits(
    lengths: list[int], own: dict[str, Any], world_size: int, seed: int
) -> None:
    plan = Plan(lengths, world_size=world_size, rank=0, seed=seed, **own)
    batches = batches_of(plan)
    assert len(batches) % own["accumulate"] == 0
    for batch in (one for step in batches for one in step):
        assert_limits(lengths, own, batch)
        assert len(set(batch)) == len(batch)
    report, width = plan.report(), world_size * own["accumulate"]
    assert_once(samples_of(batches), len(lengths), own["tail"], len(lengths), width - 1)
    assert own["tail"] != "pad" or own.get("pack") or len(samples_of(batches)) % width == 0
    assert report["samples"] + report["skipped"] == len(lengths)
    assert report["samples"] + report["repeats"] == len(samples_of(batches))
    assert str(report)
    again = Plan(np.array(lengths, np.int64), world_size=world_size, rank=world_size - 1, seed=seed, **own)
    assert list(again) == [step[-1] for step in batches]


@given(lengths=LENGTHS, own=plan_settings(), width=st.sampled_from([2, 4, 6]))
@settings(deadline=None, max_examples=draws(100))
def test_optimizer_steps_are_equal_on_any_number_of_ranks(lengths: list[int], own: dict[str, Any], width: int) -> None:
    """If ranks times micro-batches is the same, each global batch has the same samples."""
    found = []
    for world_size in (1, 2, width):
        own["accumulate"] = width // world_size
        batches = batches_of(Plan(lengths, world_size=world_size, rank=0, **own))
        groups = [batches[i : i + width // world_size] for i in range(0, len(batches), width // world_size)]
        found.append([sorted(samples_of(group)) for group in groups])
    assert found[0] == found[1] == found[2]


def test_plans_are_the_same_on_every_machine() -> None:
    """The digests were noted when the algorithm was written. States that were saved need these plans."""
    lengths = [(i * i * 7919 + 31 * i) % 1800 for i in range(5000)]
    expected = {
        "max_padded": 1290849431,
        "max_sum": 3529860863,
        "max_batch": 4270829724,
        "buckets": 3979166894,
        "pack": 4067216333,
    }
    ways: dict[str, Any] = {
        "max_padded": 16384,
        "max_sum": 16384,
        "max_batch": 24,
        "buckets": [(100, 64), (600, 24), (None, 9)],
        "pack": 4096,
    }
    found = {}
    for name, value in ways.items():
        plan = Plan(lengths, world_size=4, rank=0, seed=5, epoch=2, cost_quadratic=1, **{name: value})
        found[name] = plan._whole().table.digest
    assert found == expected


def test_epochs_and_seeds_give_other_batches() -> None:
    plan = Plan(lognormal(500), pack=8192, seed=1)
    first = list(plan)
    plan.set_epoch(1)
    second = list(plan)
    plan.set_epoch(0)
    assert list(plan) == first and list(Plan(lognormal(500), pack=8192, seed=1, epoch=1)) == second
    assert {tuple(sorted(batch)) for batch in first} != {tuple(sorted(batch)) for batch in second}
    assert list(Plan(lognormal(500), pack=8192, seed=2)) != first


def test_plan_is_copied_and_pickled_as_its_settings() -> None:
    plan = Plan(lognormal(1000), max_sum=16384, world_size=2, rank=1)
    batches = list(plan)
    assert list(pickle.loads(pickle.dumps(plan))) == list(copy.deepcopy(plan)) == batches
    assert len(pickle.dumps(plan)) < 6000
    assert "max_sum=16384" in repr(plan) and "rank=1" in repr(plan)


def test_lengths_of_any_integer_kind_give_the_same_plan() -> None:
    values = [i % 7 + 1 for i in range(100)]
    expected = list(Plan(values, max_sum=20))
    for lengths in (
        tuple(values),
        array.array("H", values),
        np.array(values, np.uint64),
        np.repeat(np.array(values, np.int16), 2)[::2],
        torch.tensor(values, dtype=torch.uint8),
    ):
        assert list(Plan(lengths, max_sum=20)) == expected
    assert list(Plan(range(9), max_batch=3)) == list(Plan(list(range(9)), max_batch=3))


# ---- the sampler that plans replace ----


class NaiveBuckets:
    """Lengths under 100, up to 220 and above with batch sizes of their own, as such samplers are often written: each
    rank takes every second sample, and makes batches of these."""

    def __init__(self, lengths: list[int], rank: int) -> None:
        self.lengths, self.rank = lengths, rank

    def __iter__(self) -> Iterator[list[int]]:
        own = range(self.rank, len(self.lengths), 2)
        short = [i for i in own if self.lengths[i] < 100]
        middle = [i for i in own if 100 < self.lengths[i] <= 220]
        long = [i for i in own if self.lengths[i] > 220]
        for indices, size in ((short, 32), (middle, 24), (long, 16)):
            for start in range(0, len(indices), size):
                yield indices[start : start + size]


def test_buckets_repair_the_sampler_whose_ranks_hang() -> None:
    draw = random.Random(803)
    kinds = [lambda: draw.randint(10, 99), lambda: 100, lambda: draw.randint(101, 220), lambda: draw.randint(221, 500)]
    lengths = [draw.choice([kind() for kind in kinds]) for _ in range(4600 + draw.randint(0, 200))]
    naive = [list(NaiveBuckets(lengths, rank)) for rank in (0, 1)]
    assert [len(one) for one in naive] == [77, 78]
    lost = set(range(len(lengths))) - {i for one in naive for batch in one for i in batch}
    assert lost and {lengths[i] for i in lost} == {100}
    buckets = [(100, 32), (220, 24), (None, 16)]
    plan = Plan(lengths, buckets=buckets, world_size=2, rank=0, tail="exact")
    batches = batches_of(plan)  # asserts that both ranks have equally many
    assert sorted(samples_of(batches)) == list(range(len(lengths)))
    sizes = Counter(len(batch) for step in batches[:-1] for batch in step)
    assert set(sizes) == {32, 24, 16}


# ---- balance and fill ----


def test_limits_and_rows_waste_little() -> None:
    lengths = lognormal(100_000)
    budget = Plan(lengths, max_padded=16384, window=20_000, cost_quadratic=1, world_size=8, rank=0).report()
    assert budget["padding"] < 0.04 and budget["cost_max_to_mean"] < 1.02 and budget["fill"] > 0.9
    rows = Plan(lengths, pack=8192, cost_quadratic=1, world_size=8, rank=0).report()
    assert rows["fill"] > 0.995 and rows["cost_max_to_mean"] < 1.02
    assert rows["steps"] == -(-int(lengths.sum()) // (8 * 8192))


def test_drop_leaves_out_other_samples_in_each_epoch() -> None:
    """If it were the longest samples each time, they would never be trained on."""
    lengths = lognormal(3000)
    plan = Plan(lengths, max_padded=20_000, world_size=4, rank=0, tail="drop")
    left_out = []
    for epoch in range(6):
        plan.set_epoch(epoch)
        left_out.append(set(range(3000)) - set(samples_of(batches_of(plan))))
        assert left_out[-1]
    assert not set.intersection(*left_out)


def test_pad_makes_batches_of_last_step_equally_large() -> None:
    lengths = [10] * 103
    for tail, sizes in (("pad", [4, 4]), ("exact", [4, 3]), ("drop", [8, 8])):
        batches = batches_of(Plan(lengths, max_batch=8, world_size=2, rank=0, tail=tail))
        assert sorted(map(len, batches[-1]), reverse=True) == sizes
        assert len(batches) == (6 if tail == "drop" else 7)


@pytest.mark.parametrize("way", [{"max_batch": 1000}, {"max_sum": 10**6}, {"max_padded": 10**6}])
def test_pad_repeats_less_than_a_sample_for_each_rank(way: dict[str, Any]) -> None:
    """A limit above the whole dataset repeats no more than any other one."""
    for n, world_size in ((100, 1), (100, 8), (9, 8), (3, 8), (1, 4)):
        plan = Plan([*range(1, n + 1)], world_size=world_size, rank=0, **way)
        step = batches_of(plan)
        repeats = plan.report()["repeats"]
        assert repeats == -n % world_size and len(step) == 1
        counts = Counter(samples_of(step))
        assert sum(counts.values()) == n + repeats and len(counts) == n
        assert all(len(set(batch)) == len(batch) == -(-n // world_size) for batch in step[0])
        assert n < world_size or max(counts.values()) <= 2


@pytest.mark.parametrize("longest", [None, 8192])
def test_buckets_balance_ranks_and_a_window_of_one_step_does_not(longest: int | None) -> None:
    """Without sorting, a step of an open bucket costs as much as its longest sample."""
    buckets = [(100, 32), (220, 24), (longest, 16)]
    found = [Plan(lognormal(20_000), buckets=buckets, world_size=8, rank=0, window=one).report() for one in (None, 1)]
    assert found[0]["cost_max_to_mean"] < 1.02 and found[0]["padding"] < 0.1
    assert found[1]["cost_max_to_mean"] > 1.4 and found[1]["padding"] > 0.6


# ---- orders ----


def test_subset_is_shuffled_in_each_epoch() -> None:
    subset = np.arange(0, 1000, 3)
    plan = Plan(lognormal(1000), max_batch=10, order=subset, tail="exact")
    first = list(plan)
    plan.set_epoch(1)
    assert sorted(i for batch in first for i in batch) == subset.tolist() == sorted(i for batch in plan for i in batch)
    assert list(plan) != first


def test_order_of_plan_is_that_of_the_given_order() -> None:
    order = Order(1000, kind="torch", seed=9)
    plan = Plan([5] * 1000, max_batch=10, order=order, window=10, tail="exact", epoch=3)
    expected = np.asarray(order.with_epoch(3)).reshape(-1, 10)
    assert sorted(sorted(batch) for batch in plan) == sorted(sorted(row) for row in expected.tolist())


class Global:
    """A sampler that draws from the random numbers of the process, with repeats."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(random.choices(range(50), k=200))


def test_sampler_as_order_is_drawn_with_the_seed_of_the_plan() -> None:
    before = random.getstate()
    plans = [Plan([7] * 50, max_batch=8, order=Global(), tail="exact", seed=4, epoch=2) for _ in range(2)]
    assert list(plans[0]) == list(plans[1])
    counts = Counter(i for batch in plans[0] for i in batch)
    assert sum(counts.values()) == 200 and max(counts.values()) > 1
    assert random.getstate() == before


# ---- samples that exceed a limit ----


def test_oversized_samples_are_refused_skipped_or_alone() -> None:
    lengths = [*range(1, 101), 5000]
    with pytest.raises(ValueError, match=r"1 of 101 samples are longer than max_sum .200.: sample 100 has"):
        Plan(lengths, max_sum=200)
    skipping = Plan(lengths, max_sum=200, oversized="skip", tail="exact")
    assert sorted(i for batch in skipping for i in batch) == list(range(100))
    assert skipping.report()["skipped"] == 1
    alone = list(Plan(lengths, max_sum=200, oversized="alone", tail="exact"))
    assert [100] in alone and sorted(i for batch in alone for i in batch) == list(range(101))
    with pytest.raises(ValueError, match=r"all samples are longer than pack .3.: sample 0 has length 4"):
        Plan([4, 5, 6], pack=3, oversized="skip")


def test_oversized_samples_count_only_if_the_order_has_them() -> None:
    lengths = [*range(1, 101), 5000]
    assert sorted(i for batch in Plan(lengths, max_sum=200, order=range(100)) for i in batch) == list(range(100))
    assert sum(map(len, Plan(lengths, max_sum=200, order=Order(100)))) == 100
    with pytest.raises(ValueError, match=r"1 of 2 samples are longer than max_sum .200.: sample 100 has length 5,000"):
        Plan(lengths, max_sum=200, order=[3, 100])
    Plan(lengths, max_sum=200, order=Sequential(100)).report()
    with pytest.raises(ValueError, match="1 of 101 samples are longer"):
        list(Plan(lengths, max_sum=200, order=Sequential(101)))


class Sequential:
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))


# ---- bad input ----

BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (None, {}, TypeError, "lengths is a NoneType; give the length of each sample.*headrace.lengths"),
    ("abc", {}, TypeError, "lengths is a str"),
    ([3, -1, 2], {}, ValueError, "the length of sample 1 is -1"),
    ([3, float("nan")], {}, TypeError, "that of sample 1 is nan"),
    ([3.0, 4.0], {}, TypeError, "that of sample 0 is 3.0 .float64.; round them"),
    (np.array([1, 2**31]), {}, ValueError, r"the length of sample 1 is 2147483648, above 2\*\*31 - 1"),
    ([1, 10**30], {}, TypeError, "should be ints"),
    ([[1, 2], [3, 4]], {}, ValueError, r"has the shape \(2, 2\)"),
    ([[1], [2, 3]], {}, TypeError, "no array of numbers"),
    ([True, False], {}, TypeError, "should be ints"),
    (["a"], {}, TypeError, "should be ints"),
    ([1], {"max_sum": None}, ValueError, "give what bounds a batch"),
    ([1], {"max_sum": 0}, ValueError, "max_sum should be 1 or more, but got 0"),
    ([1], {"max_sum": 2**63}, ValueError, "max_sum should be from 1 to 4,611,686,018,427,387,904, but got 9"),
    ([1], {"max_padded": 2**63}, ValueError, "max_padded should be from 1 to 4,611,686,018,427,387,904, but got 9"),
    ([1], {"max_sum": 1.5}, TypeError, "max_sum should be an int, but got 1.5"),
    ([1], {"max_sum": True}, TypeError, "max_sum should be an int, but got True"),
    ([1], {"pack": 10}, ValueError, "max_sum and pack do not go together"),
    ([1], {"max_sum": None, "pack": 2**24 + 1}, ValueError, "pack should be from 1 to 16,777,216"),
    ([1], {"max_sum": None, "buckets": []}, ValueError, "buckets is empty"),
    ([1], {"max_sum": None, "buckets": [5]}, TypeError, "buckets should be pairs"),
    ([1], {"max_sum": None, "buckets": [(None, 4), (5, 2)]}, ValueError, "has to be the last one"),
    ([1], {"max_sum": None, "buckets": [(5, 4), (5, 2)]}, ValueError, "sorted by length, but 5 comes after 5"),
    ([1], {"max_sum": None, "buckets": [(5, 4), (9, 5)]}, ValueError, "should not rise"),
    ([1], {"max_sum": None, "buckets": [(5, 0)]}, ValueError, "the batch size of bucket 0 should be 1 or more"),
    ([1], {"tail": "keep"}, ValueError, "tail should be one of"),
    ([1], {"oversized": None}, ValueError, "oversized should be one of"),
    ([1], {"world_size": 0, "rank": 0}, ValueError, "world_size should be from 1 to"),
    ([1], {"world_size": 2, "rank": 2}, ValueError, "rank should be from 0 to 1"),
    ([1], {"world_size": 2, "rank": -1}, ValueError, "rank should be from 0 to 1, but got -1"),
    ([1], {"world_size": 2}, ValueError, "world_size=2 is given alone, but this process is rank 0 of 1"),
    ([1], {"accumulate": 0}, ValueError, "accumulate should be"),
    ([1], {"seed": 2**64}, ValueError, "seed should be from"),
    ([1], {"seed": 2**64 - 1, "epoch": 1}, ValueError, r"seed \+ epoch should be"),
    ([1], {"cost_linear": -1}, ValueError, "cost_linear should be 0 or more"),
    ([1], {"cost_quadratic": 0.001}, TypeError, "only the ratio of the factors counts, so multiply"),
    ([1], {"order": 7}, TypeError, "order should be a headrace.Order"),
    ([1], {"order": {0}}, TypeError, "order is a set, which has no order of its own; give the indices as a list"),
    ([1], {"order": [0, 1]}, ValueError, "order has index 1 at position 1, but lengths are given for 1 samples"),
    ([1], {"order": [0.5]}, TypeError, "order should give indices"),
    ([1], {"order": Order(3)}, ValueError, "order is of 3 samples"),
]


@pytest.mark.parametrize(("lengths", "changes", "error", "message"), BAD)
def test_bad_arguments_of_plan_are_refused(
    lengths: Any, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Plan(lengths, **{"max_sum": 100, **changes})


def test_costs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="with cost_linear=1 and cost_quadratic=5, the cost of 3 samples of"):
        list(Plan([2**31 - 1] * 3, max_batch=1, cost_quadratic=5))


def test_plan_of_no_samples_has_no_steps() -> None:
    for way in ({"max_sum": 5}, {"buckets": [(None, 3)]}, {"pack": 9}):
        plan = Plan([], world_size=3, rank=1, **way)  # type: ignore[arg-type]
        assert list(plan) == [] and len(plan) == 0 and plan.report()["steps"] == 0
