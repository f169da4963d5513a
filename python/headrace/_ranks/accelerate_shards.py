# SPDX-License-Identifier: Apache-2.0
"""Finds out whether accelerate deals what a sampler gives to its processes. The samplers of ranks use it.

accelerate's prepare() wraps the batch sampler of each loader to deal its batches, whatever the sampler is. Its classes
are found in the calls that lead to the sampler.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

_DEPTH = 30  # frames between accelerate's iterator and the sampler: about 10


class Dealing(NamedTuple):
    """accelerate deals to so many processes: whole batches, or parts of batches that one process has made."""

    processes: int
    is_whole_batches: bool


def find() -> Dealing | None:
    """Returns how accelerate deals what the calling sampler gives, or None."""
    accelerate = sys.modules.get("accelerate.data_loader")
    frame: Any = None if accelerate is None else sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return None
        # Of other frames nothing is read: until Python 3.12 they would keep a copy of their variables, with the loader.
        is_of_accelerate = frame.f_globals is vars(accelerate)
        found = _of_owner(accelerate, frame.f_locals.get("self")) if is_of_accelerate else None
        if found is not None and found.processes > 1:
            return found
        frame = frame.f_back
    return None


def _of_owner(accelerate: Any, owner: Any) -> Dealing | None:
    """Returns how an object of accelerate deals batches, or None for other objects."""
    if type(owner) is getattr(accelerate, "BatchSamplerShard", None):
        return Dealing(int(owner.num_processes), not owner.split_batches)
    if type(owner) is getattr(accelerate, "DataLoaderDispatcher", None):
        return Dealing(int(owner.state.num_processes), False)
    return None
