# SPDX-License-Identifier: Apache-2.0
"""An exception that is raised anywhere in next() (by a signal's handler: Ctrl-C, a time limit) loses no batch."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import sys
import threading
import time
import weakref
from typing import Any

import headrace
import pytest
import torch
from headrace import _core
from headrace._base.signals import without_signals
from headrace._ranks.agreement import Agreement
from headrace._ranks.disagreement import Facts
from headrace._ranks.loader_identity import LoaderIdentity
from headrace._ranks.remainder import ALLOWED, Remainder
from headrace.sampling._watch import Watch
from headrace.torch._samplers.lists import Lists
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
@WORKERS
def test_interrupted_next_loses_no_batch_of_threads(make: Any, workers: int) -> None:
    got, rounds = _run(make(Samples(), workers, batch_size=1, sample_threads=3))
    assert _flat(got) == list(range(COUNT))
    assert rounds >= 1


@KINDS
def test_interrupted_next_loses_no_batch_out_of_order(make: Any) -> None:
    got, _ = _run(make(Samples(), 2, batch_size=2, in_order=False))
    assert sorted(_flat(got)) == list(range(COUNT))


@KINDS
@WORKERS
def test_interrupted_next_loses_no_batch_of_an_iterable(make: Any, workers: int) -> None:
    got, _ = _run(make(Stream(), workers, batch_size=2))
    assert sorted(_flat(got)) == list(range(COUNT))


class EarlyEnd(Agreement):
    """An agreement in which each step finds a rank that has ended one step before, which may be. `shown`: the steps."""

    def __init__(self) -> None:
        super().__init__(LoaderIdentity(["train.py:1"]), 0, 2)
        self._remainder = Remainder(ALLOWED)
        self.shown: list[int] = []

    def step(self, steps: int) -> tuple[int, int]:
        self.shown.append(steps)
        return 1, steps - 1


def _watched(loader: Any, agreement: EarlyEnd) -> Any:
    """Returns an iterator over a loader whose steps are shown."""
    iterator = iter(loader)
    iterator.watch = Watch(agreement, iterator.epoch, lambda: None)
    iterator.watch.show_step = agreement.step
    return iterator


@KINDS
@WORKERS
def test_interrupted_next_shows_each_step_and_loses_no_batch(make: Any, workers: int) -> None:
    agreement = EarlyEnd()
    with Interrupter() as interrupter:
        got = list(interrupter.all_of(_watched(make(Samples(), workers, batch_size=2), agreement)))
    assert _flat(got) == list(range(COUNT))
    assert list(dict.fromkeys(agreement.shown)) == list(range(1, COUNT // 2 + 1))
    assert len(agreement.shown) > COUNT // 2, "no step was shown again after an interruption in check_end"


@KINDS
@WORKERS
def test_disagreement_of_ranks_keeps_the_batch(make: Any, workers: int) -> None:
    agreement = EarlyEnd()
    iterator = _watched(make(Samples(), workers, batch_size=COUNT), agreement)
    agreement._facts, agreement._remainder = Facts(*[COUNT] * 6), Remainder()
    for _ in range(2):
        with pytest.raises(headrace.RanksDisagree, match=r"train\.py:1"):
            next(iterator)
    agreement._remainder = Remainder(ALLOWED)
    assert _flat([next(iterator)]) == list(range(COUNT))
    assert agreement.shown == [1, 1, 1]


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


class Continued(Stream):
    """A stream with a state, which workers send with each batch."""

    def state_dict(self) -> dict[str, int]:
        return {"n": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise AssertionError("no worker is replaced")


@KINDS
@WORKERS
@pytest.mark.parametrize("kind", [Samples, Stream, Continued])
def test_interrupted_next_counts_each_batch_once(make: Any, workers: int, kind: Any) -> None:
    """The state of the loader is right after each batch, wherever next() was interrupted before."""
    loader = make(kind(), workers, batch_size=2)
    with Interrupter() as interrupter:
        for number, _ in enumerate(interrupter.all_of(iter(loader)), start=1):
            state = json.loads(loader.state_dict()["headrace"])
            done = (state["epoch"], state["steps"])
            assert done == (0, number) or (number == COUNT // 2 and done == (1, 0))
            places = state["workers"][1:]
            assert sum(place[2] for place in places) == (number if places else 0)


@KINDS
@WORKERS
def test_interrupted_next_after_a_resume_loses_no_batch(make: Any, workers: int) -> None:
    loader = make(Samples(), workers, batch_size=2, shuffle=True)
    iterator = iter(loader)
    seen = [next(iterator) for _ in range(50)]
    state = loader.state_dict()
    loader = make(Samples(), workers, batch_size=2, shuffle=True)
    loader.load_state_dict(state)
    got, _ = _run(loader)
    assert sorted(_flat([*seen, *got])) == list(range(COUNT))


class Begins:
    """An iterator whose next() is iter() of a loader, for the interrupter."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Begins:
        return self

    def __next__(self) -> Any:
        return iter(self.loader)


@KINDS
def test_interrupted_iter_keeps_the_state_that_was_loaded(make: Any) -> None:
    loader = make(Samples(), 0, batch_size=2, shuffle=True, seed=3)
    iterator = iter(loader)
    for _ in range(50):
        next(iterator)
    state, following = loader.state_dict(), next(iterator)
    with Interrupter(step=5) as interrupter:
        while not interrupter.rounds:
            other = make(Samples(), 0, batch_size=2, shuffle=True, seed=3)
            other.load_state_dict(state)
            iterator = interrupter.next(Begins(other))
            assert other.state_dict() == state
            assert torch.equal(next(iterator), following) and other.last.epoch == 0 and other.last.step == 50
    assert interrupter.interruptions > 30


class Few(Samples):
    """Three batches of two samples."""

    def __len__(self) -> int:
        return 6


class FewStreamed(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return map(torch.tensor, [[0], [1], [2], [3], [4], [5]])


@KINDS
@WORKERS
@pytest.mark.parametrize("kind", [Few, FewStreamed])
@pytest.mark.parametrize("steps", [3, 4])
def test_interrupted_begin_of_a_pass_loses_no_batch(make: Any, workers: int, kind: Any, steps: int) -> None:
    """With steps_per_epoch, next() begins the pass that comes next: at the first step of an epoch, or later."""
    workers = min(workers, 1) if kind is FewStreamed else workers
    with Interrupter(step=331 if workers else 23) as interrupter:
        while not interrupter.rounds:
            loader = make(kind(), workers, batch_size=2, steps_per_epoch=steps, persistent_workers=workers > 0)
            got = list(loader) if steps == 3 else []
            iterator = iter(loader)
            got += [next(iterator) for _ in range(6 - len(got) - 3)]
            got.append(interrupter.next(iterator))
            assert loader.last.step == 3 % steps and loader.steps_left == steps - 1 - 3 % steps
            got += [*iterator, *loader, *loader]
            assert _flat(got)[:24] == list(range(6)) * 4 and len(got) == (4 if steps == 3 else 3) * steps
    assert interrupter.interruptions > 2  # CPython 3.14 has fewer instructions for the same code


def _in_flight(iterator: Any) -> int:
    core = iterator._engine.keeper
    return core.owed + sum(len(core.tasks(worker)) for worker in range(2))


@KINDS
def test_interrupted_next_keeps_as_many_batches_in_flight(make: Any) -> None:
    iterator = iter(make(Samples(), 2, batch_size=2, prefetch_factor=3))
    with Interrupter() as interrupter:
        for _ in range(COUNT // 2 - 6):
            interrupter.next(iterator)
            assert _in_flight(iterator) == 6
            assert iterator._engine.keeper.owed == 0
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


class SlowSamples(Samples):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.0002)
        return super().__getitem__(index)


@KINDS
@WORKERS
def test_alarms_lose_no_batch(make: Any, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # An alarm in a destructor raises there, and pytest's hook for such exceptions would be interrupted by the next one.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)

    def interrupt(number: int, frame: Any) -> None:
        if not frame.f_code.co_filename.endswith("test_interrupted.py"):  # else next() has returned the batch already
            raise Interruption

    handler = signal.signal(signal.SIGALRM, interrupt)
    interruptions, got = 0, []
    iterator = iter(make(SlowSamples(), workers, batch_size=2, shuffle=True))
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


@KINDS
def test_interrupted_error_and_interruption_both_come_once(make: Any) -> None:
    with Interrupter(step=47) as interrupter:
        got = list(interrupter.all_of(iter(make(Samples(every_bad=1), 2, batch_size=2))))
    assert interrupter.rounds >= 1
    # The last next() may be interrupted, too: it raises StopIteration.
    assert interrupter.interruptions - (len(got) - interrupter.rounds) in (0, 1)
    assert len(got) == COUNT // 2
    assert all(f"sample {2 * number} is bad" in str(error) for number, error in enumerate(got))


class Restarts:
    """An iterator that gives the numbers below `count`, and after its end gives them again."""

    def __init__(self, count: int) -> None:
        self.count, self.given = count, 0

    def __iter__(self) -> Restarts:
        return self

    def __len__(self) -> int:
        return self.count

    def __next__(self) -> int:
        if self.given == self.count:
            self.given = 0
            raise StopIteration
        self.given += 1
        return self.given - 1


@KINDS
@WORKERS
@pytest.mark.parametrize("drop_last", [False, True])
def test_restarting_sampler_gives_what_torch_gives(make: Any, workers: int, drop_last: bool) -> None:
    """Torch's BatchSampler asks for another batch after a short one, and ends if that one is empty."""
    got = make(Samples(), workers, batch_size=4, sampler=Restarts(10), drop_last=drop_last)
    torchs = torch.utils.data.BatchSampler(Restarts(10), 4, drop_last)
    assert [batch.flatten().tolist() for batch in itertools.islice(got, 8)] == list(itertools.islice(torchs, 8))


class RestartingStream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return map(torch.tensor, Restarts(10))


@KINDS
@WORKERS
def test_iterable_that_restarts_after_its_end_gives_one_epoch(make: Any, workers: int) -> None:
    got = list(make(RestartingStream(), min(workers, 1), batch_size=4))
    assert _flat(got) == list(range(10))


@KINDS
def test_generator_in_another_thread_does_not_end_the_epoch(make: Any) -> None:
    iterator = iter(make(Samples(), 0, batch_size=1, sampler=_slow_numbers()))
    got: list[Any] = []

    def take() -> None:
        while True:
            try:
                got.append(next(iterator))
            except StopIteration:
                return
            except ValueError as error:
                assert "already executing" in str(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(_flat(got)) == list(range(200))


def _slow_numbers() -> Any:
    for number in range(200):
        time.sleep(0.0001)  # another thread comes meanwhile
        yield number


@KINDS
@WORKERS
@pytest.mark.parametrize("policy", ["raise", "skip", "refill"])
def test_sampler_that_raises_early_loses_no_batch_before_it(make: Any, workers: int, policy: str) -> None:
    iterator = iter(make(Samples(), workers, batch_size=2, sampler=_generator(13), on_bad_sample=policy))
    got = []
    with pytest.raises(ValueError, match="the sampler's generator raises"):
        for one in iterator:
            got.append(one)
    with pytest.warns(UserWarning, match="ended after"):
        got += list(iterator)
    assert _flat(got) == list(range(12))


def _raise_once(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise Interruption


class RaisesInSample(Samples):
    """Sends the own process a signal in some samples, once each."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: set[int] = set()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index % 7 == 3 and index not in self.sent:
            self.sent.add(index)
            signal.signal(signal.SIGUSR2, _raise_once)
            signal.raise_signal(signal.SIGUSR2)
        return super().__getitem__(index)


@KINDS
def test_handler_that_removes_itself_and_raises_loses_no_sample(make: Any) -> None:
    iterator = iter(make(RaisesInSample(), 0, batch_size=3))
    got, interruptions = [], 0
    while True:
        try:
            got.append(next(iterator))
        except Interruption:
            interruptions += 1
        except StopIteration:
            break
    assert _flat(got) == list(range(40))
    assert interruptions == 6


@KINDS
def test_interrupted_batch_that_can_be_read_once_comes_whole(make: Any) -> None:
    batches = [iter(range(first, first + 3)) for first in range(0, COUNT - 3, 3)]
    got, _ = _run(make(Samples(), 0, batch_sampler=batches))
    assert _flat(got) == list(range(3 * len(batches)))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{"replacement": True, "num_samples": COUNT}, {"num_samples": 2 * COUNT + 3}, {}])
def test_interrupted_random_sampler_gives_the_same_samples(workers: int, options: dict[str, Any]) -> None:
    def loader(kind: Any, workers: int) -> Any:
        generator = torch.Generator().manual_seed(4)
        sampler = torch.utils.data.RandomSampler(range(COUNT), generator=generator, **options)
        context = "fork" if workers else None
        return kind(
            Samples(), 3, sampler=sampler, generator=generator, num_workers=workers, multiprocessing_context=context
        )

    expected = _flat(list(loader(torch.utils.data.DataLoader, 0)))
    got, _ = _run(loader(Headrace, workers))
    assert _flat(got) == expected


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_interrupted_lists_of_a_random_sampler_lose_nothing(replacement: bool, own: bool) -> None:
    def lists() -> Any:
        torch.manual_seed(4)
        generator = torch.Generator().manual_seed(4) if own else None
        sampler = torch.utils.data.RandomSampler(range(32), replacement, num_samples=32 * 400 + 3, generator=generator)
        return _core.Tasks(Lists(sampler, torch.utils.data.RandomSampler, 32, skipped=70), 0, False, True)

    with Interrupter() as interrupter:
        assert list(interrupter.all_of(lists())) == list(lists())
    assert interrupter.rounds >= 1


class Short(list[int]):
    """Indices that are fewer than their length says."""

    def __getitem__(self, index: Any) -> Any:
        raise IndexError("this index does not exist")


def test_index_error_of_a_random_sampler_does_not_end_the_epoch() -> None:
    sampler = torch.utils.data.SubsetRandomSampler(Short([1, 2, 3]))
    with pytest.raises(IndexError, match="this index does not exist"):
        list(Headrace(Samples(), 1, sampler=sampler))


def test_random_sampler_with_endless_samples_starts_at_once() -> None:
    sampler = torch.utils.data.RandomSampler(range(COUNT), num_samples=10**12)
    iterator = iter(Headrace(Samples(), 4, sampler=sampler, num_workers=1, multiprocessing_context="fork"))
    assert len(next(iterator)) == 4


@KINDS
@WORKERS
def test_iterator_is_freed_without_a_garbage_collection(make: Any, workers: int) -> None:
    dataset = Samples()
    iterator = iter(make(dataset, workers, batch_size=2))
    next(iterator)
    gc.collect()
    gc.disable()
    try:
        reference = weakref.ref(iterator)
        del iterator
        assert reference() is None
    finally:
        gc.enable()


def test_put_off_signals_all_arrive_once() -> None:
    arrived: list[int] = []

    def note(number: int, frame: Any) -> None:
        arrived.append(number)

    def note_and_raise(number: int, frame: Any) -> None:
        arrived.append(number)
        raise Interruption

    def send() -> None:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)
        assert arrived == []

    before = signal.signal(signal.SIGUSR1, note_and_raise), signal.signal(signal.SIGUSR2, note)
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    wakeup = signal.set_wakeup_fd(writable)
    try:
        with pytest.raises(Interruption):
            without_signals(send)
        assert sorted(arrived) == [signal.SIGUSR1, signal.SIGUSR2]
        assert sorted(os.read(readable, 10)) == sorted(arrived), "what asyncio reads"
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGUSR2, before[1])
        os.close(readable)
        os.close(writable)


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
