# SPDX-License-Identifier: Apache-2.0
"""Random kills of workers and trainers under Python, with each start method, at instants and at points: every epoch is
exact, and nothing is left behind. `soak_kills.py [SECONDS [SEED]]`. What is drawn follows from the seed; when it
happens does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python/lib"))

import headrace  # noqa: E402
import numpy as np  # noqa: E402
import sweep_host  # noqa: E402
from for_torch import ForTorch  # noqa: E402
from headrace._loader.trainer import crew  # noqa: E402
from mishaps import Marks, Plan, Random, Resumable  # noqa: E402
from process_table import children  # noqa: E402
from processes import private_bytes, shared_bytes, until  # noqa: E402

POINTS = re.findall(
    r'^ *POINT\(\w+, "([\w.]+)", (?:WORKER|BOTH|THREADS)\)', (HERE / "../../src/os/failpoints.h").read_text(), re.M
)
NOTHING = Plan(Marks(HERE))
COUNT = 240  # samples of an epoch
LOADERS_OF_100 = {"fork": 92, "spawn": 2, "forkserver": 6}  # one with spawn takes as long as 50 with fork
KILL_AFTER_S = {"fork": 0.1, "spawn": 3.0, "forkserver": 0.2}
TRAINER_LIVES_S = 0.3
WARM_UPS = 20
GONE_S = 1.0
SETTLED_S = 10.0  # for the fork server to reap, and for short-lived files of other programs in /dev/shm
TWICE = "killed its worker 2 times"
Numbers = dict[tuple[int, int, int], list[float]]  # what was drawn, by epoch, index and how many


class Begins:
    """Says when a worker has come to its first sample: a file with its pid's name."""

    folder: str
    begun_by = 0

    def note_begin(self) -> None:
        if self.begun_by != os.getpid():
            self.begun_by = os.getpid()
            part = pathlib.Path(self.folder, f"{os.getpid()}.{threading.get_ident()}")
            part.write_text(str(time.monotonic()))
            part.rename(part.with_suffix(""))


class Arrays(Begins, Random):
    """Arrays of many sizes, and random numbers."""

    def __getitem__(self, index: int) -> Any:
        self.note_begin()
        return (*super().__getitem__(index), np.full(1 + index % 7 * 20_000, index))


class Waiting(Arrays):
    """The same for threads: samples that wait, and a random number of their own."""

    def __getitem__(self, index: int) -> Any:
        self.note_begin()
        time.sleep(index % 3 * 0.001)
        number = headrace.sample_generator("random").random()
        return index, number, np.full(1 + index % 7 * 20_000, index)


class Stream(Begins, Resumable):
    def __iter__(self) -> Any:
        self.note_begin()
        for index in super().__iter__():
            yield index, np.full(1 + index % 7 * 20_000, index)


class Replayed(Stream):
    replayable = True
    state_dict = property()  # reading it raises, so hasattr() is False


def method_of(loader: Any) -> str:
    return str(loader.multiprocessing_context.get_start_method())


@dataclass
class Start:
    """The start of a worker process: from Process.start to its first sample."""

    pid: int
    is_first: bool  # and no dead one's successor
    began: float
    ended: float | None = None


class Starts:
    """Sees every worker that a crew starts in this process."""

    def __init__(self, folder: str) -> None:
        self.folder = pathlib.Path(folder)
        self.open: list[Start] = []
        self.done: list[Start] = []  # the finished starts of this loader
        self.is_first = False
        start_one, start_all = BaseProcess.start, crew.Crew.start

        def start(process: BaseProcess) -> None:
            began = time.monotonic()
            start_one(process)
            self.open.append(Start(int(process.pid or 0), self.is_first, began))

        def start_crew(*arguments: Any) -> None:
            self.is_first = True
            try:
                start_all(*arguments)
            finally:
                self.is_first = False

        BaseProcess.start = start  # type: ignore[method-assign]
        crew.Crew.start = start_crew  # type: ignore[method-assign]

    def look(self) -> None:
        """Moves the workers that have reached their first sample to `done`."""
        for one in list(self.open):
            path = self.folder / str(one.pid)
            if path.exists() and (ended := float(path.read_text())) >= one.began:
                one.ended = ended
                self.open.remove(one)
                self.done.append(one)

    def longest_since(self, when: float) -> float:
        """Returns the part after that time of the longest finished start, or 0 if there was none."""
        self.look()
        return max([0.0, *(one.ended - max(one.began, when) for one in self.done if one.ended)])

    def take(self, is_first: bool) -> list[float]:
        """Seconds of those that have ended."""
        self.look()
        return [one.ended - one.began for one in self.done if one.ended and one.is_first == is_first]

    def clear(self) -> None:
        self.open.clear()
        self.done.clear()


class OtherDeaths(logging.Handler):
    """Keeps the reports of workers that died of something else than a kill: they have failed."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("DataLoader worker") and "killed by signal: Killed" not in text.partition("\n")[0]:
            self.reports.append(text)


class Killer:
    """Kills a worker of the loader at work every now and then, and has new ones killed at points. What came of it is
    kept by start method."""

    def __init__(self, chance: random.Random, starts: Starts) -> None:
        self.chance = chance
        self.starts = starts
        self.loader: Any = None
        self.method = "fork"
        self.is_wound = False
        self.killed_at: dict[int, float] = {}  # by pid: workers since whose replacement no batch was delivered
        self.kills, self.replaced = Counter[str](), Counter[str]()
        self.recoveries: dict[str, list[float]] = {method: [] for method in LOADERS_OF_100}
        self.beyond: dict[str, list[float]] = {method: [] for method in LOADERS_OF_100}  # the starts meanwhile
        self.first: dict[str, list[float]] = {method: [] for method in LOADERS_OF_100}  # starts
        self.again: dict[str, list[float]] = {method: [] for method in LOADERS_OF_100}  # starts of successors
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork)
        signal.signal(signal.SIGALRM, self._kill)

    @contextlib.contextmanager
    def at_work(self, loader: Any, is_new: bool) -> Iterator[None]:
        """`is_new`: its workers are to be started."""
        self.loader, self.method = loader, method_of(loader)
        self.killed_at.clear()
        self.is_wound = False
        restarts = 0 if is_new else loader.report()["restarts"]
        self.wind()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.loader = None
        self.replaced[self.method] += loader.report()["restarts"] - restarts
        self.first[self.method] += self.starts.take(is_first=True)
        self.again[self.method] += self.starts.take(is_first=False)
        self.starts.clear()

    def wind(self) -> None:
        """Sets the next kill's time, if it is not set."""
        if not self.is_wound:
            self.is_wound = True
            signal.setitimer(signal.ITIMER_REAL, self.chance.expovariate(1 / KILL_AFTER_S[self.method]) + 1e-4)

    def _kill(self, *_: object) -> None:
        if self.loader is None:
            return  # the signal was on its way when the work ended
        if alive := sorted(self._workers() & descendants()):  # the report may still be that of an engine of before
            pid, now = self.chance.choice(alive), time.monotonic()
            with contextlib.suppress(ProcessLookupError):  # the fork server has just reaped it
                os.kill(pid, signal.SIGKILL)
                self.killed_at[pid] = now
                self.kills[self.method] += 1
        self.is_wound = False
        if not alive or self.chance.random() < 0.5:  # else after the next batch: a slow machine gets on, too
            self.wind()

    def _workers(self) -> set[int]:
        try:
            return {one["pid"] for one in self.loader.report()["per_worker"] if one["is_alive"]}
        except RuntimeError:  # it has no iterator yet
            return set()

    def _before_fork(self) -> None:
        if self.loader is not None and self.chance.random() < 0.2:
            os.environ["HEADRACE_STOP"] = f"{self.chance.choice(POINTS)}:9:{self.chance.randint(1, 30)}"

    def _after_fork(self) -> None:
        os.environ.pop("HEADRACE_STOP", None)

    def note_batch(self) -> None:
        """A batch was delivered, which ends the recovery from the last kill whose worker was replaced. Its time is
        compared with the starts in that time, which ran at once if several workers were killed."""
        now, report = time.monotonic(), self.loader.report()
        replaced = self.killed_at.keys() - {one["pid"] for one in report["per_worker"]}
        if replaced:
            killed_at = max(map(self.killed_at.__getitem__, replaced))
            self.recoveries[self.method].append(now - killed_at)
            self.beyond[self.method].append(now - killed_at - self.starts.longest_since(killed_at))
        for pid in replaced:
            del self.killed_at[pid]


def draw_loader(chance: random.Random, seed: int, method: str, folder: str) -> Any:
    kind = sweep_host.kind_of(chance.choice(["torch", "numpy"]))
    dataset: Any = chance.choice([Arrays, Waiting, Stream, Replayed])(COUNT, NOTHING)
    dataset.folder = folder
    options: dict[str, Any] = {
        "batch_size": chance.choice([None, 1, 4]),
        "num_workers": chance.randint(1, 4),
        "prefetch_factor": chance.choice([1, 2, 5]),
        "in_order": chance.random() < 0.7,
        "persistent_workers": chance.random() < 0.5,
        "multiprocessing_context": method,
        "arena_limit": chance.choice([None, 16 << 20]),
        "collate_fn": list,
        "max_restarts": 1_000_000,
    }
    if isinstance(dataset, Arrays):
        options |= {"rng": "sample", "seed": seed}
        if isinstance(dataset, Waiting):
            options["sample_threads"] = chance.choice([2, 5, 20])
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


def run_epoch(loader: Any, killer: Killer, is_new: bool) -> tuple[list[Any], int]:
    """The samples, and how many batches were given up because a sample of theirs killed its worker twice."""
    samples, given_up = [], 0
    with killer.at_work(loader, is_new):
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
            killer.wind()
            samples += samples_of(batch, loader.batch_size is not None)


def check_epoch(samples: list[Any], given_up: int, loader: Any, numbers: Numbers, epoch: int) -> None:
    indices = [index for index, _ in samples]
    missing = set(range(COUNT)) - set(indices)
    assert len(set(indices)) == len(indices), f"delivered twice: {sorted(indices)}"
    assert len(missing) <= given_up * (loader.batch_size or 1), f"lost: {missing}, {given_up} batches given up"
    if loader.in_order and isinstance(loader.dataset, Arrays):
        assert indices == sorted(indices)
    for index, drawn in samples:
        assert numbers.setdefault((epoch, index, len(drawn)), drawn) == drawn, f"sample {index}: other random numbers"


def run_loader(loader: Any, killer: Killer, numbers: Numbers) -> Counter[str]:
    """Up to 3 epochs, each of them exact."""
    counts = Counter[str]()
    for epoch in range(killer.chance.randint(1, 3)):
        samples, given_up = run_epoch(loader, killer, is_new=epoch == 0 or not loader.persistent_workers)
        check_epoch(samples, given_up, loader, numbers, epoch)
        counts += Counter({"epochs": 1, "given up": given_up})
    return counts


def no_orphans(helpers: set[int]) -> bool:
    """Reaps what has ended of a killed trainer's workers, which are this process's now."""
    for pid in children(os.getpid()) - helpers:
        os.waitpid(pid, os.WNOHANG)
    return children(os.getpid()) <= helpers


def kill_trainer(chance: random.Random, seed: int, folder: str) -> float:
    """Returns how long its workers outlived it."""
    helpers = children(os.getpid())
    loader = draw_loader(chance, seed, "fork", folder)
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                for _ in loader:
                    pass
        finally:
            traceback.print_exc()
            os._exit(1)
    time.sleep(chance.uniform(0, TRAINER_LIVES_S))  # any instant will do
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "a trainer failed before it was killed: see above"
    start = time.monotonic()
    assert until(lambda: no_orphans(helpers), GONE_S), "workers outlived their trainer"
    return time.monotonic() - start


# ---- what must be back to where it was ----


def descendants() -> set[int]:
    """This process's children and theirs, as a fork server's workers are; zombies included."""
    found, new = set[int](), children(os.getpid())
    while new:
        found |= new
        new = set().union(*map(children, new)) - found
    return found


def is_shared(name: str) -> bool:
    return "/memfd:" in name or "/dev/shm/" in name


def state() -> dict[str, Counter[Any]]:
    """Counts for this process and those that multiprocessing keeps. An arena exists as long as a process has it
    open or mapped."""
    files, mappings, pids = Counter[Any](), Counter[Any](), {os.getpid(), *descendants()}
    for pid in pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                files[pid, os.readlink(f"/proc/{pid}/fd/{name}").partition(":")[0]] += 1
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            mappings[pid] += is_shared(line)
    return {
        "processes": Counter(pids),
        "descriptors": files,
        "mappings of shared memory": mappings,
        "files in /dev/shm": Counter(os.listdir("/dev/shm")),
        "bytes of shared memory": Counter(bytes=shared_bytes(pids)),
    }


def what_is_left(before: dict[str, Counter[Any]]) -> dict[str, Counter[Any]]:
    """Returns what there is more of than before, and stays."""
    gc.collect()
    stays: dict[str, Counter[Any]] = {}

    def gone() -> bool:
        for name, now in state().items():
            more = now - before[name]
            stays[name] = stays[name] & more if name in stays else more
        return not any(stays.values())

    until(gone, SETTLED_S)
    return {name: more for name, more in stays.items() if more}


# ---- what came of it ----


def percentiles(values: list[float]) -> str:
    if not values:
        return "none"
    values = sorted(values)
    parts = [f"{part:g} % {1e3 * values[int(part / 100 * (len(values) - 1))]:.1f} ms" for part in (50, 90, 99, 99.9)]
    return f"{len(values)}: {', '.join(parts)}, longest {1e3 * values[-1]:.1f} ms"


def print_recoveries(killer: Killer, method: str) -> None:
    """In addition to what is wanted: 1 s with fork, otherwise half a second more than the starts in that time."""
    recoveries, beyond = killer.recoveries[method], killer.beyond[method]
    print(f"starts, from Process.start to the first sample, {method}, {percentiles(killer.first[method])}")
    print(f"  the same of successors, {percentiles(killer.again[method])}")
    print(f"recoveries, {method}, {percentiles(recoveries)}")
    print(f"  less the longest start meanwhile, {percentiles(beyond)}")
    what, wanted, values = ("all in all", 1.0, recoveries) if method == "fork" else ("beyond that start", 0.5, beyond)
    over = sorted(value for value in values if value > wanted)
    text = ", ".join(f"{value:.3f} s" for value in over)
    print(f"  wanted: {wanted:g} s {what}; {len(over)} of {len(values)} took longer" + (f": {text}" if over else ""))


def soak(seconds: float, seed: int, killer: Killer, numbers: Numbers, folder: str) -> tuple[Counter[str], list[float]]:
    chance, counts, orphans = killer.chance, Counter[str](), list[float]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if chance.random() < 0.2:
            orphans.append(kill_trainer(chance, seed, folder))
            continue
        drawn = chance.choices(list(LOADERS_OF_100), list(LOADERS_OF_100.values()))[0]
        method = next((method for method in LOADERS_OF_100 if not killer.kills[method]), drawn)
        counts += run_loader(draw_loader(chance, seed, method, folder), killer, numbers)
    return counts, orphans


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 31)
    print(f"soak_kills.py {seconds:g} {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run(seconds, seed, folder)


def run(seconds: float, seed: int, folder: str) -> None:
    chance, numbers = random.Random(seed), Numbers()
    warnings.simplefilter("ignore")
    log, deaths = logging.getLogger("headrace"), OtherDeaths()
    log.setLevel(logging.INFO)
    log.addHandler(deaths)
    ctypes.CDLL(None).prctl(sweep_host.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for method in LOADERS_OF_100:  # a fork server that is started once stays
        next(iter(sweep_host.kind_of("torch")([1], num_workers=1, multiprocessing_context=method)))
    killer = Killer(chance, Starts(folder))
    for _ in range(WARM_UPS):  # imports, and what the allocators keep
        run_loader(draw_loader(chance, seed, "fork", folder), killer, numbers)
    gc.collect()
    before, private = state(), private_bytes()
    counts, orphans = soak(seconds, seed, killer, numbers, folder)
    left = what_is_left(before)
    assert not left, f"left: {left}"
    print(f"epochs, all exact: {counts['epochs']}; batches given up, as a sample killed its worker twice: ", end="")
    print(f"{counts['given up']}; trainers killed: {len(orphans)}")
    for method in LOADERS_OF_100:
        print(f"{method}: kills at instants: {killer.kills[method]}; workers replaced: {killer.replaced[method]}")
    for method in LOADERS_OF_100:
        print_recoveries(killer, method)
    print(f"workers gone after their trainer, {percentiles(orphans)}")
    more = (private_bytes() - private) >> 20
    print(f"left: no process, descriptor, mapping, shared memory or file in /dev/shm; private memory {more} MiB more")
    assert not deaths.reports, "workers died of something else than a kill:\n" + "\n".join(deaths.reports)
    missed = [method for method in LOADERS_OF_100 if not (killer.kills[method] and killer.replaced[method])]
    assert not missed, f"no kill reached a worker, or none was replaced, with {', '.join(missed)}: give it more time"


if __name__ == "__main__":
    main()
