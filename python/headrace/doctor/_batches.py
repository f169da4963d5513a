# SPDX-License-Identifier: Apache-2.0
"""What headrace doctor finds in a loader's order of samples, and in what collating adds to them."""

from __future__ import annotations

import contextlib
import copy
import itertools
import operator
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headrace import _options
from headrace._errors import exception_text
from headrace._inspect import lookup
from headrace.doctor._findings import Finding

_MOST_INDICES = 2_000_000  # of an epoch that are drawn
_MOST_S = 5.0  # for the samples that are made here
_BATCHES = 8  # whose padding is measured
_TOO_MUCH = 0.5  # of a batch that is padding


# ---- order ----


def sampler_of(loader: Any) -> Any:
    """What gives a loader's indices one by one, or in batches if there is only that; None: it has none."""
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
    return [_plain(index) for index in itertools.islice(_flat(sampler), _MOST_INDICES)]


def _plain(index: Any) -> Any:
    with contextlib.suppress(Exception):
        return operator.index(index)
    return repr(index)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The process's random numbers, which samplers draw from, as another process would have them."""
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


def _repeats(order: list[Any], count: int | None, is_meant: bool) -> list[Finding]:
    if len(order) == _MOST_INDICES:
        order = order[: count or 0]  # it may go on for ever, round and round
    times = Counter(order)
    index, most = max(times.items(), key=lambda one: one[1], default=(None, 0))
    if most < 2:
        return []
    missing = f"; {count - len(times):,} of {count:,} samples do not come" if count and count > len(times) else ""
    return [
        Finding(
            "sampler repeats",
            "note" if is_meant else "warning",
            f"{len(order) - len(times):,} of {len(order):,} indices came before in the epoch",
            f"index {index!r} comes {most} times",
            f"Some samples are seen more often than others{missing}. Weighted sampling and replacement=True mean to.",
            "" if is_meant else "sampler=torch.utils.data.RandomSampler(dataset), or shuffle=True",
        )
    ]


def _is_distributed(sampler: Any) -> bool:
    return all(isinstance(lookup.attribute(sampler, name), int) for name in ("rank", "num_replicas"))


def _of_rank(sampler: Any, rank: int) -> Any:
    one = copy.copy(sampler)
    one.rank = rank
    return one


def _orders_of_ranks(sampler: Any, has_own_seeds: bool) -> list[list[Any]]:
    """What each rank would draw; with generators of their own seeds, as processes have that nobody has seeded."""
    orders = []
    for rank in range(sampler.num_replicas):
        with _seeded(rank if has_own_seeds else 0):
            orders.append(_epoch(_of_rank(sampler, rank)))
    return orders


def _shared(orders: list[list[Any]], count: int | None) -> int:
    """How many samples more than one rank has, beyond the few that fill the ranks up to one length."""
    ranks = Counter(index for order in orders for index in set(order))
    shared = sum(times - 1 for times in ranks.values())
    total = sum(map(len, orders))
    fill = max(0, total - count) if count is not None and total - count < len(orders) else 0
    return max(0, shared - fill)


def _ranks(sampler: Any, count: int | None) -> list[Finding]:
    if sampler.num_replicas < 2:
        return [
            Finding("ranks", "note", "1", "sampler.num_replicas", "With one rank nothing overlaps: run it as one of N.")
        ]
    shared = _shared(_orders_of_ranks(sampler, has_own_seeds=True), count)
    if not shared:
        return [Finding("ranks", "ok", f"{sampler.num_replicas}", "simulated", "Each sample comes in one rank only.")]
    seeded = _shared(_orders_of_ranks(sampler, has_own_seeds=False), count)
    if not seeded:
        text = (
            "The sampler draws from the process's own random numbers: ranks have samples in common unless all of them "
            "are seeded alike."
        )
        return [
            Finding(
                "ranks overlap",
                "warning",
                f"by {shared:,} samples",
                f"{sampler.num_replicas} ranks, simulated",
                text,
                "draw from a generator of the sampler's own, seeded by seed + epoch, as DistributedSampler does",
            )
        ]
    return [
        Finding(
            "ranks overlap",
            "error",
            f"by {seeded:,} samples",
            f"{sampler.num_replicas} ranks, simulated",
            "Ranks train on the same samples, and an epoch does not go through the data set.",
            "sampler=torch.utils.data.DistributedSampler(dataset, shuffle=True)",
        )
    ]


def _epochs(sampler: Any) -> list[Finding]:
    if not callable(lookup.attribute(sampler, "set_epoch")) or not lookup.attribute(sampler, "shuffle", False):
        return []
    with _seeded(1):
        first = _epoch(sampler)
    with _seeded(2):
        second = _epoch(sampler)
    if first != second or len(first) < 2:
        return []
    return [
        Finding(
            "set_epoch",
            "warning",
            "the order is the same in each epoch",
            f"{type(sampler).__name__} with shuffle=True",
            "It changes only when the training loop calls set_epoch; nothing that was run here does.",
            "for epoch in range(epochs): loader.sampler.set_epoch(epoch); ...",
        )
    ]


def order(loader: Any) -> list[Finding]:
    """Samples that come twice, in one rank or in several, and orders that stay the same."""
    sampler = sampler_of(loader)
    if _options.is_iterable_only(loader.dataset) or not lookup.has_special(sampler, "__iter__"):
        return []
    try:
        count = len(loader.dataset)
    except Exception:  # no length, or no data set
        count = None
    sampler = copy.copy(sampler)
    with _seeded(0):
        indices = _epoch(sampler)
    is_meant = lookup.attribute(sampler, "replacement", False) is True  # as torch's samplers say it
    found = _repeats(indices, None if _is_distributed(sampler) else count, is_meant)
    if _is_distributed(sampler):
        found += _ranks(sampler, count)
    found += _epochs(sampler)
    return found or [Finding("sampler", "ok", type(sampler).__name__, "", "No index comes twice in an epoch.")]


# ---- padding ----


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Arrays and sequences of numbers, by where they are."""
    if lookup.has_attribute(value, "shape") and lookup.has_attribute(value, "dtype"):
        yield path, value
    elif lookup.has_attribute(value, "items") and lookup.has_attribute(value, "keys"):
        for key, part in value.items():
            yield from _leaves(part, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        if value and all(isinstance(one, (int, float)) for one in value):
            yield path, value
        else:
            for at, part in enumerate(value[:64]):
                yield from _leaves(part, f"{path}[{at}]")


def _length(leaf: Any) -> int | None:
    shape = lookup.attribute(leaf, "shape")
    if shape is None:
        return len(leaf)
    return int(shape[0]) if len(shape) > 0 else None


def _tail_is_constant(row: Any, start: int) -> bool:
    tail = row[start:]
    return bool((tail == tail[(0,) * len(tail.shape)]).all())


def _share_of_padding(batch: Any, lengths: Sequence[int]) -> float | None:
    """The share of a batch's array that is behind its samples' ends; None: that is no padding."""
    shape: Any = lookup.attribute(batch, "shape", ())
    if len(shape) < 2 or shape[0] != len(lengths) or shape[1] != max(lengths):
        return None
    for row, length in zip(batch, lengths, strict=True):
        if length < shape[1] and not _tail_is_constant(row, length):
            return None
    return 1 - sum(lengths) / (len(lengths) * int(shape[1]))


def _shares(samples: list[Any], batch: Any) -> dict[str, float]:
    """By where it is in the batch. A sample's part is at the same place, or the only one with these lengths."""
    by_path: dict[str, list[int]] = {}
    for sample in samples:
        for path, leaf in _leaves(sample):
            length = _length(leaf)
            if length is not None:
                by_path.setdefault(path, []).append(length)
    whole = {path: found for path, found in by_path.items() if len(found) == len(samples) and len(set(found)) > 1}
    shares = {}
    for path, array in _leaves(batch):
        for lengths in [whole[path]] if path in whole else whole.values():
            share = _share_of_padding(array, lengths)
            if share is not None:
                shares[path] = share
                break
    return shares


def _batches_of(loader: Any) -> Iterator[list[Any]]:
    batches = getattr(loader, "batch_sampler", None)
    if batches is not None:
        yield from map(list, batches)
    elif callable(getattr(loader, "_tasks", None)) and loader.batch_size is not None:  # headrace.Loader
        yield from loader._tasks()


def _collate_of(loader: Any) -> Callable[[list[Any]], Any]:
    if loader.collate_fn is not None:
        collate: Callable[[list[Any]], Any] = loader.collate_fn
        return collate
    from headrace._numpy.collate import default_collate

    return default_collate


def padding(loader: Any) -> list[Finding]:
    """Makes some batches here and compares them with their samples."""
    if _options.is_iterable_only(loader.dataset):
        return []
    end = time.monotonic() + _MOST_S
    sums: dict[str, list[float]] = {}
    try:
        for indices in itertools.islice(_batches_of(loader), _BATCHES):
            samples = [loader.dataset[index] for index in indices]
            for path, share in _shares(samples, _collate_of(loader)(samples)).items():
                sums.setdefault(path, []).append(share)
            if time.monotonic() > end:
                break
    except Exception as error:
        text = exception_text.in_words(error)
        return [Finding("padding", "note", "not measured", text, "Samples or collate function raise in this process.")]
    return _of_padding({path: sum(shares) / len(shares) for path, shares in sums.items()})


def _of_padding(shares: dict[str, float]) -> list[Finding]:
    if not shares:
        return []
    path, most = max(shares.items(), key=lambda one: one[1])
    if most <= _TOO_MUCH:
        return [Finding("padding", "ok", f"{most:.0%} of batch{path}", "at most")]
    return [
        Finding(
            "padding",
            "warning",
            f"{most:.0%} of batch{path}",
            f"in batches of {_BATCHES} at most that were made here",
            "More than half of what is collated, sent and computed on stands behind the samples' ends.",
            "batches of samples of similar length: a batch_sampler that sorts each few hundred indices by length",
        )
    ]
