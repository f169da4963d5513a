# SPDX-License-Identifier: Apache-2.0
"""Mistakes of the samplers that are written for a training on several ranks: each with torch's result, or that of the
mistaken sampler, next to that of headrace.torch.per_rank."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import pytest
import torch.utils.data
from headrace.torch import per_rank
from torch.utils.data import RandomSampler, SequentialSampler

Torch = torch.utils.data.DistributedSampler


def parts(sampler: Any, world_size: int, **options: Any) -> list[list[Any]]:
    """Returns what each rank draws."""
    return [list(per_rank(sampler, num_replicas=world_size, rank=rank, **options)) for rank in range(world_size)]


def in_turn(dealt: list[list[Any]]) -> list[Any]:
    """Returns the entries of all ranks in the order of the sampler."""
    return [entry for step in zip(*dealt, strict=True) for entry in step]


def seen(dealt: list[list[Any]]) -> Counter[int]:
    return Counter(index for one in dealt for index in one)


def test_slice_with_a_step_is_not_a_count() -> None:
    """A sampler that takes `order[rank : rank + count]` gives ranks nearly the same samples."""
    n, world_size = 12, 4
    count = n // world_size
    naive = [list(range(n))[rank : rank + count] for rank in range(world_size)]
    assert len(seen(naive)) == 6
    assert seen(parts(SequentialSampler(range(n)), world_size)) == dict.fromkeys(range(n), 1)


class Shuffled:
    """A sampler that shuffles with the random numbers of its process."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(20), 20))


def test_shuffle_that_differs_per_rank_is_refused_or_seeded() -> None:
    """The processes of two ranks have different random numbers."""
    naive = []
    for rank in range(2):
        order = list(range(40))
        random.Random(rank).shuffle(order)
        naive.append(order[rank::2])
    assert len(seen(naive)) < 40
    with pytest.raises(ValueError, match="give seed="):
        next(iter(per_rank(Shuffled(), num_replicas=2, rank=0)))
    ours = []
    for rank in range(2):
        random.seed(rank)
        ours.append(list(per_rank(Shuffled(), num_replicas=2, rank=rank, seed=0)))
    assert seen(ours) == dict.fromkeys(range(20), 1)


def test_length_is_that_of_the_rank() -> None:
    """A sampler whose __len__ is that of the dataset makes schedulers and progress bars wrong."""

    class Whole(Torch):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(self.dataset)  # type: ignore[arg-type]

    naive: Any = Whole(range(100), 4, 0)  # type: ignore[arg-type]
    theirs: Any = torch.utils.data.DataLoader(list(range(100)), 5, sampler=naive)  # type: ignore[arg-type]
    assert (len(theirs), len(list(theirs))) == (20, 5)
    sampler = per_rank(range(100), num_replicas=4, rank=0)
    ours: Any = torch.utils.data.DataLoader(list(range(100)), 5, sampler=sampler)  # type: ignore[arg-type]
    assert len(ours) == len(list(ours)) == 5


def test_wrong_length_of_the_sampler_is_warned_of() -> None:
    class Whole(SequentialSampler):
        def __len__(self) -> int:
            return 100

        def __iter__(self) -> Iterator[int]:
            return iter(range(30))

    sampler = per_rank(Whole(range(100)), num_replicas=2, rank=0)
    assert len(sampler) == 50
    with pytest.warns(UserWarning, match="Whole has a __len__ of 100, but gave 30 entries") as caught:
        assert len(list(sampler)) == len(sampler) == 15
        list(sampler)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def bucket_of(length: int) -> int | None:
    """A length of exactly 100 falls into no bucket."""
    return 0 if length < 100 else 1 if 100 < length <= 220 else 2 if length > 220 else None


def right_bucket_of(length: int) -> int:
    return 0 if length <= 100 else 1 if length <= 220 else 2


BATCH_SIZES = [32, 24, 16]


class Buckets:
    """Batches of samples of similar length, each bucket with a batch size of its own, of a part of the samples."""

    def __init__(self, lengths: list[int], bucket: Callable[[int], int | None], part: slice = slice(None)) -> None:
        self.lengths, self.bucket, self.part = lengths, bucket, part

    def __iter__(self) -> Iterator[list[int]]:
        open_ones: list[list[int]] = [[] for _ in BATCH_SIZES]
        for index in range(len(self.lengths))[self.part]:
            number = self.bucket(self.lengths[index])
            if number is None:
                continue
            open_ones[number].append(index)
            if len(open_ones[number]) == BATCH_SIZES[number]:
                yield open_ones[number]
                open_ones[number] = []
        yield from filter(None, open_ones)


def lengths_of(seed: int) -> list[int]:
    return [random.Random(seed + i).choice([50, 90, 100, 101, 150, 220, 221, 400]) for i in range(3520)]


def test_buckets_give_each_rank_the_same_number_of_batches() -> None:
    """If each rank makes batches of its own samples, one has 77 and another 78, and the job hangs at the end."""
    lengths = lengths_of(4)
    naive = [len(list(Buckets(lengths, right_bucket_of, slice(rank, None, 2)))) for rank in range(2)]
    assert naive == [78, 77]
    for tail in ("pad", "drop", "exact"):
        dealt = parts(Buckets(lengths, right_bucket_of), 2, tail=tail)
        assert len(dealt[0]) == len(dealt[1])
        for batch in in_turn(dealt):
            (bucket,) = {right_bucket_of(lengths[index]) for index in batch}
            assert len(batch) <= BATCH_SIZES[bucket]


def test_length_between_buckets_is_the_samplers_own_mistake() -> None:
    """per_rank deals what the sampler gives: samples that fall into no bucket are missing with it too. With a rule that
    covers each length, each sample comes once."""
    lengths = lengths_of(2)
    for bucket, expected in ((bucket_of, sum(length != 100 for length in lengths)), (right_bucket_of, 3520)):
        dealt = parts(Buckets(lengths, bucket), 3, tail="exact")
        batches = in_turn(dealt)
        repeats = [
            per_rank(Buckets(lengths, bucket), tail="exact", num_replicas=3, rank=rank).repeats for rank in range(3)
        ]
        once = batches[: len(batches) - sum(repeats)]
        assert len({index for batch in once for index in batch}) == sum(map(len, once)) == expected


def test_forgotten_set_epoch_is_warned_of() -> None:
    theirs: Any = Torch(range(30), 2, 0)  # type: ignore[arg-type]
    assert list(theirs) == list(theirs)  # without a word
    ours = per_rank(RandomSampler(range(30)), num_replicas=2, rank=0, seed=0)
    first = list(ours)
    with pytest.warns(UserWarning, match=r"epoch 0 begins again, in the same order; call set_epoch\(epoch\)") as caught:
        assert list(ours) == first
        list(ours)
    assert len(caught) == 1
    ours.set_epoch(1)
    assert list(ours) != first


class CountsEpochs:
    """A sampler that goes on to the next epoch on its own, as accelerate's SeedableRandomSampler does."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = random.Random(self.epoch).sample(range(30), 30)
        self.epoch += 1
        return iter(order)


def test_sampler_that_counts_epochs_needs_no_set_epoch(recwarn: pytest.WarningsRecorder) -> None:
    ours = per_rank(CountsEpochs(), num_replicas=2, rank=0)
    assert list(ours) != list(ours)
    assert not recwarn.list


@pytest.mark.parametrize("sampler", [range(30), headrace.Order(30, kind="sequential")])
def test_order_without_epochs_needs_no_set_epoch(sampler: Any, recwarn: pytest.WarningsRecorder) -> None:
    ours = per_rank(sampler, num_replicas=2, rank=0)
    assert list(ours) == list(ours)
    assert not recwarn.list


def test_exact_tail_counts_each_sample_once_in_a_metric() -> None:
    """The mean over all ranks is that of the dataset, although the ranks have equally many samples."""
    values = [0.0] * 9 + [9.0]
    theirs = [[values[i] for i in Torch(range(10), 4, rank, shuffle=False)] for rank in range(4)]  # type: ignore[arg-type]
    assert sum(map(sum, theirs)) / sum(map(len, theirs)) == 0.75
    total = count = 0.0
    for rank in range(4):
        sampler = per_rank(range(10), tail="exact", num_replicas=4, rank=rank)
        mine = [values[i] for i in sampler]
        assert len(mine) == len(sampler) == 3
        once = mine[: len(mine) - sampler.repeats]
        total, count = total + sum(once), count + len(once)
    assert total / count == sum(values) / len(values) == 0.9
