# SPDX-License-Identifier: Apache-2.0
"""The ends of loaders with sample_threads: Ctrl-C, a close, and a death, while samples are in work. (A worker that is
killed at each point: test_sweep.py. An exception before each instruction of next(): test_interrupted.py.)"""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import pytest
import torch.utils.data
from drawn_threads import threads_of_samples
from headrace._base import this_process
from headrace._samples import threaded
from headrace._samples.threads import Batch
from headrace.torch import DataLoader
from loaders import only_headrace
from mishaps import DEADLINE_S, Marks, collected_warnings
from processes import Script, until

pytestmark = only_headrace
COUNT, BATCH, THREADS = 24, 4, 6
LOADERS = pytest.mark.parametrize("kind", [headrace.Loader, DataLoader])


class Dataset(torch.utils.data.Dataset[Any]):
    """The samples are made by a function of the index."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.make(int(index))


def loader_of(kind: Any, make: Callable[[int], Any], workers: int, **options: Any) -> Any:
    options = {"batch_size": BATCH, "num_workers": workers, "sample_threads": THREADS, **options}
    if workers:
        options.setdefault("multiprocessing_context", "fork")
    return kind(Dataset(make), **options)


def flat(batches: Any) -> list[int]:
    return [int(sample) for batch in batches for sample in batch]


# ---- Ctrl-C ----


def interrupted(iterator: Iterator[Any]) -> tuple[list[Any], int]:
    """Returns the batches of a loop that goes on after each KeyboardInterrupt, and how many there were."""
    found, interruptions = [], 0
    while True:
        try:
            found.append(next(iterator))
        except KeyboardInterrupt:
            interruptions += 1
        except StopIteration:
            return found, interruptions


@LOADERS
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [0, 6, COUNT - 1])
def test_ctrl_c_during_a_sample_loses_no_batch(kind: Any, workers: int, at: int, tmp_path: pathlib.Path) -> None:
    marks, trainer = Marks(tmp_path), os.getpid()

    def make(index: int) -> int:
        if index == at and marks.first("interrupted"):
            assert until(lambda: marks.has("begun"), DEADLINE_S)  # workers make samples before iter() returns
            os.kill(trainer, signal.SIGINT)
        return index

    iterator = iter(loader_of(kind, make, workers))
    marks.first("begun")
    found, interruptions = interrupted(iterator)
    assert flat(found) == list(range(COUNT))
    assert interruptions == 1
    assert until(lambda: not threads_of_samples(), DEADLINE_S)


@LOADERS
def test_iterator_that_is_dropped_after_ctrl_c_ends_its_threads(kind: Any) -> None:
    is_free, begun = threading.Event(), []

    def make(index: int) -> int:
        begun.append(index)
        if len(begun) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        assert is_free.wait(DEADLINE_S)
        return index

    iterator = iter(loader_of(kind, make, 0, sample_threads=2))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    del iterator
    gc.collect()
    assert len(threads_of_samples()) == 2  # their samples are in work
    is_free.set()
    assert until(lambda: not threads_of_samples(), DEADLINE_S)
    assert sorted(begun) == [0, 1]


@LOADERS
def test_child_of_an_interrupted_process_goes_on(kind: Any) -> None:
    """It does not wait for samples that threads of its parent make."""
    is_free, parent = threading.Event(), os.getpid()

    def make(index: int) -> int:
        if os.getpid() == parent and not is_free.is_set():
            if not index:
                os.kill(parent, signal.SIGINT)
            assert is_free.wait(DEADLINE_S)
        return index

    iterator = iter(loader_of(kind, make, 0, sample_threads=2))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    if not (child := os.fork()):
        os._exit(0 if flat(iterator) == list(range(COUNT)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    is_free.set()
    assert flat(iterator) == list(range(COUNT))


FOREVER = """
import sys, threading
import {module}
class Waiting:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        print(index, flush=True)
        threading.Event().wait()
if __name__ == "__main__":
    options = {{"multiprocessing_context": "fork", "shutdown_timeout": 0.5}} if {workers} else {{}}
    for _ in {module}.{name}(Waiting(), 4, num_workers={workers}, sample_threads=3, **options):
        pass
"""


@pytest.mark.parametrize("name", ["headrace.Loader", "headrace.torch.DataLoader"])
@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_ends_a_script_whose_samples_never_end(name: str, workers: int, tmp_path: pathlib.Path) -> None:
    module, _, name = name.rpartition(".")
    with Script(tmp_path, FOREVER.format(module=module, name=name, workers=workers)) as script:
        for _ in range(3 * max(1, workers)):
            script.line()
        os.killpg(script.process.pid, signal.SIGINT)
        assert script.finish() == -signal.SIGINT, script.stderr
        assert script.stderr.count("KeyboardInterrupt") == 1
        assert script.left() == []


class SignalBefore(threading.Event):
    """A SIGINT arrives as its wait begins, and does not end it."""

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "the signal would not be noticed"
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # another thread would take that of os.kill
            return super().wait(timeout)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def test_ctrl_c_just_before_the_wait_is_noticed() -> None:
    maker, is_free = threaded.InProcess(1), threading.Event()
    maker._event = SignalBefore()
    batch = Batch(lambda place: is_free.wait(DEADLINE_S), [0], False, [[]])
    with pytest.raises(KeyboardInterrupt):
        maker.make(None, lambda task: batch)
    is_free.set()
    maker.end(DEADLINE_S)


# ---- ends ----


@LOADERS
@pytest.mark.parametrize("persistent", [False, True])
def test_end_in_the_middle_leaves_no_worker(kind: Any, persistent: bool, tmp_path: pathlib.Path) -> None:
    """The batches that were begun early are not made to their end."""
    begun = tmp_path / "begun"
    begun.touch()

    def make(index: int) -> int:
        if index >= BATCH:
            with begun.open("a") as file:
                file.write(".")
            time.sleep(0.02)
        return index

    loader = loader_of(kind, make, 1, sample_threads=2, prefetch_factor=5, persistent_workers=persistent)
    iterator = iter(loader)
    assert flat([next(iterator)]) == list(range(BATCH))
    if persistent:
        assert flat(loader) == list(range(COUNT))
    workers = [one["pid"] for one in loader.report()["per_worker"]]
    del iterator, loader
    gc.collect()
    assert until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in workers), DEADLINE_S)
    if not persistent:
        assert len(begun.read_text()) < COUNT - BATCH


@LOADERS
def test_next_epoch_is_right_after_one_that_was_left(kind: Any) -> None:
    loader = loader_of(kind, lambda index: time.sleep(0.001) or index, 2, persistent_workers=True, prefetch_factor=3)
    for taken in (1, 0, 3, 2):
        iterator = iter(loader)
        assert flat(next(iterator) for _ in range(taken)) == list(range(taken * BATCH))
    del iterator
    assert flat(loader) == list(range(COUNT))


@LOADERS
def test_threads_have_ended_when_the_epoch_has(kind: Any) -> None:
    for _ in range(10):
        assert flat(loader_of(kind, lambda index: index, 0)) == list(range(COUNT))
        assert not threads_of_samples()


@LOADERS
def test_threads_that_wait_are_no_danger_for_a_fork(kind: Any) -> None:
    """Workers that are forked while another loop is between two batches."""
    iterator = iter(loader_of(kind, lambda index: index, 0))
    next(iterator)
    assert len(threads_of_samples()) == THREADS
    assert until(lambda: not this_process.other_threads(), DEADLINE_S)
    with collected_warnings() as texts:
        assert flat(loader_of(kind, lambda index: index, 1)) == list(range(COUNT))
    assert texts == []


# ---- deaths ----


@LOADERS
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("persistent", [True, False])
def test_workers_that_are_killed_again_and_again(
    kind: Any, in_order: bool, persistent: bool, tmp_path: pathlib.Path
) -> None:
    """Each sample of the first epoch kills its worker once, while others are in work."""
    marks = Marks(tmp_path)

    def make(index: int) -> int:
        if index % 5 == 3 and marks.first(f"death {index}"):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.001)
        return index

    options = {"in_order": in_order, "persistent_workers": persistent, "max_restarts": COUNT}
    loader = loader_of(kind, make, 2, **options)
    with collected_warnings():
        for _ in range(2):
            found = flat(loader)
            assert (found if in_order else sorted(found)) == list(range(COUNT))
    assert not [name for name in os.listdir(tmp_path) if not name.startswith("death")]


@LOADERS
def test_death_without_restarts_names_samples_and_ends(kind: Any) -> None:
    def make(index: int) -> int:
        if index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.001)
        return index

    with pytest.raises(RuntimeError, match="is killed by signal: Killed"):
        flat(loader_of(kind, make, 2, max_restarts=0))


@LOADERS
def test_stalled_worker_with_threads_is_replaced(kind: Any, tmp_path: pathlib.Path) -> None:
    marks = Marks(tmp_path)

    def make(index: int) -> int:
        if index == 6 and marks.first("stalled"):
            time.sleep(DEADLINE_S)
        return index

    options = {"stall_after": 0.5, "on_stall": "restart", "max_restarts": 2}
    with collected_warnings() as texts:
        assert flat(loader_of(kind, make, 2, **options)) == list(range(COUNT))
    assert any("headrace sent it, because the worker had stalled" in text for text in texts)
    assert any("at sample 6 of batch 1" in text for text in texts)
