# SPDX-License-Identifier: Apache-2.0
"""Compares the ranks of torch's loaders whose sampler deals an order to ranks (headrace.sampling._watch)."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from headrace._base import lookup
from headrace._ranks import membership
from headrace._ranks.agreement import Agreement
from headrace._ranks.callers import place_of_caller
from headrace._ranks.disagreement import SWITCH
from headrace._ranks.remainder import ALLOWED, ERROR, WARNING, Remainder
from headrace.sampling._epoch import Epoch
from headrace.sampling._watch import Watch
from headrace.torch._own import classes, groups, loaders, table
from headrace.torch._own.classes import is_plan
from headrace.torch._samplers.foreign import samplers_of
from headrace.torch._samplers.whole_order import length_of


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


def watch_of(loader: Any, epoch: Epoch) -> Watch | None:
    """Returns what compares this epoch of a loader with that of other ranks, or None if its sampler deals to none."""
    sampler = _dealing_sampler(loader)
    if sampler is None or not table.option(loader, "compare_ranks"):
        return None
    position = table.position_of(loader)
    if position.agreement is None:
        settings = _settings_of(loader, sampler)
        made_by = position.made_by or place_of_caller(f"{epoch.indices.order['n']} {settings}")
        position.agreement = Agreement(made_by, _rank_of(sampler), sampler.num_replicas, settings)
    seed = lookup.attribute(sampler, "seed")
    return Watch(position.agreement, epoch, functools.partial(length_of, sampler), seed, _remainder_of(loader, sampler))


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


def describe(loader: Any) -> str:
    """Returns which rank a loader reads for, what says so, and how it is compared with the others. "": its sampler
    deals to one rank."""
    sampler = _dealing_sampler(loader)
    if sampler is None:
        return ""
    place = lookup.attribute(sampler, "place")
    where_from = "of the sampler" if place is None else place.source
    agreement = table.position_of(loader).agreement
    compared = "not compared yet" if agreement is None else agreement.describe()
    if not table.option(loader, "compare_ranks"):
        compared = "compare_ranks=False is set"
    return f"rank {_rank_of(sampler)} of {sampler.num_replicas} ({where_from}); {compared}"
