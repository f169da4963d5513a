# SPDX-License-Identifier: Apache-2.0
"""Counts the images that were made in C, and those that were left to Pillow and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import PIL

_made = 0
_read_bytes = 0
_left: Counter[str] = Counter()


@dataclass(frozen=True)
class Counts:
    """The result of `images.report`; print it."""

    made: int  # images whose pixels were made in C
    read_bytes: int  # of JPEG files that were read for that
    left: dict[str, int] = field(default_factory=dict)  # images left to Pillow, by reason
    pillow: str = PIL.__version__  # pixels change with it

    def __str__(self) -> str:
        lines = [f"{self.made} images made in C, of {self.read_bytes / 2**20:.1f} MiB of files (Pillow {self.pillow})"]
        lines += [f"{count} left to Pillow: {reason}" for reason, count in sorted(self.left.items())]
        return "\n".join(lines)


def made(count: int = 1) -> None:
    global _made
    _made += count


def has_read(count_bytes: int) -> None:
    global _read_bytes
    _read_bytes += count_bytes


def leave(reason: str) -> None:
    _left[reason] += 1


def report() -> Counts:
    """Returns what headrace.images did in this process so far. Workers count for themselves: call it in the dataset, or
    use a loader with num_workers=0, to see what becomes of the images there."""
    return Counts(_made, _read_bytes, dict(_left))
