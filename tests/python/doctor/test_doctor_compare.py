# SPDX-License-Identifier: Apache-2.0
"""headrace doctor --compare: the first batch and sample at which torch's engine and headrace's differ."""

from __future__ import annotations

import itertools
import json
import pathlib
import random
import sys
from collections.abc import Callable
from typing import Any

import headrace.torch
import pytest
import torch
import torch.utils.data
from doctors import doctor
from headrace.doctor.observations import Observation
from headrace.doctor.run import compared
from loaders import only_headrace

pytestmark = only_headrace
Torch = torch.utils.data.DataLoader
_calls = itertools.count()


class Drawn(torch.utils.data.Dataset[Any]):
    """Its samples have random numbers, and texts."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.rand(3), "r": random.random(), "text": str(index), "index": index}


def is_under_headrace() -> bool:
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("headrace._loader"):
            return True
        frame = frame.f_back
    return False


class SeesEngine(Drawn):
    """Gives another sample 17 under headrace's engine."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, int(index == 17 and is_under_headrace())]), str(index)


class Counts(Drawn):
    """Gives another sample 17 each time."""

    def __getitem__(self, index: int) -> Any:
        return index if index != 17 else 100 + next(_calls)


class Fails(Drawn):
    def __getitem__(self, index: int) -> Any:
        if index == 17:
            raise ValueError("sample 17 is broken")
        return index


class FailsInOne(Drawn):
    def __getitem__(self, index: int) -> Any:
        return Fails()[index] if is_under_headrace() else index


class Ends(torch.utils.data.IterableDataset[int]):
    """Gives fewer samples under headrace's engine."""

    def __iter__(self) -> Any:
        return iter(range(10 if is_under_headrace() else 20))


def compare(make: Callable[[], Any], batches: int = 20) -> Observation:
    (found,) = compared.examine(make, batches)
    return found


@pytest.mark.parametrize("kind", [Torch, headrace.torch.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_equal_loaders_are_equal_in_all_epochs(kind: Any, workers: int) -> None:
    before = random.getstate(), torch.get_rng_state()
    found = compare(lambda: kind(Drawn(), 4, shuffle=True, num_workers=workers), 20)  # of three epochs
    assert (found.severity, found.value) == ("ok", "20 batches are equal, to the last bit")
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize("kind", [Torch, headrace.torch.DataLoader])
@pytest.mark.parametrize("workers", [0, 1])
def test_first_difference_is_named(kind: Any, workers: int) -> None:
    found = compare(lambda: kind(SeesEngine(), 4, num_workers=workers))
    assert (found.severity, found.value) == ("error", "they differ: batch 4 of epoch 0, sample 1 of it (index 17)")
    assert found.consequence.startswith("batch[0]: values of a torch.int64 tensor")
    assert "4 batches before it are equal" in found.consequence


def test_loader_that_differs_from_itself_is_named() -> None:
    found = compare(lambda: Torch(Counts(), 4))
    assert found.severity == "warning" and "docs/guides/losses.md" in found.fix
    assert found.value == "torch's differs from itself: batch 4 of epoch 0, sample 1 of it"


def test_options_that_torch_lacks_are_named() -> None:
    found = compare(lambda: headrace.torch.DataLoader(Drawn(), 4, num_workers=1, rng="sample", seed=1))
    assert found.severity == "error" and "Try without rng='sample'" in found.consequence


def test_options_of_install_count() -> None:
    with headrace.torch.installed(rng="sample", seed=1):
        found = compare(lambda: Torch(Drawn(), 4, num_workers=1))
        assert "Try without rng='sample'" in found.consequence
        assert type(next(iter(Torch(Drawn())))) is dict


def test_exceptions_are_compared() -> None:
    found = compare(lambda: Torch(Fails(), 4))
    assert (found.severity, found.value) == ("warning", "both raise ValueError")
    assert "after 4 equal batches, at batch 4 of epoch 0: sample 17 is broken" in found.consequence
    found = compare(lambda: Torch(FailsInOne(), 4))
    assert found.severity == "error"
    assert "the first gives a batch; the second raises ValueError: sample 17 is broken" in found.consequence


def test_epochs_that_end_early_are_named() -> None:
    found = compare(lambda: Torch(Ends(), 5, num_workers=1))
    assert found.value == "they differ: batch 2 of epoch 0"
    assert found.consequence.startswith("the epoch of the second has ended before it")


def test_loader_without_batches_proves_nothing() -> None:
    found = compare(lambda: Torch([]))  # type: ignore[arg-type]
    assert (found.severity, found.value) == ("warning", "the loader gives no batch")


TRAIN = """from torch.utils.data import DataLoader
def make_loader():
    print("made")
    return DataLoader(range(40), 2, shuffle=True, num_workers=1)
def numbers():
    return [1]
loader = make_loader()
"""


def test_command_compares_a_loader(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    result = doctor("--compare", "train:make_loader", "--batches", "30", "--json", folder=tmp_path)
    report = json.loads(result.stdout)
    assert (result.returncode, report["exit_code"]) == (0, 0), result.stderr
    assert report["findings"][0]["value"] == "30 batches are equal, to the last bit"


@pytest.mark.parametrize(
    ("name", "why"), [("loader", "train:loader is a DataLoader; name a function"), ("numbers", "gives a list")]
)
def test_command_needs_a_function_that_makes_a_loader(tmp_path: pathlib.Path, name: str, why: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    result = doctor(f"--compare=train:{name}", folder=tmp_path)
    assert result.returncode == 2 and why in result.stderr
