# SPDX-License-Identifier: Apache-2.0
"""Functions that the measurements in Python share: the kernel's counters, rounds in turn, medians, goals, results."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

QUICK = os.environ.get("QUICK", "0") not in ("", "0")
ROUNDS = 3 if QUICK else 5
WARM_S = (
    0.1 if QUICK else 0.35
)  # 0.25 s after its start a worker checks its memory growth once, which touches new pages.


@dataclass(frozen=True)
class Cost:
    """The cost of one batch, in the trainer and in all its workers, with all threads.

    It has user and system time, minor page faults and context switches. `us` is the time that passed.
    """

    us: float
    cpu_us: float
    faults: float
    switches: float
    worker_cpu_us: float
    worker_faults: float
    worker_switches: float


def _cpu_clock(pid: int) -> int:
    """Returns the clock of the CPU time of all threads of a process, also of ended ones (clock_getcpuclockid)."""
    return ~pid << 3 | 2


def _of_worker(pid: int) -> tuple[float, float, float]:
    process = Path("/proc") / str(pid)
    faults = float((process / "stat").read_text().rpartition(")")[2].split()[7])
    switches = 0.0
    for task in (process / "task").iterdir():
        with contextlib.suppress(OSError):  # The thread may have just ended.
            lines = (task / "status").read_text().splitlines()
            switches += sum(float(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return 1e6 * time.clock_gettime(_cpu_clock(pid)), faults, switches


def _of_workers(pids: Sequence[int]) -> list[float]:
    return [sum(column) for column in zip((0.0, 0.0, 0.0), *map(_of_worker, pids), strict=True)]


def _of_trainer() -> list[float]:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return [1e6 * (own.ru_utime + own.ru_stime), own.ru_minflt, own.ru_nvcsw + own.ru_nivcsw]


def consume(batches: Iterator[Any], count: int, seconds: float, kept: deque[Any]) -> int:
    """Takes batches until there were `count` and `seconds` have passed, and returns how many it took."""
    end = time.perf_counter() + seconds
    taken = 0
    for batch in batches:
        kept.append(batch)
        taken += 1
        if taken >= count and time.perf_counter() >= end:
            break
    return taken


def measure(batches: Iterator[Any], pids: Sequence[int], *, seconds: float, warm_count: int, keep: int = 1) -> Cost:
    """Returns the cost of a batch once everything is warm, for a consumer that holds the last `keep` batches."""
    kept: deque[Any] = deque(maxlen=keep)
    consume(batches, warm_count, WARM_S, kept)
    gc.collect()  # It touches every object once, because a fork has made their pages copy-on-write.
    # The trainer's own counters are read next to its clock: reading those of the workers costs it something.
    of_workers, of_trainer, start = _of_workers(pids), _of_trainer(), time.perf_counter()
    taken = consume(batches, 8, seconds, kept)
    after = [1e6 * time.perf_counter(), *_of_trainer(), *_of_workers(pids)]
    before = [1e6 * start, *of_trainer, *of_workers]
    return Cost(*((late - early) / taken for early, late in zip(before, after, strict=True)))


def medians(costs: Sequence[Cost]) -> Cost:
    return Cost(**{f.name: statistics.median(getattr(cost, f.name) for cost in costs) for f in fields(Cost)})


@dataclass(frozen=True)
class Row:
    """One result: `value` in `unit`, of which less is better. `at_least`: the wait ended at that value."""

    work: str
    rival: str
    workers: int
    value: float
    unit: str
    cost: Cost | None = None
    at_least: bool = False


@dataclass(frozen=True)
class Key:
    """Names one number of the results."""

    work: str
    rival: str
    workers: int = 0
    field: str = "us"  # a field of Cost


@dataclass(frozen=True)
class Goal:
    """A goal: `value` is at most `bound` x `against`, or at most `bound` (in `unit`)."""

    text: str
    value: Key
    bound: float
    against: Key | None = None
    unit: str = ""


@dataclass(frozen=True)
class Verdict:
    text: str
    measured: str
    bound: str
    reached: str


def _find(rows: Sequence[Row], key: Key) -> float | None:
    for row in rows:
        if (row.work, row.rival, row.workers) == (key.work, key.rival, key.workers):
            return getattr(row.cost, key.field) if row.cost else row.value
    return None


def in_words(ratio: float) -> str:
    """Returns a ratio as a text that is easy to read: 1/60 instead of 0.0167."""
    return f"1/{1 / ratio:.3g}" if 0 < ratio < 0.5 else f"{ratio:.2f}"


def judge(rows: Sequence[Row], goal: Goal) -> Verdict | None:
    """Compares a goal with the results. Returns None if a part of it was not measured."""
    value = _find(rows, goal.value)
    against = _find(rows, goal.against) if goal.against else 1.0
    if value is None or against is None:
        return None
    ratio = value / against
    say: Callable[[float], str] = in_words if goal.against else lambda number: f"{number:.3g} {goal.unit}".rstrip()
    reached = "yes" if ratio <= goal.bound else f"no: {ratio / goal.bound:.2f} x over" if goal.bound else "no"
    return Verdict(goal.text, say(ratio), f"<= {say(goal.bound)}", reached)


def reset_peak() -> None:
    """Resets the peak of this process's resident memory that the kernel has recorded."""
    Path("/proc/self/clear_refs").write_text("5")


def status_bytes(field: str) -> int:
    """Returns a field of /proc/self/status in bytes: VmRSS is the resident memory, VmHWM its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def in_turn(work: str, ways: dict[str, Callable[[], float]], unit: str = "ns", rounds: int = ROUNDS) -> list[Row]:
    """Measures the ways in turn, `rounds` times, and returns the medians."""
    found: dict[str, list[float]] = {rival: [] for rival in ways}
    for _ in range(rounds):
        for rival, way in ways.items():
            found[rival].append(way())
    return [Row(work, rival, 0, statistics.median(values), unit) for rival, values in found.items()]


BARE = "bare process"


def end_of_bare_process(*methods: str) -> dict[str, float]:
    """Returns how long the end of a bare process takes, in ms by start method: see bare_end.py."""
    script = Path(__file__).resolve().parent / "bare_end.py"
    done = subprocess.run([sys.executable, str(script), *methods], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout)
    return {method: 1e3 * statistics.median(seconds) for method, seconds in found.items()}


def options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--only", default="", help="run only cases whose name contains this")
    return parser.parse_args()


def finish(rows: Sequence[Row], goals: Sequence[Goal], path: Path | None) -> None:
    """Prints the goals and their verdicts, and writes all results to `path`."""
    verdicts = [verdict for goal in goals if (verdict := judge(rows, goal))]
    for verdict in verdicts:
        print(f"goal: {verdict.text}: {verdict.measured} (to reach {verdict.bound}): {verdict.reached}")
    if path:
        results = {"rows": [asdict(row) for row in rows], "verdicts": [asdict(verdict) for verdict in verdicts]}
        path.write_text(json.dumps(results, indent=1))


def show_against(*rivals: str) -> Callable[[list[Row]], None]:
    """Returns a function that prints rows, each with its ratio to the row of one of these rivals for the same work."""

    def show(rows: list[Row]) -> None:
        bases = {(row.work, row.workers): row.value for row in rows if row.rival in rivals}
        work, rival = (max(len(getattr(row, name)) for row in rows) for name in ("work", "rival"))
        for row in rows:
            base = bases.get((row.work, row.workers))
            ratio = in_words(row.value / base) if base else ""
            workers = row.workers or ""
            text = f"{row.work:{work}}  {row.rival:{rival}} {workers:>3} {row.value:14.3f} {row.unit:6} {ratio}"
            print(text.rstrip(), flush=True)

    return show


@dataclass(frozen=True)
class Case:
    """A case of a script that needs to know no more than how to measure it."""

    name: str
    run: Callable[[], list[Row]]
    in_quick: bool = True


def run_all(
    description: str,
    cases: Sequence[Any],
    run_case: Callable[[Any], list[Row]],
    show: Callable[[list[Row]], None],
    goals: Callable[[], Sequence[Goal]],
) -> None:
    """Runs the cases of a script. Each case has a `name`, and `in_quick` says whether a quick run includes it. show
    prints the rows of a case, as `show_against` does."""
    args = options(description)
    chosen = [case for case in cases if args.only in case.name and (case.in_quick or not QUICK)]
    if not chosen:
        names = ", ".join(case.name for case in cases if case.in_quick or not QUICK)
        sys.exit(f"--only {args.only}: no case has this in its name; there are {names}")
    rows: list[Row] = []
    for case in chosen:
        of_case = run_case(case)
        show(of_case)
        rows += of_case
    finish(rows, goals(), args.json)
