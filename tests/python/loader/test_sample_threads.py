# SPDX-License-Identifier: Apache-2.0
"""sample_threads: samples that are made at a time, in both loaders, are those that one thread makes."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import gc
import io
import itertools
import mmap
import os
import pathlib
import random
import re
import signal
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import numpy as np
import pytest
import torch.utils.data
from headrace._commands import replay
from headrace._loader.trainer import shown
from headrace._samples import threads
from headrace.torch import DataLoader
from interruptions import Interruption
from loaders import needs_failpoints, only_headrace
from mishaps import Marks, collected_warnings, die
from processes import until

pytestmark = only_headrace
COUNT, BATCH, THREADS = 24, 4, 8
PATIENCE_S = 60.0
LOADERS = pytest.mark.parametrize("kind", [headrace.Loader, DataLoader])
WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Dataset(torch.utils.data.Dataset[Any]):
    """The samples are made by a function of the index."""

    def __init__(self, make: Callable[[int], Any], count: int = COUNT) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(int(index))


def loader_of(kind: Any, make: Any, workers: int = 0, threads: int = THREADS, **options: Any) -> Any:
    dataset = Dataset(make) if callable(make) else make
    if workers:
        options.setdefault("multiprocessing_context", "fork")
    return kind(dataset, **{"batch_size": BATCH, "num_workers": workers, "sample_threads": threads, **options})


def listed(loader: Any) -> list[Any]:
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in loader]


def chained(batches: Any) -> list[Any]:
    return list(itertools.chain.from_iterable(batches))


def sleep_briefly(index: int) -> None:
    time.sleep(random.Random(index).choice((0, 0, 0.0005, 0.002)))


# ---- at a time ----


@LOADERS
@WORKERS
def test_samples_of_a_batch_are_made_at_the_same_time(kind: Any, workers: int) -> None:
    together = threading.Barrier(BATCH)

    def make(index: int) -> int:
        together.wait(PATIENCE_S)  # for all of a batch
        return index

    assert listed(loader_of(kind, make, workers, BATCH)) == [
        list(range(at, at + BATCH)) for at in range(0, COUNT, BATCH)
    ]


@LOADERS
def test_samples_of_the_next_batches_are_begun_early(kind: Any) -> None:
    together = threading.Barrier(3 * BATCH)

    def make(index: int) -> int:
        together.wait(PATIENCE_S)  # for all of three batches
        return index

    loader = loader_of(kind, make, 1, 3 * BATCH, prefetch_factor=3)
    assert chained(listed(loader)) == list(range(COUNT))


@LOADERS
def test_loader_without_workers_begins_nothing_early(kind: Any) -> None:
    begun: list[int] = []
    for number, batch in enumerate(loader_of(kind, lambda index: begun.append(index) or index), 1):
        assert len(batch) == BATCH
        assert sorted(begun) == list(range(number * BATCH))


@LOADERS
def test_single_samples_are_made_at_the_same_time(kind: Any) -> None:
    together = threading.Barrier(4)

    def make(index: int) -> int:
        together.wait(PATIENCE_S)
        return index

    assert listed(loader_of(kind, make, 1, 4, batch_size=None, prefetch_factor=4)) == list(range(COUNT))


def test_workers_that_persist_keep_their_threads() -> None:
    loader = loader_of(DataLoader, lambda index: index, 2, persistent_workers=True)
    assert listed(loader) == listed(loader) == listed(loader_of(DataLoader, lambda index: index, 0, 1))


# ---- the same as without ----


def random_sample(index: int) -> float:
    sleep_briefly(index)
    first = headrace.sample_generator("numpy").random()
    assert headrace.sample_generator("numpy") is headrace.sample_generator()
    return float(first + headrace.sample_generator("random").random() + headrace.sample_generator("numpy").random())


def late_random_sample(index: int) -> float:
    time.sleep(0.01)
    return random_sample(index)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"shuffle": True},
    {"batch_size": None},
    {"drop_last": True, "batch_size": 5},
    {"batch_size": 3, "shuffle": True, "prefetch_factor": 5},
    {"in_order": False},
    {"rng": "sample", "shuffle": True},
    {"retries": 1},
]


@LOADERS
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_are_those_of_one_thread(kind: Any, options: dict[str, Any]) -> None:
    def epochs(workers: int, threads: int) -> list[Any]:
        torch.manual_seed(3)
        given = {key: value for key, value in options.items() if workers or key not in ("prefetch_factor", "in_order")}
        if threads == 1:
            given["rng"] = "sample"  # the generators of samples are those that threads have
        loader = loader_of(kind, random_sample, workers, threads, seed=7, **given)
        found = [listed(loader) for _ in range(2)]
        return [sorted(epoch, key=str) for epoch in found] if "in_order" in options else found

    expected = epochs(0, 1)
    assert expected[0] != expected[1]
    assert epochs(0, THREADS) == epochs(2, THREADS) == epochs(2, 1) == expected


@LOADERS
@WORKERS
def test_epoch_goes_on_from_a_state(kind: Any, workers: int) -> None:
    def make() -> Any:
        torch.manual_seed(3)
        return loader_of(kind, random_sample, workers, shuffle=True, seed=7)

    whole, loader = listed(make()), make()
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    del iterator
    other = make()
    other.load_state_dict(state)
    assert listed(other) == whole[2:]


@WORKERS
def test_index_that_is_drawn_twice_has_other_numbers(workers: int) -> None:
    batches = listed(loader_of(DataLoader, random_sample, workers, sampler=[5, 5, 6, 5], seed=7))
    assert len(set(batches[0])) == 4


class Failing:
    """Sample 5 fails twice with an error that passes, sample 9 always with one that does not."""

    def __init__(self) -> None:
        self.left = {5: 2}

    def __call__(self, index: int) -> int:
        sleep_briefly(index)
        if self.left.get(index, 0):
            self.left[index] -= 1
            raise TimeoutError(f"sample {index} was late")
        if index == 9:
            raise ValueError("sample 9 is bad")
        return index


@LOADERS
@pytest.mark.parametrize("word", ["skip", "refill"])
def test_bad_samples_and_retries_are_as_with_one_thread(kind: Any, word: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("headrace._samples.retry._FIRST_WAIT_S", 0.001)

    def run(workers: int, threads: int) -> Any:
        loader = loader_of(kind, Failing(), workers, threads, on_bad_sample=word, retries=3, seed=1)
        with collected_warnings():
            batches = listed(loader)
        report = loader.report()
        return batches, report["retried"], [(one.index, one.error) for one in report["bad_samples"]]

    expected = run(0, 1)
    assert expected[1:] == (2, [(9, "ValueError: sample 9 is bad")])
    assert run(0, THREADS) == run(1, THREADS) == expected


def test_decisions_of_the_users_function_are_made_in_order() -> None:
    asked: list[int] = []

    def decide(index: int, error: Exception) -> str:
        asked.append(index)
        return "skip"

    def make(index: int) -> int:
        sleep_briefly(-index)
        if index % 2:
            raise ValueError("odd")
        return index

    with collected_warnings():
        assert chained(listed(loader_of(DataLoader, make, 0, on_bad_sample=decide))) == list(range(0, COUNT, 2))
    assert asked == list(range(1, COUNT, 2))


@WORKERS
def test_cached_samples_are_made_in_threads(workers: int, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    loader = loader_of(DataLoader, lambda index: sleep_briefly(index) or index, workers, cache="1M")
    assert listed(loader) == listed(loader) == listed(loader_of(DataLoader, lambda index: index, 0, 1))


def test_mixture_of_sources() -> None:
    sources = {name: Dataset(lambda index, add=add: add + index, 10) for name, add in (("a", 0), ("b", 100))}
    mix = headrace.Mixture(sources, {"a": 1, "b": 1}, seed=3)

    def batches(workers: int, threads: int) -> list[Any]:
        return listed(loader_of(DataLoader, mix.dataset, workers, threads, sampler=mix))

    assert batches(0, THREADS) == batches(2, THREADS) == batches(0, 1)


# ---- what a thread sees ----

decimals: contextvars.ContextVar[int] = contextvars.ContextVar("decimals", default=0)


def test_threads_see_the_modes_and_variables_of_the_loop() -> None:
    seen: list[tuple[Any, ...]] = []

    def make(index: int) -> int:
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), decimals.get()))
        decimals.set(99)  # of this sample only
        return index

    token = decimals.set(3)
    try:
        with torch.no_grad():
            listed(loader_of(DataLoader, make))
            assert set(seen) == {(False, False, 3)}
        seen.clear()
        with torch.inference_mode():
            listed(loader_of(DataLoader, make))
        assert set(seen) == {(False, True, 3)}
        seen.clear()
        listed(loader_of(DataLoader, make))
        assert set(seen) == {(True, False, 3)}
    finally:
        decimals.reset(token)


@LOADERS
def test_threads_see_the_worker_and_its_number_of_threads(kind: Any) -> None:
    module: Any = torch.utils.data if kind is DataLoader else headrace

    def make(index: int) -> tuple[int, int]:
        return module.get_worker_info().id, torch.get_num_threads()

    batches = list(loader_of(kind, make, 2))
    for number, (ids, counts) in enumerate(batches):
        assert set(np.asarray(ids).tolist()) == {number % 2}
        assert set(np.asarray(counts).tolist()) == {1}


# ---- exceptions ----


@LOADERS
@WORKERS
def test_exception_is_that_of_the_first_sample_in_order(kind: Any, workers: int) -> None:
    has_raised = threading.Event()

    def make(index: int) -> int:
        if index == 6:
            has_raised.set()
            raise ValueError("of sample 6")
        if index == 5:
            assert has_raised.wait(PATIENCE_S)
            raise KeyError("of sample 5")
        return index

    iterator = iter(loader_of(kind, make, workers))
    next(iterator)
    with pytest.raises(Exception, match="of sample 5") as caught:
        next(iterator)
    if workers:
        assert any("sample 5 of batch 1, [4, 5, 6, 7]" in note for note in caught.value.__notes__)
    assert np.asarray(next(iterator)).tolist() == [8, 9, 10, 11]


def test_samples_behind_an_exception_are_not_begun() -> None:
    begun: list[int] = []

    def make(index: int) -> int:
        begun.append(index)
        if index == 1:
            raise ValueError("no")
        return index

    with pytest.raises(ValueError, match="no"):
        listed(loader_of(DataLoader, make, 0, 2, batch_size=COUNT))
    assert len(begun) < COUNT // 2


def test_system_exit_of_a_sample_ends_the_worker() -> None:
    def make(index: int) -> int:
        if index == 5:
            raise SystemExit(7)
        return index

    with pytest.raises(RuntimeError, match="exit code 7"):
        listed(loader_of(DataLoader, make, 1))


def test_handler_that_raises_loses_no_batch() -> None:
    is_made = threading.Event()

    def make(index: int) -> int:
        if index == 5 and not is_made.is_set():
            is_made.set()
            os.kill(os.getpid(), signal.SIGUSR1)
        return index

    def raise_it(number: int, frame: Any) -> None:
        raise Interruption

    before = signal.signal(signal.SIGUSR1, raise_it)
    try:
        found: list[Any] = []
        iterator = iter(loader_of(DataLoader, make))
        interruptions = 0
        while True:
            try:
                found.append(next(iterator).tolist())
            except Interruption:
                interruptions += 1
            except StopIteration:
                break
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert interruptions == 1
    assert chained(found) == list(range(COUNT))


# ---- random numbers ----

DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "numpy": np.random.rand,
    "torch": lambda: float(torch.rand(())),
}


@LOADERS
@WORKERS
@pytest.mark.parametrize("library", DRAWS)
def test_samples_that_draw_from_the_process_are_found(kind: Any, workers: int, library: str) -> None:
    iterator = iter(loader_of(kind, lambda index: DRAWS[library](), workers))
    words = rf"random numbers were drawn from the generator of {library} .*sample_generator\(\"{library}\"\)"
    with pytest.raises(RuntimeError, match=words):
        list(iterator)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_single_sample_that_draws_is_found(library: str) -> None:
    def make(index: int) -> float:
        return DRAWS[library]() if index == 6 else 0.0

    with pytest.raises(RuntimeError, match=f"the generator of {library} "):
        listed(loader_of(DataLoader, make))


@WORKERS
def test_client_that_waits_for_a_random_time_is_a_warning(workers: int) -> None:
    def make(index: int) -> int:
        if index in (2, 13):
            time.sleep(random.random() * 0.001)
        return index

    with collected_warnings() as texts:
        assert chained(listed(loader_of(DataLoader, make, workers))) == list(range(COUNT))
    if not workers:
        assert sum("If it was a library that waited" in text for text in texts) == 1


def seed_random(index: int) -> float:
    random.seed(index)
    drawn = random.random()
    time.sleep(0.001)
    drawn += random.random()
    random.seed()
    return drawn


def restore_random(index: int) -> float:
    state = random.getstate()
    random.seed(index)
    drawn = random.random()
    time.sleep(0.001)
    drawn += random.random()
    random.setstate(state)
    return drawn


def restore_numpy(index: int) -> float:
    state = np.random.get_state()
    np.random.seed(index)
    drawn = np.random.rand()
    time.sleep(0.001)
    drawn += np.random.rand()
    np.random.set_state(state)
    return float(drawn)


def fork_torch(index: int) -> float:
    with torch.random.fork_rng():
        torch.manual_seed(index)
        drawn = float(torch.rand(()))
        time.sleep(0.001)
        return drawn + float(torch.rand(()))


SETTERS = [seed_random, restore_random, restore_numpy, fork_torch]


@pytest.mark.parametrize("make", SETTERS)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_samples_that_put_the_state_back_are_found(make: Callable[[int], float], batch_size: int) -> None:
    """In a batch of one, no other thread looks while the state is another one."""
    if make is restore_numpy and sys.gettrace() is not None:
        pytest.skip("nothing is traced within a traced test")
    random.seed(0)
    with pytest.raises(RuntimeError, match="random numbers were drawn"):
        listed(loader_of(DataLoader, make, batch_size=batch_size))


@WORKERS
def test_samples_of_each_epoch_are_watched(workers: int) -> None:
    class Sometimes:
        def __init__(self) -> None:
            self.seeds = torch.zeros(1).share_memory_()

        def __call__(self, index: int) -> float:
            return fork_torch(index) if self.seeds else 0.0

    make = Sometimes()
    loader = loader_of(DataLoader, make, workers, persistent_workers=workers > 0)
    assert chained(listed(loader)) == [0.0] * COUNT
    make.seeds.fill_(1)
    with pytest.raises(RuntimeError, match="random numbers were drawn"):
        listed(loader)


@pytest.mark.parametrize("is_for_all", [True, False])
def test_watch_leaves_the_users_profiler_alone(is_for_all: bool) -> None:
    """Holds also if a sample of the first batch sets one, for its thread."""
    calls: list[str] = []

    def see(frame: Any, event: str, argument: Any) -> None:
        calls.append(frame.f_code.co_name)

    threads_with_one = set()

    def made(index: int) -> int:
        if not is_for_all and threading.get_ident() not in threads_with_one:
            threads_with_one.add(threading.get_ident())
            sys.setprofile(see)
        return after(index)

    def after(index: int) -> int:
        return index

    threading.setprofile(see if is_for_all else None)
    try:
        assert chained(listed(loader_of(DataLoader, made))) == list(range(COUNT))
    finally:
        threading.setprofile(None)
    assert calls.count("after") == 2 * COUNT  # its call and its return


def test_loop_may_draw_after_a_first_batch_that_raises() -> None:
    def make(index: int) -> int:
        if index == 1:
            raise ValueError("sample 1 is bad")
        return index

    iterator = iter(loader_of(DataLoader, make))
    with pytest.raises(ValueError, match="sample 1 is bad"):
        next(iterator)
    random.random(), np.random.rand(), torch.rand(())
    assert chained(batch.tolist() for batch in iterator) == list(range(BATCH, COUNT))


@LOADERS
@pytest.mark.parametrize("options", [{"rng": "sample"}, {"sample_threads": THREADS}, {}], ids=str)
def test_threads_that_share_an_iterator_get_all_samples(kind: Any, options: dict[str, Any]) -> None:
    """Samples draw twice, and threads change in between."""

    def make(index: int) -> tuple[int, float, float]:
        draw = np.random if options.get("rng") else headrace.sample_generator("numpy")
        first = draw.random()
        time.sleep(0.001)
        return index, first, draw.random()

    def samples(readers: int) -> dict[int, Any]:
        iterator = iter(kind(Dataset(make), BATCH, num_workers=0, seed=3, collate_fn=list, **options))
        found: dict[int, Any] = {}

        def read() -> None:
            for batch in iterator:
                found.update({index: numbers for index, *numbers in batch})

        threads = [threading.Thread(target=read) for _ in range(readers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    expected = samples(1)
    assert sorted(expected) == list(range(COUNT))
    found = samples(3)
    assert found == expected if options else found.keys() == expected.keys()


@WORKERS
def test_collate_function_may_draw(workers: int) -> None:
    def collate(samples: list[int]) -> list[float]:
        return [random.random() + np.random.rand() + float(torch.rand(())) for _ in samples]

    batches = listed(loader_of(DataLoader, lambda index: index, workers, collate_fn=collate))
    assert len(set(chained(batches))) == COUNT


def test_generators_of_samples_belong_to_seed_epoch_and_index() -> None:
    def make(index: int) -> tuple[float, float, float]:
        return (
            headrace.sample_generator("numpy").random(),
            headrace.sample_generator("random").random(),
            float(torch.rand((), generator=headrace.sample_generator("torch"))),
        )

    def epoch(seed: int) -> list[Any]:
        return [torch.stack(list(batch)).tolist() for batch in loader_of(DataLoader, make, 0, seed=seed)]

    assert epoch(1) == epoch(1) != epoch(2)


def test_replay_makes_a_sample_with_its_numbers() -> None:
    dataset = Dataset(random_sample)
    (batch, *_) = listed(loader_of(DataLoader, dataset, seed=7))
    get = replay._getter(dataset, 7, 0, 0)
    assert [get(index)[0] for index in range(BATCH)] == batch


def test_generator_elsewhere_follows_the_process() -> None:
    def draw(library: str) -> float:
        generator = headrace.sample_generator(library)
        return float(torch.rand((), generator=generator)) if library == "torch" else float(generator.random())

    for library, seed in {"numpy": np.random.seed, "random": random.seed, "torch": torch.manual_seed}.items():
        seed(5)
        first = [draw(library), draw(library)]
        seed(5)
        assert [draw(library), draw(library)] == first
        assert first[0] != first[1]
    with pytest.raises(ValueError, match='takes "numpy", "torch" or "random", but got \'jax\''):
        headrace.sample_generator("jax")


# ---- what threads cannot share ----


class Holding(Dataset):
    """A dataset whose samples use an object that it holds."""

    def __init__(self, held: Any) -> None:
        super().__init__(self.use)
        self.held = held

    def use(self, index: int) -> int:
        return index if self.held is not None else 0


class Batched(Dataset):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


@contextlib.contextmanager
def held(name: str, folder: pathlib.Path) -> Iterator[Any]:
    path = folder / "file"
    path.write_bytes(b"bytes")
    closing: Any = contextlib.closing
    with contextlib.ExitStack() as stack:
        makers: dict[str, Callable[[], Any]] = {
            "file": lambda: stack.enter_context(path.open("rb")),
            "database": lambda: stack.enter_context(closing(sqlite3.connect(folder / "data", check_same_thread=False))),
            "cursor": lambda: stack.enter_context(closing(sqlite3.connect(folder / "data"))).cursor(),
            "iterator": lambda: iter(range(9)),
            "generator": lambda: (one for one in range(9)),
            "numpy": np.random.default_rng,
            "random": random.Random,
            "torch": torch.Generator,
            "list": lambda: [random.Random(3)],
            "buffer": lambda: io.BytesIO(b"bytes"),
            "partial": lambda: functools.partial(io.BufferedReader.read, stack.enter_context(path.open("rb"))),
        }
        yield makers[name]()


REFUSED = {
    "file": r"dataset.held \(BufferedReader, .*file'\).*local.file = open\(",
    "database": r"dataset.held \(Connection, a database of SQLite\)",
    "cursor": r"dataset.held \(Cursor, a cursor of SQLite\).*local.file = sqlite3.connect\(...\).cursor\(\)",
    "iterator": r"dataset.held \(range_iterator, an iterator\).*from its index",
    "generator": r"dataset.held \(generator, an iterator\)",
    "numpy": "random number generators.*dataset.held",
    "random": "random number generators.*dataset.held",
    "torch": "random number generators.*dataset.held",
    "list": r"random number generators.*dataset.held\[0\]",
    "buffer": r"dataset.held \(BytesIO, with a position\)",
    "partial": r"\(BufferedReader, .*file'\)",
}


@LOADERS
@pytest.mark.parametrize("name", REFUSED)
def test_objects_that_threads_would_share_are_refused(kind: Any, name: str, tmp_path: pathlib.Path) -> None:
    with held(name, tmp_path) as one:
        for workers in (0, 2):
            with pytest.raises(ValueError, match=f"(?s){REFUSED[name]}.*help sample-threads"):
                iter(loader_of(kind, Holding(one), workers))
            iter(loader_of(kind, Holding(one), 0, 1))


class Reading(Dataset):
    """Reads a file that it holds, and counts under a lock that does not protect the file."""

    def __init__(self, file: Any) -> None:
        super().__init__(self.read)
        self.file, self.lock, self.count_of_reads = file, threading.Lock(), 0

    def read(self, index: int) -> int:
        self.file.seek(index)
        return int(self.file.read(1)[0])

    def note(self) -> None:
        with self.lock:
            self.count_of_reads += 1


def test_lock_for_something_else_does_not_protect_a_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(COUNT)))
    with path.open("rb") as file:
        with pytest.raises(ValueError, match=r"threads would share dataset\.file"):
            iter(loader_of(DataLoader, Reading(file)))
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with pytest.raises(ValueError, match=r"threads would share dataset.file \(mmap, with a position\)"):
            iter(loader_of(DataLoader, Reading(mapped)))
        read = lambda index, file=file: index  # noqa: E731
        assert chained(listed(loader_of(DataLoader, lambda index: mapped[index]))) == list(range(COUNT))
        assert chained(listed(loader_of(DataLoader, read))) == list(range(COUNT))


def test_file_in_a_closure_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(COUNT)))
    with path.open("rb") as file:

        def make(index: int) -> int:
            file.seek(index)
            return file.read(1)[0]

        with pytest.raises(ValueError, match="threads would share"):
            iter(loader_of(DataLoader, make))


def test_generator_that_only_the_constructor_uses_is_not_refused() -> None:
    class Split(Dataset):
        def __init__(self) -> None:
            super().__init__(int)
            self.rng = random.Random(3)
            self.order = self.rng.sample(range(COUNT), COUNT)

        def __getitem__(self, index: int) -> int:
            return self.order[index]

    assert sorted(chained(listed(loader_of(DataLoader, Split())))) == list(range(COUNT))


@LOADERS
def test_refusal_uses_up_no_epoch(kind: Any) -> None:
    dataset = Holding(random.Random(3))
    loader = loader_of(kind, dataset, seed=7, shuffle=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="random number generators"):
            iter(loader)
    dataset.held = None
    torch.manual_seed(3)
    found = listed(loader)
    torch.manual_seed(3)
    assert found == listed(loader_of(kind, Holding(None), seed=7, shuffle=True))


@WORKERS
def test_database_that_the_first_sample_opens_is_explained(workers: int, tmp_path: pathlib.Path) -> None:
    opened: list[sqlite3.Connection] = []
    both = threading.Barrier(2)

    def make(index: int) -> int:
        if not index:
            opened.append(sqlite3.connect(tmp_path / "data"))
        both.wait(PATIENCE_S)
        try:
            return int(opened[0].execute("select 1").fetchone()[0])
        finally:
            both.wait(PATIENCE_S)
            if not index:
                opened[0].close()  # only this thread may

    with pytest.raises(sqlite3.ProgrammingError, match="same thread") as caught:
        next(iter(loader_of(DataLoader, make, workers, 2, batch_size=2)))
    shown = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert "sample_threads=2: several threads make samples" in shown
    assert "local.file = sqlite3.connect(...)" in shown


def test_locks_and_positions_of_their_own_are_not_refused(tmp_path: pathlib.Path) -> None:
    class Locked(Dataset):
        def __init__(self, file: io.BufferedReader) -> None:
            super().__init__(self.read)
            self.file, self.lock = file, threading.Lock()

        def read(self, index: int) -> int:
            with self.lock:
                self.file.seek(index)
                return self.file.read(1)[0]

    class Positioned(Locked):
        def __init__(self, file: io.BufferedReader) -> None:
            super().__init__(file)
            del self.lock

        def read(self, index: int) -> int:
            return os.pread(self.file.fileno(), 1, index)[0]

    path = tmp_path / "file"
    path.write_bytes(bytes(range(COUNT)))
    with path.open("rb") as file:
        for dataset in (Locked(file), Positioned(file)):
            assert chained(listed(loader_of(DataLoader, dataset))) == list(range(COUNT))


def test_getitems_of_the_users_is_refused() -> None:
    dataset = Batched(lambda index: index)
    with pytest.raises(ValueError, match="Batched has a __getitems__, which makes a whole batch"):
        iter(loader_of(DataLoader, dataset))
    with pytest.raises(ValueError, match="Batched has a __getitems__"):
        iter(loader_of(DataLoader, torch.utils.data.Subset(dataset, [1, 2])))
    subset = torch.utils.data.Subset(Dataset(lambda index: index), [4, 2, 1])
    assert listed(loader_of(DataLoader, subset)) == [[4, 2, 1]]


def test_iterable_datasets_and_bad_numbers_are_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(ValueError, match="sample_threads= needs a map-style dataset"):
        iter(DataLoader(Stream(), sample_threads=2))
    for number, error in ((0, ValueError), (-1, ValueError), (1025, ValueError), (2.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="sample_threads"):
            iter(loader_of(DataLoader, lambda index: index, 0, number))  # type: ignore[arg-type]


# ---- deaths ----


@LOADERS
@pytest.mark.parametrize("how", ["SIGKILL", "exit 3"])
def test_sample_that_kills_is_found_among_those_of_threads(kind: Any, how: str) -> None:
    def make(index: int) -> int:
        sleep_briefly(index)
        if index == 9:
            die(how)
        return index

    loader = loader_of(kind, make, 2, max_restarts=6, on_bad_sample="skip", prefetch_factor=3)
    with collected_warnings() as texts:
        assert chained(listed(loader)) == [index for index in range(COUNT) if index != 9]
    assert [one.index for one in loader.report()["bad_samples"]] == [9]
    assert any("making sample 9 killed its worker 2 times: it is not tried again" in text for text in texts)


@needs_failpoints
@LOADERS
@pytest.mark.parametrize(
    ("point", "number"),
    [("port.looked", 1), ("port.looked", 2), *itertools.product(("port.rung", "port.making"), (1, 2, 5))],
)
def test_worker_that_is_killed_is_replaced(
    kind: Any, point: str, number: int, tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    marks = Marks(tmp_path)

    def arm(worker: int) -> None:
        if marks.first("armed"):
            os.environ["HEADRACE_STOP"] = f"{point}:{int(signal.SIGKILL)}:{number}"

    dataset = Dataset(late_random_sample, 3 * COUNT)
    loader = loader_of(kind, dataset, 2, max_restarts=1, worker_init_fn=arm, seed=7, prefetch_factor=3)
    with collected_warnings() as texts:
        assert listed(loader) == listed(loader_of(kind, dataset, 0, 1, rng="sample", seed=7))
    assert any("replaces it (restart 1 of 1)" in text for text in texts)


def test_report_on_a_death_names_the_samples_of_the_threads() -> None:
    together = threading.Barrier(BATCH)

    def make(index: int) -> int:
        together.wait(PATIENCE_S)
        if index == 2:
            time.sleep(0.2)  # the others wait meanwhile
            die("SIGKILL")
        time.sleep(PATIENCE_S)
        return index

    with pytest.raises(RuntimeError, match=r"in a thread each at samples 0, 1, 2, 3 of batch 0, \[0, 1, 2, 3\]"):
        listed(loader_of(DataLoader, make, 1, BATCH))


def test_stall_is_reported_with_the_samples_that_run() -> None:
    def make(index: int) -> int:
        if index == 6:
            time.sleep(1.5)
        return index

    with collected_warnings() as texts:
        assert chained(listed(loader_of(DataLoader, make, 1, stall_after=0.4))) == list(range(COUNT))
    # On a busy machine the start of the worker is a stall too.
    text = next(text for text in texts if "no batch for" in text and "at sample 6 of batch 1" in text)
    assert "in make" in text  # the stack of the thread


RUNNING = re.compile(r"no batch for .*? (?:in a thread each at samples|at sample) ([0-9, ]+) of batch 0", re.DOTALL)


@pytest.mark.parametrize(("threads", "stalled", "named"), [(8, 6, 8), (40, 30, 1)])
def test_stall_names_the_sample_that_runs_longest(threads: int, stalled: int, named: int) -> None:
    """Takes a report that names one of 40 threads: 15 are recorded, and it may be that these have nothing to do."""
    waits, let_go = os.pipe()

    def make(index: int) -> int:
        if index >= stalled:
            os.read(waits, 1)
        return index

    found: list[tuple[list[int], str]] = []

    def see(message: Any, *_: Any) -> None:
        text = str(message)
        if (running := RUNNING.search(text)) is None:
            return
        samples = [int(number) for number in running[1].split(",")]
        if len(samples) >= named and min(samples) >= stalled:  # a report before that is one on a busy machine
            found.append((samples, text))
            os.write(let_go, bytes(40))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = see
        loader = loader_of(DataLoader, make, 1, threads, batch_size=40, stall_after=0.4, sampler=range(40))
        assert chained(listed(loader)) == list(range(40))
    os.close(waits)
    os.close(let_go)
    samples, text = found[0]
    assert samples[0] == stalled
    assert len(samples) == 1 or f"; for the longest time at sample {stalled}\n" in text
    if threads == 8:
        assert samples == list(range(6, 14))


def test_report_says_when_threads_have_too_little_to_do() -> None:
    def report(**options: Any) -> Any:
        loader = loader_of(DataLoader, lambda index: index, 1, 16, **options)
        listed(loader)
        return loader.report()["sample_threads"]

    assert report() == {
        "threads": 16,
        "at_a_time": 8,
        "advice": "raise prefetch_factor to 4: a worker has at most 8 samples to make",
    }
    assert report(prefetch_factor=4) == {"threads": 16, "at_a_time": 16, "advice": ""}
    assert report(batch_size=None, prefetch_factor=4)["at_a_time"] == 4
    assert report(batch_size=1, batch_sampler=[[1, 2], [3]])["at_a_time"] is None


# ---- ends ----


def sample_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("headrace-sample-")]


@LOADERS
def test_threads_end_with_the_iterator(kind: Any) -> None:
    loader = loader_of(kind, lambda index: index)
    list(loader)
    assert until(lambda: not sample_threads(), PATIENCE_S)
    iterator = iter(loader)
    next(iterator)
    assert len(sample_threads()) == THREADS
    del iterator
    gc.collect()
    assert until(lambda: not sample_threads(), PATIENCE_S)


def test_worker_whose_samples_wait_ends_by_the_deadline() -> None:
    def make(index: int) -> int:
        if index >= BATCH:
            time.sleep(PATIENCE_S)
        return index

    iterator = iter(loader_of(DataLoader, make, 1, shutdown_timeout=0.5))
    next(iterator)
    began = time.monotonic()
    del iterator
    gc.collect()
    assert time.monotonic() - began < 10


def test_samples_of_an_interrupted_batch_are_not_begun_later() -> None:
    begun: list[int] = []

    def make(index: int) -> int:
        begun.append(index)
        time.sleep(0.01)
        return index

    def interrupt(number: int, frame: Any) -> None:
        raise Interruption

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        iterator = iter(loader_of(DataLoader, make, 0, 2, batch_size=200, sampler=[0] * 400))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interruption):
            next(iterator)
        del iterator
        gc.collect()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert until(lambda: not sample_threads(), PATIENCE_S)
    assert len(begun) < 200


def test_sample_of_a_loader_without_batches_is_counted_once() -> None:
    iterator = iter(loader_of(DataLoader, lambda index: time.sleep(0.005) or index, 1, 4, batch_size=None))
    assert list(iterator) == list(range(COUNT))
    _, _, median_s = shown.slow_sample(iterator._show)
    assert median_s >= 0.003  # a second count of each would be of no time


def test_batch_that_cannot_be_begun_early_raises_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, begun = threads.SampleThreads.begin, itertools.count()

    def fail_twice(self: Any, batch: Any) -> None:
        if next(begun) in (1, 2):  # early, and in its turn
            raise MemoryError("no memory for a batch")
        begin(self, batch)

    monkeypatch.setattr(threads.SampleThreads, "begin", fail_twice)
    iterator = iter(loader_of(DataLoader, lambda index: sleep_briefly(index) or index, 1))
    found: list[Any] = []
    errors = 0
    for _ in range(COUNT // BATCH):
        try:
            found += next(iterator).tolist()
        except MemoryError:
            errors += 1
    assert errors == 1
    assert len(found) == COUNT - BATCH


def test_child_of_the_process_has_threads_of_its_own() -> None:
    iterator = iter(loader_of(DataLoader, lambda index: index))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    if not (child := os.fork()):
        is_right = next(iterator).tolist() == [4, 5, 6, 7]
        os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert next(iterator).tolist() == [4, 5, 6, 7]


def test_other_start_methods(start_method: str = "forkserver") -> None:
    for method in ("forkserver", "spawn", "headrace"):
        loader = DataLoader(
            torch.utils.data.TensorDataset(torch.arange(COUNT)),
            BATCH,
            num_workers=1,
            sample_threads=THREADS,
            multiprocessing_context=method,
        )
        assert [batch[0].tolist() for batch in loader] == [list(range(at, at + BATCH)) for at in range(0, COUNT, BATCH)]


def test_samples_are_freed_after_their_batch() -> None:
    alive: set[int] = set()
    lock = threading.Lock()

    class Sample:
        def __init__(self, index: int) -> None:
            self.index = index
            with lock:
                alive.add(index)

        def __del__(self) -> None:
            with lock:
                alive.discard(self.index)

    loader = loader_of(DataLoader, Sample, collate_fn=lambda samples: [one.index for one in samples])
    for batch in itertools.islice(loader, 3):
        assert until(lambda batch=batch: not alive & set(batch), PATIENCE_S)


def test_number_of_workers_that_is_found_while_it_runs() -> None:
    loader = loader_of(DataLoader, random_sample, "auto", seed=7, shuffle=True)  # type: ignore[arg-type]
    torch.manual_seed(3)
    found = listed(loader)
    torch.manual_seed(3)
    assert found == listed(loader_of(DataLoader, random_sample, 0, seed=7, shuffle=True))
    assert loader.report()["sample_threads"]["threads"] == THREADS
