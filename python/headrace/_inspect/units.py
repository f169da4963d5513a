# SPDX-License-Identifier: Apache-2.0
"""Sizes and counts as texts, for messages."""

from __future__ import annotations


def in_units(count: float) -> str:
    """Returns a number of bytes as text, such as "1.5 MiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def count_workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
