# SPDX-License-Identifier: Apache-2.0
"""headrace.sources.Parquet: rows of Parquet files, decoded once per machine."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace._base.warn import warn_user
from headrace._remote.addresses import is_remote
from headrace.sources._arrow import Arrow, _check_names, need_pyarrow, open_stream
from headrace.sources._parquet_files import ParquetFiles
from headrace.sources._parquet_types import unify
from headrace.sources._paths import name_for_cache
from headrace.sources._places import Places

_NAME = "Parquet"
_VERSION = 2  # of what is made of the files, in the cache
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")  # "007" is text
_warned: set[str] = set()


class Parquet(Arrow):
    """Samples are the rows of Parquet files, as those of sources.Arrow.

    paths: a path, a pattern (its files are sorted by bytes), braces as in "part-{000..127}.parquet", or a list; URLs
        as https://host/name and s3://bucket/name, too, of which only the footers and the columns are fetched.
    columns: the names of the columns that are decoded, in this order; None: all. keep_dtypes: see Arrow.
    partitions: names of columns that the folders of the files have, as in "year=2024/part-0.parquet": integers if all
        of them are, otherwise text. Without columns, they come behind those of the files.
    keep: how long the decoded rows stay, as for headrace.cache: "disk", in a file; in memory "boot" or "job".
    storage: settings of remote objects, see docs/sources.md: region, endpoint, keys, headers, retry_s and others.

    All files have the same columns, in the order of the first one. Types that differ only in how values are stored (not
    null, smaller integers, large strings, a column of nulls) become one; other differences are an error.

    The first process of a machine decodes the files, one group of rows after the other, into headrace.cache; all
    others map it. It is made again if a file has another size, time or inode, or a remote object another version.
    `headrace cache ls` shows it, and `headrace cache rm` deletes it. Without a folder that can be written, the rows are
    kept in memory.

    Raises ImportError without pyarrow, OSError for files that cannot be opened, ValueError for files of different
    columns or that are damaged.
    """

    gathers = True

    def __init__(
        self,
        paths: Any,
        *,
        columns: Sequence[str] | None = None,
        partitions: Sequence[str] = (),
        keep_dtypes: bool = False,
        keep: str = "disk",
        storage: Mapping[str, Any] | None = None,
    ) -> None:
        need_pyarrow(_NAME)
        self._keep = keep
        places = Places(paths, _NAME, storage, are_kept=False)
        self._files = places.paths
        self._partitions = _check_names(partitions) if partitions else ()
        wanted = None if columns is None else _check_names(columns)
        places.warn_of_repeats(_NAME)
        super().__init__(self._decoded(wanted, places), columns=columns, keep_dtypes=keep_dtypes)

    def _decoded(self, wanted: tuple[str, ...] | None, places: Places) -> Any:
        """Returns the table of all files, from the cache. The names of remote objects have their versions."""
        versions = [places.remote.names()] if places.remote else []
        key = json.dumps([self._files, wanted, self._partitions, *versions])
        name = f"parquet-{name_for_cache(self._files[0])}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        self._data = self._obtain(name, _Reader(self._files, wanted, self._partitions))
        return open_stream(self._data)

    def _obtain(self, name: str, reader: _Reader) -> Any:
        """Returns the stream of all files as an array of the cache: where `keep` says, or else in memory."""
        from headrace._cache.interface import cache

        keeps = list(dict.fromkeys((self._keep, "boot")))
        local = sorted({path for path in self._files if not is_remote(path)})
        for keep in keeps:
            try:
                return cache(name, reader.decode, version=_VERSION, sources=local, keep=keep)
            except (OSError, MemoryError, RuntimeError) as error:
                is_full = isinstance(error, MemoryError) or getattr(error, "errno", 0) in (errno.ENOSPC, errno.ENOMEM)
                if reader.has_failed or (is_full and keep == keeps[-1]):  # there is no room for them in memory at all
                    raise
                _warn_of_keep(keep, error, is_last=keep == keeps[-1])
        from headrace._cache.contents import join_pieces
        from headrace.frozen import freeze

        return freeze(join_pieces(reader.decode()))

    def where(self, index: int) -> str:
        """Returns the row of a sample among those of all files."""
        return f"row {self._check_index(index):,} of {self._describe()}"

    def _describe(self) -> str:
        files = (
            repr(self._files[0]) if len(self._files) == 1 else f"{len(self._files):,} files, {self._files[0]!r}, ..."
        )
        return f"{files}, {self._length:,} rows, columns={list(self._names)}"

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_files", "_keep_dtypes", "_wanted", "_data", "_keep", "_partitions")
        return {"_dataset": None, **{name: self.__dict__[name] for name in kept}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._table = open_stream(self._data)
        self._read()


def _warn_of_keep(keep: str, error: BaseException, is_last: bool) -> None:
    """Warns once of each place that cannot be used."""
    if keep in _warned:
        return
    _warned.add(keep)
    reason = str(error).partition("\n")[0]
    then = "so each process that opens them decodes them" if is_last else "so they are kept in memory, until a reboot"
    warn_user(
        f"headrace: sources.{_NAME}: the decoded rows are not kept as keep={keep!r} says ({reason}), {then}. `headrace "
        "doctor` shows the places of the cache"
    )


# ---- decoding ----


class _Reader:
    """Decodes files. has_failed: it was a file that could not be read, and not the cache."""

    def __init__(self, files: Sequence[str], columns: Sequence[str] | None, partitions: Sequence[str]) -> None:
        self._files, self._columns, self._partitions = files, columns, partitions
        self._of_files = None if columns is None else [name for name in columns if name not in partitions]
        self.has_failed = False

    def decode(self) -> Iterator[Any]:
        """Gives a stream of Arrow's IPC format in arrays of uint8, one for each group of rows."""
        try:
            with ParquetFiles(self._files, _NAME, self._of_files) as files:
                yield from self._decode(files)
        except GeneratorExit:
            raise
        except BaseException:
            self.has_failed = True
            raise

    def _decode(self, files: ParquetFiles) -> Iterator[Any]:
        import numpy as np

        pyarrow = need_pyarrow(_NAME)
        folders = _values_of_folders(self._files, self._partitions)
        schema = self._schema(files, folders)
        sink = _Sink()
        with pyarrow.ipc.new_stream(pyarrow.PythonFile(sink, "w"), schema) as writer:
            for number, path in enumerate(self._files):
                for table in self._groups(files, path):
                    for name, values in folders.items():
                        if name in schema.names:
                            column = pyarrow.repeat(pyarrow.scalar(values[number], schema.field(name).type), len(table))
                            table = table.append_column(name, column)
                    writer.write_table(_cast(path, table, schema))
                    yield np.frombuffer(sink.take(), np.uint8)
        yield np.frombuffer(sink.take(), np.uint8)

    def _groups(self, files: ParquetFiles, path: str) -> Iterator[Any]:
        """Gives the groups of rows of a file. pyarrow's own threads are not used, because a process that is forked
        while they read hangs."""
        pyarrow = need_pyarrow(_NAME)
        with files.open(path) as file:
            for group in range(file.num_row_groups):
                files.begin_groups(path, group)
                if not file.metadata.row_group(group).num_rows:
                    continue
                try:
                    yield file.read_row_group(group, columns=self._of_files, use_threads=False)
                except pyarrow.ArrowException as error:
                    raise ValueError(
                        f"{_NAME}: group {group} of the rows of {path} cannot be decoded: {error}; the file is "
                        "damaged, so write it again"
                    ) from None

    def _schema(self, files: ParquetFiles, folders: dict[str, list[Any]]) -> Any:
        """Returns the columns of all files together, and of their folders."""
        pyarrow = need_pyarrow(_NAME)
        of_folders = {name: pyarrow.array(values).type for name, values in folders.items()}
        found: dict[str, Any] = {}
        first = ""
        for path in [path for path in self._files if _count_rows(files, path)] or self._files[:1]:
            mine = self._columns_of(files, path, of_folders)
            found = _unify_all(found, first, mine, path) if first else mine
            first = first or path
        found |= {name: kind for name, kind in of_folders.items() if self._columns is None or name in self._columns}
        names = found if self._columns is None else self._columns
        return pyarrow.schema([pyarrow.field(name, found[name]) for name in names])

    def _columns_of(self, files: ParquetFiles, path: str, of_folders: dict[str, Any]) -> dict[str, Any]:
        """Returns the types of the columns of a file that are wanted, by name."""
        with files.open(path) as file:
            schema = file.schema_arrow
        wanted = schema.names if self._columns is None else [one for one in self._columns if one not in of_folders]
        missing = [name for name in wanted if name not in schema.names]
        if missing:
            raise ValueError(f"{_NAME}: {path} has no column {missing[:3]}; it has {schema.names}")
        twice = [name for name in wanted if schema.names.count(name) > 1 or name in of_folders]
        if twice:
            raise ValueError(f"{_NAME}: {path} has two columns named {twice[0]!r}, one of which may be of a folder")
        return {name: schema.field(name).type for name in wanted}


def _count_rows(files: ParquetFiles, path: str) -> int:
    with files.open(path) as file:
        return int(file.metadata.num_rows)


def _unify_all(found: dict[str, Any], first: str, mine: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns the types of the columns of the files so far and of another one. Raises ValueError if they differ."""
    for here, there, file, other in ((found, mine, path, first), (mine, found, first, path)):
        if missing := [name for name in here if name not in there]:
            raise ValueError(
                f"{_NAME}: {file} has no column {missing[0]!r}, which {other} has, of type {here[missing[0]]}; name "
                "the columns that all files have (columns=)"
            )
    kinds = {name: unify(kind, mine[name]) for name, kind in found.items()}
    for name, kind in kinds.items():
        if kind is None:
            raise ValueError(
                f"{_NAME}: {path} has other columns than {first}: {name!r} is {mine[name]} there, and {found[name]} in "
                "the files before; write the files with one type"
            )
    return kinds


def _cast(path: str, table: Any, schema: Any) -> Any:
    pyarrow = need_pyarrow(_NAME)
    columns = []
    for field in schema:
        column = table.column(field.name)
        try:
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        except pyarrow.ArrowException as error:
            raise ValueError(
                f"{_NAME}: column {field.name!r} of {path} is {column.type}, and cannot be read as {field.type} of all "
                f"files: {error}"
            ) from None
    return pyarrow.table(columns, schema=schema)


def _values_of_folders(files: Sequence[str], names: Sequence[str]) -> dict[str, list[Any]]:
    """Returns for each column of folders (year=2024) the value of each file. Raises ValueError for a file without."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    for path in files:
        folders = dict(part.split("=", 1) for part in os.path.dirname(path).split(os.sep) if "=" in part)
        for name in names:
            if name not in folders:
                raise ValueError(
                    f"{_NAME}: {path} is in no folder named {name}=..., of which partitions={list(names)} should be"
                )
            value = urllib.parse.unquote(folders[name])
            found[name].append(None if value == _NULL_FOLDER else value)
    for name, values in found.items():
        if all(value is None or _INTEGER.fullmatch(value) for value in values) and any(values):
            found[name] = [None if value is None else int(value) for value in values]
    return found


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
