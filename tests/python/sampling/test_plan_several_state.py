# SPDX-License-Identifier: Apache-2.0
"""The state of a loader with a plan of several lengths: continued on other ranks, and with other budgets and costs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from drawn import draws
from headrace import Plan, StateError
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_runs import State, edited, loader_of, run, stopped
from planned import (
    Several,
    assert_several_limits,
    batches_of,
    samples_of,
    several_lengths,
    several_settings,
    texts_and_images,
)

COST = {"text": (1, 0), "patches": (64, 1)}
PACK = {"text": 8192, "patches": 8192}


def plan_of(count: int = 500, **changes: Any) -> Plan:
    lengths = changes.pop("lengths", None) or texts_and_images(count)
    return Plan(lengths, **{"pack": PACK, "cost": COST, "world_size": 2, "rank": 0, **changes})


@given(data=st.data(), lengths=several_lengths(), seed=st.integers(0, 5), is_exact=st.booleans())
@settings(deadline=None, max_examples=draws(150))
def test_each_sample_comes_once_after_two_changes_of_budgets(
    data: st.DataObject, lengths: Several, seed: int, is_exact: bool
) -> None:
    state: State = None
    seen: list[int] = []
    measured = np.random.default_rng(seed).random(len(lengths["text"])) + 0.1
    for part in range(3):
        own = {**data.draw(several_settings(tuple(lengths))), "tail": "exact" if is_exact else "pad"}
        if data.draw(st.booleans()):
            own["cost"] = measured
        world_size = data.draw(st.integers(1, 4))
        # Earlier parts may have had the measured costs, so the plan needs them.
        if part and state is not None and '"cost":"' in state["headrace"]:
            own["cost"] = measured
        plan = Plan(lengths, world_size=world_size, rank=0, seed=seed, **own)
        steps = data.draw(st.integers(1, 4)) if part < 2 else None
        batches, once, after = run(plan, state, steps)
        again, _, _ = run(Plan(lengths, world_size=world_size, rank=0, seed=seed, **own), state, steps)
        assert again == batches
        for batch in (one for step in batches for one in step):
            assert_several_limits(lengths, own, batch)
        seen += once
        if after is not None and json.loads(after["headrace"])["is_end"]:
            break
        state = after if batches else state
    assert sorted(seen) == list(range(len(lengths["text"])))


WAYS: list[dict[str, Any]] = [
    {},
    {"balance": "optimizer_step", "accumulate": 3},
    {"pack": None, "max_sum": {"text": 9000, "patches": 20000}},
    {"pack": None, "max_padded": {"text": 16384}, "max_sum": {"patches": 40000}},
    {"cost": np.arange(2000) % 13 + 0.5},
]


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("way", WAYS)
def test_resumed_plan_of_several_gives_the_same_batches(way: dict[str, Any], steps: int) -> None:
    plan = plan_of(2000, rank=1, seed=3, **way)
    whole = list(plan)
    loader = loader_of(plan)
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    state = loader.state_dict()
    assert len(state["headrace"]) < 2 << 10
    resumed = loader_of(plan_of(2000, rank=1, seed=3, **way), state)
    assert len(resumed) == len(whole) and resumed.steps_left == len(whole) - steps
    assert [batch.tolist() for batch in resumed] == whole[steps:]


def test_other_ranks_continue_balanced_optimizer_steps() -> None:
    """A state that was taken between optimizer steps continues the same ones, dealt to the ranks that there are now.
    Within one, what is left is planned again."""
    own: dict[str, Any] = {"balance": "optimizer_step"}
    whole = plan_of(2000, world_size=4, accumulate=1, **own)
    plan = plan_of(2000, world_size=2, accumulate=2, **own)
    expected = [sorted(samples_of([step])) for step in batches_of(whole)]
    for steps, is_same in ((6, True), (7, False)):
        first, _, state = run(plan, None, steps)
        assert [sorted(samples_of(first[i : i + 2])) for i in (0, 2, 4)] == expected[:3]
        batches, once, after = run(whole, state, 5)
        found = [sorted(samples_of([step])) for step in batches]
        assert (found == expected[3:8]) == is_same
        rest, more, _ = run(plan, after)
        taken = [sample for step in first for batch in step for sample in batch]
        assert sorted([*taken, *once, *more]) == list(range(2000))
        groups = [sorted(samples_of(rest[i : i + 2])) for i in range(0, len(rest), 2)]
        assert not is_same or groups == expected[8:]


# ---- states that do not fit ----


def test_changed_length_of_one_name_is_refused() -> None:
    lengths = texts_and_images(500)
    state = stopped(plan_of(lengths=lengths))
    changed = {**lengths, "patches": lengths["patches"] + 1}
    with pytest.raises(StateError, match="lengths of the first 500 samples have changed"):
        loader_of(plan_of(lengths=changed), state)
    assert loader_of(plan_of(lengths=changed), state, on_changed="next_epoch").epoch == 1


def test_other_names_are_refused() -> None:
    lengths = texts_and_images(500)
    state = stopped(plan_of(lengths=lengths))
    renamed = {"tokens": lengths["text"], "patches": lengths["patches"]}
    other = Plan(renamed, pack={"tokens": 8192}, world_size=2, rank=0)
    with pytest.raises(
        StateError, match="a plan of lengths of 'patches' and 'text', and this plan has lengths of 'patch"
    ):
        loader_of(other, state)
    with pytest.raises(StateError, match="and this plan has one length; give it lengths with the same names"):
        loader_of(Plan(lengths["text"], pack=8192, world_size=2, rank=0), state)
    with pytest.raises(StateError, match="a plan of one length, and this plan has lengths of 'patches' and 'text'"):
        loader_of(plan_of(lengths=lengths), stopped(Plan(lengths["text"], pack=8192, world_size=2, rank=0)))
    assert loader_of(other, state, on_changed="next_epoch").epoch == 1


def test_changed_costs_are_refused() -> None:
    costs = np.arange(500) + 1.0
    state = stopped(plan_of(cost=costs))
    for other in (costs * 2, COST):
        with pytest.raises(StateError, match=r"the measured costs .cost=. of the first 500 samples have changed"):
            loader_of(plan_of(cost=other), state)
        assert loader_of(plan_of(cost=other), state, on_changed="next_epoch").epoch == 1
    # From factors to measured costs: the steps that were done need the lengths only.
    plan = plan_of(cost=costs)
    _, once, state_of_factors = run(plan_of(), None, 3)
    _, more, _ = run(plan, state_of_factors)
    assert sorted([*once, *more]) == list(range(500))


@pytest.mark.parametrize("cost", [COST, "measured"])
def test_grown_dataset_of_several_ends_with_old_samples(cost: Any) -> None:
    """The largest cost is of a sample that the old plan did not have."""
    grown = texts_and_images(510)
    costs = np.arange(510) + 1.0
    old = {name: array[:500] for name, array in grown.items()}
    before = plan_of(lengths=old, cost=costs[:500] if cost == "measured" else cost)
    after = plan_of(lengths=grown, cost=costs if cost == "measured" else cost)
    rest = loader_of(after, stopped(before), on_changed="finish")
    assert [batch.tolist() for batch in rest] == list(before)[3:]


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        ({"plan": {"algorithm": 3, "pack": 9}}, "needs algorithm 3"),
        ({"plan": {"algorithm": 2, "pack": 9}}, "its settings are not those of algorithm 2"),
        ({"plan": {"algorithm": 1, "names": ["patches", "text"], "pack": PACK}}, "are not those of algorithm 1"),
        ({"plan": {"algorithm": 2, "names": ["text"], "pack": {"text": 9}}}, "names should be several strings"),
        ({"plan": {"algorithm": 2, "names": 7, "pack": PACK}}, "names should be several strings, but got 7"),
        ({"plan": {"algorithm": 2, "names": ["patches", 5], "pack": PACK}}, "names should be several strings"),
        ({"plan": {"algorithm": 2, "names": ["patches", "text"], "pack": 9}}, "so pack should be a dict"),
        (
            {"plan": {"algorithm": 2, "names": ["patches", "text"], "pack": PACK, "cost": 5}},
            "cost should be a dict or a",
        ),
        ({"plan": {"algorithm": 2, "names": ["a", "text"], "pack": {"text": 9000}}}, "give it the same names"),
        ({"digest": 5}, "the plan has changed since this state was taken"),
    ],
)
def test_damaged_plan_of_several_is_refused(segment: dict[str, Any], message: str) -> None:
    state = edited(stopped(plan_of()), segment)
    with pytest.raises(StateError, match=message):
        next(iter(loader_of(plan_of(pack={"text": 9000}, oversized="alone"), state)))
