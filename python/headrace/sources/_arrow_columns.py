# SPDX-License-Identifier: Apache-2.0
"""The columns of a pyarrow.Table: numbers and lists of numbers as NumPy arrays over their buffers, all else by pyarrow.

Chunks are read by the addresses and sizes of their buffers. Offsets of lists are not believed: a row is checked when it
is read, here and in C (headrace/source.h).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

from headrace.sources import _arrow


class Column:
    """A column of a table.

    pieces: what _core.Columns.of takes of it, or () if its rows cannot be gathered. how: who reads a value.
    """

    how = "by pyarrow"
    pieces: tuple[Any, ...] = ()

    def __init__(self, name: str, column: Any) -> None:
        self._name = name
        self._column = column
        self.type = column.type

    def value(self, row: int) -> Any:
        """Returns the value of a row."""
        return self._column[row].as_py()


class _ReadInC(Column):
    """A column whose chunks are arrays."""

    how = "in C"

    def __init__(self, name: str, column: Any, pieces: list[Any], counts: list[int], keep_dtypes: bool) -> None:
        super().__init__(name, column)
        self.pieces = tuple(pieces)
        self._keep_dtypes = keep_dtypes
        self._firsts = [0, *itertools.accumulate(counts)][:-1]

    def value(self, row: int) -> Any:
        number = bisect.bisect_right(self._firsts, row) - 1
        value = self._value_of(self.pieces[number], row - self._firsts[number], row)
        return value if self._keep_dtypes else _widen(value)

    def _value_of(self, piece: Any, row: int, of_column: int) -> Any:
        return piece[row]


class _Lists(_ReadInC):
    """A column of lists of several lengths."""

    def _value_of(self, piece: Any, row: int, of_column: int) -> Any:
        values, offsets = piece
        begin, end = int(offsets[row]), int(offsets[row + 1])
        if not 0 <= begin <= end <= len(values):
            raise ValueError(
                f"Arrow: the list of row {of_column:,} in column {self._name!r} goes from element {begin:,} to {end:,} "
                f"of {len(values):,}; the file or table is damaged, so make it again"
            )
        return values[begin:end]


def _widen(value: Any) -> Any:
    """Returns numbers as `with_format("torch")` of datasets does. An array is a copy of the table's memory."""
    import numpy as np

    kind = {"i": np.int64, "u": np.int64, "f": np.float32}.get(value.dtype.kind, value.dtype.type)
    return value.astype(kind)


def columns_of(table: Any, names: Sequence[str], keep_dtypes: bool) -> dict[str, Column]:
    """Returns the columns of a table by name."""
    return {name: _column_of(name, table.column(name), keep_dtypes) for name in names}


def _column_of(name: str, column: Any, keep_dtypes: bool) -> Column:
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    pieces = [_piece_of(chunk) for chunk in chunks]
    if not pieces or any(piece is None for piece in pieces):
        return Column(name, column)
    if not keep_dtypes and not all(_can_widen(piece) for piece in pieces):
        return Column(name, column)
    kind = _Lists if isinstance(pieces[0], tuple) else _ReadInC
    return kind(name, column, pieces, [len(chunk) for chunk in chunks], keep_dtypes)


def _can_widen(piece: Any) -> bool:
    """Returns True if C and NumPy widen the numbers of a piece: not float16, nor uint64, which does not fit int64."""
    dtype = (piece[0] if isinstance(piece, tuple) else piece).dtype
    return bool(
        dtype.kind in "ib" or (dtype.kind == "u" and dtype.itemsize < 8) or dtype.name in ("float32", "float64")
    )


def _piece_of(chunk: Any) -> Any:
    """Returns the numbers of a chunk as an array, lists as (values, offsets), or None for anything else."""
    types = _arrow.need_pyarrow("Arrow").types
    kind = chunk.type
    if chunk.null_count:
        return None
    if types.is_fixed_size_list(kind):
        return _fixed_lists(chunk)
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(chunk, 4 if types.is_list(kind) else 8)
    return _numbers(chunk)


def _numbers(chunk: Any) -> Any:
    import numpy as np

    types = _arrow.need_pyarrow("Arrow").types
    if types.is_boolean(chunk.type):  # bits
        return np.asarray(chunk.to_numpy(zero_copy_only=False), np.bool_)
    if not (types.is_integer(chunk.type) or types.is_floating(chunk.type)):
        return None
    dtype = np.dtype(chunk.type.to_pandas_dtype())
    data = chunk.buffers()[1]
    if data is None or data.size < (chunk.offset + len(chunk)) * dtype.itemsize:
        return None
    return np.frombuffer(data, dtype, len(chunk), chunk.offset * dtype.itemsize)


def _fixed_lists(chunk: Any) -> Any:
    width = chunk.type.list_size
    values = chunk.values if hasattr(chunk, "values") else chunk.flatten()
    if values.null_count or not width:
        return None
    numbers = _numbers(values)
    begin, end = chunk.offset * width, (chunk.offset + len(chunk)) * width
    return None if numbers is None or len(numbers) < end else numbers[begin:end].reshape(len(chunk), width)


def _lists(chunk: Any, offset_bytes: int) -> Any:
    import numpy as np

    values, buffer = chunk.values, chunk.buffers()[1]
    if values.null_count or buffer is None or buffer.size < (chunk.offset + len(chunk) + 1) * offset_bytes:
        return None
    numbers = _numbers(values)
    if numbers is None:
        return None
    return numbers, np.frombuffer(buffer, f"i{offset_bytes}", len(chunk) + 1, chunk.offset * offset_bytes)
