# SPDX-License-Identifier: Apache-2.0
"""The base class of all sources: what a loader and a user can ask of one."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace import _core
from headrace._samples.rows import RowSource

if TYPE_CHECKING:
    import numpy as np


class Source(RowSource):
    """A map-style dataset over files: `len(source)`, `source[i]`, `source[-1]` and iteration work as with a list.

    Its pickle is a handle, paths and options, which opens the files again. Errors name file and offset. A class of
    sources has the methods that begin with `_`, and `where` and `report`.
    """

    def _count(self) -> int:
        """Returns the number of samples."""
        raise NotImplementedError

    def _sample(self, index: int) -> Any:
        """Returns a sample; index is from 0 to _count() - 1."""
        raise NotImplementedError

    def _columns(self) -> Any:
        """Returns what gathers the rows of a batch (_core.Columns), or None: samples are made one by one."""
        return None

    def _asked(self) -> Any:
        """Returns the open files (_core.Tar and others), which can be asked for samples, if some of them are remote;
        otherwise None."""
        return None

    @staticmethod
    def _make_columns(*given: Any, **options: Any) -> _core.Columns | None:
        """Calls _core.Columns.of, which has to know numpy's arrays."""
        _core.use_numpy()
        return _core.Columns.of(*given, **options)

    def rows(self, indices: list[int]) -> _core.Rows | None:
        """See RowSource.rows."""
        columns = self._columns()
        return None if columns is None else columns.rows(indices)

    def _describe(self) -> str:
        """Returns what the source reads, in a few words, for its repr."""
        raise NotImplementedError

    @property
    def _name(self) -> str:
        return type(self).__name__

    def __len__(self) -> int:
        return self._count()

    def __getitem__(self, index: int) -> Any:
        return self._sample(self._check_index(index))

    def __iter__(self) -> Iterator[Any]:
        return (self._sample(index) for index in range(self._count()))

    def _check_index(self, index: Any) -> int:
        """Returns an index from 0 on. Raises IndexError and TypeError, which name the source."""
        try:
            number = operator.index(index)
        except TypeError:
            hint = "; torch.utils.data.Subset takes several" if isinstance(index, (slice, list, tuple)) else ""
            raise TypeError(f"{self._name}: an index should be an int, but got {index!r}{hint}") from None
        count = self._count()
        if not -count <= number < count:
            raise IndexError(f"{self._name}: index {number} is out of range, there are {count:,} samples ({self!r})")
        return number + count if number < 0 else number

    @property
    def lengths(self) -> np.ndarray[Any, Any] | None:
        """The length of each sample, int64, shape (len(source),), which `headrace.Plan` takes; None: all are equal."""
        return None

    def where(self, index: int) -> str:
        """Returns the file and the offset of a sample."""
        raise NotImplementedError

    def report(self) -> dict[str, Any]:
        """Returns what was found in the files."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"sources.{self._name}({self._describe()})"
