# SPDX-License-Identifier: Apache-2.0
"""Loaders of several ranks compare what they read, without a line in the user's script."""

from __future__ import annotations

import pathlib

import pytest
from rank_scripts import run_ranks

LOADERS = """
import torch
from headrace.torch import DataLoader, DistributedSampler, per_rank
from torch.utils.data import DistributedSampler as TorchsSampler

class Naive(TorchsSampler):
    # Buckets whose batches have different numbers of samples, dealt by a slice of the samples.
    def __init__(self, lengths):
        super().__init__(lengths)
        self.batches = self._make(lengths)

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)

    def _make(self, lengths):
        mine = range(RANK, len(lengths), WORLD_SIZE)
        short = [i for i in mine if lengths[i] < 100]
        return [short[i : i + 4] for i in range(0, len(short), 4)]

def epochs(make, count=1, set_epoch=lambda loader, epoch: None):
    try:
        for epoch in range(count):
            loader = make() if epoch == 0 else loader
            set_epoch(loader, epoch)
            for batch in loader:
                pass
    except headrace.RanksDisagree as error:
        print(error, flush=True)
    else:
        print("fine", flush=True)
    meet("end")
    os._exit(0)

torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(str(SHARED / "store"), WORLD_SIZE),
                                     rank=RANK, world_size=WORLD_SIZE)
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_with_77_and_78_batches_all_raise(tmp_path: pathlib.Path, workers: int) -> None:
    code = f"""
lengths = [200 if i in (1, 3, 5, 7) else 50 for i in range(624)]
epochs(lambda: DataLoader(lengths, batch_sampler=Naive(lengths), num_workers={workers}))
"""
    first, second = run_ranks(tmp_path, 2, LOADERS + code)
    assert "rank 0 has 78 batches, rank 1 has 77" in first
    assert first == second and "headrace.torch.per_rank" in first


@pytest.mark.parametrize("workers", [0, 1])
def test_a_set_epoch_that_one_rank_forgot_is_named(tmp_path: pathlib.Path, workers: int) -> None:
    code = f"""
import warnings
warnings.simplefilter("ignore")  # rank 1 warns by itself of what it forgot

def set_epoch(loader, epoch):
    if RANK == 0:
        loader.sampler.set_epoch(epoch)

epochs(lambda: DataLoader(range(64), 4, sampler=DistributedSampler(range(64)), num_workers={workers}), 3, set_epoch)
"""
    first, second = run_ranks(tmp_path, 2, LOADERS + code)
    assert first == second and "set_epoch" in first and "epoch" in first


@pytest.mark.parametrize(
    "kind",
    ["DistributedSampler(range(64), seed=RANK)", "per_rank(range(64), seed=RANK)", "Subclass(range(64), seed=RANK)"],
)
def test_seeds_that_differ_are_named(tmp_path: pathlib.Path, kind: str) -> None:
    code = f"""
class Subclass(TorchsSampler):
    pass

epochs(lambda: DataLoader(range(64), 4, sampler={kind}))
"""
    first, second = run_ranks(tmp_path, 2, LOADERS + code)
    assert first == second and "seed" in first and "rank 0" in first and "rank 1" in first


def test_own_seeds_of_a_sampler_with_its_own_order_warn_once(tmp_path: pathlib.Path) -> None:
    """It may draw with replacement: each rank needs another seed then."""
    code = """
import warnings

class Drawn(TorchsSampler):
    replacement = True

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randint(len(self.dataset), (self.num_samples,), generator=generator).tolist())

loader = DataLoader(range(64), 4, sampler=Drawn(range(64), seed=RANK))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        list(loader)
print(*(one.message for one in caught))
epochs(lambda: loader)
"""
    for printed in run_ranks(tmp_path, 2, LOADERS + code):
        warning, end = printed.splitlines()
        assert end == "fine" and warning.count("rank 0 has the seed 0, rank 1 has 1") == 1 and "replacement" in warning


def test_an_order_that_differs_is_found_by_its_digest(tmp_path: pathlib.Path) -> None:
    code = """
order = [3, 1, 2, 0, 4, 5, 6, 7] if RANK else list(range(8))
epochs(lambda: DataLoader(range(8), 2, sampler=per_rank(order)))
"""
    first, second = run_ranks(tmp_path, 2, LOADERS + code)
    assert first == second and "order" in first


def test_machines_with_different_numbers_of_ranks_are_found(tmp_path: pathlib.Path) -> None:
    code = "epochs(lambda: DataLoader(range(8), 2, sampler=per_rank(range(8), stay=1 + RANK)))"
    first, second = run_ranks(tmp_path, 2, LOADERS + code)
    assert first == second and "give all ranks the same number of ranks of a machine" in first


def test_datasets_of_different_sizes_are_named(tmp_path: pathlib.Path) -> None:
    code = "epochs(lambda: DataLoader(range(64 + RANK), 4, sampler=DistributedSampler(range(64 + RANK))))"
    first, second = run_ranks(tmp_path, 2, LOADERS + code)
    assert first == second and "64" in first and "65" in first


def test_ranks_that_agree_run_with_two_loaders_and_breaks(tmp_path: pathlib.Path) -> None:
    code = """
def make(n, shuffle):
    return DataLoader(range(n), 4, sampler=DistributedSampler(range(n), shuffle=shuffle), num_workers=1)

train, validation = make(64, True), make(30, False)
for epoch in range(3):
    train.sampler.set_epoch(epoch)
    for number, batch in enumerate(train):
        if number == 2 and RANK == epoch % 2:
            break
    list(validation)
train.sampler.set_epoch(3)
iterator = iter(train)
next(iterator), next(iterator)
train.load_state_dict(train.state_dict())
assert len(list(train)) == 6
print("fine", flush=True)
meet("end")
"""
    assert run_ranks(tmp_path, 2, LOADERS + code) == ["fine\n", "fine\n"]


def test_report_says_how_ranks_are_compared(tmp_path: pathlib.Path) -> None:
    code = """
loader = DataLoader(range(64), 4, sampler=per_rank(range(64)), num_workers=1)
list(loader)
print(loader.report()["ranks"], flush=True)
meet("end")
"""
    for rank, text in enumerate(run_ranks(tmp_path, 2, LOADERS + code)):
        assert text.startswith(f"rank {rank} of 2 (torch.distributed")
        assert "compared with 1 other processes of this machine" in text


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        ("Plan([9] * 100 + [5 + RANK] * 100, max_batch=8)", "order"),
        ("Plan([9] * 200, max_batch=8 - RANK)", "rank 0 has 13 batches, rank 1 has 15"),
        ("Plan([9] * 200, max_batch=8, seed=RANK)", "seed"),
        (
            "Plan([9] * 200, max_batch=8, order=torch.utils.data.SubsetRandomSampler(range(RANK, 100 + RANK)))",
            "measure the lengths once and give all ranks the same ones, and the same order",
        ),
    ],
)
def test_ranks_with_other_plans_all_raise(tmp_path: pathlib.Path, plans: str, message: str) -> None:
    code = f"""
from headrace import Plan
epochs(lambda: DataLoader([9] * 200, batch_sampler={plans}))
"""
    first, second = run_ranks(tmp_path, 2, LOADERS + code)
    assert first == second and message in first


WITHOUT_TORCH = """
from headrace import Loader, Plan

def epochs(loader, count, set_epoch=lambda plan, epoch: None):
    try:
        for epoch in range(count):
            set_epoch(loader.batch_sampler, epoch)
            for batch in loader:
                pass
    except headrace.RanksDisagree as error:
        print(error, flush=True)
    else:
        print("fine", flush=True)
    if loader.num_workers:
        assert "compared with 1 other processes of this machine" in loader.report()["ranks"]
    meet("end")
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("plans", "message", "workers"),
    [
        ("Plan([9] * 200, max_batch=8 - RANK)", "rank 0 has 13 batches, rank 1 has 15", 1),
        ("Plan([9] * 100 + [5 + RANK] * 100, max_batch=8)", "measure the lengths once and give all ranks the same", 0),
    ],
)
def test_numpy_loaders_with_other_plans_all_raise(
    tmp_path: pathlib.Path, plans: str, message: str, workers: int
) -> None:
    code = f"epochs(Loader([9] * 200, batch_sampler={plans}, num_workers={workers}), 1)"
    first, second = run_ranks(tmp_path, 2, WITHOUT_TORCH + code)
    assert first == second and message in first


@pytest.mark.parametrize("options", ["", "num_workers=1, persistent_workers=True"])
def test_numpy_loaders_with_one_plan_are_compared(tmp_path: pathlib.Path, options: str) -> None:
    """Rank 1 leaves the set_epoch of the third epoch out."""
    code = f"""
import warnings
warnings.simplefilter("error" if RANK == 0 else "ignore")  # rank 1 warns by itself of what it forgot

def set_epoch(plan, epoch):
    if RANK == 0 or epoch < 2:
        plan.set_epoch(epoch)

epochs(Loader([9] * 200, batch_sampler=Plan([9] * 200, max_batch=8), {options}), 3, set_epoch)
"""
    first, second = run_ranks(tmp_path, 2, WITHOUT_TORCH + code)
    assert first == second and "rank 0 is in epoch 2, rank 1 is in epoch 1; call sampler.set_epoch" in first


def test_ranks_with_one_plan_are_compared(tmp_path: pathlib.Path) -> None:
    code = """
from headrace import Plan
loader = DataLoader([9] * 200, batch_sampler=Plan([9] * 200, max_batch=8))
epochs(lambda: loader, 2, lambda loader, epoch: loader.batch_sampler.set_epoch(epoch))
"""
    assert run_ranks(tmp_path, 2, LOADERS + code) == ["fine\n", "fine\n"]


@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_with_steps_per_epoch_agree_on_each_pass(tmp_path: pathlib.Path, workers: int) -> None:
    """The passes of 6 steps are compared, although the epochs have 4; a rank whose second pass is another one is found
    when that begins, in the second epoch."""
    code = f"""
def dealt(seed=0):
    sampler = DistributedSampler(range(48), seed=seed)
    return DataLoader(range(48), 4, sampler=sampler, num_workers={workers}, steps_per_epoch=4)

loader, sizes = dealt(), []
for epoch in range(3):
    loader.set_epoch(epoch)
    sizes.append(sum(1 for batch in loader))
print(sizes, loader.report()["ranks"].partition("; ")[2] if {workers} else "", flush=True)
meet("first")
loader = dealt()
list(loader)
if RANK == 1:
    loader.sampler.seed = 9
epochs(lambda: loader, 2)
"""
    first, second = run_ranks(tmp_path, 2, LOADERS + code)
    assert first.startswith("[4, 4, 4]") and second.startswith("[4, 4, 4]")
    for text in (first, second):
        assert "epoch 1: rank 0 has the seed 0" in text
