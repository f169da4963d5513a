# SPDX-License-Identifier: Apache-2.0
"""Draws the whole order of a sampler, which has to be the same on each rank before it is dealt: for _per_rank.py."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from typing import Any

import torch

from headrace._base import lookup, signals
from headrace._samples import random_numbers
from headrace.sampling._sampler_parts import SamplerParts
from headrace.torch._own import originals
from headrace.torch._own.classes import (
    BatchSampler,
    Dataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from headrace.torch._samplers.foreign import has_set_epoch, samplers_of
from headrace.torch._samplers.generators import Globals

try:
    from headrace.sampling._index_sequence import IndexSequence as _Order
except ImportError:  # the extension cannot be loaded
    _Order = None  # type: ignore[assignment, misc]

_WHO = "headrace.torch.per_rank"
_CHUNK = 1 << 16  # entries that are drawn between two checks
_MOST_INDICES = 1 << 25  # of a sampler without a __len__: 256 MiB
_MOST_OTHERS = 1 << 20  # batches and other objects of such a sampler
_MOST_WEIGHTS = 1 << 24  # torch.multinomial takes no more
_RANDOM = {kind.__iter__ for kind in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)}


def length_of(sampler: Any) -> int | None:
    """Returns the length that a sampler or a dataset says it has, or None if it has no length."""
    try:
        return len(sampler)
    except Exception as error:  # it has no __len__, or what it wraps has none, or its own __len__ raises
        if signals.is_from_signal(error):
            raise
        return None


def set_epoch(sampler: Any, epoch: int) -> None:
    """Sets the epoch of a sampler and of those that it wraps, if they have set_epoch."""
    for one in samplers_of(sampler):
        if has_set_epoch(one):
            one.set_epoch(epoch)


def epoch_of(sampler: Any) -> int | None:  # shortcut: torch-batch-sampler
    """Returns the epoch of a headrace.Order or a Mixture, or of the one in a BatchSampler; None: of other samplers."""
    inner: Any = sampler.sampler if type(sampler) is BatchSampler else sampler
    return inner.epoch if _is_order(inner) else None


def has_epochs(sampler: Any) -> bool:
    """Returns whether set_epoch changes the order of a sampler, as far as that can be known without drawing it."""
    return any(has_set_epoch(one) and not _is_sequential(one) for one in samplers_of(sampler))


def _is_sequential(sampler: Any) -> bool:
    return _is_order(sampler) and lookup.attribute(sampler, "kind") == "sequential"


def _is_order(sampler: Any) -> bool:
    """Returns True for a headrace.Order and a headrace.Mixture."""
    return _Order is not None and isinstance(sampler, _Order)


# ---- what can be dealt ----


def check(sampler: Any, is_seeded: bool) -> None:
    """Raises TypeError or ValueError if a sampler has no order that is the same on each rank, or is dealt already."""
    _check_kind(sampler)
    for one in samplers_of(sampler):
        _check_not_dealt(one)
        if not is_seeded and type(one).__iter__ in _RANDOM and lookup.attribute(one, "generator") is None:
            raise ValueError(_describe_difference(type(one).__name__, ["torch"]))
    if lawless := SamplerParts(sampler).lawless:
        raise ValueError(
            f"{_WHO}: {type(sampler).__name__} draws from the operating system ({', '.join(lawless)}), so each rank "
            "would deal another order; give it a random.Random with the same seed on each rank"
        )


def _check_kind(sampler: Any) -> None:
    name = type(sampler).__name__
    if isinstance(sampler, Dataset) or not lookup.has_special(sampler, "__iter__"):
        raise TypeError(
            f"{_WHO}: needs a sampler, which gives indices, or a batch sampler, which gives lists of them, but got "
            f"{name}; for a dataset, give torch.utils.data.SequentialSampler(dataset) or headrace.Order(len(dataset))"
        )
    if lookup.has_special(sampler, "__next__"):
        raise TypeError(
            f"{_WHO}: the {name} is an iterator, which is empty after the first epoch; give a list, or an object whose "
            "__iter__ starts again"
        )


def _check_not_dealt(sampler: Any) -> None:
    """Raises ValueError for samplers that give the part of one rank. With one rank they give the whole order."""
    for name in ("num_replicas", "num_processes"):  # of torch's DistributedSampler; of accelerate's BatchSamplerShard
        count = lookup.attribute(sampler, name)
        if isinstance(count, int) and count != 1:
            raise ValueError(
                f"{_WHO}: {type(sampler).__name__} ({name}={count}) gives the part of one rank already; dealt again, "
                "most samples would never be drawn; give the sampler of all ranks, or use this one without per_rank"
            )


def check_has_each_once(sampler: Any) -> None:
    """Raises ValueError for a sampler that cannot give each sample once, so machines cannot keep their samples. What
    other samplers have drawn is checked then."""
    if _Order is None:
        raise ValueError(f"{_WHO}: stay needs the extension of headrace, which cannot be loaded here")
    if callable(lookup.attribute(sampler, "describe_sources")):  # a headrace.Mixture
        raise ValueError(
            f"{_WHO}: stay cannot deal a Mixture, whose sources come in several passes; use stay=None, or give each "
            "machine a mixture of its own part of the sources"
        )


def _check_weights(sampler: WeightedRandomSampler) -> None:
    """Raises ValueError for weights by which nothing can be drawn. What torch says of them does not name them."""
    weights = sampler.weights
    bad = (~torch.isfinite(weights) | (weights < 0)).nonzero()
    if len(bad):
        at = int(bad[0])
        raise ValueError(
            f"{_WHO}: weight {at} of WeightedRandomSampler is {float(weights[at])}; weights should be numbers from 0 on"
        )
    total, positive = float(weights.sum()), int((weights > 0).sum())
    if not 0 < total < float("inf"):
        raise ValueError(f"{_WHO}: the sum of the weights of WeightedRandomSampler is {total}; no sample can be drawn")
    if len(weights) > _MOST_WEIGHTS:
        raise ValueError(
            f"{_WHO}: WeightedRandomSampler has {len(weights):,} weights, but torch draws by at most {_MOST_WEIGHTS:,}"
        )
    if not sampler.replacement and positive < sampler.num_samples:
        raise ValueError(
            f"{_WHO}: WeightedRandomSampler should draw {sampler.num_samples} samples without replacement, but only "
            f"{positive} have a weight above 0; lower num_samples, or use replacement=True"
        )


# ---- drawing ----


def draw(sampler: Any, seed: int | None, epoch: int) -> Sequence[Any]:  # shortcut: known-samplers
    """Returns all entries of an epoch, as a sequence that later changes of the sampler do not change.

    seed: None, or a number from which and the epoch the random numbers of torch, numpy and Python are made while the
    sampler draws. Afterwards they are as they were before. Raises ValueError if the sampler used them without a seed.
    """
    if callable(check_begins := lookup.attribute(sampler, "check_begins")):  # of a headrace.Mixture
        check_begins("per_rank")
    if isinstance(sampler, range) or _is_order(sampler):
        whole: Sequence[Any] = sampler[:]
        return whole
    if type(sampler) is SequentialSampler and originals.has_own_methods(SequentialSampler):
        return range(len(sampler.data_source))
    for one in samplers_of(sampler):
        if isinstance(one, WeightedRandomSampler):
            _check_weights(one)
    with random_numbers.generators_kept():
        if seed is not None:
            random_numbers.seed_all(seed, epoch, _WHO)
            return _collect(sampler)
        before = Globals()
        entries = _collect(sampler)
        if used := before.drawn_from():
            raise ValueError(_describe_difference(type(sampler).__name__, used))
        return entries


def _describe_difference(name: str, used: list[str]) -> str:
    return (
        f"{_WHO}: {name} draws from the random numbers of the process ({', '.join(used)}), which differ from rank to "
        "rank, so each rank would deal another order; give seed= (the same number on each rank), or give the sampler a "
        "generator of its own with the same seed on each rank"
    )


def _collect(sampler: Any) -> Sequence[Any]:
    """Returns the entries that a sampler gives, 8 bytes each if all of them are ints. Raises ValueError if there are so
    many that it seems to have no end."""
    entries: array[int] | list[Any] = array("q")
    size, iterator = length_of(sampler), iter(sampler)
    while chunk := list(itertools.islice(iterator, _CHUNK)):
        entries = _extended(entries, chunk)
        _check_end(sampler, size, entries)
    return entries


def _extended(entries: array[int] | list[Any], chunk: list[Any]) -> array[int] | list[Any]:
    if isinstance(entries, array):
        try:
            if set(map(type, chunk)) == {int}:
                entries.extend(array("q", chunk))
                return entries
        except OverflowError:  # an index has more than 64 bits
            pass
        entries = list(entries)
    entries += chunk
    return entries


def _check_end(sampler: Any, size: int | None, entries: Sequence[Any]) -> None:
    most = _MOST_INDICES if isinstance(entries, array) else _MOST_OTHERS
    if size is not None:
        most = 2 * size + _CHUNK
    if len(entries) <= most:
        return
    says = "it has no __len__" if size is None else f"its __len__ says {size:,}"
    raise ValueError(
        f"{_WHO}: {type(sampler).__name__} gave more than {most:,} entries ({says}) and seems to have no end, but the "
        "whole order of an epoch is drawn before it is dealt; let its __iter__ end after an epoch, or correct its "
        "__len__"
    )
