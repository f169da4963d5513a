# SPDX-License-Identifier: Apache-2.0
"""Samplers that deal to ranks themselves, each by its own random numbers: some samples come on several ranks."""

from __future__ import annotations

import pathlib
import random

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

class Augmented(Own):
    # Repeated augmentation: three ranks get each sample.
    def __init__(self, data):
        super().__init__(data)
        self.num_repeats = 3

    def __iter__(self):
        return iter([i // 3 for i in range(3 * len(self.dataset))][self.rank :: self.num_replicas][: len(self)])

class Endless(Own):
    # The ranks share the permutations of one generator, one after the other.
    def __iter__(self):
        generator = random.Random(5)
        stream = [i for _ in range(10) for i in generator.sample(range(len(self.dataset)), len(self.dataset))]
        return iter(stream[self.rank :: self.num_replicas])

class Filtered(Own):
    # Only 13 samples are used, and the first one comes again, so that the ranks are equally long.
    def __iter__(self):
        return iter([*range(13), 0][self.rank :: self.num_replicas])

    def __len__(self):
        return 7

class Whole(Own):
    # Each rank reads all samples.
    def __iter__(self):
        return iter(range(len(self.dataset)))

    def __len__(self):
        return len(self.dataset)

class LateFault(Own):
    # Only the last sample of the ranks is wrong, far behind the first indices.
    def __iter__(self):
        return iter([*range(self.rank, len(self.dataset) - 2, self.num_replicas), 0 if self.rank else 198])

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


def overlaps(samples: int, first: int = 12) -> int:
    """Returns how many samples the first indices of two ranks with the sampler Own share."""
    parts = []
    for rank in range(2):
        order = list(range(samples))
        random.Random(rank).shuffle(order)
        parts.append(set(order[rank::2][:first]))
    return len(parts[0] & parts[1])


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_on_several_ranks_are_warned_of(tmp_path: pathlib.Path, workers: int) -> None:
    code = f"""
options = dict(num_workers={workers}, multiprocessing_context="fork" if {workers} else None)
warned(
    DataLoader(range(24), 4, sampler=Own(range(24)), **options),
    DataLoader(range(24), 5, sampler=Plain(24), **options),
    DataLoader(range(24), batch_sampler=Batches(24), **options),
    DataLoader(range(25), 4, sampler=Own(range(25), drop_last=True), **options),
    DataLoader(range(200), 4, sampler=LateFault(range(200)), **options),
)
"""
    printed = "".join(run_ranks(tmp_path, 2, SAMPLERS + code))
    for name in ("Plain", "Batches", "LateFault"):
        assert printed.count(f"Each rank has its own {name}") == 1, printed
    for first, samples in ((12, 24), (8, 25)):  # the last batch of parts that leave a sample out may be padding
        text = f"among the first {first} indices that each of the 2 ranks drew, {overlaps(samples, first)} came"
        assert printed.count(text) == 1, printed
    assert printed.count("the 2 ranks have drawn 200 indices in this epoch, as many as the dataset has samples") == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_overlap_is_found_without_a_process_group(tmp_path: pathlib.Path, workers: int) -> None:
    """At least one of the ranks sees what the other one has shown."""
    without_group, _ = SAMPLERS.split("torch.distributed.init_process_group")
    classes = SAMPLERS[SAMPLERS.index("import random, warnings") : SAMPLERS.index("def warned")]
    code = f"""
def read(sampler):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = dict(num_workers={workers}, multiprocessing_context="fork" if {workers} else None)
        list(DataLoader(range(24), 4, sampler=sampler(range(24), num_replicas=2, rank=RANK), **options))
    return [str(one.message).split(";")[0] for one in caught]

print(read(Own), read(Same))
meet("end")
os._exit(0)
"""
    printed = "".join(run_ranks(tmp_path, 2, without_group + classes + code))
    assert f"first 12 indices that each of the 2 ranks drew, {overlaps(24)} came on several ranks" in printed
    assert printed.count(" []\n") == 2, printed


def test_right_parts_and_meant_overlaps_are_no_warning(tmp_path: pathlib.Path) -> None:
    code = """
warned(
    DataLoader(range(24), 4, sampler=Same(range(24))),
    DataLoader(range(25), 4, sampler=Same(range(25))),
    DataLoader(range(24), 4, sampler=Replacing(range(24))),
    DataLoader(range(24), 4, sampler=Repeating(range(24))),
    DataLoader(range(24), 4, sampler=Augmented(range(24))),
    DataLoader(range(24), 4, sampler=Endless(range(24))),
    DataLoader(range(24), 4, sampler=Filtered(range(24))),
    DataLoader(range(24), 4, sampler=Whole(range(24))),
    DataLoader(range(1), 4, sampler=Own(range(1))),
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
