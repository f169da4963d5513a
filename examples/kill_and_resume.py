# SPDX-License-Identifier: Apache-2.0
"""Kills a training on two ranks, goes on with one, and finds which samples the model was trained on.

resume.py, train_from_bucket.py and train_mixture.py use it to show that they work. A training of your own needs none
of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys


def note_samples(folder: str, rank: int, step: int, epoch: int, indices: list[int], weights: list[float]) -> None:
    """Notes which samples a rank has trained on, for the comparison at the end."""
    seen = [index for index, weight in zip(indices, weights, strict=True) if weight]
    with open(os.path.join(folder, f"seen-{rank}"), "a") as file:
        print(json.dumps([step, epoch, seen]), file=file)


def run_ranks(words: list[str], folder: str, ranks: int, workers: int, killed_at: int) -> int:
    """Runs a script with so many ranks, and returns the exit code of `headrace run`. words: the script and options."""
    launch = [sys.executable, "-m", "headrace", "run", f"--nproc={ranks}", *words]
    options = ["--train", folder, "--workers", str(workers), "--killed-at", str(killed_at)]
    return subprocess.run([*launch, *options], timeout=300).returncode


def samples_of_epochs(folder: str, count: int, killed_step: int) -> list[list[int]]:
    """Returns the samples that the model was trained on in each epoch. Steps after the last checkpoint before the kill
    were undone by it, and were made again."""
    last: dict[tuple[int, int], tuple[int, list[int]]] = {}
    for name in sorted(os.listdir(folder)):
        if name.startswith("seen-"):
            with open(os.path.join(folder, name)) as file:
                for line in file:
                    step, epoch, seen = json.loads(line)
                    last[step, int(name.removeprefix("seen-"))] = epoch, seen
    kept = killed_step // 5 * 5  # the step of the checkpoint
    found: list[list[int]] = [[] for _ in range(count)]
    for (step, rank), (epoch, seen) in last.items():
        if step <= kept or rank == 0:
            found[epoch] += seen
    return found


def kill_and_resume(words: list[str], folder: str, workers: int, killed_at: int, epochs: int) -> list[list[int]]:
    """Trains on two ranks, which are killed, and goes on with one. Returns the samples of so many epochs."""
    killed = run_ranks(words, folder, 2, workers, killed_at)
    print(f"headrace run has ended with exit code {killed}; one rank goes on", flush=True)
    run_ranks(words, folder, 1, workers, 0)
    return samples_of_epochs(folder, epochs, killed_at)


def has_each_once(epochs: list[list[int]], count: int) -> bool:
    """Prints how many samples the epochs have, and returns True if each one has all samples once."""
    for epoch, seen in enumerate(epochs):
        print(f"epoch {epoch}: {len(seen)} samples, {len(set(seen))} different ones")
    return all(sorted(seen) == list(range(count)) for seen in epochs)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the options that `run_ranks` gives to a script."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", metavar="FOLDER", help="train, with checkpoints in this folder")
    parser.add_argument("--workers", type=int, default=1, help="data loading processes of each rank")
    parser.add_argument(
        "--killed-at", type=int, default=0, help="the step at which each rank kills itself (with --train: 0, never)"
    )
    return parser
