# SPDX-License-Identifier: Apache-2.0
"""Measures the locks and the changes of shared arrays as a Python program sees them, next to the locks of the standard
library. What the C library alone costs, with several processes and with deaths, is in bench_shared.c."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import tempfile
import threading
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import headrace
from measure import QUICK, Case, Goal, Key, Row, in_turn, run_all, show_against

TIMES = 200
REPEATS = 20 if QUICK else 200  # the quickest is what it costs on a machine that does nothing else

LOCK, FEW, ADD = "lock and unlock, free", "lock and unlock of 10 rows, free", "add 1 to an element"
OURS = "headrace"


def nanoseconds(work: Callable[[], object]) -> float:
    return 1e9 * min(timeit.repeat(work, number=TIMES, repeat=REPEATS)) / TIMES


def entering(make: Callable[[], Any]) -> Callable[[], float]:
    """Returns a measurement of an empty with statement, in a function of its own."""

    def work() -> None:
        with make():
            pass

    return lambda: nanoseconds(work)


@contextmanager
def locked(file: int) -> Iterator[None]:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def of_locks() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="hrc-bench-", dir="/dev/shm") as root:
        whole = headrace.cache.shared("whole", 1000, "int64", root=root, keep="job")
        rows = headrace.cache.shared("rows", 1000, "int64", root=root, keep="job")
        few = slice(0, 10)
        file = os.open(os.path.join(root, "lock"), os.O_CREAT | os.O_RDWR)
        of_thread, of_processes = threading.Lock(), multiprocessing.Lock()
        ways = {
            OURS: entering(lambda: whole.lock()),
            "threading.Lock": entering(lambda: of_thread),
            "multiprocessing.Lock": entering(lambda: of_processes),
            "flock": entering(lambda: locked(file)),
        }
        found = in_turn(LOCK, ways) + in_turn(FEW, {OURS: entering(lambda: rows.lock(rows=few))})
        os.close(file)
        return found


def of_elements() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="hrc-bench-", dir="/dev/shm") as root:
        shared = headrace.cache.shared("numbers", 1000, "int64", root=root, keep="job")
        value = multiprocessing.Value("q", 0)

        def add_to_value() -> None:
            with value.get_lock():
                value.value += 1

        ways = {
            OURS: lambda: nanoseconds(lambda: shared.add(0, 1)),
            "multiprocessing.Value": lambda: nanoseconds(add_to_value),
        }
        return in_turn(ADD, ways)


CASES = [Case("locks", of_locks), Case("elements", of_elements)]


def goals() -> list[Goal]:
    return [Goal(LOCK, Key(LOCK, OURS), 300, unit="ns")]


def main() -> None:
    run_all(__doc__ or "", CASES, lambda case: case.run(), show_against(), goals)


if __name__ == "__main__":
    main()
