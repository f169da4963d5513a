# SPDX-License-Identifier: Apache-2.0
"""A training whose processes are all killed at some step, again and again, and which is resumed each time from its last
checkpoint, on another number of ranks and workers."""

from __future__ import annotations

import json
import pathlib
import random
import signal
from typing import Any, NamedTuple

import headrace
from loaders import only_headrace
from processes import Script

pytestmark = [only_headrace]
N = 90
KILLS = 20

# Each rank notes the batches that it has trained on, and rank 0 writes a checkpoint after each step. What was noted
# after the last checkpoint is forgotten by a run that is killed, as the model forgets it.
TRAINING = """
import json, multiprocessing, os, random, signal, sys, zlib
import torch
from headrace.torch import DataLoader, per_rank
import headrace

N, WORLD, BATCH, WORKERS, RUN, EPOCHS, KILLED_AT, WHERE = {settings}

class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return torch.tensor([index, random.random(), torch.rand(()).item()], dtype=torch.float64)

def load():
    try:
        with open("checkpoint.json") as file:
            return json.load(file)
    except FileNotFoundError:
        return None

def save(state, epoch, steps):
    with open("checkpoint.new", "w") as file:
        json.dump(dict(state=state, epoch=epoch, run=RUN, steps=steps), file)
    end("before", steps)
    os.rename("checkpoint.new", "checkpoint.json")
    end("after", steps)

def end(where, steps):
    if (steps, where) == (KILLED_AT, WHERE):
        os.killpg(0, signal.SIGKILL)

def train(rank, barrier):
    sampler = per_rank(headrace.Order(N, seed=3), tail="exact", num_replicas=WORLD, rank=rank)
    loader = DataLoader(Noisy(), BATCH, sampler=sampler, num_workers=WORKERS, rng="sample", seed=9,
                        multiprocessing_context="fork" if WORKERS else None)
    checkpoint = load()
    if checkpoint:
        loader.load_state_dict(checkpoint["state"])
    steps = 0
    with open(f"batches-{{RUN}}-{{rank}}", "w") as notes:
        for epoch in range(checkpoint["epoch"] if checkpoint else 0, EPOCHS):
            sampler.set_epoch(epoch)
            for batch in loader:
                steps += 1
                last = loader.last
                note = [steps, epoch, last.step, batch[:, 0].tolist(), last.weights.tolist(),
                        zlib.crc32(batch.numpy().tobytes())]
                print(json.dumps(note), file=notes, flush=True)
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


class Run(NamedTuple):
    world: int
    batch: int
    workers: int
    killed_at: int = -1
    where: str = ""


def _train(folder: pathlib.Path, number: int, run: Run, epochs: int) -> None:
    settings = (N, run.world, run.batch, run.workers, number, epochs, run.killed_at, run.where)
    with Script(folder, TRAINING.format(settings=repr(settings))) as script:
        status = script.finish()
    assert script.stderr == "" and status == (-signal.SIGKILL if run.where else 0)


def _kept(folder: pathlib.Path, runs: list[Run]) -> list[dict[str, Any]]:
    """Returns the batches of all ranks that a checkpoint contains, in the order of the steps and ranks."""
    kept = []
    for number, run in enumerate(runs):
        steps = _steps_kept(folder, number)
        for rank in range(run.world):
            with open(folder / f"batches-{number}-{rank}") as file:
                notes = [json.loads(line) for line in file if line.endswith("]\n")]
            names = ("run_step", "epoch", "step", "indices", "weights", "hash")
            found = [dict(zip(names, note, strict=True), run=number, rank=rank) for note in notes]
            kept += [note for note in found if note["run_step"] <= steps]
    return sorted(kept, key=lambda note: (note["run"], note["run_step"], note["rank"]))


def _steps_kept(folder: pathlib.Path, number: int) -> int:
    """Returns how many steps of a run the checkpoint after it had."""
    path = folder / f"checkpoint-{number}.json"
    checkpoint = json.loads(path.read_text()) if path.exists() else {"run": -1, "steps": 0}
    return int(checkpoint["steps"]) if checkpoint["run"] == number else 0


def _train_all(folder: pathlib.Path, runs: list[Run], epochs: int) -> list[dict[str, Any]]:
    for number, run in enumerate(runs):
        _train(folder, number, run, epochs)
        checkpoint = folder / "checkpoint.json"
        if checkpoint.exists():
            (folder / f"checkpoint-{number}.json").write_text(checkpoint.read_text())
    return _kept(folder, runs)


def _order_of(epoch: int) -> list[int]:
    return list(headrace.Order(N, seed=3, epoch=epoch))


def test_each_sample_is_seen_once_per_epoch_after_twenty_kills(tmp_path: pathlib.Path) -> None:
    numbers = random.Random(4)
    runs = [
        Run(
            numbers.randint(1, 3),
            numbers.randint(1, 5),
            numbers.randint(0, 2),
            numbers.randint(1, 6),
            numbers.choice(["before", "after"]),
        )
        for _ in range(KILLS)
    ]
    runs.append(Run(2, 4, 1))
    epochs = 6
    kept = _train_all(tmp_path, runs, epochs)
    for epoch in range(epochs):
        notes = [note for note in kept if note["epoch"] == epoch]
        counted = [
            (int(index), note)
            for note in notes
            for index, weight in zip(note["indices"], note["weights"], strict=True)
            if weight
        ]
        assert sorted(index for index, _ in counted) == list(range(N)), epoch
        order, done = _order_of(epoch), 0
        steps = {(note["run"], note["run_step"]) for note in notes}
        for step in sorted(steps):  # each step has the next samples of the order
            of_step = {index for index, note in counted if (note["run"], note["run_step"]) == step}
            assert of_step == set(order[done : done + len(of_step)])
            done += len(of_step)
    assert len({(note["epoch"], note["step"], note["rank"]) for note in kept}) == len(kept)


def test_with_a_constant_world_all_batches_have_the_same_bytes(tmp_path: pathlib.Path) -> None:
    numbers = random.Random(5)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    runs = [Run(2, 4, number % 3, numbers.randint(1, 5), numbers.choice(["before", "after"])) for number in range(8)]

    def batches(notes: list[dict[str, Any]]) -> list[Any]:
        return [(note["epoch"], note["step"], note["rank"], note["indices"], note["hash"]) for note in notes]

    expected = batches(_train_all(whole, [Run(2, 4, 1)], 3))
    assert batches(_train_all(killed, [*runs, Run(2, 4, 2)], 3)) == expected and len(expected) == 2 * 3 * 12
