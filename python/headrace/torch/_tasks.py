# SPDX-License-Identifier: Apache-2.0
"""Draws the indices of batches from torch's samplers without torch's generators. Both iterators use it.

An exception of a signal's handler that is raised inside a generator ends it, and with it the epoch. So the samplers
that come with torch are read here, as lists of indices that are made when torch's generator would make them: the
indices and the random numbers are the same. If the making of a list is interrupted, the random numbers that it took are
put back, and it is made again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from headrace import _core
from headrace.torch import _internals

_make_batches = BatchSampler.__iter__  # a user may put another in its place
_AT_ONCE = (SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)  # they draw all numbers at first
_DRAWN = 32  # numbers that RandomSampler draws at a time with replacement


class _Lists:
    """An iterator over lists of a sampler's indices."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._done = 0  # lists that were made
        self._seeded: torch.Generator | None = None  # of a RandomSampler without a generator of the user's

    def __iter__(self) -> _Lists:
        return self

    def __next__(self) -> list[Any]:
        generator = getattr(self._sampler, "generator", None) or self._seeded or torch.default_generator
        before = generator.get_state()
        done = self._done
        try:
            made = self._make(done)
            self._done = done + 1
            return made
        except StopIteration:
            raise
        except BaseException:
            generator.set_state(before)
            self._done = done
            raise

    def _make(self, number: int) -> list[Any]:
        if type(self._sampler) is RandomSampler:
            return self._make_random(self._sampler, number)
        if number:
            raise StopIteration
        return list(self._sampler)

    def _make_random(self, sampler: Any, number: int) -> list[int]:
        """Does what RandomSampler.__iter__ does between two lists."""
        size, wanted = len(sampler.data_source), sampler.num_samples
        whole, rest = divmod(wanted, _DRAWN if sampler.replacement else size)
        if number > whole:
            raise StopIteration
        generator = self._generator_of(sampler)
        if sampler.replacement:
            shape = (_DRAWN if number < whole else rest,)
            return torch.randint(high=size, size=shape, dtype=torch.int64, generator=generator).tolist()
        indices: list[int] = torch.randperm(size, generator=generator).tolist()
        return indices if number < whole else indices[:rest]

    def _generator_of(self, sampler: Any) -> Any:
        if sampler.generator is not None:
            return sampler.generator
        if self._seeded is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
            self._seeded = generator
        return self._seeded


def _is_known(sampler: Any) -> bool:
    return type(sampler) is RandomSampler or type(sampler) in _AT_ONCE


def _new_tasks(sampler: Any, size: int = 0, drop_last: bool = False) -> _core.Tasks:
    if type(sampler) is _internals.InfiniteConstantSampler:
        return _core.Tasks(itertools.repeat(None), size, drop_last)
    is_known = _is_known(sampler)
    return _core.Tasks(_Lists(sampler) if is_known else sampler, size, drop_last, is_known)


def tasks_of(index_sampler: Any, iterator: Iterator[Any]) -> _core.Tasks:
    """Returns the tasks of one epoch. `iterator`: torch's own over the sampler, for samplers of other kinds."""
    is_torchs = type(index_sampler) is BatchSampler and BatchSampler.__iter__ is _make_batches
    size = index_sampler.batch_size if is_torchs else 0
    if is_torchs and type(size) is int and size > 0:
        return _new_tasks(index_sampler.sampler, size, bool(index_sampler.drop_last))
    if _is_known(index_sampler) or type(index_sampler) is _internals.InfiniteConstantSampler:
        return _new_tasks(index_sampler)
    return _core.Tasks(iterator)
