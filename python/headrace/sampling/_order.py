# SPDX-License-Identifier: Apache-2.0
"""headrace.Order: a shuffled or sequential order of n samples, with random access."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

from headrace import _core
from headrace.sampling._index_sequence import END, LEAST, MASK, IndexSequence


def _make_stream(n: int, seed: int, epoch: int) -> _core.Order:
    return _core.Order.stream(n, seed & MASK, epoch & MASK)


def _make_torch(n: int, seed: int, epoch: int) -> _core.Order:
    return _core.Order.torch(n, (seed + epoch) & MASK)


def _make_sequential(n: int, seed: int, epoch: int) -> _core.Order:
    return _core.Order.sequential(n)


_KINDS: dict[str, Callable[[int, int, int], _core.Order]] = {
    "stream": _make_stream,
    "torch": _make_torch,
    "sequential": _make_sequential,
}


class _Whole:
    """The whole order, which is made when it is first read. An Order and its slices share it."""

    __slots__ = ("_made", "epoch", "kind", "n", "seed")

    def __init__(self, n: int, kind: str, seed: int, epoch: int) -> None:
        self.n, self.kind, self.seed, self.epoch = n, kind, seed, epoch
        self._made: _core.Order | None = None

    def get(self) -> _core.Order:
        if self._made is None:
            self._made = _KINDS[self.kind](self.n, self.seed, self.epoch)
        return self._made

    def key(self) -> tuple[int, str, int, int]:
        return self.n, self.kind, self.seed, self.epoch


def _check_size(n: Any) -> int:
    try:
        size = operator.index(n)
    except TypeError:
        what = f"a {type(n).__name__}" if hasattr(n, "__len__") else repr(n)
        raise TypeError(
            f"Order: n should be the number of samples, an int such as len(dataset), but got {what}"
        ) from None
    if not 0 <= size <= sys.maxsize:
        raise ValueError(f"Order: n should be from 0 to 2**63 - 1 samples, but got {size}")
    return size


def _check_kind(kind: Any) -> str:
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"Order: kind should be one of {', '.join(map(repr, _KINDS))}, but got {kind!r}")
    return kind


def _check_number(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"Order: {name} should be an int, but got {value!r}") from None
    if not LEAST <= number < END:
        raise ValueError(f"Order: {name} should fit into 64 bits (-2**63 to 2**64 - 1), but got {number}")
    return number


def _check_numbers(seed: Any, epoch: Any) -> tuple[int, int]:
    seed, epoch = _check_number("seed", seed), _check_number("epoch", epoch)
    if not LEAST <= seed + epoch < END:
        raise ValueError(
            f"Order: seed + epoch should fit into 64 bits (-2**63 to 2**64 - 1), but seed={seed} and epoch={epoch} "
            f"give {seed + epoch}; choose a smaller seed"
        )
    return seed, epoch


def _whole_number(value: object) -> int | None:
    """Returns the int that equals a value, or None if no int does."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return int(value) if isinstance(value, float) and value.is_integer() else None


class Order(IndexSequence):
    """An order of n samples: a sequence that has each index from 0 to n - 1 once, for use as a sampler.

    `order[i]` is an int, and a slice is an Order too, which computes nothing until it is read:
    `order[rank::world_size]` is the part of a rank. `numpy.asarray(order[a:b])` makes an int64 array of shape (b - a,).
    Iteration gives ints.

    kind: "stream": shuffled, without a table of the n indices: it takes 8 KiB, and `order[i]`, `i in order` and
    `order.index(i)` take constant time for any n (the algorithm is in headrace/sampler.h: a Feistel cipher after Black
    and Rogaway, 2002). "torch": `torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch))`, bit for
    bit, which is what torch's DistributedSampler shuffles by; when it is first read, it makes a table with 4 bytes for
    each sample (8 from n = 2**31 + 1 on). "sequential": 0, 1, ..., n - 1.

    seed, epoch: ints which, with their sum, are from -2**63 to 2**64 - 1. The order depends on n, kind, seed and epoch
    only, so it is the same on each rank. Raises TypeError and ValueError for arguments that are out of range.
    """

    __slots__ = ()
    _whole: _Whole

    def __init__(self, n: int, *, kind: str = "stream", seed: int = 0, epoch: int = 0) -> None:
        size, kind = _check_size(n), _check_kind(kind)
        seed, epoch = _check_numbers(seed, epoch)
        self._whole = _Whole(size, kind, seed, epoch)
        self._positions = range(size)

    @property
    def n(self) -> int:
        """The number of samples of the whole order; that of a slice is its len()."""
        return self._whole.n

    @property
    def kind(self) -> str:
        """The kind of order: "stream", "torch" or "sequential"."""
        return self._whole.kind

    def set_epoch(self, epoch: int) -> None:
        """Changes the order to that of another epoch. Slices and iterators that exist stay as they are."""
        seed, epoch = _check_numbers(self.seed, epoch)
        if epoch != self.epoch:
            self._whole = _Whole(self.n, self.kind, seed, epoch)

    def _position_of(self, value: object) -> int | None:
        """Returns the place of an index in this order or slice, or None if it is not there."""
        index = _whole_number(value)
        if index is None or not 0 <= index < self.n or not self._positions:
            return None
        position = self._whole.get().find(index)
        return self._positions.index(position) if position in self._positions else None

    def __contains__(self, value: object) -> bool:
        if len(self) == self.n:
            index = _whole_number(value)
            return index is not None and 0 <= index < self.n
        return self._position_of(value) is not None

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """Returns the position of an index. Raises ValueError if it is not there."""
        position = self._position_of(value)
        if position is None or position not in range(len(self))[start:stop]:
            part = (
                f" from position {start} to {len(self) if stop is None else stop}" if start or stop is not None else ""
            )
            raise ValueError(f"Order: {value!r} is not among its {len(self)} samples{part}")
        return position

    def count(self, value: object) -> int:
        """Returns 1 if an index is in the order, otherwise 0."""
        return int(value in self)

    def __repr__(self) -> str:
        text = f"headrace.Order({self.n}, kind={self.kind!r}, seed={self.seed}, epoch={self.epoch})"
        return text + self._describe_slice(self.n)

    def __getstate__(self) -> tuple[Any, ...]:
        return (*self._whole.key(), self._positions)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        n, kind, seed, epoch, self._positions = state
        self._whole = _Whole(_check_size(n), _check_kind(kind), *_check_numbers(seed, epoch))
