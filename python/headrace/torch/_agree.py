# SPDX-License-Identifier: Apache-2.0
"""Compares the ranks of loaders whose sampler deals an order to ranks. The iterators call it: when the first indices of
an epoch were drawn, at each batch, and at the end."""

from __future__ import annotations

import array
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import distributed

from headrace._inspect import lookup
from headrace._ranks.agreement import Agreement
from headrace._ranks.disagreement import Facts
from headrace.sampling._epoch import Epoch
from headrace.torch import _per_loader
from headrace.torch._callers import place_of_caller
from headrace.torch._foreign import samplers_of
from headrace.torch._plan_sampler import is_plan
from headrace.torch._whole_order import length_of

_OTHERS = 4096  # entries of another kind than ints that are hashed, from all parts of the order


def _dealing_sampler(loader: Any) -> Any:
    """Returns the sampler of a loader that deals an order to several ranks, or None."""
    for one in samplers_of(loader._index_sampler):
        if isinstance(one, distributed.DistributedSampler) or is_plan(one):
            return one if one.num_replicas > 1 else None
    return None


def _rank_of(sampler: Any) -> int:
    return sampler.place.rank if is_plan(sampler) else sampler.rank  # type: ignore[no-any-return]


class Watch:
    """The part of one epoch of a loader in the agreement of the ranks."""

    def __init__(self, agreement: Agreement, sampler: Any, epoch: Epoch) -> None:
        self._agreement = agreement
        self._sampler = sampler
        self._epoch = epoch
        self._before = epoch.steps_done()
        self.show_step: Callable[[int], tuple[int, int] | None] | None = None  # see Agreement; from begin() on
        self.raise_end = agreement.raise_end

    def begin(self) -> None:
        """Compares the epochs that begin. Raises RanksDisagree. After an interruption it can be called again."""
        self._agreement.begin_epoch(_facts_of(self._epoch, self._sampler), self._before)
        self.show_step = self._agreement.show_step

    def end(self, count: int) -> None:
        """Shows that the epoch has ended after so many batches in this process. Raises RanksDisagree."""
        self._agreement.end(count)


def watch_of(loader: Any, epoch: Epoch) -> Watch | None:
    """Returns what compares this epoch of a loader with that of other ranks, or None if its sampler deals to none."""
    sampler = _dealing_sampler(loader)
    if sampler is None:
        return None
    agreement = _per_loader.agreements.get(loader)
    if agreement is None:
        settings = _settings_of(loader, sampler)
        place = _per_loader.places.get(loader) or place_of_caller(f"{epoch.source.order['n']} {settings}")
        agreement = Agreement(place, _rank_of(sampler), sampler.num_replicas, settings)
        _per_loader.agreements.set(loader, agreement)
    return Watch(agreement, sampler, epoch)


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
    source = "of the sampler" if place is None else place.source
    agreement = _per_loader.agreements.get(loader)
    compared = "not compared yet" if agreement is None else agreement.describe()
    return f"rank {_rank_of(sampler)} of {sampler.num_replicas} ({source}); {compared}"


def _facts_of(epoch: Epoch, sampler: Any) -> Facts:
    order = epoch.source.order
    left, length = epoch.steps_left(), length_of(sampler)
    return Facts(
        length=-1 if length is None else length,
        steps=-1 if left is None else epoch.steps_done() + left,
        seed=_number(order.get("seed", lookup.attribute(sampler, "seed"))),
        epoch=_number(order.get("epoch", epoch.number)),
        digest=_digest_of(epoch),
        samples=order["n"],
    )


def _number(value: Any) -> int:
    return value if type(value) is int else -1


def _digest_of(epoch: Epoch) -> int:
    """Returns a hash of the order of all ranks and of the place in it, or -1 if it is not known."""
    source = epoch.source
    if not source.is_known:
        return -1
    plan = [source.segment.plan, source.segment.digest]  # the digest is 0 if the source has no plan
    made_from = zlib.crc32(json.dumps([source.order, *plan, epoch.position()], sort_keys=True).encode())
    entries = getattr(source, "drawn_entries", None)
    return made_from if entries is None else zlib.crc32(_bytes_of(entries), made_from)


def _bytes_of(entries: Sequence[Any]) -> bytes:
    if isinstance(entries, array.array):
        return entries.tobytes()
    return repr([entries[i] for i in range(0, len(entries), len(entries) // _OTHERS + 1)]).encode()
