# SPDX-License-Identifier: Apache-2.0
"""headrace.cache.writer: fills an array of the cache piece by piece. After a crash, the next process continues with the
chunks that are missing."""

from __future__ import annotations

import operator
import pickle
from types import TracebackType
from typing import Any

from headrace import _core
from headrace._base.raising import Sent, traceback_of
from headrace._cache import attached, building, contents, opening

_CHUNK_BYTES = 32 << 20


def _check_shape(shape: Any) -> tuple[int, ...]:
    try:
        sizes = (operator.index(shape),) if not isinstance(shape, (tuple, list)) else tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"headrace.cache.writer: shape is a tuple of ints, not {shape!r}") from None
    if not sizes or min(sizes) < 0:
        raise ValueError(f"headrace.cache.writer: shape is {sizes}; give at least one dimension, and no negative size")
    return sizes


def _check_dtype(dtype: Any) -> Any:
    found = opening.check_dtype(dtype, "writer")
    if found.hasobject or found.names is not None or found.itemsize == 0:
        raise TypeError(
            f"headrace.cache.writer: an array of dtype {found} cannot be shared; use numbers, or strings of fixed size "
            "('U16', 'S16')"
        )
    return found


class _Rows:
    """The rows of one chunk that have been written: sorted intervals that do not touch."""

    def __init__(self) -> None:
        self.intervals: list[tuple[int, int]] = []

    def add(self, start: int, stop: int) -> None:
        kept = []
        for begin, end in self.intervals:
            if end < start or stop < begin:
                kept.append((begin, end))
            else:
                start, stop = min(start, begin), max(stop, end)
        self.intervals = sorted([*kept, (start, stop)])

    def covers(self, start: int, stop: int) -> bool:
        return self.intervals == [(start, stop)]


class Writer:
    """An array of the cache that is being written; headrace.cache.writer makes it.

    with headrace.cache.writer("features", (len(dataset), 512), "float32") as w:
        for start, stop in w.missing():
            w[start:stop] = compute(start, stop)
    features = w.array

    missing(): the rows that are not complete, as (start, stop), in chunks. If another process writes the array already,
    entering the with statement waits for it, and nothing is missing then. w[a:b] = x writes rows; a chunk whose rows
    are all written survives the death of this process. The end of the with statement publishes the array, and raises
    ValueError if rows are missing. If the with statement ends with an exception, complete chunks are kept for the next
    process.
    """

    def __init__(
        self, cache: _core.Cache, name: str, shape: Any, dtype: Any, version: str, chunk: Any, keep: int, timeout: Any
    ) -> None:
        self.shape = _check_shape(shape)
        self.dtype = _check_dtype(dtype)
        self.array: Any = None  # the whole array, read-only, after the with statement
        self._cache, self._name, self._version, self._keep, self._timeout = cache, name, version, keep, timeout
        self._row_bytes: int = self.dtype.itemsize
        for size in self.shape[1:]:
            self._row_bytes *= size
        if self._row_bytes * self.shape[0] >= 1 << 62:
            raise ValueError(
                f"headrace.cache.writer: an array of shape {self.shape} and dtype {self.dtype} is too large"
            )
        self._chunk_rows = self._check_chunk(chunk)
        self._rows: dict[int, _Rows] = {}
        self._build: _core.CacheBuild | None = None

    def _check_chunk(self, chunk: Any) -> int:
        if chunk is None:
            return max(1, _CHUNK_BYTES // max(1, self._row_bytes))
        if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
            raise ValueError(
                f"headrace.cache.writer: chunk is {chunk!r}; give the number of rows of a chunk, 1 or more"
            )
        return chunk

    def _ask(self) -> Any:
        meta = contents.meta_of_array(self.dtype, self.shape)
        ticket = self._cache.ask(self._name, self._version, meta, "rows", self._keep)
        return building.await_object(ticket, self._name, self._timeout)

    def __enter__(self) -> Writer:
        found = self._ask()
        if not isinstance(found, _core.CacheBuild):
            self._take(found)
            return self
        meta = contents.meta_of_array(self.dtype, self.shape)
        try:
            found.reserve(self._row_bytes * self.shape[0], max(1, self._row_bytes * self._chunk_rows), meta)
        except BaseException as error:
            found.fail(pickle.dumps(Sent.of(error, traceback_of(error))), False)
            raise
        self._build = found
        building.push(found)
        return self

    def _take(self, cached: _core.Cached) -> None:
        self.array = attached.value_of(self._cache, attached.adopt(self._cache, cached))

    def _bounds(self, chunk: int) -> tuple[int, int]:
        start = chunk * self._chunk_rows
        return start, min(start + self._chunk_rows, int(self.shape[0]))

    def missing(self) -> list[tuple[int, int]]:
        """Returns (start, stop) of the rows of each chunk that is not complete."""
        if self._build is None:
            return []
        return [self._bounds(chunk) for chunk in range(self._build.chunks) if not self._build.has(chunk)]

    def _rows_of(self, index: Any) -> tuple[int, int]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self.shape[0])
            if step != 1:
                raise ValueError("headrace.cache.writer: give a slice of rows without a step, w[start:stop]")
            return start, max(start, stop)
        row = operator.index(index)
        if not -self.shape[0] <= row < self.shape[0]:
            raise IndexError(f"headrace.cache.writer: row {row} is out of range, there are {self.shape[0]}")
        return row % self.shape[0], row % self.shape[0] + 1

    def __setitem__(self, index: Any, value: Any) -> None:
        import numpy as np

        if self._build is None:
            raise _core.CacheError(f"headrace: '{self._name}' is not being written: it is complete, or was closed")
        start, stop = self._rows_of(index)
        wanted = (stop - start, *self.shape[1:]) if isinstance(index, slice) else self.shape[1:]
        rows = np.broadcast_to(np.asarray(value), wanted)
        data = np.ascontiguousarray(rows, dtype=self.dtype)
        self._build.write(start * self._row_bytes, contents.bytes_of(data))
        self._mark(start, stop)

    def _mark(self, start: int, stop: int) -> None:
        assert self._build is not None
        for chunk in range(start // self._chunk_rows, -(-stop // self._chunk_rows)):
            begin, end = self._bounds(chunk)
            rows = self._rows.setdefault(chunk, _Rows())
            rows.add(max(start, begin), min(stop, end))
            if rows.covers(begin, end) and self._row_bytes:
                self._build.mark(chunk)
        if self._build.chunks:
            self._build.progress(sum(map(self._build.has, range(self._build.chunks))), self._build.chunks)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        build, self._build = self._build, None
        if build is None:
            return
        building.pop()
        if error is not None and not isinstance(error, Exception):
            build.abandon()
            return
        if error is None:
            error = self._finish(build)
        if error is not None:
            build.fail(pickle.dumps(Sent.of(error, traceback_of(error))), True)
            if kind is None:
                raise error

    def _finish(self, build: _core.CacheBuild) -> Exception | None:
        missing = [self._bounds(chunk) for chunk in range(build.chunks) if not build.has(chunk)]
        if missing:
            start, stop = missing[0]
            return ValueError(
                f"headrace.cache.writer: '{self._name}' is not complete: {len(missing)} of {build.chunks} chunks are "
                f"missing, the first one has the rows {start} to {stop}. What is complete is kept; write the rest in "
                "another with statement"
            )
        try:
            self._take(build.finish(None))
        except Exception as error:
            return error
        return None
