# SPDX-License-Identifier: Apache-2.0
"""Measures how soon a worker's death is noticed, how long workers outlive their trainer, and how soon a dead worker is
replaced.

Each turn is a process of its own, which runs death_script.py. SIGKILL ends a worker in it, or the process itself. A
wait ends after 10 s and is printed as "> 10 s".
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from measure import BARE, QUICK, Goal, Key, Row, end_of_bare_process, run_all

SCRIPT = Path(__file__).resolve().parent / "death_script.py"
LIBRARIES = ("torch", "headrace")
METHODS = ("fork", "forkserver", "spawn")
DEADLINE_S = 10.0  # The longest time that is measured.
READY_S = 120.0  # How long a trainer may take until the measurement begins.
SETTLED_S = 0.3  # After this time all processes sleep.
NOTICE_MS, GONE_MS, RECOVERY_MS, MORE_THAN_START_MS = 20, 100, 1000, 500

NOTICE, IDLE, BUSY, RECOVERY, START, BOUND = "notice", "idle", "busy", "recovery", "start", "bound"
WORK = {
    NOTICE: "a worker's death, until next raises",
    IDLE: "the trainer's death, until its idle workers are gone",
    BUSY: "the trainer's death, until its workers in a sample are gone",
    RECOVERY: "a worker's death, until another has made its batch",
    START: "a worker's start",
    BOUND: "a worker's start + 0.5 s",
}
WORKERS = {NOTICE: 1, IDLE: 2, BUSY: 2, RECOVERY: 1, START: 1, BOUND: 1}

Line = list[str]


class Trainer:
    """A running death_script.py. Leaving the context ends it, and every worker that it has named."""

    def __init__(self, library: str, method: str, what: str, folder: str) -> None:
        self.lines: list[Line] = []
        self._errors = Path(folder) / "stderr"
        with self._errors.open("wb") as errors:
            command = [sys.executable, str(SCRIPT), library, method, what, folder]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, bufsize=0)
        self._pidfds: dict[int, int] = {}

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pid, pidfd in self._pidfds.items():
            if is_running(pidfd):
                os.kill(pid, signal.SIGKILL)
            os.close(pidfd)
        assert self.process.stdout
        self.process.stdout.close()

    def wait_for(self, name: str, count: int = 1, seconds: float = READY_S) -> list[Line] | None:
        """Returns the values of the first `count` lines of that name, or None if they did not come in time."""
        assert self.process.stdout
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while len(found := [line[1:] for line in self.lines if line[0] == name]) < count:
                if not selector.select(max(0.0, end - time.monotonic())):
                    return None
                self._read()
        return found

    def need(self, name: str, count: int = 1) -> list[Line]:
        found = self.wait_for(name, count)
        if found is None:
            raise RuntimeError(
                f"no {name!r} came in {READY_S} s; the trainer printed {self.lines}\n{self._errors.read_text()}"
            )
        return found

    def _read(self) -> None:
        assert self.process.stdout
        text = self.process.stdout.readline().decode()  # A line is written in one piece.
        if not text:
            raise RuntimeError(f"the trainer ended; it printed {self.lines}\n{self._errors.read_text()}")
        self.lines.append(text.rstrip("\n").split("\t"))
        if self.lines[-1][0] == "worker":
            pid = int(self.lines[-1][1])
            with contextlib.suppress(ProcessLookupError):  # The worker whose start was measured has ended.
                self._pidfds[pid] = os.pidfd_open(pid)

    def settle(self, what: str, workers: int) -> list[int]:
        """Waits until all processes sleep, workers in a sample unless `what` is idle. Returns the workers' pids."""
        pids = [int(pid) for (pid,) in self.need("worker" if what == IDLE else "in sample", workers)]
        self.need("waiting")
        time.sleep(SETTLED_S)
        for pid in (self.process.pid, *pids):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state == "S", f"process {pid} is in state {state}, not asleep; {self.lines}"
        assert len(set(pids)) == workers and all(is_running(self._pidfds[pid]) for pid in pids)
        return pids

    def wait_for_end(self, pids: list[int], seconds: float) -> float | None:
        """Returns when the last of them ended, or None if one still runs."""
        end = time.monotonic() + seconds
        if any(is_running(self._pidfds[pid], end - time.monotonic()) for pid in pids):
            return None
        return time.monotonic()


def is_running(pidfd: int, seconds: float = 0.0) -> bool:
    """Returns True if the process still runs after `seconds`."""
    with selectors.DefaultSelector() as selector:
        selector.register(pidfd, selectors.EVENT_READ)
        return not selector.select(max(0.0, seconds))


def kill(pid: int) -> float:
    """Kills a process, and returns the time."""
    now = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return now


# ---- The measurements: milliseconds by name. None: not before the deadline. ----

Measured = dict[str, float | None]


def in_ms(start: float, end: float | None) -> float | None:
    return None if end is None else 1e3 * (end - start)


def measure_notice(trainer: Trainer) -> Measured:
    """Measures the time from a worker's death to the exception that reports it."""
    (pid,) = trainer.settle(NOTICE, 1)
    killed_at = kill(pid)
    raised = trainer.wait_for("raised", seconds=DEADLINE_S)
    if raised is None:
        return {NOTICE: None}
    when, text = raised[0]
    assert f"{pid}" in text and text.startswith("DataLoader worker"), text
    return {NOTICE: in_ms(killed_at, float(when))}


def measure_recovery(trainer: Trainer) -> Measured:
    """Measures the time from a worker's death to the batch of its replacement, and the start of a worker."""
    (pid,) = trainer.settle(RECOVERY, 1)
    (start,) = trainer.need("started")[0]
    killed_at = kill(pid)
    (when,) = trainer.need("delivered")[0]
    assert trainer.need("restarts") == [["1"]], trainer.lines
    return {RECOVERY: in_ms(killed_at, float(when)), START: 1e3 * float(start)}


def measure_end(trainer: Trainer, what: str) -> Measured:
    """Measures the time from the trainer's death to the end of its last worker."""
    pids = trainer.settle(what, 2)
    killed_at = kill(trainer.process.pid)
    gone_at = trainer.wait_for_end(pids, DEADLINE_S)
    assert trainer.process.wait() == -signal.SIGKILL
    return {what: in_ms(killed_at, gone_at)}


MEASURES: dict[str, Callable[[Trainer], Measured]] = {
    NOTICE: measure_notice,
    IDLE: lambda trainer: measure_end(trainer, IDLE),
    BUSY: lambda trainer: measure_end(trainer, BUSY),
    RECOVERY: measure_recovery,
}


@dataclass(frozen=True)
class Case:
    """One start method to measure."""

    name: str
    rounds: int = 1 if QUICK else 3
    in_quick: bool = True


CASES = [Case(method) for method in METHODS]


def key_of(method: str, what: str) -> Key:
    return Key(f"{method}: {WORK[what]}", "headrace", WORKERS[what])


def goals() -> list[Goal]:
    found = []
    for method in METHODS:
        for what, bound_ms in ((NOTICE, NOTICE_MS), (IDLE, GONE_MS), (BUSY, GONE_MS)):
            key = key_of(method, what)
            found.append(Goal(key.work, key, bound_ms, unit="ms"))
        key, bound = key_of(method, RECOVERY), key_of(method, BOUND)
        if method == "fork":
            found.append(Goal(key.work, key, RECOVERY_MS, unit="ms"))
        else:
            found.append(Goal(f"{key.work}, of {WORK[BOUND]}", key, 1, bound))
    return found


def run_script(library: str, method: str, what: str) -> Measured:
    with tempfile.TemporaryDirectory() as folder, Trainer(library, method, what, folder) as trainer:
        return MEASURES[what](trainer)


def row_of(method: str, what: str, library: str, values: list[float | None]) -> Row:
    """Returns the median, or the deadline as a lower bound if most turns passed it."""
    key = key_of(method, what)
    median = statistics.median(math.inf if value is None else value for value in values)
    if median == math.inf:
        return Row(key.work, library, key.workers, 1e3 * DEADLINE_S, "ms", at_least=True)
    return Row(key.work, library, key.workers, median, "ms")


def run_case(case: Case) -> list[Row]:
    found: dict[tuple[str, str], list[float | None]] = {}
    for _ in range(case.rounds):
        for what in MEASURES:
            for library in LIBRARIES:
                is_known = (
                    found.get((what, library), []).count(None) > case.rounds / 2
                )  # The median is then above the deadline.
                if is_known or (what == RECOVERY and library != "headrace"):
                    continue
                for name, value in run_script(library, case.name, what).items():
                    found.setdefault((name, library), []).append(value)
        found.setdefault((NOTICE, BARE), []).append(end_of_bare_process(case.name)[case.name])
    starts = [start + MORE_THAN_START_MS for start in found[START, "headrace"] if start is not None]
    found[BOUND, "headrace"] = [statistics.median(starts)]
    return [row_of(case.name, what, library, values) for (what, library), values in found.items()]


def show(rows: list[Row]) -> None:
    for row in rows:
        print(f"{row.work:70} {row.rival:12} {'> ' if row.at_least else '  '}{row.value:10.2f} ms", flush=True)


def main() -> None:
    run_all(__doc__ or "", CASES, run_case, show, goals)


if __name__ == "__main__":
    main()
