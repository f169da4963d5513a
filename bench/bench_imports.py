# SPDX-License-Identifier: Apache-2.0
"""Measures how long the first batch of an epoch takes with the start method forkserver in scripts that import more than
torch, and how long three epochs of a training and a validation loader take.

Each turn is a process of its own, which runs imports_script.py. Packages that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import QUICK, ROUNDS, Goal, Key, Row, in_words, run_all

SCRIPT = Path(__file__).resolve().parent / "imports_script.py"
LIBRARIES = ("torch", "headrace")
PHASES = {"first": "first batch", "later": "later epochs' first batch", "epochs": "3 epochs with validation"}
MODULES = (
    *("pandas", "pyarrow.dataset", "datasets", "transformers.trainer", "sklearn.ensemble", "lightning", "monai"),
    *("torch_geometric", "cv2", "lhotse", "polars"),
)
UNFIT = "polars"  # its threads do not survive a fork, so that workers import it


@dataclass(frozen=True)
class Case:
    name: str
    rounds: int = 1 if QUICK else ROUNDS
    in_quick: bool = False


CASES = [Case(name, in_quick=name == "pandas") for name in MODULES if importlib.util.find_spec(name.partition(".")[0])]


def work_of(module: str, phase: str) -> str:
    return f"import {module}: {PHASES[phase]}"


def goals() -> list[Goal]:
    found = []
    for case in CASES:
        for phase in ("first", "epochs"):
            work = work_of(case.name, phase)
            found.append(Goal(f"{work}, of torch", Key(work, "headrace", 2), 1, Key(work, "torch", 2)))
        work = work_of(case.name, "later")
        if case.name != UNFIT:
            found.append(Goal(work, Key(work, "headrace", 2), 100, unit="ms"))
    return found


def run_script(library: str, module: str) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), library, "forkserver", module]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            out, _ = process.communicate()
        finally:
            process.kill()
            remove_semaphores_of(process.pid)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, out)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def remove_semaphores_of(pid: int) -> None:
    """Removes the semaphores that torch's loader leaves if its process is killed after joblib (of sklearn) was
    imported: joblib gives them names that multiprocessing does not clean up."""
    for path in Path("/dev/shm").glob(f"sem.loky-{pid}-*"):
        path.unlink(missing_ok=True)


def run_case(case: Case) -> list[Row]:
    runs: dict[str, list[dict[str, Any]]] = {library: [] for library in LIBRARIES}
    for _ in range(case.rounds):
        for library in LIBRARIES:
            runs[library].append(run_script(library, case.name))

    def median_ms(library: str, phase: str) -> float:
        values = [one[phase] for one in runs[library]]
        return 1e3 * statistics.median(s for value in values for s in (value if isinstance(value, list) else [value]))

    return [
        Row(work_of(case.name, phase), library, 2, median_ms(library, phase), "ms")
        for phase in PHASES
        for library in LIBRARIES
    ]


def show(rows: list[Row]) -> None:
    for torchs, ours in zip(rows[0::2], rows[1::2], strict=True):
        ratio = in_words(ours.value / torchs.value)
        values = f"torch {torchs.value:8.1f} ms   headrace {ours.value:8.1f} ms"
        print(f"{ours.work:58} {values}   ratio {ratio}", flush=True)


def main() -> None:
    run_all(__doc__ or "", CASES, run_case, show, goals)


if __name__ == "__main__":
    main()
