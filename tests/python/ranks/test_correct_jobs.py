# SPDX-License-Identifier: Apache-2.0
"""Jobs in which the ranks use their loaders differently on purpose: comparing the ranks must not end them."""

from __future__ import annotations

import pathlib

import pytest
from loaders import only_headrace
from rank_scripts import run_ranks

pytestmark = only_headrace

PRELUDE = """
import warnings
import torch
from headrace._loader.both import ranks
from headrace.torch._loader.as_any import AsAnyLoader
from headrace.torch import DataLoader, DistributedSampler
from torch.utils.data import DistributedSampler as TorchsSampler

def make(n, batch_size=4, **options):
    data = range(n)
    return DataLoader(data, batch_size, sampler=DistributedSampler(data, WORLD_SIZE, RANK, **options))

def train(loader, epochs=3):
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        assert len(list(loader)) == len(loader)

def join():
    # Lets the ranks find each other, which they do in their first epoch.
    list(make(8))
    meet("joined")

def describe(loader):
    return ranks.describe(AsAnyLoader(loader))

meet("start")
"""
END = """
print("fine", flush=True)
meet("end")
"""
BOTH_FINE = ["fine\n", "fine\n"]


def run(folder: pathlib.Path, code: str, **changes: str | None) -> list[str]:
    return run_ranks(folder, 2, PRELUDE + code + END, **changes)


def test_rank_that_looks_at_another_loader_of_a_helper_first(tmp_path: pathlib.Path) -> None:
    code = """
join()
if RANK == 0:
    next(iter(make(100)))
meet("looked")
loader = make(1000)
train(loader, 1)
assert "compared with 1 other" in describe(loader), describe(loader)
"""
    assert run(tmp_path, code) == BOTH_FINE


def test_two_loaders_of_a_helper_are_told_apart(tmp_path: pathlib.Path) -> None:
    """The second one has another seed on each rank, and the message names its line."""
    code = """
join()
if RANK == 0:
    next(iter(make(64, seed=5)))
meet("looked")
attempt(train, make(64, seed=RANK))
"""
    first, second = run(tmp_path, code)
    assert first == second and "rank 0 has the seed 0, rank 1 has 1" in first
    assert first.endswith(
        "if these loaders are not meant to be equal, give them compare_ranks=False, or set "
        "HEADRACE_COMPARE_RANKS=0 (headrace help ranks-disagree)\nfine\n"
    )


@pytest.mark.parametrize("world", ["WORLD_SIZE, RANK", "1, 0"])
def test_rank_that_validates_alone(tmp_path: pathlib.Path, world: str) -> None:
    code = f"""
data = range(30)
training, validation = make(64), DataLoader(data, 4, sampler=DistributedSampler(data, {world}, shuffle=False))
for epoch in range(3):
    training.sampler.set_epoch(epoch)
    list(training)
    if RANK == 0:
        for batch in validation:
            pass
    meet(f"epoch {{epoch}}")
list(validation)
"""
    assert run(tmp_path, code) == BOTH_FINE


@pytest.mark.parametrize("workers", [0, 1])
def test_rank_that_looks_at_one_batch_first(tmp_path: pathlib.Path, workers: int) -> None:
    """Nothing else holds the ranks together, so the other one could begin its second epoch while this one is in its
    first. They meet in each epoch all the same, and each wait has a result."""
    code = f"""
agreement.WAIT_S = 100.0
data = range(64)
loader = DataLoader(data, 4, sampler=DistributedSampler(data, WORLD_SIZE, RANK), num_workers={workers})
if RANK == 0:
    next(iter(loader))
train(loader)
assert "compared with 1 other" in describe(loader), describe(loader)
loader.sampler.seed = RANK
loader.sampler.set_epoch(3)
attempt(list, loader)
"""
    first, second = run(tmp_path, code)
    assert first == second and "epoch 3: rank 0 has the seed 0, rank 1 has 1" in first


@pytest.mark.parametrize("extra", ["[1000] + sizes", "sizes + [1000]", "[1010] + sizes"])
def test_rank_with_one_more_loader_in_a_loop(tmp_path: pathlib.Path, extra: str) -> None:
    code = f"""
sizes = [1000, 1010, 1020]
loaders = [make(n, seed=i) for i, n in enumerate({extra} if RANK == 0 else sizes)]
wanted = {{len(loader.dataset): loader for loader in loaders}}
if RANK == 0:
    for loader in loaders:
        next(iter(loader))
for n in sizes:
    train(wanted[n])
"""
    assert run(tmp_path, code) == BOTH_FINE


def test_loop_that_skips_a_dataset_on_one_rank_warns_once(tmp_path: pathlib.Path) -> None:
    """Each loader is made when it is used, so nothing shows at first that the ranks have other loaders."""
    code = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for epoch in range(3):
        for n in [100, 1000]:
            if n == 1000 or RANK == 0:
                loader = make(n)
                loader.sampler.set_epoch(epoch)
                list(loader)
        meet(f"epoch {epoch}")
print(*(warning.message for warning in caught))
"""
    first, second = run(tmp_path, code)
    assert first == second and first.count("headrace") == 1
    assert "rank 0 has a dataset of 100 samples, rank 1 has 1000; so these are different loaders" in first


def test_repeated_trainings_with_one_more_on_a_rank(tmp_path: pathlib.Path) -> None:
    """A search for hyperparameters: the trials have other batch sizes, and one function makes their loaders. In one
    trial, one rank makes a loader more, which it does not use."""
    code = """
for trial, batch_size in enumerate([4, 8, 16]):
    loaders = [make(64, size) for size in ([2] if RANK == 0 and trial == 1 else []) + [batch_size]]
    train(loaders[-1])
    meet(f"trial {trial}")
"""
    assert run(tmp_path, code) == BOTH_FINE


def test_cell_of_a_notebook_that_one_rank_runs_again(tmp_path: pathlib.Path) -> None:
    code = """
cell = compile("loader = make(n, seed=n); next(iter(loader)); train(loader, 2)", "<ipython-input-3-abcdef>", "exec")
for n in [64, 64, 1000]:
    exec(cell)
    if RANK == 0 and n == 64:
        exec(cell)
"""
    assert run(tmp_path, code) == BOTH_FINE


def test_torchs_loaders_that_one_line_iterates_over(tmp_path: pathlib.Path) -> None:
    """Nothing is known about the lines that made them. One rank evaluates first."""
    code = """
headrace.torch.install()
join()

def torchs(n, shuffle, seed=0):
    sampler = TorchsSampler(range(n), WORLD_SIZE, RANK, shuffle=shuffle, seed=seed)
    return torch.utils.data.DataLoader(range(n), 4, sampler=sampler)

training, evaluation, small = torchs(64, True), torchs(64, False), torchs(65, False)
for loader in [evaluation, small, training]:
    if RANK == 0 and loader is not training:
        next(iter(loader))
    if loader is training:
        meet("evaluated")
        train(loader, 1)
assert "compared with 1 other" in describe(training), describe(training)
attempt(train, torchs(64, True, seed=RANK))
"""
    first, second = run(tmp_path, code)
    assert first == second and "rank 0 has the seed 0, rank 1 has 1" in first


def test_switch_turns_the_comparison_off(tmp_path: pathlib.Path) -> None:
    code = """
loader = make(64, seed=RANK)
list(loader)
print(describe(loader))
"""
    for rank, text in enumerate(run(tmp_path, code, HEADRACE_COMPARE_RANKS="0")):
        assert text == f"rank {rank} of 2 (of the sampler); HEADRACE_COMPARE_RANKS=0 is set\nfine\n"
