# SPDX-License-Identifier: Apache-2.0
"""Samplers that deal to ranks themselves, each by its own random numbers: some samples come on several ranks."""

from __future__ import annotations

import pathlib

import pytest
from rank_scripts import run_ranks
from test_loaders_agree import LOADERS

SAMPLERS = (
    LOADERS
    + """
import random, warnings

class Own(TorchsSampler):
    # It shuffles by random numbers of each rank, and takes the part of the rank.
    def __iter__(self):
        order = list(range(len(self.dataset)))
        random.Random(self.seed_of_order()).shuffle(order)
        order += order[: max(0, self.total_size - len(order))]
        return iter(order[self.rank : self.total_size : self.num_replicas])

    def seed_of_order(self):
        return RANK

class Same(Own):
    def seed_of_order(self):
        return 5

class Plain:
    # No subclass of torch's.
    def __init__(self, n):
        self.n, self.rank, self.world_size = n, RANK, WORLD_SIZE

    def __iter__(self):
        yield from random.Random(RANK).sample(range(self.n), self.n // 2)

    def __len__(self):
        return self.n // 2

class Batches(Plain):
    def __iter__(self):
        order = list(super().__iter__())
        yield from (order[i : i + 4] for i in range(0, len(order), 4))

    def __len__(self):
        return self.n // 8

class Replacing(Own):
    replacement = True

class Repeating(Own):
    def __iter__(self):
        return iter([0] * 12)

def warned(*loaders, epochs=1):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for loader in loaders:
            for epoch in range(epochs):
                list(loader)
        torch.distributed.barrier()
    print([str(one.message).split(";")[0] for one in caught])
    meet("end")
    os._exit(0)
"""
)


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_on_several_ranks_are_warned_of(tmp_path: pathlib.Path, workers: int) -> None:
    code = f"""
options = dict(num_workers={workers}, multiprocessing_context="fork" if {workers} else None)
warned(
    DataLoader(range(24), 4, sampler=Own(range(24)), **options),
    DataLoader(range(24), 5, sampler=Plain(24), **options),
    DataLoader(range(24), batch_sampler=Batches(24), **options),
)
"""
    printed = "".join(run_ranks(tmp_path, 2, SAMPLERS + code))
    for name in ("Own", "Plain", "Batches"):
        assert printed.count(f"Each rank has its own {name}") == 1, printed
    assert printed.count("the 2 ranks have drawn 24 indices in this epoch, as many as the dataset has samples") == 3


def test_right_parts_and_meant_overlaps_are_no_warning(tmp_path: pathlib.Path) -> None:
    """Nothing is known of parts that are padded, or that leave samples out."""
    code = """
warned(
    DataLoader(range(24), 4, sampler=Same(range(24))),
    DataLoader(range(25), 4, sampler=Own(range(25))),
    DataLoader(range(25), 4, sampler=Own(range(25), drop_last=True)),
    DataLoader(range(24), 4, sampler=Replacing(range(24))),
    DataLoader(range(24), 4, sampler=Repeating(range(24))),
    DataLoader(range(24), 4, sampler=Own(range(24)), compare_ranks=False),
    DataLoader([0] * 24, 4, sampler=per_rank(range(24))),
    epochs=2,
)
"""
    assert run_ranks(tmp_path, 2, SAMPLERS + code) == ["[]\n"] * 2


def test_an_option_turns_the_comparison_of_a_loader_off(tmp_path: pathlib.Path) -> None:
    code = """
options = dict(sampler=DistributedSampler(range(24), seed=RANK), compare_ranks=False)
loader = DataLoader(range(24), 4, num_workers=1, multiprocessing_context="fork", **options)
list(loader)
print(loader.report()["ranks"].split("; ")[1])
theirs = torch.utils.data.DataLoader(range(24), 4, sampler=options["sampler"])
with headrace.torch.installed(compare_ranks=False):
    list(theirs)
plan = headrace.Plan([1 + RANK] * 24, max_batch=4)
list(headrace.Loader([0] * 24, batch_sampler=plan, compare_ranks=False))
epochs(lambda: DataLoader(range(24), 4, sampler=options["sampler"]))
"""
    first, second = run_ranks(tmp_path, 2, LOADERS + code)
    assert first == second and first.startswith("compare_ranks=False is set\n")
    assert "seed" in first and "give them compare_ranks=False, or set HEADRACE_COMPARE_RANKS=0" in first
