# SPDX-License-Identifier: Apache-2.0
"""Compares the ranks in an epoch of a loader whose order is dealt to several ranks. Both loaders use it. At each step
_core.Iterator calls the Watch; the iterators of the loaders call it at the end (EpochIterator)."""

from __future__ import annotations

import array
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from headrace._ranks.agreement import Agreement
from headrace._ranks.disagreement import Facts
from headrace._ranks.remainder import Remainder
from headrace.sampling._epoch import Epoch

_OTHERS = 4096  # entries of another kind than ints that are hashed, from all parts of the order


class Watch:
    """The part of one epoch of a loader in the agreement of the ranks. It is called when the first indices of the
    epoch were drawn, at each batch, and at the end.

    length: returns the number of samples of this rank, or None. seed: of the sampler, if its EpochIndices know none.
    remainder: whether the ranks may differ by the rest of a division. own_seeds: each rank may have a seed of its own.
    """

    def __init__(
        self,
        agreement: Agreement,
        epoch: Epoch,
        length: Callable[[], int | None],
        seed: Any = None,
        remainder: Remainder | None = None,
        own_seeds: bool = False,
    ) -> None:
        self._agreement = agreement
        self._epoch = epoch
        self._length, self._seed, self._remainder, self._own_seeds = length, seed, remainder, own_seeds
        self._before = epoch.steps_done()
        self.show_step: Callable[[int], tuple[int, int] | None] | None = None  # see Agreement; from begin() on
        self.check_end = agreement.check_end

    def begin(self) -> None:
        """Compares the epochs that begin. Raises RanksDisagree. After an interruption it can be called again."""
        facts = _facts_of(self._epoch, self._length(), self._seed)
        self._agreement.begin_epoch(facts, self._before, self._remainder, self._own_seeds)
        self.show_step = self._agreement.show_step

    def show_wait(self, inside_ns: int, elapsed_ns: int) -> None:
        """Shows the other ranks how long this one waits for batches. _core.Iterator calls it now and then."""
        self._agreement.show_wait(inside_ns, elapsed_ns)

    def end(self, count: int) -> None:
        """Shows that the epoch has ended after so many batches in this process. Raises RanksDisagree."""
        self._agreement.end(count)


class EpochIterator:
    """A base of the loaders' iterators, which have _core.Iterator as another one: knows the epoch of a map-style
    dataset."""

    epoch: Epoch | None = None
    watch: Watch | None  # a member of _core.Iterator, which shows each step
    _num_yielded: int

    def _has_ended(self) -> None:
        """Notes that no more batches come, so that none is held back. Raises RanksDisagree."""
        if self.epoch is not None:
            self.epoch.has_ended = True
        if self.watch is not None:
            self.watch.end(self._num_yielded)


def _facts_of(epoch: Epoch, length: int | None, seed: Any) -> Facts:
    order = epoch.indices.order
    left = epoch.steps_left()
    return Facts(
        length=-1 if length is None else length,
        steps=-1 if left is None else epoch.steps_done() + left,
        seed=_number(order.get("seed", seed)),
        epoch=_number(order.get("epoch", epoch.number)),
        digest=_digest_of(epoch),
        samples=order["n"],
    )


def _number(value: Any) -> int:
    return value if type(value) is int else -1


def _digest_of(epoch: Epoch) -> int:
    """Returns a hash of the order of all ranks and of the place in it, or -1 if it is not known."""
    indices = epoch.indices
    if not indices.is_known:
        return -1
    plan = [indices.segment.plan, indices.segment.digest]  # the digest is 0 if there is no plan
    made_from = zlib.crc32(json.dumps([indices.order, *plan, epoch.position()], sort_keys=True).encode())
    entries = getattr(indices, "drawn_entries", None)
    return made_from if entries is None else zlib.crc32(_bytes_of(entries), made_from)


def _bytes_of(entries: Sequence[Any]) -> bytes:
    if isinstance(entries, array.array):
        return entries.tobytes()
    return repr([entries[i] for i in range(0, len(entries), len(entries) // _OTHERS + 1)]).encode()
