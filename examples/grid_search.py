# SPDX-License-Identifier: Apache-2.0
"""Four trainings at once on one machine, first without and then with headrace.cache: time, memory, and how often the
data was made. `python examples/grid_search.py [--jobs 4] [--rows 200000]`; it needs NumPy only.

Each job trains a small linear model with another learning rate. All of them need the same features, which take a while
to make. Without the cache, each job makes its own; with it, the first one makes them for all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
import numpy as np

COLUMNS = 256
BLOCK = 10_000


def make_features(rows: int) -> Iterator[Any]:
    """Yields the features in blocks: random numbers, sorted by row, as a stand-in for decoding files."""
    if note := os.environ.get("NOTE_BUILDS"):
        with Path(note).open("a") as file:
            file.write(f"{os.getpid()}\n")
    for start in range(0, rows, BLOCK):
        block = np.random.default_rng(start).standard_normal((min(BLOCK, rows - start), COLUMNS))
        yield np.sort(block, axis=1).astype("f4")


def train(features: Any, rate: float) -> float:
    """Returns the loss of a linear model after one pass over the features."""
    target = features[:, 0] - features[:, -1]
    weights = np.zeros(COLUMNS, "f4")
    loss = 0.0
    for start in range(0, len(features), 1000):
        part, wanted = features[start : start + 1000], target[start : start + 1000]
        error = part @ weights - wanted
        loss = float((error**2).mean())
        weights -= rate * part.T @ error / len(part)
    return loss


def private_and_shared() -> tuple[int, int]:
    """Returns the proportional share of this process's memory, and its resident memory, in bytes."""
    text = Path("/proc/self/smaps_rollup").read_text()
    sizes = {line.split()[0]: 1024 * int(line.split()[1]) for line in text.splitlines()[1:]}
    return sizes["Pss:"], sizes["Rss:"]


def run_job(rate: float, rows: int, uses_cache: bool) -> None:
    """Trains, reports, and stays until the parent has measured all jobs at once."""
    if uses_cache:
        features = headrace.cache("features", lambda: make_features(rows))
    else:
        features = np.concatenate(list(make_features(rows)))
    loss = train(features, rate)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps({"loss": loss, "pss": private_and_shared()[0]}), flush=True)
    sys.stdin.readline()


def run_jobs(jobs: int, rows: int, uses_cache: bool, folder: Path) -> dict[str, float]:
    """Runs all jobs at once; returns seconds, memory in bytes, how often features were made, and the best loss."""
    note = folder / f"builds-{uses_cache}"
    environment = {**os.environ, "HEADRACE_CACHE": str(folder / "cache"), "NOTE_BUILDS": str(note)}
    command = [sys.executable, __file__, "--rows", str(rows), *(["--cached"] if uses_cache else [])]
    start = time.perf_counter()
    processes = [
        subprocess.Popen(
            [*command, "--rate", str(0.001 * 2**number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(jobs)
    ]
    for process in processes:
        assert process.stdout and process.stdout.readline() == "ready\n"
    seconds = time.perf_counter() - start
    results = []
    for process in processes:
        assert process.stdin and process.stdout
        process.stdin.write("\n")
        process.stdin.flush()
        results.append(json.loads(process.stdout.readline()))
    for process in processes:
        process.communicate("\n")
    return {
        "seconds": seconds,
        "memory": sum(result["pss"] for result in results),
        "builds": len(note.read_text().splitlines()),
        "loss": min(result["loss"] for result in results),
    }


def show(jobs: int, rows: int, without: dict[str, float], cached: dict[str, float]) -> None:
    print(f"{jobs} trainings at once, {rows} x {COLUMNS} float32 = {rows * COLUMNS * 4 / 1e6:.0f} MB of features")
    print(f"{'':24}{'without':>12}{'with cache':>12}")
    for name, key, form in (
        ("seconds", "seconds", "{:.1f}"),
        ("memory of all, MB", "memory", "{:.0f}"),
        ("features made", "builds", "{:.0f} times"),
        ("best loss", "loss", "{:.4f}"),
    ):
        scale = 1e6 if key == "memory" else 1
        cells = (form.format(found[key] / scale) for found in (without, cached))
        print(f"{name:24}" + "".join(f"{cell:>12}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--cached", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rate is not None:
        run_job(args.rate, args.rows, args.cached)
        return
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="grid-search-", dir=memory) as folder:
        without = run_jobs(args.jobs, args.rows, False, Path(folder))
        cached = run_jobs(args.jobs, args.rows, True, Path(folder))
    show(args.jobs, args.rows, without, cached)


if __name__ == "__main__":
    main()
