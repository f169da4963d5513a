# SPDX-License-Identifier: Apache-2.0
"""A bad sample is replaced only by samples that the sampler of the loader gave in this epoch."""

from __future__ import annotations

from typing import Any

import headrace
import pytest
import torch
from loaders import ENGINE, Headrace

if not ENGINE:
    pytest.skip("torch has no on_bad_sample", allow_module_level=True)

COUNT = 100


class Samples(torch.utils.data.Dataset[Any]):
    """Each sample is its index; `bad` ones raise."""

    def __init__(self, bad: Any) -> None:
        self.bad = set(bad)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        if int(index) in self.bad:
            raise ValueError(f"sample {index} is bad")
        return int(index)


class WithoutLength(Samples):
    __len__ = None  # type: ignore[assignment]


def _as_it_is(samples: Any) -> Any:
    return samples


def _torch(dataset: Any, **options: Any) -> Any:
    return Headrace(dataset, collate_fn=_as_it_is, **options)


def _numpy(dataset: Any, **options: Any) -> Any:
    return headrace.Loader(dataset, collate_fn=_as_it_is, **options)


KINDS = pytest.mark.parametrize("make", [_torch, _numpy], ids=["torch", "numpy"])
POLICIES = pytest.mark.parametrize("policy", ["skip", "refill"])


def _epoch(make: Any, bad: Any, workers: int, policy: str = "refill", cls: Any = Samples, **options: Any) -> Any:
    context = "fork" if workers else None
    if "sampler" in options and callable(options["sampler"]):
        options["sampler"] = options["sampler"]()
    loader = make(
        cls(bad), num_workers=workers, multiprocessing_context=context, on_bad_sample=policy, seed=7, **options
    )
    return list(loader)


def _with_any_workers(make: Any, bad: Any, **options: Any) -> Any:
    """Returns the epoch, which is the same with 0, 1 and 3 workers."""
    with pytest.warns(UserWarning, match="bad"):
        first, *others = [_epoch(make, bad, workers, **options) for workers in (0, 1, 3)]
    assert others == [first, first]
    return first


def _random_half() -> Any:
    torch.manual_seed(5)
    return torch.utils.data.SubsetRandomSampler(range(80))


@KINDS
def test_refill_takes_samples_of_the_samplers_subset(make: Any) -> None:
    batches = _with_any_workers(make, range(0, 80, 4), sampler=_random_half, batch_size=8)
    assert [len(batch) for batch in batches] == [8] * 10
    given = {sample for batch in batches for sample in batch}
    assert given == {index for index in range(80) if index % 4}


@KINDS
def test_refill_takes_samples_that_were_given_before(make: Any) -> None:
    (*before, last) = _with_any_workers(make, [63], sampler=range(64), batch_size=8)
    assert last[:7] == list(range(56, 63))
    assert last[7] in range(63)
    assert [sample for batch in before for sample in batch] == list(range(56))


@KINDS
def test_refill_draws_other_samples_with_another_seed(make: Any) -> None:
    replaced = set()
    for seed in range(8):
        loader = make(Samples([63]), sampler=range(64), batch_size=8, on_bad_sample="refill", seed=seed)
        with pytest.warns(UserWarning, match="bad"):
            replaced.add(list(loader)[-1][-1])
    assert len(replaced) > 1


@KINDS
def test_refill_takes_samples_of_the_batch_sampler(make: Any) -> None:
    batches = [[10, 11], [20, 21, 22], [30]]
    got = _with_any_workers(make, [11, 22, 30], batch_sampler=batches)
    assert [len(batch) for batch in got] == [2, 3, 1]
    assert {sample for batch in got for sample in batch} <= {10, 20, 21}


@KINDS
def test_refill_takes_samples_of_the_own_rank(make: Any) -> None:
    def share() -> Any:
        return torch.utils.data.DistributedSampler(range(COUNT), num_replicas=2, rank=1)  # type: ignore[arg-type]

    own = set(share())
    bad = sorted(own)[::3]
    got = _with_any_workers(make, bad, sampler=share, batch_size=4)
    samples = [sample for batch in got for sample in batch]
    assert len(samples) == len(own)
    assert set(samples) == own - set(bad)


@KINDS
@POLICIES
def test_first_batch_of_bad_samples_takes_the_next_good_one(make: Any, policy: str) -> None:
    first, *_ = _with_any_workers(make, range(6), policy=policy, sampler=range(20), batch_size=4)
    assert first == [6] * (4 if policy == "refill" else 1)


@KINDS
def test_refill_without_batches_takes_samples_of_the_sampler(make: Any) -> None:
    got = _with_any_workers(make, [50, 53, 58], sampler=range(50, 60), batch_size=None)
    assert len(got) == 10
    assert got[0] == 51, "none was given before, so it is the next good one"
    assert set(got) == set(range(50, 60)) - {50, 53, 58}


@KINDS
def test_refill_needs_no_length(make: Any) -> None:
    got = _with_any_workers(make, [1], cls=WithoutLength, batch_sampler=[[0, 1], [2, 3]])
    assert got == [[0, 0], [2, 3]]


@KINDS
@pytest.mark.parametrize("workers", [0, 2])
def test_refill_without_any_good_sample_raises(make: Any, workers: int) -> None:
    with pytest.raises(RuntimeError, match=r"sample 0 failed, and so did 59 others of this epoch that were tried"):
        _epoch(make, range(COUNT), workers, batch_size=4, sampler=range(60))
    with pytest.raises(RuntimeError, match=r"sample 3 failed, and the sampler has given no other sample"):
        _epoch(make, range(COUNT), workers, batch_size=4, sampler=[3])


@KINDS
@pytest.mark.parametrize("workers", [0, 2])
def test_batch_of_a_kind_that_is_no_list_is_refilled(make: Any, workers: int) -> None:
    batches = [torch.tensor([10, 11]), torch.tensor([20, 21])]
    with pytest.warns(UserWarning, match="bad"):
        got = _epoch(make, [21], workers, batch_sampler=batches)
    assert got[0] == [10, 11]
    assert got[1][0] == 20
    assert got[1][1] in (10, 11, 20)


# ---- iterable datasets ----


class Stream(torch.utils.data.IterableDataset[Any]):
    """Its iterator raises for `bad` samples, and goes on."""

    def __init__(self, bad: Any, count: int = 20) -> None:
        self.bad, self.count = set(bad), count

    def __iter__(self) -> Any:
        return map(self._sample, range(self.count))

    def _sample(self, index: int) -> int:
        if index in self.bad:
            raise ValueError(f"sample {index} is bad")
        return index


class GeneratorStream(Stream):
    def __iter__(self) -> Any:
        for index in range(self.count):
            yield self._sample(index)


@KINDS
@pytest.mark.parametrize("workers", [0, 1])
def test_iterable_gives_the_next_sample_for_a_bad_one(make: Any, workers: int) -> None:
    with pytest.warns(UserWarning, match="bad"):
        got = _epoch(make, [2, 3, 9], workers, cls=Stream, batch_size=4)
    assert got == [[0, 1, 4, 5], [6, 7, 8, 10], [11, 12, 13, 14], [15, 16, 17, 18], [19]]
    with pytest.warns(UserWarning, match="bad"):
        assert _epoch(make, [2], workers, cls=Stream, batch_size=None) == [0, 1, *range(3, 20)]
    with pytest.warns(UserWarning, match="bad"):
        assert [*map(len, _epoch(make, [2], workers, cls=Stream, batch_size=7))] == [7, 7, 5]


@KINDS
@pytest.mark.parametrize("workers", [0, 1])
def test_iterable_with_skipped_samples_gives_a_smaller_batch(make: Any, workers: int) -> None:
    bad = [2, 3, 8, 9, 10, 11]
    with pytest.warns(UserWarning, match="bad"):
        got = _epoch(make, bad, workers, policy="skip", cls=Stream, batch_size=4)
    assert got == [[0, 1], [4, 5, 6, 7], [12], [13, 14, 15, 16], [17, 18, 19]]


@KINDS
@pytest.mark.parametrize("workers", [0, 1])
def test_report_lists_bad_samples_of_an_iterable(make: Any, workers: int) -> None:
    context = "fork" if workers else None
    loader = make(
        Stream([2, 9]), num_workers=workers, multiprocessing_context=context, on_bad_sample="refill", batch_size=4
    )
    with pytest.warns(UserWarning, match="sample 2 is bad"):
        list(loader)
    report = loader.report()
    assert [one.index for one in report["bad_samples"]] == [2, 9]
    assert report["skipped"] == 2


@KINDS
@pytest.mark.parametrize("workers", [0, 1])
def test_iterable_whose_generator_raises_says_why_it_stops(make: Any, workers: int) -> None:
    with pytest.raises(ValueError, match="sample 2 is bad") as caught:
        _epoch(make, [2], workers, cls=GeneratorStream, batch_size=4)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "the dataset's iterator is a generator" in text


@KINDS
@pytest.mark.parametrize("workers", [0, 1])
def test_iterable_with_too_many_bad_samples_in_a_row_raises(make: Any, workers: int) -> None:
    with pytest.raises(ValueError, match="sample 10 is bad"):
        _epoch(make, range(20), workers, cls=Stream, batch_size=4)
