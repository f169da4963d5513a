# SPDX-License-Identifier: Apache-2.0
"""Datasets whose samples are rows of numbers. A loader can have all rows of a batch gathered in C, at once."""

from __future__ import annotations

import itertools
from typing import Any, Protocol

from headrace import _core
from headrace._base import lookup
from headrace._samples.mixed import MixedDataset, is_mixed


class RowSource:
    """A base of map-style datasets whose samples are rows of numbers. `gathers` is True in the classes whose samples
    are the rows that `rows` gathers; a subclass of the user's may make others of them, and is left out."""

    gathers = False
    _originals: _core.Originals | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if vars(cls).get("gathers") is True:
            names = ("__getitem__", "__getitems__", "__getattribute__", "__getattr__", "rows")
            cls._originals = _core.Originals(tuple((cls, name, _of_class(cls, name)) for name in names))

    def rows(self, indices: list[int]) -> _core.Rows | None:
        """Returns the rows of these indices, which are gathered when the batch has its memory. None: the samples have
        to be made one by one."""
        raise NotImplementedError

    def arrays(self) -> tuple[tuple[Any, ...], tuple[str, ...] | None] | None:
        """Returns the arrays whose rows the samples have, and their names in a sample. None: the rows are not those of
        arrays."""
        return None


def _of_class(cls: type, name: str) -> Any:
    """Returns what a class has under a name, for _core.Originals."""
    found = lookup.static(cls, name)
    return ... if found is None or found is lookup.static(object, name) else found


class RowGatherer(Protocol):
    """Finds the rows of a batch."""

    name: str  # of the dataset's class

    def rows(self, indices: Any) -> _core.Rows | None:
        """See RowSource.rows. Indices may be of any kind."""


class Gatherer(RowGatherer, Protocol):
    """Gathers the batches of a dataset for a loader."""

    def proof(self, rows: _core.Rows) -> Proof | None:
        """Returns what has to be told of the batch as the loader's collate function makes it, before such rows may be
        gathered; None: they may be."""


class Proof(Protocol):
    """A batch that was gathered, to be compared."""

    def compare(self, batch: Any) -> None:
        """Compares it with the batch of the same samples that a collate function has made."""


class SourceGatherer:
    """Gathers the rows of a source."""

    def __init__(self, source: RowSource) -> None:
        self._source = source
        self.name = type(source).__name__

    def rows(self, indices: Any) -> _core.Rows | None:
        return self._source.rows(indices) if type(indices) is list and _gives_rows(self._source) else None

    def proof(self, rows: _core.Rows) -> Proof | None:
        return None


class MixtureGatherer:
    """Gathers the rows of sources of arrays that are laid end to end, if the batch would be the same sample by sample:
    as many arrays with the same names, and in each place arrays of one kind, dtype and shape of a row."""

    def __init__(self, dataset: MixedDataset) -> None:
        self._dataset = dataset
        self.name = type(dataset).__name__

    def rows(self, indices: Any) -> _core.Rows | None:
        if type(indices) is not list or set(map(type, indices)) != {int} or min(indices) < 0:
            return None
        columns, count = self.columns(), len(self._dataset)
        return None if columns is None else columns.rows([index % count for index in indices])

    def proof(self, rows: _core.Rows) -> Proof | None:
        return None

    def columns(self) -> _core.Columns | None:
        """Returns the columns of all sources, or None if the batches have to be made sample by sample."""
        if not all(map(_gives_rows, self._dataset.datasets)):
            return None
        found = [one.arrays() for one in self._dataset.datasets]
        if None in found or len({names for _, names in found}) > 1 or len({len(arrays) for arrays, _ in found}) > 1:
            return None
        pieces = tuple(zip(*(arrays for arrays, _ in found), strict=True))
        if any(len(set(map(type, one))) > 1 for one in pieces) or not self._has_same_sizes(pieces[0]):
            return None
        _core.use_numpy()
        return _core.Columns.of(pieces, found[0][1])

    def _has_same_sizes(self, arrays: tuple[Any, ...]) -> bool:
        return list(itertools.accumulate(map(len, arrays))) == self._dataset.cumulative_sizes


def _is_source(dataset: Any) -> bool:
    return isinstance(dataset, RowSource) and vars(type(dataset)).get("gathers") is True


def _gives_rows(dataset: Any) -> bool:
    """Returns True if a source gives its samples by the methods that it was made with: a program may have put others in
    their place."""
    found = vars(type(dataset)).get("_originals")
    return found is not None and found.hold() and "__getitems__" not in vars(dataset)


def gatherer_of_source(dataset: Any) -> Gatherer | None:  # shortcut: source-rows
    """Returns what gathers the batches of a dataset, if its samples are rows of a source or of a mixture of sources."""
    if _is_source(dataset):
        return SourceGatherer(dataset)
    if not is_mixed(dataset) or not all(map(_is_source, dataset.datasets)):
        return None
    gatherer = MixtureGatherer(dataset)
    return None if gatherer.columns() is None else gatherer


def explain_no_cache(gatherer: Gatherer) -> str:
    """Returns why a loader does not keep the samples of such a dataset in the cache of samples."""
    return (
        f"headrace: the option cache is left out for a {gatherer.name}, because its batches are gathered from memory "
        "or from files below Python, which is faster than the cache"
    )
