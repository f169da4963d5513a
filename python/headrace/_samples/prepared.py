# SPDX-License-Identifier: Apache-2.0
"""A dataset that sees the indices of a batch before its samples are taken one by one. Loaders look for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class PreparedDataset:
    """A map-style dataset that can make the samples of a batch in another order than they are asked for."""

    note: Callable[[int], None] | None = None  # is told the place of the sample in its batch that is being made

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        """Returns the samples of a batch, also for loaders that do not know of `prepare`."""
        listed = list(indices)
        self.prepare(listed)
        samples = []
        for place, index in enumerate(listed):
            if self.note is not None:
                self.note(place)
            samples.append(self[index])
        return samples

    @property
    def shown(self) -> Any:
        """The dataset that worker_info and the user's functions see."""
        return self

    def prepare(self, indices: Iterable[Any]) -> None:
        """Gets the samples ready that are asked for next in this thread. An exception of a sample is raised when the
        sample is asked for."""
        raise NotImplementedError

    def announce(self, indices: Iterable[Any]) -> None:
        """Does the part of `prepare` that makes no samples: threads are going to make them."""
        self.prepare(indices)

    def begin(self, is_first: bool) -> None:
        """Checks the dataset before the samples of an epoch. is_first: this is the first worker of its loader, or a
        loader without workers."""


def begin(dataset: Any, is_first: bool, note: Callable[[int], None] | None = None) -> None:
    if isinstance(dataset, PreparedDataset):
        dataset.note = note
        dataset.begin(is_first)


def prepare(dataset: Any, indices: Iterable[Any]) -> None:
    if isinstance(dataset, PreparedDataset):
        dataset.prepare(indices)


def announce(dataset: Any, indices: Iterable[Any]) -> None:
    if isinstance(dataset, PreparedDataset):
        dataset.announce(indices)


def shown(dataset: Any) -> Any:
    return dataset.shown if isinstance(dataset, PreparedDataset) else dataset


def takes_each(dataset: Any) -> bool:
    """Returns True if a fetcher takes the samples of a map-style dataset one by one, or if the dataset itself does."""
    return isinstance(dataset, PreparedDataset) or not getattr(dataset, "__getitems__", None)
