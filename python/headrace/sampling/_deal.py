# SPDX-License-Identifier: Apache-2.0
"""The part of an order that one rank gets. The arithmetic is hr_deal_rank and hr_deal_advance of headrace/sampler.h; it
is repeated here in Python for machines where the extension cannot be loaded."""

from __future__ import annotations

from typing import NamedTuple

try:
    from headrace import _core
except ImportError:
    _core = None  # type: ignore[assignment]


class Deal(NamedTuple):
    """The part of a rank: `size` positions first, first + step, ..., modulo n. The first `once` of them are no
    repeats."""

    first: int
    step: int
    size: int
    once: int


def deal(n: int, position: int, world_size: int, rank: int, drop_last: bool) -> Deal:
    """Returns the part of a rank of what is left of an order of n entries from `position` on. Raises ValueError."""
    if _core is not None:
        return Deal(*_core.deal(n, position, world_size, rank, drop_last))
    if not 0 <= position <= n or not 0 <= rank < world_size:
        raise ValueError(f"cannot deal {n} entries from position {position} to rank {rank} of {world_size}")
    left = n - position
    count = left // world_size if drop_last else -(-left // world_size)
    return Deal((position + rank) % n if n else 0, world_size, count, min(count, len(range(rank, left, world_size))))


def advance(n: int, position: int, world_size: int, batch_size: int, steps: int) -> int:
    """Returns the position after each rank has taken so many batches; at most n. Raises ValueError."""
    if _core is not None:
        return _core.advance(n, position, world_size, batch_size, steps)
    return min(n, position + world_size * batch_size * steps)
