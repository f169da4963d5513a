# SPDX-License-Identifier: Apache-2.0
"""Formats quantities for messages. The reports, the growth warning and the doctor call it."""

from __future__ import annotations


def in_units(count: float) -> str:
    """Formats a number of bytes with a unit that suits its size."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def in_duration(seconds: float) -> str:
    """Formats a duration in seconds, or in minutes from 100 s on."""
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def count_workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
