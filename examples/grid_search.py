# SPDX-License-Identifier: Apache-2.0
"""Four trainings at once on one machine, first without and then with the cache: time, memory, and how often the data
was made. `python examples/grid_search.py [--jobs 4] [--rows 200000] [--pictures 2000]`; it needs NumPy only.

Each job trains a small linear model with another learning rate, in two ways. Features, which take a while to make, are
named data: without the cache each job makes its own, with `headrace.cache` the first one makes them for all. Pictures
are samples, which have to be decoded: without the cache each job decodes all of them in each of its two epochs, with
`Loader(cache=)` each is decoded once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
import numpy as np

COLUMNS = 256
BLOCK = 10_000
SIDE = 96
EPOCHS = 2


def note_work(word: str) -> None:
    """Notes a piece of work in a file that all processes share."""
    if path := os.environ.get("NOTE_WORK"):
        with Path(path).open("a") as file:
            file.write(f"{word}\n")


# ---- features: named data ----


def make_features(rows: int) -> Iterator[Any]:
    """Yields the features in blocks: random numbers, sorted by row, as a stand-in for decoding files."""
    note_work("features")
    for start in range(0, rows, BLOCK):
        block = np.random.default_rng(start).standard_normal((min(BLOCK, rows - start), COLUMNS))
        yield np.sort(block, axis=1).astype("f4")


def train_on_features(rate: float, rows: int, is_cached: bool) -> tuple[float, Any]:
    """Returns the loss of a linear model after one pass over the features, and the features, which stay in memory."""
    if is_cached:
        features = headrace.cache("features", lambda: make_features(rows))
    else:
        features = np.concatenate(list(make_features(rows)))
    target = features[:, 0] - features[:, -1]
    weights = np.zeros(COLUMNS, "f4")
    loss = 0.0
    for start in range(0, len(features), 1000):
        part, wanted = features[start : start + 1000], target[start : start + 1000]
        error = part @ weights - wanted
        loss = float((error**2).mean())
        weights -= rate * part.T @ error / len(part)
    return loss, features


# ---- pictures: samples ----


class Pictures:
    """Compressed pictures, which are decoded when they are asked for."""

    def __init__(self, count: int) -> None:
        random = np.random.default_rng(0)
        self.files = [
            zlib.compress(np.cumsum(random.integers(-2, 3, (SIDE, SIDE, 3)), 0).astype("u1").tobytes())
            for _ in range(16)
        ]
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        note_work("decoded")
        for _ in range(4):  # as long as a large photograph takes
            pixels = zlib.decompress(self.files[index % len(self.files)])
        return np.frombuffer(pixels, "u1").reshape(SIDE, SIDE, 3).astype("f4") / 255 + index % 7


def train_on_pictures(rate: float, count: int, is_cached: bool) -> tuple[float, Any]:
    """Returns the loss of a linear model after two epochs, and the loader."""
    loader = headrace.Loader(
        Pictures(count), 32, shuffle=True, seed=1, num_workers=1, cache="1G" if is_cached else None
    )
    weights, loss = np.zeros(3, "f4"), 0.0
    for _ in range(EPOCHS):
        for batch in loader:
            means = batch.mean(axis=(1, 2))
            error = means @ weights - means[:, 0] ** 2
            loss = float((error**2).mean())
            weights -= rate * means.T @ error / len(means)
    return loss, loader


# ---- jobs ----


def memory_share() -> int:
    """Returns the proportional share of this process's memory (PSS) in bytes."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def run_job(args: argparse.Namespace) -> None:
    """Trains, reports, and stays until the parent has measured all jobs at once."""
    if args.job == "features":
        loss, kept = train_on_features(args.rate, args.rows, args.cached)
    else:
        loss, kept = train_on_pictures(args.rate, args.pictures, args.cached)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps({"loss": loss, "pss": memory_share()}), flush=True)
    sys.stdin.readline()
    del kept


def run_jobs(args: argparse.Namespace, job: str, is_cached: bool, folder: Path) -> dict[str, float]:
    """Runs all jobs at once; returns seconds, memory in bytes, how often the data was made, and the best loss."""
    note = folder / f"work-{job}-{is_cached}"
    environment = {**os.environ, "HEADRACE_CACHE": str(folder / "cache"), "NOTE_WORK": str(note)}
    sizes = ["--rows", str(args.rows), "--pictures", str(args.pictures)]
    command = [sys.executable, __file__, "--job", job, *sizes, *(["--cached"] if is_cached else [])]
    start = time.perf_counter()
    processes = [
        subprocess.Popen(
            [*command, "--rate", str(0.001 * 2**number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(args.jobs)
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
        "made": len(note.read_text().splitlines()),
        "loss": min(result["loss"] for result in results),
    }


def show(made: str, without: dict[str, float], cached: dict[str, float]) -> None:
    print(f"{'':24}{'without':>12}{'with cache':>12}")
    for name, key, form in (
        ("seconds", "seconds", "{:.1f}"),
        ("memory of all, MB", "memory", "{:.0f}"),
        (made, "made", "{:,.0f} times"),
        ("best loss", "loss", "{:.4f}"),
    ):
        scale = 1e6 if key == "memory" else 1
        cells = (form.format(found[key] / scale) for found in (without, cached))
        print(f"{name:24}" + "".join(f"{cell:>12}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--pictures", type=int, default=2000)
    for name, kind in (("--job", str), ("--rate", float)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--cached", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job is not None:
        run_job(args)
        return
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="grid-search-", dir=memory) as folder:
        for job, title, made in (
            ("features", f"{args.rows} x {COLUMNS} float32 = {args.rows * COLUMNS * 4 / 1e6:.0f} MB", "features made"),
            ("pictures", f"{args.pictures} pictures, {EPOCHS} epochs", "pictures decoded"),
        ):
            without, cached = (run_jobs(args, job, is_cached, Path(folder)) for is_cached in (False, True))
            print(f"{args.jobs} trainings at once, {title}")
            show(made, without, cached)


if __name__ == "__main__":
    main()
