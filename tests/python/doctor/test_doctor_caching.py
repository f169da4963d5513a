# SPDX-License-Identifier: Apache-2.0
"""headrace doctor says when a cache of the samples would pay."""

from __future__ import annotations

import random
import re
from typing import Any

import headrace
import numpy as np
import pytest
from headrace.doctor.run import caching
from headrace.doctor.run.caching import check_caching


class Clock:
    """Time that passes only in samples."""

    now = 0.0

    def perf_counter(self) -> float:
        return Clock.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "time", Clock())


class Slow:
    """Samples that take 5 ms to make."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        Clock.now += 0.005
        return {"x": np.full(1000, index, "f4")}


class Random(Slow):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)["x"] + random.random()


class Fast(Slow):
    def __getitem__(self, index: int) -> Any:
        Clock.now += 0.00002
        return index


class Broken(Slow):
    def __getitem__(self, index: int) -> Any:
        raise ValueError("bad")


def test_slow_samples_that_fit_are_advised_to_be_cached() -> None:
    state = random.getstate()
    (found,) = check_caching(headrace.Loader(Slow()))
    assert found.name == "caching" and re.fullmatch(r"(39|40)\d\.\d KiB of samples", found.value)
    assert found.fix == 'cache="auto" in headrace.Loader'
    assert "Making a sample takes 5.00 ms" in found.consequence
    assert random.getstate() == state


def test_random_samples_need_their_steps_behind_the_cache() -> None:
    (found,) = check_caching(headrace.Loader(Random()))
    assert "transform=random_steps" in found.fix
    assert "The samples are random (sample: values of a float32 array)" in found.consequence


@pytest.mark.parametrize("dataset", [Fast(), Broken(), iter([1])])
def test_other_loaders_are_left_alone(dataset: Any) -> None:
    assert check_caching(headrace.Loader(dataset)) == []


def test_cached_samples_and_too_many_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_caching(headrace.Loader(Slow(), cache="auto")) == []
    monkeypatch.setattr(caching, "memory_room", lambda machine: 1000)
    assert check_caching(headrace.Loader(Slow())) == []
