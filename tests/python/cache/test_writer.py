# SPDX-License-Identifier: Apache-2.0
"""headrace.cache.writer: an array that is filled piece by piece, and continued after a crash."""

from __future__ import annotations

import pathlib
from typing import Any

import headrace
import numpy as np
import pytest
from cache_scripts import Scripts, sleeping_in
from processes import until

SHAPE = (10, 3)
ROWS = np.arange(30.0).reshape(SHAPE)

pytestmark = pytest.mark.usefixtures("root")


def test_writer_fills_chunks_in_any_order() -> None:
    with headrace.cache.writer("rows", SHAPE, "f8", chunk=4) as writer:
        assert writer.missing() == [(0, 4), (4, 8), (8, 10)]
        writer[8:10] = ROWS[8:]
        assert writer.missing() == [(0, 4), (4, 8)]
        writer[2:6] = ROWS[2:6]
        writer[-4:8] = ROWS[6:8]
        assert writer.missing() == [(0, 4)]
        writer[0] = ROWS[0]
        writer[1] = ROWS[1]
        assert writer.missing() == []
    np.testing.assert_array_equal(writer.array, ROWS)
    np.testing.assert_array_equal(headrace.cache("rows"), ROWS)


def test_complete_array_has_nothing_missing() -> None:
    for _ in range(2):
        with headrace.cache.writer("rows", SHAPE, "f8") as writer:
            for start, stop in writer.missing():
                writer[start:stop] = ROWS[start:stop]
        np.testing.assert_array_equal(writer.array, ROWS)
    with headrace.cache.writer("rows", SHAPE, "f8") as writer:
        with pytest.raises(headrace.CacheError, match="is not being written"):
            writer[0] = 1


def test_another_shape_replaces_the_array() -> None:
    for shape in (SHAPE, (4, 2)):
        with headrace.cache.writer("rows", shape, "f8") as writer:
            writer[:] = 1
    assert headrace.cache("rows").shape == (4, 2)


def test_empty_arrays_can_be_written() -> None:
    for number, shape in enumerate([(0, 5), (5, 0)]):
        with headrace.cache.writer(f"empty-{number}", shape, "i4") as writer:
            for start, stop in writer.missing():
                writer[start:stop] = 0
        assert writer.array.shape == shape


def test_missing_rows_are_named_and_the_rest_is_kept() -> None:
    with pytest.raises(ValueError, match="2 of 3 chunks are missing, the first one has the rows 4 to 8"):
        with headrace.cache.writer("rows", SHAPE, "f8", chunk=4) as writer:
            writer[:6] = ROWS[:6]
    with headrace.cache.writer("rows", SHAPE, "f8", chunk=4) as writer:
        assert writer.missing() == [(4, 8), (8, 10)]
        writer[4:] = ROWS[4:]
    np.testing.assert_array_equal(writer.array, ROWS)


def test_exception_keeps_complete_chunks() -> None:
    with pytest.raises(ZeroDivisionError):
        with headrace.cache.writer("rows", SHAPE, "f8", chunk=4) as writer:
            writer[:4] = ROWS[:4]
            raise ZeroDivisionError
    with headrace.cache.writer("rows", SHAPE, "f8", chunk=4) as writer:
        assert writer.missing() == [(4, 8), (8, 10)]
        writer[4:] = ROWS[4:]


def test_killed_writer_is_continued(scripts: Scripts) -> None:
    process = scripts.start("""
    with headrace.cache.writer("rows", (10, 3), "f8", chunk=4) as writer:
        writer[4:8] = np.arange(12.0, 24.0).reshape(4, 3)
        writer[8:9] = 5
        note("up")
        await_("never")
    """)
    scripts.await_("up")
    process.kill()
    process.communicate()
    with headrace.cache.writer("rows", SHAPE, "f8", chunk=4) as writer:
        assert writer.missing() == [(0, 4), (8, 10)]
        for start, stop in writer.missing():
            writer[start:stop] = ROWS[start:stop]
    np.testing.assert_array_equal(writer.array, ROWS)


def test_disk_array_is_written(tmp_path: pathlib.Path) -> None:
    with headrace.cache.writer("rows", SHAPE, ">i2", root=tmp_path, chunk=3) as writer:
        writer[:] = ROWS.astype(int)
    assert writer.array.dtype == ">i2"
    np.testing.assert_array_equal(writer.array, ROWS)


@pytest.mark.parametrize(
    ("shape", "dtype", "chunk", "error", "text"),
    [
        ((-1, 3), "f8", None, ValueError, "no negative size"),
        ((), "f8", None, ValueError, "at least one dimension"),
        ("abc", "f8", None, TypeError, "tuple of ints"),
        (5, "float3", None, TypeError, "writer: dtype is 'float3', which numpy refuses .*; give one such as"),
        ((3,), object, None, TypeError, "cannot be shared"),
        ((3,), [("a", "i4")], None, TypeError, "cannot be shared"),
        ((1 << 40, 1 << 40), "f8", None, ValueError, "too large"),
        ((3,), "f8", 0, ValueError, "1 or more"),
        ((3,), "f8", 1.5, ValueError, "1 or more"),
    ],
)
def test_writer_refuses_bad_arguments(shape: Any, dtype: Any, chunk: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        headrace.cache.writer("rows", shape, dtype, chunk=chunk)


def test_writer_refuses_bad_rows() -> None:
    with pytest.raises(ValueError, match="chunks are missing"):
        with headrace.cache.writer("rows", SHAPE, "f8") as writer:
            with pytest.raises(IndexError, match="row 10 is out of range"):
                writer[10] = 1
            with pytest.raises(ValueError, match="without a step"):
                writer[::2] = 1
            with pytest.raises(ValueError, match="broadcast"):
                writer[0:2] = np.zeros((3, 3))


def test_failed_writer_reaches_those_that_wait(scripts: Scripts) -> None:
    writing = scripts.start("""
    with headrace.cache.writer("rows", (4, 2), "f8") as writer:
        note("up")
        await_("go")
        raise OSError("the disk of the source is gone")
    """)
    scripts.await_("up")
    waiting = scripts.start("""
    try:
        headrace.cache.writer("rows", (4, 2), "f8").__enter__()
    except OSError as error:
        print(error)
    """)
    assert until(lambda: "nanosleep" in sleeping_in(waiting.pid), 60)
    scripts.note("go")
    scripts.end(writing, 1)
    assert "the disk of the source is gone" in scripts.end(waiting)[0]
