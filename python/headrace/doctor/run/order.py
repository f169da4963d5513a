# SPDX-License-Identifier: Apache-2.0
"""Checks the order of a loader's samples: repeated ones, ranks that overlap, epochs that are all the same."""

from __future__ import annotations

import contextlib
import copy
import itertools
import operator
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from headrace import _options
from headrace._inspect import lookup
from headrace.doctor.observations import Observation

_MAX_INDICES = 2_000_000  # that are drawn of an epoch


def sampler_of(loader: Any) -> Any:
    """Returns what gives a loader's indices one by one, or in batches if there is only that; None if it has neither."""
    batches = getattr(loader, "batch_sampler", None)
    sampler = lookup.attribute(batches, "sampler")
    if sampler is None and batches is None:
        sampler = getattr(loader, "sampler", None)
    return sampler if sampler is not None else batches


def _flat(indices: Iterable[Any]) -> Iterator[Any]:
    for index in indices:
        if isinstance(index, (list, tuple)) and not isinstance(index, str):
            yield from index
        else:
            yield index


def _epoch(sampler: Any) -> list[Any]:
    return [_plain(index) for index in itertools.islice(_flat(sampler), _MAX_INDICES)]


def _plain(index: Any) -> Any:
    with contextlib.suppress(Exception):
        return operator.index(index)
    return repr(index)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the process's random numbers, which samplers draw from, as in another process. Restores them at the end."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    kept = random.getstate(), torch and torch.get_rng_state(), numpy and numpy.random.get_state()
    random.seed(seed)
    if torch is not None:
        torch.manual_seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(kept[0])
        if torch is not None:
            torch.set_rng_state(kept[1])
        if numpy is not None:
            numpy.random.set_state(kept[2])


def _repeats(order: list[Any], count: int | None, is_meant: bool) -> list[Observation]:
    if len(order) == _MAX_INDICES:
        order = order[: count or 0]  # the sampler may have no end
    times = Counter(order)
    index, most = max(times.items(), key=lambda one: one[1], default=(None, 0))
    if most < 2:
        return []
    missing = f"; {count - len(times):,} of {count:,} samples are never drawn" if count and count > len(times) else ""
    return [
        Observation(
            "sampler repeats",
            "note" if is_meant else "warning",
            f"{len(order) - len(times):,} of {len(order):,} indices are repeated in the epoch",
            f"index {index!r} is drawn {most} times",
            f"Some samples are used more often than others{missing}. This is intended with weighted sampling and with "
            "replacement=True.",
            "" if is_meant else "sampler=torch.utils.data.RandomSampler(dataset), or shuffle=True",
        )
    ]


def _is_distributed(sampler: Any) -> bool:
    return all(isinstance(lookup.attribute(sampler, name), int) for name in ("rank", "num_replicas"))


def _for_rank(sampler: Any, rank: int) -> Any:
    one = copy.copy(sampler)
    one.rank = rank
    return one


def _orders_of_ranks(sampler: Any, has_own_seeds: bool) -> list[list[Any]]:
    """Returns what each rank would draw. `has_own_seeds`: with a seed per rank, as in processes that are not seeded."""
    orders = []
    for rank in range(sampler.num_replicas):
        with _seeded(rank if has_own_seeds else 0):
            orders.append(_epoch(_for_rank(sampler, rank)))
    return orders


def _shared(orders: list[list[Any]], count: int | None) -> int:
    """Returns how many samples more than one rank has, except the few that make all ranks equally long."""
    ranks = Counter(index for order in orders for index in set(order))
    shared = sum(times - 1 for times in ranks.values())
    total = sum(map(len, orders))
    fill = max(0, total - count) if count is not None and total - count < len(orders) else 0
    return max(0, shared - fill)


def _ranks(sampler: Any, count: int | None) -> list[Observation]:
    if sampler.num_replicas < 2:
        return [
            Observation(
                "ranks",
                "note",
                "1",
                "sampler.num_replicas",
                "One rank cannot overlap with another; set num_replicas to the number of ranks to check them.",
            )
        ]
    shared = _shared(_orders_of_ranks(sampler, has_own_seeds=True), count)
    if not shared:
        return [
            Observation("ranks", "ok", f"{sampler.num_replicas}", "simulated", "Each sample is drawn in one rank only.")
        ]
    seeded = _shared(_orders_of_ranks(sampler, has_own_seeds=False), count)
    if not seeded:
        text = (
            "The sampler draws from the process's random numbers: ranks have samples in common unless all of them have "
            "the same seed."
        )
        return [
            Observation(
                "ranks overlap",
                "warning",
                f"by {shared:,} samples",
                f"{sampler.num_replicas} ranks, simulated",
                text,
                "draw from the sampler's own generator, seeded with seed + epoch, as DistributedSampler does",
            )
        ]
    return [
        Observation(
            "ranks overlap",
            "error",
            f"by {seeded:,} samples",
            f"{sampler.num_replicas} ranks, simulated",
            "Ranks train on the same samples, and an epoch does not cover the dataset.",
            "sampler=torch.utils.data.DistributedSampler(dataset, shuffle=True)",
        )
    ]


def _epochs(sampler: Any) -> list[Observation]:
    if not callable(lookup.attribute(sampler, "set_epoch")) or not lookup.attribute(sampler, "shuffle", False):
        return []
    with _seeded(1):
        first = _epoch(sampler)
    with _seeded(2):
        second = _epoch(sampler)
    if first != second or len(first) < 2:
        return []
    return [
        Observation(
            "set_epoch",
            "warning",
            "the order is the same in each epoch",
            f"{type(sampler).__name__} with shuffle=True",
            "It changes only if the training loop calls set_epoch. The doctor does not run your training loop.",
            "for epoch in range(epochs): loader.sampler.set_epoch(epoch); ...",
        )
    ]


def check_order(loader: Any) -> list[Observation]:
    """Looks for samples that are drawn twice, in one rank or in several, and for epochs that are all the same."""
    sampler = sampler_of(loader)
    if _options.is_iterable_only(loader.dataset) or not lookup.has_special(sampler, "__iter__"):
        return []
    try:
        count = len(loader.dataset)
    except Exception:  # the dataset has no length, or there is no dataset
        count = None
    sampler = copy.copy(sampler)
    with _seeded(0):
        indices = _epoch(sampler)
    is_meant = lookup.attribute(sampler, "replacement", False) is True  # torch's samplers have this attribute
    found = _repeats(indices, None if _is_distributed(sampler) else count, is_meant)
    if _is_distributed(sampler):
        found += _ranks(sampler, count)
    found += _epochs(sampler)
    return found or [Observation("sampler", "ok", type(sampler).__name__, "", "No index is drawn twice in an epoch.")]
