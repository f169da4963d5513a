# SPDX-License-Identifier: Apache-2.0
"""The state of a loader with a plan: continued on another number of ranks and with other limits, each remaining sample
comes once."""

from __future__ import annotations

import json
import random
import warnings
from typing import Any

import headrace
import numpy as np
import pytest
import torch
from drawn import draws
from headrace import Loader, Plan, StateError
from headrace.torch import DataLoader
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_runs import Numbers, State, edited, loader_of, run, stopped
from planned import LENGTHS, assert_limits, batches_of, lognormal, plan_settings, samples_of


def torch_loader_of(plan: Plan, state: State = None) -> Any:
    loader = DataLoader(Numbers(plan.n), batch_sampler=plan)
    if state is not None:
        loader.load_state_dict(state)
    return loader


@given(data=st.data(), lengths=LENGTHS, seed=st.integers(0, 5), is_exact=st.booleans())
@settings(deadline=None, max_examples=draws(150))
def test_each_sample_comes_once_after_any_two_changes(
    data: st.DataObject, lengths: list[int], seed: int, is_exact: bool
) -> None:
    state: State = None
    seen: list[int] = []
    for part in range(3):
        own = {**data.draw(plan_settings()), "tail": "exact" if is_exact else "pad"}
        world_size = data.draw(st.integers(1, 4))
        plan = Plan(lengths, world_size=world_size, rank=0, seed=seed, **own)
        steps = data.draw(st.integers(1, 4)) if part < 2 else None
        batches, once, after = run(plan, state, steps)
        again, _, _ = run(Plan(lengths, world_size=world_size, rank=0, seed=seed, **own), state, steps)
        assert again == batches
        for batch in (one for step in batches for one in step):
            assert_limits(lengths, own, batch)
        seen += once
        if after is not None and json.loads(after["headrace"])["is_end"]:
            break
        state = after if batches else state
    assert sorted(seen) == list(range(len(lengths)))


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("way", [{"max_padded": 16384}, {"pack": 8192}, {"buckets": [(200, 32), (None, 4)]}])
def test_resumed_plan_gives_batches_of_the_run_without_a_stop(way: dict[str, Any], steps: int) -> None:
    plan = Plan(lognormal(3000), world_size=2, rank=1, seed=3, **way)
    whole = list(plan)
    loader = loader_of(plan)
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    resumed = loader_of(Plan(lognormal(3000), world_size=2, rank=1, seed=3, **way), loader.state_dict())
    assert len(resumed) == len(whole) and resumed.steps_left == len(whole) - steps
    assert [batch.tolist() for batch in resumed] == whole[steps:]
    plan.set_epoch(1)
    resumed.batch_sampler.set_epoch(1)  # type: ignore[union-attr]
    assert [batch.tolist() for batch in resumed] == list(plan)


def test_other_ranks_continue_the_same_optimizer_steps() -> None:
    """With the same product of ranks and micro-batches, a state that was taken between optimizer steps continues the
    same plan; within one, what is left is planned again."""
    lengths = lognormal(2000)
    whole = Plan(lengths, max_batch=5, world_size=4, rank=0)
    plan = Plan(lengths, max_batch=5, world_size=2, rank=0, accumulate=2)
    expected = [sorted(samples_of([step])) for step in batches_of(whole)]
    for steps, is_same in ((6, True), (7, False)):
        _, _, state = run(plan, None, steps)
        batches, _, _ = run(whole, state)
        found = [sorted(samples_of([step])) for step in batches]
        assert (found == expected[3:]) == is_same


def test_skip_begins_a_plan_later() -> None:
    plan = Plan(lognormal(1000), max_batch=8, world_size=2, rank=1)
    loader = loader_of(plan)
    loader.skip(20)
    state = loader.state_dict()
    assert [batch.tolist() for batch in loader] == list(plan)[20:]
    assert [batch.tolist() for batch in loader_of(plan, state)] == list(plan)[20:]
    with pytest.raises(ValueError, match="leave out more than the epoch has"):
        loader_of(plan).skip(10_000)


def test_end_of_epoch_is_the_beginning_of_the_next_one() -> None:
    plan = Plan(lognormal(200), max_batch=8)
    loader = loader_of(plan)
    assert len(list(loader)) == len(plan)
    state = loader.state_dict()
    other = loader_of(Plan(lognormal(200), max_batch=9), state)  # nothing of the old plan is left
    assert other.epoch == 1 and other.steps_left == len(Plan(lognormal(200), max_batch=9))


def test_last_batch_says_which_samples_are_repeats() -> None:
    plan = Plan([7] * 5, max_batch=2, world_size=4, rank=3, tail="exact")
    loader = loader_of(plan)
    found = [(batch.tolist(), loader.last.weights.tolist()) for batch in loader if loader.last]
    assert [weights for _, weights in found] == [[1.0]]
    assert loader.last is not None and loader.last.global_count == 5
    alone = Plan([7, 7], max_batch=2, world_size=4, rank=3, tail="exact")
    loader = loader_of(alone)
    assert [loader.last.weights.tolist() for _ in loader if loader.last] == [[0.0]]
    assert loader.last.global_count == 2


# ---- states that do not fit ----


def test_changed_lengths_are_refused() -> None:
    lengths = lognormal(500)
    state = stopped(Plan(lengths, max_batch=8))
    lengths[17] += 1
    with pytest.raises(StateError, match="lengths of the first 500 samples have changed"):
        loader_of(Plan(lengths, max_batch=8), state)
    loader = loader_of(Plan(lengths, max_batch=8), state, on_changed="next_epoch")
    assert loader.epoch == 1 and len(list(loader)) == len(Plan(lengths, max_batch=8))


def test_grown_dataset_ends_the_epoch_with_old_samples() -> None:
    lengths = lognormal(500)
    old, grown = Plan(lengths, max_batch=8), Plan([*lengths.tolist(), 5, 6], max_batch=8)
    state = stopped(old)
    with pytest.raises(StateError, match="taken with 500 samples, and the dataset has 502"):
        loader_of(grown, state)
    rest = [batch.tolist() for batch in loader_of(grown, state, on_changed="finish")]
    assert rest == list(old)[3:]
    assert loader_of(grown, state, on_changed="next_epoch").epoch == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "taken with seed=0"),
        ({"order": np.arange(400)}, "taken with order='all samples'"),
    ],
)
def test_other_seed_or_order_is_refused(changes: dict[str, Any], message: str) -> None:
    state = stopped(Plan(lognormal(500), max_batch=8))
    with pytest.raises(StateError, match=message):
        loader_of(Plan(lognormal(500), max_batch=8, **changes), state)


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        ({"plan": {"algorithm": 9, "max_batch": 8}}, "needs algorithm 9"),
        ({"plan": {"algorithm": 1}}, "give what bounds a batch"),
        ({"plan": {"algorithm": 1, "max_batch": "x"}}, "max_batch should be an int"),
        ({"plan": {"algorithm": 1, "max_batch": 8, "more": 1}}, "unknown setting 'more'"),
        ({"plan": {"algorithm": 1, "buckets": 5}}, "buckets should be pairs"),
        ({"digest": 5}, "the plan has changed since this state was taken"),
        ({"plan": {"algorithm": 1, "max_batch": 400}, "digest": 0}, "damaged: it has 3 steps"),
    ],
)
def test_damaged_plan_in_a_state_is_refused(segment: dict[str, Any], message: str) -> None:
    state = edited(stopped(Plan(lognormal(500), max_batch=8)), segment)
    with pytest.raises(StateError, match=message):
        loader = loader_of(Plan(lognormal(500), max_batch=7), state)
        next(iter(loader))


def test_other_order_of_the_same_sampler_is_refused() -> None:
    """On another rank than that of the state, whose last batch cannot be compared."""
    state = stopped(Plan(lognormal(500), max_batch=8, order=Fixed(range(500)), world_size=2, rank=0))
    same = Plan(lognormal(500), max_batch=8, order=Fixed(range(500)), world_size=2, rank=1)
    assert [batch.tolist() for batch in loader_of(same, state)] == list(same)[3:]
    other = Plan(lognormal(500), max_batch=8, order=Fixed(range(499, -1, -1)), world_size=2, rank=1)
    with pytest.raises(StateError, match="the plan has changed since this state was taken"):
        next(iter(loader_of(other, state)))
    assert loader_of(other, state, on_changed="next_epoch").batch_sampler is other


class Fixed:
    """A sampler without a generator."""

    def __init__(self, order: Any) -> None:
        self.order = order

    def __iter__(self) -> Any:
        return iter(self.order)


def test_finish_is_for_subsets_and_not_for_samplers() -> None:
    lengths = lognormal(500)
    grown = [*lengths.tolist(), 5, 6]
    old = Plan(lengths, max_batch=8, order=range(400))
    rest = loader_of(Plan(grown, max_batch=8, order=range(400)), stopped(old), on_changed="finish")
    assert [batch.tolist() for batch in rest] == list(old)[3:]
    state = stopped(Plan(lengths, max_batch=8, order=Fixed(range(500))))
    with pytest.raises(
        StateError, match=r"the dataset has 502; on_changed=.next_epoch. begins the next epoch \(headrace help state\)$"
    ):
        loader_of(Plan(grown, max_batch=8, order=Fixed(range(500))), state)
    with pytest.raises(
        StateError, match=r"the dataset has 400; on_changed=.next_epoch. begins the next epoch \(headrace help state\)$"
    ):
        loader_of(Plan(lengths[:400], max_batch=8), stopped(Plan(lengths, max_batch=8)))


# ---- orders of samplers with generators of their own ----


class Drawing:
    """A sampler that draws each epoch's order from a generator of its own."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __iter__(self) -> Any:
        if isinstance(self.generator, torch.Generator):
            return iter(torch.randperm(200, generator=self.generator).tolist())
        order = list(range(200))
        self.generator.shuffle(order)
        return iter(order)


class Around:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Any:
        return iter(self.sampler)


class Counting:
    """A sampler that counts its epochs itself."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        self.epoch += 1
        return iter(random.Random(self.epoch).sample(range(200), 200))

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


SAMPLERS = {
    "random": lambda seed: Drawing(random.Random(seed)),
    "numpy": lambda seed: Drawing(np.random.default_rng(seed)),
    "torch": lambda seed: Drawing(torch.Generator().manual_seed(seed)),
    "inside": lambda seed: Around(Drawing(random.Random(seed))),
    "counts": Counting,
}


def drawn_plan(kind: str, seed: int, world_size: int = 1) -> Plan:
    return Plan(lognormal(200), max_batch=9, order=SAMPLERS[kind](seed), world_size=world_size, rank=0)


def epochs_of(loader: Any, first: int) -> list[list[list[int]]]:
    """Returns the batches of the epochs from `first` to 2."""
    found = []
    for epoch in range(first, 3):
        loader.batch_sampler.set_epoch(epoch)
        loader.set_epoch(epoch)
        len(loader)
        found.append([batch.tolist() for batch in loader])
    return found


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("make", [loader_of, torch_loader_of])
@pytest.mark.parametrize(("epoch", "steps"), [(0, 0), (1, 0), (1, 4), (1, None)])
def test_order_of_a_sampler_with_a_generator_goes_on(kind: str, make: Any, epoch: int, steps: int | None) -> None:
    whole = epochs_of(make(drawn_plan(kind, 7)), 0)
    assert whole[0] != whole[1]
    loader = make(drawn_plan(kind, 7))
    for number in range(epoch + 1):
        loader.batch_sampler.set_epoch(number)
        len(loader)
        if number < epoch:
            list(loader)
    iterator = iter(loader)
    for _ in range(len(loader) if steps is None else steps):
        next(iterator)
    state = loader.state_dict()
    assert len(state["headrace"]) < 16 << 10
    resumed = make(drawn_plan(kind, 99), state)
    len(resumed)
    if steps is None:
        assert epochs_of(resumed, epoch + 1) == whole[epoch + 1 :]
    else:
        assert epochs_of(resumed, epoch) == [whole[epoch][steps:], *whole[epoch + 1 :]]


def test_order_of_a_generator_goes_on_on_other_ranks() -> None:
    plan = drawn_plan("random", 7)
    first, _, state = run(plan, None, 3)
    rest, _, _ = run(drawn_plan("random", 99, world_size=3), state)
    assert sorted({*samples_of(first), *samples_of(rest)}) == list(range(200))
    assert not {*samples_of(first)} & {*samples_of(rest)}


def test_state_of_another_kind_of_generator_is_refused() -> None:
    state = stopped(drawn_plan("random", 7))
    with pytest.raises(StateError, match="the state of a Generator does not fit it"):
        loader_of(drawn_plan("numpy", 7), state)


def test_forgotten_set_epoch_of_several_ranks_is_warned_of_once() -> None:
    loader = loader_of(Plan(lognormal(200), max_batch=9, world_size=2, rank=0))
    for epoch in range(2):
        loader.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
        list(loader)
    with pytest.warns(UserWarning, match="the Plan is still in epoch 1; call its set_epoch"):
        list(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)


def test_state_of_another_sampler_is_refused() -> None:
    order = headrace.Order(500)
    loader = Loader(Numbers(500), 8, sampler=order, seed=1)
    next(iter(loader))
    with pytest.raises(StateError, match=r"taken with Order.stream., and this loader has Plan"):
        loader_of(Plan(lognormal(500), max_batch=8), loader.state_dict())


@pytest.mark.parametrize("way", [{"max_padded": 16384}, {"buckets": [(200, 32), (None, 4)]}])
def test_state_that_was_loaded_twice_has_one_segment(way: dict[str, Any]) -> None:
    """The settings of buckets are tuples in memory and lists in a state: that is no other division."""
    plan = Plan(lognormal(800), world_size=1, rank=0, seed=3, **way)
    state: State = None
    for _ in range(3):
        loader = torch_loader_of(plan, state)
        next(iter(loader))
        state = loader.state_dict()
    assert [one["steps"] for one in json.loads(state["headrace"])["segments"]] == [3]
