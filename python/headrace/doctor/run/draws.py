# SPDX-License-Identifier: Apache-2.0
"""Draws from a loader's sampler as a process of a training would, and puts all random numbers back: for order.py and
ranks.py."""

from __future__ import annotations

import contextlib
import copy
import itertools
import operator
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from headrace._base import lookup
from headrace._samples import random_numbers

MAX_ENTRIES = 2_000_000  # that are drawn of an epoch
_WRAPPED = ("sampler", "batch_sampler", "dataset")  # where samplers keep the sampler that they wrap


def sampler_of(loader: Any) -> Any:
    """Returns what gives a loader's indices one by one, or in batches if there is only that; None if it has neither."""
    batches = getattr(loader, "batch_sampler", None)
    sampler = lookup.attribute(batches, "sampler")
    if sampler is None and batches is None:
        sampler = getattr(loader, "sampler", None)
    return sampler if sampler is not None else batches


def entries_of(sampler: Any, seed: int, rank: int | None = None) -> list[Any]:
    """Returns what a copy of a sampler gives in one epoch, which are indices or batches.

    seed: of the random numbers of the process. rank: the copy is given it.
    """
    one = copy.copy(sampler)
    if rank is not None:
        one.rank = rank
    with _seeded(seed), _kept(one):
        return list(itertools.islice(one, MAX_ENTRIES))


def indices_of(entries: Iterable[Any]) -> list[Any]:
    """Returns the indices in some entries. Those that are not ints are compared by their repr."""
    return [_plain(index) for index in itertools.islice(_flat(entries), MAX_ENTRIES)]


def _flat(entries: Iterable[Any]) -> Iterator[Any]:
    for entry in entries:
        if isinstance(entry, (list, tuple)) and not isinstance(entry, str):
            yield from entry
        else:
            yield entry


def _plain(index: Any) -> Any:
    with contextlib.suppress(Exception):
        return operator.index(index)
    return repr(index)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the process's random numbers, which samplers draw from, as in another process. Restores them at the end."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    with random_numbers.generators_kept():
        random.seed(seed)
        if torch is not None:
            torch.manual_seed(seed)
        if numpy is not None:
            numpy.random.seed(seed)
        yield


@contextlib.contextmanager
def _kept(sampler: Any) -> Iterator[None]:
    """Restores the generators of torch that a sampler, and those that it wraps, draw from. Copies share them."""
    kept = [(generator, generator.get_state()) for generator in _generators(sampler)]
    try:
        yield
    finally:
        for generator, state in kept:
            generator.set_state(state)


def _generators(sampler: Any) -> Iterator[Any]:
    torch = sys.modules.get("torch")
    seen: list[Any] = []
    waiting = [sampler] if torch is not None else []
    while waiting:
        one = waiting.pop()
        if one is None or any(one is other for other in seen):
            continue
        seen.append(one)
        generator = lookup.attribute(one, "generator")
        if torch is not None and isinstance(generator, torch.Generator):
            yield generator
        if lookup.has_special(one, "__iter__"):
            waiting += [lookup.attribute(one, name) for name in _WRAPPED]
