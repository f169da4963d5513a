# SPDX-License-Identifier: Apache-2.0
"""Compares the ranks of loaders whose sampler deals an order to ranks. The iterators call it: when the first indices of
an epoch were drawn, at each batch, and at the end."""

from __future__ import annotations

import array
import json
import os
import sys
import zlib
from collections.abc import Sequence
from typing import Any

from torch.utils.data import distributed

from headrace._inspect import lookup
from headrace._ranks.agreement import Agreement
from headrace._ranks.disagreement import Facts
from headrace.sampling._epoch import Epoch
from headrace.torch import _per_loader
from headrace.torch._foreign import samplers_of

_OTHERS = 4096  # entries of another kind than ints that are hashed, from all parts of the order


def place_of_caller() -> str:
    """Returns the file and line outside of headrace and torch that calls, such as "train.py:12"."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("headrace", "torch"):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def _dealing_sampler(loader: Any) -> Any:
    """Returns the sampler of a loader that deals an order to several ranks, or None."""
    for one in samplers_of(loader._index_sampler):
        if isinstance(one, distributed.DistributedSampler) and one.num_replicas > 1:
            return one
    return None


class Watch:
    """The part of one epoch of a loader in the agreement of the ranks."""

    def __init__(self, agreement: Agreement, sampler: Any, epoch: Epoch) -> None:
        self._agreement = agreement
        self._sampler = sampler
        self._epoch = epoch
        self._before = epoch.steps_done()

    def begin(self) -> None:
        """Compares the epochs that begin. Raises RanksDisagree."""
        self._agreement.begin_epoch(_facts_of(self._epoch, self._sampler))

    def step(self, count: int) -> None:
        """Shows that so many batches came in this process. Raises RanksDisagree."""
        self._agreement.step(self._before + count)

    def end(self, count: int) -> None:
        """Shows that the epoch has ended after so many batches. Raises RanksDisagree."""
        self._agreement.end(self._before + count)


def watch_of(loader: Any, epoch: Epoch) -> Watch | None:
    """Returns what compares this epoch of a loader with that of other ranks, or None if its sampler deals to none."""
    sampler = _dealing_sampler(loader)
    if sampler is None:
        return None
    agreement = _per_loader.agreements.get(loader)
    if agreement is None:
        where = _per_loader.places.get(loader) or place_of_caller()
        agreement = Agreement(where, sampler.rank, sampler.num_replicas)
        _per_loader.agreements.set(loader, agreement)
    return Watch(agreement, sampler, epoch)


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
    return f"rank {sampler.rank} of {sampler.num_replicas} ({source}); {compared}"


def _facts_of(epoch: Epoch, sampler: Any) -> Facts:
    order = epoch.source.order
    left = epoch.steps_left()
    return Facts(
        length=_length_of(sampler),
        steps=-1 if left is None else epoch.steps_done() + left,
        seed=_number(order.get("seed", lookup.attribute(sampler, "seed"))),
        epoch=_number(order.get("epoch", epoch.number)),
        digest=_digest_of(epoch),
        samples=order["n"],
    )


def _number(value: Any) -> int:
    return value if type(value) is int else -1


def _length_of(sampler: Any) -> int:
    try:
        return len(sampler)
    except Exception:  # its own __len__ raises
        return -1


def _digest_of(epoch: Epoch) -> int:
    """Returns a hash of the order of all ranks and of the place in it, or -1 if it is not known."""
    source = epoch.source
    if not source.is_known:
        return -1
    made_from = zlib.crc32(json.dumps([source.order, epoch.position()], sort_keys=True).encode())
    entries = getattr(source, "drawn_entries", None)
    return made_from if entries is None else zlib.crc32(_bytes_of(entries), made_from)


def _bytes_of(entries: Sequence[Any]) -> bytes:
    if isinstance(entries, array.array):
        return entries.tobytes()
    return repr([entries[i] for i in range(0, len(entries), len(entries) // _OTHERS + 1)]).encode()
