# SPDX-License-Identifier: Apache-2.0
"""Workers that die and are replaced: the epoch is exact."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import headrace
import headrace.torch
import mishaps
import numpy as np
import pytest
from disturbed import BOTH, COUNT, DATASETS, SLOW_METHODS, as_sum, in_some_order, load, pids, starts, undisturbed
from headrace._loader.trainer import crew as _crew
from loaders import needs_failpoints, only_headrace
from mishaps import Marks, Numbers, Plan, Replayable, Resumable, Stream, collected_warnings, epoch, kill
from processes import alive, run, until

pytestmark = only_headrace

DEATHS = ("SIGKILL", "SIGSEGV", "exit 0", "exit 3")
IN_SOAK = "HEADRACE_SOAK" in os.environ  # `make soak` tries every death in every way


# ---- a worker dies, and the epoch is exact ----


WAYS: list[dict[str, Any]] = [
    {"at": 2},
    {"at": 40, "in_order": False},
    {"at": 19, "batch_size": None},
    {"at": 19, "batch_size": None, "persistent_workers": True, "in_order": False},
    {"at": 20, "collate_fn": as_sum, "persistent_workers": True},
    {"at": 7, "prefetch_factor": 5, "num_workers": 3, "persistent_workers": True},
]


@pytest.mark.parametrize(
    ("kind", "how"),
    # Both loaders read with the same code how a worker has died.
    [(headrace.torch.DataLoader, how) for how in DEATHS]
    + [(headrace.Loader, how) for how in (DEATHS if IN_SOAK else DEATHS[:1])],
)
@pytest.mark.parametrize("name", DATASETS)
def test_worker_that_dies_in_dataset_is_replaced_without_loss(
    kind: Any, name: str, how: str, tmp_path: pathlib.Path
) -> None:
    ways = WAYS if how == "SIGKILL" or IN_SOAK else WAYS[:2]
    for number, way in enumerate(ways):
        (folder := tmp_path / str(number)).mkdir()
        options = dict(way)
        loader = load(kind, DATASETS[name](Plan(Marks(folder), {options.pop("at"): [how]})), **options)
        with collected_warnings() as texts:
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
def test_dead_worker_is_replaced_with_every_start_method(kind: Any, method: str, name: str, marks: Marks) -> None:
    loader = load(kind, DATASETS[name](Plan(marks, {7: ["SIGKILL"]})), multiprocessing_context=method)
    with collected_warnings() as texts:
        assert epoch(loader) == undisturbed(kind, name)
    assert len(texts) == 1
    assert loader.report()["restarts"] == 1


@BOTH
@pytest.mark.parametrize("name", DATASETS)
def test_worker_may_be_killed_while_the_loop_waits(kind: Any, name: str, marks: Marks) -> None:
    plan = Plan(marks, {8: ["wait"], 5: ["kill 8"]})
    loader = load(kind, DATASETS[name](plan))
    with collected_warnings() as texts:
        assert epoch(loader) == undisturbed(kind, name)
    assert len(texts) == 1


@BOTH
@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("in_order", [True, False])
def test_idle_workers_may_be_killed_together(kind: Any, name: str, in_order: bool, marks: Marks) -> None:
    """The prefetched batches are published when the workers die, and are delivered."""
    loader = load(kind, DATASETS[name](Plan(marks)), num_workers=3, in_order=in_order, prefetch_factor=2)
    iterator = iter(loader)
    batches = [mishaps.plain(next(iterator))]
    before = loader.report()["per_worker"]
    assert until(lambda: sum(one["batches"] for one in loader.report()["per_worker"]) == 7, mishaps.DEADLINE_S)
    kill(*(one["pid"] for one in before))
    with collected_warnings() as texts:
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
    with collected_warnings() as texts:
        assert epoch(loader) == undisturbed(kind, name, num_workers=3)
    assert len(texts) == loader.report()["restarts"] == 2


@BOTH
@pytest.mark.parametrize("name", DATASETS)
def test_the_only_worker_and_its_successors_may_die(kind: Any, name: str, marks: Marks) -> None:
    plan = Plan(marks, {0: ["SIGKILL"], 3: ["exit 0"], COUNT - 1: ["SIGKILL"]})
    loader = load(kind, DATASETS[name](plan), num_workers=1)
    with collected_warnings() as texts:
        assert epoch(loader) == undisturbed(kind, name, num_workers=1)
    assert len(texts) == loader.report()["restarts"] == 3


@BOTH
@pytest.mark.parametrize("name", DATASETS)
def test_persistent_workers_may_be_killed_between_epochs(kind: Any, name: str, marks: Marks) -> None:
    expected = undisturbed(kind, name)
    loader = load(kind, DATASETS[name](Plan(marks)), persistent_workers=True, max_restarts=4)
    assert epoch(loader) == expected
    kill(pids(loader)[0])
    with collected_warnings() as texts:
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
@pytest.mark.parametrize(("at", "prefetch"), [(COUNT - 3, 2), (COUNT - 1, 1)])
def test_finished_worker_may_die_before_the_next_epoch(
    kind: Any, name: str, at: int, prefetch: int, marks: Marks
) -> None:
    """Its death is noticed in the old epoch. Its successor, with or without a task, continues in the new one."""
    dataset = DATASETS[name](Plan(marks, {at: ["kill 1000"]}))
    loader = load(kind, dataset, persistent_workers=True, batch_size=None, prefetch_factor=prefetch)
    expected = undisturbed(kind, name, batch_size=None)
    iterator = iter(loader)
    batches = [mishaps.plain(next(iterator)) for _ in range(at)]
    assert until(lambda: loader.report()["per_worker"][1]["batches"] == COUNT // 2 + 1, mishaps.DEADLINE_S)
    marks.write_pid("waits.1000", pids(loader)[1])  # worker 0 kills it
    batches += [mishaps.plain(batch) for batch in iterator]
    assert batches == expected
    assert epoch(loader) == expected
    assert loader.report()["restarts"] == 1


class Uneven(Stream):
    """The only worker makes all samples."""

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
    with collected_warnings() as texts:
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
def test_finished_worker_may_die_before_it_has_answered(kind: Any, marks: Marks) -> None:
    """A worker that has reached the end of its samples dies while it owes answers."""
    loader = load(kind, Ending(COUNT, Plan(marks)), prefetch_factor=4)
    assert epoch(loader) == undisturbed(kind, "replayed")
    assert loader.report()["restarts"] == 1


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
    with collected_warnings() as texts:
        assert epoch(loader) == undisturbed(kind, name)
    assert len(texts) == loader.report()["restarts"] == 2


class DiesUnpickled(Numbers):
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.plan.marks.first("unpickled"):
            mishaps.die("exit 3")


@pytest.mark.parametrize("method", SLOW_METHODS)
def test_a_worker_may_die_before_it_has_its_dataset(method: str, marks: Marks) -> None:
    dataset = DiesUnpickled(COUNT, Plan(marks))
    loader = load(headrace.Loader, dataset, multiprocessing_context=method)
    with collected_warnings() as texts:
        assert epoch(loader) == undisturbed(headrace.Loader, "map")
    assert len(texts) == 1
    assert "exit code 3" in texts[0]


def test_loader_replaces_three_workers_by_default(marks: Marks) -> None:
    plan = Plan(marks, {2: ["SIGKILL"], 9: ["exit 1"], 30: ["SIGSEGV"]})
    loader = headrace.Loader(Numbers(COUNT, plan), 3, num_workers=2, multiprocessing_context="fork")
    assert epoch(loader) == undisturbed(headrace.Loader, "map")
    assert loader.report()["restarts"] == 3


def test_restarts_do_not_need_torch(tmp_path: pathlib.Path) -> None:
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


class Large(Numbers):
    """Sample 0 is ready once the worker that died at 7 has a successor."""

    def __getitem__(self, index: int) -> Any:
        self.plan.meet(index)
        if index == 7:
            self.plan.marks.first("again")
        if index == 0:
            assert until(lambda: self.plan.marks.has("again"), mishaps.DEADLINE_S)
        return np.full(260_000, index)


@BOTH
def test_batches_of_a_dead_worker_make_room_for_others(kind: Any, marks: Marks) -> None:
    """Three batches of 2 MiB, of 8 that there are, lie about while the one that is due asks for as much."""
    dataset = Large(12, Plan(marks, {7: ["SIGKILL"]}))
    loader = load(kind, dataset, batch_size=None, prefetch_factor=4, arena_limit=8 << 20)
    assert [int(array[0]) for array in loader] == list(range(12))
    assert loader.report()["restarts"] == 1


# ---- a worker that cannot begin ----


class Births:
    """The next `hanging` children that this process forks wait for ever in a fork handler."""

    def __init__(self) -> None:
        self.hanging = 0
        self._lock = threading.Lock()
        os.register_at_fork(after_in_parent=self._count, after_in_child=self._hang)

    def _count(self) -> None:
        self.hanging = max(0, self.hanging - 1)

    def _hang(self) -> None:
        if self.hanging:
            self._lock.acquire()
            self._lock.acquire()


_births = Births()


@pytest.fixture
def births() -> Iterator[Births]:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        pathlib.Path(f"/proc/{sleeper.pid}/syscall").read_text()
    except OSError:
        pytest.skip("/proc does not show here what a worker waits for")
    finally:
        sleeper.kill()
        sleeper.wait()
    yield _births
    _births.hanging = 0


def hung_at_start(iterator: Any) -> Any:
    """The crew of a loader's iterator, once its only worker hangs as it was forked."""
    crew = iterator._engine._crew
    assert until(lambda: crew._core.snapshot(0)["is_deadlocked"], mishaps.DEADLINE_S)
    return crew


@BOTH
@pytest.mark.parametrize("persistent", [False, True])
def test_worker_hung_by_fork_is_replaced_without_counting(
    kind: Any, persistent: bool, births: Births, marks: Marks
) -> None:
    """A worker that hangs in the fork is replaced, and max_restarts does not count it."""
    data = Stream(COUNT, Plan(marks))  # no other worker could continue it
    expected = epoch(load(kind, data))
    loader = load(kind, data, max_restarts=0, persistent_workers=persistent)
    births.hanging = 2
    with collected_warnings() as texts:
        batches = epoch(loader)
        assert loader.report()["restarts"] == 2
        assert epoch(loader) == batches == expected
    assert sorted(re.sub(r"pid \d+", "pid N", text) for text in texts) == [
        f"headrace: worker {worker} (pid N) could not start: when it was forked, another thread of this process held a "
        'lock, and nothing in the worker can release that lock; multiprocessing_context="forkserver" avoids this\n'
        "  headrace replaces it\n  (headrace help fork-unsafe)"
        for worker in (0, 1)
    ]


@BOTH
def test_workers_hung_by_fork_use_up_no_restarts(kind: Any, births: Births, marks: Marks) -> None:
    births.hanging = 1
    loader = load(kind, Numbers(COUNT, Plan(marks, {7: ["SIGKILL"]})), num_workers=1, max_restarts=1)
    with collected_warnings() as texts:
        assert epoch(loader) == undisturbed(kind, "map", num_workers=1)
    assert len(texts) == 2
    assert "headrace replaces it (restart 1 of 1)" in texts[1]


@BOTH
def test_worker_hung_by_fork_is_replaced_while_batches_arrive(kind: Any, births: Births, marks: Marks) -> None:
    births.hanging = 1
    loader = load(kind, Numbers(1 << 30, Plan(marks)), in_order=False)
    with collected_warnings() as texts:
        iterator = iter(loader)
        deadline = time.monotonic() + mishaps.DEADLINE_S
        while not loader.report()["restarts"] and time.monotonic() < deadline:
            next(iterator)
    assert len(texts) == loader.report()["restarts"] == 1


def test_a_worker_is_killed_only_if_it_was_seen_to_hang_twice(births: Births, marks: Marks) -> None:
    births.hanging = 1
    iterator = iter(load(headrace.torch.DataLoader, Numbers(COUNT, Plan(marks)), num_workers=1))
    crew = hung_at_start(iterator)
    pid = crew.processes[0].pid
    crew._next_check_s = time.monotonic() + mishaps.DEADLINE_S
    assert not crew.kill_hung_at_start()  # it is too soon to look at all
    for was_killed in (False, True):
        crew._next_check_s = 0.0
        assert crew.kill_hung_at_start() == was_killed
        assert until(lambda: not alive(pid), mishaps.DEADLINE_S) if was_killed else alive(pid)


@BOTH
def test_a_worker_that_hangs_in_the_dataset_is_left_alone(kind: Any, births: Births, marks: Marks) -> None:
    loader = load(kind, Locked(), num_workers=1, max_restarts=0, stall_after=2.0, on_stall="raise")
    with collected_warnings() as texts, pytest.raises(RuntimeError, match="no batch for"):
        epoch(loader)
    assert texts == []
    assert loader.report()["restarts"] == 0


class Locked:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
        return index


@BOTH
def test_worker_hung_by_fork_does_not_delay_close(kind: Any, births: Births, marks: Marks) -> None:
    births.hanging = 1
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        iterator = iter(load(kind, Numbers(COUNT, Plan(marks)), num_workers=1))
        pid = hung_at_start(iterator).processes[0].pid
        start = time.monotonic()
        del iterator
        assert time.monotonic() - start < 2  # shutdown_timeout is 5 s
        assert not alive(pid)
    finally:
        signal.signal(signal.SIGTERM, before)


@BOTH
def test_a_worker_that_never_begins_is_a_stall_in_the_end(
    kind: Any, births: Births, marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = _crew.Crew.kill_hung_at_start

    def look_once_it_hangs(crew: Any) -> bool:
        assert until(lambda: crew._core.snapshot(0)["is_deadlocked"], mishaps.DEADLINE_S)
        return looks(crew)

    monkeypatch.setattr(_crew.Crew, "kill_hung_at_start", look_once_it_hangs)
    monkeypatch.setattr(_crew, "MAX_HUNG_AT_START", 2)
    births.hanging = 1000
    loader = load(kind, Numbers(COUNT, Plan(marks)), num_workers=1, stall_after=2.0, on_stall="raise")
    with (
        collected_warnings() as texts,
        pytest.raises(RuntimeError, match="it waits for a thread that it does not have") as caught,
    ):
        epoch(loader)
    assert "it has been starting" in str(caught.value)
    assert len(texts) == 2


# ---- where no worker takes a dead one's place ----


@BOTH
@pytest.mark.parametrize("name", DATASETS)
def test_a_death_raises_once_the_restarts_are_used_up(kind: Any, name: str, marks: Marks) -> None:
    # One after the other, because worker 0 makes them all, and each in its own batch: one that kills two workers is
    # given up.
    loader = load(kind, DATASETS[name](Plan(marks, {0: ["SIGKILL"], 6: ["SIGKILL"], 12: ["exit 3"]})), max_restarts=2)
    with pytest.raises(RuntimeError, match=r"^DataLoader worker") as caught:
        epoch(loader)
    assert "the limit max_restarts=2 is reached" in str(caught.value)
    assert loader.report()["restarts"] == 2


@pytest.mark.parametrize("name", DATASETS)
def test_without_restarts_a_death_raises_as_with_torch(name: str, marks: Marks) -> None:
    loader = load(headrace.torch.DataLoader, DATASETS[name](Plan(marks, {7: ["SIGKILL"]})), max_restarts=0)
    with (
        collected_warnings() as texts,
        pytest.raises(RuntimeError, match=r"^DataLoader worker \(pid \d+\) is killed by signal: Killed"),
    ):
        epoch(loader)
    assert texts == []
    assert loader.report()["restarts"] == 0


@BOTH
@pytest.mark.parametrize("max_restarts", [0, 3])
@pytest.mark.parametrize("at", [4, COUNT - 1])
def test_iterable_dataset_without_resume_raises(kind: Any, max_restarts: int, at: int, marks: Marks) -> None:
    loader = load(kind, Stream(COUNT, Plan(marks, {at: ["SIGKILL"]})), max_restarts=max_restarts)
    with (
        collected_warnings() as texts,
        pytest.raises(RuntimeError, match=r"^DataLoader worker \(pid \d+\) is killed") as caught,
    ):
        epoch(loader)
    assert texts == []
    if max_restarts:
        assert re.search("state_dict and load_state_dict.*replayable", str(caught.value))


# ---- iterable datasets ----


class Counting(Resumable):
    """Marks how often each sample was made."""

    def __iter__(self) -> Any:
        for index in super().__iter__():
            made = next(number for number in itertools.count() if self.plan.marks.first(f"made.{index}.{number}"))
            assert made < 5
            yield index


@BOTH
def test_a_resumed_dataset_makes_only_what_was_not_delivered(kind: Any, marks: Marks) -> None:
    loader = load(kind, Counting(COUNT, Plan(marks, {30: ["SIGKILL"]})), num_workers=1, prefetch_factor=1)
    assert epoch(loader) == undisturbed(kind, "resumed", num_workers=1)
    assert not any(marks.has(f"made.{index}.1") for index in range(24)), "replayed from its start"


def publish_and_die(loader: Any, marks: Marks, prefetch: int, delivered: int) -> list[Any]:
    """Worker 1 publishes all its tasks and is killed while the loop waits for worker 0, which does it (see DIES)."""
    iterator = iter(loader)
    batches = [mishaps.plain(next(iterator)) for _ in range(delivered)]
    victim = loader.report()["per_worker"][1]["pid"]
    made = delivered // 2 + prefetch
    assert until(lambda: loader.report()["per_worker"][1]["batches"] == made, mishaps.DEADLINE_S)
    marks.write_pid("waits.1000", victim)
    return batches + [mishaps.plain(batch) for batch in iterator]


DIES = pytest.mark.parametrize(("delivered", "events"), [(0, {0: ["kill 1000"]}), (2, {6: ["kill 1000"]})])


@DIES
@BOTH
@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("prefetch", [1, 5])
def test_batches_of_a_dead_worker_are_delivered_once(
    kind: Any, name: str, prefetch: int, delivered: int, events: Any, marks: Marks
) -> None:
    """Batches that a dead worker had published are delivered, and are not made a second time."""
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
    with pytest.raises(ValueError, match=r"this state is wrong: \d"):
        publish_and_die(loader, marks, prefetch, 2)


class NoState(Resumable):
    def state_dict(self) -> dict[str, int]:
        raise ValueError("there is no state")


@BOTH
def test_a_state_that_cannot_be_had_raises(kind: Any, marks: Marks) -> None:
    with pytest.raises(ValueError, match="there is no state"):
        epoch(load(kind, NoState(COUNT, Plan(marks))))
    assert epoch(load(kind, NoState(COUNT, Plan(marks)), max_restarts=0)), "the state is not asked for"


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
