# SPDX-License-Identifier: Apache-2.0
"""Finds how the sampler of one of torch's loaders deals to ranks, which headrace._loader.both.ranks compares."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from headrace._base import lookup
from headrace._loader.both.any_loader import Dealing
from headrace._ranks import membership
from headrace._ranks.disagreement import SWITCH
from headrace._ranks.remainder import ALLOWED, ERROR, WARNING, Remainder
from headrace.torch._own import classes, groups, loaders, table
from headrace.torch._own.classes import is_plan
from headrace.torch._samplers.distributed_sampler import DistributedSampler
from headrace.torch._samplers.foreign import samplers_of
from headrace.torch._samplers.per_rank import PerRank
from headrace.torch._samplers.whole_order import length_of

# The methods that deal one order to all ranks: another seed on each gives some samples to several ranks, and leaves
# others out. A sampler with another method may draw with replacement.
_DEAL_ONE_ORDER = (classes.DistributedSampler.__iter__, DistributedSampler.__iter__, PerRank.__iter__)


def _dealing_sampler(loader: Any) -> Any:
    """Returns the sampler of a loader that deals an order to several ranks, or None."""
    for one in samplers_of(loaders.index_sampler(loader)):
        if isinstance(one, classes.DistributedSampler) or is_plan(one):
            return one if one.num_replicas > 1 else None
    return None


def compares(loader: Any) -> bool:
    """Returns True if a loader may be compared with those of other ranks."""
    is_off = os.environ.get(SWITCH) == "0" or not table.option(loader, "compare_ranks")
    return not is_off and membership.may_take_part()


def _rank_of(sampler: Any) -> int:
    return sampler.place.rank if is_plan(sampler) else sampler.rank  # type: ignore[no-any-return]


def dealing_of(loader: Any) -> Dealing | None:
    """Returns how the sampler of a loader deals an order to several ranks, or None if it deals to none."""
    sampler = _dealing_sampler(loader)
    if sampler is None:
        return None
    place = lookup.attribute(sampler, "place")
    return Dealing(
        rank=_rank_of(sampler),
        ranks=sampler.num_replicas,
        source="of the sampler" if place is None else place.source,
        settings=_settings_of(loader, sampler),
        length=functools.partial(length_of, sampler),
        seed=lookup.attribute(sampler, "seed"),
        remainder=functools.partial(_remainder_of, loader, sampler),
        own_seeds=not is_plan(sampler) and type(sampler).__iter__ not in _DEAL_ONE_ORDER,
    )


def _remainder_of(loader: Any, sampler: Any) -> Remainder:
    """Returns whether the parts of ranks may differ by the rest of a division. Without gradients it is a prediction.
    There, groups of some ranks may have collective operations in each step, as with tensor parallelism; in the default
    group the ranks wait for each other. Ranks that deal batches have made unequally many of them, which is no rest of
    the samples."""
    if not torch.is_grad_enabled():
        return Remainder(ALLOWED, groups.count_collectives_of_all)
    if sampler is loaders.index_sampler(loader) and sampler is not loader.sampler:
        return Remainder(ERROR)
    return Remainder(WARNING, groups.count_collectives)


def _settings_of(loader: Any, sampler: Any) -> str:
    """Returns settings that are equal in all ranks if the loader is the same one."""
    settings = [lookup.attribute(sampler, name) for name in ("shuffle", "drop_last", "tail")]
    return f"{lookup.attribute(loader, 'batch_size')} {type(sampler).__qualname__} {settings}"
