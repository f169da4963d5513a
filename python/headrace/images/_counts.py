# SPDX-License-Identifier: Apache-2.0
"""Counts, in this process, the images that were made in C, and those that were left to Pillow and why."""

from __future__ import annotations

from collections import Counter

_made = 0
_left: Counter[str] = Counter()


def made(count: int = 1) -> None:
    global _made
    _made += count


def leave(reason: str) -> None:
    _left[reason] += 1


def read() -> tuple[int, dict[str, int]]:
    """Returns the number of images made in C, and the numbers left to Pillow by reason."""
    return _made, dict(_left)


def reset() -> None:
    global _made
    _made = 0
    _left.clear()
