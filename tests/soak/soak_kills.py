# SPDX-License-Identifier: Apache-2.0
"""Random kills of workers and trainers under Python, at instants and at points: every epoch is exact, and nothing is
left behind. `soak_kills.py [SECONDS [SEED]]`. What is drawn follows from the seed; when it happens does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pathlib
import random
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import headrace  # noqa: E402
import numpy as np  # noqa: E402
import sweep_host  # noqa: E402
from for_torch import ForTorch  # noqa: E402
from mishaps import Marks, Plan, Random, Resumable  # noqa: E402
from processes import children, private_bytes, shared_bytes, until  # noqa: E402

POINTS = re.findall(r'^ *POINT\(\w+, "([\w.]+)", (?!TRAINER)', (HERE / "../../src/os/failpoints.h").read_text(), re.M)
NOTHING = Plan(Marks(HERE))
COUNT = 240  # samples of an epoch
KILL_EVERY_S = {"fork": 0.06, "spawn": 5.0, "forkserver": 0.5}  # a worker's start must be shorter
TRAINER_LIVES_S = 0.3
WARM_UPS = 40
GONE_S = 1.0
TWICE = "killed its worker 2 times"


class Arrays(Random):
    """Arrays of many sizes, and random numbers."""

    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), np.full(1 + index % 7 * 20_000, index))


class Stream(Resumable):
    def __iter__(self) -> Any:
        for index in super().__iter__():
            yield index, np.full(1 + index % 7 * 20_000, index)


class Replayed(Stream):
    replayable = True
    state_dict = property()  # there is none: hasattr says so


class Killer:
    """Kills a worker of the newest loader every now and then, and has new ones killed at points."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.loader: Any = None
        self.method = "fork"
        self.kill_count = 0
        self.killed_at = 0.0
        self.recoveries: dict[str, list[float]] = {method: [] for method in KILL_EVERY_S}
        self.restarts = 0
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork)
        signal.signal(signal.SIGALRM, self._kill)

    @contextlib.contextmanager
    def at_work(self, loader: Any) -> Iterator[None]:
        self.loader, self.restarts, self.killed_at = loader, 0, 0.0
        self.method = loader.multiprocessing_context.get_start_method()
        self._wind()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.loader = None

    def _wind(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.chance.expovariate(1 / KILL_EVERY_S[self.method]) + 1e-4)

    def _kill(self, *_: object) -> None:
        if alive := self._workers():
            self.killed_at = time.monotonic()
            os.kill(self.chance.choice(alive), signal.SIGKILL)
            self.kill_count += 1
        self._wind()

    def _workers(self) -> list[int]:
        try:
            workers = self.loader.report()["per_worker"]
        except RuntimeError:  # it has none yet
            return []
        return sorted(children(os.getpid()) & {one["pid"] for one in workers})

    def _before_fork(self) -> None:
        if self.loader is not None and self.chance.random() < 0.2:
            os.environ["HEADRACE_STOP"] = f"{self.chance.choice(POINTS)}:9:{self.chance.randint(1, 30)}"

    def _after_fork(self) -> None:
        os.environ.pop("HEADRACE_STOP", None)

    def note_batch(self) -> None:
        """A batch was delivered: a recovery, if a worker was replaced since the kill."""
        restarts = self.loader.report()["restarts"]
        if restarts > self.restarts and self.killed_at:
            self.recoveries[self.method].append(time.monotonic() - self.killed_at)
        self.restarts, self.killed_at = restarts, 0.0


def draw_loader(chance: random.Random, seed: int, context: str | None = None) -> Any:
    kind = sweep_host.kind_of(chance.choice(["torch", "numpy"]))
    dataset: Any = chance.choice([Arrays, Stream, Replayed])(COUNT, NOTHING)
    options: dict[str, Any] = {
        "batch_size": chance.choice([None, 1, 4]),
        "num_workers": chance.randint(1, 4),
        "prefetch_factor": chance.choice([1, 2, 5]),
        "in_order": chance.random() < 0.7,
        "persistent_workers": chance.random() < 0.5,
        "multiprocessing_context": context or chance.choices(["fork", "spawn", "forkserver"], [98, 1, 1])[0],
        "arena_limit": chance.choice([None, 16 << 20]),
        "collate_fn": list,
        "max_restarts": 1_000_000,
    }
    if isinstance(dataset, Arrays):
        options |= {"rng": "sample", "seed": seed}
    elif kind is not headrace.Loader:
        dataset = ForTorch(dataset)
    if options["batch_size"] is None:
        del options["collate_fn"]
    return kind(dataset, **options)


def samples_of(batch: Any, is_batched: bool) -> list[Any]:
    samples = []
    for index, *numbers, array in batch if is_batched else [batch]:
        array = np.asarray(array)
        assert len(array) == 1 + int(index) % 7 * 20_000
        assert (array == int(index)).all()
        samples.append((int(index), [float(number) for number in numbers]))
    return samples


def run_epoch(loader: Any, killer: Killer) -> tuple[list[Any], int]:
    """The samples, and how many batches were given up because a sample of theirs killed its worker twice."""
    samples, given_up = [], 0
    with killer.at_work(loader):
        iterator = iter(loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return samples, given_up
            except RuntimeError as error:
                if TWICE not in str(error):
                    raise
                given_up += 1
                continue
            killer.note_batch()
            samples += samples_of(batch, loader.batch_size is not None)


def check_epoch(samples: list[Any], given_up: int, loader: Any, numbers: dict[Any, Any], epoch: int) -> None:
    indices = [index for index, _ in samples]
    missing = set(range(COUNT)) - set(indices)
    assert len(set(indices)) == len(indices), f"delivered twice: {sorted(indices)}"
    assert len(missing) <= given_up * (loader.batch_size or 1), f"lost: {missing}, {given_up} batches given up"
    if loader.in_order and isinstance(loader.dataset, Arrays):
        assert indices == sorted(indices)
    for index, drawn in samples:
        assert numbers.setdefault((epoch, index, len(drawn)), drawn) == drawn, f"sample {index}: other random numbers"


def no_orphans(helpers: set[int]) -> bool:
    """Reaps what has ended of a killed trainer's workers, which are this process's now."""
    for pid in children(os.getpid()) - helpers:
        os.waitpid(pid, os.WNOHANG)
    return children(os.getpid()) <= helpers


def kill_trainer(chance: random.Random, seed: int) -> float:
    """How long its workers outlived it."""
    helpers = children(os.getpid())
    loader = draw_loader(chance, seed, context="fork")
    pid = os.fork()
    if pid == 0:
        while True:
            for _ in loader:
                pass
    time.sleep(chance.uniform(0, TRAINER_LIVES_S))  # any instant will do
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    start = time.monotonic()
    assert until(lambda: no_orphans(helpers), GONE_S), "workers outlived their trainer"
    return time.monotonic() - start


def percentiles(values: list[float]) -> str:
    if not values:
        return "none"
    values = sorted(values)
    parts = [f"{part:g} % {1e3 * values[int(part / 100 * (len(values) - 1))]:.1f} ms" for part in (50, 90, 99, 99.9)]
    return f"{len(values)}: {', '.join(parts)}, longest {1e3 * values[-1]:.1f} ms"


def state() -> tuple[list[str], set[int]]:
    return sorted(os.listdir("/proc/self/fd")), children(os.getpid())


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 31)
    print(f"soak_kills.py {seconds:g} {seed}", flush=True)
    chance, numbers = random.Random(seed), dict[Any, Any]()
    warnings.simplefilter("ignore")
    ctypes.CDLL(None).prctl(sweep_host.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    killer = Killer(chance)
    for context in ("spawn", "forkserver"):  # what multiprocessing starts once, it keeps
        list(headrace.Loader([1], num_workers=1, multiprocessing_context=context))
    for _ in range(WARM_UPS):  # imports, and what the allocators keep
        run_epoch(draw_loader(chance, seed, context="fork"), killer)
    before, private = state(), private_bytes()
    end, epochs, given_up, restarts, orphans = time.monotonic() + seconds, 0, 0, 0, list[float]()
    while time.monotonic() < end:
        if chance.random() < 0.1:
            orphans.append(kill_trainer(chance, seed))
            continue
        loader = draw_loader(chance, seed)
        for epoch in range(chance.randint(1, 3)):
            samples, lost = run_epoch(loader, killer)
            check_epoch(samples, lost, loader, numbers, epoch)
            epochs, given_up = epochs + 1, given_up + lost
        restarts += loader.report()["restarts"]
        del loader
    gc.collect()
    assert state() == before, (state(), before)
    print(f"epochs, all exact: {epochs}; batches given up, as a sample killed its worker twice: {given_up}")
    print(f"kills at instants: {killer.kill_count}; workers replaced: {restarts}; trainers killed: {len(orphans)}")
    for method, recoveries in killer.recoveries.items():
        print(f"recoveries, {method}, {percentiles(recoveries)}")
    print(f"workers gone after their trainer, {percentiles(orphans)}")
    more = (private_bytes() - private) >> 20
    print(f"left: shared memory {shared_bytes([os.getpid()])} bytes, private {more} MiB more")


if __name__ == "__main__":
    main()
