# SPDX-License-Identifier: Apache-2.0
"""Other values of Python's standard library: paths, UUIDs, ranges, slices, regular expressions, arrays of numbers."""

from __future__ import annotations

import array
import pathlib
import re
import uuid
from typing import Any

from headrace.frozen.types.row import Row

_PATHS = (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.WindowsPath)


def _path_parts(value: pathlib.PurePath) -> Any:
    return (type(value).__name__, str(value))


def _make_path(parts: Any) -> Any:
    return {cls.__name__: cls for cls in _PATHS}[parts[0]](parts[1])


def _make_pattern(parts: Any) -> Any:
    return re.compile(parts[0], parts[1] & ~re.DEBUG)  # with DEBUG, compiling prints


def _make_array(parts: Any) -> Any:
    made = array.array(parts[0])
    made.frombytes(parts[1])
    return made


def _limits(value: Any) -> Any:
    return (value.start, value.stop, value.step)


ROWS = (
    *(Row(cls, "Path", _path_parts, _make_path) for cls in _PATHS),
    Row(uuid.UUID, "UUID", lambda value: value.bytes, lambda parts: uuid.UUID(bytes=parts)),
    Row(range, "range", _limits, lambda parts: range(*parts)),
    Row(slice, "slice", _limits, lambda parts: slice(*parts)),
    Row(type(...), "Ellipsis", lambda value: (), lambda parts: ...),
    Row(type(NotImplemented), "NotImplemented", lambda value: (), lambda parts: NotImplemented),
    Row(re.Pattern, "Pattern", lambda value: (value.pattern, value.flags), _make_pattern),
    Row(array.array, "array", lambda value: (value.typecode, value.tobytes()), _make_array),
)
