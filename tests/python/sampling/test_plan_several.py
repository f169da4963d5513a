# SPDX-License-Identifier: Apache-2.0
"""headrace.Plan with several lengths: all limits kept, balanced by cost, and the same on any number of ranks."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from drawn import draws
from headrace import Mixture, Order, Plan
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import (
    Several,
    assert_once,
    assert_several_limits,
    batches_of,
    lognormal,
    samples_of,
    several_lengths,
    several_settings,
    texts_and_images,
)

COST = {"text": (1, 0), "patches": (64, 1)}
PACK = {"text": 8192, "patches": 8192}


def costs_of(lengths: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Returns what each sample costs with COST."""
    patches = lengths["patches"].astype(float)
    found: np.ndarray[Any, Any] = lengths["text"] + 64 * patches + patches**2
    return found


def summed(lengths: Any, batches: list[list[list[int]]]) -> np.ndarray[Any, Any]:
    """Returns the sum of some numbers over each batch, by step and rank."""
    return np.array([[float(lengths[batch].sum()) for batch in step] for step in batches])


# ---- what holds for all plans ----


@given(data=st.data(), lengths=several_lengths(), world_size=st.integers(1, 6), seed=st.integers(-(2**63), 2**63))
@settings(deadline=None, max_examples=draws(300))
def test_several_lengths_keep_all_limits(data: st.DataObject, lengths: Several, world_size: int, seed: int) -> None:
    own = data.draw(several_settings(tuple(lengths)))
    plan = Plan(lengths, world_size=world_size, rank=0, seed=seed, **own)
    batches, n = batches_of(plan), len(lengths["text"])
    assert len(batches) % own["accumulate"] == 0
    for batch in (one for step in batches for one in step):
        assert_several_limits(lengths, own, batch)
        assert len(set(batch)) == len(batch)
    report = plan.report()
    assert_once(samples_of(batches), n, own["tail"], n, world_size * own["accumulate"] - 1)
    assert report["samples"] + report["skipped"] == n
    assert report["samples"] + report["repeats"] == len(samples_of(batches))
    assert str(report) and repr(plan)
    swapped = {name: np.array(lengths[name], np.int64) for name in reversed(lengths)}
    again = Plan(swapped, world_size=world_size, rank=world_size - 1, seed=seed, **own)
    assert list(again) == [step[-1] for step in batches]


@given(data=st.data(), lengths=several_lengths(), width=st.sampled_from([2, 4, 6]))
@settings(deadline=None, max_examples=draws(100))
def test_optimizer_steps_are_equal_on_any_ranks(data: st.DataObject, lengths: Several, width: int) -> None:
    """If ranks times micro-batches is the same, each global batch has the same samples, however it is balanced."""
    own = data.draw(several_settings(tuple(lengths)))
    found = []
    for world_size in (1, 2, width):
        for balance in ("micro_batch", "optimizer_step"):
            own |= {"accumulate": width // world_size, "balance": balance}
            batches = batches_of(Plan(lengths, world_size=world_size, rank=0, **own))
            groups = [batches[i : i + width // world_size] for i in range(0, len(batches), width // world_size)]
            found.append([sorted(samples_of(group)) for group in groups])
    assert all(one == found[0] for one in found)


def test_plans_of_several_are_the_same_on_every_machine() -> None:
    """The digests were noted when the algorithm was written. States that were saved need these plans."""
    lengths = {"text": [(i * i * 7919 + 31 * i) % 1800 for i in range(5000)]}
    lengths["patches"] = [(i * 104729 + i % 7) % 4096 if i % 3 else 0 for i in range(5000)]
    ways: dict[str, dict[str, Any]] = {
        "pack": {"pack": {"text": 4096, "patches": 8192}},
        "one limit": {"pack": {"patches": 8192}, "max_batch": 9},
        "max_sum": {"max_sum": {"text": 9000, "patches": 30000}},
        "max_padded": {"max_padded": {"text": 16384}, "max_sum": {"patches": 40000}},
        "padded twice": {"max_padded": {"text": 16384, "patches": 60000}},
        "max_batch": {"max_batch": 11},
        "optimizer_step": {"pack": {"text": 4096, "patches": 8192}, "accumulate": 3, "balance": "optimizer_step"},
        "measured": {"pack": {"text": 4096, "patches": 8192}, "cost": 1.5 + np.arange(5000) % 911 / 7},
    }
    found = {}
    for name, own in ways.items():
        plan = Plan(lengths, world_size=4, rank=0, seed=5, epoch=2, **{"cost": COST, **own})
        found[name] = plan._whole().table.digest
    expected: dict[str, int] = {
        "pack": 2822286760,
        "one limit": 3087848210,
        "max_sum": 3033376781,
        "max_padded": 3948348953,
        "padded twice": 2510481447,
        "max_batch": 2406394012,
        "optimizer_step": 1486265641,
        "measured": 999809746,
    }
    assert found == expected


def test_one_name_gives_the_plan_of_its_array() -> None:
    lengths = lognormal(900)
    for own, named in (
        ({"pack": 9000}, {"pack": {"text": 9000}}),
        ({"max_padded": 9000, "max_sum": 8500}, {"max_padded": {"text": 9000}, "max_sum": {"text": 8500}}),
        ({"max_batch": 8, "cost_linear": 3, "cost_quadratic": 2}, {"max_batch": 8, "cost": {"text": (3, 2)}}),
    ):
        one, other = Plan(lengths, **own), Plan({"text": lengths}, **named)  # type: ignore[arg-type]
        assert list(one) == list(other) and one.settings == other.settings and one.identity() == other.identity()
        assert str(one.report()).split("planned")[0] == str(other.report()).split("planned")[0]


def test_plan_of_several_is_copied_and_pickled() -> None:
    lengths = texts_and_images(1000)
    plan = Plan(lengths, pack=PACK, cost=costs_of(lengths) + 1, world_size=2, rank=1)
    batches = list(plan)
    assert list(pickle.loads(pickle.dumps(plan))) == list(copy.deepcopy(plan)) == batches
    assert "pack={'patches': 8192, 'text': 8192}" in repr(plan)
    tensors = {name: torch.tensor(array) for name, array in lengths.items()}
    assert list(Plan(tensors, pack=PACK, cost=costs_of(lengths) + 1, world_size=2, rank=1)) == batches


# ---- fill and balance ----


def test_rows_of_text_and_images_are_full_and_balanced() -> None:
    lengths = texts_and_images(20_000)
    report = Plan(lengths, pack=PACK, cost=COST, world_size=8, rank=0).report()
    assert report["tighter"] == "patches" and report["fill"]["patches"] > 0.99 and report["fill"]["text"] < 0.2
    assert report["cost_max_to_mean"] < 1.01 and report["cost_max_to_mean_p99"] < 1.05
    assert report["cost_max_to_mean_worst"] < 1.25


def test_text_that_counts_patches_fills_both_budgets() -> None:
    """An image has a quarter as many tokens as patches, so both budgets are scarce together."""
    lengths = texts_and_images(20_000)
    lengths["text"] = np.minimum(lengths["text"] + lengths["patches"] // 4, 8192)
    pack = {"text": 8192, "patches": 16384}
    report = Plan(lengths, pack=pack, cost=COST, world_size=8, rank=0).report()
    assert report["fill"]["patches"] > 0.97 and report["fill"]["text"] > 0.75
    assert report["cost_max_to_mean"] < 1.01 and report["cost_max_to_mean_worst"] < 1.25


def test_packing_by_one_length_leaves_the_other_unbalanced() -> None:
    """With the lengths of the texts alone, one rank gets most of the images of a step."""
    lengths = texts_and_images(8000)
    costs = costs_of(lengths)
    one = batches_of(Plan(lengths["text"], pack=8192, world_size=8, rank=0))
    several = batches_of(Plan(lengths, pack=PACK, cost=COST, world_size=8, rank=0))
    ratios = [(found.max(1) / found.mean(1)).mean() for found in (summed(costs, one), summed(costs, several))]
    assert ratios[0] > 1.25 and ratios[1] < 1.01
    assert summed(lengths["patches"], one).max() > 3 * 8192 >= 3 * summed(lengths["patches"], several).max()


def test_padded_text_with_ragged_images_is_balanced() -> None:
    lengths = texts_and_images(20_000)
    own: dict[str, Any] = {"max_padded": {"text": 32768}, "max_sum": {"patches": 65536}}
    report = Plan(lengths, cost=COST, world_size=8, rank=0, **own).report()
    assert report["cost_max_to_mean"] < 1.03 and report["padding"]["text"] < 0.3
    assert max(report["fill"].values()) > 0.9


def test_sums_of_an_optimizer_step_are_balanced() -> None:
    lengths = texts_and_images(8000)
    found = []
    for balance in ("micro_batch", "optimizer_step"):
        plan = Plan(lengths, pack=PACK, cost=COST, world_size=4, rank=0, accumulate=4, balance=balance)
        sums = summed(costs_of(lengths), batches_of(plan)).reshape(-1, 4, 4)
        assert plan.report()["cost_max_to_mean"] == pytest.approx(
            float((sums.max(2) / sums.mean(2)).mean() if balance == "micro_batch" else _ratio(sums.sum(1)))
        )
        found.append(_ratio(sums.sum(1)))
    assert found[1] < found[0] and found[1] < 1.002


def _ratio(sums: np.ndarray[Any, Any]) -> float:
    return float((sums.max(1) / sums.mean(1)).mean())


def test_one_length_is_balanced_by_optimizer_step() -> None:
    lengths = lognormal(4000)
    own: dict[str, Any] = {"pack": 8192, "cost_quadratic": 1, "world_size": 2, "rank": 0, "accumulate": 4}
    plans = [Plan(lengths, balance=balance, **own) for balance in ("micro_batch", "optimizer_step")]
    squares = lengths.astype(float) ** 2
    ratios = [_ratio(summed(squares, batches_of(plan)).reshape(-1, 4, 2).sum(1)) for plan in plans]
    assert ratios[1] < ratios[0]
    assert sorted(samples_of(batches_of(plans[0])[:4])) == sorted(samples_of(batches_of(plans[1])[:4]))


def test_measured_costs_balance_what_lengths_do_not_say() -> None:
    """Each fourth sample takes ten times as long as its length says."""
    lengths = lognormal(6000)
    costs = np.where(np.arange(6000) % 4 == 0, 10.0, 1.0) * lengths
    found = []
    for cost in (None, costs, costs / costs.max() * 1e-30, costs * 1e30):
        batches = batches_of(Plan(lengths, max_padded=32768, cost=cost, world_size=8, rank=0, tail="exact"))
        sums = summed(costs, batches)
        found.append((float((sums.max(1) / sums.mean(1)).mean()), batches))
    assert found[0][0] > 1.15 and found[1][0] < 1.08
    assert found[1][1] == found[2][1] == found[3][1]


def test_report_of_several_has_each_name() -> None:
    lengths = {"text": [10, 20, 30, 40], "patches": [0, 5, 5, 0], "squares": [1, 2, 3, 4]}
    plan = Plan(lengths, pack={"text": 50, "patches": 10}, cost={"squares": (1, 0)}, world_size=2, rank=0)
    report = plan.report()
    assert report["tokens"] == {"patches": 10, "squares": 10, "text": 100}
    assert report["fill"] == {"patches": 0.5, "squares": None, "text": 1.0} and report["tighter"] == "text"
    assert report["cost_max_to_mean"] == report["cost_max_to_mean_worst"] == report["cost_max_to_mean_p99"] == 1.0
    assert "text            100, 100.00% full, 28.57% padding (the tighter budget)" in str(report)
    assert "squares         10, " in str(report)
    json.dumps(report)


# ---- orders and samples that exceed a limit ----


def test_orders_of_several_lengths() -> None:
    lengths = texts_and_images(600)
    subset = Plan(lengths, pack=PACK, order=range(0, 600, 2), tail="exact")
    assert sorted(samples_of(batches_of(subset))) == list(range(0, 600, 2))
    order = Order(600, kind="torch", seed=9)
    assert sorted(samples_of(batches_of(Plan(lengths, pack=PACK, order=order, tail="exact")))) == list(range(600))
    mix = Mixture({"one": range(400), "other": range(200)}, weights={"one": 1, "other": 1}, until="all")
    batches = batches_of(Plan(lengths, pack=PACK, order=mix, tail="exact"))
    assert len(samples_of(batches)) == len(mix)
    for batch in (one for step in batches for one in step):
        assert sum(int(lengths["patches"][sample % 600]) for sample in batch) <= 8192


def test_oversized_samples_of_several_are_named() -> None:
    lengths = {"text": [*range(1, 101), 5000, 7], "patches": [*range(100), 0, 900]}
    pack = {"text": 200, "patches": 300}
    with pytest.raises(ValueError) as raised:
        Plan(lengths, pack=pack)
    assert "1 of 102 samples are longer than pack['patches'] (300): sample 101 has patches 900" in str(raised.value)
    assert "1 of 102 samples are longer than pack['text'] (200): sample 100 has text 5,000" in str(raised.value)
    skipping = Plan(lengths, pack=pack, oversized="skip", tail="exact")
    assert sorted(samples_of(batches_of(skipping))) == list(range(100)) and skipping.report()["skipped"] == 2
    alone = list(Plan(lengths, pack=pack, oversized="alone", tail="exact"))
    assert [100] in alone and [101] in alone and sorted(i for batch in alone for i in batch) == list(range(102))
    with pytest.raises(
        ValueError, match=r"all samples are longer than max_sum\['patches'\] .3.: sample 0 has patches 4"
    ):
        Plan({"text": [1, 1], "patches": [4, 5]}, max_sum={"patches": 3}, oversized="skip")
    with pytest.raises(
        ValueError, match=r"1 of 2 .* max_sum\['patches'\].*; 1 of 2 .*max_sum\['text'\].*; all 2 together"
    ):
        Plan({"text": [9, 1], "patches": [1, 9]}, max_sum={"patches": 3, "text": 3}, oversized="skip")


def test_sums_above_32_bits_are_planned() -> None:
    most = 2**31 - 1
    plan = Plan(
        {"text": [most] * 8, "patches": [1] * 8}, max_sum={"text": 4 * most}, cost={"text": (1, 0)}, tail="exact"
    )
    assert [len(batch) for batch in plan] == [4, 4]
    assert plan.report()["tokens"]["text"] == 8 * most


# ---- bad input ----

TWO = {"text": [1, 2, 3], "patches": [4, 5, 6]}
LIMIT = {"max_sum": {"text": 100}}
BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ({}, LIMIT, ValueError, "lengths has 0 names; give 1 to 4"),
    ({str(i): [1] for i in range(5)}, LIMIT, ValueError, "lengths has 5 names"),
    ({"text": [1], 7: [1]}, LIMIT, TypeError, "the names of lengths should be strings, but got 7"),
    ({"text": [1], "": [1]}, LIMIT, TypeError, "should be strings, but got ''"),
    ({"text": [1, 2], "patches": [1]}, LIMIT, ValueError, "lengths has 1 of 'patches' and 2 of 'text'"),
    ({"text": [1, 2], "patches": None}, LIMIT, TypeError, r"lengths\['patches'\] is a NoneType"),
    ({"text": [1, 2], "patches": [1, -3]}, LIMIT, ValueError, "the length 'patches' of sample 1 is -3"),
    ({"text": [1, 2], "patches": [1, 2**31]}, LIMIT, ValueError, r"length 'patches' of sample 1 is 2147483648, above"),
    ({"text": [1, float("nan")], "patches": [1, 2]}, LIMIT, TypeError, "'text' should be ints, .* sample 1 is nan"),
    ({"text": [1, float("inf")], "patches": [1, 2]}, LIMIT, TypeError, "sample 1 is inf"),
    ({"text": [[1], [2]], "patches": [1, 2]}, LIMIT, ValueError, r"lengths\['text'\] has the shape \(2, 1\)"),
    (TWO, {}, ValueError, "give what bounds a batch"),
    (
        TWO,
        {"max_sum": 100},
        TypeError,
        "the names 'patches', 'text', so max_sum should be a dict such as .'patches': 8",
    ),
    (TWO, {"max_sum": {}}, ValueError, "max_sum is empty; give a limit of 'patches' or 'text'"),
    (TWO, {"pack": {"image": 9}}, ValueError, "pack has 'image', but lengths are given for 'patches', 'text'"),
    (TWO, {"pack": {"text": 0}}, ValueError, r"pack\['text'\] should be from 1 to 16,777,216, but got 0"),
    (TWO, {"pack": {"text": 2**24 + 1}}, ValueError, r"pack\['text'\] should be from 1 to 16,777,216"),
    (TWO, {"max_sum": {"text": 2**63}}, ValueError, r"max_sum\['text'\] should be from 1 to 4,611"),
    (TWO, {"max_sum": {"text": 1.5}}, TypeError, r"max_sum\['text'\] should be an int, but got 1.5"),
    (TWO, {"max_sum": {"text": None}}, TypeError, r"max_sum\['text'\] should be an int, but got None"),
    (TWO, {**LIMIT, "pack": {"patches": 9}}, ValueError, "max_sum and pack do not go together"),
    (TWO, {"buckets": [(None, 4)]}, ValueError, "buckets are for one length without names"),
    (TWO, {**LIMIT, "cost_linear": 3}, ValueError, "cost_linear and cost_quadratic are for one length without a name"),
    (TWO, {**LIMIT, "cost": {"image": (1, 0)}}, ValueError, "cost has 'image', but lengths are given for"),
    (TWO, {**LIMIT, "cost": {"text": 5}}, TypeError, r"cost\['text'\] should be a pair \(linear, quadratic\)"),
    (
        TWO,
        {**LIMIT, "cost": {"text": (1, -1)}},
        ValueError,
        r"the quadratic factor of cost\['text'\] should be 0 or more",
    ),
    (TWO, {**LIMIT, "cost": {"text": (0.5, 1)}}, TypeError, r"the linear factor of cost\['text'\] .* multiply all"),
    (TWO, {**LIMIT, "cost": [1, 2]}, ValueError, r"cost has the shape \(2,\), but there are 3 samples"),
    (TWO, {**LIMIT, "cost": [1, 0, 2]}, ValueError, r"the cost of sample 1 is 0 \(1 of 3 are like that\)"),
    (TWO, {**LIMIT, "cost": [1.0, -2.0, 2]}, ValueError, "the cost of sample 1 is -2.0"),
    (TWO, {**LIMIT, "cost": [1, 2, float("nan")]}, ValueError, "the cost of sample 2 is nan"),
    (TWO, {**LIMIT, "cost": [1, 2, float("inf")]}, ValueError, "the cost of sample 2 is inf"),
    (TWO, {**LIMIT, "cost": "abc"}, TypeError, "cost should be a dict such as .* but got 'abc'"),
    (TWO, {**LIMIT, "cost": [1, 2, 3], "cost_quadratic": 1}, ValueError, "are for one length without a name"),
    (TWO, {**LIMIT, "balance": "step"}, ValueError, "balance should be one of"),
    (TWO, {**LIMIT, "cost": {"text": (0, 2**62)}}, ValueError, "cost of 3 samples with 2 lengths does not fit into 63"),
    ([1, 2], {"max_sum": {"text": 5}}, TypeError, "max_sum is a dict, but lengths has no names"),
    ([1, 2], {"max_sum": 9, "cost": {"text": (1, 0)}}, TypeError, "cost is a dict, but lengths has no names"),
    ([1, 2], {"buckets": [(None, 2)], "cost": [1, 2]}, ValueError, "buckets are for one length without measured costs"),
    ({"text": [1]}, {"max_sum": 9}, TypeError, "so max_sum should be a dict such as .'text': 8192."),
]


@pytest.mark.parametrize(("lengths", "own", "error", "message"), BAD)
def test_bad_lengths_and_costs_are_refused(
    lengths: Any, own: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        list(Plan(lengths, **own))
