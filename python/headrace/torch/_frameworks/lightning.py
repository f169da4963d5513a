# SPDX-License-Identifier: Apache-2.0
"""Lightning's wrapper of batch samplers, by which its `predict` learns the indices of each batch.

The wrapper gives the batches of the batch sampler in it, and keeps them in a list. A loader that knows this batch
sampler draws from it without the wrapper, and puts the batches into the list.
"""

from __future__ import annotations

import sys
from typing import Any

from headrace.sampling._epoch_indices import Drawn, EpochIndices

_MODULES = ("lightning.pytorch.overrides.distributed", "pytorch_lightning.overrides.distributed")
_NAME = "_IndexBatchSamplerWrapper"


def wrapped_by_lightning(batch_sampler: Any) -> Any:
    """Returns the batch sampler that Lightning has wrapped, or None if this is no such wrapper."""
    kinds = [getattr(sys.modules.get(name), _NAME, None) for name in _MODULES]
    is_wrapper = any(type(batch_sampler) is kind for kind in kinds)
    return getattr(batch_sampler, "_batch_sampler", None) if is_wrapper else None


def noting(indices: EpochIndices, wrapper: Any) -> EpochIndices:
    """Makes an EpochIndices note its batches in Lightning's wrapper, as the wrapper itself does."""
    draw = indices.draw

    def note(batch: Any) -> Any:
        wrapper.seen_batch_indices.append(batch)
        return batch

    def draw_noting(position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        drawn, dropped = draw(position, steps, seeds)
        return Drawn(map(note, drawn.tasks()), 0, False), dropped

    indices.draw = draw_noting  # type: ignore[method-assign]
    return indices
