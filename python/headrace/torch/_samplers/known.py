# SPDX-License-Identifier: Apache-2.0
"""Gives the indices of torch's RandomSampler, SubsetRandomSampler and WeightedRandomSampler, by lists (lists.py)."""

from __future__ import annotations

import copy
from typing import Any

import torch

from headrace._base import signals
from headrace.sampling._epoch_indices import (
    Drawn,
    EpochIndices,
    count_batches,
)
from headrace.sampling._known import segment_of
from headrace.sampling._state import Segment
from headrace.torch._own import loaders
from headrace.torch._own.classes import (
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from headrace.torch._samplers import generators
from headrace.torch._samplers.lists import Lists


class RandomIndices(EpochIndices):
    """RandomSampler, SubsetRandomSampler or WeightedRandomSampler of torch: the same order on each rank."""

    is_known = True

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool, kind: type | None = None) -> None:
        self._kind = kind = kind or type(sampler)
        super().__init__(sampler, kind.__name__, _count_of(sampler, kind), batch_size, drop_last)
        self.segment = segment_of(batch_size, drop_last)
        self.n = sampler.num_samples if kind is not SubsetRandomSampler else len(sampler.indices)
        if kind is RandomSampler:
            self.order |= {"replacement": sampler.replacement, "num_samples": loaders.given_count(sampler) or -1}
        elif kind is WeightedRandomSampler:
            self.order |= {"replacement": sampler.replacement, "num_samples": sampler.num_samples}
        self._lists: Lists | None = None

    @property
    def is_alone(self) -> bool:
        """True if the loader has no batch sampler."""
        return not self._batch_size

    def renewed(self) -> RandomIndices:
        """Returns the indices of the sampler as it is now, also if it has got another class."""
        return RandomIndices(self._sampler, self._batch_size, self._drop_last, self._kind)

    @property
    def generator(self) -> torch.Generator | None:
        """The generator that the user gave to the sampler."""
        return self._sampler.generator  # type: ignore[no-any-return]

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        place = position + steps * self.segment.batch
        size = None if seeds is None else self.order["n"]
        self._lists = Lists(self._sampler, self._kind, size, min(place, self.n or 0), seeds)
        self.seeds = self._lists.drawn
        return Drawn(self._lists, self._sizes(), self.segment.drop_last, has_lists=True), 0

    def count_steps(self, position: int) -> int | None:
        return count_batches(self._count() - position, self.segment.batch, self.segment.drop_last)

    def _count(self) -> int:
        """Returns how many entries the order has, which a program may change until the last list is drawn."""
        try:
            count = None if self._lists is None else self._lists.count()
        except Exception as error:  # of the data's length: the draw of the last list raises it
            if signals.is_from_signal(error):
                raise
            count = None
        return (self.n or 0) if count is None else count

    def start_seeds(self) -> dict[str, Any]:
        return {**(self._lists.expected() if self._lists is not None else {}), **self.seeds}

    def last_task(self, segments: list[Segment], rank: int, seeds: dict[str, Any]) -> Any:
        *earlier, last = segments
        place = self.position_after(earlier) + (last.steps - 1) * last.batch
        lists = Lists(self._sampler, self._kind, self.order["n"], min(place, self.n or 0), seeds)
        return next(Drawn(lists, self._batch_size and last.batch, False, has_lists=True).tasks(), None)

    def end_seeds(self) -> dict[str, Any]:
        if self._sampler.generator is None or self._lists is None:
            return self.left_seeds()
        return {"next_generator": self._lists.state_at_end()}

    def left_seeds(self) -> dict[str, Any]:
        generator = self._sampler.generator
        return {} if generator is None else {"next_generator": generator.get_state()}

    def begin_with(self, seeds: dict[str, Any]) -> None:
        if "next_generator" in seeds and self._sampler.generator is not None:
            generators.set_state(self._sampler.generator, seeds["next_generator"])

    def with_size(self, n: int) -> EpochIndices:
        if self._kind is not RandomSampler:
            return super().with_size(n)
        other = copy.copy(self)
        other.order = {**self.order, "n": n}
        other.n = n if loaders.given_count(self._sampler) is None else self.n
        return other


def _count_of(sampler: Any, kind: type) -> int:
    if kind is RandomSampler:
        return len(sampler.data_source)
    return len(sampler.indices if kind is SubsetRandomSampler else sampler.weights)
