# SPDX-License-Identifier: Apache-2.0
"""Datasets and a loader without torch, for scripts with new processes: importing torch would take each ten times as
long."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np


def Headrace(*arguments: Any, **options: Any) -> Any:
    """A loader that replaces no dead worker, as torch's."""
    return headrace.Loader(*arguments, **{"max_restarts": 0, **options})


class Images:
    """index -> (an image of `side` x `side` x 4 bytes filled with the index, the index)."""

    def __init__(self, count: int, side: int = 64) -> None:
        self.count, self.side = count, side

    def __len__(self) -> int:
        return self.count

    def make(self, index: int) -> Any:
        return np.full((self.side, self.side), index, np.int32)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.make(index), index


DEATHS: dict[str, Callable[[], Any]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit code 3": lambda: os._exit(3),
    "exit code 0": lambda: os._exit(0),
    "SystemExit": lambda: sys.exit(4),
}


class Dying:
    """The worker that reads item `at` dies."""

    def __init__(self, count: int, at: int, death: str) -> None:
        self.count, self.at, self.death = count, at, death

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            DEATHS[self.death]()
        return index


# ---- datasets that change the state of their worker ----


class Acts:
    """index -> (index, what `act(index)` gave, `side` x `side` floats of the index)."""

    def __init__(self, act: Callable[[int], Any], count: int = 8, side: int = 256) -> None:
        self.act, self.count, self.side = act, count, side

    def __len__(self) -> int:
        return self.count

    def make(self, index: int) -> Any:
        return np.full((self.side, self.side), index, np.float32)

    def __getitem__(self, index: int) -> tuple[int, Any, Any]:
        return index, self.act(index), self.make(index)


@dataclasses.dataclass(frozen=True)
class Unchangeable(Exception):
    text: str


def act_raise_unchangeable(index: int) -> None:
    raise Unchangeable("frozen")


def act_thread(index: int) -> int:
    """A thread that outlives the worker's last sample."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return threading.active_count() > 1


def act_pool(index: int) -> int:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return sum(pool.map(int, ["1", "2", str(index)]))


def act_subprocess(index: int) -> int:
    return int(subprocess.run(["echo", str(index)], capture_output=True, check=True).stdout)


def act_fork(index: int) -> int:
    child = os.fork()
    if child == 0:
        os._exit(index)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def act_process(index: int) -> None:
    multiprocessing.Process(target=print).start()


def act_leave_a_child(index: int) -> int:
    """A forked child that outlives the worker, until its own session is killed."""
    child = os.fork() if index == 1 else 0
    if index == 1 and child == 0:
        signal.pause()
    return child


def act_fork_that_returns(index: int) -> int:
    """Forks, and returns in the child too, which goes on as if it were the worker."""
    child = os.fork() if index == 3 else 0
    if child:
        os.waitpid(child, 0)
    elif index == 3:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return index


def close_all(_: Any = None) -> None:
    os.closerange(3, 1000)


def act_close_all(index: int) -> int:
    if index == 4:
        close_all()
    return index


def act_reuse_numbers(index: int) -> int:
    """Opens files in $HEADRACE_TEST_FOLDER, which get the numbers of the descriptors that the dataset has closed."""
    if index == 4:
        close_all()
        for number in range(40):
            os.open(pathlib.Path(os.environ["HEADRACE_TEST_FOLDER"], f"own {number}"), os.O_CREAT | os.O_RDWR)
    return index


def act_reuse_numbers_for_pipes(index: int) -> int:
    if index == 4:
        close_all()
        for _ in range(40):
            os.pipe()
    return index


def init_allows_no_more_address_space(number: int) -> None:
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used, used))
