# SPDX-License-Identifier: Apache-2.0
"""Counts the images that were made in C, and those that were left to Pillow and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import PIL

from headrace._samples import image_counts
from headrace._samples.image_counts import add_alone as made_alone
from headrace._samples.image_counts import add_left as leave
from headrace._samples.image_counts import add_made as made
from headrace._samples.image_counts import add_read as has_read

__all__ = ["Counts", "has_made", "has_read", "leave", "made", "made_alone", "report"]


@dataclass(frozen=True)
class Counts:
    """The result of `images.report`; print it."""

    made: int  # images whose pixels were made in C
    read_bytes: int  # of JPEG files that were read for that
    left: dict[str, int] = field(default_factory=dict)  # images left to Pillow, by reason
    # Of those made in C: images that a loader made one by one, by the place in the code that looks at them.
    alone: dict[str, int] = field(default_factory=dict)
    pillow: str = PIL.__version__  # pixels change with it

    def __str__(self) -> str:
        lines = [f"{self.made} images made in C, of {self.read_bytes / 2**20:.1f} MiB of files (Pillow {self.pillow})"]
        lines += [f"{count} left to Pillow: {reason}" for reason, count in sorted(self.left.items())]
        lines += [f"{count} made one by one, without threads: {place} uses them" for place, count in self.alone.items()]
        return "\n".join(lines)


def has_made(count: int) -> None:
    """Counts the images that were made in the memory of a batch, before the trainer can have it."""
    made(count)
    image_counts.post()


def report(loader: Any = None) -> Counts:
    """Returns what headrace.images did so far: in this process, or for a `loader` of headrace in all workers of its
    newest iterator (with num_workers=0 in this process).

    Raises RuntimeError if the loader has workers and was not iterated, and TypeError for other loaders, whose workers
    do not count for the trainer.
    """
    if loader is None or getattr(loader, "num_workers", None) == 0:
        return Counts(image_counts.made, image_counts.read_bytes, dict(image_counts.left), dict(image_counts.alone))
    if not hasattr(loader, "report"):
        raise TypeError(
            f"headrace.images.report: give a DataLoader of headrace.torch, not {type(loader).__name__}; the workers of "
            "other loaders count for themselves: call images.report() in the dataset"
        )
    return Counts(**loader.report()["images"])
