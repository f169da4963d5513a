# SPDX-License-Identifier: Apache-2.0
"""num_workers="auto": how many workers get tasks changes, and batches, order and random numbers do not."""

from __future__ import annotations

import copy
import enum
import gc
import os
import pathlib
import pickle
import random
import signal
import textwrap
import time
import warnings
from collections.abc import Iterator
from typing import Any

import headrace
import headrace.torch
import numpy as np
import pytest
import torch
from headrace._loader.trainer.tuning import Tuning
from headrace._ranks import worker_count
from loaders import ENGINE, Headrace
from processes import run_python

if not ENGINE:
    pytest.skip("torch's loader has a fixed number of workers", allow_module_level=True)

MOST = 4
COUNT = 120
BATCH = 2
# Before which batch how many workers get tasks.
CHANGES = {0: 2, 3: 1, 4: 4, 9: 3, 10: 4, 20: 1, 21: 2, 40: 4, 58: 1}


class Drawn(torch.utils.data.Dataset[Any]):
    """Each sample draws random numbers."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return np.array([index, random.randrange(10**6), int(np.random.randint(10**6))])


class Seen(Drawn):
    """Each sample has the number of workers that the dataset is told."""

    def __getitem__(self, index: int) -> Any:
        info = headrace.get_worker_info() or torch.utils.data.get_worker_info()
        assert info is not None and type(info.num_workers) is int
        return np.array([index, info.num_workers])


class Slow(Drawn):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        return np.array([index])


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.fixture(autouse=True)
def machine_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to MOST workers are tried, and two are the number by rule."""
    monkeypatch.setattr(worker_count, "_MOST", MOST)
    monkeypatch.setattr(worker_count, "_cores_of_rank", lambda machine: 3)


def torchs(dataset: Any, **options: Any) -> Any:
    return Headrace(dataset, generator=torch.Generator().manual_seed(7), **options)


KINDS = pytest.mark.parametrize("make", [torchs, headrace.Loader], ids=["torch", "numpy"])


def loader_of(make: Any, dataset: Any = None, **options: Any) -> Any:
    given = {"batch_size": BATCH, "num_workers": "auto", "rng": "sample", "seed": 3, "multiprocessing_context": "fork"}
    return make(Drawn() if dataset is None else dataset, **{**given, **options})


def plain(batch: Any) -> Any:
    return np.asarray(batch).tolist()


def changed_loop(iterator: Any, changes: dict[int, int]) -> list[Any]:
    """Returns the batches of an epoch in which the number of workers changes."""
    got: list[Any] = []
    while True:
        if len(got) in changes:
            iterator._engine.use_workers(changes[len(got)])
        try:
            got.append(plain(next(iterator)))
        except StopIteration:
            return got


def pids(iterator: Any) -> list[int]:
    return [one.pid for one in iterator._engine.processes]


@KINDS
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_are_those_of_any_fixed_number(make: Any, persistent: bool) -> None:
    loader = loader_of(make, persistent_workers=persistent, shuffle=True)
    fixed = [loader_of(make, num_workers=n, shuffle=True, persistent_workers=persistent) for n in (1, 2)]
    for _ in range(2):
        got = changed_loop(iter(loader), CHANGES)
        for one in fixed:
            assert [plain(batch) for batch in one] == got
    assert len(got) == COUNT // BATCH


@KINDS
def test_out_of_order_each_batch_comes_once(make: Any) -> None:
    got = changed_loop(iter(loader_of(make, in_order=False)), CHANGES)
    assert sorted(got) == sorted(plain(batch) for batch in loader_of(make, num_workers=2))


def test_pinned_batches_stay_in_order(pinned: dict[int, str]) -> None:
    got = changed_loop(iter(loader_of(torchs, pin_memory=True)), CHANGES)
    assert got == [plain(batch) for batch in loader_of(torchs, num_workers=2)]


@KINDS
def test_outstanding_tasks_follow_the_active_workers(make: Any) -> None:
    iterator = iter(loader_of(make))
    core = iterator._engine.keeper
    for count in (1, 4, 2):
        iterator._engine.use_workers(count)
        for _ in range(MOST * 2):
            next(iterator)
        outstanding = [len(core.tasks(worker)) for worker in range(MOST)]
        assert sum(outstanding) in (2 * count - 1, 2 * count)  # one is owed until the next call
        assert not any(outstanding[count:])
    iterator._engine.close()


@KINDS
def test_all_forked_workers_start_with_the_epoch(make: Any) -> None:
    iterator = iter(loader_of(make))
    assert len(pids(iterator)) == MOST and iterator._engine.used_workers == 2
    iterator._engine.close()


@KINDS
def test_dataset_is_told_the_most(make: Any) -> None:
    loader = loader_of(make, Seen())
    assert loader.num_workers == MOST
    assert {sample[1] for batch in changed_loop(iter(loader), CHANGES) for sample in batch} == {MOST}


@KINDS
@pytest.mark.parametrize("active", [1, 4])
def test_killed_worker_is_replaced(make: Any, active: int) -> None:
    iterator = iter(loader_of(make, Slow(), max_restarts=2))
    iterator._engine.use_workers(active)
    got = [plain(next(iterator)) for _ in range(6)]
    os.kill(pids(iterator)[MOST - 1], signal.SIGKILL)  # parked, or not
    with pytest.warns(UserWarning, match="killed by signal"):
        got += changed_loop(iterator, {3: 4, 9: 2})
    assert got == [[[i], [i + 1]] for i in range(0, COUNT, BATCH)]
    assert iterator.report()["restarts"] == 1


@KINDS
def test_parked_worker_that_dies_raises_without_restarts(make: Any) -> None:
    iterator = iter(loader_of(make, Slow(), max_restarts=0))
    iterator._engine.use_workers(1)
    next(iterator)
    os.kill(pids(iterator)[MOST - 1], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="killed by signal"):
        changed_loop(iterator, {})


@KINDS
@pytest.mark.parametrize("persistent", [False, True])
def test_epoch_after_a_break_is_whole(make: Any, persistent: bool) -> None:
    loader = loader_of(make, persistent_workers=persistent)
    iterator = iter(loader)
    for count in (1, 4, 1):
        iterator._engine.use_workers(count)
        next(iterator)
    del iterator
    gc.collect()
    assert changed_loop(iter(loader), CHANGES)[-1][0][0] == COUNT - BATCH


@KINDS
def test_state_in_the_middle_of_a_try_continues(make: Any) -> None:
    loader = loader_of(make, shuffle=True)
    iterator, got = iter(loader), []
    for count in (4, 1, 3):
        iterator._engine.use_workers(count)
        got += [plain(next(iterator)) for _ in range(5)]
    state = loader.state_dict()
    assert '"workers":3' not in state["headrace"]  # the bytes do not depend on it
    del iterator
    other = loader_of(make, num_workers=2, shuffle=True)
    other.load_state_dict(state)
    whole = [plain(batch) for batch in loader_of(make, num_workers=2, shuffle=True)]
    assert got + [plain(batch) for batch in other] == whole


# ---- random numbers by worker ----


@KINDS
@pytest.mark.parametrize("persistent", [False, True])
def test_with_worker_rng_number_changes_between_epochs(make: Any, persistent: bool) -> None:
    loader = loader_of(make, rng="worker", persistent_workers=persistent)
    fixed = loader_of(make, num_workers=3, rng="worker")
    iterator = iter(loader)
    first = [plain(next(iterator)) for _ in range(COUNT // BATCH - 1)]
    tuning_of(loader).tuner.restart(3)
    first.append(plain(next(iterator)))
    assert iterator._engine.used_workers == 2 == len(pids(iterator))
    assert next(iterator, None) is None
    assert first == [plain(batch) for batch in loader_of(make, num_workers=2, rng="worker")]
    iterator = iter(loader)
    assert len(pids(iterator)) == 3
    got = [plain(batch) for batch in iterator]
    list(fixed)
    if not persistent:  # the random numbers of workers that persist go on
        assert got == [plain(batch) for batch in fixed]
    assert [one[0][0] for one in got] == list(range(0, COUNT, BATCH))


def tuning_of(loader: Any) -> Tuning:
    from headrace.torch._own import table

    found: Any = (loader._kept if isinstance(loader, headrace.Loader) else table.kept(loader)).tuning
    assert isinstance(found, Tuning)
    return found


@KINDS
def test_with_worker_rng_the_state_has_the_number(make: Any) -> None:
    loader = loader_of(make, rng="worker")
    next(iter(loader))
    tuning_of(loader).tuner.restart(3)  # for the next epoch
    state = loader.state_dict()
    assert '"workers":2' in state["headrace"]
    other = loader_of(make, rng="worker")
    other.load_state_dict(state)
    assert other.state_dict() == state
    iterator = iter(other)
    assert iterator._engine.used_workers == 2
    assert len(list(iterator)) == COUNT // BATCH - 1
    damaged = loader_of(make, rng="worker")
    fields = pickle.loads(pickle.dumps(state))
    fields["headrace"] = fields["headrace"].replace('"workers":2', '"workers":"2"')
    with pytest.raises(ValueError, match="damaged"):
        damaged.load_state_dict(fields)


@KINDS
def test_state_that_was_just_loaded_is_given_back(make: Any) -> None:
    loader, other = (loader_of(make, rng="worker") for _ in range(2))
    next(iter(loader))
    state = loader.state_dict()  # of two workers
    next(iter(other))
    tuning_of(other).tuner.restart(4)
    next(iter(other))
    other.load_state_dict(state)
    assert other.state_dict() == state


@KINDS
def test_copy_continues_with_the_number_of_the_state(make: Any) -> None:
    loader, other = (loader_of(make, rng="worker") for _ in range(2))
    next(iter(loader))
    tuning_of(loader).tuner.restart(4)
    next(iter(loader))
    other.load_state_dict(loader.state_dict())
    for one in (copy.copy(other), other):
        assert iter(one)._engine.used_workers == 4


@KINDS
def test_state_without_a_number_has_none_of_the_state_before(make: Any) -> None:
    loader, other, fixed = (loader_of(make, num_workers=n, rng="worker") for n in ("auto", "auto", 1))
    next(iter(loader))
    tuning_of(loader).tuner.restart(4)
    next(iter(loader))
    next(iter(fixed))
    other.load_state_dict(loader.state_dict())
    other.load_state_dict(fixed.state_dict())
    assert iter(other)._engine.used_workers == 2


# ---- other start methods ----


@KINDS
def test_spawned_workers_start_when_they_are_wanted(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuning, "may_start", lambda *_: True)
    loader = loader_of(make, Slow(), multiprocessing_context="headrace", persistent_workers=True)
    iterator = iter(loader)
    assert len(pids(iterator)) == 2
    got = [plain(next(iterator)) for _ in range(4)]
    tuning_of(loader).tuner.restart(3)
    got += [plain(batch) for batch in iterator]
    assert got == [[[i], [i + 1]] for i in range(0, COUNT, BATCH)]
    assert len(pids(iterator)) == 3
    iterator = iter(loader)  # the one that may still be starting gets the new epoch
    assert [plain(batch) for batch in iterator] == got
    assert iterator._engine.used_workers == 3
    iterator._engine.close()


def test_a_start_waits_until_it_is_worth_its_time() -> None:
    tuning = Tuning(4, 2, torch.multiprocessing.get_context("spawn"), headrace._options.Settings(rng="sample"))
    assert tuning.to_start == 2
    assert not tuning.may_start(waited_s=19.0, start_s=1.0)
    assert tuning.may_start(waited_s=20.0, start_s=1.0)


# ---- trying ----


@KINDS
def test_report_lists_the_tries(make: Any) -> None:
    loader = loader_of(make, Slow(), batch_size=1)
    deadline = time.monotonic() + 120
    report: dict[str, Any] = {"tries": []}
    while report.get("state") != "rest" and time.monotonic() < deadline:  # in several epochs
        got = []
        for batch in loader:
            got += plain(batch)
        assert got == [[i] for i in range(COUNT)]
        report = loader.report()["auto"]
    first, more, again = report["tries"][:3]
    assert (first["workers"], first["why"], first["kept"]) == (2, "first", True)
    assert (more["workers"], more["why"]) == (4, "more")
    assert again["why"] in ("again", "fewer", "more")
    assert all(one["batches_per_s"] > 0 and 0 <= one["wait"] <= 1 and one["seconds"] >= 1 for one in report["tries"])
    assert report["most"] == MOST and report["changes"] >= 2
    iterator = iter(loader)
    assert len(pids(iterator)) == iterator._engine.used_workers
    iterator._engine.close()


class Numbers:
    """A Show of 1,000 batches that took 1 ms each to make, in steps of 2 ms."""

    name = b"train.py:1"

    def __init__(self, waited_s: float) -> None:
        self.waited_s = waited_s

    def numbers(self) -> tuple[dict[str, float], dict[str, float]]:
        epoch = {"seconds": 2.0, "batches": 1000, "inside_s": self.waited_s}
        return epoch, {"done": 1000, "fetch_s": 0.9, "collate_s": 0.1}


class LongEpoch(Numbers):
    """A Show of two minutes."""

    def numbers(self) -> tuple[dict[str, float], dict[str, float]]:
        epoch = {"seconds": 120.0, "batches": 1000, "inside_s": self.waited_s}
        return epoch, {"workers": 2, "done": 1000, "fetch_s": 200.0, "collate_s": 0.1}


def test_long_epoch_whose_number_cannot_change_is_told() -> None:
    context = torch.multiprocessing.get_context("fork")
    waits: Any = LongEpoch(waited_s=60.0)
    runs: Any = LongEpoch(waited_s=6.0)
    tuning = Tuning(4, 2, context, headrace._options.Settings(rng="worker"))
    assert "waits 50% of its time with 2 workers" in str(tuning.report(waits)["advice"])
    assert tuning.report(runs)["advice"] is None
    changes = Tuning(4, 2, context, headrace._options.Settings(rng="sample"))
    assert changes.report(waits)["advice"] is None


def test_zero_workers_are_advised_and_never_used(caplog: pytest.LogCaptureFixture) -> None:
    tuning = Tuning(4, 2, torch.multiprocessing.get_context("fork"), headrace._options.Settings(rng="sample"))
    slow: Any = Numbers(waited_s=1.5)  # alone: 1 ms for a batch and 0.5 ms for the rest
    fine: Any = Numbers(waited_s=0.5)
    assert tuning.report(fine)["advice"] is None
    assert str(tuning.report(slow)["advice"]).startswith("num_workers=0 would be faster")
    with caplog.at_level("INFO"):
        tuning.say(slow)
        tuning.say(slow)
    assert [one.getMessage()[:24] for one in caplog.records] == ["train.py:1: num_workers="]
    assert tuning.tuner.report()["workers"] == 2


@KINDS
def test_a_loader_without_auto_reports_none(make: Any) -> None:
    loader = loader_of(make, num_workers=1)
    list(loader)
    assert "auto" not in loader.report()


@KINDS
def test_little_memory_keeps_workers_parked(make: Any) -> None:
    iterator = iter(loader_of(make))
    core = iterator._engine.keeper
    tuning = iterator._engine._tuning
    core.tune(tuning.tuner, True, 1 << 60)  # a further worker takes more memory than there is
    tuning.tuner.restart(4)
    for _ in range(5):
        next(iterator)
    assert iterator._engine.used_workers == 2
    iterator._engine.close()


# ---- arguments ----


@KINDS
def test_bad_words_and_numbers_are_refused(make: Any) -> None:
    with pytest.raises(TypeError, match='"auto"'):
        loader_of(make, num_workers="Auto")
    with pytest.raises((TypeError, ValueError)):
        loader_of(make, num_workers=-1)


class Setting(str, enum.Enum):
    WORKERS = "auto"


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@KINDS
def test_words_and_numbers_that_look_alike_are_told_apart(make: Any) -> None:
    for word in ("auto", np.str_("auto"), Setting.WORKERS):
        assert type(loader_of(make, num_workers=word).num_workers) is worker_count.AutoWorkers
    for number in (MOST, np.int64(MOST), worker_count.AutoWorkers(MOST) + 0):
        fixed = loader_of(make, num_workers=number)
        assert not worker_count.is_auto(fixed.num_workers) and fixed.num_workers == number
    for wrong in (b"auto", " auto", ["auto"]):
        with pytest.raises(TypeError):
            loader_of(make, num_workers=wrong)


@KINDS
def test_iterable_datasets_have_the_number_by_rule(make: Any) -> None:
    loader = loader_of(make, Stream(), rng="worker")
    assert loader.num_workers == 2 and type(loader.num_workers) is int
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sorted(i for batch in loader for i in plain(batch)) == [0, 0, 1, 1, 2, 2, 3, 3]


@KINDS
def test_copies_and_loaders_made_again_are_auto(make: Any) -> None:
    loader = loader_of(make)
    again = loader_of(make, num_workers=loader.num_workers)
    for one in (again, copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert worker_count.is_auto(one.num_workers) and one.num_workers == MOST
    positional = Headrace(Drawn(), 1, False, None, None, "auto")
    assert worker_count.is_auto(positional.num_workers)


def test_number_that_is_set_later_is_fixed() -> None:
    loader = loader_of(torchs)
    loader.num_workers = 1
    list(loader)
    assert loader.report()["workers"] == 1 and "auto" not in loader.report()


@pytest.mark.filterwarnings("ignore:headrace. accelerate")
def test_loader_that_accelerate_rebuilds_has_the_number_by_rule() -> None:
    loader = loader_of(torchs)
    assert not loader._is_accelerate_prepared  # accelerate asks, and then makes one of torch's loaders
    assert loader.num_workers == worker_count.by_rule() and not worker_count.is_auto(loader.num_workers)
    kept = loader_of(torchs)
    headrace.torch.install()
    try:
        assert not kept._is_accelerate_prepared
    finally:
        headrace.torch.uninstall()
    assert worker_count.is_auto(kept.num_workers)


def test_most_is_limited_by_cores_memory_and_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine: dict[str, Any] = {"spare_bytes": None, "process_room": None}
    monkeypatch.setattr(worker_count, "_machine", lambda: machine)
    monkeypatch.setattr(worker_count, "_MOST", 64)
    assert worker_count.most(is_forked=True) == 24
    machine["spare_bytes"] = 10 * worker_count.FORKED_BYTES
    assert worker_count.most(is_forked=True) == 8
    assert worker_count.most(is_forked=False) == 1
    machine["process_room"] = 5
    assert worker_count.most(is_forked=True) == 4
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert worker_count.turn() == (1, 2)
    assert worker_count.most(is_forked=True) == 1


def test_without_engine_the_number_is_by_rule(tmp_path: pathlib.Path) -> None:
    code = """
        import torch
        from headrace.torch import DataLoader
        from headrace._ranks import worker_count
        loader = DataLoader(list(range(6)), batch_size=2, num_workers="auto", multiprocessing_context="fork")
        assert type(loader.num_workers) is int and loader.num_workers == worker_count.by_rule(), loader.num_workers
        assert [one.tolist() for one in loader] == [[0, 1], [2, 3], [4, 5]]
        assert loader.report() == {}
        print("done")
    """
    done = run_python(tmp_path, "-c", textwrap.dedent(code), HEADRACE_DISABLE="1", PYTHONWARNINGS="ignore")
    assert done.stdout == "done\n", done.stderr
