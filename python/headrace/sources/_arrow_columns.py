# SPDX-License-Identifier: Apache-2.0
"""The columns of a pyarrow.Table: numbers and lists of numbers as NumPy arrays over their buffers, all else by pyarrow.

Chunks are read by the addresses and sizes of their buffers. Offsets of lists are not believed: a row is checked when it
is read, here and in C (headrace/source.h).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.sources import _arrow


class Column:
    """A column of a table.

    pieces: what _core.Columns.of takes of it, or () if its rows cannot be gathered. how: who reads a value. nulls: the
    rows that have a null, sorted; the pieces have any numbers there, so these are not gathered.
    """

    how = "by pyarrow"
    pieces: tuple[Any, ...] = ()
    nulls: Any = ()

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

    def __init__(self, name: str, column: Any, pieces: list[_Piece], counts: list[int], keep_dtypes: bool) -> None:
        import numpy as np

        super().__init__(name, column)
        self._pieces = pieces
        self.pieces = tuple(one.numbers for one in pieces)
        self._keep_dtypes = keep_dtypes
        self._firsts = [0, *itertools.accumulate(counts)][:-1]
        nulls = [first + one.nulls for first, one in zip(self._firsts, pieces, strict=True)]
        self.nulls = np.concatenate(nulls)

    def value(self, row: int) -> Any:
        number = bisect.bisect_right(self._firsts, row) - 1
        piece, of_piece = self._pieces[number], row - self._firsts[number]
        value = self._value_of(piece.numbers, of_piece, row)
        if len(piece.nulls) and are_among([of_piece], piece.nulls):
            value = self._with_nulls(piece, of_piece, row, value)
        return value if self._keep_dtypes else _widen(value)

    def _value_of(self, piece: Any, row: int, of_column: int) -> Any:
        return piece[row]

    def _with_nulls(self, piece: _Piece, row: int, of_column: int, value: Any) -> Any:
        """Returns a number or an array with NaN for a null among floats, as datasets and pandas do. Other numbers have
        nothing like it."""
        import numpy as np

        is_list = piece.of_values is not None
        is_null = row in piece.of_rows
        if value.dtype.kind != "f" or (is_list and is_null):
            what = "is null" if is_null else "has a null"
            raise ValueError(
                f"Arrow: row {of_column:,} of column {self._name!r} {what}, which {self.type} has no number for. Leave "
                "such rows out (on_bad_sample='skip', or filter the table), or put a value there (fill_null)"
            )
        if not is_list:
            return value.dtype.type("nan")
        begin = int(piece.numbers[1][row]) if isinstance(piece.numbers, tuple) else row * len(value)
        places = piece.of_values - begin
        filled = value.copy()
        filled[places[(places >= 0) & (places < len(value))]] = np.nan
        return filled


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


def are_among(rows: Any, nulls: Any) -> bool:
    """Returns True if one of the rows is among those that have a null."""
    import numpy as np

    given = np.asarray(rows)
    places = np.minimum(np.searchsorted(nulls, given), len(nulls) - 1)
    return bool((nulls[places] == given).any())


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
    pieces = [piece for chunk in chunks if (piece := _piece_of(chunk)) is not None]
    if not pieces or len(pieces) < len(chunks):
        return Column(name, column)
    if not keep_dtypes and not _can_widen(_dtype_of(pieces[0].numbers)):
        return Column(name, column)
    kind = _Lists if isinstance(pieces[0].numbers, tuple) else _ReadInC
    return kind(name, column, pieces, [len(chunk) for chunk in chunks], keep_dtypes)


def _dtype_of(numbers: Any) -> Any:
    return (numbers[0] if isinstance(numbers, tuple) else numbers).dtype


def _can_widen(dtype: Any) -> bool:
    """Returns True if C and NumPy widen numbers of a dtype: not float16, nor uint64, which does not fit int64."""
    return bool(
        dtype.kind in "ib" or (dtype.kind == "u" and dtype.itemsize < 8) or dtype.name in ("float32", "float64")
    )


# ---- a chunk ----


class _Piece(NamedTuple):
    """numbers: those of a chunk as an array, of lists as (values, offsets). nulls: its rows that are null or have a
    null; of_rows: those that are null; of_values: of lists, the values that are null."""

    numbers: Any
    nulls: Any
    of_rows: Any
    of_values: Any


def _piece_of(chunk: Any) -> _Piece | None:
    """Returns the numbers of a chunk, or None for anything else."""
    types = _arrow.need_pyarrow("Arrow").types
    kind = chunk.type
    if types.is_fixed_size_list(kind):
        return _fixed_lists(chunk)
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(chunk, 4 if types.is_list(kind) else 8)
    numbers = _numbers(chunk)
    nulls = _nulls_of(chunk)
    return None if numbers is None else _Piece(numbers, nulls, nulls, None)


def _nulls_of(chunk: Any) -> Any:
    """Returns the rows of a chunk that are null."""
    import numpy as np

    if not chunk.null_count:
        return np.empty(0, np.int64)
    return np.flatnonzero(chunk.is_null().to_numpy(zero_copy_only=False))


def _numbers(chunk: Any) -> Any:
    """Returns the numbers of a chunk, with any number for a null, or None."""
    import numpy as np

    types = _arrow.need_pyarrow("Arrow").types
    if types.is_boolean(chunk.type):  # bits
        return np.asarray(chunk.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
    if not (types.is_integer(chunk.type) or types.is_floating(chunk.type)):
        return None
    dtype = np.dtype(chunk.type.to_pandas_dtype())
    if chunk.null_count == len(chunk):  # also of an empty one, whose buffer may be missing
        return np.zeros(len(chunk), dtype)
    data = chunk.buffers()[1]
    if data is None or data.size < (chunk.offset + len(chunk)) * dtype.itemsize:
        return None
    return np.frombuffer(data, dtype, len(chunk), chunk.offset * dtype.itemsize)


def _fixed_lists(chunk: Any) -> _Piece | None:
    import numpy as np

    width = chunk.type.list_size
    if not width or not hasattr(chunk, "values"):
        return None
    values = chunk.values
    numbers = _numbers(values)
    begin, end = chunk.offset * width, (chunk.offset + len(chunk)) * width
    if numbers is None or len(numbers) < end:
        return None
    of_values = _nulls_of(values) - begin
    of_values = of_values[(of_values >= 0) & (of_values < end - begin)]
    of_rows = _nulls_of(chunk)
    return _Piece(
        numbers[begin:end].reshape(len(chunk), width), np.union1d(of_rows, of_values // width), of_rows, of_values
    )


def _lists(chunk: Any, offset_bytes: int) -> _Piece | None:
    import numpy as np

    values, buffer = chunk.values, chunk.buffers()[1]
    if buffer is None or buffer.size < (chunk.offset + len(chunk) + 1) * offset_bytes:
        return None
    numbers = _numbers(values)
    if numbers is None:
        return None
    offsets = np.frombuffer(buffer, f"i{offset_bytes}", len(chunk) + 1, chunk.offset * offset_bytes)
    of_rows, of_values = _nulls_of(chunk), _nulls_of(values)
    if not len(of_values):
        return _Piece((numbers, offsets), of_rows, of_rows, of_values)
    if (offsets[1:] < offsets[:-1]).any():  # they are damaged, and do not say in which row a null is
        return None
    counts = np.searchsorted(of_values, offsets)
    nulls = np.union1d(of_rows, np.flatnonzero(counts[1:] > counts[:-1]))
    return _Piece((numbers, offsets), nulls, of_rows, of_values)
