# SPDX-License-Identifier: Apache-2.0
"""headrace doctor --run: what it says of samplers that deal to ranks, and which line would put it right."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Iterator
from typing import Any

import headrace
import pytest
import torch
import torch.utils.data
from doctors import doctor
from headrace.doctor.observations import Observation
from headrace.doctor.run.order import check_order
from headrace.torch import per_rank
from loaders import only_headrace
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

pytestmark = [only_headrace, pytest.mark.timeout(600)]


def found_in(count: int = 41, **options: Any) -> dict[str, Observation]:
    loader: Any = DataLoader(list(range(count)), **options)  # type: ignore[arg-type]
    return {one.name: one for one in check_order(loader)}


class OfRank:
    """A sampler that deals on its own, and leaves the ranks as they come."""

    num_replicas, rank = 4, 0

    def __init__(self, count: int = 41) -> None:
        self.count = count

    def __len__(self) -> int:
        return len(range(self.rank, self.count, self.num_replicas))

    def __iter__(self) -> Iterator[Any]:
        return iter(range(self.rank, self.count, self.num_replicas))


class BatchesOfRank(OfRank):
    """Batches of the samples of one rank: short ones and long ones apart."""

    def __iter__(self) -> Iterator[list[int]]:
        own = list(range(self.rank, self.count, self.num_replicas))
        short, long = [i for i in own if i % 3 == 0], [i for i in own if i % 3]
        for part, size in ((short, 4), (long, 2)):
            yield from (part[at : at + size] for at in range(0, len(part), size))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class LengthOfAll(OfRank):
    def __len__(self) -> int:
        return self.count


class Alike(OfRank):
    """A sampler that takes a count for a step: ranks get nearly the same samples."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count)[self.rank : self.rank + self.count // self.num_replicas])

    def __len__(self) -> int:
        return self.count // self.num_replicas


class Drawn(OfRank):
    """A sampler that shuffles with random numbers of the process."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.count))
        random.shuffle(order)
        return iter(order[self.rank :: self.num_replicas])


UNEVEN = [
    ({"batch_size": 1, "sampler": OfRank()}, "10 to 11 batches", "Ranks 1, 2, 3 will end"),
    ({"batch_size": 10, "sampler": OfRank()}, "1 to 2 batches", "Ranks 1, 2, 3 will end"),
    ({"batch_size": None, "sampler": OfRank()}, "10 to 11 batches", "Ranks 1, 2, 3 will end"),
    ({"batch_size": 11, "sampler": OfRank(), "drop_last": True}, "0 to 1 batches", "Ranks 1, 2, 3 will end"),
    ({"batch_sampler": BatchesOfRank(43)}, "4 to 5 batches", "Rank 3 will end"),
]


@pytest.mark.parametrize("number", range(len(UNEVEN)))
def test_ranks_with_other_numbers_of_batches_are_an_error(number: int) -> None:
    options, value, names = UNEVEN[number]
    found = found_in(**options)["ranks uneven"]
    assert (found.severity, found.value) == ("error", value)
    assert found.consequence.startswith(names)
    assert 'headrace.torch.per_rank(your_sampler, tail="pad")' in found.fix


def test_ranks_that_differ_by_a_sample_only_are_not_uneven() -> None:
    assert "ranks uneven" not in found_in(batch_size=8, sampler=OfRank())


@pytest.mark.parametrize("tail", ["pad", "drop", "exact"])
def test_fix_of_uneven_ranks_is_one(tail: str) -> None:
    whole = BatchesOfRank(43)
    whole.num_replicas = 1
    found = found_in(43, batch_sampler=per_rank(whole, tail=tail, num_replicas=4, rank=0))
    assert all(one.severity in ("ok", "note") for one in found.values())


def test_padding_in_an_evaluation_is_a_note_with_the_exact_tail() -> None:
    found = found_in(sampler=DistributedSampler(range(41), 4, 0, shuffle=False))  # type: ignore[arg-type]
    assert (found["ranks repeat"].severity, found["ranks repeat"].value) == ("note", "3 samples")
    assert 'tail="exact"' in found["ranks repeat"].fix
    assert (
        found["ranks"].consequence
        == "Each sample is drawn in one rank only, except 3 that make the ranks equally long."
    )
    for sampler in (
        per_rank(range(41), tail="exact", num_replicas=4, rank=0),  # it knows its repeats
        DistributedSampler(range(40), 4, 0, shuffle=False),  # type: ignore[arg-type]
        DistributedSampler(range(41), 4, 0),  # type: ignore[arg-type] # it trains
    ):
        assert "ranks repeat" not in found_in(len(getattr(sampler, "dataset")), sampler=sampler)  # noqa: B009


def test_sampler_that_draws_per_rank_gets_a_seed() -> None:
    found = found_in(sampler=Drawn())["ranks overlap"]
    assert (found.severity, "headrace.torch.per_rank(your_sampler, seed=0)" in found.fix) == ("warning", True)


def test_ranks_with_the_same_samples_are_dealt_by_per_rank() -> None:
    found = found_in(sampler=Alike())["ranks overlap"]
    assert (found.severity, "headrace.torch.per_rank(your_sampler" in found.fix) == ("error", True)


def test_length_of_all_ranks_is_a_warning() -> None:
    found = found_in(sampler=LengthOfAll())["sampler length"]
    assert (found.severity, found.value) == ("warning", "41, but 11 come in an epoch")
    assert "as headrace.torch.per_rank(your_sampler) does" in found.fix


PER_RANK = [
    lambda: {"sampler": per_rank(headrace.Order(40), num_replicas=4, rank=0)},
    lambda: {"sampler": per_rank(RandomSampler(range(40)), num_replicas=4, rank=0, seed=1)},
    lambda: {"batch_sampler": per_rank(BatchSampler(headrace.Order(40), 5, False), num_replicas=4, rank=0)},
]


@pytest.mark.parametrize("number", range(len(PER_RANK)))
def test_per_rank_is_fine_if_set_epoch_is_called(number: int, recwarn: pytest.WarningsRecorder) -> None:
    options = PER_RANK[number]()
    found = found_in(40, **options)
    assert (found["ranks"].severity, found["ranks"].value) == ("ok", "4")
    (name,) = options
    assert f"loader.{name}.set_epoch(epoch)" in found["set_epoch"].fix
    assert found.keys() == {"ranks", "set_epoch"}
    assert not recwarn.list


def test_generator_of_the_sampler_is_left_as_it_was() -> None:
    generator = torch.Generator().manual_seed(2)
    before = generator.get_state()
    found = found_in(40, sampler=per_rank(RandomSampler(range(40), generator=generator), num_replicas=4, rank=0))
    assert found.keys() == {"ranks"} and found["ranks"].severity == "ok"
    assert torch.equal(generator.get_state(), before)


def test_ranks_around_the_doctor_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert found_in(shuffle=True).keys() == {"sampler"}
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "RANK is not set" in found_in(shuffle=True)["ranks"].consequence
    monkeypatch.setenv("RANK", "0")
    found = found_in(shuffle=True)["ranks"]
    assert (found.severity, found.value, found.limit) == ("note", "2", "environment: RANK, WORLD_SIZE")
    assert "headrace.torch.per_rank(your_sampler), with seed=0 if it is random" in found.fix


SCRIPT = """
import random
from torch.utils.data import DataLoader
from headrace.torch import per_rank

class Strides:
    num_replicas, rank = 4, 0
    def __iter__(self):
        return iter(range(self.rank, 41, 4))
    def __len__(self):
        return len(range(self.rank, 41, 4))

class Shuffled:
    def __iter__(self):
        return iter(random.sample(range(40), 40))

def uneven():
    return DataLoader(list(range(41)), 1, sampler=Strides(), num_workers=1)

def unseeded():
    return DataLoader(list(range(40)), 1, sampler=per_rank(Shuffled(), num_replicas=2, rank=0), num_workers=1)
"""


def test_command_names_the_line_that_puts_ranks_right(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    result = doctor("--run", "train:uneven", "--batches", "5", folder=tmp_path)
    assert result.returncode == 2
    assert "error    ranks uneven     10 to 11 batches   (4 ranks, simulated)" in result.stdout
    assert 'fix: headrace.torch.per_rank(your_sampler, tail="pad")' in result.stdout
    result = doctor("--run", "train:unseeded", folder=tmp_path)
    assert result.returncode == 2
    assert "Shuffled draws from the random numbers of the process (random)" in result.stderr
    assert "give seed=" in result.stderr


def test_plan_is_known_to_be_dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    found = found_in(41, batch_sampler=headrace.Plan([7] * 41, max_batch=4))["ranks"]
    text = "Each sample is in one rank only, except 1 that fill up the last step, and each rank has 4 steps."
    assert (found.severity, found.value, found.consequence) == ("ok", "3", text)
    alone = headrace.Plan([7] * 41, max_batch=4, world_size=1, rank=0)  # as if there were no other ranks
    assert "gives each rank all samples" in found_in(41, batch_sampler=alone)["ranks"].consequence


class ByTurns:
    """Takes a sample of each of two sources in turn, as code for weights of 1:1 does."""

    def __iter__(self) -> Iterator[int]:
        return (index + 100 * source for index in range(100) for source in range(2))

    def __len__(self) -> int:
        return 200


def test_ranks_with_one_source_are_named() -> None:
    chained: Any = torch.utils.data.ConcatDataset([list(range(100)), list(range(100))])  # type: ignore[list-item]
    mix = headrace.Mixture({"web": range(100), "code": range(100)}, {"web": 1, "code": 1})
    for dataset, name in ((chained, "number 0"), (mix.dataset, "'web'")):
        sampler = per_rank(ByTurns(), num_replicas=2, rank=0)
        found = {one.name: one for one in check_order(DataLoader(dataset, 4, sampler=sampler))}
        lonely = found["ranks and sources"]
        assert lonely.severity == "warning" and lonely.value == "2 of 2 ranks get one source only"
        assert f"Rank 0 gets samples of source {name} only" in lonely.consequence and "headrace.Mixture" in lonely.fix
    for other in (per_rank(mix, num_replicas=2, rank=0), per_rank(ByTurns(), num_replicas=3, rank=0)):
        assert "ranks and sources" not in {one.name for one in check_order(DataLoader(mix.dataset, 4, sampler=other))}
