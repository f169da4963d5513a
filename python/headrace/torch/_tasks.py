# SPDX-License-Identifier: Apache-2.0
"""Draws the indices of batches from torch's samplers without torch's generators. Both iterators use it.

If a signal's handler raises an exception inside a generator, the generator ends, and the epoch with it. So the
extension reads torch's own samplers. The indices, their order and the random numbers are the same.
"""

from __future__ import annotations

import itertools
from typing import Any

from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from headrace import _core
from headrace.torch import _internals

_make_batches = BatchSampler.__iter__  # a user may replace it
# These samplers draw all random numbers of an epoch when the first index is drawn.
_DRAW_AT_ONCE = (SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def _can_be_listed(sampler: Any) -> bool:
    """Returns True if all indices may be drawn at once, because no random numbers are drawn after the first index from
    a generator that the user can see."""
    if type(sampler) is RandomSampler:
        return sampler.generator is None and not sampler.replacement
    return type(sampler) in _DRAW_AT_ONCE


def _indices_of(sampler: Any) -> Any:
    return itertools.repeat(None) if type(sampler) is _internals.InfiniteConstantSampler else sampler


def tasks_of(index_sampler: Any, iterator: Any) -> _core.Tasks:
    """Returns the tasks of one epoch. `iterator` is torch's iterator over the sampler; it is used for other samplers
    than torch's."""
    is_torchs = type(index_sampler) is BatchSampler and BatchSampler.__iter__ is _make_batches
    size = index_sampler.batch_size if is_torchs else 0
    if is_torchs and type(size) is int and size > 0:
        inner = index_sampler.sampler
        return _core.Tasks(_indices_of(inner), size, bool(index_sampler.drop_last), _can_be_listed(inner))
    if _can_be_listed(index_sampler):
        return _core.Tasks(index_sampler, listed=True)
    is_infinite = type(index_sampler) is _internals.InfiniteConstantSampler
    return _core.Tasks(_indices_of(index_sampler) if is_infinite else iterator)
