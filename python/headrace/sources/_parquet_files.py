# SPDX-License-Identifier: Apache-2.0
"""Opens Parquet files for pyarrow: files of this machine, and remote objects, of which only the footers and the columns
that are asked for are fetched. sources.Parquet decodes them."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headrace import _core
from headrace._remote.addresses import is_remote
from headrace.sources._arrow import need_pyarrow

_THREADS = 8  # that fetch parts of remote objects
_PART_BYTES = 4 << 20  # of a request
_FOOTER_BYTES = 64 << 10  # that pyarrow reads at the end of a file
_FOOTERS_AHEAD = 32
_GROUPS_AHEAD = 1  # of rows, whose columns are fetched before they are read


class ParquetFiles:
    """Files that are opened by their paths, until the end of a with statement. columns: the names of those that are
    read; None: all."""

    def __init__(self, paths: Sequence[str], name: str, columns: Sequence[str] | None) -> None:
        self._name, self._columns = name, columns
        self._remote = {path: number for number, path in enumerate(filter(is_remote, dict.fromkeys(paths)))}
        self._metadata: dict[str, Any] = {}  # of remote objects, whose footers are read once
        self._parts = _Parts(list(self._remote)) if self._remote else None
        self._footers = 0  # of so many objects were asked for

    def __enter__(self) -> ParquetFiles:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._parts is not None:
            self._parts.close(waits=kind is None)

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[Any]:
        """Opens a file for pyarrow, which does not take each name that a file may have."""
        pyarrow = need_pyarrow(self._name)
        # Without pre_buffer, pyarrow reads each column of a group as a whole, as it was begun, and in this thread.
        given = {"metadata": self._metadata.get(path), "pre_buffer": False} if path in self._remote else {}
        with self._data_of(path) as data:
            try:
                file = pyarrow.parquet.ParquetFile(data, **given)
            except pyarrow.ArrowException as error:
                raise ValueError(f"{self._name}: {path} is no Parquet file, or it is damaged: {error}") from None
            if path in self._remote:
                self._metadata[path] = file.metadata
            yield file

    def _data_of(self, path: str) -> Any:
        if self._parts is None or path not in self._remote:
            return open(path, "rb")
        number = self._remote[path]
        while self._footers < min(number + _FOOTERS_AHEAD, len(self._remote)):
            size = self._parts.size(self._footers)
            self._parts.begin(self._footers, max(0, size - _FOOTER_BYTES), min(size, _FOOTER_BYTES))
            self._footers += 1
        return _RemoteFile(self._parts, number)

    def begin_groups(self, path: str, group: int) -> None:
        """Begins to fetch the columns of a group of rows, and of the next one, if the file is remote and open."""
        if self._parts is None or path not in self._remote:
            return
        metadata = self._metadata[path]
        first = 0 if group == 0 else group + _GROUPS_AHEAD
        for one in range(first, min(group + _GROUPS_AHEAD + 1, metadata.num_row_groups)):
            for at, count in self._chunks_of(metadata.row_group(one)):
                self._parts.begin(self._remote[path], at, count)

    def _chunks_of(self, group: Any) -> Iterator[tuple[int, int]]:
        """Gives where the columns of a group are, that are read."""
        for place in range(group.num_columns):
            column = group.column(place)
            if self._columns is None or column.path_in_schema.partition(".")[0] in self._columns:
                pages = [column.data_page_offset]
                pages += [column.dictionary_page_offset] if column.has_dictionary_page else []
                yield min(page for page in pages if page is not None), column.total_compressed_size


class _Parts:
    """Parts of remote objects, which threads fetch. What is begun and not read is dropped at the end."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._objects = _core.Objects(tuple(os.fsencode(path) for path in paths))
        self._threads = ThreadPoolExecutor(_THREADS, "headrace-parquet")
        self._begun: dict[tuple[int, int], tuple[int, list[Future[bytes]]]] = {}

    def size(self, number: int) -> int:
        return self._objects.size(number)

    def begin(self, number: int, at: int, count: int) -> None:
        """Begins to fetch a part that is read soon, from its beginning on."""
        if 0 <= at < at + count <= self.size(number) and (number, at) not in self._begun:
            self._begun[number, at] = count, self._fetch(number, at, count)

    def read(self, number: int, at: int, count: int) -> bytes:
        """Returns bytes within an object. Raises OSError."""
        begun, futures = self._begun.pop((number, at), (0, []))
        if begun < count:
            futures += self._fetch(number, at + begun, count - begun)
        data = b"".join([future.result() for future in futures])
        return data if len(data) == count else data[:count]

    def _fetch(self, number: int, at: int, count: int) -> list[Future[bytes]]:
        places = range(at, at + count, _PART_BYTES)
        read = self._objects.read_part
        return [self._threads.submit(read, number, one, min(_PART_BYTES, at + count - one)) for one in places]

    def close(self, waits: bool) -> None:
        """Ends the threads, also those that wait for a server: otherwise the process would not end before them. waits:
        until they have ended."""
        self._begun.clear()
        self._objects.stop()
        self._threads.shutdown(wait=waits, cancel_futures=True)


class _RemoteFile(io.RawIOBase):
    """A remote object as pyarrow reads it."""

    def __init__(self, parts: _Parts, number: int) -> None:
        self._parts, self._number = parts, number
        self._size, self._at = parts.size(number), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def read(self, count: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        count = left if count is None or count < 0 else min(count, left)
        data = self._parts.read(self._number, self._at, count) if count else b""
        self._at += count
        return data
