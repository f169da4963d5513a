# SPDX-License-Identifier: Apache-2.0
"""Finds the remote files that a dataset reads for its samples, so that they can be announced to the fetcher."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any, Protocol

from headrace import _core
from headrace._base import lookup
from headrace._samples.mixed import is_mixed
from headrace.sources._source import Source

_LISTS = {list, tuple, range}
_OF_TORCH = "torch.utils.data.dataset"


class Reads(Protocol):
    """Open files (_core.Tar and others), or a dataset over such."""

    def ask(self, indices: list[Any], announcer: _core.Announcer, /) -> None:
        """Adds what the samples need to what is announced. Indices that are not known are left out."""


def reads_of(dataset: Any) -> Reads | None:
    """Returns what a dataset reads, or None if that is not known, or if nothing of it is remote. torch's Subset and
    ConcatDataset, and the dataset of a Mixture, are looked through, and a dataset with a method `reads`."""
    if not isinstance(dataset, Source) and callable(lookup.attribute(dataset, "reads")):
        return _reads_of_users(dataset)
    return _reads_of_known(dataset)


def _reads_of_users(dataset: Any) -> Reads | None:
    """Returns what a dataset of the user's reads, if one of its attributes is a source or a known dataset over some."""
    found = [one for one in map(_reads_of_known, lookup.attribute(dataset, "__dict__", {}).values()) if one is not None]
    return _Users(dataset, found[0]) if len(found) == 1 else None


def _reads_of_known(dataset: Any) -> Reads | None:
    """Returns what a source reads, or a dataset of torch or headrace over some."""
    if isinstance(dataset, Source):
        found: Reads | None = dataset._asked()
        return found
    if is_mixed(dataset) or _is_torchs(dataset, "ConcatDataset"):
        parts = [reads_of(one) for one in vars(dataset).get("datasets", ())]
        return _Chain(dataset, parts) if any(parts) else None
    if _is_torchs(dataset, "Subset"):
        inner = reads_of(vars(dataset).get("dataset"))
        return None if inner is None else _Part(dataset, inner)
    return None


def _is_torchs(dataset: Any, name: str) -> bool:
    return (type(dataset).__module__, type(dataset).__qualname__) == (_OF_TORCH, name)


def _known(indices: list[Any], count: int) -> Iterator[int]:
    """Yields those that are ints from 0 to count - 1."""
    return (index for index in indices if type(index) is int and 0 <= index < count)


class _Users:
    """A dataset of the user's, whose method `reads` returns the index in its source for an index of its own, or
    None."""

    def __init__(self, dataset: Any, inner: Reads) -> None:
        self._dataset, self._inner = dataset, inner

    def ask(self, indices: list[Any], announcer: _core.Announcer, /) -> None:
        self._inner.ask([self._dataset.reads(index) for index in indices], announcer)


class _Part:
    """A Subset."""

    def __init__(self, dataset: Any, inner: Reads) -> None:
        self._dataset, self._inner = dataset, inner

    def ask(self, indices: list[Any], announcer: _core.Announcer, /) -> None:
        numbers = vars(self._dataset).get("indices")
        if type(numbers) in _LISTS:
            self._inner.ask([numbers[index] for index in _known(indices, len(numbers))], announcer)


class _Chain:
    """A ConcatDataset, or the dataset of a Mixture, where a larger index is that of a later pass."""

    def __init__(self, dataset: Any, parts: list[Reads | None]) -> None:
        self._dataset, self._parts, self._wraps = dataset, parts, is_mixed(dataset)

    def ask(self, indices: list[Any], announcer: _core.Announcer, /) -> None:
        ends = vars(self._dataset).get("cumulative_sizes")
        if type(ends) is not list or len(ends) != len(self._parts) or not ends[-1]:
            return
        if self._wraps:
            indices = [index % ends[-1] for index in indices if type(index) is int and index >= 0]
        found: list[list[int]] = [[] for _ in ends]
        for index in _known(indices, ends[-1]):
            number = bisect.bisect_right(ends, index)
            found[number].append(index - (ends[number - 1] if number else 0))
        for part, places in zip(self._parts, found, strict=True):
            if part is not None and places:
                part.ask(places, announcer)
