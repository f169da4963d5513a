# SPDX-License-Identifier: Apache-2.0
"""Measures num_workers="auto" against each fixed number of workers.

    python bench/auto_workers.py [--runs 5] [--numbers 0 1 2 3 4] [--seconds 4] [--until 25] [--ranks 1] [WORK...]

Each work runs in a process of its own for each number, in turn: with fixed numbers for `seconds` after the first
batches, with auto for `until` seconds, of which the last `seconds` count. It prints the rates as a table, with the
number that auto has chosen, its tries, and the share of the time of its search that was lost against the best fixed
number. With `--ranks 4`, four local ranks run at once, and their rates are added; they do not wait for each other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

WORKS = {  # seconds of CPU and of waiting for a sample, and the same for a step of the loop, which runs in `threads`
    "tiny samples": (0.0, 0.0, 0.0, 0.0, 1),
    "CPU-heavy": (0.005, 0.0, 0.001, 0.0, 1),
    "waits for a disk": (0.0, 0.010, 0.001, 0.004, 1),
    "trainer on both cores": (0.001, 0.0, 0.008, 0.0, 2),
}

CHILD = """
import json, sys, time, threading
import numpy as np
from headrace import Loader
sample_cpu, sample_wait, step_cpu, step_wait, threads = json.loads(sys.argv[1])
number, seconds, until = json.loads(sys.argv[2])

A = np.ones((160, 160))

def turns_per_second():  # of work without the GIL
    count, end = 0, time.perf_counter() + 0.5
    while time.perf_counter() < end:
        A @ A
        count += 1
    return 2 * count

def burn(cpu_s, rate):
    for _ in range(round(cpu_s * rate)):
        A @ A

RATE = float(sys.argv[3])
if not RATE:
    print(turns_per_second())
    sys.exit()

class Data:
    def __len__(self):
        return 1 << 40
    def __getitem__(self, index):
        burn(sample_cpu, RATE)
        if sample_wait:
            time.sleep(sample_wait)
        return np.zeros(64)

def step():
    others = [threading.Thread(target=burn, args=(step_cpu, RATE)) for _ in range(threads - 1)]
    for one in others:
        one.start()
    burn(step_cpu, RATE)
    if step_wait:
        time.sleep(step_wait)
    for one in others:
        one.join()

loader = Loader(Data(), batch_size=4, sampler=range(1 << 30), num_workers=number, rng="sample", seed=0,
                multiprocessing_context="fork" if number else None)
count, began, marks = 0, None, []
for batch in loader:
    step()
    now = time.perf_counter()
    count += 1
    if count == 1:
        first = now
    if began is None and (count == 20 or (count > 2 and now - first > 2)):
        began = now
    if began is None:
        continue
    marks.append(now)
    if now - began > (until if number == "auto" else seconds):
        break
last = [one for one in marks if one > marks[-1] - seconds]
report = loader.report().get("auto") if number else None
searched = [one for one in marks if one <= marks[-1] - seconds]
print(json.dumps({
    "rate": (len(last) - 1) / (last[-1] - last[0]),
    "before": len(searched) / (searched[-1] - began) if len(searched) > 1 else 0,
    "auto": report,
}))
"""


def children(work: str, number: int | str, options: argparse.Namespace, rate: float) -> list[str]:
    """Runs all ranks at once, and returns what each has printed."""
    words = [json.dumps(WORKS[work]), json.dumps([number, options.seconds, options.until]), str(rate)]
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(options.ranks))
    shared = {**sizes, "HEADRACE_COMPARE_RANKS": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, *words],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(options.ranks)
    ]
    printed = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"{work} with {number} workers failed")
    return printed


def run(work: str, number: int | str, options: argparse.Namespace, rate: float) -> dict[str, Any]:
    found = [json.loads(printed) for printed in children(work, number, options, rate)]
    return {
        "rate": sum(one["rate"] for one in found),
        "before": sum(one["before"] for one in found),
        "autos": [one["auto"] for one in found],
    }


def measure(work: str, options: argparse.Namespace, rate: float) -> None:
    rates: dict[str, list[float]] = {str(one): [] for one in [*options.numbers, "auto"]}
    shares, before, autos = [], [], []
    for _ in range(options.runs):
        found = {str(number): run(work, number, options, rate) for number in [*options.numbers, "auto"]}
        for number, one in found.items():
            rates[number].append(one["rate"])
        best = max(one["rate"] for number, one in found.items() if number not in ("0", "auto"))
        shares.append(found["auto"]["rate"] / best)
        before.append(found["auto"]["before"] / best)
        autos.append(found["auto"]["autos"])
    cells = [f"{statistics.median(one):.1f}" for one in rates.values()]
    text = f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"
    print(f"| {work} | {' | '.join(cells)} | {text} | {statistics.median(before):.2f} |", end=" ")
    for value in (lambda auto: auto["workers"], lambda auto: len(auto["tries"]), lambda auto: auto["changes"]):
        print(", ".join("+".join(str(value(auto)) for auto in ranks) for ranks in autos), end=" | ")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("works", nargs="*", metavar="WORK", default=[])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--numbers", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--until", type=float, default=25)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    (turns,) = children(next(iter(WORKS)), 0, argparse.Namespace(**{**vars(options), "ranks": 1}), 0.0)
    heads = ["work", *(f"{one}" for one in options.numbers), "auto", "auto / best", "search / best"]
    heads += ["workers", "tries", "changes"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for work in options.works or WORKS:
        measure(work, options, float(turns))


if __name__ == "__main__":
    main()
