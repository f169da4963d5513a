# SPDX-License-Identifier: Apache-2.0
"""headrace doctor says whether threads would help, and whether samples that threads make are the same."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import headrace
import pytest
from headrace.doctor.run import threads
from headrace.doctor.run.threads import check_threads

COUNT = 40


class Waiting:
    """Samples that wait for 2 ms."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return index


class Computing(Waiting):
    """Samples of which the clock in `is_busy` says that they compute."""


class Drawing(Waiting):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + headrace.sample_generator("random").random()


class Sharing(Waiting):
    """Samples that another thread than the main one changes."""

    def __init__(self) -> None:
        self.buffer = [0]

    def __getitem__(self, index: int) -> Any:
        self.buffer[0] = index
        time.sleep(0.002)
        if threading.current_thread() is not threading.main_thread():
            self.buffer[0] += 1000
        return self.buffer[0]


class Holding(Waiting):
    def __init__(self) -> None:
        self.generator = random.Random(3)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return index if self.generator is not None else 0


class Broken(Waiting):
    def __getitem__(self, index: int) -> Any:
        raise ValueError("bad")


@pytest.fixture(autouse=True)
def is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has no CPU, and waits for none, whatever else runs on this machine."""
    monkeypatch.setattr(threads, "_busy_s", float)


@pytest.fixture
def is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread computes all the time."""
    monkeypatch.setattr(threads, "_busy_s", time.monotonic)


def test_time_of_a_thread_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    before, end = threads._busy_s(), time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    assert threads._busy_s() - before >= 0.015


@pytest.mark.parametrize("dataset", [Waiting(), Drawing()])
def test_samples_that_wait_are_advised_to_have_threads(dataset: Any) -> None:
    state = random.getstate()
    (found,) = check_threads(headrace.Loader(dataset))
    assert (found.name, found.severity) == ("threads", "note")
    assert found.fix == "sample_threads=16 in headrace.Loader"
    assert "Made by 16 threads, 3 times, the samples were the same." in found.consequence
    assert random.getstate() == state


def test_threads_that_help_are_right() -> None:
    (found,) = check_threads(headrace.Loader(Waiting(), sample_threads=4))
    assert (found.severity, found.fix) == ("ok", "")


@pytest.mark.usefixtures("is_busy")
def test_threads_do_not_help_samples_that_compute() -> None:
    assert check_threads(headrace.Loader(Computing())) == []
    (found,) = check_threads(headrace.Loader(Computing(), sample_threads=4))
    assert (found.severity, found.fix) == ("note", "leave out sample_threads")
    assert "Threads do not help samples that compute" in found.consequence


def test_samples_that_differ_are_named() -> None:
    (found,) = check_threads(headrace.Loader(Sharing(), sample_threads=4))
    assert (found.severity, found.fix) == ("error", "leave out sample_threads")
    assert (
        f"{COUNT} of {COUNT} samples differ when 4 threads make them: 0 (sample: values of a int)" in found.consequence
    )
    (found,) = check_threads(headrace.Loader(Sharing()))
    assert found.severity == "note"


def test_generators_that_threads_would_share_are_named() -> None:
    (found,) = check_threads(headrace.Loader(Holding()))
    assert found.severity == "note" and "random number generators" in found.consequence
    assert "dataset.generator" in found.consequence


@pytest.mark.parametrize("dataset", [Broken(), iter([1])])
def test_other_datasets_have_no_observation(dataset: Any) -> None:
    assert check_threads(headrace.Loader(dataset)) == []
