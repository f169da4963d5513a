# SPDX-License-Identifier: Apache-2.0
"""Sends arrays over a file that NumPy has mapped to other processes as the path of the file."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass
from typing import Any, Literal

from headrace._base.help_key import help_on

# The modes of NumPy in which a map is shared, and the mode that maps the same file again. "w+" would empty it.
_MODES: dict[str, Literal["r", "r+"]] = {"r": "r", "r+": "r+", "w+": "r+"}


@dataclass(frozen=True)
class MappedArray:
    """The handle of an array over a mapped file."""

    path: str
    stamp: tuple[int, ...]  # see _stamp_of
    mode: Literal["r", "r+"]
    offset: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def open(self) -> Any:
        """Maps the file again. Raises OSError if it is another one now."""
        import numpy as np

        if _stamp_of(self.path, self.mode) != self.stamp:
            raise OSError(
                errno.ESTALE,
                f"Arrays: {self.path} was changed or replaced since the array was mapped; open it again, and do not "
                "write to files that are in use" + help_on("source-changed"),
            )
        mapped: Any = np.memmap(self.path, np.uint8, self.mode)
        return np.ndarray(self.shape, self.dtype, mapped, self.offset, self.strides)


def _stamp_of(path: str, mode: str) -> tuple[int, ...]:
    """Returns what shows that a file is still the same. Writing through a map changes its time."""
    info = os.stat(path)
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns if mode == "r" else 0


def handle_of(array: Any) -> MappedArray | None:
    """Returns the handle of an array over a file that is mapped and shared; None: its content has to be sent, also
    because another file has the path now."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(array) is not numpy.ndarray:
        return None
    root: Any = array
    while isinstance(root.base, numpy.ndarray):
        root = root.base
    if not isinstance(root, numpy.memmap) or root.mode not in _MODES or not root.filename:
        return None
    path = os.path.abspath(os.fspath(root.filename))
    try:
        mode = _MODES[root.mode]
        stamp = _stamp_of(path, mode)
        is_mapped = _mapped_path(_address_of(root)) == os.path.realpath(path)
    except OSError:
        return None
    if not is_mapped:
        return None
    offset = root.offset + _address_of(array) - _address_of(root)
    return MappedArray(path, stamp, mode, offset, array.dtype, array.shape, array.strides)


def _mapped_path(address: int) -> str:
    """Returns the path that the file mapped at an address has now, or "". A file that was deleted or replaced has
    " (deleted)" behind it."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            begin, end = line.split(" ", 1)[0].split("-")
            if int(begin, 16) <= address < int(end, 16):
                return [*line.rstrip("\n").split(maxsplit=5), ""][5]
    return ""


def _address_of(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
