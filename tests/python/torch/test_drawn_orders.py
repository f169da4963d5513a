# SPDX-License-Identifier: Apache-2.0
"""Drawn trainings: any sampler, random numbers, wrapper and loop, stopped at any place and resumed in a new process.
Each sample comes once, or an error comes before the first batch; and to take a state changes nothing."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from drawn_orders import (
    KINDS,
    SHUFFLES,
    WRAPPERS,
    N,
    is_refused,
    make_loader,
    seed_all,
    set_shared_states,
    shared_states,
)
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from resumed import plain, set_epoch

pytestmark = pytest.mark.filterwarnings("ignore:headrace")
# The cases are small, so a failing one is not made smaller, which takes minutes.
EXAMPLES = settings(
    max_examples=int(os.environ.get("HEADRACE_EXAMPLES", 100)),
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)


class Case(NamedTuple):
    """A training. loop: "for" reads to the end, "count" takes len(loader) batches, "ahead" looks one batch ahead."""

    kind: str
    shuffle: str
    wrapper: str
    loop: str = "for"
    workers: int = 0
    world: int = 1
    batch: int = 4

    @property
    def is_dealt(self) -> bool:
        return self.wrapper in ("per_rank", "distributed", "torch's distributed")

    def loaders(self) -> list[Any]:
        """Returns the loaders of all ranks, each as its own process would have it."""
        held_back = int(self.loop == "ahead")
        return [
            make_loader(*self[:3], self.world, rank, self.batch, num_workers=self.workers, held_back=held_back)
            for rank in range(self.world)
        ]


CASES = st.builds(
    Case,
    kind=st.sampled_from(KINDS),
    shuffle=st.sampled_from(list(SHUFFLES)),
    wrapper=st.sampled_from(WRAPPERS),
    loop=st.sampled_from(["for", "count", "ahead"]),
    workers=st.just(0),
    world=st.just(1),
    batch=st.just(4),
).filter(lambda case: not is_refused(*case[:3]))
CHANGES = ("nothing", "batch size", "ranks", "fewer ranks", "random numbers")


def _batches(case: Case, loader: Any) -> Iterator[list[int]]:
    """Yields the batches of an epoch as a framework takes them."""
    iterator = iter(loader)
    if case.loop == "count":
        yield from map(_indices, itertools.islice(iterator, loader.steps_left))
        return
    ahead = list(itertools.islice(iterator, int(case.loop == "ahead")))
    for batch in iterator:
        ahead.append(batch)
        yield _indices(ahead.pop(0))
    yield from map(_indices, ahead)


def _indices(batch: Any) -> list[int]:
    found = plain(batch)
    return found if isinstance(found, list) else [found]


# ---- to take a state changes nothing ----


def _train(case: Case, takes: bool, limit: int) -> list[Any]:
    """Returns all batches of four epochs, of which the odd ones are left after `limit` batches, and the shared random
    numbers after each epoch."""
    seed_all(5)
    (loader,) = case.loaders()
    seen: list[Any] = []

    def take() -> None:
        if takes:
            _ = loader.state_dict(), loader.steps_left, loader.last

    take()
    for epoch in range(4):
        set_epoch(loader, epoch)
        take()
        for number, batch in enumerate(_batches(case, loader), start=1):
            seen.append(batch)
            take()
            if epoch % 2 and number == limit:
                break
        take()
        seen.append([str(one) for one in shared_states()])
    return seen


@given(case=CASES, limit=st.integers(1, N))
@example(case=Case("RandomSampler", "torch.Generator", "sampler", "count"), limit=6)
@example(case=Case("CountingWithState", "torch", "BatchSampler", "count"), limit=6)
@example(case=Case("Counting", "torch", "sampler", "count"), limit=6)
@example(case=Case("Counting", "torch", "batches", "count"), limit=6)
@EXAMPLES
def test_taking_states_changes_nothing(case: Case, limit: int) -> None:
    if case.shuffle == "operating system" and case.kind not in ("list", "Order"):
        return  # no two trainings are equal, and there is no state
    assert _train(case, True, limit) == _train(case, False, limit)


# ---- each sample once, or an error ----


def _read(case: Case, loaders: list[Any], epoch: int, stop: int | None) -> tuple[list[int], Any]:
    """Reads an epoch of all ranks, to the end or to a number of batches. Returns the samples that count, and the states
    of all ranks."""
    seen: list[int] = []
    states = []
    for loader in loaders:
        set_epoch(loader, epoch)
        if stop == 0:
            states.append(loader.state_dict())
            continue
        for number, batch in enumerate(_batches(case, loader), start=1):
            seen += batch
            if number == stop:
                break
        states.append(loader.state_dict())
    return seen, states


@given(
    case=CASES,
    epoch=st.integers(0, 2),
    stop=st.one_of(st.none(), st.integers(0, 6)),
    change=st.sampled_from(CHANGES),
)
@example(case=Case("Counting", "torch", "per_rank"), epoch=1, stop=2, change="batch size")
@example(case=Case("Counting", "torch", "per_rank"), epoch=1, stop=2, change="ranks")
@example(case=Case("ItsOwnIterator", "random.Random", "none"), epoch=0, stop=2, change="nothing")
@example(case=Case("ItsOwnIterator", "random.Random", "batches"), epoch=0, stop=2, change="nothing")
@example(case=Case("CountingWithState", "torch", "batches", "ahead"), epoch=0, stop=1, change="batch size")
@EXAMPLES
def test_each_sample_comes_once_or_an_error(case: Case, epoch: int, stop: int | None, change: str) -> None:
    if change in ("ranks", "fewer ranks") and not case.is_dealt:
        change = "batch size"
    case = case._replace(world=2 if change == "fewer ranks" else 1)
    seed_all(5)
    loaders = case.loaders()
    try:
        for earlier in range(epoch):
            _read(case, loaders, earlier, None)
        seen, states = _read(case, loaders, epoch, stop)
    except ValueError as error:
        assert "headrace" in str(error)
        return
    numbers = shared_states()
    seed_all(5)  # a new process
    other = case._replace(
        world={"ranks": 2, "fewer ranks": 1}.get(change, case.world), batch=6 if change == "batch size" else case.batch
    )
    loaders = other.loaders()
    if change != "random numbers":
        set_shared_states(numbers)
    ends = stop is None or (stop == len(loaders[0]) and change == "nothing") or sorted(seen) == list(range(N))
    try:
        for loader in loaders:
            loader.load_state_dict(states[0])
        rest, _ = _read(other, loaders, epoch + ends, None)
    except ValueError as error:
        assert "headrace" in str(error)
        return
    assert sorted(rest if ends else seen + rest) == list(range(N))


# ---- the run that was never stopped ----


def _epochs(case: Case, loader: Any, first: int) -> list[list[int]]:
    found = []
    for epoch in range(first, 3):
        set_epoch(loader, epoch)
        found.append([index for batch in _batches(case, loader) for index in batch])
    return found


@given(case=CASES, epoch=st.integers(0, 1), stop=st.one_of(st.none(), st.integers(0, 6)))
@example(case=Case("Shuffled", "numpy.RandomState", "sampler"), epoch=0, stop=None)
@example(case=Case("Shuffled", "numpy.Philox", "sampler"), epoch=1, stop=6)
@example(case=Case("Shuffled", "global variable", "batches"), epoch=0, stop=None)
@example(case=Case("Shuffled", "random.Random", "batches"), epoch=1, stop=2)
@example(case=Case("GoesOnWithState", "random.Random", "none"), epoch=1, stop=2)
@EXAMPLES
def test_resumed_run_is_the_whole_one(case: Case, epoch: int, stop: int | None) -> None:
    """A checkpoint has the shared random numbers too. Samplers that cannot be put back are not compared."""
    if case.shuffle == "operating system" or case.kind in ("Counting", "ShuffledInPlace") or case.loop == "count":
        return
    seed_all(5)
    whole = _epochs(case, *case.loaders(), 0)
    seed_all(5)
    loaders = case.loaders()
    for earlier in range(epoch):
        _read(case, loaders, earlier, None)
    seen, states = _read(case, loaders, epoch, stop)
    numbers = shared_states()
    seed_all(6)
    (loader,) = case.loaders()
    set_shared_states(numbers)
    loader.load_state_dict(states[0])
    ends = len(seen) == N
    rest = [] if ends else [whole[epoch][len(seen) :]]
    assert _epochs(case, loader, epoch + ends) == [*rest, *whole[epoch + 1 :]]
