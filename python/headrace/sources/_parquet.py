# SPDX-License-Identifier: Apache-2.0
"""headrace.sources.Parquet: rows of Parquet files, decoded once per machine."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.sources._arrow import Arrow, _check_names, need_pyarrow, open_stream
from headrace.sources._paths import find_files, warn_of_repeats

_NAME = "Parquet"


class Parquet(Arrow):
    """Samples are the rows of Parquet files, as those of sources.Arrow.

    paths: a path, a pattern (its files are sorted by bytes), braces as in "part-{000..127}.parquet", or a list.
    columns: the names of the columns that are decoded, in this order; None: all. keep_dtypes: see Arrow.
    keep: how long the decoded rows stay, as for headrace.cache: "disk", in a file; in memory "boot" or "job".

    The first process of a machine decodes the files, one group of rows after the other, into headrace.cache; all
    others map it. It is made again if a file has another size, time or inode. `headrace cache ls` shows
    it, and `headrace cache rm` deletes it.

    Raises ImportError without pyarrow, OSError for files that cannot be opened, ValueError for files of different
    columns or that are damaged.
    """

    gathers = True

    def __init__(
        self, paths: Any, *, columns: Sequence[str] | None = None, keep_dtypes: bool = False, keep: str = "disk"
    ) -> None:
        need_pyarrow(_NAME)
        self._keep = keep
        self._files = [os.path.abspath(path) for path in find_files(paths, _NAME)]
        self._wanted = None if columns is None else _check_names(columns)
        warn_of_repeats(self._files, _NAME)
        super().__init__(self._decoded(), columns=columns, keep_dtypes=keep_dtypes)

    def _decoded(self) -> Any:
        """Returns the table of all files, from the cache."""
        from headrace._cache.interface import cache

        key = json.dumps([self._files, self._wanted])
        first = os.path.basename(self._files[0])
        name = f"parquet-{first}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        files, wanted = self._files, self._wanted
        sources = sorted(set(files))
        self._data = cache(name, lambda: _decode(files, wanted), sources=sources, keep=self._keep)
        return open_stream(self._data)

    def where(self, index: int) -> str:
        """Returns the row of a sample among those of all files."""
        return f"row {self._check_index(index):,} of {self._describe()}"

    def _describe(self) -> str:
        files = (
            repr(self._files[0]) if len(self._files) == 1 else f"{len(self._files):,} files, {self._files[0]!r}, ..."
        )
        return f"{files}, {self._length:,} rows, columns={list(self._names)}"

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_files", "_keep_dtypes", "_wanted", "_data", "_keep")
        return {"_dataset": None, **{name: self.__dict__[name] for name in kept}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._table = open_stream(self._data)
        self._read()


def _decode(files: Sequence[str], columns: Sequence[str] | None) -> Iterator[Any]:
    """Gives a stream of Arrow's IPC format in arrays of uint8, one for each group of rows. pyarrow's own threads are
    not used, because a process that is forked while they read hangs."""
    import numpy as np

    pyarrow = need_pyarrow(_NAME)
    schema = _schema_of(files[0], columns)
    sink = _Sink()
    with pyarrow.ipc.new_stream(pyarrow.PythonFile(sink, "w"), schema) as writer:
        for path in files:
            found = _schema_of(path, columns)
            if not found.equals(schema):
                raise ValueError(f"{_NAME}: {path} has other columns than {files[0]}: {found} and {schema}")
            with pyarrow.parquet.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=columns, use_threads=False)
                    writer.write_table(table.select(schema.names).cast(schema))
                    yield np.frombuffer(sink.take(), np.uint8)
    yield np.frombuffer(sink.take(), np.uint8)


def _schema_of(path: str, columns: Sequence[str] | None) -> Any:
    """Returns the columns of a file without its metadata, which other files need not have."""
    pyarrow = need_pyarrow(_NAME)
    try:
        schema = pyarrow.parquet.read_schema(path).remove_metadata()
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{_NAME}: {path} is no Parquet file, or it is damaged: {error}") from None
    missing = [name for name in columns or () if name not in schema.names]
    if missing:
        raise ValueError(f"{_NAME}: {path} has no column {missing[:3]}; it has {schema.names}")
    return schema if columns is None else pyarrow.schema([schema.field(name) for name in columns])


class _Sink:
    """A file that pyarrow writes to, whose bytes are taken piece by piece."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    def flush(self) -> None:
        """pyarrow calls it."""

    def close(self) -> None:
        """pyarrow calls it."""
