# SPDX-License-Identifier: Apache-2.0
"""Makes fork cheap: it copies a table entry for each page of memory, which are 40,000 once torch is imported. For
memory in huge pages it copies one entry for 512 of these pages. Linux has the call since 6.1."""

from __future__ import annotations

import ctypes
import pathlib
import re

_HUGE = 1 << 21  # bytes
_MADV_COLLAPSE = 25
_ANONYMOUS = re.compile(r"^(\w+)-(\w+) rw-p \S+ 00:00 0(?: +\[heap\])?$", re.MULTILINE)
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def collapse() -> None:
    """Moves the memory of this process into huge pages, as far as the kernel can."""
    for match in _ANONYMOUS.finditer(pathlib.Path("/proc/self/maps").read_text()):
        first, end = (int(number, 16) for number in match.groups())
        for at in range(-(-first // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
            _madvise(at, _HUGE, _MADV_COLLAPSE)  # what cannot be moved stays where it is
