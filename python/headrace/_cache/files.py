# SPDX-License-Identifier: Apache-2.0
"""Cached array files: a Mapping from the stem of each file to its array, or to a Mapping of arrays for a .npz file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from headrace import _core


def _text(name: bytes) -> str:
    return os.fsdecode(name)


class _Arrays(Mapping[str, Any]):
    """The base of both kinds of mappings: reads arrays of an object by their numbers."""

    def __init__(self, cached: _core.Cached) -> None:
        self._cached = cached

    def _array(self, number: int) -> Any:
        import numpy as np

        _, _, dtype, shape, is_fortran, offset, size = _core.files_read(self._cached, number)
        found = np.dtype(dtype)
        if math.prod(shape) * found.itemsize != size:
            raise _core.CacheError("headrace: an array of the cache does not have the size of its shape; warm it again")
        order: Any = "F" if is_fortran else "C"
        return np.ndarray(shape, found, buffer=self._cached, offset=offset, order=order)  # type: ignore[arg-type]


class Members(_Arrays):
    """The arrays of a .npz file by the names of its members."""

    def __init__(self, cached: _core.Cached, first: int, count: int) -> None:
        super().__init__(cached)
        self._numbers = {
            _text(_core.files_read(cached, number)[1] or b""): number for number in range(first, first + count)
        }

    def __getitem__(self, name: str) -> Any:
        return self._array(self._numbers[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return f"<the arrays {', '.join(self._numbers)} of a file in the cache>"


class Files(_Arrays):
    """The arrays of files by the stems of their names: files["scene0685_01_obj_feat"]. Worker processes get it as
    a handle."""

    handle: tuple[str, str, str, str] | None = None

    def __getitem__(self, stem: str) -> Any:
        found = _core.files_find(self._cached, os.fsencode(stem)) if isinstance(stem, str) else None
        if found is None:
            raise KeyError(stem)
        first, count = found
        is_member = _core.files_read(self._cached, first)[1] is not None
        return Members(self._cached, first, count) if is_member else self._array(first)

    def __iter__(self) -> Iterator[str]:
        before = None
        for number in range(_core.files_count(self._cached)):
            stem = _core.files_read(self._cached, number)[0]
            if stem != before:
                yield _text(stem)
            before = stem

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, stem: object) -> bool:
        return isinstance(stem, str) and _core.files_find(self._cached, os.fsencode(stem)) is not None

    def __repr__(self) -> str:
        info = self._cached.info()
        return f"<{_core.files_count(self._cached)} arrays of files in the cache as '{info['name']}'>"
