# SPDX-License-Identifier: Apache-2.0
"""Workers that die and are replaced, random numbers by sample, and samples that cannot be made."""

from __future__ import annotations

import copy
import functools
import itertools
import multiprocessing
import os
import pathlib
import pickle
import random
import re
import signal
from collections.abc import Callable
from typing import Any

import headrace
import headrace.torch
import mishaps
import numpy as np
import pytest
import torch
import torch.utils.data
from loaders import needs_failpoints, only_headrace
from mishaps import (
    Bad,
    ForTorch,
    Marks,
    Numbers,
    Plan,
    Random,
    Replayable,
    Resumable,
    Stream,
    Together,
    epoch,
    kill,
    told,
)
from processes import alive, run, until

pytestmark = only_headrace

METHODS = ("fork", "forkserver", "spawn")
SLOW_METHODS = ("forkserver", "spawn")
DEATHS = ("SIGKILL", "SIGSEGV", "exit 0", "exit 3")
BOTH = pytest.mark.parametrize("kind", [headrace.torch.DataLoader, headrace.Loader], ids=["torch", "numpy"])
COUNT = 41  # samples; with batches of 3 the last one is smaller


@pytest.fixture
def marks(tmp_path: pathlib.Path) -> Marks:
    return Marks(tmp_path)


def load(kind: Any, dataset: Any, **options: Any) -> Any:
    if isinstance(dataset, Stream) and kind is not headrace.Loader:
        dataset = ForTorch(dataset)
    standard = {"batch_size": 3, "num_workers": 2, "multiprocessing_context": "fork", "max_restarts": 3}
    return kind(dataset, **{**standard, **options})


@functools.cache
def undisturbed(kind: Any, name: str, **options: Any) -> list[Any]:
    """An epoch in which nothing happens."""
    nothing = Plan(Marks(pathlib.Path("/nowhere")))
    return epoch(load(kind, DATASETS[name](nothing), **options, max_restarts=0))


def in_some_order(batches: list[Any]) -> list[Any]:
    return sorted(batches, key=repr)


def pids(loader: Any) -> list[int]:
    return [one["pid"] for one in loader.report()["per_worker"]]


def starts(loader: Any) -> list[int]:
    return [one["starts"] for one in loader.report()["per_worker"]]


def as_sum(samples: list[Any]) -> int:
    return sum(samples)


DATASETS: dict[str, Callable[[Plan], Any]] = {
    "map": lambda plan: Numbers(COUNT, plan),
    "getitems": lambda plan: Together(COUNT, plan),
    "replayed": lambda plan: Replayable(COUNT, plan),
    "resumed": lambda plan: Resumable(COUNT, plan),
}


# ---- a worker dies, and the epoch is exact ----


WAYS: list[dict[str, Any]] = [
    {"at": 2},
    {"at": 40, "in_order": False},
    {"at": 19, "batch_size": None},
    {"at": 19, "batch_size": None, "persistent_workers": True, "in_order": False},
    {"at": 20, "collate_fn": as_sum, "persistent_workers": True},
    {"at": 7, "prefetch_factor": 5, "num_workers": 3, "persistent_workers": True},
]


@BOTH
@pytest.mark.parametrize("how", DEATHS)
@pytest.mark.parametrize("name", DATASETS)
def test_a_worker_that_dies_in_the_data_set_is_replaced_and_no_sample_is_lost(
    kind: Any, name: str, how: str, tmp_path: pathlib.Path
) -> None:
    for number, way in enumerate(WAYS):
        (folder := tmp_path / str(number)).mkdir()
        options = dict(way)
        loader = load(kind, DATASETS[name](Plan(Marks(folder), {options.pop("at"): [how]})), **options)
        with told() as texts:
            batches = epoch(loader)
            report = loader.report()
            later = epoch(loader)
        in_order = options.pop("in_order", True)
        expected = undisturbed(kind, name, **options)
        for got in (batches, later):
            assert in_some_order(got) == in_some_order(expected), way
            assert got == expected or not in_order, way
        assert report["restarts"] == 1
        assert sum(one["starts"] for one in report["per_worker"]) == len(report["per_worker"]) + 1
        assert len(texts) == 1
        assert "headrace replaces it (restart 1 of 3)" in texts[0]
        assert (f"with exit code {how[-1]}" if how.startswith("exit") else "is killed by signal") in texts[0]


@BOTH
@pytest.mark.parametrize("method", SLOW_METHODS)
@pytest.mark.parametrize("name", ["map", "resumed"])
def test_it_is_replaced_with_every_start_method(kind: Any, method: str, name: str, marks: Marks) -> None:
    loader = load(kind, DATASETS[name](Plan(marks, {7: ["SIGKILL"]})), multiprocessing_context=method)
    with told() as texts:
        assert epoch(loader) == undisturbed(kind, name)
    assert len(texts) == 1
    assert loader.report()["restarts"] == 1


@BOTH
@pytest.mark.parametrize("name", DATASETS)
def test_a_worker_may_be_killed_from_outside_while_the_loop_waits(kind: Any, name: str, marks: Marks) -> None:
    plan = Plan(marks, {8: ["wait"], 5: ["kill 8"]} if name in ("map", "getitems") else {8: ["wait"], 5: ["kill 8"]})
    loader = load(kind, DATASETS[name](plan))
    with told() as texts:
        assert epoch(loader) == undisturbed(kind, name)
    assert len(texts) == 1


@BOTH
@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("in_order", [True, False])
def test_idle_workers_may_be_killed_together(kind: Any, name: str, in_order: bool, marks: Marks) -> None:
    """All that was prefetched is published when they die, and is delivered."""
    loader = load(kind, DATASETS[name](Plan(marks)), num_workers=3, in_order=in_order, prefetch_factor=2)
    iterator = iter(loader)
    batches = [mishaps.plain(next(iterator))]
    before = loader.report()["per_worker"]
    assert until(lambda: sum(one["batches"] for one in loader.report()["per_worker"]) == 7)
    kill(*(one["pid"] for one in before))
    with told() as texts:
        batches += [mishaps.plain(batch) for batch in iterator]
    expected = undisturbed(kind, name, num_workers=3)
    assert in_some_order(batches) == in_some_order(expected)
    assert batches == expected or not in_order
    assert len(texts) == loader.report()["restarts"] == 3


@BOTH
@pytest.mark.parametrize("name", DATASETS)
def test_two_workers_may_be_killed_at_once(kind: Any, name: str, marks: Marks) -> None:
    is_map = name in ("map", "getitems")
    events = {0: ["wait"], 3: ["wait"], 6: ["kill 0 3"]} if is_map else {0: ["wait"], 1: ["wait"], 2: ["kill 0 1"]}
    loader = load(kind, DATASETS[name](Plan(marks, events)), num_workers=3)
    with told() as texts:
        assert epoch(loader) == undisturbed(kind, name, num_workers=3)
    assert len(texts) == loader.report()["restarts"] == 2


@BOTH
@pytest.mark.parametrize("name", DATASETS)
def test_the_only_worker_and_its_successors_may_die(kind: Any, name: str, marks: Marks) -> None:
    plan = Plan(marks, {0: ["SIGKILL"], 3: ["exit 0"], COUNT - 1: ["SIGKILL"]})
    loader = load(kind, DATASETS[name](plan), num_workers=1)
    with told() as texts:
        assert epoch(loader) == undisturbed(kind, name, num_workers=1)
    assert len(texts) == loader.report()["restarts"] == 3


@BOTH
@pytest.mark.parametrize("name", DATASETS)
def test_persistent_workers_may_be_killed_between_epochs(kind: Any, name: str, marks: Marks) -> None:
    expected = undisturbed(kind, name)
    loader = load(kind, DATASETS[name](Plan(marks)), persistent_workers=True, max_restarts=4)
    assert epoch(loader) == expected
    kill(pids(loader)[0])
    with told() as texts:
        assert epoch(loader) == expected
    assert len(texts) == 1
    kill(*pids(loader))
    assert epoch(loader) == expected
    assert loader.report()["restarts"] == 3
    assert starts(loader) == [3, 2]


@BOTH
@pytest.mark.parametrize("name", DATASETS)
def test_a_worker_may_be_killed_in_an_epoch_that_is_broken_off(kind: Any, name: str, marks: Marks) -> None:
    expected = undisturbed(kind, name)
    loader = load(kind, DATASETS[name](Plan(marks)), persistent_workers=True)
    iterator = iter(loader)
    assert mishaps.plain(next(iterator)) == expected[0]
    kill(pids(loader)[1])
    assert epoch(loader) == expected
    assert loader.report()["restarts"] == 1


@BOTH
@pytest.mark.parametrize("name", ["replayed", "resumed"])
def test_a_worker_that_has_come_to_its_end_may_die_before_the_next_epoch(kind: Any, name: str, marks: Marks) -> None:
    """It is seen to be dead in the old epoch, and its successor begins in the new one."""
    plan = Plan(marks, {COUNT - 3: ["kill 1000"]})
    loader = load(kind, DATASETS[name](plan), persistent_workers=True, batch_size=None)
    expected = undisturbed(kind, name, batch_size=None)
    iterator = iter(loader)
    batches = [mishaps.plain(next(iterator)) for _ in range(4)]
    victim = pids(loader)[1]
    marks.write_pid("waits.1000", victim)  # worker 0 kills it, near the end
    batches += [mishaps.plain(batch) for batch in iterator]
    assert sorted(batches) == sorted(expected)
    assert not alive(victim)
    assert epoch(loader) == expected
    assert loader.report()["restarts"] == 1


class Uneven(Stream):
    """All is worker 0's."""

    def __iter__(self) -> Any:
        if mishaps.share()[0] == 1:
            self.plan.marks.write_pid("waits.1", os.getpid())
            return
        for index in range(self.count):
            self.plan.meet(index)
            yield index


@BOTH
def test_the_end_of_a_worker_without_data_is_no_death(kind: Any, marks: Marks) -> None:
    """Its last answers are there, and not received yet, when it is gone."""
    loader = load(kind, Uneven(COUNT, Plan(marks, {3: ["outlive 1"]})), prefetch_factor=4)
    with told() as texts:
        assert list(itertools.chain(*epoch(loader))) == list(range(COUNT))
    assert texts == []


class Ending(Replayable):
    """Its first worker is killed when it takes a task after it has come to its end."""

    def __iter__(self) -> Any:
        yield from super().__iter__()
        if self.plan.marks.first("ending"):
            os.environ["HEADRACE_STOP"] = "port.taken:9"


@needs_failpoints
@BOTH
def test_a_worker_that_has_come_to_its_end_may_die_while_it_owes_answers(kind: Any, marks: Marks) -> None:
    loader = load(kind, Ending(COUNT, Plan(marks)), prefetch_factor=4)
    assert epoch(loader) == undisturbed(kind, "replayed")


class Start:
    """A worker_init_fn that dies in the first process of some workers."""

    def __init__(self, marks: Marks, *workers: int) -> None:
        self.marks = marks
        self.workers = workers

    def __call__(self, worker: int) -> None:
        if worker in self.workers and self.marks.first(f"start.{worker}"):
            mishaps.die("SIGKILL")


@BOTH
@pytest.mark.parametrize("name", DATASETS)
def test_workers_may_die_while_they_start(kind: Any, name: str, marks: Marks) -> None:
    loader = load(kind, DATASETS[name](Plan(marks)), worker_init_fn=Start(marks, 0, 1))
    with told() as texts:
        assert epoch(loader) == undisturbed(kind, name)
    assert len(texts) == loader.report()["restarts"] == 2


class DiesUnpickled(Numbers):
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.plan.marks.first("unpickled"):
            mishaps.die("exit 3")


@pytest.mark.parametrize("method", SLOW_METHODS)
def test_a_worker_may_die_before_it_has_its_data_set(method: str, marks: Marks) -> None:
    dataset = DiesUnpickled(COUNT, Plan(marks))
    loader = load(headrace.Loader, dataset, multiprocessing_context=method)
    with told() as texts:
        assert epoch(loader) == undisturbed(headrace.Loader, "map")
    assert len(texts) == 1
    assert "exit code 3" in texts[0]


def test_headrace_loader_replaces_three_workers_where_nothing_is_said(marks: Marks) -> None:
    plan = Plan(marks, {2: ["SIGKILL"], 9: ["exit 1"], 30: ["SIGSEGV"]})
    loader = headrace.Loader(Numbers(COUNT, plan), 3, num_workers=2, multiprocessing_context="fork")
    assert epoch(loader) == undisturbed(headrace.Loader, "map")
    assert loader.report()["restarts"] == 3


def test_nothing_of_it_needs_torch(tmp_path: pathlib.Path) -> None:
    code = """
import pathlib, sys, warnings
sys.modules["torch"] = None
import headrace, mishaps
warnings.simplefilter("ignore")
marks = mishaps.Marks(pathlib.Path.cwd())
plan = mishaps.Plan(marks, {7: ["SIGKILL"]})
options = {"batch_size": 3, "num_workers": 2, "seed": 5, "multiprocessing_context": "fork"}
loader = headrace.Loader(mishaps.Random(41, plan), rng="sample", on_bad_sample="skip", **options)
other = headrace.Loader(mishaps.Random(41, mishaps.Plan(marks)), rng="sample", **{**options, "num_workers": 3})
assert mishaps.epoch(loader) == mishaps.epoch(other)
assert len(mishaps.epoch(headrace.Loader(mishaps.Resumable(41, mishaps.Plan(marks, {9: ["exit 3"]})), **options))) == 14
print(loader.report()["restarts"])
"""
    assert run(tmp_path, code).split() == ["1"]


# ---- where no worker takes a dead one's place ----


@BOTH
@pytest.mark.parametrize("name", DATASETS)
def test_a_death_raises_once_the_restarts_are_used_up(kind: Any, name: str, marks: Marks) -> None:
    loader = load(kind, DATASETS[name](Plan(marks, {0: ["SIGKILL"], 1: ["SIGKILL"], 4: ["exit 3"]})), max_restarts=2)
    with pytest.raises(RuntimeError, match="^DataLoader worker") as caught:
        epoch(loader)
    assert "max_restarts=2 are used up" in str(caught.value)
    assert loader.report()["restarts"] == 2


@pytest.mark.parametrize("name", DATASETS)
def test_without_restarts_a_death_raises_as_with_torch(name: str, marks: Marks) -> None:
    loader = load(headrace.torch.DataLoader, DATASETS[name](Plan(marks, {7: ["SIGKILL"]})), max_restarts=0)
    with (
        told() as texts,
        pytest.raises(RuntimeError, match=r"^DataLoader worker \(pid \d+\) is killed by signal: Killed"),
    ):
        epoch(loader)
    assert texts == []
    assert loader.report()["restarts"] == 0


@BOTH
@pytest.mark.parametrize("max_restarts", [0, 3])
@pytest.mark.parametrize("at", [4, COUNT - 1])
def test_an_iterable_data_set_that_nobody_can_continue_raises(
    kind: Any, max_restarts: int, at: int, marks: Marks
) -> None:
    loader = load(kind, Stream(COUNT, Plan(marks, {at: ["SIGKILL"]})), max_restarts=max_restarts)
    with told() as texts, pytest.raises(RuntimeError, match=r"^DataLoader worker \(pid \d+\) is killed") as caught:
        epoch(loader)
    assert texts == []
    if max_restarts:
        assert re.search("state_dict and load_state_dict.*replayable", str(caught.value))


# ---- a sample that kills its worker twice ----


@BOTH
@pytest.mark.parametrize("name", ["map", "getitems"])
@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("policy", ["raise", "skip", "refill"])
def test_a_sample_that_kills_its_worker_twice_is_not_tried_again(
    kind: Any, name: str, batch_size: int | None, policy: str, marks: Marks
) -> None:
    plan = Plan(marks, {7: ["SIGKILL", "SIGSEGV", "exit 3"]})
    loader = load(kind, DATASETS[name](plan), batch_size=batch_size, on_bad_sample=policy, seed=1)
    batches, errors = [], []
    with told() as texts:
        iterator = iter(loader)
        for _ in range(COUNT + 1):
            try:
                batches.append(mishaps.plain(next(iterator)))
            except StopIteration:
                break
            except RuntimeError as error:
                errors.append(error)
    assert not marks.has("7.2"), "it was tried a third time"
    assert loader.report()["restarts"] == 2
    is_whole = name == "getitems" and batch_size and policy == "raise"
    what = "batch 2, of [6, 7, 8]," if is_whole else "sample 7"
    assert f"making {what} killed its worker 2 times: it is not tried again" in texts[1]
    expected = undisturbed(kind, name, batch_size=batch_size)
    assert len(batches) + len(errors) == len(expected)
    if policy == "raise":
        assert len(errors) == 1
        assert f"making {what} killed its worker 2 times" in str(errors[0])
        assert batches == [batch for batch in expected if batch not in ([6, 7, 8], 7)]
        return
    assert errors == []
    (bad,) = loader.report()["bad_samples"]
    assert (bad.index, bad.error) == (7, "SampleKilledWorker: making sample 7 killed its worker 2 times")
    assert "headrace: 1 bad sample in this epoch:\n  7 (worker " in texts[2]
    changed = [(got, want) for got, want in zip(batches, expected, strict=True) if got != want]
    if policy == "skip" and batch_size:
        assert changed == [([6, 8], [6, 7, 8])]
    elif batch_size:
        ((got, want),) = changed
        assert (got[0], got[2], want) == (6, 8, [6, 7, 8])
        assert 0 <= got[1] < COUNT
    else:
        assert all(want == 7 for _, want in changed)


@BOTH
def test_it_is_not_tried_again_in_a_later_epoch_either(kind: Any, marks: Marks) -> None:
    plan = Plan(marks, {7: ["SIGKILL", "SIGKILL", "SIGKILL"]})
    loader = load(kind, Numbers(COUNT, plan), persistent_workers=True, on_bad_sample="skip", shuffle=True, seed=1)
    epochs = [epoch(loader) for _ in range(4)]
    assert not marks.has("7.2"), "it was tried a third time"
    for batches in epochs:
        assert sorted(itertools.chain(*batches)) == [i for i in range(COUNT) if i != 7]
        assert len(batches) == len(loader)


@BOTH
def test_samples_that_their_worker_died_beside_are_made(kind: Any, marks: Marks) -> None:
    """Each dies at a sample of its own, in the same batch: none is given up."""
    plan = Plan(marks, {6: ["SIGKILL"], 7: ["SIGKILL"], 8: ["SIGKILL"]})
    loader = load(kind, Numbers(COUNT, plan))
    assert epoch(loader) == undisturbed(kind, "map")
    assert loader.report()["restarts"] == 3


class OutsideTheDataSet:
    """A collate function that dies, twice."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def __call__(self, samples: list[Any]) -> list[Any]:
        if 7 in samples and (self.marks.first("collate.0") or self.marks.first("collate.1")):
            mishaps.die("SIGKILL")
        return samples


@BOTH
@pytest.mark.parametrize("name", ["map", "replayed", "resumed"])
def test_a_collate_function_may_die_as_often_as_restarts_allow(kind: Any, name: str, marks: Marks) -> None:
    loader = load(kind, DATASETS[name](Plan(marks)), collate_fn=OutsideTheDataSet(marks))
    assert epoch(loader) == undisturbed(kind, name)
    assert loader.report()["restarts"] == 2


@needs_failpoints
@BOTH
def test_a_death_before_a_worker_has_begun_is_not_its_samples(kind: Any, marks: Marks) -> None:
    """The second process dies with the first one's sample still in its record."""

    def arm() -> None:
        if marks.has("7.0") and marks.first("armed"):
            os.environ["HEADRACE_STOP"] = "port.pid:9"

    os.register_at_fork(after_in_child=arm)
    loader = load(kind, Numbers(COUNT, Plan(marks, {7: ["SIGKILL"]})))
    with told() as texts:
        assert epoch(loader) == undisturbed(kind, "map")
    assert loader.report()["restarts"] == 2
    assert not any("not tried again" in text for text in texts)


# ---- iterable data sets ----


class Counting(Resumable):
    """Marks how often each sample was made."""

    def __iter__(self) -> Any:
        for index in super().__iter__():
            made = next(number for number in itertools.count() if self.plan.marks.first(f"made.{index}.{number}"))
            assert made < 5
            yield index


@BOTH
def test_a_resumed_data_set_makes_only_what_was_not_delivered(kind: Any, marks: Marks) -> None:
    loader = load(kind, Counting(COUNT, Plan(marks, {30: ["SIGKILL"]})), num_workers=1, prefetch_factor=1)
    assert epoch(loader) == undisturbed(kind, "resumed", num_workers=1)
    assert not any(marks.has(f"made.{index}.1") for index in range(24)), "replayed from its start"


def publish_and_die(loader: Any, marks: Marks, prefetch: int, delivered: int) -> list[Any]:
    """Worker 1 publishes all its tasks and is killed while the loop waits for worker 0, which does it (see DIES)."""
    iterator = iter(loader)
    batches = [mishaps.plain(next(iterator)) for _ in range(delivered)]
    victim = loader.report()["per_worker"][1]["pid"]
    assert until(lambda: loader.report()["per_worker"][1]["batches"] == delivered // 2 + prefetch)
    marks.write_pid("waits.1000", victim)
    return batches + [mishaps.plain(batch) for batch in iterator]


DIES = pytest.mark.parametrize(("delivered", "events"), [(0, {0: ["kill 1000"]}), (2, {6: ["kill 1000"]})])


@DIES
@BOTH
@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_what_a_dead_worker_had_published_is_delivered_and_not_made_twice(
    kind: Any, name: str, prefetch: int, delivered: int, events: Any, marks: Marks
) -> None:
    loader = load(kind, DATASETS[name](Plan(marks, events)), prefetch_factor=prefetch)
    assert publish_and_die(loader, marks, prefetch, delivered) == undisturbed(kind, name)
    assert loader.report()["restarts"] == 1


class WrongState(Resumable):
    def load_state_dict(self, state: dict[str, int]) -> None:
        raise ValueError(f"this state is wrong: {state['given']}")


@BOTH
@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_state_that_cannot_be_loaded_raises(kind: Any, prefetch: int, marks: Marks) -> None:
    loader = load(kind, WrongState(COUNT, Plan(marks, {6: ["kill 1000"]})), prefetch_factor=prefetch)
    with pytest.raises(ValueError, match="this state is wrong: 3"):
        publish_and_die(loader, marks, prefetch, 2)


class NoState(Resumable):
    def state_dict(self) -> dict[str, int]:
        raise ValueError("there is no state")


@BOTH
def test_a_state_that_cannot_be_had_raises(kind: Any, marks: Marks) -> None:
    with pytest.raises(ValueError, match="there is no state"):
        epoch(load(kind, NoState(COUNT, Plan(marks))))
    assert epoch(load(kind, NoState(COUNT, Plan(marks)), max_restarts=0)), "nobody asks for it"


class Stumbles(Resumable):
    """Raises in the middle, once in each pass."""

    def __iter__(self) -> Any:
        self.inner = super().__iter__()
        return self

    def __next__(self) -> int:
        index = next(self.inner)
        if index == 5:
            raise KeyError("five")
        return int(index)


@BOTH
def test_an_exception_that_was_delivered_is_not_delivered_again(kind: Any, marks: Marks) -> None:
    loader = load(kind, Stumbles(12, Plan(marks, {7: ["SIGKILL"]})), num_workers=1, batch_size=1, prefetch_factor=1)
    iterator, events = iter(loader), []
    while True:
        try:
            events += mishaps.plain(next(iterator))
        except StopIteration:
            break
        except KeyError:
            events.append("KeyError")
    assert events == [0, 1, 2, 3, 4, "KeyError", *range(6, 12)]


# ---- random numbers by sample ----


def numbers(kind: Any, marks: Marks, events: dict[int, list[str]] | None = None, **options: Any) -> Any:
    return load(kind, Random(COUNT, Plan(marks, events or {})), rng="sample", **{"seed": 5, **options})


@BOTH
@pytest.mark.parametrize("batch_size", [3, None])
def test_random_numbers_are_the_same_with_any_number_of_workers_and_deaths(
    kind: Any, batch_size: int | None, marks: Marks
) -> None:
    expected = epoch(numbers(kind, marks, num_workers=1, batch_size=batch_size))
    for workers in (2, 3):
        assert epoch(numbers(kind, marks, num_workers=workers, batch_size=batch_size)) == expected
    disturbed = numbers(kind, marks, {2: ["SIGKILL"], 19: ["exit 3"], 40: ["SIGSEGV"]}, batch_size=batch_size)
    assert epoch(disturbed) == expected
    assert disturbed.report()["restarts"] == 3


@BOTH
@pytest.mark.parametrize("method", SLOW_METHODS)
def test_random_numbers_are_the_same_with_every_start_method(kind: Any, method: str, marks: Marks) -> None:
    disturbed = numbers(kind, marks, {2: ["SIGKILL"]}, multiprocessing_context=method)
    assert epoch(disturbed) == epoch(numbers(kind, marks))


@BOTH
def test_random_numbers_differ_between_samples_epochs_and_seeds(kind: Any, marks: Marks) -> None:
    loader = numbers(kind, marks, batch_size=None)
    drawn = [sample[1:] for _ in range(3) for sample in epoch(loader)]
    drawn += [sample[1:] for sample in epoch(numbers(kind, marks, batch_size=None, seed=6))]
    for generator in zip(*drawn, strict=True):
        assert len(set(generator)) == len(drawn)
    assert len(drawn[0]) == 3


@BOTH
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_are_counted_and_can_be_set(kind: Any, persistent: bool, marks: Marks) -> None:
    loader = numbers(kind, marks, persistent_workers=persistent)
    epochs = [epoch(loader) for _ in range(3)]
    assert len({repr(one) for one in epochs}) == 3
    loader.set_epoch(1)
    assert [epoch(loader), epoch(loader)] == epochs[1:]
    later = numbers(kind, marks, {9: ["SIGKILL"]}, persistent_workers=persistent)
    later.set_epoch(np.int64(2))
    assert epoch(later) == epochs[2]


@BOTH
def test_random_numbers_of_a_later_epoch_survive_a_death(kind: Any, marks: Marks) -> None:
    loader = numbers(kind, marks, persistent_workers=True)
    expected = [epoch(loader) for _ in range(3)]
    disturbed = numbers(kind, marks, persistent_workers=True)
    assert epoch(disturbed) == expected[0]
    kill(*pids(disturbed))
    assert [epoch(disturbed), epoch(disturbed)] == expected[1:]


def test_the_seed_is_torchs_where_none_is_given(marks: Marks) -> None:
    def first_epoch(generator: int) -> Any:
        drawn = torch.Generator()
        drawn.manual_seed(generator)
        return epoch(numbers(headrace.torch.DataLoader, marks, seed=None, generator=drawn))

    assert first_epoch(1) == first_epoch(1)
    assert first_epoch(1) != first_epoch(2)


@BOTH
def test_a_seed_may_be_numpys(kind: Any, marks: Marks) -> None:
    assert epoch(numbers(kind, marks, seed=np.int64(5))) == epoch(numbers(kind, marks, seed=5))


@BOTH
def test_the_order_of_samples_does_not_matter(kind: Any, marks: Marks) -> None:
    batches = [[40, 3], [2, 39, 3]]
    loader = numbers(kind, marks, batch_sampler=batches, batch_size=1)
    samples = {sample[0]: sample for sample in epoch(numbers(kind, marks, batch_size=None))}
    assert [list(zip(*batch, strict=True)) for batch in epoch(loader)] == [
        [tuple(samples[index]) for index in batch] for batch in batches
    ]


def test_the_trainers_own_random_numbers_are_left_alone(marks: Marks) -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    state = random.getstate(), np.random.get_state()[1].tolist()
    epoch(numbers(headrace.torch.DataLoader, marks))
    epoch(numbers(headrace.Loader, marks))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == state


# ---- bad samples ----


class Decides:
    """An on_bad_sample that looks at the index."""

    def __init__(self, words: dict[int, Any]) -> None:
        self.words = words

    def __call__(self, index: int, error: Exception) -> Any:
        assert str(error) == repr(f"sample {index} is bad")
        word = self.words[index]
        if isinstance(word, Exception):
            raise word
        return word


BAD = (4, 20, 21, 22)  # with batches of 3: one of a batch, and two and one of two


def bad(kind: Any, marks: Marks, policy: Any, bad: tuple[int, ...] = BAD, **options: Any) -> Any:
    return load(kind, Bad(COUNT, Plan(marks), bad), on_bad_sample=policy, **{"seed": 3, **options})


@BOTH
@pytest.mark.parametrize("collate", [None, as_sum])
def test_skip_makes_a_batch_smaller(kind: Any, collate: Any, marks: Marks) -> None:
    loader = bad(kind, marks, "skip", collate_fn=collate)
    expected = [[i for i in range(at, min(at + 3, COUNT)) if i not in BAD] for at in range(0, COUNT, 3)]
    with told() as texts:
        assert epoch(loader) == (expected if collate is None else [*map(as_sum, expected)])
    assert len(expected) == len(loader)
    assert sorted(one.index for one in loader.report()["bad_samples"]) == list(BAD)
    (text,) = texts
    assert text.startswith("headrace: 4 bad samples in this epoch:\n")
    assert re.search(r"\n  20 \(worker \d\): KeyError: 'sample 20 is bad'", text)


@BOTH
@pytest.mark.parametrize("batch_size", [3, None])
def test_refill_puts_another_sample_in_its_place(kind: Any, batch_size: int | None, marks: Marks) -> None:
    loader = bad(kind, marks, "refill", batch_size=batch_size)
    batches = epoch(loader)
    samples = list(itertools.chain(*batches)) if batch_size else batches
    assert len(samples) == COUNT
    assert [i for i, sample in enumerate(samples) if sample != i] == list(BAD)
    assert not set(samples) & set(BAD)
    assert epoch(bad(kind, marks, "refill", batch_size=batch_size, num_workers=3)) == batches
    assert epoch(bad(kind, marks, "refill", batch_size=batch_size, seed=4)) != batches
    assert epoch(loader) != batches, "another epoch, other refills"
    loader.set_epoch(0)
    assert epoch(loader) == batches


@BOTH
def test_a_function_decides_for_each_sample(kind: Any, marks: Marks) -> None:
    loader = bad(kind, marks, Decides({4: "skip", 20: "refill", 21: "skip", 22: "skip"}))
    batches = epoch(loader)
    assert (batches[1], batches[7]) == ([3, 5], [23])
    assert len(batches[6]) == 3
    assert batches[6][:2] == [18, 19]
    loader = bad(kind, marks, Decides(dict.fromkeys(BAD, "raise")))
    with pytest.raises(KeyError, match="sample 4 is bad"):
        epoch(loader)


@BOTH
@pytest.mark.parametrize("word", ["skp", None, 3, ["skip"]])
def test_a_function_that_gives_another_word_raises(kind: Any, word: Any, marks: Marks) -> None:
    with pytest.raises(ValueError, match="on_bad_sample should give .* not .*, for sample 4") as caught:
        epoch(bad(kind, marks, Decides({4: word})))
    assert repr(word) in str(caught.value)


@BOTH
def test_what_the_function_raises_is_raised(kind: Any, marks: Marks) -> None:
    with pytest.raises(ZeroDivisionError, match="in on_bad_sample") as caught:
        epoch(bad(kind, marks, Decides({4: ZeroDivisionError("in on_bad_sample")})))
    assert "sample 4 is bad" in str(caught.value), "why it was called"


@BOTH
def test_a_batch_of_bad_samples_only_gets_a_good_one(kind: Any, marks: Marks) -> None:
    loader = bad(kind, marks, "skip", bad=(6, 7, 8, 40))
    with told() as texts:
        batches = epoch(loader)
    assert len(batches) == len(loader)
    assert len(batches[2]) == 1
    assert batches[2][0] not in (6, 7, 8, 40)
    assert batches[13] == [39]
    assert "headrace: 4 bad samples" in texts[0]
    assert epoch(bad(kind, marks, "skip", bad=(6, 7, 8, 40), num_workers=3)) == batches


@BOTH
@pytest.mark.parametrize("policy", ["skip", "refill"])
def test_a_data_set_of_bad_samples_only_raises(kind: Any, policy: str, marks: Marks) -> None:
    with pytest.raises(RuntimeError, match="sample 0 is bad, and so are 10 others that were tried in its place"):
        epoch(bad(kind, marks, policy, bad=tuple(range(COUNT))))


@BOTH
def test_many_bad_samples_are_cut_short_in_the_warning_only(kind: Any, marks: Marks) -> None:
    loader = bad(kind, marks, "skip", bad=tuple(range(0, 38, 2)))
    with told() as texts:
        epoch(loader)
    assert "and 9 more: see report()['bad_samples']" in texts[0]
    assert len(texts[0].splitlines()) == 12
    assert len(loader.report()["bad_samples"]) == 19


@BOTH
@pytest.mark.parametrize("persistent", [False, True])
def test_bad_samples_are_those_of_this_epoch(kind: Any, persistent: bool, marks: Marks) -> None:
    loader = bad(kind, marks, "skip", persistent_workers=persistent)
    for _ in range(2):
        with told() as texts:
            epoch(loader)
        assert len(texts) == 1
        assert len(loader.report()["bad_samples"]) == len(BAD)


@BOTH
def test_bad_samples_and_deaths_go_together(kind: Any, marks: Marks) -> None:
    dataset = Bad(COUNT, Plan(marks, {3: ["SIGKILL"], 23: ["SIGKILL"]}), BAD)
    loader = load(kind, dataset, on_bad_sample="refill", seed=3)
    other = bad(kind, marks, "refill")
    assert epoch(loader) == epoch(other)
    assert loader.report()["restarts"] == 2
    both = [[(one.index, one.error) for one in one.report()["bad_samples"]] for one in (loader, other)]
    assert both[0] == both[1]
    assert {index for index, _ in both[0]} == set(BAD)


class NoLength:
    def __getitem__(self, index: int) -> int:
        raise KeyError(index)


@BOTH
def test_refilling_needs_a_length(kind: Any) -> None:
    loader = load(kind, NoLength(), batch_sampler=[[1, 2]], batch_size=1, on_bad_sample="refill")
    with pytest.raises(TypeError, match="sample 1 is bad, and no other can take its place: the data set has no length"):
        epoch(loader)


# ---- options ----


@BOTH
@pytest.mark.parametrize("options", [{"on_bad_sample": "skip"}, {"rng": "sample"}, {"on_bad_sample": as_sum}])
def test_options_for_samples_need_a_data_set_with_indices(kind: Any, options: dict[str, Any], marks: Marks) -> None:
    for dataset in (Stream(COUNT, Plan(marks)), Resumable(COUNT, Plan(marks))):
        with pytest.raises(ValueError, match='rng="sample" and on_bad_sample need a data set with __getitem__'):
            load(kind, dataset, **options)


WRONG = [
    ("max_restarts", -1, ValueError),
    ("max_restarts", "2", TypeError),
    ("max_restarts", True, TypeError),
    ("max_restarts", None, TypeError),
    ("max_restarts", 1.5, TypeError),
    ("rng", "samples", ValueError),
    ("rng", None, ValueError),
    ("seed", "5", TypeError),
    ("seed", 1.5, TypeError),
    ("seed", True, TypeError),
    ("seed", -1, ValueError),
    ("on_bad_sample", "ignore", ValueError),
    ("on_bad_sample", None, ValueError),
    ("stall_after", 0, ValueError),
    ("stall_after", "30", TypeError),
    ("stall_after", float("nan"), ValueError),
    ("on_stall", "kill", ValueError),
    ("shutdown_timeout", 0, ValueError),
    ("shutdown_timeout", float("inf"), ValueError),
    ("shutdown_timeout", [5], TypeError),
]


@BOTH
@pytest.mark.parametrize(("name", "value", "error"), WRONG)
def test_a_wrong_option_is_refused_by_name(kind: Any, name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{name} should ") as caught:
        load(kind, [1, 2], **{name: value})
    assert repr(value) in str(caught.value)


@BOTH
def test_an_epoch_that_is_no_number_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError):
        load(kind, [1, 2]).set_epoch("1")


@BOTH
def test_options_survive_copies_and_pickle(kind: Any, marks: Marks) -> None:
    plan = Plan(marks, {7: ["SIGKILL", "SIGKILL"]})
    options = {
        "max_restarts": 2,
        "rng": "sample",
        "seed": 5,
        "on_bad_sample": "skip",
        "stall_after": 20.0,
        "on_stall": "raise",
        "shutdown_timeout": 4.0,
    }
    loader = load(kind, Random(COUNT, plan), **options)
    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert {name: getattr(other, name) for name in options} == options
    expected = epoch(load(kind, Bad(COUNT, Plan(marks), (7,)), **options))
    got = epoch(pickle.loads(pickle.dumps(loader)))
    assert [batch[0] for batch in got] == expected


def test_what_a_function_cannot_be_pickled_is_named() -> None:
    loader = load(headrace.torch.DataLoader, [1, 2], multiprocessing_context="spawn", on_bad_sample=lambda *_: "skip")
    with pytest.raises(Exception, match="lambda") as caught:
        epoch(loader)
    assert any("on_bad_sample" in note for note in caught.value.__notes__)


class OfItsOwn(torch.utils.data.DataLoader[Any]):
    """A user's subclass of torch's loader, with attributes that happen to have the names of options."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rng = random.Random(3)
        self.seed = "a word"
        self.max_restarts = "many"


@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, OfItsOwn])
def test_torchs_loaders_get_the_defaults_by_install(kind: Any, marks: Marks) -> None:
    options = {"batch_size": 3, "num_workers": 2, "multiprocessing_context": "fork"}
    with headrace.torch.installed():
        assert epoch(kind(Numbers(COUNT, Plan(marks)), **options)) == undisturbed(headrace.torch.DataLoader, "map")
        with pytest.raises(RuntimeError, match="max_restarts=N lets headrace replace"):
            epoch(kind(Numbers(COUNT, Plan(marks, {7: ["SIGKILL"]})), **options))


@BOTH
def test_an_option_may_be_set_for_the_next_iteration(kind: Any, marks: Marks) -> None:
    loader = load(kind, Numbers(COUNT, Plan(marks, {7: ["SIGKILL"], 9: ["SIGKILL"]})), max_restarts=0)
    with pytest.raises(RuntimeError, match="killed by signal"):
        epoch(loader)
    loader.max_restarts = 1
    assert epoch(loader) == undisturbed(kind, "map")
    loader.max_restarts = -1
    with pytest.raises(ValueError, match="max_restarts"):
        epoch(loader)


# ---- reports ----


@BOTH
def test_reports_count_restarts_and_starts(kind: Any, marks: Marks) -> None:
    loader = load(kind, Numbers(COUNT, Plan(marks, {4: ["SIGKILL"]})), persistent_workers=True)
    with pytest.raises(RuntimeError, match="no report before the first iteration"):
        loader.report()
    iterator = iter(loader)
    list(iterator)
    for report in (loader.report(), iterator.report()):
        assert report["restarts"] == 1
        assert report["bad_samples"] == []
        assert [one["starts"] for one in report["per_worker"]] == [1, 2]
        assert [one["is_alive"] for one in report["per_worker"]] == [True, True]
        assert sum(one["batches"] for one in report["per_worker"]) == report["batches"] == 14
        assert len({one["pid"] for one in report["per_worker"]} - {os.getpid()}) == 2
        for one in report["per_worker"]:
            assert min(one["waiting_s"], one["fetching_s"], one["collating_s"]) >= 0


@BOTH
def test_a_report_stays_after_the_end(kind: Any, marks: Marks) -> None:
    loader = load(kind, Numbers(COUNT, Plan(marks, {4: ["SIGKILL"]})))
    iterator = iter(loader)
    list(iterator)
    assert loader.report() == iterator.report()
    assert (loader.report()["restarts"], loader.report()["batches"]) == (1, 14)


def test_an_own_context_starts_the_successors_too(marks: Marks) -> None:
    context = multiprocessing.get_context("fork")
    loader = load(headrace.Loader, Numbers(COUNT, Plan(marks, {7: ["SIGKILL"]})), multiprocessing_context=context)
    assert epoch(loader) == undisturbed(headrace.Loader, "map")
