# SPDX-License-Identifier: Apache-2.0
"""The state of an iterable dataset that is its own iterator, and starts at its beginning in __iter__."""

from __future__ import annotations

from typing import Any

import headrace
import headrace.torch
import pytest
import torch.utils.data

N = 20


class Counting(torch.utils.data.IterableDataset[int]):
    """A dataset that has a place only while it is iterated."""

    def __iter__(self) -> Counting:
        info = torch.utils.data.get_worker_info() or headrace.get_worker_info()
        self.place, self.step = {"at": info.id if info else 0}, info.num_workers if info else 1
        return self

    def __next__(self) -> int:
        at = self.place["at"]
        if at >= N:
            raise StopIteration
        self.place["at"] += self.step
        return at

    def state_dict(self) -> dict[str, int]:
        return dict(self.place)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place.update(state)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [headrace.torch.DataLoader, headrace.Loader])
def test_dataset_that_is_its_own_iterator_is_continued(kind: Any, workers: int) -> None:
    loader = kind(Counting(), batch_size=2, num_workers=workers)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in iterator]
    whole = [batch.tolist() for batch in loader]
    resumed = kind(Counting(), batch_size=2, num_workers=workers)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == expected
    assert [batch.tolist() for batch in resumed] == whole


class Begun(Counting):
    """Counts how often it was begun."""

    begun = 0

    def __iter__(self) -> Begun:
        self.begun += 1
        return super().__iter__()  # type: ignore[return-value]


@pytest.mark.parametrize("options", [{}, {"on_bad_sample": "skip"}])
@pytest.mark.parametrize("kind", [headrace.torch.DataLoader, headrace.Loader])
def test_dataset_without_workers_is_begun_once_an_epoch(kind: Any, options: Any) -> None:
    loader = kind(Begun(), batch_size=2, **options)
    assert [len(list(loader)), len(list(loader))] == [N // 2, N // 2]
    assert loader.dataset.begun == 2
