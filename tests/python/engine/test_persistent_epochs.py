# SPDX-License-Identifier: Apache-2.0
"""set_epoch of a dataset reaches workers that persist, at the start of the next epoch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import headrace
import numpy as np
import pytest
import torch.utils.data
from loaders import METHODS, Headrace, only_headrace

pytestmark = only_headrace


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Its samples depend on its epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(100 * self.epoch, 100 * self.epoch + 6))


class Inner:
    """A map-style dataset that keeps its epoch under another name, and shuffles by it."""

    def __init__(self) -> None:
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self._epoch, self.table = epoch, [100 * epoch + i for i in range(4)]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.table[index]


class Around:
    """Passes set_epoch on, and has no epoch of its own."""

    def __init__(self, parts: Any) -> None:
        self.parts = parts

    def set_epoch(self, epoch: int) -> None:
        for part in self.parts:
            part.set_epoch(epoch)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return sum(part[index] for part in self.parts)


class Hidden(Inner):
    """Nothing says under which name its epoch is."""

    def set_epoch(self, epoch: int) -> None:
        self.rounds, self.table = epoch, [100 * epoch + i for i in range(4)]


class Odd(Inner):
    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(2 * epoch)


def persistent(kind: Any, dataset: Any, method: str = "fork", **options: Any) -> Any:
    return kind(
        dataset, batch_size=2, num_workers=1, persistent_workers=True, multiprocessing_context=method, **options
    )


def values(loader: Any) -> list[int]:
    return [int(value) for batch in loader for value in np.asarray(batch).tolist()]


def epochs(loader: Any, set_epoch: Any, numbers: tuple[int, ...] = (0, 1, 5)) -> list[list[int]]:
    found = []
    for epoch in numbers:
        set_epoch(epoch)
        found.append(values(loader))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_set_epoch_reaches_workers_that_persist(method: str) -> None:
    dataset = Stream()
    loader = persistent(Headrace, dataset, method)
    assert epochs(loader, dataset.set_epoch) == [list(range(e, e + 6)) for e in (0, 100, 500)]
    assert loader._iterator._workers[0].is_alive()


@pytest.mark.parametrize("kind", [Headrace, headrace.Loader])
def test_set_epoch_of_parts_reaches_workers_that_persist(kind: Any) -> None:
    inner = Inner()
    cases: list[tuple[Any, Any]] = [(inner, inner), (torch.utils.data.Subset(Inner(), range(4)), None)]  # type: ignore[arg-type]
    cases += [(Around([Inner()]), None), (Around((Around([Inner()]),)), None)]
    for dataset, setting in cases:
        setter = setting or (dataset if isinstance(dataset, Around) else dataset.dataset)
        assert epochs(persistent(kind, dataset), setter.set_epoch) == [list(range(e, e + 4)) for e in (0, 100, 500)], (
            dataset
        )


def test_state_of_workers_that_persist_is_of_the_epoch_set() -> None:
    dataset = Stream()
    loader = persistent(Headrace, dataset)
    assert values(loader) == list(range(6))
    dataset.set_epoch(3)
    batches = iter(loader)
    assert next(batches).tolist() == [300, 301]
    state = loader.state_dict()
    rest = [int(value) for batch in batches for value in batch]
    resumed = persistent(Headrace, Stream())
    resumed.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # batches are made again
        assert values(resumed) == rest == [302, 303, 304, 305]


def test_epoch_of_an_unknown_attribute_warns_once() -> None:
    dataset = Hidden()
    loader = persistent(Headrace, dataset)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert epochs(loader, dataset.set_epoch) == [[0, 1, 2, 3]] * 3
    texts = [str(one.message) for one in caught]
    assert len(texts) == 1 and texts[0].startswith("headrace: rounds, table of the Hidden changed in this process")


def test_set_epoch_that_keeps_another_number_raises() -> None:
    dataset = Odd()
    loader = persistent(Headrace, dataset)
    with pytest.raises(RuntimeError, match=r"is in epoch 2 in the trainer, but set_epoch\(2\) set a worker .* to 4"):
        epochs(loader, dataset.set_epoch)


def test_dataset_that_counts_epochs_itself_is_left_alone() -> None:
    class Counting(Stream):
        def __iter__(self) -> Iterator[int]:
            self.epoch += 1
            return super().__iter__()

    loader = persistent(Headrace, Counting())
    assert [values(loader)[0] for _ in range(3)] == [100, 200, 300]
