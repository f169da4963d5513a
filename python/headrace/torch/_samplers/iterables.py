# SPDX-License-Identifier: Apache-2.0
"""Gives the sizes of the batches of an iterable dataset: those of the lists that its batch sampler gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.torch._own import classes, originals


def sizes_of(index_sampler: Any) -> Any:  # shortcut: batch-sizes-of-streams
    """Returns what _core.Tasks is given as a batch size: torch's batch sampler, which has that of each batch; a number,
    if it keeps the one that it begins with; 0 without batches; or None, if the sampler has to be iterated."""
    if type(index_sampler) is classes.InfiniteConstantSampler:
        return 0
    is_plain = type(index_sampler) is classes.BatchSampler and originals.has_own_methods(classes.BatchSampler)
    if not is_plain or type(index_sampler.sampler) is not classes.InfiniteConstantSampler:
        return None
    if not index_sampler.drop_last:
        return index_sampler
    size = index_sampler.batch_size
    return size if type(size) is int and size > 0 else None


class SizesOfLists:
    """The sizes of the lists that a sampler gives."""

    def __init__(self, lists: Iterator[Any]) -> None:
        self._lists = lists
        self._is_read = False

    @property
    def batch_size(self) -> int:
        """The size of the next list; 0: there are no more lists. _core.Tasks reads it once before the first batch, when
        no list may be drawn yet."""
        if self._is_read:
            return len(next(self._lists, ()))
        self._is_read = True
        return 0
