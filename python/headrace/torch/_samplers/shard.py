# SPDX-License-Identifier: Apache-2.0
"""Gives the indices of accelerate's BatchSamplerShard over a sampler that is known."""

from __future__ import annotations

import copy
from typing import Any

import torch

from headrace.sampling._epoch_indices import (
    Drawn,
    EpochIndices,
    count_batches,
)
from headrace.sampling._state import Segment
from headrace.torch._samplers.known import RandomIndices


class ShardIndices(EpochIndices):
    """accelerate's BatchSamplerShard over a known sampler. accelerate itself chooses the batches of this rank."""

    is_known = True

    def __init__(self, shard: Any, whole: EpochIndices) -> None:
        super().__init__(shard, whole.order["kind"], None)
        self.order, self.n, self._whole = whole.order, whole.n, whole
        self.counts_epochs = whole.counts_epochs
        world, batch = shard.num_processes, shard.batch_size
        tail = "pad" if shard.even_batches else "slice"
        batch = batch // world if shard.split_batches else batch
        self.segment = Segment(world, batch, bool(shard.drop_last), tail)
        self.rank = shard.process_index

    def draw(self, position: int, steps: int, seeds: dict[str, Any] | None) -> tuple[Drawn, int]:
        if position == 0 and not steps and seeds is None and not isinstance(self._whole, RandomIndices):
            return Drawn(self._sampler, 0, False), 0
        whole, _ = self._whole.draw(position, 0, seeds)
        self.seeds = self._whole.seeds
        shard = copy.copy(self._sampler)
        left = self.n - position  # type: ignore[operator]
        shard.batch_sampler = _Batches(whole, left, self._sampler.batch_sampler)
        return Drawn(shard, 0, False), steps

    def count_steps(self, position: int) -> int | None:
        shard = copy.copy(self._sampler)
        whole = Drawn((), self._sampler.batch_sampler.batch_size, False)
        shard.batch_sampler = _Batches(whole, self.n - position, self._sampler.batch_sampler)  # type: ignore[operator]
        return len(shard)

    @property
    def generator(self) -> torch.Generator | None:
        """The generator that the user gave to the sampler."""
        return getattr(self._whole, "generator", None)

    def start_seeds(self) -> dict[str, Any]:
        return self._whole.start_seeds()

    def end_seeds(self) -> dict[str, Any]:
        return self._whole.end_seeds()

    def left_seeds(self) -> dict[str, Any]:
        return self._whole.left_seeds()

    def begin_with(self, seeds: dict[str, Any]) -> None:
        self._whole.begin_with(seeds)


class _Batches:
    """The rest of an order as a batch sampler with a length."""

    def __init__(self, drawn: Drawn, left: int, like: Any) -> None:
        self._drawn = drawn
        self._left = left
        self.batch_size = like.batch_size
        self.drop_last = like.drop_last

    def __iter__(self) -> Any:
        return self._drawn.tasks()

    def __len__(self) -> int:
        return count_batches(self._left, self.batch_size, self.drop_last)
