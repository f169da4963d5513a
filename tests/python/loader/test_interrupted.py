# SPDX-License-Identifier: Apache-2.0
"""An exception that is raised anywhere in next() (by a signal's handler: Ctrl-C, a time limit) loses no batch."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import headrace
import pytest
import torch
from interruptions import Interrupter, Interruption
from loaders import ENGINE, Headrace

if not ENGINE:
    pytest.skip("torch loses batches", allow_module_level=True)

COUNT = 1400
BAD = 30  # each of them raises


class Samples(torch.utils.data.Dataset[Any]):
    def __init__(self, every_bad: int = 0) -> None:
        self.every_bad = every_bad

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if self.every_bad and index % self.every_bad == 0:
            raise ValueError(f"sample {index} is bad")
        return torch.tensor([index])


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info() or headrace.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (torch.tensor([index]) for index in range(first, COUNT, step))


def _flat(batches: list[Any]) -> list[int]:
    return [int(sample) for batch in batches for sample in batch.flatten()]


def _torch(dataset: Any, workers: int, **options: Any) -> Any:
    context = "fork" if workers else None
    return Headrace(dataset, num_workers=workers, multiprocessing_context=context, **options)


def _numpy(dataset: Any, workers: int, **options: Any) -> Any:
    context = "fork" if workers else None
    return headrace.Loader(
        dataset, num_workers=workers, multiprocessing_context=context, collate_fn=torch.stack, **options
    )


KINDS = pytest.mark.parametrize("make", [_torch, _numpy], ids=["torch", "numpy"])
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def _run(loader: Any) -> tuple[list[Any], int]:
    """Returns what the loader gave, and how often each place of next() was interrupted."""
    with Interrupter() as interrupter:
        return list(interrupter.all_of(iter(loader))), interrupter.rounds


@KINDS
@WORKERS
def test_interrupted_next_loses_no_batch(make: Any, workers: int) -> None:
    got, rounds = _run(make(Samples(), workers, batch_size=2))
    assert _flat(got) == list(range(COUNT))
    assert rounds >= 1


@KINDS
@WORKERS
def test_interrupted_next_loses_no_batch_of_shuffled_samples(make: Any, workers: int) -> None:
    got, _ = _run(make(Samples(), workers, batch_size=2, shuffle=True))
    assert sorted(_flat(got)) == list(range(COUNT))


@KINDS
@WORKERS
def test_interrupted_next_loses_no_sample_without_batches(make: Any, workers: int) -> None:
    got, _ = _run(make(Samples(), workers, batch_size=None))
    assert _flat(got) == list(range(COUNT))


@KINDS
def test_interrupted_next_loses_no_batch_out_of_order(make: Any) -> None:
    got, _ = _run(make(Samples(), 2, batch_size=2, in_order=False))
    assert sorted(_flat(got)) == list(range(COUNT))


@KINDS
@WORKERS
def test_interrupted_next_loses_no_batch_of_an_iterable(make: Any, workers: int) -> None:
    got, _ = _run(make(Stream(), workers, batch_size=2))
    assert sorted(_flat(got)) == list(range(COUNT))


@KINDS
def test_interrupted_next_raises_each_error_of_a_worker_once(make: Any) -> None:
    got, _ = _run(make(Samples(every_bad=BAD), 2, batch_size=2))
    errors = [one for one in got if isinstance(one, ValueError)]
    assert [f"sample {index} is bad" in str(error) for index, error in zip(range(0, COUNT, BAD), errors, strict=True)]
    batches = [one for one in got if not isinstance(one, ValueError)]
    assert _flat(batches) == [i for i in range(COUNT) if i // 2 * 2 % BAD]


@KINDS
@WORKERS
def test_interrupted_next_gives_the_same_replacements(make: Any, workers: int) -> None:
    options = {"batch_size": 2, "on_bad_sample": "refill", "seed": 3}
    with pytest.warns(UserWarning, match="bad"):
        expected = _flat(list(make(Samples(every_bad=BAD), 0, **options)))
        loader = make(Samples(every_bad=BAD), workers, **options)
        got, _ = _run(loader)
    assert _flat(got) == expected
    assert loader.report()["skipped"] == len(loader.report()["bad_samples"])


@pytest.mark.parametrize("in_order", [True, False])
def test_interrupted_next_loses_no_pinned_batch(pinned: dict[int, str], in_order: bool) -> None:
    got, _ = _run(_torch(Samples(every_bad=BAD), 2, batch_size=2, pin_memory=True, in_order=in_order))
    values = _flat([one for one in got if not isinstance(one, ValueError)])
    expected = [i for i in range(COUNT) if i // 2 * 2 % BAD]
    assert (values if in_order else sorted(values)) == expected


def _in_flight(iterator: Any) -> int:
    core = iterator._engine.source
    return core.owed + sum(len(core.tasks(worker)) for worker in range(2))


@KINDS
def test_interrupted_next_keeps_as_many_batches_in_flight(make: Any) -> None:
    iterator = iter(make(Samples(), 2, batch_size=2, prefetch_factor=3))
    with Interrupter() as interrupter:
        for _ in range(COUNT // 2 - 6):
            interrupter.next(iterator)
            assert _in_flight(iterator) == 6
            assert iterator._engine.source.owed == 0
    assert len(list(iterator)) == 6


class RaisesOnce:
    """A sampler with an iterator that raises once and goes on."""

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> RaisesOnce:
        self.given = 0
        self.has_raised = False
        return self

    def __next__(self) -> int:
        if self.given == 300 and not self.has_raised:
            self.has_raised = True
            raise ValueError("the sampler raises once")
        if self.given == COUNT:
            raise StopIteration
        self.given += 1
        return self.given - 1


@KINDS
@WORKERS
def test_sampler_that_raises_once_loses_no_sample(make: Any, workers: int) -> None:
    iterator = iter(make(Samples(), workers, batch_size=None, sampler=RaisesOnce()))
    got = []
    with pytest.raises(ValueError, match="the sampler raises once"):
        for one in iterator:
            got.append(one)
    got += list(iterator)
    assert _flat(got) == list(range(COUNT))


def _generator(count: int) -> Any:
    yield from range(count)
    raise ValueError("the sampler's generator raises")


@KINDS
@WORKERS
def test_sampler_whose_generator_raises_ends_epoch_with_warning(make: Any, workers: int) -> None:
    iterator = iter(make(Samples(), workers, batch_size=2, sampler=_generator(300)))
    got = []
    with pytest.raises(ValueError, match="the sampler's generator raises"):
        for one in iterator:
            got.append(one)
    with pytest.warns(UserWarning, match=r"ended after 150 batches.*the sampler's generator raises"):
        got += list(iterator)
    assert _flat(got) == list(range(300))


@KINDS
@WORKERS
def test_alarms_lose_no_batch(make: Any, workers: int) -> None:
    def interrupt(number: int, frame: Any) -> None:
        if not frame.f_code.co_filename.endswith("test_interrupted.py"):  # else next() has returned the batch already
            raise Interruption

    handler = signal.signal(signal.SIGALRM, interrupt)
    interruptions, got = 0, []
    iterator = iter(make(Samples(), workers, batch_size=2, shuffle=True))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        while True:
            try:
                got.append(next(iterator))
            except Interruption:
                interruptions += 1
            except StopIteration:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert sorted(_flat(got)) == list(range(COUNT))
    assert interruptions >= 1


class DiesOnce(Samples):
    """Kills its worker at sample `at`, if the file is not there yet."""

    def __init__(self, path: Any, at: int) -> None:
        super().__init__()
        self.file, self.at = path, at

    def __getitem__(self, index: int) -> Any:
        if index == self.at and not os.path.exists(self.file):
            with open(self.file, "w"):
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def _wait_for_file(path: Any) -> None:
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@KINDS
def test_interrupted_restart_of_a_worker_loses_no_batch(make: Any, tmp_path: Any) -> None:
    with Interrupter() as interrupter:
        for attempt in range(400):
            file = tmp_path / str(attempt)
            loader = make(DiesOnce(file, 0), 1, batch_size=1, sampler=range(4), max_restarts=2)
            iterator = iter(loader)
            _wait_for_file(file)
            got = [interrupter.next(iterator), *iterator]
            assert _flat(got) == [0, 1, 2, 3], interrupter.place
            assert loader.report()["restarts"] == 1
            if interrupter.rounds:
                return
            interrupter.place += 4  # every fifth instruction: each try starts two workers
    raise AssertionError(f"next() has more than {interrupter.place} instructions")
