# SPDX-License-Identifier: Apache-2.0
"""tail="exact": a repeat has the weight 0, or the loader raises an error before the first batch."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import headrace
import headrace.torch
import pytest
import torch.utils.data
from headrace.torch import DataLoader, per_rank
from headrace.torch._frameworks.lightning import wrapped_by_lightning
from torch.utils.data import BatchSampler

SAMPLES = range(7)
PLAN = {"max_batch": 2, "world_size": 2}


class Batches:
    """A batch sampler of the user's. It may change the order of what it draws."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([index] for index in self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


class Plans(Batches):
    def __iter__(self) -> Iterator[list[int]]:
        yield from self.sampler


def exact(rank: int, tail: str = "exact", samples: Any = SAMPLES, world_size: int = 2) -> Any:
    return per_rank(samples, tail=tail, num_replicas=world_size, rank=rank)


def weights(loader: Any) -> list[tuple[list[int], list[float]]]:
    return [(loader.last.indices, list(map(float, loader.last.weights))) for _ in loader]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("workers", [0, 1])
def test_batch_sampler_around_exact_raises_on_all_ranks(rank: int, workers: int) -> None:
    method = "fork" if workers else None
    loader = DataLoader(
        SAMPLES, batch_sampler=Batches(exact(rank)), num_workers=workers, multiprocessing_context=method
    )
    with pytest.raises(ValueError, match=r"Batches draws from per_rank with tail='exact'.*per_rank\(Batches\(\.\.\.\)"):
        iter(loader)
    theirs = torch.utils.data.DataLoader(SAMPLES, batch_sampler=Batches(exact(rank)))
    with headrace.torch.installed(), pytest.raises(ValueError, match="tail='exact'"):
        iter(theirs)


def test_other_samplers_around_exact_raise_too() -> None:
    class Shuffled(BatchSampler):
        def __iter__(self) -> Iterator[list[int]]:
            yield from sorted(super().__iter__(), reverse=True)

    loaders = [
        DataLoader(SAMPLES, batch_sampler=Shuffled(exact(1), 2, False)),
        DataLoader(SAMPLES, sampler=Batches(exact(1))),
        DataLoader(SAMPLES, batch_sampler=Plans(headrace.Plan([1] * 7, rank=1, tail="exact", **PLAN))),
        headrace.Loader(SAMPLES, batch_size=2, sampler=exact(1)),
        headrace.Loader(SAMPLES, batch_sampler=BatchSampler(exact(1), 2, False)),
    ]
    for loader in loaders:
        with pytest.raises(ValueError, match="tail='exact'"):
            iter(loader)


class Nested(Batches):
    """Holds what it draws from under another name, in a list."""

    def __init__(self, sampler: Any) -> None:
        self.inner = [Batches(sampler)]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.inner[0])


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, sampler: Any) -> None:
        self.inner = sampler

    def __iter__(self) -> Iterator[list[int]]:
        return ([index] for index in self.inner)


class Closed(Slotted):
    """Holds a function that knows it."""

    __slots__ = ()

    def __init__(self, sampler: Any) -> None:
        self.inner = lambda: iter(sampler)

    def __iter__(self) -> Iterator[list[int]]:
        return ([index] for index in self.inner())


@pytest.mark.parametrize("kind", [Nested, Slotted, Closed])
def test_exact_is_found_wherever_a_sampler_holds_it(kind: Any) -> None:
    for loader in (DataLoader, headrace.Loader):
        with pytest.raises(ValueError, match="tail='exact'"):
            iter(loader(SAMPLES, batch_sampler=kind(exact(1))))


def test_exact_in_a_loader_that_a_sampler_holds_is_no_error() -> None:
    """The sampler may hold the loader of the validation, which has weights of its own."""
    sampler = Batches(range(2))
    sampler.other = DataLoader(SAMPLES, sampler=exact(1))  # type: ignore[attr-defined]
    assert weights(DataLoader(SAMPLES, batch_sampler=sampler)) == [([0], [1.0]), ([1], [1.0])]


def test_exact_without_repeats_may_be_anywhere() -> None:
    whole = [exact(0, samples=range(8)), exact(0, world_size=1), exact(1, tail="pad")]
    for sampler in whole:
        indices = list(sampler)
        assert weights(DataLoader(range(8), batch_sampler=Batches(sampler))) == [([i], [1.0]) for i in indices]


def lightnings_wrapper(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a class as Lightning's, under its name; tests/python/frameworks has the real one."""

    class _IndexBatchSamplerWrapper:
        def __init__(self, batch_sampler: Any) -> None:
            self.__dict__ = dict(batch_sampler.__dict__)
            self._batch_sampler, self.seen_batch_indices = batch_sampler, []

        def __iter__(self) -> Any:
            self.seen_batch_indices = []
            self._iterator = iter(self._batch_sampler)
            return self

        def __next__(self) -> Any:
            self.seen_batch_indices.append(next(self._iterator))
            return self.seen_batch_indices[-1]

        def __len__(self) -> int:
            return len(self._batch_sampler)

    module = types.ModuleType("lightning.pytorch.overrides.distributed")
    module._IndexBatchSamplerWrapper = _IndexBatchSamplerWrapper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return _IndexBatchSamplerWrapper


@pytest.mark.parametrize("workers", [0, 1])
def test_weights_are_right_within_lightnings_wrapper(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    wrap, method = lightnings_wrapper(monkeypatch), "fork" if workers else None
    plan = headrace.Plan([1] * 3, rank=1, tail="exact", max_batch=1, world_size=2)
    for inner, wanted in [
        (BatchSampler(exact(1), 1, False), [([1], [1.0]), ([3], [1.0]), ([5], [1.0]), ([0], [0.0])]),
        (exact(1, samples=[[0, 1], [2, 3], [4]]), [([2, 3], [1.0, 1.0]), ([0], [0.0])]),
        (plan, [(batch, [1.0]) for batch in list(plan)[:1]] + [(batch, [0.0]) for batch in list(plan)[1:]]),
    ]:
        wrapper = wrap(inner)
        loader = DataLoader(SAMPLES, batch_sampler=wrapper, num_workers=workers, multiprocessing_context=method)
        for _ in range(2):
            assert weights(loader) == wanted
            assert wrapper.seen_batch_indices == [indices for indices, _ in wanted]
    assert wrapped_by_lightning(inner) is None
