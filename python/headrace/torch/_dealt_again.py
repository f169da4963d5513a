# SPDX-License-Identifier: Apache-2.0
"""Recognises that accelerate deals the part of one rank to its processes again. The samplers of ranks use it.

accelerate's prepare() wraps the batch sampler of each loader to deal its batches, whatever the sampler is. If the
sampler has dealt already, each process gets a part of a part, and most samples of the epoch are never seen.
"""

from __future__ import annotations

import sys
from typing import Any

_DEPTH = 30  # frames between accelerate's iterator and the sampler: about 10


def check(sampler: Any) -> None:
    """Raises RuntimeError if accelerate deals the entries of a sampler, which is about to be iterated, a second time.
    `sampler` has a part of several ranks, or the whole order if its num_replicas is 1."""
    accelerate = sys.modules.get("accelerate.data_loader")
    if accelerate is None or sampler.num_replicas == 1:
        return
    frame: Any = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return
        processes = _count_processes(accelerate, frame.f_locals.get("self"))
        if processes > 1:
            raise RuntimeError(describe(sampler, processes))
        frame = frame.f_back


def _count_processes(accelerate: Any, owner: Any) -> int:
    """Returns to how many processes an object of accelerate deals batches, or 0 for other objects."""
    if type(owner) is getattr(accelerate, "BatchSamplerShard", None):
        return int(owner.num_processes)
    if type(owner) is getattr(accelerate, "DataLoaderDispatcher", None):
        return int(owner.state.num_processes)
    return 0


def describe(sampler: Any, processes: int) -> str:
    """Returns the text of the error for a sampler whose part is dealt to so many processes again."""
    return (
        f"headrace: {type(sampler).__name__} gives each rank its part, and accelerate's prepare() deals this part to "
        f"its {processes} processes again, so most samples would never be seen; call headrace.torch.install() before "
        "prepare(), which leaves the sampler as it is, or do not pass the loader to prepare(), or let accelerate deal: "
        "give the loader the sampler without per_rank, or make this one with num_replicas=1, rank=0"
    )
