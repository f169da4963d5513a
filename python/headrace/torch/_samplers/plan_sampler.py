# SPDX-License-Identifier: Apache-2.0
"""Shows frameworks that the batches of a headrace.Plan are dealt to ranks already. The loaders use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.torch._samplers.distributed_sampler import DistributedSampler


class PlanSampler(DistributedSampler[Any]):
    """The attribute `sampler` of a loader whose batch sampler is a plan. It is a subclass of torch's
    and headrace's DistributedSampler, by which frameworks recognise that they must not deal the samples again, and
    passes set_epoch on to the plan. It gives the samples of this rank one by one."""

    def __init__(self, plan: Any) -> None:
        self.plan = self.dataset = plan
        self.num_replicas, self.rank = plan.place.world_size, plan.place.rank
        self.shuffle, self.seed, self.drop_last = True, plan.seed, plan.drop_last

    @property
    def epoch(self) -> int:  # type: ignore[override] # torch's class sets it
        """The epoch of the plan."""
        return self.plan.epoch  # type: ignore[no-any-return]

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the plan."""
        self.plan.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.plan:
            yield from batch

    def __len__(self) -> int:
        return sum(map(len, self.plan))
