# SPDX-License-Identifier: Apache-2.0
"""MixedDataset: the sources of a headrace.Mixture laid end to end. The loaders, the cache of samples and the rows that
are gathered know it."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace._base import lookup
from headrace._samples import prepared


class MixedDataset(prepared.PreparedDataset):
    """A map-style dataset with the samples of several datasets, one after the other: `mix.dataset` of a
    headrace.Mixture.

    Samples are made one by one, by the datasets themselves. An index of len(dataset) or more is that of a later pass:
    it has the same sample as the index without the multiples of len(dataset). `datasets` and `cumulative_sizes` are
    what torch's ConcatDataset has by these names, `names` are those of the sources.
    """

    def __init__(self, sources: Mapping[str, Any]) -> None:
        self.names = tuple(sources)
        self.datasets = list(sources.values())
        self.cumulative_sizes = list(itertools.accumulate(map(len, self.datasets)))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Any:
        number, at = self.place_of(index)
        return self.datasets[number][at]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def place_of(self, index: int) -> tuple[int, int]:
        """Returns which source has the sample of an index, by number, and its index there. Raises IndexError and
        TypeError."""
        try:
            given = operator.index(index)
        except TypeError:
            raise TypeError(f"headrace: an index of mix.dataset should be an int, but got {index!r}") from None
        count = len(self)
        if given < -count:
            raise IndexError(f"headrace: index {given} of mix.dataset is out of range, there are {count:,} samples")
        number = given % count
        source = bisect.bisect_right(self.cumulative_sizes, number)
        return source, number - (self.cumulative_sizes[source - 1] if source else 0)

    # ---- batches: sources that can get the samples of one ready are shown its indices ----

    def begin(self, is_first: bool) -> None:
        for dataset in self.datasets:
            prepared.begin(dataset, is_first)

    def prepare(self, indices: Iterable[Any]) -> None:
        for dataset, places in self._divided(indices):
            prepared.prepare(dataset, places)

    def announce(self, indices: Iterable[Any]) -> None:
        for dataset, places in self._divided(indices):
            prepared.announce(dataset, places)

    def _divided(self, indices: Iterable[Any]) -> Iterable[tuple[Any, list[int]]]:
        """Returns the sources that are prepared for indices, with their own indices."""
        if not any(isinstance(one, prepared.PreparedDataset) for one in self.datasets):
            return ()
        found: dict[int, tuple[Any, list[int]]] = {}  # by identity: sources may be the same dataset
        for index in indices:
            with contextlib.suppress(IndexError, TypeError):  # raised when the sample is asked for
                number, at = self.place_of(index)
                dataset = self.datasets[number]
                found.setdefault(id(dataset), (dataset, []))[1].append(at)
        return found.values()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "note"}  # which belongs to this process

    # ---- what it is ----

    def where(self, index: int) -> str:
        """Returns the name of the source that has the sample of an index, and its index there, or what the source
        itself says of it (`where`)."""
        number, at = self.place_of(index)
        own = lookup.attribute(self.datasets[number], "where")
        return f"{self.names[number]}: {own(at) if callable(own) else f'sample {at:,}'}"

    def check_sizes(self) -> None:
        """Raises ValueError if a dataset has another length than when the mixture was made."""
        starts = [0, *self.cumulative_sizes]
        for name, dataset, start, end in zip(self.names, self.datasets, starts, self.cumulative_sizes, strict=False):
            if len(dataset) != end - start:
                raise ValueError(
                    f"headrace: source {name!r} of the mixture has {len(dataset):,} samples now, but had "
                    f"{end - start:,} when the mixture was made; its order is made from these, so make a new Mixture"
                )

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {type(one).__name__} of {len(one):,}" for name, one in self._pairs())
        return f"mix.dataset({parts})"

    def _pairs(self) -> Iterator[tuple[str, Any]]:
        return zip(self.names, self.datasets, strict=True)


class MixedEpochDataset(MixedDataset):
    """The same with set_epoch, for datasets of which one has it."""

    def __init__(self, sources: Mapping[str, Any]) -> None:
        super().__init__(sources)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the datasets that have set_epoch."""
        self.epoch = epoch
        for dataset in self.datasets:
            if _has_epochs(dataset):
                dataset.set_epoch(epoch)


def _has_epochs(dataset: Any) -> bool:
    return callable(lookup.attribute(dataset, "set_epoch"))


def mixed(sources: Mapping[str, Any]) -> MixedDataset:
    """Returns the sources laid end to end."""
    kind = MixedEpochDataset if any(map(_has_epochs, sources.values())) else MixedDataset
    return kind(sources)


def is_mixed(dataset: Any) -> bool:
    """Returns True for a dataset of a mixture, and not for one of a subclass, which may have other samples."""
    return type(dataset) in (MixedDataset, MixedEpochDataset)
