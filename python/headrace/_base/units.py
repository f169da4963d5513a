# SPDX-License-Identifier: Apache-2.0
"""Formats quantities for messages, and reads sizes that users give. The reports, the growth warning, the doctor and the
cache call it."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def in_units(count: float) -> str:
    """Formats a number of bytes with a unit that suits its size."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def size_of(size: object, what: str) -> int:
    """Returns a number of bytes, given as an int or as a text such as "40G". Raises ValueError or TypeError."""
    if isinstance(size, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", size.strip(), re.IGNORECASE)
        if match is None:
            raise ValueError(f'{what} is {size!r}; give a number of bytes, or a text such as "40G"')
        size = float(match[1]) * _UNITS[match[2].upper()]
    if isinstance(size, bool) or not isinstance(size, (int, float)):
        raise TypeError(f'{what} is a number of bytes or a text such as "40G", not {size!r}')
    if not 0 <= size < 1 << 62:
        raise ValueError(f"{what} is {size:.4g}; give 0 or more bytes, and fewer than 4 EiB")
    return int(size)


def in_duration(seconds: float) -> str:
    """Formats a duration in seconds, or in minutes from 100 s on."""
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def count_workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
