# SPDX-License-Identifier: Apache-2.0
"""Checks the order of a loader's samples: repeated ones, a wrong length, epochs that are all the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace import _options
from headrace._base import lookup
from headrace.doctor.observations import Observation
from headrace.doctor.run import draws, ranks


def _repeats(order: list[Any], count: int | None, is_meant: bool) -> list[Observation]:
    if len(order) == draws.MAX_ENTRIES:
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


def _length(sampler: Any, given: int) -> list[Observation]:
    """Compares the length of a sampler with the number of entries that it gave."""
    try:
        size = len(sampler)
    except Exception:  # it has no length
        return []
    if size == given or given == draws.MAX_ENTRIES:
        return []
    fix = "return the number of entries of one rank from __len__"
    if ranks.is_distributed(sampler):
        fix += ", as headrace.torch.per_rank(your_sampler) does"
    text = "len() of the loader is wrong: progress bars, schedulers and frameworks count steps by it."
    name = type(sampler).__name__
    return [Observation("sampler length", "warning", f"{size:,}, but {given:,} come in an epoch", name, text, fix)]


def _epochs(loader: Any, sampler: Any) -> list[Observation]:
    if not callable(lookup.attribute(sampler, "set_epoch")) or not lookup.attribute(sampler, "shuffle", False):
        return []
    first, second = (draws.indices_of(draws.entries_of(sampler, seed)) for seed in (1, 2))
    if first != second or len(first) < 2:
        return []
    name = "batch_sampler" if sampler is getattr(loader, "batch_sampler", None) else "sampler"
    return [
        Observation(
            "set_epoch",
            "warning",
            "the order is the same in each epoch",
            f"{type(sampler).__name__} with shuffle=True",
            "It changes only if the training loop calls set_epoch. The doctor does not run your training loop.",
            f"for epoch in range(epochs): loader.{name}.set_epoch(epoch); ...",
        )
    ]


def check_order(loader: Any) -> list[Observation]:
    """Looks for samples that are drawn twice, in one rank or in several, for ranks with other numbers of batches, and
    for epochs that are all the same."""
    sampler = draws.sampler_of(loader)
    if _options.is_iterable_only(loader.dataset) or not lookup.has_special(sampler, "__iter__"):
        return []
    try:
        count = len(loader.dataset)
    except Exception:  # the dataset has no length, or there is no dataset
        count = None
    entries = draws.entries_of(sampler, seed=0)
    is_meant = lookup.attribute(sampler, "replacement", False) is True  # torch's samplers have this attribute
    indices = draws.indices_of(entries)
    found = _repeats(indices, None if ranks.is_distributed(sampler) else count, is_meant)
    found += _length(sampler, len(entries))
    found += ranks.check_ranks(loader, sampler)
    found += _epochs(loader, sampler)
    return found or [Observation("sampler", "ok", type(sampler).__name__, "", "No index is drawn twice in an epoch.")]
