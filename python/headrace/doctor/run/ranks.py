# SPDX-License-Identifier: Apache-2.0
"""Checks the parts of a loader's samples that the ranks get: samples that several ranks have, and other numbers of
batches. order.py calls it."""

from __future__ import annotations

import bisect
from collections import Counter
from typing import Any

from headrace._base import lookup
from headrace._ranks import where
from headrace.doctor.observations import Observation
from headrace.doctor.run import draws
from headrace.sampling._epoch_indices import count_batches
from headrace.sampling._plan import Plan

_PER_RANK = "headrace.torch.per_rank(your_sampler, {}), where your_sampler gives the order of all ranks"

_FEW = 8  # a rank with fewer entries may have one source only by chance


def is_distributed(sampler: Any) -> bool:
    """Returns whether a sampler gives the part of one rank."""
    return all(isinstance(lookup.attribute(sampler, name), int) for name in ("rank", "num_replicas"))


def check_ranks(loader: Any, sampler: Any) -> list[Observation]:
    """Simulates the ranks of a sampler. If it knows of no ranks, says so if there are any."""
    if isinstance(sampler, Plan) and sampler.num_replicas > 1:
        return [_describe_plan(sampler)]
    if not is_distributed(sampler):
        return _find_ranks()
    if sampler.num_replicas < 2:
        text = "One rank cannot overlap with another; set num_replicas to the number of ranks to check them."
        return [Observation("ranks", "note", "1", "sampler.num_replicas", text)]
    parts = [_Part(sampler, rank, rank) for rank in range(sampler.num_replicas)]  # a seed per rank, as without any
    counts = [part.count for part in parts]
    return _overlap(sampler, parts) + _uneven(loader, sampler, counts) + _single_sources(loader, parts)


def _describe_plan(plan: Plan) -> Observation:
    """A plan makes the batches of all ranks, so nothing has to be simulated."""
    report = plan.report()
    repeats = f", except {report['repeats']:,} that fill up the last step" if report["repeats"] else ""
    text = f"Each sample is in one rank only{repeats}, and each rank has {report['steps']:,} steps."
    return Observation("ranks", "ok", f"{plan.num_replicas}", "planned", text)


class _Part:
    """The samples that a rank would draw. `seed`: of the random numbers of its process."""

    def __init__(self, sampler: Any, rank: int, seed: int) -> None:
        entries = draws.entries_of(sampler, seed, rank)
        self.count = len(entries)  # of batches, if the sampler gives batches
        self.indices = draws.indices_of(entries)
        self.count_last = len(draws.indices_of(entries[-1:]))


def _single_sources(loader: Any, parts: list[_Part]) -> list[Observation]:
    """Says that ranks get samples of one source only, if the dataset is of several laid end to end: weights of 1:1 that
    are dealt by turns to two ranks, for example."""
    ends = lookup.attribute(loader.dataset, "cumulative_sizes")  # of torch's ConcatDataset, and of mix.dataset
    if type(ends) is not list or not ends or set(map(type, ends)) != {int} or ends[-1] < 1:
        return []
    found = [{bisect.bisect_right(ends, one % ends[-1]) for one in part.indices if type(one) is int} for part in parts]
    lonely = [rank for rank, one in enumerate(found) if len(one) == 1 and parts[rank].count >= _FEW]
    if not lonely or len(set().union(*found)) < 2:
        return []
    rank, number = lonely[0], next(iter(found[lonely[0]]))
    names = lookup.attribute(loader.dataset, "names")
    name = repr(names[number]) if type(names) is tuple and len(names) == len(ends) else f"number {number}"
    text = f"Rank {rank} gets samples of source {name} only, so the gradients of the ranks are of other sources. "
    text += "A mixture that shuffles neighbouring samples deals all sources to all ranks."
    fix = "headrace.torch.per_rank(headrace.Mixture(sources, weights)), with larger weights or a longer epoch"
    value = f"{len(lonely)} of {len(parts)} ranks get one source only"
    return [Observation("ranks and sources", "warning", value, f"{len(ends)} sources", text, fix)]


def _find_ranks() -> list[Observation]:
    """Says if this process is one of several ranks: then they all get the same samples."""
    try:
        place = where.find()
    except ValueError as error:
        return [Observation("ranks", "note", "unknown", "", str(error))]
    if place.world_size < 2:
        return []
    text = "The sampler gives each rank all samples, unless a framework (accelerate, Lightning) deals them."
    fix = "headrace.torch.per_rank(your_sampler), with seed=0 if it is random"
    return [Observation("ranks", "note", f"{place.world_size}", place.source, text, fix)]


def _shared(orders: list[list[Any]]) -> int:
    """Returns how many samples more than one rank has."""
    ranks = Counter(index for order in orders for index in set(order))
    return sum(times - 1 for times in ranks.values())


def _overlap_of(parts: list[_Part]) -> tuple[int, int]:
    """Returns how many samples ranks have in common, and how many are repeated to make all ranks equally long: that is
    what the last entry of each rank is for."""
    shared = _shared([part.indices for part in parts])
    if _shared([part.indices[: len(part.indices) - part.count_last] for part in parts]):
        return shared, 0
    return 0, shared


def _overlap(sampler: Any, parts: list[_Part]) -> list[Observation]:
    limit = f"{sampler.num_replicas} ranks, simulated"
    shared, repeated = _overlap_of(parts)
    if not shared:
        but = f", except {repeated:,} that make the ranks equally long" if repeated else ""
        text = f"Each sample is drawn in one rank only{but}."
        fine = Observation("ranks", "ok", f"{sampler.num_replicas}", "simulated", text)
        return [fine, *_repeats(sampler, repeated, limit)]
    seeded, _ = _overlap_of([_Part(sampler, rank, seed=0) for rank in range(sampler.num_replicas)])
    if not seeded:
        text = "The sampler draws from the process's random numbers: ranks have samples in common unless all of them "
        text += "have the same seed."
        fix = _PER_RANK.format("seed=0") + "; or draw from its own generator, seeded with seed + epoch"
        return [Observation("ranks overlap", "warning", f"by {shared:,} samples", limit, text, fix)]
    text = "Ranks train on the same samples, and an epoch does not cover the dataset."
    fix = _PER_RANK.format('tail="pad"') + "; or torch.utils.data.DistributedSampler(dataset, shuffle=True)"
    return [Observation("ranks overlap", "error", f"by {seeded:,} samples", limit, text, fix)]


def _repeats(sampler: Any, repeated: int, limit: str) -> list[Observation]:
    """Says that samples count twice, if the loader may be one of an evaluation, which does not shuffle."""
    if not repeated or lookup.attribute(sampler, "shuffle") or lookup.attribute(sampler, "tail") == "exact":
        return []
    text = "Samples are repeated to make the ranks equally long. If this loader evaluates, a metric counts them twice."
    fix = 'headrace.torch.per_rank(torch.utils.data.SequentialSampler(dataset), tail="exact")'
    return [Observation("ranks repeat", "note", f"{repeated:,} sample{'' if repeated == 1 else 's'}", limit, text, fix)]


def _uneven(loader: Any, sampler: Any, counts: list[int]) -> list[Observation]:
    """Says that ranks have other numbers of batches. `counts`: of the sampler's entries, for each rank."""
    batches = [_count_batches(loader, sampler, count) for count in counts]
    fewest, most = min(batches), max(batches)
    if fewest == most:
        return []
    some = [str(rank) for rank, count in enumerate(batches) if count == fewest]
    names = ", ".join(some[:4]) + (", ..." if len(some) > 4 else "")
    text = f"Rank{'s' if len(some) > 1 else ''} {names} will end the epoch first. The others then wait in their next "
    text += "collective (an all-reduce of gradients), until it times out."
    value, limit = f"{fewest:,} to {most:,} batches", f"{len(counts)} ranks, simulated"
    return [Observation("ranks uneven", "error", value, limit, text, _PER_RANK.format('tail="pad"'))]


def _count_batches(loader: Any, sampler: Any, count: int) -> int:
    """Returns how many batches the loader makes of `count` entries of a sampler."""
    batches = getattr(loader, "batch_sampler", None)
    size = lookup.attribute(batches, "batch_size")
    if batches is sampler or not isinstance(size, int) or size < 1:
        return count
    return count_batches(count, size, bool(lookup.attribute(batches, "drop_last")))
