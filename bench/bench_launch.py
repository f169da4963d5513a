# SPDX-License-Identifier: Apache-2.0
"""Measures `headrace run` and torchrun: how fast two ranks start and end, and what happens when one of them fails,
when a signal arrives, and when the launcher is killed. launch_script.py has the ranks.

A failure and a second Ctrl-C take torchrun half a minute, so they are measured fewer times with it.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace._base.program import find
from measure import QUICK, Goal, Key, Row, run_all, show_against

SCRIPT = Path(__file__).resolve().parent / "launch_script.py"
ROUNDS, SLOW_ROUNDS = (3, 1) if QUICK else (20, 3)
NAMED, TORCHS_NAMED = (10, 3) if QUICK else (100, 20)
SAVED, TORCHS_SAVED = (3, 1) if QUICK else (20, 5)
GRACE_S = 3
KILLED_MS, GIVE_UP_S = 100, 5
TORN_LINES = 2000  # of each rank
DEADLINE_S = 120
FOLDER = "FOLDER"

TRUE, MEMORY = "two ranks of `true`", "peak memory of the launcher's processes"
DEAF = f"a rank exits with 7, the other ignores SIGTERM, grace {GRACE_S} s: until the end"
CODE = "the same: the exit code is not 7"
NOT_NAMED = "failures 30 ms apart: the first one is not named"
ALIVE = f"the launcher is killed, 40 processes ignore signals: alive after {KILLED_MS} ms"
GONE = "the same: until none is alive"
AGAIN = "second Ctrl-C, deaf ranks: until the end"
LATENCY, TORN = "a line of a rank, until it is shown", "lines that two ranks write in pieces at once: torn"
LOST = "SIGTERM, 4 data workers: checkpoints that are not written"


def goals() -> list[Goal]:
    def goal(work: str, bound: float, unit: str) -> Goal:
        return Goal(work, Key(work, "headrace"), bound, unit=unit)

    return [
        goal(TRUE, 10, "ms"),
        goal(MEMORY, 3e6, "bytes"),
        goal(DEAF, 3100, "ms"),
        goal(CODE, 0, ""),
        goal(NOT_NAMED, 0, ""),
        goal(ALIVE, 0, ""),
        goal(AGAIN, 100, "ms"),
        goal(LATENCY, 5, "ms"),
        goal(TORN, 0, ""),
        goal(LOST, 0, ""),
    ]


# ---- launchers ----


def command_of(launcher: str, *words: str, options: tuple[str, ...] = ()) -> list[str]:
    """Returns the command that starts two ranks. `options` are headrace's own."""
    if launcher == "headrace":
        return [find() or "headrace", "run", "--nproc=2", *options, *words]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *words]


def environment() -> dict[str, str]:
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHON_EXEC": sys.executable}
    return {**os.environ, **quiet}


class Job:
    """A running launcher of two ranks, and a folder for what they say. Its output goes to files, or to a pipe."""

    def __init__(self, folder: Path, command: list[str], stdout: Any = None) -> None:
        self.folder = folder
        self.out, self.err = (folder / name for name in ("stdout", "stderr"))
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=stdout or out,
                stderr=err,
                start_new_session=True,
            )
        self.end_fd = os.pidfd_open(self.process.pid)
        self.seen: set[int] = set()

    def await_files(self, *names: str) -> list[str]:
        """Returns the texts of these files once all of them are there."""
        deadline = time.monotonic() + DEADLINE_S
        while not all((self.folder / name).exists() for name in names):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"no {names}, but {self.out.read_text()} {self.err.read_text()}")
            time.sleep(0.001)
        self.seen |= descendants(self.process.pid)
        return [(self.folder / name).read_text() for name in names]

    def await_end(self) -> float:
        """Returns when the launcher has ended."""
        if not select.select([self.end_fd], [], [], DEADLINE_S)[0]:
            raise RuntimeError(f"the launcher has not ended after {DEADLINE_S} s: {self.process.args}")
        when = time.monotonic()
        self.process.wait()
        return when

    def close(self) -> None:
        self.seen |= descendants(self.process.pid)
        for pid in (self.process.pid, *self.seen):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.end_fd)


@contextlib.contextmanager
def running(launcher: str, *words: str, options: tuple[str, ...] = (), stdout: Any = None) -> Iterator[Job]:
    """Starts a command in two ranks. The word FOLDER becomes the folder of the job."""
    with tempfile.TemporaryDirectory() as name:
        command = command_of(launcher, *(name if word == FOLDER else word for word in words), options=options)
        job = Job(Path(name), command, stdout)
        try:
            yield job
        finally:
            job.close()


def script(what: str, *words: str) -> tuple[str, ...]:
    return str(SCRIPT), what, FOLDER, *words


def stat_of(pid: int) -> tuple[str, int]:
    """Returns the state and the parent of a process; the state of a missing one is Z."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "Z", 0
    return state, int(parent)


def descendants(top: int) -> set[int]:
    parents = {int(name): stat_of(int(name))[1] for name in os.listdir("/proc") if name.isdigit()}
    found = {top}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return found - {top}


# ---- the cases: each returns its values in one turn, by name ----

Values = dict[str, float]


def run_true(launcher: str) -> Values:
    start = time.perf_counter()
    command = command_of(launcher, "--no-python", "true")
    subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return {TRUE: 1e3 * (time.perf_counter() - start)}


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def measure_memory(launcher: str) -> Values:
    """Adds up the peaks of the launcher's processes while its ranks run. Pages that two of them share count twice."""
    with running(launcher, "--no-python", "sleep", "1000") as job:
        deadline = time.monotonic() + DEADLINE_S
        ranks: set[int] = set()
        while len(ranks) < 2 and time.monotonic() < deadline:
            below = job.seen = descendants(job.process.pid)
            ranks = {pid for pid in below if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"}
        return {MEMORY: sum(peak_bytes(pid) for pid in {job.process.pid, *below} - ranks)}


def fail_next_to_deaf(launcher: str) -> Values:
    with running(launcher, *script("deaf"), options=("--grace", str(GRACE_S))) as job:
        failed = float(job.await_files("failed")[0])
        seconds = job.await_end() - failed
        return {DEAF: 1e3 * seconds, CODE: float(job.process.returncode != 7)}


FIRST = {"headrace": r"^headrace: rank (\d) failed first", "torchrun": r"Root Cause[^$]*?rank +: (\d)"}


def fail_apart(launcher: str) -> Values:
    with running(launcher, *script("apart")) as job:
        job.await_end()
        found = re.search(FIRST[launcher], job.err.read_text(), re.MULTILINE)
        return {NOT_NAMED: float(not found or found[1] != "1")}


def kill_launcher(launcher: str) -> Values:
    with running(launcher, *script("children")) as job:
        pids = [int(pid) for text in job.await_files("pids.0", "pids.1") for pid in text.split()]
        alive, first, killed = len(pids), len(pids), time.monotonic()
        job.process.kill()
        while alive and time.monotonic() < killed + GIVE_UP_S:
            time.sleep(0.001)
            alive = sum(stat_of(pid)[0] not in "ZX" for pid in pids)
            if time.monotonic() < killed + KILLED_MS / 1e3:
                first = alive
        return {ALIVE: first, GONE: math.inf if alive else 1e3 * (time.monotonic() - killed)}


def interrupt_twice(launcher: str) -> Values:
    with running(launcher, *script("children")) as job:
        job.await_files("pids.0", "pids.1")
        job.process.send_signal(signal.SIGINT)
        time.sleep(0.5)  # a person presses it again after a moment
        job.process.send_signal(signal.SIGINT)
        again = time.monotonic()
        return {AGAIN: 1e3 * (job.await_end() - again)}


def tee_of(launcher: str) -> tuple[str, ...]:
    """Returns torchrun's options for lines with a prefix. Without them its ranks write to its own output."""
    return ("--tee=3", "--log-dir", FOLDER) if launcher == "torchrun" else ()


def measure_latency(launcher: str) -> Values:
    with running(launcher, *tee_of(launcher), *script("times"), stdout=subprocess.PIPE) as job:
        late = []
        for line in job.process.stdout or ():
            now = time.monotonic()
            late.append(now - float(re.split(rb"[ :]", line)[-1]))
        job.await_end()
        return {LATENCY: 1e3 * statistics.median(late)}


WHOLE = re.compile(r"\[(default)?(\d)\][: ]step \d+ of rank (\d)")


def write_pieces(launcher: str) -> Values:
    with running(launcher, *tee_of(launcher), *script("pieces", str(TORN_LINES))) as job:
        job.await_end()
        lines = job.out.read_text().splitlines()
        whole = [found for line in lines if (found := WHOLE.fullmatch(line)) and found[2] == found[3]]
        return {TORN: 2 * TORN_LINES - len(whole)}


def save_checkpoint(launcher: str) -> Values:
    """The loader is headrace's under headrace run, and torch's under torchrun."""
    with running(launcher, *script("checkpoint", {"torchrun": "torch"}.get(launcher, launcher))) as job:
        job.await_files("trains.0", "trains.1")
        job.process.send_signal(signal.SIGTERM)
        job.await_end()
        return {LOST: float(not all((job.folder / f"checkpoint.{rank}").exists() for rank in range(2)))}


# ---- ----


@dataclass(frozen=True)
class Case:
    name: str
    measure: Callable[[str], Values]
    units: dict[str, str]  # "": a count, which is added up over all turns
    rounds: int = ROUNDS
    torchs_rounds: int = ROUNDS
    in_quick: bool = True


CASES = [
    Case("true", run_true, {TRUE: "ms"}),
    Case("memory", measure_memory, {MEMORY: "bytes"}, SLOW_ROUNDS, SLOW_ROUNDS),
    Case("deaf", fail_next_to_deaf, {DEAF: "ms", CODE: ""}, ROUNDS, SLOW_ROUNDS, in_quick=False),
    Case("apart", fail_apart, {NOT_NAMED: ""}, NAMED, TORCHS_NAMED),
    Case("killed", kill_launcher, {ALIVE: "of 40", GONE: "ms"}, ROUNDS, SLOW_ROUNDS),
    Case("ctrl-c", interrupt_twice, {AGAIN: "ms"}, ROUNDS, SLOW_ROUNDS, in_quick=False),
    Case("latency", measure_latency, {LATENCY: "ms"}, SLOW_ROUNDS, SLOW_ROUNDS),
    Case("pieces", write_pieces, {TORN: f"of {2 * TORN_LINES}"}, ROUNDS, SLOW_ROUNDS),
    Case("checkpoint", save_checkpoint, {LOST: ""}, SAVED, TORCHS_SAVED),
]


def row_of(work: str, launcher: str, values: list[float], unit: str) -> Row:
    if not unit:
        return Row(work, launcher, 0, sum(values), f"of {len(values)}")
    median = statistics.median(values)
    if median == math.inf:
        return Row(work, launcher, 0, 1e3 * GIVE_UP_S, unit, at_least=True)
    return Row(work, launcher, 0, median, unit)


def run_case(case: Case) -> list[Row]:
    """Measures the launchers in turn."""
    rounds = {"torchrun": case.torchs_rounds, "headrace": case.rounds}
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(max(rounds.values())):
        for launcher, count in rounds.items():
            for work, value in case.measure(launcher).items() if number < count else ():
                found.setdefault((work, launcher), []).append(value)
    return [row_of(work, launcher, values, case.units[work]) for (work, launcher), values in found.items()]


def main() -> None:
    run_all(__doc__ or "", CASES, run_case, show_against(), goals)


if __name__ == "__main__":
    main()
