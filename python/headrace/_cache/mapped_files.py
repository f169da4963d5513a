# SPDX-License-Identifier: Apache-2.0
"""Names the values of an array that is a file on a disk, without reading it: by the file, and the place in it."""

from __future__ import annotations

import os
import sys
from typing import Any


def place_of(array: Any) -> tuple[Any, ...] | None:
    """Returns what identifies the values of a numpy.memmap, if it is certain that they are those of the file which has
    the name now: a read-only mapping of the same inode. Otherwise None."""
    np = sys.modules["numpy"]
    if type(array) is not np.memmap or array.mode != "r" or array.flags.writeable or not array.filename:
        return None
    try:
        mapped = _mapping_at(array.__array_interface__["data"][0])
        path = os.path.realpath(array.filename)
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    if mapped is None or mapped[0] != info.st_ino or mapped[1] != info.st_dev:
        return None
    return path, info.st_size, info.st_mtime_ns, info.st_ino, mapped[2]


def _mapping_at(address: int) -> tuple[int, int, int] | None:
    """Returns the inode and the device of the file that is mapped at an address, and the place in the file."""
    with open("/proc/self/maps") as file:
        for line in file:
            span, _, offset, device, inode = line.split()[:5]
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= address < end:
                major, minor = (int(part, 16) for part in device.split(":"))
                return int(inode), os.makedev(major, minor), int(offset, 16) + address - start
    return None
