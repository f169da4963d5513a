# SPDX-License-Identifier: Apache-2.0
"""A training on tar files whose processes are all killed, again and again. It goes on each time on another number of
ranks and workers, and each sample comes once in each epoch."""

from __future__ import annotations

import json
import pathlib
import random
import signal

from loaders import only_headrace
from processes import Script
from tar_files import write_samples

pytestmark = [only_headrace]
N, KILLS, EPOCHS = 90, 20, 3

# Each rank notes the samples that it has trained on, and rank 0 writes a checkpoint after each step.
TRAINING = """
import json, multiprocessing, os, signal
from headrace import Order, sources
from headrace.torch import DataLoader, per_rank

N, EPOCHS, WORLD, BATCH, WORKERS, RUN, KILLED_AT, WHERE = {settings}

def load():
    try:
        with open("checkpoint.json") as file:
            return json.load(file)
    except FileNotFoundError:
        return None

def end(where, steps):
    if (steps, where) == (KILLED_AT, WHERE):
        os.killpg(0, signal.SIGKILL)

def save(state, epoch, steps):
    with open("checkpoint.new", "w") as file:
        json.dump(dict(state=state, epoch=epoch, run=RUN, steps=steps), file)
    end("before", steps)
    os.rename("checkpoint.new", "checkpoint.json")
    end("after", steps)

def train(rank, barrier):
    tar = sources.Tar("{{0..2}}.tar", fields=("cls", "bin"), decode={{"bin": len}})
    sampler = per_rank(Order(N, seed=3), tail="exact", num_replicas=WORLD, rank=rank)
    loader = DataLoader(tar, BATCH, sampler=sampler, num_workers=WORKERS,
                        multiprocessing_context="fork" if WORKERS else None)
    checkpoint = load()
    if checkpoint:
        loader.load_state_dict(checkpoint["state"])
    steps = 0
    with open(f"notes-{{RUN}}-{{rank}}", "w") as notes:
        for epoch in range(checkpoint["epoch"] if checkpoint else 0, EPOCHS):
            sampler.set_epoch(epoch)
            for numbers, lengths in loader:
                steps += 1
                assert lengths.tolist() == [len(b"%d " % i * 100) for i in numbers.tolist()]
                used = [i for i, weight in zip(numbers.tolist(), loader.last.weights.tolist()) if weight]
                print(json.dumps([steps, epoch, used]), file=notes, flush=True)
                barrier.wait()
                if rank == 0:
                    state = loader.state_dict()
                    done = json.loads(state["headrace"])["epoch"] > epoch
                    save(state, epoch + done, steps)
                barrier.wait()

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(WORLD)
    ranks = [fork.Process(target=train, args=(rank, barrier)) for rank in range(WORLD)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * WORLD
"""


def _steps_kept(folder: pathlib.Path, run: int) -> int:
    """Returns how many steps of the run are in the checkpoint that it left."""
    path = folder / "checkpoint.json"
    checkpoint = json.loads(path.read_text()) if path.exists() else {"run": -1, "steps": 0}
    return int(checkpoint["steps"]) if checkpoint["run"] == run else 0


def test_each_sample_comes_once_after_twenty_kills(tmp_path: pathlib.Path) -> None:
    for number in range(3):
        write_samples(tmp_path / f"{number}.tar", N // 3, N // 3 * number)
    rng = random.Random(7)
    seen: list[list[int]] = [[] for _ in range(EPOCHS)]
    for run in range(KILLS + 1):
        world, batch, workers = rng.randint(1, 3), rng.randint(1, 5), rng.randint(0, 2)
        where = rng.choice(["before", "after"]) if run < KILLS else ""
        settings = (N, EPOCHS, world, batch, workers, run, rng.randint(1, 4), where)
        with Script(tmp_path, TRAINING.format(settings=repr(settings))) as script:
            status = script.finish()
        assert script.stderr == "" and status == (-signal.SIGKILL if where else 0)
        kept = _steps_kept(tmp_path, run)
        for rank in range(world):
            lines = (tmp_path / f"notes-{run}-{rank}").read_text().splitlines()
            for steps, epoch, used in map(json.loads, lines):
                seen[epoch] += used if steps <= kept else []
    assert [sorted(of_epoch) for of_epoch in seen] == [list(range(N))] * EPOCHS
