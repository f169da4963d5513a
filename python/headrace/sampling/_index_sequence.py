# SPDX-License-Identifier: Apache-2.0
"""IndexSequence: the base of orders that are sequences of indices: headrace.Order and headrace.Mixture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, overload

from headrace import _core

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

LEAST, END = -(2**63), 2**64  # torch.Generator.manual_seed takes these numbers; negative ones wrap to 64 bits
MASK = END - 1


class Whole(Protocol):
    """A whole order, which is made when it is first read. A sequence and its slices share it."""

    seed: int
    epoch: int

    def get(self) -> _core.Order:
        """Returns the order."""

    def key(self) -> tuple[Any, ...]:
        """Returns what the order is made from."""


class IndexSequence(Sequence[int]):
    """Indices by position, of an order as a whole or of a slice of it, which computes nothing until it is read."""

    __slots__ = ("__weakref__", "_positions", "_whole")
    _whole: Whole
    _positions: range

    @property
    def seed(self) -> int:
        """The seed."""
        return self._whole.seed

    @property
    def epoch(self) -> int:
        """The epoch; set_epoch changes it."""
        return self._whole.epoch

    def set_epoch(self, epoch: int) -> None:
        """Changes the order to that of another epoch. Slices and iterators that exist stay as they are."""
        raise NotImplementedError

    def with_epoch(self, epoch: int) -> Self:
        """Returns the order, or slice, of another epoch."""
        other = self._with(self._positions)
        other.set_epoch(epoch)
        return other

    def _with(self, positions: range) -> Self:
        other = type(self).__new__(type(self))
        other._whole = self._whole
        other._positions = positions
        return other

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, key: int, /) -> int: ...
    @overload
    def __getitem__(self, key: slice, /) -> Self: ...
    def __getitem__(self, key: int | slice, /) -> int | Self:
        if isinstance(key, slice):
            return self._with(self._positions[key])
        name = type(self).__name__
        try:
            position = self._positions[key]
        except IndexError:
            raise IndexError(f"{name}: position {key} is out of range, there are {len(self)} samples") from None
        except TypeError:
            raise TypeError(f"{name}: positions should be ints or slices, but got {key!r}") from None
        index: int = self._whole.get().at(position)
        return index

    def __iter__(self) -> Iterator[int]:
        return self._iterate(self._positions)

    def _iterate(self, positions: range) -> Iterator[int]:
        if not positions:
            return iter(())
        found: Iterator[int] = self._whole.get().iterate(positions.start, positions.step, len(positions))
        return found

    def __reversed__(self) -> Iterator[int]:
        return iter(self[::-1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Returns the indices as a new numpy array, int64 unless another dtype is asked for."""
        import numpy as np

        if copy is False:
            raise ValueError(
                f"{type(self).__name__}: the indices are computed, so an array of them is always new; leave out "
                "copy=False"
            )
        array = np.empty(len(self), np.int64)
        if len(self):
            self._whole.get().fill(self._positions.start, self._positions.step, array)
        return array if dtype is None else array.astype(dtype, copy=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IndexSequence):
            return NotImplemented
        return bool(self._whole.key() == other._whole.key()) and self._positions == other._positions

    __hash__ = None  # type: ignore[assignment] # set_epoch changes it

    def _describe_slice(self, n: int) -> str:
        """Returns the slice of n positions as it is written; "" for all of them."""
        start, stop, step = self._positions.start, self._positions.stop, self._positions.step
        if self._positions == range(n):
            return ""
        if not self._positions:
            return "[0:0]"
        end = "" if stop < 0 else stop
        return f"[{start}:{end}]" if step == 1 else f"[{start}:{end}:{step}]"
