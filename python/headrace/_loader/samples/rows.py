# SPDX-License-Identifier: Apache-2.0
"""Datasets whose samples are rows of numbers. A loader can have all rows of a batch gathered in C, at once."""

from __future__ import annotations

from typing import Any, Protocol

from headrace import _core


class RowSource:
    """A base of map-style datasets whose samples are rows of numbers. `gathers` is True in the classes whose samples
    are the rows that `rows` gathers; a subclass of the user's may make others of them, and is left out."""

    gathers = False

    def rows(self, indices: list[int]) -> _core.Rows | None:
        """Returns the rows of these indices, which are gathered when the batch has its memory. None: the samples have
        to be made one by one."""
        raise NotImplementedError


class Gatherer(Protocol):
    """Gathers the batches of a dataset for a loader."""

    name: str  # of the dataset's class

    def rows(self, indices: Any) -> _core.Rows | None:
        """See RowSource.rows. Indices may be of any kind."""


class SourceGatherer:
    """Gathers the rows of a source."""

    def __init__(self, source: RowSource) -> None:
        self._source = source
        self.name = type(source).__name__

    def rows(self, indices: Any) -> _core.Rows | None:
        return self._source.rows(indices) if type(indices) is list else None


def gatherer_of_source(dataset: Any) -> Gatherer | None:
    """Returns what gathers the batches of a dataset, if its samples are rows of a source."""
    is_source = isinstance(dataset, RowSource) and vars(type(dataset)).get("gathers") is True
    return SourceGatherer(dataset) if is_source else None


def explain_no_cache(gatherer: Gatherer) -> str:
    """Returns why a loader does not keep the samples of such a dataset in the cache of samples."""
    return (
        f"headrace: the option cache is left out for a {gatherer.name}, because its batches are gathered from memory "
        "or from files below Python, which is faster than the cache"
    )
