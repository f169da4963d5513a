# SPDX-License-Identifier: Apache-2.0
"""Headspace: a loop with data, with batches that are repeated, and with data again, and the end of its script.

Most are scripts, because a measurement ends its process. tests/cli/run/test_run_headspace.py has several ranks.
"""

from __future__ import annotations

import re
import subprocess
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace import _core
from headrace._loader.headspace import kept as kept_module
from headrace._loader.headspace import measure as measure_module
from headrace._loader.headspace import session as session_module
from headrace._loader.headspace.kept import MOST, Kept
from headrace._loader.headspace.measure import Measure, Times
from headrace._loader.headspace.steps import Steps
from processes import run_python

STEPS = 10
NEEDED = 20 + 3 * STEPS + 2 * 5

START = """
import multiprocessing, sys, time
multiprocessing.set_start_method("fork")
import numpy as np
import torch
from headrace import Loader
from headrace.torch import DataLoader

class Data(torch.utils.data.Dataset):
    def __init__(self, batches, seconds=0.0):
        self.batches, self.seconds = batches, seconds
    def __len__(self):
        return 2 * self.batches
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return {"x": torch.full((2000,), float(index)), "index": index, "name": f"n{index}"}

class Stream(torch.utils.data.IterableDataset):
    def __init__(self, batches):
        self.batches = batches
    def __iter__(self):
        return iter(torch.arange(2 * self.batches))

def collate_arrays(samples):
    return {"x": np.stack([sample["x"].numpy() for sample in samples]), "name": [one["name"] for one in samples]}
"""


def script(folder: Path, code: str, value: str = str(STEPS), **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(START + code)
    return run_python(folder, "train.py", HEADRACE_HEADSPACE=value, **env)


def assert_measured(result: subprocess.CompletedProcess[str]) -> float:
    """Returns the percentage that loading costs."""
    assert result.returncode == 0, result.stderr
    found = re.search(r"headspace: a step takes .*; with free data .*: loading costs (nothing|\d+ %)", result.stdout)
    assert found, result.stdout + result.stderr
    assert "do not use a model that it saves from now on" in result.stderr
    return 0.0 if found[1] == "nothing" else float(found[1].split()[0])


# ---- whole scripts ----

LOOP = """
def main():
    loader = {loader}
    try:
        for epoch in range({epochs}):
            count = 0
            for batch in loader:
                {body}
                count += 1
            print("epoch of", count, flush=True)
    except BaseException:
        print("caught")
    finally:
        print("saved")
import atexit
atexit.register(print, "saved at exit")
main()
"""


def loop(loader: str, body: str, epochs: int = 1) -> str:
    return LOOP.format(loader=loader, body=body, epochs=epochs)


@pytest.mark.parametrize("workers", [0, 1])
def test_slow_data_is_measured_and_nothing_is_saved(tmp_path: Path, workers: int) -> None:
    loader = f"DataLoader(Data(999, 0.015), batch_size=2, num_workers={workers})"
    result = script(tmp_path, loop(loader, "time.sleep(0.01)"))
    assert 30 < assert_measured(result) < 95
    assert "the loader made at train.py:" in result.stdout
    for text in ("caught", "saved\n", "saved at exit", "epoch of"):
        assert text not in result.stdout


def test_quick_data_costs_little(tmp_path: Path) -> None:
    result = script(tmp_path, loop("DataLoader(Data(999), batch_size=2, num_workers=1)", "time.sleep(0.02)"))
    assert assert_measured(result) < 40


def test_epochs_keep_their_length(tmp_path: Path) -> None:
    """The free steps take the place of others, and the first step of each epoch does not count."""
    result = script(tmp_path, loop("DataLoader(Data(7), batch_size=2, num_workers=1)", "pass", epochs=99))
    assert_measured(result)
    assert result.stdout.count("epoch of 7\n") == result.stdout.count("epoch of") == (NEEDED - 1) // 6


def test_persistent_workers_and_a_window_keep_their_epochs(tmp_path: Path) -> None:
    options = "num_workers=1, persistent_workers=True"
    for loader in (f"DataLoader(Data(16), batch_size=2, {options})",
                   f"DataLoader(Data(5), batch_size=2, steps_per_epoch=16, {options})",
                   f"Loader(Data(16), batch_size=2, collate_fn=collate_arrays, {options})"):  # fmt: skip
        result = script(tmp_path, loop(loader, "pass", epochs=99))
        assert_measured(result)
        assert result.stdout.count("epoch of 16\n") == result.stdout.count("epoch of") == (NEEDED - 1) // 15


@pytest.mark.parametrize("loader", ["DataLoader", "Loader"])
def test_loop_of_an_iterable_dataset_is_measured(tmp_path: Path, loader: str) -> None:
    """Its length is not known, so batches are repeated in the same epoch."""
    data = "Stream(50)" if loader == "DataLoader" else "range(100)"
    result = script(tmp_path, loop(f"{loader}({data}, batch_size=2, num_workers=1)", "pass", epochs=9))
    assert_measured(result)


CHANGES = """
    assert batch.pop("name")[0] == "n%d" % batch["x"][0][0]
    assert (batch["x"] == batch["x"][0][0].item()).sum() == 2000
    {write}
"""


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("loader", ["DataLoader", "Loader"])
@pytest.mark.parametrize("write", ["pass", "batch['x'] += 1000"])
def test_repeated_batches_are_as_delivered(tmp_path: Path, loader: str, workers: int, write: str) -> None:
    collate = ", collate_fn=collate_arrays" if loader == "Loader" else ""
    body = CHANGES.format(write=write).replace("\n    ", "\n                ").strip()
    result = script(tmp_path, loop(f"{loader}(Data(99), batch_size=2, num_workers={workers}{collate})", body))
    assert_measured(result)
    assert ("with 16 batches again as copies, because" in result.stdout) == (write != "pass")


def test_workers_stand_still_meanwhile(tmp_path: Path) -> None:
    code = """
loader = DataLoader(Data(999, 0.002), batch_size=2, num_workers=1, prefetch_factor=8)
seen, made = set(), []
for batch in loader:
    is_again = batch["index"][0].item() in seen
    seen.add(batch["index"][0].item())
    if is_again:
        made.append(loader.report()["per_worker"][0]["batches"])
    elif made:
        print("made", made[-1] - made[0], "in", len(made), "steps", flush=True)
        made = []
"""
    result = script(tmp_path, code)
    assert_measured(result)
    assert f"made 0 in {STEPS + 5} steps\n" in result.stdout


def test_script_with_too_few_steps_is_told(tmp_path: Path) -> None:
    result = script(tmp_path, loop("DataLoader(Data(30), batch_size=2, num_workers=1)", "pass") + "sys.exit(3)")
    assert result.returncode == 3
    assert "saved" in result.stdout
    (line,) = (line for line in result.stderr.splitlines() if "headspace" in line)
    assert f"too few steps: the loop over the loader made at train.py:28 had 29 of the {NEEDED} that are needed" in line
    assert "do not use" not in line


def test_end_among_repeated_batches_is_told(tmp_path: Path) -> None:
    result = script(tmp_path, loop("DataLoader(Data(40), batch_size=2, num_workers=1)", "pass"))
    assert result.returncode == 0
    assert "saved" in result.stdout
    assert "do not use its model, which was trained on repeated batches" in result.stderr.splitlines()[-1]


def test_loader_that_is_made_for_each_epoch_goes_on(tmp_path: Path) -> None:
    code = """
for epoch in range(9):
    loader = DataLoader(Data(20), batch_size=2, num_workers=1)
    for batch in loader:
        pass
    del loader
"""
    assert_measured(script(tmp_path, code))


TWO = """
train, valid = (DataLoader(Data(count), batch_size=2) for count in (99, 99))
for epoch in range(2):
    for batch in {first}:
        pass
    for batch in {second}:
        pass
"""


def test_first_warm_loop_is_measured_and_the_other_named(tmp_path: Path) -> None:
    result = script(tmp_path, TWO.format(first="(b for b, _ in zip(valid, range(9)))", second="train"))
    assert_measured(result)
    assert "made at train.py:27#2:" in result.stdout
    assert f"other loaders: train.py:27; HEADRACE_HEADSPACE={STEPS}@train.py:27 measures that one" in result.stdout


def test_named_loader_is_measured(tmp_path: Path) -> None:
    code = TWO.format(first="train", second="valid")
    result = script(tmp_path, code, f"{STEPS}@train.py:27#2")
    assert_measured(result)
    assert "made at train.py:27#2:" in result.stdout
    result = script(tmp_path, code, f"{STEPS}@train.py:7")
    assert result.returncode == 0
    assert "no loader was made at train.py:7, which HEADRACE_HEADSPACE names; there are train.py:27, " in result.stderr


def test_torchs_loader_is_measured_if_installed(tmp_path: Path) -> None:
    code = """
import headrace.torch
headrace.torch.install()
for workers in (0, 1):
    for batch in torch.utils.data.DataLoader(Data(9), batch_size=2, num_workers=workers):
        pass
for epoch in range(9):
    for batch in torch.utils.data.DataLoader(Data(20), batch_size=2, num_workers=1):
        pass
"""
    assert_measured(script(tmp_path, code))


def test_batch_that_cannot_be_kept_ends_only_the_measurement(tmp_path: Path) -> None:
    loader = "DataLoader(Data(99), batch_size=2, collate_fn=lambda samples: (lambda: samples))"
    result = script(tmp_path, loop(loader, "batch()"))
    assert (result.returncode, result.stdout) == (0, "epoch of 99\nsaved\nsaved at exit\n")
    assert re.search("headspace: the batches of the loader made at train.py:.* cannot be kept .*lambda", result.stderr)


@pytest.mark.parametrize("value", ["many", "-1", "10@", "1.5"])
def test_wrong_number_of_steps_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HEADRACE_HEADSPACE", value)
    with pytest.raises(ValueError, match=r"HEADRACE_HEADSPACE should be a number of steps, such as 100, or"):
        session_module._asked()


# ---- the times ----


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Show:
    """A loader whose queue is full when it is not used."""

    def __init__(self) -> None:
        self.queue, self.busy_looks = 1, 5

    def numbers(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.busy_looks -= 1
        return {}, {"queue": self.queue, "workers": 2, "idle": 1 if self.busy_looks > 0 else 2}


class Observer:
    has_other_ranks = False

    def __init__(self) -> None:
        self.calls: list[str] = []

    def measures(self, measure: Measure) -> bool:
        return "has_ended" not in self.calls

    def has_warmed_up(self, measure: Measure) -> None:
        self.calls.append("has_warmed_up")

    def begins_free(self, measure: Measure) -> None:
        self.calls.append("begins_free")

    def has_ended(self, measure: Measure) -> None:
        self.calls.append("has_ended")


def test_times_are_those_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 2 s, with data that takes 1 s. What a measurement does itself does not count."""
    clock, observer, show = Clock(), Observer(), Show()
    monkeypatch.setattr(measure_module, "time", clock)
    measure = Measure("train.py:1", STEPS, show, observer)  # type: ignore[arg-type]
    made: list[int] = []

    def make() -> Any:
        for number in range(1000):
            clock.now += 1
            made.append(number)
            yield torch.full((3,), number)

    steps = Steps(observer, measure, None, make, is_iterable=True)
    got = []
    for batch in steps:
        got.append(int(batch[0]))
        clock.now += 2
        if measure.is_free:
            show.queue = 9
        if "has_ended" in observer.calls:
            break
    assert observer.calls == ["has_warmed_up", "begins_free", "has_ended"]
    assert measure.times() == Times(3, 2, 3)
    assert measure.times().cost == pytest.approx(1 / 3)
    assert session_module.describe(measure.times()) == "a step takes 3.0 s; with free data 2.0 s: loading costs 33 %"
    assert got[:31] == list(range(31)), "the first step does not count"
    assert got[31:46] == [5 + number % MOST for number in range(15)]
    assert got[46:61] == list(range(31 + 8, 31 + 8 + 15)), "8 batches were made ahead"


def test_durations_have_a_unit_that_suits_them() -> None:
    found = [session_module._in_words(seconds) for seconds in (12.3, 0.071, 0.0048, 0.00048, 0.0000021, 5e-7)]
    assert found == ["12 s", "71 ms", "4.8 ms", "480 us", "2.1 us", "0.5 us"]


# ---- kept batches ----


def test_memory_bounds_the_kept_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    spare = 16 * 4000
    kept, used = Kept(), 0
    monkeypatch.setattr(kept_module, "_core", types.SimpleNamespace(machine=lambda: {"spare_bytes": spare - used}))
    for _ in range(20):
        kept.keep([torch.zeros(250), np.zeros(375)])
        used = 4000 * len(kept)
    assert len(kept) == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # the other rank has the same memory
    kept, used = Kept(), 0
    for _ in range(20):
        kept.keep([torch.zeros(250), np.zeros(375)])
        used = 2 * 4000 * len(kept)
    assert len(kept) == 2
    monkeypatch.setattr(kept_module, "_core", _core)
    for _ in range(20):
        kept.keep([torch.zeros(250)])
    assert len(kept) == MOST


def test_writes_into_what_is_repeated_are_seen() -> None:
    kept = Kept()
    for number in range(3):
        kept.keep({"x": torch.full((3,), number), "y": np.full(3, number)})
        kept.check()
    assert not kept.is_written
    first = kept.give()
    first["x"] += 1
    kept.check()
    assert kept.is_written
    assert len(kept) == 2, "the one that was written is left out"
    for _ in range(2):
        given = [kept.give() for _ in range(2)]
        assert sorted(int(one["x"][0]) for one in given) == sorted(int(one["y"][0]) for one in given) == [1, 2]
        for one in given:
            one["x"] += 7
            one["y"] += 7
        kept.check()


def test_equal_parts_of_a_batch_stay_one_object() -> None:
    kept, both = Kept(), torch.zeros(3, requires_grad=False)
    with torch.inference_mode():
        kept.keep((both, both, torch.zeros(2), torch.zeros(0), np.zeros((0, 3)), np.array("2020", "M8[D]")))
        kept.check()
        given = kept.give()
    assert given[0] is given[1]
    assert given[0].data_ptr() != both.data_ptr()
    assert [tuple(one.shape) for one in given] == [(3,), (3,), (2,), (0,), (0, 3), ()]


class Boxes(torch.Tensor):
    """A subclass with an attribute, as those of torchvision and of many projects are."""


def test_tensors_with_more_than_values_stay_what_they_are() -> None:
    boxes, noted = torch.ones(3).as_subclass(Boxes), torch.ones(2)
    boxes.names, noted.lengths = ["a"], [1, 2]  # type: ignore[attr-defined]
    parameter, leaf = torch.nn.Parameter(torch.ones(4)), torch.ones(5, requires_grad=True)
    masked, sparse = np.ma.masked_array([1, 2], mask=[False, True]), torch.eye(3).to_sparse()
    for is_written in (False, True):
        kept = Kept()
        for _ in range(2):
            kept.keep([boxes, noted, parameter, leaf, masked, sparse, boxes])
        assert len(kept) == 2, kept.problem
        kept.is_written = is_written
        for _ in range(2):
            given = kept.give()
            assert [type(one) for one in given[:4]] == [Boxes, torch.Tensor, torch.nn.Parameter, torch.Tensor]
            assert type(given[4]) is type(masked) and torch.equal(given[5].to_dense(), torch.eye(3))
            assert given[6] is given[0]
            assert given[0].names == ["a"] and given[1].lengths == [1, 2] and given[4].mask.tolist() == [False, True]
            (2 * given[2].sum() + 3 * given[3].sum()).backward()
            assert given[2].grad.tolist() == [2.0] * 4 and given[3].grad.tolist() == [3.0] * 5
            given[0].names.append("b")
            given[0].add_(1)
            assert given[0].tolist() == [2.0] * 3
            kept.check()
        assert kept.is_dear, "they are copied, and the time of that does not count"
