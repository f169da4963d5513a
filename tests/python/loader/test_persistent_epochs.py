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
        self.given = parts

    @property
    def parts(self) -> Any:
        return self.given.values() if isinstance(self.given, dict) else self.given

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


class Shuffling(Inner):
    """Shuffles in place, and keeps no epoch."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def set_epoch(self, epoch: int) -> None:
        self.table[:] = [100 * epoch + i for i in range(4)]


class Asking(Stream):
    def set_epoch(self, epoch: int, of: int) -> None:  # type: ignore[override]
        self.epoch = epoch


class Counted(Inner):
    """Counts the calls of its set_epoch."""

    calls = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch, self.calls = epoch, self.calls + 1

    def __getitem__(self, index: int) -> int:
        return self.calls


class Outer(Around):
    """Sets an epoch of its own, and that of its parts."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        super().set_epoch(epoch)


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
    cases += [(Around([Inner()]), None), (Around((Around([Inner()]),)), None), (Around({"a": Inner()}), None)]
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


@pytest.mark.parametrize(
    ("dataset", "names"),
    [
        (Hidden(), "rounds, table"),
        (Shuffling(list(range(4))), "table"),
        (Shuffling(np.arange(4)), "table"),
        (Asking(), "epoch"),
    ],
    ids=["another name", "a list in place", "an array in place", "two arguments"],
)
def test_epoch_that_cannot_be_sent_warns_once(dataset: Any, names: str) -> None:
    loader = persistent(Headrace, dataset)
    more = [9] if isinstance(dataset, Asking) else []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = epochs(loader, lambda epoch: dataset.set_epoch(epoch, *more))
    assert found == [found[0]] * 3
    [text] = [str(one.message) for one in caught]
    assert text.startswith(f"headrace: {names} of the {type(dataset).__name__} changed in this process")


def test_part_that_workers_do_not_have_warns_once() -> None:
    """The trainer makes a part of the dataset after the workers were started."""
    dataset = Around([Inner()])
    loader = persistent(Headrace, dataset)
    values(loader)
    dataset.given = [*dataset.given, Inner()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert epochs(loader, dataset.set_epoch, (1, 2)) == [list(range(e, e + 4)) for e in (100, 200)]
    [text] = [str(one.message) for one in caught]
    assert text.startswith("headrace: the Inner in the dataset is new in this process")


def test_set_epoch_of_a_part_is_called_once_an_epoch() -> None:
    dataset = Outer([Counted()])
    found = epochs(persistent(Headrace, dataset), dataset.set_epoch)
    assert [one[0] - found[0][0] for one in found] == [0, 1, 2]


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
