# SPDX-License-Identifier: Apache-2.0
"""The first indices that each rank draws in an epoch, as digests that ranks show each other.

If a sampler deals the samples of a dataset to ranks, an index that two ranks draw before any rank can need padding is a
mistake: each rank has drawn its own order, for example. The padding is at the end of the parts, so the indices that are
compared are so few that all ranks together have no more of them than the dataset has samples.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

MOST = 64  # HR_BOARD_MAX_FIRST
_BITS = (1 << 63) - 1


class FirstIndices:
    """Notes the first indices of a rank, and calls `show` with their digests, once: when it is known that there are
    more, or when the epoch has ended. The digests are [] if nothing is to be compared, because the rank has drawn an
    index twice.

    samples: of the dataset. ranks: their number. batch_size: of the batches that the indices make; 0: see begin_batch.
    """

    def __init__(self, samples: int, ranks: int, batch_size: int, show: Callable[[list[int]], None]) -> None:
        self._samples, self._ranks, self._batch_size, self._show = samples, ranks, batch_size, show
        self._most = min(MOST, samples // ranks)
        self._last_batch = 0
        self._digests: list[int] = []
        self._is_shown = False

    def begin_batch(self) -> None:
        """Notes that the next index is the first one of a batch."""
        self._last_batch = len(self._digests)

    def note(self, index: Any) -> None:
        """Notes the index that was drawn."""
        if self._is_shown:
            return
        if len(self._digests) == self._most:
            self._show_once()
            return
        if self._batch_size and len(self._digests) % self._batch_size == 0:
            self.begin_batch()
        self._digests.append(_digest_of(index))

    def end(self) -> None:
        """Notes that there are no more. If the parts do not have all samples, the sampler leaves some out, and the last
        batch may have padding."""
        if not self._is_shown and len(self._digests) * self._ranks < self._samples:
            del self._digests[self._last_batch :]
        self._show_once()

    def _show_once(self) -> None:
        if not self._is_shown:
            self._is_shown = True
            self._show(self._digests if len(set(self._digests)) == len(self._digests) else [])


def count_shared(parts: Iterable[Sequence[int]]) -> int:
    """Returns how many digests are in the parts of several ranks; 0 if a rank has shown none."""
    found = list(parts)
    if not all(found):
        return 0
    return sum(count > 1 for count in Counter(digest for part in found for digest in part).values())


def _digest_of(index: Any) -> int:
    """Returns 63 bits."""
    if type(index) is int:
        return index & _BITS
    return (
        int.from_bytes(hashlib.blake2b(repr(index).encode(errors="replace"), digest_size=8).digest(), "little") & _BITS
    )
