# SPDX-License-Identifier: Apache-2.0
"""Chooses the EpochIndices of a loader by its sampler: torch's, headrace's, accelerate's, or one of the user's.

A sampler is known by its exact class, because a subclass may give other indices.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from headrace._base import lookup, signals
from headrace.sampling import _exact
from headrace.sampling._epoch_indices import (
    EpochIndices,
)
from headrace.sampling._known import RepeatedIndices, mixture_indices, order_indices, range_indices
from headrace.torch._frameworks import accelerate
from headrace.torch._frameworks.lightning import noting, wrapped_by_lightning
from headrace.torch._own import classes, originals
from headrace.torch._own.classes import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from headrace.torch._samplers.dealt import DistributedIndices, PerRankIndices
from headrace.torch._samplers.distributed_sampler import DistributedSampler
from headrace.torch._samplers.foreign import (
    ForeignIndices,
    samplers_of,
)
from headrace.torch._samplers.known import RandomIndices
from headrace.torch._samplers.per_rank import PerRank
from headrace.torch._samplers.shard import ShardIndices
from headrace.torch._samplers.whole_order import length_of

try:
    from headrace.sampling._mixture import Mixture
    from headrace.sampling._order import Order
    from headrace.sampling._plan import Plan
    from headrace.sampling._plan_indices import PlanIndices
except ImportError:
    Mixture = Order = Plan = None  # type: ignore[assignment, misc]


def _is_accelerates(sampler: Any, name: str) -> bool:
    module = sys.modules.get("accelerate.data_loader")
    return module is not None and type(sampler) is getattr(module, name, None)


def _seedable_indices(sampler: Any, batch_size: int, drop_last: bool) -> EpochIndices:
    order = {"kind": "SeedableRandomSampler", "n": len(sampler.data_source)}
    order |= {"seed": sampler.initial_seed, "epoch": sampler.epoch}
    indices = RepeatedIndices(sampler, order, batch_size, drop_last)
    indices.counts_epochs = True
    return indices


_MAKERS: dict[type, Callable[[Any, int, bool], EpochIndices]] = {
    SequentialSampler: lambda sampler, *batches: range_indices("SequentialSampler", len(sampler.data_source), *batches),
    RandomSampler: RandomIndices,
    SubsetRandomSampler: RandomIndices,
    WeightedRandomSampler: RandomIndices,
    classes.DistributedSampler: DistributedIndices,
    DistributedSampler: DistributedIndices,
    PerRank: PerRankIndices,
}
if Order is not None:
    _MAKERS[Order] = order_indices
    _MAKERS[Mixture] = mixture_indices
    _MAKERS[Plan] = lambda plan, *batches: PlanIndices(plan)


def known_indices(sampler: Any, batch_size: int, drop_last: bool) -> EpochIndices | None:  # shortcut: known-samplers
    """Returns the EpochIndices of a sampler that is known, or None."""
    if _is_accelerates(sampler, "SeedableRandomSampler"):
        return _seedable_indices(sampler, batch_size, drop_last)
    maker = _MAKERS.get(type(sampler))
    if type(sampler) in originals.SAMPLERS and not originals.has_own_methods(type(sampler)):
        return None
    if maker is DistributedIndices and not _deals_as_torch(sampler):
        return None
    return None if maker is None else maker(sampler, batch_size, drop_last)


def _deals_as_torch(sampler: Any) -> bool:
    """Returns False if an attribute or the size of the dataset was changed after the sampler was made, so that torch
    raises an error."""
    world, rank = sampler.num_replicas, sampler.rank
    if type(world) is not int or type(rank) is not int or not 0 <= rank < world:
        return False
    n = len(sampler.dataset)
    count = n // world if sampler.drop_last else -(-n // world)
    return (sampler.num_samples, sampler.total_size) == (count, count * world)


def _find_known(sampler: Any, batch_size: int, drop_last: bool) -> EpochIndices | None:
    try:
        return known_indices(sampler, batch_size, drop_last)
    except Exception as error:  # of the dataset's own __len__: torch meets it when it draws the first index
        if signals.is_from_signal(error):
            raise
        return None


def indices_of(index_sampler: Any, dataset: Any, rank: int) -> tuple[EpochIndices, int]:  # shortcut: framework-samplers
    """Returns the EpochIndices of a loader, and how many batches at the beginning of each epoch are skipped."""
    if _is_accelerates(index_sampler, "SkipBatchSampler"):
        indices, skipped = indices_of(index_sampler.batch_sampler, dataset, rank)
        return indices, skipped + index_sampler.skip_batches
    wrapped = wrapped_by_lightning(index_sampler)
    if wrapped is not None:
        indices, skipped = indices_of(wrapped, dataset, rank)
        if indices.is_known:
            return noting(indices, index_sampler), skipped
    is_shard = _is_accelerates(index_sampler, "BatchSamplerShard")
    if is_shard and accelerate.is_left_as_it_is(index_sampler):
        return indices_of(index_sampler.batch_sampler, dataset, rank)
    if is_shard and type(index_sampler.batch_sampler) is BatchSampler:
        whole, _ = indices_of(index_sampler.batch_sampler, dataset, rank)
        if whole.is_known and whole.segment.world == 1:
            return ShardIndices(index_sampler, whole), 0
    return _indices_in(index_sampler, makes_batches(index_sampler), dataset, rank), 0


def _indices_in(index_sampler: Any, is_torchs: bool, dataset: Any, rank: int) -> EpochIndices:
    sampler, size, drop_last = _inner_of(index_sampler, is_torchs)
    found = _find_known(sampler, size, drop_last)
    if found is not None:
        found.check_dataset(dataset)
    else:
        _exact.check(sampler, samplers_of(sampler))
        if size and _begins_again(sampler):
            sampler, size, drop_last = index_sampler, 0, False
        found = ForeignIndices(sampler, length_of(dataset), size, drop_last, rank)
    if size and not drop_last:  # torch's BatchSampler reads its batch_size for each batch then
        found.sizes = index_sampler
    return found


def _begins_again(sampler: Any) -> bool:
    """Returns True if a sampler is its own iterator, with an `__iter__` that does more than return it. torch's
    BatchSampler calls iter() of the iterator for each batch, or for each place in a batch, so only it knows which
    indices come."""
    begin = lookup.static(type(sampler), "__iter__")
    if not lookup.has_special(sampler, "__next__") or not inspect.isfunction(begin):
        return False
    return bool(begin.__code__.co_names or begin.__code__.co_freevars)


def at_begin(index_sampler: Any, indices: EpochIndices, dataset: Any) -> EpochIndices:
    """Returns the EpochIndices of a loader when its first index is drawn, which is when torch's batch sampler looks at
    the sampler in it, and torch's random samplers at their data. indices: of the loader when its iterator was made."""
    if isinstance(indices, RandomIndices) and indices.is_alone:
        return indices.renewed()
    return _indices_in(index_sampler, True, dataset, indices.rank)


def may_change(index_sampler: Any, indices: EpochIndices) -> bool:
    """Returns True if the sampler is looked at again when the first index is drawn. Without batches, torch iterates it
    when the loader's iterator is made, and what is no generator reads everything then."""
    return makes_batches(index_sampler) or (isinstance(indices, RandomIndices) and indices.is_alone)


def makes_batches(index_sampler: Any) -> bool:  # shortcut: torch-batch-sampler
    """Returns True if it is torch's BatchSampler."""
    return type(index_sampler) is BatchSampler and originals.has_own_methods(BatchSampler)


def _inner_of(index_sampler: Any, is_torchs: bool) -> tuple[Any, int, bool]:
    """Returns the sampler inside torch's BatchSampler, its batch size (0: no batches) and drop_last."""
    size = index_sampler.batch_size if is_torchs else 0
    if type(size) is int and size > 0:
        return index_sampler.sampler, size, bool(index_sampler.drop_last)
    return index_sampler, 0, False
