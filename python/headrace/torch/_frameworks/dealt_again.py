# SPDX-License-Identifier: Apache-2.0
"""Recognises that accelerate deals the part of one rank to its processes again. The samplers of ranks use it.

accelerate's prepare() wraps the batch sampler of each loader to deal its batches, whatever the sampler is. If the
sampler has dealt already, each process gets a part of a part, and most samples of the epoch are never seen.
"""

from __future__ import annotations

from typing import Any

from headrace._base.help_key import help_on
from headrace._ranks import accelerate_shards


def check(sampler: Any) -> None:
    """Raises RuntimeError if accelerate deals the entries of a sampler, which is about to be iterated, a second time.
    `sampler` has a part of several ranks, or the whole order if its num_replicas is 1."""
    dealing = accelerate_shards.find() if sampler.num_replicas != 1 else None
    if dealing is not None:
        raise RuntimeError(describe(sampler, dealing.processes))


def describe(sampler: Any, processes: int) -> str:
    """Returns the text of the error for a sampler whose part is dealt to so many processes again."""
    return (
        f"headrace: {type(sampler).__name__} gives each rank its part, and accelerate's prepare() deals this part to "
        f"its {processes} processes again, so most samples would never be seen; call headrace.torch.install() before "
        "prepare(), which leaves the sampler as it is, or do not pass the loader to prepare(), or let accelerate deal: "
        "give the loader the sampler without per_rank, or make this one with num_replicas=1, rank=0"
        + help_on("accelerate")
    )
