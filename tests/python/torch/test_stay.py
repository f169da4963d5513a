# SPDX-License-Identifier: Apache-2.0
"""per_rank(..., stay=): each machine gets the same samples in every epoch."""

from __future__ import annotations

import itertools
import json
import os
import pickle
from collections.abc import Callable
from typing import Any

import headrace
import pytest
import torch
from headrace._ranks.where import RankPlace
from headrace.torch import DataLoader, per_rank
from headrace.torch._samplers import rank_places
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders import only_headrace
from resumed import Numbers, mixture, plain
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

MAKERS: dict[str, Callable[[int], Any]] = {
    "stream": lambda n: headrace.Order(n, seed=3),
    "torch": lambda n: headrace.Order(n, kind="torch", seed=3),
    "sequential": lambda n: SequentialSampler(range(n)),
    "range": range,
    "random": lambda n: RandomSampler(range(n)) if n else [],
}


def chain(parts: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


def dealt(kind: str, n: int, world: int, machine: int | None, epoch: int = 0, tail: str = "pad") -> list[Any]:
    """Returns the samplers of all ranks."""
    found = []
    for rank in range(world):
        seed = 1 if kind == "random" else None
        one = per_rank(MAKERS[kind](n), num_replicas=world, rank=rank, tail=tail, seed=seed, stay=machine)
        one.set_epoch(epoch)
        found.append(one)
    return found


def samples_of_machines(samplers: list[Any], machine: int) -> list[list[int]]:
    """Returns for each machine the samples of its ranks that are no repeats."""
    drawn = [list(one) for one in samplers]
    assert [len(one) for one in drawn] == [len(one) for one in samplers]
    parts = [one[: len(one) - sampler.repeats] for one, sampler in zip(drawn, samplers, strict=True)]
    return [chain(parts[first : first + machine]) for first in range(0, len(parts), machine)]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("n", "machines", "ranks"), [(0, 2, 2), (1, 2, 2), (11, 4, 3), (100, 3, 2), (97, 5, 4), (7, 1, 3)]
)
@pytest.mark.parametrize("tail", ["pad", "drop", "exact"])
def test_machines_keep_their_samples(kind: str, n: int, machines: int, ranks: int, tail: str) -> None:
    world = machines * ranks
    without = dealt(kind, n, world, None, tail=tail)
    kept = [set[int]() for _ in range(machines)]
    for epoch in range(3):
        samplers = dealt(kind, n, world, ranks, epoch, tail)
        assert [len(one) for one in samplers] == [len(one) for one in without]
        parts = samples_of_machines(samplers, ranks)
        counted = sorted(itertools.chain.from_iterable(parts))
        assert counted == list(range(n)) if tail != "drop" else len(set(counted)) == n - n % world
        for before, part in zip(kept, parts, strict=True):
            before |= set(part)
    assert all(not one & other for one, other in itertools.combinations(kept, 2))
    if tail != "drop":
        assert all(sorted(part) == list(range(min(part), max(part) + 1)) for part in kept if part)


def test_order_within_a_machine_changes_with_the_epoch() -> None:
    for kind in ("stream", "torch", "random"):
        one, other = (list(dealt(kind, 1000, 4, 2, epoch)[1]) for epoch in (0, 1))
        assert one != other and max(one + other) < 500


def test_drawn_order_is_kept_within_a_machine() -> None:
    drawn = list(headrace.Order(100, kind="torch", seed=3))
    parts = [list(one) for one in dealt("torch", 100, 4, 2)]
    first = [index for pair in zip(*parts[:2], strict=True) for index in pair]
    assert first == [index for index in drawn if index < 50]


def test_an_order_of_billions_takes_no_memory_for_its_indices() -> None:
    n = 6_000_000_000
    sampler = per_rank(headrace.Order(n), num_replicas=4096, rank=4095, stay=8)
    first = list(itertools.islice(sampler, 1000))
    assert len(set(first)) == 1000 and min(first) >= n - n // 512 - 8
    assert len(sampler) == -(-n // 4096)


def test_copies_draw_the_same() -> None:
    for kind in ("stream", "torch", "sequential", "range"):
        sampler = dealt(kind, 50, 4, 2)[2]
        copied = pickle.loads(pickle.dumps(sampler))
        assert list(copied) == list(sampler) and repr(copied) == repr(sampler) and "stay=2" in repr(sampler)


# ---- what a machine is ----


@pytest.mark.parametrize("rank", range(4))
def test_machine_is_found_in_environment(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    assert per_rank(range(8), stay="machine").stay == 2


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (
            RankPlace(0, 4, None, None, "a group"),
            "which is not known here .*found in: a group.*give it, such as stay=8",
        ),
        (RankPlace(2, 8, 0, 4, "x"), "rank 2 of 8 is number 0 of 4 ranks on its machine"),
        (RankPlace(0, 8, 0, 3, "x"), "needs equally many ranks on each machine"),
    ],
)
def test_unequal_machines_are_refused(place: RankPlace, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        rank_places.ranks_of_machine(place)


@pytest.mark.parametrize(
    ("sampler", "stay", "error", "text"),
    [
        (
            range(8),
            3,
            ValueError,
            "stay=3 should be the number of ranks of a machine.*divide the number of all ranks, 4",
        ),
        (range(8), 0, ValueError, "stay=0 should be"),
        (range(8), "node", TypeError, 'stay should be "machine", the number of ranks of a machine, or None'),
        (range(8), "machine", ValueError, "not known here"),
        (mixture(), 2, ValueError, "stay cannot deal a Mixture"),
    ],
)
def test_wrong_arguments_say_what_to_do(sampler: Any, stay: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        per_rank(sampler, num_replicas=4, rank=0, stay=stay)


@pytest.mark.parametrize(
    ("sampler", "error", "text"),
    [
        (BatchSampler(range(8), 2, False), TypeError, r"gives entries such as \[0, 1\]"),
        ([3, 4, 5], ValueError, "index 3, at position 0, is not one of them; use stay=None"),
        ([0, 1, 1], ValueError, "index 1, at position 2, comes again"),
        (range(3, 6), ValueError, "is not one of them"),
        (headrace.Order(9)[::2], ValueError, "is not one of them|comes again"),
        (WeightedRandomSampler([1.0] * 40, 40), ValueError, "comes again"),
    ],
)
def test_samplers_without_each_sample_once_are_refused(sampler: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        list(per_rank(sampler, num_replicas=4, rank=0, seed=0, stay=2))


# ---- states ----


def loaders_of(kind: str, n: int, world: int, machine: int | None, batch: int, tail: str, epoch: int = 0) -> list[Any]:
    samplers = dealt(kind, n, world, machine, epoch, tail)
    return [DataLoader(Numbers(n), batch, sampler=one) for one in samplers]


def steps_of(loaders: list[Any], steps: int) -> list[list[int]]:
    """Runs all ranks for so many steps. Returns the samples of each that count."""
    counted: list[list[int]] = [[] for _ in loaders]
    for loader, found in zip(loaders, counted, strict=True):
        for batch in itertools.islice(loader, steps):
            weights = loader.last.weights.tolist()
            found += [index for index, weight in zip(plain(batch), weights, strict=True) if weight]
    return counted


@only_headrace
@pytest.mark.parametrize("kind", ["stream", "torch", "random"])
def test_resumed_run_reads_what_the_other_one_reads(kind: str) -> None:
    for rank in range(4):
        whole = [plain(batch) for batch in loaders_of(kind, 50, 4, 2, 3, "pad", 1)[rank]]
        begun = loaders_of(kind, 50, 4, 2, 3, "pad", 1)[rank]
        assert [plain(batch) for batch in itertools.islice(begun, 2)] == whole[:2]
        other = loaders_of(kind, 50, 4, 2, 3, "pad", 1)[rank]
        other.load_state_dict(begun.state_dict())
        assert [plain(batch) for batch in other] == whole[2:]


DIVISION = st.tuples(st.integers(1, 3), st.sampled_from([None, 1, 2]), st.integers(1, 3), st.integers(0, 6))


@only_headrace
@given(
    kind=st.sampled_from(["stream", "torch", "random"]),
    n=st.integers(0, 40),
    tail=st.sampled_from(["pad", "drop", "exact"]),
    divisions=st.lists(DIVISION, min_size=2, max_size=3),
)
@settings(max_examples=int(os.environ.get("HEADRACE_EXAMPLES", 40)), deadline=None)
def test_each_remaining_sample_comes_once_on_other_machines(
    kind: str, n: int, tail: str, divisions: list[tuple[int, int | None, int, int]]
) -> None:
    state, counted = None, list[int]()
    for number, (machines, machine, batch, steps) in enumerate(divisions):
        world = machines * (machine or 1)
        loaders = loaders_of(kind, n, world, machine, batch, tail)
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        is_last = number == len(divisions) - 1
        counted += chain(steps_of(loaders, n + 1 if is_last else steps))
        if not is_last and any(loader.steps_left == 0 for loader in loaders):
            break  # a state of now is of the next epoch
        state = loaders[0].state_dict()
    else:
        most = divisions[-1][0] * (divisions[-1][1] or 1) if tail == "drop" else 0
        assert len(set(counted)) == len(counted) and n - len(counted) <= max(0, most - 1)
    assert len(set(counted)) == len(counted)


@only_headrace
@pytest.mark.parametrize("kind", ["stream", "random"])
def test_epoch_after_a_change_is_dealt_to_the_new_machines(kind: str) -> None:
    begun = loaders_of(kind, 48, 4, 2, 3, "pad")[0]
    next(iter(begun))
    state = begun.state_dict()
    assert json.loads(state["headrace"])["order"]["machines"] == [4, 2]
    loaders = loaders_of(kind, 48, 6, 2, 3, "pad")
    for loader in loaders:
        loader.load_state_dict(state)
    rest = sorted(chain(steps_of(loaders, 10)))
    assert len(rest) == len(set(rest)) == 48 - 12
    at_end = [loader.state_dict() for loader in loaders]
    assert {json.dumps(json.loads(one["headrace"])["order"]["machines"]) for one in at_end} == {"[6, 2]"}
    for loader in loaders:
        loader.set_epoch(1)
    parts = steps_of(loaders, 10)
    assert [sorted(parts[first] + parts[first + 1]) for first in (0, 2, 4)] == [
        list(range(first, first + 16)) for first in (0, 16, 32)
    ]


@only_headrace
def test_state_after_a_change_has_the_first_machines() -> None:
    begun = loaders_of("stream", 60, 4, 2, 3, "pad")[0]
    next(iter(begun))
    second = loaders_of("stream", 60, 2, 1, 3, "pad")[0]
    second.load_state_dict(begun.state_dict())
    next(iter(second))
    fields = json.loads(second.state_dict()["headrace"])
    assert fields["order"]["machines"] == [4, 2] and [one["world"] for one in fields["segments"]] == [4, 2]


@only_headrace
@pytest.mark.parametrize("machines", [[4], [4, 3], [4, 0], [0, 1], "x", [4, 2.0], [1 << 40, 1]])
def test_damaged_machines_of_a_state_are_refused(machines: Any) -> None:
    from headrace.sampling import _state

    loader = loaders_of("stream", 48, 4, 2, 3, "pad")[0]
    next(iter(loader))
    fields = json.loads(loader.state_dict()["headrace"])
    fields["order"]["machines"] = machines
    fields.pop("checksum")
    fields["checksum"] = _state._checksum(fields)
    with pytest.raises(ValueError, match="damaged: its machines are"):
        loaders_of("stream", 48, 4, 2, 3, "pad")[0].load_state_dict({"headrace": json.dumps(fields)})


@only_headrace
def test_workers_and_threads_of_torch_read_the_same() -> None:
    expected = [plain(batch) for batch in loaders_of("stream", 50, 4, 2, 3, "pad")[3]]
    sampler = dealt("stream", 50, 4, 2)[3]
    assert [plain(batch) for batch in DataLoader(Numbers(50), 3, sampler=sampler, num_workers=2)] == expected
    theirs: Any = torch.utils.data.DataLoader(Numbers(50), 3, sampler=dealt("stream", 50, 4, 2)[3])
    assert [plain(batch) for batch in theirs] == expected
