# SPDX-License-Identifier: Apache-2.0
"""Datasets whose workers die, whose samples are bad, and whose samples are random; without torch."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import headrace
import numpy as np
from processes import alive, until

DEADLINE_S = 60.0


# ---- marks: what has happened, over all processes ----


@dataclass(frozen=True)
class Marks:
    """Empty files, and files with a number, in a folder that all processes see."""

    folder: pathlib.Path

    def first(self, name: str) -> bool:
        """True for the first process that asks, ever."""
        try:
            os.close(os.open(self.folder / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def write_pid(self, name: str, pid: int) -> None:
        part = self.folder / f"{name}.{os.getpid()}"
        part.write_text(str(pid))
        part.rename(self.folder / name)

    def wait_for_pid(self, name: str) -> int:
        assert until(lambda: self.has(name), DEADLINE_S), f"no process came to {name}"
        return int((self.folder / name).read_text())


def die(how: str) -> None:
    """Ends this process: by "SIGKILL", "SIGSEGV", "exit 3"..."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    word, _, code = how.partition(" ")
    if word == "exit":
        os._exit(int(code))
    os.kill(os.getpid(), signal.Signals[word])


@dataclass
class Plan:
    """The events of an index: the n-th happens in the n-th process that reaches it; later processes read the sample.

    Events: a death (see `die`); "wait": write the pid, and wait to be killed; "kill A B": kill the processes that
    wait at A and at B; "outlive A": wait for that one's end; "live": nothing.
    """

    marks: Marks
    events: dict[int, list[str]] = field(default_factory=dict)

    def meet(self, index: int) -> None:
        for number, event in enumerate(self.events.get(index, ())):
            if self.marks.first(f"{index}.{number}"):
                self._happen(index, event)
                return

    def _happen(self, index: int, event: str) -> None:
        word, *others = event.split()
        if word == "live":
            return
        if word == "wait":
            self.marks.write_pid(f"waits.{index}", os.getpid())
            while True:
                signal.pause()
        if word not in ("kill", "outlive"):
            die(event)
        pids = [self.marks.wait_for_pid(f"waits.{other}") for other in others]
        if word == "kill":
            kill(*pids)
        else:
            assert until(lambda: not any(map(alive, pids)), DEADLINE_S)


# ---- datasets ----


class Numbers:
    """Sample i is i."""

    def __init__(self, count: int, plan: Plan) -> None:
        self.count = count
        self.plan = plan

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.plan.meet(index)
        return index


class Together(Numbers):
    """Makes a batch as a whole."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Random(Numbers):
    """Random numbers of every generator there is."""

    def __getitem__(self, index: int) -> Any:
        self.plan.meet(index)
        numbers = [index, random.random(), float(np.random.random())]
        if sys.modules.get("torch"):
            numbers.append(sys.modules["torch"].rand(()).item())
        return tuple(numbers)


class Bad(Numbers):
    """Some samples raise."""

    def __init__(self, count: int, plan: Plan, bad: tuple[int, ...]) -> None:
        super().__init__(count, plan)
        self.bad = bad

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise KeyError(f"sample {index} is bad")
        return super().__getitem__(index)


def share() -> tuple[int, int]:
    """This worker's number, and of how many."""
    info: Any = headrace.get_worker_info()
    if info is None and sys.modules.get("torch"):
        info = sys.modules["torch.utils.data"].get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Stream:
    """An iterable dataset that the workers share out: sample i is i."""

    def __init__(self, count: int, plan: Plan) -> None:
        self.count = count
        self.plan = plan

    def __iter__(self) -> Iterator[int]:
        number, step = share()
        for index in range(number, self.count, step):
            self.plan.meet(index)
            yield index


class Replayable(Stream):
    replayable = True


class Resumable(Stream):
    """Tells after each sample how many it has given, and goes on after as many."""

    given = 0
    begin = 0

    def __iter__(self) -> Iterator[int]:
        number, step = share()
        self.given, self.begin = self.begin, 0
        for index in range(number + self.given * step, self.count, step):
            self.plan.meet(index)
            self.given += 1
            yield index

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["given"]


# ---- what came of it ----


def plain(batch: Any) -> Any:
    """A batch as lists and numbers."""
    if isinstance(batch, (list, tuple)):
        return [plain(part) for part in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


def epoch(loader: Any) -> list[Any]:
    return [plain(batch) for batch in loader]


@contextlib.contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """headrace's warnings, complete once the block has ended."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    messages = [str(warning.message) for warning in caught]
    texts += [text for text in messages if text.startswith(("headrace", "DataLoader worker"))]


def kill(*pids: int) -> None:
    """Kills and sees that they are dead."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert until(lambda: not any(map(alive, pids)), DEADLINE_S)


def say(text: str) -> None:
    """Writes to stderr, of which headrace keeps the last lines for reports."""
    sys.stderr.write(f"{text}\n")
