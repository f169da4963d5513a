# SPDX-License-Identifier: Apache-2.0
"""Programs that replace parts of torch, or whose samplers torch iterates in a way of its own: the data is torch's."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from compare import assert_same
from loaders import ENGINE, Headrace, Torch, only_headrace
from processes import run_python
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset
from torch.utils.data import _DatasetKind as DatasetKind
from torch.utils.data._utils import fetch as fetchers


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, count: int = 6) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


class Wrapped:
    """A fetcher around torch's."""

    def __init__(self, fetcher: Any) -> None:
        self._fetcher = fetcher

    def fetch(self, indices: Any) -> Any:
        return {"batch": self._fetcher.fetch(indices), "n": len(indices)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_fetcher"], name)


Fetch = Callable[[Any, Any], Any]
FETCHES: dict[str, Callable[[Fetch], Fetch]] = {
    "with the indices": lambda fetch: lambda self, indices: (fetch(self, indices), indices),
    "another batch": lambda fetch: lambda self, indices: -fetch(self, indices),
    "a list": lambda fetch: lambda self, indices: [fetch(self, indices)],
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [range(6), Stream()], ids=["map", "iterable"])
@pytest.mark.parametrize("fetch", FETCHES)
def test_replaced_fetch_makes_the_batches(
    monkeypatch: pytest.MonkeyPatch, fetch: str, dataset: Any, workers: int
) -> None:
    for one in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
        monkeypatch.setattr(one, "fetch", FETCHES[fetch](one.fetch))
    assert_same(lambda kind: kind(dataset, batch_size=3, num_workers=workers))


REPLACES_BEFORE = """
import torch.utils.data
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import fetch

class Tenfold(fetch._MapDatasetFetcher):
    def fetch(self, indices):
        return self.collate_fn([self.dataset[index] for index in indices]) * 10

class Making(dataloader._DatasetKind):
    @staticmethod
    def create_fetcher(kind, *given):
        return Tenfold(*given)

if KIND == "fetcher":
    fetch._MapDatasetFetcher = Tenfold
else:
    dataloader._DatasetKind = torch.utils.data._DatasetKind = Making

import headrace.torch

for kind in (DataLoader, headrace.torch.DataLoader):
    for workers in (0, 1):
        print([batch.tolist() for batch in kind(range(6), 3, num_workers=workers)])
"""


@pytest.mark.cold("headrace must not be imported yet when the class is replaced")
@pytest.mark.parametrize("kind", ["fetcher", "maker of fetchers"])
def test_class_replaced_before_the_import_is_used(kind: str, tmp_path: pathlib.Path) -> None:
    ran = run_python(tmp_path, "-c", f"KIND = {kind!r}\n{REPLACES_BEFORE}")
    assert ran.stdout.splitlines() == [str([[0, 10, 20], [30, 40, 50]])] * 4, ran.stderr


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [range(6), Stream()], ids=["map", "iterable"])
def test_replaced_maker_of_fetchers_is_used(monkeypatch: pytest.MonkeyPatch, dataset: Any, workers: int) -> None:
    create = DatasetKind.create_fetcher
    monkeypatch.setattr(DatasetKind, "create_fetcher", staticmethod(lambda *given: Wrapped(create(*given))))
    assert_same(lambda kind: kind(dataset, batch_size=3, num_workers=workers))


@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("holder", ["fetcher", "class"])
def test_fetch_replaced_in_an_epoch_makes_the_rest(
    monkeypatch: pytest.MonkeyPatch, holder: str, batch_size: int | None
) -> None:
    """The last batch is short."""

    def rest_of(kind: Any) -> list[Any]:
        with monkeypatch.context() as patch:
            iterator = iter(kind(Stream(7), batch_size=batch_size))
            first = next(iterator)
            fetcher = iterator._dataset_fetcher
            fetch = fetcher.fetch
            if holder == "class":
                patch.setattr(type(fetcher), "fetch", FETCHES["with the indices"](type(fetcher).fetch))
            else:
                fetcher.fetch = lambda indices: [fetch(indices), indices]
            return [repr(one) for one in (first, *iterator)]

    assert rest_of(Headrace) == rest_of(Torch)


class Replacing(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A dataset that replaces torch's fetch in its worker when its sample 4 is made."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        kind = fetchers._MapDatasetFetcher
        if index == 4:
            kind.fetch = FETCHES["with the indices"](kind.fetch)
        return index


class ReplacingStream(Stream):
    def __iter__(self) -> Iterator[int]:
        for index in super().__iter__():
            if index == 4:
                kind = fetchers._IterableDatasetFetcher
                kind.fetch = FETCHES["with the indices"](kind.fetch)
            yield index


@pytest.mark.parametrize("dataset", [Replacing(), ReplacingStream(7)], ids=["map", "iterable"])
@pytest.mark.parametrize("options", [{}, {"on_bad_sample": "skip"}], ids=["plain", "by sample"])
def test_fetch_replaced_in_a_worker_makes_the_rest(dataset: Any, options: dict[str, Any]) -> None:
    """Samples that an option of headrace's makes one by one never come from torch's fetcher."""
    both = {"batch_size": 2, "num_workers": 1, "multiprocessing_context": "fork"}
    found = [repr(batch) for batch in Headrace(dataset, **both, **(options if ENGINE else {}))]
    expected = [repr(batch) for batch in Torch(dataset if not options else range(7), **both)]
    assert found == expected


@only_headrace
@pytest.mark.parametrize("replace", ["_dataset_fetcher", "dataset_iter"])
def test_fetcher_replaced_in_an_epoch_is_an_error(replace: str) -> None:
    iterator = iter(Headrace(Stream(), batch_size=2))
    next(iterator)
    if replace == "dataset_iter":
        iterator._dataset_fetcher.dataset_iter = iter(range(100, 105))
    else:
        iterator._dataset_fetcher = Wrapped(iterator._dataset_fetcher)
    with pytest.raises(RuntimeError, match=r"was replaced after iter\(loader\)"):
        next(iterator)


class Shuffled:
    """A sampler that is its own iterator, and begins again with each call of iter()."""

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        self.left = np.random.permutation(8).tolist()
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return int(self.left.pop())


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("drop_last", [False, True])
def test_sampler_that_is_its_iterator_gives_torchs_order(drop_last: bool, workers: int) -> None:
    """Some versions of torch begin it again for each batch, without an end."""

    def first_of(kind: Any) -> Any:
        np.random.seed(0)
        loader = kind(range(8), 3, sampler=Shuffled(), drop_last=drop_last, num_workers=workers)
        batches = [batch.tolist() for batch in itertools.islice(loader, 6)]
        return batches, None if workers else np.random.random()

    assert first_of(Headrace) == first_of(Torch)


class Endless:
    """A sampler that is its own iterator, and goes on."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return int(self.random.integers(8))


@only_headrace
def test_state_of_own_iterator_fits_another_batch_size() -> None:
    def loader() -> Any:
        return Headrace(range(8), 3, sampler=Endless())

    def step(iterator: Any, one: Any, count: int) -> list[Any]:
        one.batch_sampler.batch_size = 2
        return [next(iterator).tolist() for _ in range(count)]

    first = loader()
    iterator = iter(first)
    next(iterator)
    step(iterator, first, 2)
    state = first.state_dict()
    second = loader()
    second.batch_sampler.batch_size = 2
    second.load_state_dict(state)
    assert step(iter(second), second, 3) == step(iterator, first, 3)


# ---- gathered rows ----


def in_channels_last(rows: torch.Tensor) -> torch.Tensor:
    """Returns equal rows (n, t, c, h, w), each of them with the memory format channels_last."""
    n, t, c, h, w = rows.shape
    return torch.empty(n, t, h, w, c).permute(0, 1, 4, 2, 3).copy_(rows)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_rows_of_other_strides_are_stacked_as_by_torch(order: tuple[int, int]) -> None:
    rows = torch.randn(8, 2, 3, 4, 4)
    parts = [TensorDataset(rows), TensorDataset(in_channels_last(rows))]
    dataset = ConcatDataset([parts[i] for i in order])
    strides = [[batch[0].stride() for batch in kind(dataset, batch_size=4)] for kind in (Headrace, Torch)]
    assert strides[0] == strides[1]


def test_strides_of_dimensions_of_size_one_count() -> None:
    rows = torch.randn(8, 2, 3, 1, 1)
    strides = []
    for kind in (Headrace, Torch):
        for one in (rows, in_channels_last(rows)):
            strides.append([batch[0].stride() for batch in kind(TensorDataset(one), batch_size=4)])
    assert strides[:2] == strides[2:]


@pytest.mark.parametrize("workers", [0, 1])
def test_property_of_a_dataset_class_gives_the_rows(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    rows = TensorDataset(torch.arange(12.0))
    part, chain = Subset(rows, [1, 2, 3, 4]), ConcatDataset([rows, TensorDataset(torch.ones(12))])

    def batches(kind: Any, dataset: Any) -> Any:
        return [batch[0].tolist() for batch in kind(dataset, batch_size=2, num_workers=workers)]

    for dataset in (rows, part, chain):
        assert batches(Headrace, dataset) == batches(Torch, dataset)  # the layout is proven now
    negative = property(lambda self: tuple(-one for one in self.__dict__["tensors"]))
    replaced = [
        (TensorDataset, "tensors", negative, rows),
        (Subset, "indices", property(lambda self: [7, 7, 7, 7]), part),
        (ConcatDataset, "datasets", property(lambda self: self.__dict__["datasets"][:1] * 2), chain),
    ]
    for kind, name, value, dataset in replaced:
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, value, raising=False)
            assert batches(Headrace, dataset) == batches(Torch, dataset)
