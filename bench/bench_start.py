# SPDX-License-Identifier: Apache-2.0
"""Measures how long the first batch of an epoch takes with each start method, and closing a loader in mid-epoch.

Each turn is a process of its own, which runs start_script.py. A fork server serves one process, and keeps memory, so
that the host would have to give new memory to a process that is spawned while the server runs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from measure import BARE, QUICK, ROUNDS, Goal, Key, Row, end_of_bare_process, in_words, run_all

SCRIPT = Path(__file__).resolve().parent / "start_script.py"
LIBRARIES = ("torch", "headrace")
METHODS = ("fork", "forkserver", "spawn")
PHASES = {"first": "first batch", "later": "later epochs' first batch", "close": "close in mid-epoch"}
Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class Case:
    name: str
    count: int
    later_epochs: int
    rounds: int
    in_quick: bool = False


BOUND = "1.1 x (dumps + loads) + 0.1 s"
SMALL, LARGE = "small dataset", "2 million paths"
CASES = [Case(SMALL, 1000, 1, 1 if QUICK else ROUNDS, True), Case(LARGE, 2_000_000, 1, 3)]


def work_of(case: str, method: str, phase: str) -> str:
    return f"{case}, {method}: {PHASES[phase]}"


def goals() -> list[Goal]:
    later = Key(work_of(SMALL, "forkserver", "later"), "headrace", 1)
    found = [Goal(later.work, later, 50, unit="ms")]
    for case in (SMALL, LARGE):
        for method in METHODS:
            work = work_of(case, method, "first")
            found.append(Goal(f"{work}, of torch", Key(work, "headrace", 1), 1, Key(work, "torch", 1)))
    work = work_of(LARGE, "forkserver", "later")
    bound = Key(f"{LARGE}: {BOUND}", "headrace", 1)
    found.append(Goal(f"{work}, of {BOUND}", Key(work, "headrace", 1), 1, bound))
    closes = [Key(work_of(SMALL, method, "close"), "headrace", 1) for method in METHODS]
    return found + [Goal(key.work, key, 10, unit="ms") for key in closes]


def run_script(library: str, method: str, case: Case) -> Seconds:
    command = [sys.executable, str(SCRIPT), library, method, str(case.count), str(case.later_epochs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: Seconds = json.loads(done.stdout)
    return found


def run_case(case: Case) -> list[Row]:
    runs: dict[tuple[str, str], list[Seconds]] = {(library, method): [] for library in LIBRARIES for method in METHODS}
    bare: list[dict[str, float]] = []
    for _ in range(case.rounds):
        for method in METHODS:
            for library in LIBRARIES:
                runs[library, method].append(run_script(library, method, case))
        bare.append(end_of_bare_process(*METHODS))

    def median_ms(library: str, method: str, phase: str) -> float:
        return 1e3 * statistics.median(s for run in runs[library, method] for s in run[phase])

    rows = [
        Row(work_of(case.name, method, phase), library, 1, median_ms(library, method, phase), "ms")
        for phase in PHASES
        for method in METHODS
        for library in LIBRARIES
    ]
    rows += [
        Row(work_of(case.name, method, "close"), BARE, 1, statistics.median(one[method] for one in bare), "ms")
        for method in METHODS
    ]
    bound_ms = 1.1 * median_ms("headrace", "forkserver", "pickle") + 100
    return [*rows, Row(f"{case.name}: {BOUND}", "headrace", 1, bound_ms, "ms")]


def show(rows: list[Row]) -> None:
    bare = {row.work: row.value for row in rows if row.rival == BARE}
    compared = [row for row in rows if row.rival in LIBRARIES and not row.work.endswith(BOUND)]
    for torchs, ours in zip(compared[0::2], compared[1::2], strict=True):
        ratio = in_words(ours.value / torchs.value)
        bound = f"   {BARE} {bare[ours.work]:.1f} ms" if ours.work in bare else ""
        print(
            f"{ours.work:58} torch {torchs.value:8.1f} ms   headrace {ours.value:8.1f} ms   ratio {ratio}{bound}",
            flush=True,
        )


def main() -> None:
    run_all(__doc__ or "", CASES, run_case, show, goals)


if __name__ == "__main__":
    main()
